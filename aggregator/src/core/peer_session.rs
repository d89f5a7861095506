//! One device's conversation with the host, without a link: bytes in, what the host is told and frames out, and what is due
//! when. Whatever a device does, only its own conversation suffers.
//!
//! ```text
//!  link -- receive --> Conversation -- next: Tell --> Host
//!  link <- next: Send --     ^-------- obey ----------- Host
//! ```

use fedspan_protocol::message::{Privacy, ToDevice};

use super::command_queue::{Receiver, Sender, command_queue};
use super::messages::{Command, DisconnectReason, Origin, PeerEvent, PeerEventKind};
use crate::config::Limits;
use crate::connection::{Connection, PeerMessage, Traffic};
use fedspan_engine::{DeviceId, Millis};

/// Commands that wait for a device; one that lets them pile up is cut off.
pub(crate) const COMMAND_CAPACITY: usize = 16;

/// When a device is told to come back for which there is no room: not all at the same moment.
const RETRY: std::ops::Range<u32> = 15_000..30_000;

/// Silence within an update in chunks after which the missing ones are asked for.
const MISSING_INTERVAL: Millis = 1_000;

/// Hellos after the first that a connection may say.
const HELLOS_MAX: u32 = 16;

/// Faults and dropped frames after which the host is told, if there is nothing else to tell.
const ERRORS_BEFORE_REPORT: u32 = 16;

/// Faults after which a connection is closed: noise is forgiven, a flood is not.
const FAULTS_MAX: u32 = 64;

/// How long a device may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until hello.
    pub hello: Millis,
    /// For saying anything.
    pub idle: Millis,
    /// From a frame's first byte to its last, from a chunk of an update to the next, and for taking a frame.
    pub frame: Millis,
    /// For answering a round, until it is sent again.
    pub repeat: Millis,
}

impl From<&Limits> for Timeouts {
    fn from(limits: &Limits) -> Self {
        let milliseconds =
            |time: std::time::Duration| Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX);
        Self {
            hello: milliseconds(limits.hello),
            idle: milliseconds(limits.idle),
            frame: milliseconds(limits.frame),
            repeat: milliseconds(limits.repeat),
        }
    }
}

/// When a conversation's device is to come back. Multiples of the golden ratio lie apart from one another, so that conversations
/// that follow one another spread evenly (Knuth, The Art of Computer Programming, 6.4).
fn retry_delay(peer: u64) -> u32 {
    const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let width = u64::from(RETRY.end - RETRY.start);
    let fraction = peer.wrapping_mul(RATIO) >> 32;
    let place = (fraction * width) >> 32;
    RETRY.start + u32::try_from(place).unwrap_or_default()
}

/// What is to be done next, one after the other.
#[derive(Debug)]
#[must_use]
pub enum PeerAction {
    /// The frame is to be written.
    Send,
    /// A device has said hello: [`PeerSession::admit`] or [`PeerSession::turn_away`].
    Admit,
    /// The host is to be told, by a [`PeerSession::event`].
    Report(PeerEventKind),
    /// It is over, and the host is told so last. A link that does not outlast it is to be closed.
    Close(DisconnectReason),
    /// Nothing, until there are bytes, a command, or something is due.
    Wait,
}

/// How far it is with what has come.
#[derive(Debug)]
enum State {
    /// All of it was seen to.
    Idle,
    /// Somebody has said hello.
    Greeting(DeviceId, Privacy),
    /// The host is told before frames are sent.
    Report(PeerEventKind),
    /// Frames are sent before the next thing that has come is looked at.
    Reply,
    /// Frames are sent, the host is told, and it is over.
    FinalReply(PeerEventKind, DisconnectReason),
    Closed(DisconnectReason),
}

/// What comes if nothing else does.
#[derive(Clone, Copy, Debug)]
enum Timer {
    /// The connection ends.
    End,
    /// The open round is sent again.
    OpenAgain,
    /// Missing chunks are asked for.
    AskMissing,
}

