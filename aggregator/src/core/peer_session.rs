//! Peer session: the server half of one device's session, without a link (sans-IO). The inputs are bytes,
//! commands and the time; the outputs are frames and peer events. A misbehaving device affects only its own
//! session.
//!
//! ```text
//!  link -- receive --> PeerSession -- next: Report --> ServerCore
//!  link <- next: Send --    ^----------- execute --------- ServerCore
//! ```

use std::sync::Arc;

use fedspan_protocol::message::{Privacy, ToDevice};

use super::command_queue::{Receiver, Sender, command_queue};
use super::messages::{Command, DisconnectReason, Origin, PeerEvent, PeerEventKind};
use crate::config::Limits;
use crate::connection::{Connection, OUTBOX_MAX, PeerMessage, Traffic};
use fedspan_engine::random::spread;
use fedspan_engine::{DeviceId, Millis, RoundBroadcast};

/// Capacity of a device's command queue. A device whose queue is full is disconnected.
pub(crate) const COMMAND_CAPACITY: usize = 16;

/// Range of the retry delays of devices that are turned away, in ms. The delays differ so that the devices do
/// not reconnect at the same time.
const RETRY: std::ops::Range<u32> = 15_000..30_000;

/// Time without a new chunk of an update after which missing chunks are requested, in ms.
const MISSING_INTERVAL: Millis = Millis::new(1_000);

/// Largest number of repeated hellos on one connection, of which one is forgotten in each [`HELLO_INTERVAL`].
const HELLOS_MAX: u32 = 16;

/// Shortest interval, in ms, at which a device may say hello again and again: a device that sleeps on a link without an end, such as a
/// radio's, does so each time it wakes.
const HELLO_INTERVAL: Millis = Millis::new(5_000);

/// Number of protocol errors after which the traffic counters are reported to the core even without a
/// message.
const ERRORS_BEFORE_REPORT: u32 = 16;

/// Number of protocol errors after which a connection is closed. The limit tolerates line noise but not a
/// flood.
const FAULTS_MAX: u32 = 64;

/// Timeouts of a peer session.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Longest time until the hello, in ms.
    pub hello: Millis,
    /// Longest time without a valid message, in ms.
    pub idle: Millis,
    /// Longest time for receiving one frame, between two chunks of an update, and for sending one frame, in
    /// ms.
    pub frame: Millis,
    /// Time after which an unanswered round is sent again, in ms.
    pub repeat: Millis,
}

impl From<&Limits> for Timeouts {
    fn from(limits: &Limits) -> Self {
        Self {
            hello: limits.hello.into(),
            idle: limits.idle.into(),
            frame: limits.frame.into(),
            repeat: limits.repeat.into(),
        }
    }
}

/// Returns the retry delay of a device that is turned away, in ms: the delays of consecutive peer numbers are spread evenly.
fn retry_delay(peer: u64) -> u32 {
    RETRY.start + spread(peer, RETRY.end - RETRY.start)
}

/// Next step that the caller of [`PeerSession::next`] has to perform.
#[derive(Debug)]
#[must_use]
pub enum PeerAction {
    /// Write the frame.
    Send,
    /// Call [`PeerSession::admit`] or [`PeerSession::turn_away`], because a device has said hello.
    Admit,
    /// Send the beacon of this round, which the device awaits after the frame that follows.
    Beacon(Arc<RoundBroadcast>),
    /// Send the event to the core.
    Report(PeerEvent),
    /// Send [`PeerSession::gone`] to the core and close the link, unless it is persistent.
    Close(DisconnectReason),
    /// Wait for bytes, a command or the timer.
    Wait,
}

/// State of a session: progress in handling one received message.
#[derive(Debug)]
enum State {
    /// No message is being handled.
    Idle,
    /// A device has said hello and waits for a connection slot.
    Greeting(DeviceId, Privacy),
    /// Report to the core, then send replies.
    Report(PeerEventKind),
    /// Send replies, then handle the next received message.
    Reply,
    /// Send replies, report to the core, then close.
    FinalReply(PeerEventKind, DisconnectReason),
    /// The session has ended.
    Closed(DisconnectReason),
}

