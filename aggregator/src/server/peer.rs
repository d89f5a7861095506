//! Task that serves one peer: moves bytes between a stream and the sans-IO [`PeerSession`], runs the timers
//! of the session, and forwards its events to the core.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fedspan_connections::{Slot, SlotError};
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Sleep, timeout};

use super::beacon::Beacons;
use super::clock::Clock;
use crate::connection::{Acceptor, Connection};
use crate::core::{
    Command, DisconnectReason, Origin, PeerAction, PeerEvent, PeerSession, Receiver, Timeouts,
};

/// Longest time that a connection stays open after the server has ended it, so that the remote end can read
/// the last message and close.
const LINGER: Duration = Duration::from_secs(1);

/// Largest number of bytes per read: enough for an update of a small model.
const READ_LEN: usize = 1280;

/// Largest number of reads after a timer has expired, for bytes that arrived before the timer: enough for the
/// longest frame.
const LATE_READS_MAX: usize = FRAME_LIMIT_MAX.div_ceil(READ_LEN) + 1;

/// Parameters that all peer tasks of a server share.
#[derive(Clone, Debug)]
pub(super) struct PeerContext {
    /// Handshake parameters.
    pub acceptor: Arc<Acceptor>,
    /// Timeouts of sessions.
    pub timeouts: Timeouts,
    /// Clock of the server.
    pub clock: Clock,
    /// Channel for events to the core.
    pub inbox: mpsc::Sender<PeerEvent>,
    /// Sender of beacons; `None` if none are sent.
    pub beacons: Option<Beacons>,
}

/// Serves one connection until it ends, and frees its slot.
///
/// This is not an `async fn`, because the future would store its arguments in addition to the `Peer` built
/// from them. The server has one such future per device.
pub(super) fn run(
    id: u64,
    socket: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    context: PeerContext,
    connection: Connection,
    slot: Slot<IpAddr>,
) -> impl Future<Output = ()> {
    let mut peer = Peer::new(id, Origin::Address(address), socket, context, connection, Some(slot));
    async move {
        let reason = peer.run_session().await;
        if matches!(reason, DisconnectReason::Ended | DisconnectReason::Refused)
            && peer.slot.as_mut().is_some_and(Slot::may_linger)
        {
            peer.linger().await;
        }
        tracing::debug!(peer = id, from = %peer.session.from(), ?reason, "connection ended");
        peer.report_end(reason).await;
        // The socket is closed only after the report is sent and the slot is freed, so that a client whose
        // connection is closed can reconnect at once.
        peer.slot = None;
        drop(peer);
    }
}

/// Runs one session on a persistent link, which stays open. [`DisconnectReason::Closed`] means that the link
/// has ended.
pub(super) async fn run_on_link(
    id: u64,
    name: Arc<str>,
    link: impl AsyncRead + AsyncWrite + Unpin,
    context: PeerContext,
) -> DisconnectReason {
    let connection = Connection::persistent(Arc::clone(&context.acceptor));
    let mut peer = Peer::new(id, Origin::Link(name), link, context, connection, None);
    let reason = peer.run_session().await;
    peer.report_end(reason).await;
    reason
}

/// Session with its stream and channels.
struct Peer<S> {
    session: PeerSession,
    /// Receiving end of the command queue.
    commands: Receiver<Command>,
    socket: S,
    /// Slot of the connection; `None` on a persistent link.
    slot: Option<Slot<IpAddr>>,
    clock: Clock,
    inbox: mpsc::Sender<PeerEvent>,
    beacons: Option<Beacons>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    fn new(
        id: u64,
        from: Origin,
        socket: S,
        context: PeerContext,
        connection: Connection,
        slot: Option<Slot<IpAddr>>,
    ) -> Self {
        let PeerContext { timeouts, clock, inbox, beacons, .. } = context;
        let (session, commands) = PeerSession::new(id, from, connection, timeouts, clock.now());
        Self { session, commands, socket, slot, clock, inbox, beacons }
    }

    /// Sends the last events of the session to the core: what the device has sent completely is not lost with its link.
    async fn report_end(&mut self, reason: DisconnectReason) {
        // Fails only if the core has ended, that is, when the server is stopping.
        if self.session.has_event()
            && let Ok(permit) = self.inbox.reserve().await
            && let Some(event) = self.session.take_event()
        {
            permit.send(event);
        }
        if let Ok(permit) = self.inbox.reserve().await {
            permit.send(self.session.gone(reason));
        }
    }

