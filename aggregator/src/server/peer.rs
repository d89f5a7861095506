//! One conversation: bytes between a stream and the sans-IO [`Connection`], within the limits of time and
//! memory. Whatever a peer does, only its own connection suffers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fedspan_protocol::message::{Ack, Decline, Hello, Refusal, RoundId, ToDevice, Welcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
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

/// Hellos after the first that a connection may say.
const HELLOS_MAX: u32 = 16;

/// Faults and dropped frames after which the host is told, if there is nothing else to tell.
const NOISE: u32 = 16;

/// As good as for ever, and still a time.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Faults after which a connection is closed: noise is forgiven, a flood is not.
const FAULTS_MAX: u32 = 64;

/// From a peer to the host.
#[derive(Debug)]
pub(super) struct Message {
    pub peer: u64,
    pub what: What,
    /// What has passed since the last message.
    pub traffic: Traffic,
}

/// What a peer reports.
#[derive(Debug)]
pub(super) enum What {
    Hello(Hello, mpsc::Sender<Command>),
    /// The same device again, on the same connection.
    HelloAgain(Hello),
    Update(Box<Update>),
    /// An update for a round that is not open there.
    Unread(RoundId),
    Decline(Decline),
    /// Nothing but noise.
    Noise,
    Gone(Gone),
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
    let mut peer = Peer::new(id, socket, limits, inbox, false);
    let gone = match admission {
        Admission::Converse => peer.converse().await.unwrap_or_else(|gone| gone),
        Admission::ComeBackLater => peer.turn_away().await,
    };
    if matches!(gone, Gone::Ended | Gone::Foreign) {
        peer.linger().await;
    }
    tracing::debug!(peer = id, %address, ?gone, "connection ended");
    peer.report(gone).await;
}

/// Has one conversation on a line and leaves it open. [`Gone::Closed`]: the line itself has ended.
pub(super) async fn on_line(
    id: u64,
    line: impl AsyncRead + AsyncWrite + Unpin,
    limits: Limits,
    inbox: mpsc::Sender<Message>,
) -> Gone {
    let mut peer = Peer::new(id, line, limits, inbox, true);
    let gone = peer.converse().await.unwrap_or_else(|gone| gone);
    peer.report(gone).await;
    gone
}

struct Peer<S> {
    id: u64,
    socket: S,
    /// The link outlasts this conversation: nobody has to say hello in time.
    lasting: bool,
    limits: Limits,
    inbox: mpsc::Sender<Message>,
    connection: Connection,
    /// Since when a frame (or an update in chunks) has been unfinished.
    frame_since: Option<Instant>,
    /// When the missing chunks of an update were last asked for.
    asked: Option<Instant>,
    /// Since when the open round has been unanswered.
    unanswered_since: Option<Instant>,
    /// What the host knows of the connection's traffic.
    reported: Traffic,
    /// Hellos after the first.
    hellos: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    fn new(id: u64, socket: S, limits: Limits, inbox: mpsc::Sender<Message>, lasting: bool) -> Self {
        let connection = if lasting { Connection::lasting() } else { Connection::new() };
        Self {
            id,
            socket,
            lasting,
            limits,
            inbox,
            connection,
            frame_since: None,
            asked: None,
            unanswered_since: None,
            reported: Traffic::default(),
            hellos: 0,
        }
    }

    async fn report(mut self, gone: Gone) {
        // The socket closes after that is known: who sees it closed may count on it. The host is gone only
        // when the server stops; nobody needs to know then.
        let _ = self.tell(What::Gone(gone)).await;
    }

    async fn tell(&mut self, what: What) -> Result<(), Gone> {
        let now = self.connection.traffic();
        let traffic = now.since(&self.reported);
        self.reported = now;
        self.inbox.send(Message { peer: self.id, what, traffic }).await.map_err(|_| Gone::Ended)
    }

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
        self.flush().await?;
        loop {
            let silence = match sender {
                Some(_) if self.lasting => FOR_EVER,
                Some(_) => self.limits.hello,
                None => self.limits.idle,
            };
            let mut limit = heard + silence;
            let mut ask = None;
            let repeat = self.watch_answer().map(|since| since + self.limits.repeat);
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
                    let noise = self.connection.traffic().noise();
                    // A line carries no more than its speed, and noise on it is nobody's fault.
                    if noise > FAULTS_MAX && !self.lasting || self.connection.pending() > OUTBOX_MAX {
                        return Err(Gone::Flood);
                    }
                    if noise >= self.reported.noise().saturating_add(NOISE) {
                        self.tell(What::Noise).await?;
                    }
                }
                () = tokio::time::sleep_until(repeat.unwrap_or(limit)), if repeat.is_some_and(|at| at < limit) => {
                    self.unanswered_since = None;
                    self.connection.open_again();
                    self.flush().await?;
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

    /// Since when the open round has been unanswered.
    fn watch_answer(&mut self) -> Option<Instant> {
        if self.connection.is_unanswered() {
            self.unanswered_since.get_or_insert_with(Instant::now);
        } else {
            self.unanswered_since = None;
        }
        self.unanswered_since
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
                // Each is answered with a whole round: a device that has missed its welcome says it once or
                // twice more. On a line every restart is one.
                None if !self.lasting && self.hellos >= HELLOS_MAX => return Err(Gone::Flood),
                None => {
                    self.hellos += 1;
                    What::HelloAgain(hello)
                }
            },
            // Its next hello is heard in a new conversation.
            Inbound::Stranger if self.lasting => return Err(Gone::Ended),
            Inbound::Foreign(refusal) => {
                self.connection.refuse(refusal);
                self.flush().await?;
                return Err(Gone::Foreign);
            }
            Inbound::Update(update) => What::Update(Box::new(update)),
            Inbound::Unread(id) => What::Unread(id),
            Inbound::Decline(decline) => What::Decline(decline),
            Inbound::Alive | Inbound::Fault(_) | Inbound::Stranger => return Ok(()),
        };
        self.tell(what).await
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
