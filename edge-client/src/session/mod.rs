//! The device's side of the protocol as a state machine: events and time go in, at most one frame and
//! the next wake-up come out. It never sleeps, reads a clock, or touches a link.
//!
//! ```text
//!            LinkUp            Welcome          RoundOpen, tensors        computed
//!  Offline ----------> Greeting ------> Idle ----------------> Receiving ---------> Sending
//!     ^                                  ^  \--(streaming: Collecting)--/               |
//!     | LinkDown, from anywhere          |                 Ack, RoundClosed             v
//!     +----------------------------------+-------------------------------------- AwaitingAck
//! ```
//!
//! A finished update survives a lost link: when the server opens the same round again, the same bytes
//! are sent again. Head, counters and storage change only once a round has been computed.

mod outgoing;
mod vocabulary;

use fedspan_protocol::assembly::{Assembly, plan, split_body};
use fedspan_protocol::message::{
    self, Ack, AckOutcome, Chunk, Decline, DeclineReason, Descriptors, Missing, Refusal, RoundId, RoundOpen,
    ToDevice, decode,
};
use rand_core::Rng;

use crate::source::{SampleSource, Targets};
use crate::store::{Loaded, Record, Store};
use crate::task::{Task, Usage};

pub use vocabulary::{Config, Counters, Event, Millis, Progress, Sampling};

/// Silence after hello, or between chunks, after which the device asks again.
const ASK_AGAIN: Millis = 2_000;
/// Silence after an update before it is sent again.
const RESEND_AFTER: Millis = 10_000;
/// Shortest time between two signs of life, however short the server's idle limit is.
const ALIVE_LEAST: Millis = 100;
/// Reconnect delays: the first, and the longest.
const RECONNECT_FIRST: Millis = 500;
const RECONNECT_LONGEST: Millis = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offline { retry: Millis },
    Greeting { hello_at: Option<Millis> },
    Idle,
    Receiving { since: Millis, ask: bool },
    Collecting,
    Sending { next: Outgoing },
    AwaitingAck { since: Millis },
}

/// Position in the outgoing update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outgoing {
    Head,
    Chunk { tensor: u8, index: u16 },
}

