//! The device's side of the protocol as a sans-IO state machine: each call takes one event and the current
//! time, and returns at most one frame and the next wake-up time. The session never sleeps, reads a clock or
//! accesses a link.
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
//! With a key, the server's Welcome is sealed, which proves that the server has the device's key. The device
//! answers with a sealed Alive, which proves that the device has the key too. Since the sender of an unsealed
//! message is unknown, the session obeys an unsealed message only if it can do no harm (reconnect later,
//! repeat the handshake).
//!
//! # Retries
//!
//! A finished update survives the loss of a link: when the server opens the same round again, the session
//! sends the same bytes again. The head, the counters and the storage change only once a round has been
//! computed.
//!
//! # Privacy budget
//!
//! The cost of an update with noise ([`Task::cost`]) is written to storage before the update is computed, and
//! is never refunded, even if the round is then declined, closed, lost or late. A session computes each
//! charged round once; if the computation failed and the server opens the round again, the session repeats
//! its decline without a second charge. A round that costs more than the unspent budget is declined before
//! any tensor is received. Rounds with a cost are also declined while the last record of the head could not
//! be written (each such round retries the write); rounds without a cost are not affected. If the ledger
//! cannot be read, the whole budget counts as spent.
//!
//! # Response slots
//!
//! The duration of a private computation depends on the records and on the noise, so it must not be
//! observable. From the last tensor of a round until a fixed time later ([`Task::slot`]) the device sends
//! nothing and does not close its link. It drops and counts all input, sealed or not: a device that computes
//! may have no memory for input, and processing a part of the input would show when the computation ended.
//! The server cannot extend the slot. At the end of the slot the device answers with an update, a fitted head
//! or a decline. Dropped frames are repeated like any lost frame. A link that is lost during the slot counts
//! as lost at the end of the slot. Rounds that are declined before a sample is read are declined immediately.

mod clock;
mod config;
mod counters;
mod event;
mod incoming;
mod ledger;
mod outgoing;
#[cfg_attr(not(feature = "encryption"), path = "plain_layer.rs")]
mod secure_layer;
mod state;
mod timing;

use clock::SessionClock;
use counters::count;
use fedspan_protocol::message::{Privacy, Refusal};
use ledger::Ledger;
use rand_core::Rng;
use secure_layer::SecureLayer;
use state::{Phase, SessionState};

use crate::event_log::log_event;
use crate::source::SampleSource;
use crate::store::{Commit, Store, StoreError};
use crate::task::Task;
use crate::time::Millis;

#[cfg(feature = "reports")]
pub use config::{About, Firmware, ResetReason};
pub use config::{Config, Sampling, Sleep, Timers};
pub use counters::Counters;
pub use event::{Event, Progress};
pub use secure_layer::{Aead, DefaultAead, Protection};

/// State machine of one device, with the device's task, samples, storage and randomness.
#[derive(Debug)]
pub struct Session<T, S, P, R, A = DefaultAead> {
    config: Config,
    task: T,
    source: S,
    store: P,
    random: R,
    secure: SecureLayer<A>,
    ledger: Ledger,
    clock: SessionClock,
    state: SessionState,
}

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    /// Creates an offline session and restores the head from `store`.
    ///
    /// `random` generates the random delays of reconnects. With a key, `random` also makes handshakes
    /// unpredictable and should be a cryptographic generator seeded from the board's entropy source. Even if
    /// its output repeats, the handshake numbers in `store` prevent a session key from repeating.
    pub fn new(config: Config, protection: Protection, task: T, source: S, store: P, random: R) -> Self {
        Self::with_aead(config, protection, DefaultAead, task, source, store, random)
    }
}

impl<T: Task, S: SampleSource, P: Store, R: Rng, A: Aead + Clone> Session<T, S, P, R, A> {
    /// Creates a session like [`Session::new`] whose frames are sealed by `aead`, which may be a handle of a chip's hardware
    /// (`&RefCell<Hardware>` is one). The hello announces its algorithm.
    pub fn with_aead(
        config: Config,
        protection: Protection,
        aead: A,
        mut task: T,
        source: S,
        mut store: P,
        random: R,
    ) -> Self {
        // The ledger is loaded first, because loading the record may erase pages.
        let ledger = Ledger::load(task.capabilities().privacy, &mut store);
        let loaded = store.load(task.head_mut());
        if let Ok(Some(loaded)) = loaded {
            task.restore_head(loaded.representation);
        }
        let remembered = loaded.ok().flatten().unwrap_or_default();
        let mut state = SessionState::new(remembered, &config, task.slot());
        #[cfg(feature = "reports")]
        {
            state.reports = config.about.is_some() && task.capabilities().privacy == Privacy::None;
        }
        if loaded.is_err() {
            log_event!(error, "the stored record cannot be read");
            count(&mut state.counters.storage);
        }
        if ledger.is_lost() {
            log_event!(error, "the privacy ledger is lost, so the whole budget counts as spent");
            count(&mut state.counters.ledger_lost);
        }
        #[cfg(not(feature = "key-rotation"))]
        let secure = SecureLayer::new(protection, aead);
        #[cfg(feature = "key-rotation")]
        let mut secure = SecureLayer::new(protection, aead);
        #[cfg(feature = "key-rotation")]
        {
            secure.identify(config.device);
            // A key that cannot be read now is read before the first handshake.
            if let Ok(stored) = store.load_key() {
                state.is_key_read = true;
                stored.into_iter().for_each(|key| secure.replace_key(key));
            }
        }
        Self { config, task, source, store, random, secure, ledger, clock: SessionClock::default(), state }
    }

