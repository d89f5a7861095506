//! The device's side of the protocol as a sans-IO state machine: each call takes one event and the time, and returns
//! at most one frame and the next wake-up. The session never sleeps, reads a clock or touches a link.
//!
//! ```text
//!            LinkUp            Welcome          RoundOpen, tensors        computed
//!  Offline ----------> Greeting ------> Idle ----------------> Receiving ---------> Sending
//!     ^                                  ^  \--(streaming: Collecting)--/  \--(slots)--/ |
//!     | LinkDown, from anywhere          |                 Ack, RoundClosed             v
//!     +----------------------------------+-------------------------------------- AwaitingAck
//! ```
//!
//! # Encryption
//!
//! With a key, the server's Welcome is sealed, which proves that the server has the device's key. The device answers
//! with a sealed Alive, which proves that the device has it too. Since the sender of an unsealed message is unknown,
//! the session follows only those that can do no harm (reconnect later, repeat the handshake).
//!
//! # Retries
//!
//! A finished update survives a lost link: when the server opens the same round again, the session sends the same
//! bytes again. Head, counters and storage change only once a round has been computed.
//!
//! # Privacy budget
//!
//! The cost of an update with noise ([`Task::cost`]) is written to storage before the update is computed, and is never
//! refunded, even if the round is then declined, closed, lost or late. A session computes each charged round once; if
//! that failed and the server opens the round again, the session repeats its decline without a second charge. Before
//! it receives any tensor, the session declines a round that costs more than is left of the budget. It also declines
//! rounds with a cost while the last record of the head could not be written (writing is retried with each such
//! round); rounds without a cost go on. A ledger that cannot be read counts as spent.
//!
//! # Response slots
//!
//! The duration of a private computation depends on the records and on the noise, so it must not be observable. From
//! the last tensor of a round until a fixed time later ([`Task::slot`]) the device sends nothing, does not close its
//! link, and drops all input, sealed or not, and counts it: a device that computes may have no room for input, and
//! handling some of it would show when the computation ended. The server cannot extend that time. At the slot the
//! device answers with an update, a fitted head or a decline. Dropped frames are repeated like any lost frame. A link
//! that goes down during the slot counts as lost at its end. Rounds that are declined before a sample is read are
//! declined at once.

mod config;
mod counters;
mod event;
mod incoming;
mod ledger;
mod outgoing;
mod secure_layer;
mod state;
mod timing;

use counters::count;
use fedspan_protocol::message::{Privacy, Refusal};
use ledger::Ledger;
use rand_core::Rng;
use secure_layer::SecureLayer;
use state::{Phase, SessionState};

use crate::source::SampleSource;
use crate::store::Store;
use crate::task::Task;
use crate::time::Millis;

pub use config::{Config, Sampling};
pub use counters::Counters;
pub use event::{Event, Progress};
pub use secure_layer::Protection;

