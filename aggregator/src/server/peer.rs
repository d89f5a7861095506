//! One conversation: bytes between a stream and the sans-IO [`Connection`], within the limits of time and
//! memory. Whatever a peer does, only its own connection suffers.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::ToDevice;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::mailbox::{Sender, mailbox};
use super::messages::{Command, Gone, Message, Origin, What};
use super::places::{NoPlace, Place};
use crate::config::Limits;
use crate::connection::{Connection, Gate, Inbound, Traffic};

/// Commands that wait for a peer; a peer that lets them pile up is cut off.
pub(super) const COMMANDS: usize = 16;

/// Where a device is told to come back when there is no room.
const RETRY: Duration = Duration::from_secs(30);

/// Silence within an update in chunks after which the missing ones are asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long a connection that this side ends may take to close on the other.
const LINGER: Duration = Duration::from_secs(1);

/// Hellos after the first that a connection may say.
const HELLOS_MAX: u32 = 16;

/// Faults and dropped frames after which the host is told, if there is nothing else to tell.
const NOISE: u32 = 16;

/// Bytes that are read at once: an update of a small model. What comes after something that the host is told of is
/// kept meanwhile.
const READ: usize = 1280;

/// Reads after a time is over, which take what has come before: the longest frame, and one that was begun.
const LATE: usize = FRAME_LIMIT_MAX.div_ceil(READ) + 1;

/// As good as for ever, and still a time.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Faults after which a connection is closed: noise is forgiven, a flood is not.
const FAULTS_MAX: u32 = 64;

/// What all conversations of a server share.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub gate: Arc<Gate>,
    pub limits: Limits,
    pub inbox: mpsc::Sender<Message>,
}

/// Serves one connection to its end. Its place is free then.
///
/// Not an `async fn`, which would keep its arguments beside what is made of them: there is one of these for every
/// device.
pub(super) fn run(
    id: u64,
    socket: TcpStream,
    address: SocketAddr,
    around: Surroundings,
    place: Place,
) -> impl Future<Output = ()> {
    let _ = socket.set_nodelay(true);
    let mut peer = Peer::new(id, Origin::Address(address), socket, around, Some(place));
    async move {
        let gone = peer.converse().await.unwrap_or_else(|gone| gone);
        if matches!(gone, Gone::Ended | Gone::Refused) && peer.place.as_mut().is_some_and(Place::may_linger) {
            peer.linger().await;
        }
        tracing::debug!(peer = id, from = %peer.from, ?gone, "connection ended");
        peer.report(gone).await;
        // The socket closes after that is known: who sees it closed may count on it.
        drop(peer);
    }
}

/// Has one conversation on a line and leaves it open. [`Gone::Closed`]: the line itself has ended.
pub(super) async fn on_line(
    id: u64,
    name: Arc<str>,
    line: impl AsyncRead + AsyncWrite + Unpin,
    around: Surroundings,
) -> Gone {
    let mut peer = Peer::new(id, Origin::Line(name), line, around, None);
    let gone = peer.converse().await.unwrap_or_else(|gone| gone);
    peer.report(gone).await;
    gone
}

struct Peer<S> {
    id: u64,
    from: Origin,
    socket: S,
    /// `None`: the link outlasts this conversation. There is no other on it, and nobody has to say hello in time.
    place: Option<Place>,
    limits: Limits,
    inbox: mpsc::Sender<Message>,
    connection: Connection,
    /// Since when a frame (or an update in chunks) has been unfinished.
    frame_since: Option<Instant>,
    /// When the missing chunks of an update were last asked for.
    asked: Option<Instant>,
    /// Since when the open round has been unanswered, and how often its chunks had been asked for by then.
    unanswered_since: Option<(Instant, u64)>,
    /// What the host knows of the connection's traffic.
    reported: Traffic,
    /// Frames that made sense, and the most chunks of the update that has begun, before the last read.
    accepted: u32,
    chunks: u32,
    /// Hellos after the first.
    hellos: u32,
}

/// What is to be done when nothing has happened for a while.
#[derive(Clone, Copy)]
enum Due {
    /// The connection ends.
    End,
    /// The open round is sent again.
    OpenAgain,
    /// Missing chunks are asked for.
    AskMissing,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    fn new(id: u64, from: Origin, socket: S, around: Surroundings, place: Option<Place>) -> Self {
        let Surroundings { gate, limits, inbox } = around;
        let connection = if place.is_none() { Connection::lasting(gate) } else { Connection::new(gate) };
        Self {
            id,
            from,
            socket,
            place,
            limits,
            inbox,
            connection,
            frame_since: None,
            asked: None,
            unanswered_since: None,
            reported: Traffic::default(),
            accepted: 0,
            chunks: 0,
            hellos: 0,
        }
    }

    async fn report(&mut self, gone: Gone) {
        // The host is gone only when the server stops; nobody needs to know then.
        let _ = self.tell(What::Gone(gone)).await;
    }