/// Action that a timer triggers.
#[derive(Clone, Copy, Debug)]
enum Timer {
    /// Ends the session.
    End,
    /// Sends the open round again.
    OpenAgain,
    /// Requests missing chunks of an update.
    AskMissing,
}

/// Server half of one device's session.
#[derive(Debug)]
pub struct PeerSession {
    peer: u64,
    from: Origin,
    connection: Connection,
    timeouts: Timeouts,
    /// Whether the link outlasts the session. A persistent link is reserved for one device, so it has no
    /// hello timeout.
    persistent: bool,
    /// Sending end of the command queue, handed to the core with the hello.
    commands: Option<Sender<Command>>,
    state: State,
    /// Received bytes after the message that is being handled.
    unprocessed: Vec<u8>,
    /// Number of replies to received messages since [`PeerSession::next`] waited.
    replies: usize,
    /// Time of the last valid message; before the hello, the time at which the session began.
    last_message: Millis,
    /// Time since which a frame or a chunked update has been incomplete.
    frame_since: Option<Millis>,
    /// Time at which missing chunks were last requested.
    missing_requested: Option<Millis>,
    /// Time since which the open round has been unanswered, and the number of chunk requests at that time.
    unanswered_since: Option<(Millis, u64)>,
    /// Traffic counters at the last event, which have been reported to the core.
    reported: Traffic,
    /// Number of frames that had been accepted when the last progress was recorded.
    accepted: u32,
    /// Number of chunks of the incomplete update that had arrived when the last progress was recorded.
    chunks: u32,
    /// Number of hellos after the first, less the forgotten ones.
    hellos: u32,
    /// Time at which a hello was last forgotten, or could have been.
    hellos_since: Millis,
}

impl PeerSession {
    /// Begins a session on a new connection; a [persistent](Connection::persistent) connection makes a
    /// persistent session. `peer` is the number of the session and must be unique. Also returns the receiving
    /// end of the command queue, from which commands arrive after the hello.
    #[must_use]
    pub fn new(
        peer: u64,
        from: Origin,
        connection: Connection,
        timeouts: Timeouts,
        now: Millis,
    ) -> (Self, Receiver<Command>) {
        let (sender, receiver) = command_queue(COMMAND_CAPACITY);
        let session = Self {
            peer,
            from,
            persistent: connection.is_persistent(),
            connection,
            timeouts,
            commands: Some(sender),
            state: State::Idle,
            unprocessed: Vec::new(),
            replies: 0,
            last_message: now,
            frame_since: None,
            missing_requested: None,
            unanswered_since: None,
            reported: Traffic::default(),
            accepted: 0,
            chunks: 0,
            hellos: 0,
            hellos_since: now,
        };
        (session, receiver)
    }

    /// Returns the remote end of the connection.
    #[must_use]
    pub fn from(&self) -> &Origin {
        &self.from
    }

    /// Returns the connection, for its counters and its memory.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the timeouts.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Returns true until a device has been admitted. No commands arrive before.
    #[must_use]
    pub fn awaits_hello(&self) -> bool {
        self.commands.is_some()
    }