/// A device: its task, samples, storage and randomness.
#[derive(Debug)]
pub struct Session<T, S, P, R> {
    config: Config,
    task: T,
    source: S,
    store: P,
    random: R,
    secure: SecureLayer,
    ledger: Ledger,
    state: SessionState,
}

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    /// Creates an offline session and restores the head from `store`.
    ///
    /// `random` spreads reconnects, and with a key it makes handshakes unpredictable: it should then be a
    /// cryptographic generator, seeded from the board's entropy source. Should its output repeat, the
    /// handshake numbers kept in `store` still prevent a session key from repeating.
    pub fn new(
        config: Config,
        protection: Protection,
        mut task: T,
        source: S,
        mut store: P,
        random: R,
    ) -> Self {
        // The ledger comes first: loading the record may erase pages.
        let ledger = Ledger::load(task.capabilities().privacy, &mut store);
        let loaded = store.load(task.head_mut());
        if let Ok(Some(loaded)) = loaded {
            task.restore_head(loaded.representation);
        }
        let remembered = loaded.ok().flatten().unwrap_or_default();
        let mut state = SessionState::new(remembered, &config, task.slot());
        if loaded.is_err() {
            count(&mut state.counters.storage);
        }
        if ledger.is_lost() {
            count(&mut state.counters.ledger_lost);
        }
        let secure = SecureLayer::new(protection);
        Self { config, task, source, store, random, secure, ledger, state }
    }

    /// The task, for predictions. Fitting a head or replacing the representation while an update is in flight
    /// changes the bytes that a retry of that update sends.
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

    /// Counters of events that leave no other trace.
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// The server's reason for refusing this device, if it did. Retrying does not help; the firmware has to
    /// change. With a key, only sealed refusals are reported here; others count as [`Counters::unsealed`].
    pub fn refusal(&self) -> Option<Refusal> {
        self.state.refusal
    }

    /// True if frames are not encrypted. Firmware should report this when it starts.
    pub fn is_plaintext(&self) -> bool {
        self.secure.is_plaintext()
    }

    /// The privacy parameters and the spent budget, as the hello announces them.
    pub fn privacy(&self) -> Privacy {
        self.ledger.with_spent(self.task.capabilities().privacy)
    }

    /// True while a private device neither sends nor receives. Do not read the link then: see
    /// [`Self::silent_until`].
    pub fn is_silent(&self, now: Millis) -> bool {
        self.state.is_silent(now)
    }

    /// The end of the current or last response slot. Do not close the link before it; [`Progress::wake`] is
    /// not earlier. Do not read the link before it either: a frame that is read partly before and partly
    /// after the end would be handled only if the computation was over when its first part arrived. Read what
    /// is buffered in the link afterwards.
    pub fn silent_until(&self) -> Millis {
        self.state.silent_until
    }

    /// The session's settings.
    pub fn config(&self) -> Config {
        self.config
    }

    /// True while an open round collects samples ([`Event::Sample`]).
    pub fn is_collecting(&self) -> bool {
        self.state.phase == Phase::Collecting
    }

    /// True once the final head is fitted and the server has acknowledged it.
    pub fn is_fitted(&self) -> bool {
        self.state.fitted
    }

    /// The last round that this device finished.
    pub fn last_round(&self) -> u32 {
        self.state.last_round
    }

    /// Handles one event and writes at most one frame into `out`, which must hold
    /// [`Config::transmit_capacity`] bytes. `now` must never decrease.
    pub fn handle(&mut self, now: Millis, event: Event<'_>, out: &mut [u8]) -> Progress {
        self.state.check_slot(now);
        match event {
            // Dropped in any case: the device may or may not have had room for it while it computed.
            Event::Message(_) | Event::Sealed(_) if self.state.is_silent(now) => {
                count(&mut self.state.counters.dropped_while_silent);
            }
            Event::LinkUp => {
                self.secure.reset();
                self.state.link_up();
            }
            Event::LinkDown => {
                self.secure.reset();
                // The time at which the device notices depends on how long it computed; the end of the slot
                // does not.
                let lost = self.state.silent_until.max(now);
                if self.state.link_down(lost) {
                    self.schedule_reconnect(lost);
                }
            }
            Event::Message(bytes) if self.secure.is_plaintext() => self.dispatch_message(now, bytes),
            Event::Message(bytes) => self.handle_unsealed(now, bytes),
            Event::Sealed(frame) => self.handle_sealed(now, frame),
            Event::Sample(x, target) => self.handle_sample(now, x, target),
            Event::Tick => {
                if !self.state.is_silent(now) && self.state.tick(now) {
                    self.schedule_reconnect(now);
                }
            }
        }
        let sent = self.transmit(now, out);
        self.state.progress(now, sent)
    }

    /// Schedules the next connection attempt after a random delay, so that a fleet does not return all at
    /// once.
    fn schedule_reconnect(&mut self, now: Millis) {
        let random = self.random.next_u32();
        self.state.schedule_reconnect(now, random);
    }
}