    async fn tell(&mut self, what: What) -> Result<(), Gone> {
        let place = self.inbox.reserve().await.map_err(|_| Gone::Ended)?;
        let now = self.connection.traffic();
        let traffic = now.since(&self.reported);
        self.reported = now;
        let (from, key) = (self.from.clone(), self.connection.key());
        place.send(Message { peer: self.id, from, key, what, traffic });
        Ok(())
    }

    /// The link outlasts this conversation.
    fn is_lasting(&self) -> bool {
        self.place.is_none()
    }

    /// Lets the device read what was said last: a socket that is closed with unread bytes in it resets the
    /// connection, and what was still on its way is lost.
    async fn linger(&mut self) {
        let _ = self.socket.shutdown().await;
        let mut buffer = [0u8; 512];
        let drained = async { while matches!(self.socket.read(&mut buffer).await, Ok(1..)) {} };
        let _ = timeout(LINGER, drained).await;
    }

    /// Until hello, then until the end.
    async fn converse(&mut self) -> Result<Gone, Gone> {
        let (sender, mut commands) = mailbox(COMMANDS);
        let mut sender = Some(sender);
        let mut heard = Instant::now();
        // Reads since the next thing was due.
        let mut late = 0;
        self.flush().await?;
        loop {
            let silence = match sender {
                Some(_) if self.is_lasting() => FOR_EVER,
                Some(_) => self.limits.hello,
                None => self.limits.idle,
            };
            let (at, due) = self.next_due(heard + silence);
            let is_late = Instant::now() >= at;
            if !is_late {
                late = 0;
            }
            tokio::select! {
                // What has come counts before the time that it had: the host may have been busy writing meanwhile, or
                // had none for this connection. Not for ever, though, as a peer can see to it that something has
                // always come.
                biased;
                command = commands.recv(), if sender.is_none() => match command {
                    Some(command) => {
                        self.obey(command);
                        self.flush().await?;
                    }
                    None if self.connection.is_revoked() => return Ok(Gone::Revoked),
                    None => return Ok(Gone::Ended),
                },
                () = evicted(&mut self.place), if sender.is_some() => return Err(Gone::Evicted),
                read = read(&mut self.socket, &mut self.connection), if late < LATE => {
                    late += usize::from(is_late);
                    let (inbound, rest) = read.map_err(|_| Gone::Closed)?.ok_or(Gone::Closed)?;
                    // Time to hello counts from the connection's beginning, however much it talks.
                    if self.listen(inbound, rest, &mut sender).await? && sender.is_none() {
                        heard = Instant::now();
                    }
                }
                () = tokio::time::sleep_until(at) => match due {
                    Due::End => return Err(self.timed_out(sender.is_some())),
                    Due::OpenAgain => {
                        self.unanswered_since = None;
                        self.connection.open_again();
                        self.flush().await?;
                    }
                    Due::AskMissing => {
                        self.asked = Some(Instant::now());
                        self.connection.ask_missing();
                        self.flush().await?;
                    }
                },
            }
        }
    }

    /// What comes next if nothing happens, and when. The connection ends at `limit`, or earlier if a frame does not.
    fn next_due(&mut self, limit: Instant) -> (Instant, Due) {
        let mut limit = limit;
        let mut ask = None;
        if let Some(since) = self.frame_since {
            limit = limit.min(since + self.limits.frame);
            ask = self.connection.is_mid_update().then(|| self.asked.unwrap_or(since) + ASK_AGAIN);
        }
        let repeat = self.watch_answer().map(|since| since + self.limits.repeat);
        let earlier = [(repeat, Due::OpenAgain), (ask, Due::AskMissing)].into_iter();
        let earlier = earlier.filter_map(|(at, due)| at.filter(|at| *at < limit).map(|at| (at, due)));
        earlier.min_by_key(|(at, _)| *at).unwrap_or((limit, Due::End))
    }

    /// Sees to one thing after the other that a read has brought. Whether any of it made sense.
    async fn listen(
        &mut self,
        mut inbound: Option<Inbound>,
        mut rest: Vec<u8>,
        sender: &mut Option<Sender<Command>>,
    ) -> Result<bool, Gone> {
        loop {
            let what = match inbound.take() {
                Some(inbound) => self.judge(inbound, sender)?,
                None => None,
            };
            let last = match what {
                Some(What::Refused(_)) => Some(Gone::Refused),
                Some(What::TurnedAway) => Some(Gone::Ended),
                _ => None,
            };
            if last.is_some() {
                self.flush().await?;
            }
            if let Some(what) = what {
                self.tell(what).await?;
            }
            if let Some(last) = last {
                return Err(last);
            }
            self.flush().await?;
            let noise = self.connection.traffic().noise();
            // A line carries no more than its speed, and noise on it is nobody's fault.
            if noise > FAULTS_MAX && !self.is_lasting() {
                return Err(Gone::Flood);
            }
            if noise >= self.reported.noise().saturating_add(NOISE) {
                self.tell(What::Noise).await?;
            }
            if rest.is_empty() {
                break;
            }
            let mut input = rest.as_slice();
            inbound = self.connection.hear(&mut input);
            let used = rest.len() - input.len();
            rest.drain(..used);
        }
        let accepted = self.connection.traffic().frames.accepted;
        let progress = accepted != self.accepted;
        self.accepted = accepted;
        self.watch_frame(progress);
        Ok(progress)
    }