    /// Waits for the device to read the last message. Closing a socket with unread input would reset the
    /// connection and lose output in transit.
    async fn linger(&mut self) {
        let _ = self.socket.shutdown().await;
        let drained = async { while matches!(read(&mut self.socket, |_| {}).await, Ok(1..)) {} };
        let _ = timeout(LINGER, drained).await;
    }

    /// Runs the session until it ends.
    async fn run_session(&mut self) -> DisconnectReason {
        // Number of reads since the timer expired.
        let mut late_reads = 0;
        let mut timer = pin!(self.clock.timer());
        loop {
            if let Err(reason) = self.perform_steps(timer.as_mut()).await {
                return reason;
            }
            let now = self.clock.now();
            let due = self.session.due(now);
            let is_late = due.is_some_and(|due| now >= due);
            if !is_late {
                late_reads = 0;
            }
            let awaits_hello = self.session.awaits_hello();
            tokio::select! {
                // Bytes that have arrived are read before the timer is handled, because they may have arrived
                // in time while the core was busy or this task was not scheduled. The number of such reads is
                // limited, because a peer can keep the socket readable for ever.
                biased;
                command = self.commands.recv(), if !awaits_hello => match command {
                    Some(command) => self.session.execute(command),
                    None => self.session.close(),
                },
                () = evicted(&mut self.slot), if awaits_hello => return DisconnectReason::Evicted,
                read = read(&mut self.socket, |bytes| self.session.receive(bytes)),
                    if late_reads < LATE_READS_MAX =>
                {
                    late_reads += usize::from(is_late);
                    if !matches!(read, Ok(1..)) {
                        return DisconnectReason::Closed;
                    }
                }
                () = self.clock.wait(timer.as_mut(), due) => self.session.on_timer(self.clock.now()),
            }
        }
    }

    /// Performs all steps of the session that are possible without further input.
    async fn perform_steps(&mut self, mut timer: Pin<&mut Sleep>) -> Result<(), DisconnectReason> {
        let mut frame = Vec::new();
        loop {
            // The session keeps the event until the inbox has room, so that this task needs no memory for it.
            if self.session.has_event() {
                frame = Vec::new();
                let permit = self.inbox.reserve().await.map_err(|_| DisconnectReason::Ended)?;
                if let Some(event) = self.session.take_event() {
                    permit.send(event);
                }
            }
            // The action is not kept in the memory of this task while a frame is written.
            match self.session.next(self.clock.now(), &mut frame) {
                PeerAction::Send => {}
                PeerAction::Admit => {
                    match self.slot.as_mut().map_or(Ok(()), |slot| slot.authenticate(slot.address())) {
                        Ok(()) => self.session.admit(),
                        Err(SlotError::Full | SlotError::OwnerFull) => self.session.turn_away(),
                    }
                    continue;
                }
                // If too many requests wait, the round opens on this device alone when its time to answer is over.
                PeerAction::Beacon(round) => {
                    if let Some(beacons) = &self.beacons {
                        let _ = beacons.try_send(round);
                    }
                    continue;
                }
                // The event of a further message of one read, or the last one. In a box, because these are rare.
                PeerAction::Report(event) => {
                    frame = Vec::new();
                    let event = Box::new(event);
                    self.inbox.reserve().await.map_err(|_| DisconnectReason::Ended)?.send(*event);
                    continue;
                }
                PeerAction::Close(reason) => return Err(reason),
                PeerAction::Wait => return Ok(()),
            }
            // Nearly every link takes a frame at once, and then needs neither a timer nor to receive meanwhile.
            let written = write_now(&mut self.socket, &frame).await?;
            if written == frame.len() {
                continue;
            }
            // Frees spare capacity, because writing may take long.
            frame.drain(..written);
            frame.shrink_to_fit();
            let clock = self.clock;
            let due = clock.now() + self.session.timeouts().frame;
            tokio::select! {
                biased;
                written = self.write(&frame) => written?,
                () = clock.wait(timer.as_mut(), Some(due)) => return Err(DisconnectReason::Slow),
            }
        }
    }

