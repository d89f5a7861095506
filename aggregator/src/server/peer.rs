//! One connection: bytes between a socket and the sans-IO [`Connection`], within the limits of time and
//! memory. Whatever a peer does, only its own connection suffers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fedspan_protocol::message::{Ack, Decline, Hello, Refusal, RoundId, ToDevice, Welcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout};

use crate::config::Limits;
use crate::connection::{Connection, Inbound, OUTBOX_MAX, Traffic};
use crate::engine::{Opening, Update};

/// Commands that wait for a peer; a peer that lets them pile up is cut off.
pub(super) const COMMANDS: usize = 16;

/// Where a device is told to come back when there is no room.
const RETRY: Duration = Duration::from_secs(30);

/// Silence within an update in chunks after which the missing ones are asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long a connection that this side ends may take to close on the other.
const LINGER: Duration = Duration::from_secs(1);

/// Faults after which a connection is closed: noise is forgiven, a flood is not.
const FAULTS_MAX: u32 = 64;

/// From a peer to the host.
#[derive(Debug)]
pub(super) struct Message {
    pub peer: u64,
    pub what: What,
}

/// What a peer reports.
#[derive(Debug)]
pub(super) enum What {
    Hello(Hello, mpsc::Sender<Command>),
    Update(Box<Update>),
    Decline(Decline),
    Gone(Gone, Traffic),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The peer closed it, or the network did.
    Closed,
    /// No hello in time.
    NoHello,
    /// Silent for too long.
    Idle,
    /// A frame took too long, coming or going.
    Slow,
    /// Too many messages without sense, or frames without end.
    Flood,
    /// It speaks another version, and was told so.
    Foreign,
    /// It was refused, turned away, replaced, or the server stops.
    Ended,
}

/// What a new connection gets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Admission {
    /// A place.
    Converse,
    /// All places are taken: the time to come back.
    ComeBackLater,
}

/// From the host to a peer.
#[derive(Debug)]
pub(super) enum Command {
    Welcome(Welcome),
    Refuse(Refusal),
    Open(Arc<Opening>),
    Acknowledge(Ack),
    CloseRound(RoundId),
}

/// Serves one connection to its end. Its permit is given back then.
pub(super) async fn run(
    id: u64,
    socket: TcpStream,
    address: SocketAddr,
    limits: Limits,
    inbox: mpsc::Sender<Message>,
    admission: Admission,
    _permit: OwnedSemaphorePermit,
) {
    let _ = socket.set_nodelay(true);
    let mut peer =
        Peer { id, socket, limits, inbox, connection: Connection::new(), frame_since: None, asked: None };
    let gone = match admission {
        Admission::Converse => match peer.converse().await {
            Ok(gone) | Err(gone) => gone,
        },
        Admission::ComeBackLater => peer.turn_away().await,
    };
    if matches!(gone, Gone::Ended | Gone::Foreign) {
        peer.linger().await;
    }
    tracing::debug!(peer = id, %address, ?gone, "connection ended");
    let traffic = peer.connection.traffic();
    // The host is gone only when the server stops; nobody needs to know then.
    let _ = peer.inbox.send(Message { peer: id, what: What::Gone(gone, traffic) }).await;
}

struct Peer {
    id: u64,
    socket: TcpStream,
    limits: Limits,
    inbox: mpsc::Sender<Message>,
    connection: Connection,
    /// Since when a frame (or an update in chunks) has been unfinished.
    frame_since: Option<Instant>,
    /// When the missing chunks of an update were last asked for.
    asked: Option<Instant>,
}