    /// Since when the open round has been unanswered.
    fn watch_answer(&mut self) -> Option<Instant> {
        let now = self.connection.unanswered().map(|asked| (Instant::now(), asked));
        let since = self.unanswered_since.filter(|(_, asked)| now.is_some_and(|(_, now)| now == *asked));
        self.unanswered_since = now.map(|now| since.unwrap_or(now));
        self.unanswered_since.map(|(since, _)| since)
    }

    fn timed_out(&self, greeting: bool) -> Gone {
        match self.frame_since {
            _ if greeting => Gone::NoHello,
            Some(since) if since.elapsed() >= self.limits.frame => Gone::Slow,
            _ => Gone::Idle,
        }
    }

    fn watch_frame(&mut self, progress: bool) {
        let mid_update = self.connection.is_mid_update();
        let most = if mid_update { self.chunks } else { 0 };
        self.chunks = most.max(self.connection.chunks());
        // What else is said meanwhile does not bring an update to its end, nor does beginning it anew.
        let progress = if mid_update { self.chunks > most } else { progress };
        if !self.connection.is_mid_message() {
            self.frame_since = None;
        } else if self.frame_since.is_none() || progress {
            self.frame_since = Some(Instant::now());
            self.asked = None;
        }
    }

    /// What the host is told of it.
    fn judge(
        &mut self,
        inbound: Inbound,
        greeting: &mut Option<Sender<Command>>,
    ) -> Result<Option<What>, Gone> {
        Ok(Some(match inbound {
            Inbound::Hello(hello) => match greeting.take() {
                Some(sender) => match self.place.as_mut().map_or(Ok(()), Place::authenticate) {
                    Ok(()) => What::Hello(hello.device, hello.capabilities.privacy, sender),
                    Err(NoPlace::Evicted) => return Err(Gone::Evicted),
                    Err(NoPlace::Full) => {
                        let milliseconds = u32::try_from(RETRY.as_millis()).unwrap_or(u32::MAX);
                        self.connection.turn_away(milliseconds);
                        What::TurnedAway
                    }
                },
                // Each is answered with a whole round: a device that has missed its welcome says it once or
                // twice more. On a line every restart is one.
                None if !self.is_lasting() && self.hellos >= HELLOS_MAX => return Err(Gone::Flood),
                None => {
                    self.hellos += 1;
                    What::HelloAgain(hello.capabilities.privacy)
                }
            },
            // Its next hello is heard in a new conversation.
            Inbound::Stranger if self.is_lasting() => return Err(Gone::Ended),
            Inbound::Refused(refusal) => What::Refused(refusal),
            Inbound::Revoked => return Err(Gone::Revoked),
            Inbound::Update(update) => What::Update(Box::new(update)),
            Inbound::Unread(id) => What::Unread(id),
            Inbound::Decline(decline) => What::Decline(decline),
            Inbound::Alive | Inbound::Fault(_) | Inbound::Stranger => return Ok(None),
        }))
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open(opening) => self.connection.open(&opening),
            Command::Acknowledge(ack) => self.connection.send(ToDevice::Ack(ack)),
            Command::CloseRound(id) => self.connection.close_round(id),
        }
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        if self.connection.is_revoked() {
            return Err(Gone::Revoked);
        }
        let mut frame = Vec::new();
        loop {
            frame.clear();
            if !self.connection.next_frame(&mut frame) {
                return Ok(());
            }
            // It may be a while until it is taken.
            frame.shrink_to_fit();
            match timeout(self.limits.frame, self.socket.write_all(&frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Gone::Closed),
                Err(_) => return Err(Gone::Slow),
            }
        }
    }
}

/// Completes when a connection's place is to make room for another.
async fn evicted(place: &mut Option<Place>) {
    match place {
        Some(place) => place.evicted().await,
        None => std::future::pending().await,
    }
}

/// Reads once: the first thing that this says, and the bytes after it. `None` at the end. Nothing of the buffer
/// outlasts the call: most connections wait most of the time.
async fn read(
    socket: &mut (impl AsyncRead + Unpin),
    connection: &mut Connection,
) -> std::io::Result<Option<(Option<Inbound>, Vec<u8>)>> {
    std::future::poll_fn(|context| {
        let mut bytes = [MaybeUninit::uninit(); READ];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut *socket).poll_read(context, &mut buffer))?;
        let mut input = buffer.filled();
        if input.is_empty() {
            return Poll::Ready(Ok(None));
        }
        let said = connection.hear(&mut input);
        Poll::Ready(Ok(Some((said, input.to_vec()))))
    })
    .await
}

#[cfg(test)]
mod tests;