    /// Accepts bytes from the device; [`Self::next`] returns their effects.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        if matches!(self.state, State::Idle) {
            self.state = self.handle_next(&mut input);
        }
        // Most reads contain a single message, so the copy is rarely needed.
        if self.unprocessed.is_empty() && !input.is_empty() {
            self.unprocessed = input.to_vec();
        } else {
            self.unprocessed.extend_from_slice(input);
        }
    }

    /// Handles received messages although replies to earlier ones wait to be sent, up to the next event for
    /// the core. Called while a frame is being written, for a device that sends all of an update before it
    /// reads. Replies that the outbox has no room for are dropped and counted ([`Traffic::unheeded`]). After some
    /// replies this ends until [`Self::next`] waits again: a device that goes on asking while it reads slowly must not
    /// keep the session from the core's commands.
    pub fn receive_ahead(&mut self) {
        while matches!(self.state, State::Reply)
            && self.replies < OUTBOX_MAX
            && !self.connection.is_revoked()
            && let Some(state) = self.handle_unprocessed()
        {
            self.state = state;
        }
    }

    /// Returns true if all received bytes have been handled and more can be, whether or not replies wait to
    /// be sent.
    #[must_use]
    pub fn is_receptive(&self) -> bool {
        matches!(self.state, State::Idle | State::Reply)
            && self.replies < OUTBOX_MAX
            && self.unprocessed.is_empty()
    }

    /// Returns true if an event waits to be sent to the core.
    #[must_use]
    pub fn has_event(&self) -> bool {
        matches!(self.state, State::Report(_))
    }

    /// Takes the event that waits to be sent to the core while a frame is being written; otherwise
    /// [`Self::next`] returns it.
    pub fn take_event(&mut self) -> Option<PeerEvent> {
        match std::mem::replace(&mut self.state, State::Reply) {
            State::Report(kind) => Some(self.create_event(kind)),
            state => {
                self.state = state;
                None
            }
        }
    }

    /// Returns the next step. `frame` holds the frame to write for [`PeerAction::Send`] and is empty
    /// otherwise.
    pub fn next(&mut self, now: Millis, frame: &mut Vec<u8>) -> PeerAction {
        if let Some(round) = self.connection.take_beacon() {
            return PeerAction::Beacon(round);
        }
        loop {
            match std::mem::replace(&mut self.state, State::Idle) {
                State::Greeting(device, privacy) => {
                    self.state = State::Greeting(device, privacy);
                    return PeerAction::Admit;
                }
                State::Report(kind) => {
                    self.state = State::Reply;
                    return PeerAction::Report(self.create_event(kind));
                }
                State::Closed(reason) => {
                    self.state = State::Closed(reason);
                    return PeerAction::Close(reason);
                }
                _ if self.connection.is_revoked() => self.state = State::Closed(DisconnectReason::Revoked),
                state if self.next_frame(frame) => {
                    self.state = state;
                    return PeerAction::Send;
                }
                State::FinalReply(kind, reason) => {
                    self.state = State::Closed(reason);
                    return PeerAction::Report(self.create_event(kind));
                }
                State::Reply => self.state = self.advance(now),
                State::Idle => {
                    self.replies = 0;
                    return PeerAction::Wait;
                }
            }
        }
    }

    /// Returns the last event of the session, to be sent to the core before the link is closed.
    #[must_use]
    pub fn gone(&mut self, reason: DisconnectReason) -> PeerEvent {
        self.create_event(PeerEventKind::Gone(reason))
    }

    /// Creates an event for the core, with the traffic since the previous one.
    fn create_event(&mut self, kind: PeerEventKind) -> PeerEvent {
        let total = self.connection.traffic();
        let traffic = total.since(&self.reported);
        self.reported = total;
        PeerEvent { peer: self.peer, from: self.from.clone(), key: self.connection.key(), kind, traffic }
    }

    /// Admits the device that has said hello.
    pub fn admit(&mut self) {
        if let State::Greeting(device, privacy) = self.state
            && let Some(commands) = self.commands.take()
        {
            self.state = State::Report(PeerEventKind::Hello(device, privacy, commands));
        }
    }

    /// Refuses the device because no connection slot is free, and sends the device a retry delay.
    pub fn turn_away(&mut self) {
        if matches!(self.state, State::Greeting(..)) {
            self.connection.turn_away(retry_delay(self.peer));
            self.state = State::FinalReply(PeerEventKind::TurnedAway, DisconnectReason::Ended);
        }
    }

    /// Executes a command of the core.
    pub fn execute(&mut self, command: Command) {
        match command {
            Command::Open(opening) => self.connection.open(&opening),
            Command::Acknowledge(ack) => self.connection.send(ToDevice::Ack(ack)),
            Command::CloseRound(id) => self.connection.close_round(id),
            Command::NextRound(time) => {
                let milliseconds = u32::try_from(time.as_u64()).unwrap_or(u32::MAX);
                self.connection.send(ToDevice::NextRound { milliseconds });
            }
        }
    }

    /// Ends the session after the core has dropped the command queue.
    pub fn close(&mut self) {
        let reason =
            if self.connection.is_revoked() { DisconnectReason::Revoked } else { DisconnectReason::Ended };
        self.state = State::Closed(reason);
    }

    /// Returns the time at which [`Self::on_timer`] is due if neither bytes nor a command arrive before;
    /// `None` if no timer runs.
    #[must_use]
    pub fn due(&mut self, now: Millis) -> Option<Millis> {
        let (due, _) = self.next_timer(now);
        (due < Millis::MAX).then_some(due)
    }

    /// Performs the timer action that is due.
    pub fn on_timer(&mut self, now: Millis) {
        match self.next_timer(now) {
            (due, _) if due > now || due == Millis::MAX => {}
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

    /// Returns the next timer: the end of the session after the idle timeout or an unfinished frame, or an
    /// earlier retransmission or request.
    fn next_timer(&mut self, now: Millis) -> (Millis, Timer) {
        let longest_wait = match self.awaits_hello() {
            true if self.persistent => Millis::MAX,
            true => self.timeouts.hello,
            false => self.timeouts.idle,
        };
        let mut limit = self.last_message + longest_wait;
        let mut request_at = None;
        if let Some(since) = self.frame_since {
            limit = limit.min(since + self.timeouts.frame);
            let last_request = self.missing_requested.unwrap_or(since);
            request_at = self.connection.is_mid_update().then(|| last_request + MISSING_INTERVAL);
        }
        let resend_at = self.unanswered_since_update(now).map(|since| since + self.timeouts.repeat);
        let timers = [(resend_at, Timer::OpenAgain), (request_at, Timer::AskMissing)].into_iter();
        let earlier =
            timers.filter_map(|(due, timer)| due.filter(|due| *due < limit).map(|due| (due, timer)));
        earlier.min_by_key(|(due, _)| *due).unwrap_or((limit, Timer::End))
    }

    /// Updates and returns the time since which the open round has been unanswered. Every request for chunks
    /// of the round restarts that time.
    fn unanswered_since_update(&mut self, now: Millis) -> Option<Millis> {
        let unanswered = self.connection.unanswered().map(|chunk_requests| (now, chunk_requests));
        let since = self
            .unanswered_since
            .filter(|(_, earlier)| unanswered.is_some_and(|(_, chunk_requests)| chunk_requests == *earlier));
        self.unanswered_since = unanswered.map(|restarted| since.unwrap_or(restarted));
        self.unanswered_since.map(|(since, _)| since)
    }

    /// Returns the reason for the end of a session whose timer has expired.
    fn timed_out(&self, now: Millis) -> DisconnectReason {
        match self.frame_since {
            _ if self.awaits_hello() => DisconnectReason::NoHello,
            Some(since) if now >= since + self.timeouts.frame => DisconnectReason::Slow,
            _ => DisconnectReason::Idle,
        }
    }

    /// Writes the next frame to `frame`; returns false if there is none.
    fn next_frame(&mut self, frame: &mut Vec<u8>) -> bool {
        loop {
            frame.clear();
            if !self.connection.next_frame(frame) {
                return false;
            }
            // A message that does not fit a frame is counted and yields an empty frame.
            if !frame.is_empty() {
                return true;
            }
        }
    }

    /// Advances to the next received message once the current one has been answered.
    fn advance(&mut self, now: Millis) -> State {
        if let Some(state) = self.handle_unprocessed() {
            return state;
        }
        self.unprocessed = Vec::new();
        let accepted = self.connection.traffic().frames.accepted;
        let progressed = std::mem::replace(&mut self.accepted, accepted) != accepted;
        self.watch_frame(now, progressed);
        // The hello timeout counts from the start of the session and is not extended by other messages.
        if progressed && !self.awaits_hello() {
            self.last_message = now;
        }
        self.forget_hellos(now);
        State::Idle
    }

    /// Forgets a repeated hello for each interval that has passed.
    fn forget_hellos(&mut self, now: Millis) {
        let intervals = (now - self.hellos_since).as_u64() / HELLO_INTERVAL.as_u64();
        if intervals > 0 {
            self.hellos = self.hellos.saturating_sub(u32::try_from(intervals).unwrap_or(u32::MAX));
            self.hellos_since = now;
        }
    }

    /// Handles the next received message, or protocol errors that the core or the session must react to.
    /// Returns the state that follows; `None` if there is neither.
    fn handle_unprocessed(&mut self) -> Option<State> {
        let errors = self.connection.traffic().protocol_errors();
        // The speed of a serial link limits a flood, and noise on the link is not the device's fault. Packets with a forged address must
        // not end the session of a device.
        let is_forgivable = self.persistent || self.connection.is_open_to_strangers() && !self.awaits_hello();
        if errors > FAULTS_MAX && !is_forgivable {
            return Some(State::Closed(DisconnectReason::Flood));
        }
        if errors >= self.reported.protocol_errors().saturating_add(ERRORS_BEFORE_REPORT) {
            return Some(State::Report(PeerEventKind::TrafficOnly));
        }
        if self.unprocessed.is_empty() && !self.connection.has_message() {
            return None;
        }
        let unprocessed = std::mem::take(&mut self.unprocessed);
        let mut input = unprocessed.as_slice();
        let state = self.handle_next(&mut input);
        let consumed = unprocessed.len() - input.len();
        self.unprocessed = unprocessed;
        self.unprocessed.drain(..consumed);
        Some(state)
    }

    /// Handles the next message in `input`, counts the replies to it, and returns the state that follows.
    fn handle_next(&mut self, input: &mut &[u8]) -> State {
        let before = self.connection.waiting();
        let message = self.connection.next_message(input);
        let state = self.on_message(message);
        self.replies += self.connection.waiting().saturating_sub(before);
        state
    }

    /// Updates the time since which a frame or a chunked update has been incomplete.
    fn watch_frame(&mut self, now: Millis, progressed: bool) {
        let mid_update = self.connection.is_mid_update();
        let chunks_before = if mid_update { self.chunks } else { 0 };
        self.chunks = chunks_before.max(self.connection.chunks());
        // Only new chunks count as progress of a chunked update; other messages and a restart of the update
        // do not.
        let progressed = if mid_update { self.chunks > chunks_before } else { progressed };
        if !self.connection.is_mid_message() {
            self.frame_since = None;
        } else if self.frame_since.is_none() || progressed {
            self.frame_since = Some(now);
            self.missing_requested = None;
        }
    }

    /// Returns the state that follows from one received message.
    fn on_message(&mut self, message: Option<PeerMessage>) -> State {
        let Some(message) = message else { return State::Reply };
        match message {
            PeerMessage::Hello(hello) if self.awaits_hello() => {
                State::Greeting(DeviceId(hello.device), hello.capabilities.privacy)
            }
            // Each hello is answered with a whole round, so their rate is limited. A device whose welcome was lost repeats its hello once
            // or twice. A persistent link has no limit, because every restart of the device adds a hello.
            PeerMessage::Hello(_) if !self.persistent && self.hellos >= HELLOS_MAX => {
                State::Closed(DisconnectReason::Flood)
            }
            PeerMessage::Hello(hello) => {
                self.hellos = self.hellos.saturating_add(1);
                State::Report(PeerEventKind::HelloAgain(hello.capabilities.privacy, self.last_message))
            }
            // The session ends; the second device will repeat its hello in a new session. An address of packets can pass to another
            // device, too.
            PeerMessage::OtherDevice if self.connection.is_open_to_strangers() => {
                State::Closed(DisconnectReason::Ended)
            }
            PeerMessage::Refused(refusal) => {
                State::FinalReply(PeerEventKind::Refused(refusal), DisconnectReason::Refused)
            }
            PeerMessage::Revoked => State::Closed(DisconnectReason::Revoked),
            PeerMessage::Update(update) => State::Report(PeerEventKind::Update(Box::new(update))),
            PeerMessage::UnreadUpdate(id) => State::Report(PeerEventKind::UnreadUpdate(id)),
            PeerMessage::Decline(decline) => State::Report(PeerEventKind::Decline(decline)),
            PeerMessage::Report(report) => State::Report(PeerEventKind::Report(report)),
            PeerMessage::Alive | PeerMessage::Fault(_) | PeerMessage::OtherDevice => State::Reply,
        }
    }
}

#[cfg(test)]
mod tests;