/// One conversation.
#[derive(Debug)]
pub struct PeerSession {
    peer: u64,
    from: Origin,
    connection: Connection,
    timeouts: Timeouts,
    /// The link outlasts this conversation. There is no other on it, and nobody has to say hello in time.
    persistent: bool,
    /// The way to the device, which the host gets with its hello.
    commands: Option<Sender<Command>>,
    state: State,
    /// What has come after what is being seen to.
    unprocessed: Vec<u8>,
    /// When the device last said something that made sense; until hello, when this began.
    last_message: Millis,
    /// Since when a frame (or an update in chunks) has been unfinished.
    frame_since: Option<Millis>,
    /// When the missing chunks of an update were last asked for.
    missing_requested: Option<Millis>,
    /// Since when the open round has been unanswered, and how often its chunks had been asked for by then.
    unanswered_since: Option<(Millis, u64)>,
    /// What the host knows of the connection's traffic.
    reported: Traffic,
    /// Frames that made sense, and the most chunks of the update that has begun, before the last bytes came.
    accepted: u32,
    chunks: u32,
    /// Hellos after the first.
    hellos: u32,
}

impl PeerSession {
    /// Begins one on a new connection, which [lasts](Connection::lasting) where the link does. `peer` is its number, another one for each
    /// that ever begins. With the host's commands, which count from the device's hello on.
    #[must_use]
    pub fn new(
        peer: u64,
        from: Origin,
        connection: Connection,
        timeouts: Timeouts,
        now: Millis,
    ) -> (Self, Receiver<Command>) {
        let (sender, receiver) = command_queue(COMMAND_CAPACITY);
        let conversation = Self {
            peer,
            from,
            persistent: connection.is_persistent(),
            connection,
            timeouts,
            commands: Some(sender),
            state: State::Idle,
            unprocessed: Vec::new(),
            last_message: now,
            frame_since: None,
            missing_requested: None,
            unanswered_since: None,
            reported: Traffic::default(),
            accepted: 0,
            chunks: 0,
            hellos: 0,
        };
        (conversation, receiver)
    }

    /// Where its device is.
    #[must_use]
    pub fn from(&self) -> &Origin {
        &self.from
    }

    /// How long its device may take.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// No device was admitted yet, so that there are no commands.
    #[must_use]
    pub fn awaits_hello(&self) -> bool {
        self.commands.is_some()
    }

