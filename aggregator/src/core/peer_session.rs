//! One device's conversation with the host, without a link: bytes in, what the host is told and frames out, and what is due
//! when. Whatever a device does, only its own conversation suffers.
//!
//! ```text
//!  link -- receive --> Conversation -- next: Tell --> Host
//!  link <- next: Send --     ^-------- obey ----------- Host
//! ```

use fedspan_protocol::message::{Privacy, ToDevice};

use super::command_queue::{Receiver, Sender, mailbox};
use super::messages::{Command, Gone, Message, Origin, What};
use crate::config::Limits;
use crate::connection::{Connection, Inbound, Traffic};
use fedspan_engine::{DeviceId, Millis};

/// Commands that wait for a device; one that lets them pile up is cut off.
pub(crate) const COMMANDS: usize = 16;

/// When a device is told to come back for which there is no room: not all at the same moment.
const RETRY: std::ops::Range<u32> = 15_000..30_000;

/// Silence within an update in chunks after which the missing ones are asked for.
const ASK_AGAIN: Millis = 1_000;

/// Hellos after the first that a connection may say.
const HELLOS_MAX: u32 = 16;

/// Faults and dropped frames after which the host is told, if there is nothing else to tell.
const NOISE: u32 = 16;

/// Faults after which a connection is closed: noise is forgiven, a flood is not.
const FAULTS_MAX: u32 = 64;

/// How long a device may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until hello.
    pub hello: Millis,
    /// For saying anything.
    pub idle: Millis,
    /// From a frame's first byte to its last, from a chunk of an update to the next, and for taking a frame.
    pub frame: Millis,
    /// For answering a round, until it is sent again.
    pub repeat: Millis,
}

impl From<&Limits> for Patience {
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
fn come_back(peer: u64) -> u32 {
    const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let width = u64::from(RETRY.end - RETRY.start);
    let fraction = peer.wrapping_mul(RATIO) >> 32;
    let place = (fraction * width) >> 32;
    RETRY.start + u32::try_from(place).unwrap_or_default()
}

/// What is to be done next, one after the other.
#[derive(Debug)]
#[must_use]
pub enum Next {
    /// The frame is to be written.
    Send,
    /// A device has said hello: [`Conversation::admit`] or [`Conversation::turn_away`].
    Admit,
    /// The host is to be told, by a [`Conversation::message`].
    Tell(What),
    /// It is over, and the host is told so last. A link that does not outlast it is to be closed.
    Over(Gone),
    /// Nothing, until there are bytes, a command, or something is due.
    Wait,
}

/// How far it is with what has come.
#[derive(Debug)]
enum Stage {
    /// All of it was seen to.
    Idle,
    /// Somebody has said hello.
    Newcomer(DeviceId, Privacy),
    /// The host is told before frames are sent.
    Tell(What),
    /// Frames are sent before the next thing that has come is looked at.
    Answer,
    /// Frames are sent, the host is told, and it is over.
    Farewell(What, Gone),
    Over(Gone),
}

/// What comes if nothing else does.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// The connection ends.
    End,
    /// The open round is sent again.
    OpenAgain,
    /// Missing chunks are asked for.
    AskMissing,
}