    /// Returns the task, for predictions. Fitting a head or replacing the representation while an update is
    /// in flight changes the bytes that a retry of that update sends.
    pub fn task_mut(&mut self) -> &mut T {
        &mut self.task
    }

    /// Returns the task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// Returns the sample source.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Returns the storage.
    pub fn store(&self) -> &P {
        &self.store
    }

    /// Writes what the session has stored, for storage that is written asynchronously. A driver must commit before it sends a frame, and
    /// must not send the frame if that fails.
    ///
    /// # Errors
    /// [`StoreError`] if something is not written; this is counted.
    pub async fn commit(&mut self) -> Result<(), StoreError>
    where
        P: Commit,
    {
        let committed = self.store.commit().await;
        if committed.is_err() {
            count(&mut self.state.counters.storage);
        }
        committed
    }

    /// Returns the storage for its maintenance between two events, such as
    #[cfg_attr(
        feature = "flash",
        doc = "[`FlashStore::erase_ahead`](crate::store::FlashStore::erase_ahead)."
    )]
    #[cfg_attr(not(feature = "flash"), doc = "`FlashStore::erase_ahead`.")]
    /// The session does not know of items that are saved here.
    pub fn store_mut(&mut self) -> &mut P {
        &mut self.store
    }

    /// Returns the counters of events.
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Returns the server's reason for refusing this device, if the server has refused it. Retrying does not
    /// help; the firmware has to change. With a key, only refusals that the server has sealed, or that carry its tag (feature
    /// `reports`), are reported here; all unsealed ones are counted as [`Counters::unsealed`].
    pub fn refusal(&self) -> Option<Refusal> {
        self.state.refusal
    }

    /// Returns the epoch of the device's key; `None` without a key. It grows when the server has sent a new key.
    #[cfg(feature = "key-rotation")]
    pub fn key_epoch(&self) -> Option<u16> {
        self.secure.epoch()
    }

    /// Returns true if frames are not encrypted. Firmware should report this when it starts.
    pub fn is_plaintext(&self) -> bool {
        self.secure.is_plaintext()
    }

    /// Returns the privacy parameters with the spent budget, as announced in the hello.
    pub fn privacy(&self) -> Privacy {
        self.ledger.with_spent(self.task.capabilities().privacy)
    }

    /// Returns true while a private device neither sends nor receives. The driver must not read the link
    /// then; see [`Self::silent_until`].
    pub fn is_silent(&self, now: Millis) -> bool {
        self.state.is_silent(self.clock.time(now))
    }

    /// Returns the end of the current or last response slot. The driver must not close the link before this
    /// time; [`Progress::wake`] is not earlier. The driver must not read the link before this time either: a
    /// frame that is read partly before and partly after it would be processed only if the computation was
    /// over when the first part arrived. Input that is buffered in the link can be read afterwards.
    pub fn silent_until(&self) -> Millis {
        self.clock.caller_time(self.state.silent_until)
    }

    /// Returns the longest time for which the link may accept no byte.
    pub(crate) fn write_limit(&self) -> Millis {
        timing::after(self.state.timers.write)
    }

    /// Returns the settings of the session.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Returns true while an open round collects samples ([`Event::Sample`]).
    pub fn is_collecting(&self) -> bool {
        self.config.sampling.streamed_samples().is_some() && self.state.phase == Phase::Collecting
    }

    /// Returns true once the final head is fitted and the server has acknowledged it.
    pub fn is_fitted(&self) -> bool {
        self.state.fitted
    }

    /// Returns true if the session closed the last link because nothing was left to do, or because the server did not answer
    /// ([`Config::sleep`]); the device may switch its radio off until the time to connect.
    pub fn has_left(&self) -> bool {
        self.state.has_left
    }

    /// Returns a number that changes whenever a round has given the task a new head, with which predictions change.
    pub fn head_version(&self) -> u32 {
        self.state.heads
    }

    /// Returns the number of the last round that this device finished.
    pub fn last_round(&self) -> u32 {
        self.state.last_round
    }

    /// Handles one event and writes at most one frame into `out`, which must hold
    /// [`Config::transmit_capacity`] bytes. `now` is the time on any clock in milliseconds. If it goes back, as a counter of
    /// 32 bits does when it wraps, the session's timers continue from there ([`Counters::clock_jumps`]).
    pub fn handle(&mut self, now: Millis, event: Event<'_>, out: &mut [u8]) -> Progress {
        let (now, has_jumped) = self.clock.advance(now);
        if has_jumped {
            count(&mut self.state.counters.clock_jumps);
        }
        self.state.check_slot(now);
        match event {
            // Always dropped, because a device that computes may or may not have had memory for the frame.
            Event::Message(_) | Event::Sealed(_) if self.state.is_silent(now) => {
                count(&mut self.state.counters.dropped_while_silent);
            }
            Event::LinkUp => {
                log_event!(info, "connected");
                self.secure.reset();
                self.state.link_up();
            }
            Event::LinkDown => {
                log_event!(info, "link lost");
                self.secure.reset();
                // The time at which the device notices the loss depends on the duration of its computation;
                // the end of the slot does not.
                let noticed = self.state.silent_until.max(now);
                if self.state.link_down(noticed) {
                    self.schedule_reconnect(noticed);
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
        self.state.leave_to_sleep(now);
        let progress = self.state.progress(now, sent);
        Progress { wake: self.clock.caller_time(progress.wake), ..progress }
    }

    /// Schedules the next connection attempt after a random delay, so that the devices of a fleet do not all
    /// reconnect at the same time.
    fn schedule_reconnect(&mut self, now: Millis) {
        let random = self.random.next_u32();
        self.state.schedule_reconnect(now, random);
    }
}