    /// Takes bytes from the device. What they say comes from [`Self::next`].
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        if matches!(self.state, State::Idle) {
            let message = self.connection.next_message(&mut input);
            self.state = self.on_message(message);
        }
        // Most say one thing.
        if !input.is_empty() {
            self.unprocessed.extend_from_slice(input);
        }
    }

    /// What is to be done next; a frame is in `frame` then, and nothing else.
    pub fn next(&mut self, now: Millis, frame: &mut Vec<u8>) -> PeerAction {
        loop {
            match std::mem::replace(&mut self.state, State::Idle) {
                State::Greeting(device, privacy) => {
                    self.state = State::Greeting(device, privacy);
                    return PeerAction::Admit;
                }
                State::Report(kind) => {
                    self.state = State::Reply;
                    return PeerAction::Report(kind);
                }
                State::Closed(gone) => {
                    self.state = State::Closed(gone);
                    return PeerAction::Close(gone);
                }
                _ if self.connection.is_revoked() => self.state = State::Closed(DisconnectReason::Revoked),
                state if self.next_frame(frame) => {
                    self.state = state;
                    return PeerAction::Send;
                }
                State::FinalReply(kind, gone) => {
                    self.state = State::Closed(gone);
                    return PeerAction::Report(kind);
                }
                State::Reply => self.state = self.advance(now),
                State::Idle => return PeerAction::Wait,
            }
        }
    }

    /// What the host is told, with what has passed since it was told something.
    #[must_use]
    pub fn event(&mut self, kind: PeerEventKind) -> PeerEvent {
        let now = self.connection.traffic();
        let traffic = now.since(&self.reported);
        self.reported = now;
        PeerEvent { peer: self.peer, from: self.from.clone(), key: self.connection.key(), kind, traffic }
    }

    /// There is room for the device that has said hello.
    pub fn admit(&mut self) {
        if let State::Greeting(device, privacy) = self.state
            && let Some(commands) = self.commands.take()
        {
            self.state = State::Report(PeerEventKind::Hello(device, privacy, commands));
        }
    }

    /// There is no room for it: it is told to come back later.
    pub fn turn_away(&mut self) {
        if matches!(self.state, State::Greeting(..)) {
            self.connection.turn_away(retry_delay(self.peer));
            self.state = State::FinalReply(PeerEventKind::TurnedAway, DisconnectReason::Ended);
        }
    }

    /// Does what the host wants.
    pub fn execute(&mut self, command: Command) {
        match command {
            Command::Open(opening) => self.connection.open(&opening),
            Command::Acknowledge(ack) => self.connection.send(ToDevice::Ack(ack)),
            Command::CloseRound(id) => self.connection.close_round(id),
        }
    }

    /// The host has let the device go: no command comes any more.
    pub fn close(&mut self) {
        let gone =
            if self.connection.is_revoked() { DisconnectReason::Revoked } else { DisconnectReason::Ended };
        self.state = State::Closed(gone);
    }

    /// When [`Self::on_timer`] is due, if nothing else happens.
    #[must_use]
    pub fn due(&mut self, now: Millis) -> Option<Millis> {
        let (at, _) = self.next_timer(now);
        (at < Millis::MAX).then_some(at)
    }

    /// Does what is due by now.
    pub fn on_timer(&mut self, now: Millis) {
        match self.next_timer(now) {
            (at, _) if at > now || at == Millis::MAX => {}
            (_, Timer::End) => self.state = State::Closed(self.timed_out(now)),
            (_, Timer::OpenAgain) => {
                self.unanswered_since = None;
                self.connection.resend_round();
            }
            (_, Timer::AskMissing) => {
                self.missing_requested = Some(now);
                self.connection.request_missing();
            }
        }
    }

    /// What comes next if nothing happens, and when. The connection ends after silence, or earlier if a frame does not.
    fn next_timer(&mut self, now: Millis) -> (Millis, Timer) {
        let silence = match self.awaits_hello() {
            true if self.persistent => Millis::MAX,
            true => self.timeouts.hello,
            false => self.timeouts.idle,
        };
        let mut limit = self.last_message.saturating_add(silence);
        let mut ask = None;
        if let Some(since) = self.frame_since {
            limit = limit.min(since.saturating_add(self.timeouts.frame));
            let missing_requested = self.missing_requested.unwrap_or(since);
            ask = self.connection.is_mid_update().then(|| missing_requested.saturating_add(MISSING_INTERVAL));
        }
        let repeat =
            self.unanswered_since_update(now).map(|since| since.saturating_add(self.timeouts.repeat));
        let earlier = [(repeat, Timer::OpenAgain), (ask, Timer::AskMissing)].into_iter();
        let earlier = earlier.filter_map(|(at, due)| at.filter(|at| *at < limit).map(|at| (at, due)));
        earlier.min_by_key(|(at, _)| *at).unwrap_or((limit, Timer::End))
    }

    /// Since when the open round has been unanswered.
    fn unanswered_since_update(&mut self, now: Millis) -> Option<Millis> {
        let watched = self.connection.unanswered().map(|missing_requested| (now, missing_requested));
        let since = self
            .unanswered_since
            .filter(|(_, missing_requested)| watched.is_some_and(|(_, now)| now == *missing_requested));
        self.unanswered_since = watched.map(|watched| since.unwrap_or(watched));
        self.unanswered_since.map(|(since, _)| since)
    }

    fn timed_out(&self, now: Millis) -> DisconnectReason {
        match self.frame_since {
            _ if self.awaits_hello() => DisconnectReason::NoHello,
            Some(since) if now >= since.saturating_add(self.timeouts.frame) => DisconnectReason::Slow,
            _ => DisconnectReason::Idle,
        }
    }

    fn next_frame(&mut self, frame: &mut Vec<u8>) -> bool {
        loop {
            frame.clear();
            if !self.connection.next_frame(frame) {
                return false;
            }
            // One that did not fit is counted, and there is nothing of it.
            if !frame.is_empty() {
                return true;
            }
        }
    }

    /// One thing was seen to, and answered.
    fn advance(&mut self, now: Millis) -> State {
        let errors = self.connection.traffic().protocol_errors();
        // A line carries no more than its speed, and noise on it is nobody's fault.
        if errors > FAULTS_MAX && !self.persistent {
            return State::Closed(DisconnectReason::Flood);
        }
        if errors >= self.reported.protocol_errors().saturating_add(ERRORS_BEFORE_REPORT) {
            return State::Report(PeerEventKind::TrafficOnly);
        }
        if !self.unprocessed.is_empty() {
            let mut input = self.unprocessed.as_slice();
            let message = self.connection.next_message(&mut input);
            let used = self.unprocessed.len() - input.len();
            self.unprocessed.drain(..used);
            return self.on_message(message);
        }
        self.unprocessed = Vec::new();
        let accepted = self.connection.traffic().frames.accepted;
        let progressed = std::mem::replace(&mut self.accepted, accepted) != accepted;
        self.watch_frame(now, progressed);
        // Time to hello counts from the connection's beginning, however much it talks.
        if progressed && !self.awaits_hello() {
            self.last_message = now;
        }
        State::Idle
    }

    fn watch_frame(&mut self, now: Millis, progressed: bool) {
        let mid_update = self.connection.is_mid_update();
        let most = if mid_update { self.chunks } else { 0 };
        self.chunks = most.max(self.connection.chunks());
        // What else is said meanwhile does not bring an update to its end, nor does beginning it anew.
        let progressed = if mid_update { self.chunks > most } else { progressed };
        if !self.connection.is_mid_message() {
            self.frame_since = None;
        } else if self.frame_since.is_none() || progressed {
            self.frame_since = Some(now);
            self.missing_requested = None;
        }
    }

    /// What comes of one thing that was heard, or of nothing.
    fn on_message(&mut self, message: Option<PeerMessage>) -> State {
        let Some(message) = message else { return State::Reply };
        match message {
            PeerMessage::Hello(hello) if self.awaits_hello() => {
                State::Greeting(hello.device, hello.capabilities.privacy)
            }
            // Each is answered with a whole round: a device that has missed its welcome says it once or
            // twice more. On a line every restart is one.
            PeerMessage::Hello(_) if !self.persistent && self.hellos >= HELLOS_MAX => {
                State::Closed(DisconnectReason::Flood)
            }
            PeerMessage::Hello(hello) => {
                self.hellos = self.hellos.saturating_add(1);
                State::Report(PeerEventKind::HelloAgain(hello.capabilities.privacy))
            }
            // Its next hello is heard in a new conversation.
            PeerMessage::OtherDevice if self.persistent => State::Closed(DisconnectReason::Ended),
            PeerMessage::Refused(refusal) => {
                State::FinalReply(PeerEventKind::Refused(refusal), DisconnectReason::Refused)
            }
            PeerMessage::Revoked => State::Closed(DisconnectReason::Revoked),
            PeerMessage::Update(update) => State::Report(PeerEventKind::Update(Box::new(update))),
            PeerMessage::UnreadUpdate(id) => State::Report(PeerEventKind::UnreadUpdate(id)),
            PeerMessage::Decline(decline) => State::Report(PeerEventKind::Decline(decline)),
            PeerMessage::Alive | PeerMessage::Fault(_) | PeerMessage::OtherDevice => State::Reply,
        }
    }
}

#[cfg(test)]
mod tests;
