//! The device's side of the protocol as a state machine: events and time go in, at most one frame and
//! the next wake-up come out. It never sleeps, reads a clock, or touches a link.
//!
//! ```text
//!            LinkUp            Welcome          RoundOpen, tensors        computed
//!  Offline ----------> Greeting ------> Idle ----------------> Receiving ---------> Sending
//!     ^                                  ^  \--(streaming: Collecting)--/  \--(slots)--/ |
//!     | LinkDown, from anywhere          |                 Ack, RoundClosed             v
//!     +----------------------------------+-------------------------------------- AwaitingAck
//! ```
//!
//! Where frames are encrypted, Welcome comes sealed, and proves that the server has the device's key; the device
//! answers it with Alive, which proves the same of the device. What is not sealed is only believed as far as it
//! cannot do harm.
//!
//! A finished update survives a lost link: when the server opens the same round again, the same bytes
//! are sent again. Head, counters and storage change only once a round has been computed.
//!
//! Where updates carry noise ([`Task::cost`]), what they cost is written to the storage before they are computed, and never
//! taken back: also for a round that is declined after that, closed, lost or late. A session computes such a round once;
//! where that fails and the round is opened again, it is declined again, for nothing. A round that would cost more than is
//! left of the device's own budget is declined before anything of it is received, and so is one that costs anything while
//! the record of the head cannot be written (one was lost that way; it is tried again with each); what costs nothing goes
//! on. A ledger that cannot be read counts as spent.
//!
//! How long a private device computes depends on its records and on its noise, and nobody is to learn it. From the last
//! tensor of a round to a fixed time after it ([`Task::slot`]) the device says nothing at all, does not close its link, and
//! hears nothing: what comes meanwhile is lost and counted, sealed or not, since a device that computes may have no room for
//! it, and what it does with it would tell whether it had. A server cannot stretch that time either. Then it answers, with
//! an update, a fitted head or a decline. What was lost is repeated, as after any lost frame. A link that goes down meanwhile
//! counts as lost at the slot. What is declined before a sample is looked at is declined at once.

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

/// One device: a task, its samples, its storage, its randomness.
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
    /// A session, offline. Restores the head from `store`.
    ///
    /// `random` spreads reconnects, and with a key makes handshakes unpredictable: it should then be a generator for
    /// cryptography, seeded by the board's source of entropy. Should its numbers repeat, the numbers of handshakes
    /// that `store` keeps still make no key come twice.
    pub fn new(
        config: Config,
        protection: Protection,
        mut task: T,
        source: S,
        mut store: P,
        random: R,
    ) -> Self {
        // The ledger first, before the record is looked for: that may tidy up.
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
        self.state.counters
    }

    /// Why the server refused this device, if it did. Retrying will not help; the firmware must change. With a key,
    /// only what the server has sealed counts; other refusals are [`Counters::unsealed`].
    pub fn refusal(&self) -> Option<Refusal> {
        self.state.refusal
    }

    /// Frames are not encrypted. A firmware says so when it starts.
    pub fn is_plaintext(&self) -> bool {
        self.secure.is_plaintext()
    }

    /// What noise updates have, and what of the device's budget is used up: as hello says it.
    pub fn privacy(&self) -> Privacy {
        self.ledger.with_spent(self.task.capabilities().privacy)
    }

    /// A private device says nothing now and hears nothing. The link must not be read: see [`Self::quiet_until`].
    pub fn is_silent(&self, now: Millis) -> bool {
        self.state.is_silent(now)
    }

    /// Until when a private device says nothing and hears nothing. The link must not be closed before; [`Progress::wake`] is
    /// not earlier. Nor should it be read: a frame of which half is read before and half after would be heard only if the
    /// device was not computing any more when the first half came. What waits in the link is read after that.
    pub fn silent_until(&self) -> Millis {
        self.state.silent_until
    }

    /// How the session behaves.
    pub fn config(&self) -> Config {
        self.config
    }

    /// A round is open and wants samples ([`Event::Sample`]).
    pub fn is_collecting(&self) -> bool {
        self.state.phase == Phase::Collecting
    }

    /// The final head is fitted, and the server knows.
    pub fn is_fitted(&self) -> bool {
        self.state.fitted
    }

    /// The last round that this device finished.
    pub fn last_round(&self) -> u32 {
        self.state.last_round
    }

    /// Takes one event and writes at most one frame into `out`, which holds
    /// [`Config::transmit_capacity`] bytes. `now` never goes back.
    pub fn handle(&mut self, now: Millis, event: Event<'_>, out: &mut [u8]) -> Progress {
        self.state.check_slot(now);
        match event {
            // Whether there was room for it while the device computed, it cannot tell: it is lost in any case.
            Event::Message(_) | Event::Sealed(_) if self.state.is_silent(now) => {
                count(&mut self.state.counters.dropped_while_silent);
            }
            Event::LinkUp => {
                self.secure.reset();
                self.state.link_up();
            }
            Event::LinkDown => {
                self.secure.reset();
                // When the device came round to hear of it depends on how long it computed.
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

    /// A random delay, so that a fleet does not come back at once.
    fn schedule_reconnect(&mut self, now: Millis) {
        let random = self.random.next_u32();
        self.state.schedule_reconnect(now, random);
    }
}