/// One device: a task, its samples, its storage, its randomness.
#[derive(Clone, Debug)]
pub struct Session<T, S, P, R> {
    config: Config,
    task: T,
    source: S,
    store: P,
    random: R,
    state: State,
    /// The open round, or the last one that was computed.
    round: RoundId,
    assembly: Assembly,
    upload: Descriptors,
    usage: Usage,
    /// The update in the task's buffers belongs to `round` and may be sent (again).
    update_ready: bool,
    decline: Option<Decline>,
    resend: Option<Missing>,
    campaign: u64,
    last_round: u32,
    idle_limit: Millis,
    last_sent: Millis,
    attempts: u32,
    close: bool,
    /// The open round fits the final head.
    fitting: bool,
    fitted: bool,
    refusal: Option<Refusal>,
    counters: Counters,
}

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    /// A session, offline. Restores the head from `store`.
    pub fn new(config: Config, mut task: T, source: S, mut store: P, random: R) -> Self {
        let mut counters = Counters::default();
        let loaded = match store.load(task.head_mut()) {
            Ok(Some(loaded)) => {
                task.restore_head(loaded.representation);
                loaded
            }
            Ok(None) => Loaded::default(),
            Err(_) => {
                counters.storage += 1;
                Loaded::default()
            }
        };
        let nothing = Assembly::nothing();
        Self {
            config,
            task,
            source,
            store,
            random,
            state: State::Offline { retry: 0 },
            round: RoundId::default(),
            assembly: nothing,
            upload: Descriptors::new(),
            usage: Usage::default(),
            update_ready: false,
            decline: None,
            resend: None,
            campaign: loaded.campaign,
            last_round: loaded.round,
            idle_limit: Millis::MAX,
            last_sent: 0,
            attempts: 0,
            close: false,
            fitting: false,
            fitted: false,
            refusal: None,
            counters,
        }
    }

    /// The task, to predict with. Fitting a head or exchanging the representation through it while an update
    /// is on its way changes what a retry of that update would send.
    pub fn task_mut(&mut self) -> &mut T {
        &mut self.task
    }

    /// The task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The sample source.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Everything that happened and left no other trace.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Why the server refused this device, if it did. Retrying will not help; the firmware must change.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// How the session behaves.
    pub fn config(&self) -> Config {
        self.config
    }

    /// A round is open and wants samples ([`Event::Sample`]).
    pub fn is_collecting(&self) -> bool {
        self.state == State::Collecting
    }

    /// The final head is fitted, and the server knows.
    pub fn is_fitted(&self) -> bool {
        self.fitted
    }

    /// The last round that this device finished.
    pub fn last_round(&self) -> u32 {
        self.last_round
    }

    /// Takes one event and writes at most one frame into `out`, which holds
    /// [`Config::transmit_capacity`] bytes. `now` never goes back.
    pub fn handle(&mut self, now: Millis, event: Event<'_>, out: &mut [u8]) -> Progress {
        match event {
            Event::LinkUp => {
                self.state = State::Greeting { hello_at: None };
                self.close = false;
            }
            Event::LinkDown => self.link_down(now),
            Event::Message(bytes) => self.message(now, bytes),
            Event::Sample(x, target) => self.sample(x, target),
            Event::Tick => self.tick(now),
        }
        let sent = self.transmit(now, out);
        Progress { sent, again: self.has_more(), close: self.close, wake: self.wake() }
    }

    fn link_down(&mut self, now: Millis) {
        self.close = false;
        self.decline = None;
        self.resend = None;
        match self.state {
            // The server said when, or `tick` has scheduled the next attempt.
            State::Offline { retry } if retry > now => {}
            _ => self.schedule_attempt(now),
        }
    }

    fn schedule_attempt(&mut self, now: Millis) {
        let retry = now.saturating_add(self.reconnect_delay());
        self.state = State::Offline { retry };
    }

    /// Doubles from attempt to attempt, until a server says welcome; the upper half is random, so that a
    /// fleet does not come back at once.
    fn reconnect_delay(&mut self) -> Millis {
        let ceiling = RECONNECT_FIRST
            .checked_shl(self.attempts.min(16))
            .unwrap_or(RECONNECT_LONGEST)
            .min(RECONNECT_LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        let half = ceiling / 2;
        half + u64::from(self.random.next_u32()) * half / u64::from(u32::MAX)
    }

    fn tick(&mut self, now: Millis) {
        match self.state {
            State::Offline { retry } if now >= retry => self.schedule_attempt(now),
            State::Greeting { hello_at: Some(at) } if now >= at.saturating_add(ASK_AGAIN) => {
                self.state = State::Greeting { hello_at: None };
            }
            State::Receiving { since, .. } if now >= since.saturating_add(ASK_AGAIN) => {
                self.counters.asked_again = self.counters.asked_again.saturating_add(1);
                self.state = State::Receiving { since: now, ask: true };
            }
            State::AwaitingAck { since } if now >= since.saturating_add(RESEND_AFTER) => {
                self.state = State::Sending { next: Outgoing::Head };
            }
            _ => {}
        }
    }

    fn message(&mut self, now: Millis, bytes: &[u8]) {
        let Ok((message, body)) = decode::<ToDevice>(bytes) else {
            self.counters.malformed = self.counters.malformed.saturating_add(1);
            return;
        };
        let takes_body = matches!(message, ToDevice::RoundOpen(_) | ToDevice::Chunk(_));
        if !takes_body && !body.is_empty() {
            self.counters.malformed = self.counters.malformed.saturating_add(1);
            return;
        }
        match (message, self.state) {
            (ToDevice::Welcome(welcome), State::Greeting { .. }) => {
                if welcome.campaign != self.campaign {
                    self.campaign = welcome.campaign;
                    self.last_round = 0;
                    self.update_ready = false;
                    self.fitted = false;
                }
                self.idle_limit = Millis::from(welcome.idle_milliseconds);
                self.attempts = 0;
                self.last_sent = now;
                self.state = State::Idle;
            }
            (ToDevice::Refused(refusal), State::Greeting { .. }) => {
                self.refusal = Some(refusal);
                self.close = true;
            }
            (ToDevice::RetryAfter { milliseconds }, _) => {
                self.state = State::Offline { retry: now.saturating_add(milliseconds.into()) };
                self.close = true;
            }
            (_, State::Offline { .. } | State::Greeting { .. }) => self.unexpected(),
            (ToDevice::RoundOpen(open), _) => self.round_open(now, &open, body),
            (ToDevice::Chunk(chunk), State::Receiving { .. }) => self.chunk(now, &chunk, body),
            (ToDevice::Missing(missing), State::AwaitingAck { .. } | State::Sending { .. })
                if missing.id == self.round =>
            {
                self.resend = Some(missing);
            }
            (ToDevice::Ack(ack), _) => self.acknowledged(&ack),
            (ToDevice::RoundClosed(id), _) => self.round_closed(id),
            (ToDevice::Fault(_), _) => self.unexpected(),
            // A chunk of a round that is not being received: left over from before a reconnect.
            _ => self.unexpected(),
        }
    }

    fn round_open(&mut self, now: Millis, open: &RoundOpen, body: &[u8]) {
        if open.id == self.round && self.update_ready {
            self.state = State::Sending { next: Outgoing::Head };
            return;
        }
        // Fitting the final head uploads nothing, so it may be repeated: after a reset the representation has
        // to be fetched again.
        let fit = matches!(open.task, message::Task::FitHead { .. });
        if open.id.round < self.last_round || (open.id.round == self.last_round && !fit) {
            let last = self.last_round;
            self.decline_round(open.id, DeclineReason::RoundRepeated { last });
            return;
        }
        // The task last: once it has said yes, it has let go of the round before.
        let accepted = Assembly::new(&open.tensors)
            .map_err(|_| DeclineReason::Tensors)
            .and_then(|assembly| self.task.open(open).map(|()| assembly));
        let assembly = match accepted {
            Ok(assembly) => assembly,
            Err(reason) => return self.decline_round(open.id, reason),
        };
        self.update_ready = false;
        self.resend = None;
        self.round = open.id;
        self.fitting = matches!(open.task, message::Task::FitHead { .. });
        self.assembly = assembly;
        self.state = State::Receiving { since: now, ask: false };
        if self.assembly.is_complete() {
            match self.take_body(&open.tensors, body) {
                Ok(()) => self.tensors_complete(),
                Err(reason) => self.decline_round(open.id, reason),
            }
        }
    }

    fn take_body(&mut self, tensors: &Descriptors, body: &[u8]) -> Result<(), DeclineReason> {
        let parts = split_body(tensors, body).map_err(|_| DeclineReason::Tensors)?;
        for (index, descriptor, bytes) in parts {
            let place = self.task.tensor_mut(index).ok_or(DeclineReason::Tensors)?;
            descriptor.encoding.decode(bytes, place).map_err(|_| DeclineReason::Tensors)?;
        }
        Ok(())
    }

    fn chunk(&mut self, now: Millis, chunk: &Chunk, body: &[u8]) {
        if chunk.id != self.round {
            return self.unexpected();
        }
        match self.assembly.accept(chunk, body.len()) {
            Ok(Some(place)) => {
                let encoding = self.assembly.tensors().get(place.tensor).map(|t| t.encoding);
                let buffer = self.task.tensor_mut(place.tensor);
                if let (Some(encoding), Some(buffer)) =
                    (encoding, buffer.and_then(|b| b.get_mut(place.elements)))
                    && encoding.decode(body, buffer).is_err()
                {
                    return self.unexpected();
                }
                self.state = State::Receiving { since: now, ask: false };
                if self.assembly.is_complete() {
                    self.tensors_complete();
                }
            }
            Ok(None) => {}
            Err(_) => self.unexpected(),
        }
    }

    fn tensors_complete(&mut self) {
        let id = self.round;
        if let Err(reason) = self.task.verify() {
            return self.decline_round(id, reason);
        }
        match self.config.sampling {
            Sampling::Replay => {
                let result = self.task.run(id, &mut self.source);
                self.computed(result);
            }
            Sampling::Stream { .. } => match self.task.begin() {
                Ok(()) => self.state = State::Collecting,
                Err(reason) => self.decline_round(id, reason),
            },
        }
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) {
        let (State::Collecting, Sampling::Stream { samples }) = (self.state, self.config.sampling) else {
            return self.unexpected();
        };
        if self.task.sample(x, target) >= samples {
            let result = self.task.finish();
            self.computed(result);
        }
    }

    fn computed(&mut self, result: Result<Usage, DeclineReason>) {
        let id = self.round;
        match result {
            Ok(usage) => self.usage = usage,
            Err(reason) => return self.decline_round(id, reason),
        }
        let mut upload = self.task.upload();
        if plan(&mut upload, self.config.limit()).is_err() {
            return self.decline_round(id, DeclineReason::Tensors);
        }
        self.upload = upload;
        let record = Record {
            campaign: self.campaign,
            round: id.round,
            representation: self.task.head_fitted_on().unwrap_or_default(),
            head: self.task.head(),
        };
        if self.store.save(&record).is_err() {
            self.counters.storage = self.counters.storage.saturating_add(1);
            return self.decline_round(id, DeclineReason::Device);
        }
        self.update_ready = true;
        self.state = State::Sending { next: Outgoing::Head };
    }

    fn acknowledged(&mut self, ack: &Ack) {
        let waiting = matches!(self.state, State::AwaitingAck { .. } | State::Sending { .. });
        if !waiting || ack.id != self.round {
            return self.unexpected();
        }
        let counter = match ack.outcome {
            AckOutcome::Counted | AckOutcome::Duplicate => {
                self.fitted |= self.fitting;
                self.close |= self.fitting && self.config.leave_when_fitted;
                &mut self.counters.counted
            }
            AckOutcome::Late => &mut self.counters.late,
            _ => &mut self.counters.rejected,
        };
        *counter = counter.saturating_add(1);
        self.finish_round();
    }

    fn round_closed(&mut self, id: RoundId) {
        let working = !matches!(self.state, State::Idle);
        if working && id == self.round {
            self.counters.closed = self.counters.closed.saturating_add(1);
            self.finish_round();
        }
    }

    fn finish_round(&mut self) {
        self.last_round = self.round.round;
        self.update_ready = false;
        self.resend = None;
        self.state = State::Idle;
    }

    fn decline_round(&mut self, id: RoundId, reason: DeclineReason) {
        self.counters.declined = self.counters.declined.saturating_add(1);
        self.decline = Some(Decline { id, reason });
        if id == self.round {
            self.update_ready = false;
            self.resend = None;
            self.state = State::Idle;
        }
    }

    fn unexpected(&mut self) {
        self.counters.unexpected = self.counters.unexpected.saturating_add(1);
    }

    fn has_more(&self) -> bool {
        match self.state {
            State::Offline { .. } => false,
            _ if self.close => false,
            State::Greeting { hello_at } => hello_at.is_none(),
            State::Sending { .. } | State::Receiving { ask: true, .. } => true,
            _ => self.decline.is_some() || self.resend.is_some(),
        }
    }

    fn wake(&self) -> Millis {
        match self.state {
            State::Offline { retry } => retry,
            State::Greeting { hello_at } => hello_at.unwrap_or(0).saturating_add(ASK_AGAIN),
            State::Receiving { since, .. } => since.saturating_add(ASK_AGAIN).min(self.alive_at()),
            State::AwaitingAck { since } => since.saturating_add(RESEND_AFTER).min(self.alive_at()),
            _ => self.alive_at(),
        }
    }

    fn alive_at(&self) -> Millis {
        self.last_sent.saturating_add((self.idle_limit / 3).max(ALIVE_LEAST))
    }
}