    /// Writes a frame. While the link accepts no bytes, those of the device are received, because a device may
    /// send all of an update before it reads. Messages are handled and events are sent to the core meanwhile,
    /// so that at most the bytes of one read are kept unprocessed.
    async fn write(&mut self, mut unsent: &[u8]) -> Result<(), DisconnectReason> {
        let mut may_read = true;
        while !unsent.is_empty() {
            let has_event = self.session.has_event();
            tokio::select! {
                biased;
                transfer = write_or_receive(&mut self.socket, unsent, &mut self.session, may_read, has_event) => {
                    match transfer {
                        Transfer::Written(Ok(written @ 1..)) => unsent = unsent.get(written..).unwrap_or_default(),
                        Transfer::Written(_) => return Err(DisconnectReason::Closed),
                        // The device may still read. The end is handled after the frame.
                        Transfer::Received(read) => may_read = matches!(read, Ok(1..)),
                        Transfer::NewEvent => {}
                    }
                }
                permit = self.inbox.reserve(), if has_event => {
                    let permit = permit.map_err(|_| DisconnectReason::Ended)?;
                    if let Some(event) = self.session.take_event() {
                        permit.send(event);
                    }
                }
            }
            // A device that sends without end must not keep this task from its timeout.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }
}

/// Writes what the link accepts without waiting, and returns the number of bytes.
fn write_now(
    socket: &mut (impl AsyncWrite + Unpin),
    frame: &[u8],
) -> impl Future<Output = Result<usize, DisconnectReason>> {
    std::future::poll_fn(move |context| {
        Poll::Ready(match Pin::new(&mut *socket).poll_write(context, frame) {
            Poll::Pending => Ok(0),
            Poll::Ready(Ok(written @ 1..)) => Ok(written),
            Poll::Ready(_) => Err(DisconnectReason::Closed),
        })
    })
}

/// Completes when the connection is evicted.
async fn evicted(slot: &mut Option<Slot<IpAddr>>) {
    match slot {
        Some(slot) => slot.evicted().await,
        None => std::future::pending().await,
    }
}

/// Reads once from the socket, passes the bytes to `consume`, and returns their number; 0 at the end of the
/// stream.
fn read(
    socket: &mut (impl AsyncRead + Unpin),
    mut consume: impl FnMut(&[u8]),
) -> impl Future<Output = std::io::Result<usize>> {
    std::future::poll_fn(move |context| poll_read(socket, context, &mut consume))
}

/// Polls [`read`]. The buffer is on the stack and not part of the task, because most connections are idle.
fn poll_read(
    socket: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
    consume: &mut impl FnMut(&[u8]),
) -> Poll<std::io::Result<usize>> {
    let mut bytes = [MaybeUninit::uninit(); READ_LEN];
    let mut buffer = ReadBuf::uninit(&mut bytes);
    ready!(Pin::new(socket).poll_read(context, &mut buffer))?;
    let received = buffer.filled();
    if !received.is_empty() {
        consume(received);
    }
    Poll::Ready(Ok(received.len()))
}

/// Result of [`write_or_receive`].
enum Transfer {
    /// Number of bytes written.
    Written(std::io::Result<usize>),
    /// Number of bytes received; 0 at the end of the stream.
    Received(std::io::Result<usize>),
    /// The session has an event for the core.
    NewEvent,
}

/// Writes once to the socket. If the socket accepts no bytes, the session handles what it has received, and
/// unless it then has an event, receives more if `may_read`.
fn write_or_receive(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    unsent: &[u8],
    session: &mut PeerSession,
    may_read: bool,
    has_event: bool,
) -> impl Future<Output = Transfer> {
    std::future::poll_fn(move |context| {
        if let Poll::Ready(written) = Pin::new(&mut *socket).poll_write(context, unsent) {
            return Poll::Ready(Transfer::Written(written));
        }
        session.receive_ahead();
        if !has_event && session.has_event() {
            return Poll::Ready(Transfer::NewEvent);
        }
        if !(may_read && session.is_receptive()) {
            return Poll::Pending;
        }
        poll_read(socket, context, &mut |bytes| session.receive(bytes)).map(Transfer::Received)
    })
}

#[cfg(test)]
mod tests;