/// One conversation.
#[derive(Debug)]
pub struct Conversation {
    peer: u64,
    from: Origin,
    connection: Connection,
    patience: Patience,
    /// The link outlasts this conversation. There is no other on it, and nobody has to say hello in time.
    lasting: bool,
    /// The way to the device, which the host gets with its hello.
    commands: Option<Sender<Command>>,
    stage: Stage,
    /// What has come after what is being seen to.
    rest: Vec<u8>,
    /// When the device last said something that made sense; until hello, when this began.
    heard: Millis,
    /// Since when a frame (or an update in chunks) has been unfinished.
    frame_since: Option<Millis>,
    /// When the missing chunks of an update were last asked for.
    asked: Option<Millis>,
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

impl Conversation {
    /// Begins one on a new connection, which [lasts](Connection::lasting) where the link does. `peer` is its number, another one for each
    /// that ever begins. With the host's commands, which count from the device's hello on.
    #[must_use]
    pub fn new(
        peer: u64,
        from: Origin,
        connection: Connection,
        patience: Patience,
        now: Millis,
    ) -> (Self, Receiver<Command>) {
        let (sender, receiver) = mailbox(COMMANDS);
        let conversation = Self {
            peer,
            from,
            lasting: connection.is_lasting(),
            connection,
            patience,
            commands: Some(sender),
            stage: Stage::Idle,
            rest: Vec::new(),
            heard: now,
            frame_since: None,
            asked: None,
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
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// No device was admitted yet, so that there are no commands.
    #[must_use]
    pub fn is_greeting(&self) -> bool {
        self.commands.is_some()
    }

    /// Takes bytes from the device. What they say comes from [`Self::next`].
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        if matches!(self.stage, Stage::Idle) {
            let inbound = self.connection.hear(&mut input);
            self.stage = self.judge(inbound);
        }
        // Most say one thing.
        if !input.is_empty() {
            self.rest.extend_from_slice(input);
        }
    }

    /// What is to be done next; a frame is in `frame` then, and nothing else.
    pub fn next(&mut self, now: Millis, frame: &mut Vec<u8>) -> Next {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Idle) {
                Stage::Newcomer(device, privacy) => {
                    self.stage = Stage::Newcomer(device, privacy);
                    return Next::Admit;
                }
                Stage::Tell(what) => {
                    self.stage = Stage::Answer;
                    return Next::Tell(what);
                }
                Stage::Over(gone) => {
                    self.stage = Stage::Over(gone);
                    return Next::Over(gone);
                }
                _ if self.connection.is_revoked() => self.stage = Stage::Over(Gone::Revoked),
                stage if self.next_frame(frame) => {
                    self.stage = stage;
                    return Next::Send;
                }
                Stage::Farewell(what, gone) => {
                    self.stage = Stage::Over(gone);
                    return Next::Tell(what);
                }
                Stage::Answer => self.stage = self.go_on(now),
                Stage::Idle => return Next::Wait,
            }
        }
    }

    /// What the host is told, with what has passed since it was told something.
    #[must_use]
    pub fn message(&mut self, what: What) -> Message {
        let now = self.connection.traffic();
        let traffic = now.since(&self.reported);
        self.reported = now;
        Message { peer: self.peer, from: self.from.clone(), key: self.connection.key(), what, traffic }
    }

    /// There is room for the device that has said hello.
    pub fn admit(&mut self) {
        if let Stage::Newcomer(device, privacy) = self.stage
            && let Some(commands) = self.commands.take()
        {
            self.stage = Stage::Tell(What::Hello(device, privacy, commands));
        }
    }

    /// There is no room for it: it is told to come back later.
    pub fn turn_away(&mut self) {
        if matches!(self.stage, Stage::Newcomer(..)) {
            self.connection.turn_away(come_back(self.peer));
            self.stage = Stage::Farewell(What::TurnedAway, Gone::Ended);
        }
    }

    /// Does what the host wants.
    pub fn obey(&mut self, command: Command) {
        match command {
            Command::Open(opening) => self.connection.open(&opening),
            Command::Acknowledge(ack) => self.connection.send(ToDevice::Ack(ack)),
            Command::CloseRound(id) => self.connection.close_round(id),
        }
    }

    /// The host has let the device go: no command comes any more.
    pub fn dismiss(&mut self) {
        let gone = if self.connection.is_revoked() { Gone::Revoked } else { Gone::Ended };
        self.stage = Stage::Over(gone);
    }

    /// When [`Self::elapse`] is due, if nothing else happens.
    #[must_use]
    pub fn due(&mut self, now: Millis) -> Option<Millis> {
        let (at, _) = self.next_due(now);
        (at < Millis::MAX).then_some(at)
    }

    /// Does what is due by now.
    pub fn elapse(&mut self, now: Millis) {
        match self.next_due(now) {
            (at, _) if at > now || at == Millis::MAX => {}
            (_, Due::End) => self.stage = Stage::Over(self.timed_out(now)),
            (_, Due::OpenAgain) => {
                self.unanswered_since = None;
                self.connection.open_again();
            }
            (_, Due::AskMissing) => {
                self.asked = Some(now);
                self.connection.ask_missing();
            }
        }
    }