impl Peer {
    async fn turn_away(&mut self) -> Gone {
        let milliseconds = u32::try_from(RETRY.as_millis()).unwrap_or(u32::MAX);
        self.connection.send(ToDevice::RetryAfter { milliseconds });
        let _ = self.flush().await;
        Gone::Ended
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
        let (sender, mut commands) = mpsc::channel(COMMANDS);
        let mut sender = Some(sender);
        let mut buffer = [0u8; 2048];
        let mut said = Vec::new();
        let mut heard = Instant::now();
        loop {
            let silence = if sender.is_some() { self.limits.hello } else { self.limits.idle };
            let mut limit = heard + silence;
            let mut ask = None;
            if let Some(since) = self.frame_since {
                limit = limit.min(since + self.limits.frame);
                ask = self.connection.is_mid_update().then(|| self.asked.unwrap_or(since) + ASK_AGAIN);
            }
            tokio::select! {
                command = commands.recv(), if sender.is_none() => match command {
                    Some(command) => {
                        let last = matches!(command, Command::Refuse(_));
                        self.obey(command);
                        self.flush().await?;
                        if last {
                            return Ok(Gone::Ended);
                        }
                    }
                    None => return Ok(Gone::Ended),
                },
                read = self.socket.read(&mut buffer) => {
                    let n = read.map_err(|_| Gone::Closed)?;
                    if n == 0 {
                        return Ok(Gone::Closed);
                    }
                    let before = self.connection.traffic().frames.accepted;
                    self.connection.receive(buffer.get(..n).unwrap_or_default(), &mut said);
                    // Time to hello counts from the connection's beginning, however much it talks.
                    if self.connection.traffic().frames.accepted != before && sender.is_none() {
                        heard = Instant::now();
                    }
                    self.watch_frame(self.connection.traffic().frames.accepted != before);
                    for inbound in said.drain(..) {
                        self.forward(inbound, &mut sender).await?;
                    }
                    self.flush().await?;
                    let traffic = self.connection.traffic();
                    let dropped = traffic.frames.oversize + traffic.frames.framing
                        + traffic.frames.check + traffic.frames.header;
                    if traffic.faults + dropped > FAULTS_MAX || self.connection.pending() > OUTBOX_MAX {
                        return Err(Gone::Flood);
                    }
                }
                () = tokio::time::sleep_until(ask.unwrap_or(limit)), if ask.is_some_and(|ask| ask < limit) => {
                    self.asked = Some(Instant::now());
                    self.connection.ask_missing();
                    self.flush().await?;
                }
                () = tokio::time::sleep_until(limit) => return Err(self.timed_out(sender.is_some())),
            }
        }
    }

    fn timed_out(&self, greeting: bool) -> Gone {
        match self.frame_since {
            _ if greeting => Gone::NoHello,
            Some(since) if since.elapsed() >= self.limits.frame => Gone::Slow,
            _ => Gone::Idle,
        }
    }

    fn watch_frame(&mut self, progress: bool) {
        if !self.connection.is_mid_message() {
            self.frame_since = None;
        } else if self.frame_since.is_none() || progress {
            self.frame_since = Some(Instant::now());
            self.asked = None;
        }
    }

    async fn forward(
        &mut self,
        inbound: Inbound,
        greeting: &mut Option<mpsc::Sender<Command>>,
    ) -> Result<(), Gone> {
        let what = match inbound {
            Inbound::Hello(hello) => match greeting.take() {
                Some(sender) => What::Hello(hello, sender),
                None => return Ok(()),
            },
            Inbound::Foreign(refusal) => {
                self.connection.refuse(refusal);
                self.flush().await?;
                return Err(Gone::Foreign);
            }
            Inbound::Update(update) => What::Update(Box::new(update)),
            Inbound::Decline(decline) => What::Decline(decline),
            Inbound::Alive | Inbound::Fault(_) => return Ok(()),
        };
        self.inbox.send(Message { peer: self.id, what }).await.map_err(|_| Gone::Ended)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Welcome(welcome) => self.connection.send(ToDevice::Welcome(welcome)),
            Command::Refuse(refusal) => self.connection.refuse(refusal),
            Command::Open(opening) => self.connection.open(&opening),
            Command::Acknowledge(ack) => self.connection.send(ToDevice::Ack(ack)),
            Command::CloseRound(id) => self.connection.close_round(id),
        }
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        let mut frame = Vec::new();
        loop {
            frame.clear();
            if !self.connection.next_frame(&mut frame) {
                return Ok(());
            }
            match timeout(self.limits.frame, self.socket.write_all(&frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Gone::Closed),
                Err(_) => return Err(Gone::Slow),
            }
        }
    }
}
