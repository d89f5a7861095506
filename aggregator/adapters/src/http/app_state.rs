//! What all connections share: the course of rounds, the shelf of files, and what moves when either does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::counters::Counters;
use super::round_state::{Admission, ClientIndex, RoundState, UpdateSummary};
use super::round_store::{AverageOptions, RoundRecord, RoundStore};
use super::{ServerError, Settings};
use fedspan_engine::Millis;

/// A client may send one update while the server still waits for the rest of another one that was cut off.
const UPLOADS_MAX: u32 = 2;

/// All of it.
pub struct AppState {
    pub(super) settings: Settings,
    pub(super) store: RoundStore,
    /// Longest body.
    pub(super) max_body_len: u64,
    pub(super) counters: Counters,
    rounds: Mutex<RoundState>,
    /// Held while an update is being counted and while a round is closed, where the disk may be waited for.
    counting: Mutex<()>,
    start: Instant,
    /// Counts up whenever a round moves.
    changed: watch::Sender<u64>,
    /// The server ends: who waits for a round is told what there is.
    ended: AtomicBool,
    /// Clients that send, and how many updates at a time.
    sending: Mutex<BTreeMap<ClientIndex, u32>>,
    /// Who has asked for the final adapter.
    served: Mutex<BTreeSet<ClientIndex>>,
}

/// As long as it lives, a client is sending.
pub struct UploadPermit(Arc<AppState>, ClientIndex);

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let mut sending = lock(&self.0.sending);
        if let Some(count) = sending.get_mut(&self.1) {
            *count = count.saturating_sub(1);
        }
    }
}

impl AppState {
    pub(super) fn new(settings: Settings, store: RoundStore, max_body_len: u64, rounds: RoundState) -> Self {
        Self {
            settings,
            store,
            max_body_len,
            counters: Counters::default(),
            rounds: Mutex::new(rounds),
            counting: Mutex::new(()),
            start: Instant::now(),
            changed: watch::Sender::new(0),
            ended: AtomicBool::new(false),
            sending: Mutex::default(),
            served: Mutex::default(),
        }
    }

    /// Milliseconds since the start.
    pub(super) fn now(&self) -> Millis {
        Millis::try_from(self.start.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// The rounds. Nothing is awaited while this is held.
    pub(super) fn rounds(&self) -> MutexGuard<'_, RoundState> {
        lock(&self.rounds)
    }

    /// Is told when a round moves.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Ends what waits.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.notify();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// A client begins to send, unless it does so too often at a time.
    pub(super) fn sending(self: &Arc<Self>, client: ClientIndex) -> Option<UploadPermit> {
        let mut sending = lock(&self.sending);
        let count = sending.entry(client).or_insert(0);
        (*count < UPLOADS_MAX).then(|| {
            *count += 1;
            UploadPermit(Arc::clone(self), client)
        })
    }

    /// A client has asked for the adapter.
    pub(super) fn mark_served(&self, client: ClientIndex) {
        if self.is_finished() {
            lock(&self.served).insert(client);
            self.notify();
        }
    }

    /// Whether all rounds are committed.
    pub(super) fn is_finished(&self) -> bool {
        let rounds = self.rounds();
        rounds.committed() >= rounds.rules().rounds
    }

    /// Whether every client has asked for the final adapter.
    pub(super) fn all_served(&self) -> bool {
        lock(&self.served).len() == self.settings.registry.names().len()
    }

    /// Counts an update whose whole adapter is checked and durable, if it is still welcome. Waits for the disk.
    ///
    /// # Errors
    /// What the system says; it does not count then.
    pub(super) fn count(
        &self,
        client: ClientIndex,
        round: u32,
        update: UpdateSummary,
        whole: &std::path::Path,
    ) -> Result<Admission, ServerError> {
        // No round is closed meanwhile; everybody else goes on.
        let _counting = lock(&self.counting);
        let admission = self.rounds().admit(client, round, Some(&update));
        if let Admission::Accepted(_) = admission {
            self.store.count(round, self.settings.registry.name(client), &update, whole)?;
            self.rounds().count(client, update);
            self.notify();
        }
        Ok(admission)
    }

    /// Closes the round if it is time; the same again where its mean could not be made. Waits for the disk.
    pub(super) fn close(&self) -> Option<super::OpenRound> {
        let _counting = lock(&self.counting);
        let now = self.now();
        self.rounds().close(now)
    }

    /// Makes the mean of a closed round. Waits for the disk.
    ///
    /// # Errors
    /// As [`RoundStore::commit`].
    pub(super) fn commit(&self, open: &super::OpenRound, threads: usize) -> Result<(), ServerError> {
        let (names, by_samples) = (self.settings.registry.names(), self.settings.by_samples);
        let record =
            self.store.commit(open, AverageOptions { names, by_samples, threads }, &|| !self.has_ended())?;
        // Before anybody can see it: who ends the server then has the line.
        tell(&record);
        self.rounds().commit(self.now());
        self.notify();
        Ok(())
    }
}

fn tell(record: &RoundRecord) {
    let RoundRecord { round, trained, clients, interference, .. } = record;
    let samples: u64 = clients.values().map(|(samples, _)| u64::from(*samples)).sum();
    let lost = interference.map_or_else(|| "not computed".to_owned(), |lost| format!("{lost:.3e}"));
    let weightless = match clients.values().filter(|(samples, _)| *samples == 0).count() {
        0 => String::new(),
        all if all == clients.len() => ", none of them with a weight: the adapter stays as it was".to_owned(),
        some => format!(", {some} of them without weight"),
    };
    tracing::info!(
        "round {round} ({trained}): {} updates{weightless}, {samples} samples, interference {lost}",
        clients.len()
    );
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