    /// What comes next if nothing happens, and when. The connection ends after silence, or earlier if a frame does not.
    fn next_due(&mut self, now: Millis) -> (Millis, Due) {
        let silence = match self.is_greeting() {
            true if self.lasting => Millis::MAX,
            true => self.patience.hello,
            false => self.patience.idle,
        };
        let mut limit = self.heard.saturating_add(silence);
        let mut ask = None;
        if let Some(since) = self.frame_since {
            limit = limit.min(since.saturating_add(self.patience.frame));
            let asked = self.asked.unwrap_or(since);
            ask = self.connection.is_mid_update().then(|| asked.saturating_add(ASK_AGAIN));
        }
        let repeat = self.watch_answer(now).map(|since| since.saturating_add(self.patience.repeat));
        let earlier = [(repeat, Due::OpenAgain), (ask, Due::AskMissing)].into_iter();
        let earlier = earlier.filter_map(|(at, due)| at.filter(|at| *at < limit).map(|at| (at, due)));
        earlier.min_by_key(|(at, _)| *at).unwrap_or((limit, Due::End))
    }

    /// Since when the open round has been unanswered.
    fn watch_answer(&mut self, now: Millis) -> Option<Millis> {
        let watched = self.connection.unanswered().map(|asked| (now, asked));
        let since = self.unanswered_since.filter(|(_, asked)| watched.is_some_and(|(_, now)| now == *asked));
        self.unanswered_since = watched.map(|watched| since.unwrap_or(watched));
        self.unanswered_since.map(|(since, _)| since)
    }

    fn timed_out(&self, now: Millis) -> Gone {
        match self.frame_since {
            _ if self.is_greeting() => Gone::NoHello,
            Some(since) if now >= since.saturating_add(self.patience.frame) => Gone::Slow,
            _ => Gone::Idle,
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
    fn go_on(&mut self, now: Millis) -> Stage {
        let noise = self.connection.traffic().noise();
        // A line carries no more than its speed, and noise on it is nobody's fault.
        if noise > FAULTS_MAX && !self.lasting {
            return Stage::Over(Gone::Flood);
        }
        if noise >= self.reported.noise().saturating_add(NOISE) {
            return Stage::Tell(What::Noise);
        }
        if !self.rest.is_empty() {
            let mut input = self.rest.as_slice();
            let inbound = self.connection.hear(&mut input);
            let used = self.rest.len() - input.len();
            self.rest.drain(..used);
            return self.judge(inbound);
        }
        self.rest = Vec::new();
        let accepted = self.connection.traffic().frames.accepted;
        let progress = std::mem::replace(&mut self.accepted, accepted) != accepted;
        self.watch_frame(now, progress);
        // Time to hello counts from the connection's beginning, however much it talks.
        if progress && !self.is_greeting() {
            self.heard = now;
        }
        Stage::Idle
    }

    fn watch_frame(&mut self, now: Millis, progress: bool) {
        let mid_update = self.connection.is_mid_update();
        let most = if mid_update { self.chunks } else { 0 };
        self.chunks = most.max(self.connection.chunks());
        // What else is said meanwhile does not bring an update to its end, nor does beginning it anew.
        let progress = if mid_update { self.chunks > most } else { progress };
        if !self.connection.is_mid_message() {
            self.frame_since = None;
        } else if self.frame_since.is_none() || progress {
            self.frame_since = Some(now);
            self.asked = None;
        }
    }

    /// What comes of one thing that was heard, or of nothing.
    fn judge(&mut self, inbound: Option<Inbound>) -> Stage {
        let Some(inbound) = inbound else { return Stage::Answer };
        match inbound {
            Inbound::Hello(hello) if self.is_greeting() => {
                Stage::Newcomer(hello.device, hello.capabilities.privacy)
            }
            // Each is answered with a whole round: a device that has missed its welcome says it once or
            // twice more. On a line every restart is one.
            Inbound::Hello(_) if !self.lasting && self.hellos >= HELLOS_MAX => Stage::Over(Gone::Flood),
            Inbound::Hello(hello) => {
                self.hellos = self.hellos.saturating_add(1);
                Stage::Tell(What::HelloAgain(hello.capabilities.privacy))
            }
            // Its next hello is heard in a new conversation.
            Inbound::Stranger if self.lasting => Stage::Over(Gone::Ended),
            Inbound::Refused(refusal) => Stage::Farewell(What::Refused(refusal), Gone::Refused),
            Inbound::Revoked => Stage::Over(Gone::Revoked),
            Inbound::Update(update) => Stage::Tell(What::Update(Box::new(update))),
            Inbound::Unread(id) => Stage::Tell(What::Unread(id)),
            Inbound::Decline(decline) => Stage::Tell(What::Decline(decline)),
            Inbound::Alive | Inbound::Fault(_) | Inbound::Stranger => Stage::Answer,
        }
    }
}

#[cfg(test)]
mod tests;
