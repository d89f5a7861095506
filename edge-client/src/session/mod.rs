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

mod clock;
mod incoming;
mod outgoing;
mod vocabulary;

use fedspan_protocol::assembly::Assembly;
use fedspan_protocol::message::{Decline, DeclineReason, Descriptors, Missing, Refusal, RoundId};
use rand_core::Rng;

use crate::source::SampleSource;
use crate::store::{Loaded, Store};
use crate::task::{Task, Usage};

use vocabulary::count;
pub use vocabulary::{Config, Counters, Event, Millis, Progress, Sampling};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offline,
    Greeting { said: bool },
    Idle,
    Receiving { ask: bool },
    Collecting,
    Sending { next: Outgoing },
    AwaitingAck,
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
    /// When something is done about a state that lasts: connect, greet, ask or send again.
    due: Millis,
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
    /// Silence after which the device says that it is still there.
    alive_every: Millis,
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
                count(&mut counters.storage);
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
            state: State::Offline,
            due: 0,
            round: RoundId::default(),
            assembly: nothing,
            upload: Descriptors::new(),
            usage: Usage::default(),
            update_ready: false,
            decline: None,
            resend: None,
            campaign: loaded.campaign,
            last_round: loaded.round,
            alive_every: Millis::MAX,
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

    /// The storage.
    pub fn store(&self) -> &P {
        &self.store
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
                self.enter(State::Greeting { said: false });
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

    /// A state that lasts until something happens.
    fn enter(&mut self, state: State) {
        self.enter_until(Millis::MAX, state);
    }

    fn enter_until(&mut self, due: Millis, state: State) {
        self.due = due;
        self.state = state;
    }

    fn finish_round(&mut self) {
        self.last_round = self.round.round;
        self.update_ready = false;
        self.resend = None;
        self.enter(State::Idle);
    }

    fn decline_round(&mut self, id: RoundId, reason: DeclineReason) {
        count(&mut self.counters.declined);
        self.decline = Some(Decline { id, reason });
        if id == self.round {
            self.update_ready = false;
            self.resend = None;
            self.enter(State::Idle);
        }
    }

    fn unexpected(&mut self) {
        count(&mut self.counters.unexpected);
    }
}
