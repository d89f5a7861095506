//! State shared by all connections: settings, round state, round store, counters, and a notification on every
//! change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sha2::Sha256;
use tokio::sync::watch;

use super::client_registry::ClientIndex;
use super::counters::Counters;
use super::round_record::RoundRecord;
use super::round_state::{Admission, RoundState, UpdateSummary};
use super::round_store::{AverageOptions, Commit, RoundStore};
use super::token_brake::TokenBrake;
use super::{ServerError, Settings};
use fedspan_engine::Millis;

/// Largest number of concurrent uploads of one client. Two uploads allow a client to retry while the server
/// still waits for the data of a broken connection.
const UPLOADS_MAX: u32 = 2;

/// State shared by all connections.
pub struct AppState {
    /// Settings of the server.
    pub(super) settings: Settings,
    /// Committed rounds and accepted updates on disk.
    pub(super) store: RoundStore,
    /// Longest request body, in bytes.
    pub(super) max_body_len: u64,
    /// Number of input files of a mean that may stay open.
    mean_files: usize,
    /// Event counters for the status.
    pub(super) counters: Counters,
    rounds: Mutex<RoundState>,
    /// Serialises the acceptance of updates with the closing and committing of rounds. The lock is held while
    /// waiting for the disk.
    commit_lock: Mutex<()>,
    start: Instant,
    /// Number of changes of the round state; receivers wait for the next change.
    changed: watch::Sender<u64>,
    /// True while the server shuts down. Requests that wait for a round are then answered at once.
    stopping: AtomicBool,
    /// Number of concurrent uploads of each client.
    uploads: Mutex<BTreeMap<ClientIndex, u32>>,
    /// Brake on wrong tokens.
    brake: Mutex<TokenBrake>,
    /// Clients that have requested the final adapter.
    served: Mutex<BTreeSet<ClientIndex>>,
}

/// Permit for one of a client's [`UPLOADS_MAX`] concurrent uploads. Released on drop.
pub struct UploadPermit(Arc<AppState>, ClientIndex);

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let mut uploads = lock(&self.0.uploads);
        if let Some(count) = uploads.get_mut(&self.1) {
            *count = count.saturating_sub(1);
        }
    }
}

impl AppState {
    /// Creates the state of a server at its start.
    pub(super) fn new(
        settings: Settings,
        store: RoundStore,
        max_body_len: u64,
        mean_files: usize,
        rounds: RoundState,
    ) -> Self {
        Self {
            settings,
            store,
            max_body_len,
            mean_files,
            counters: Counters::default(),
            rounds: Mutex::new(rounds),
            commit_lock: Mutex::new(()),
            start: Instant::now(),
            changed: watch::Sender::new(0),
            stopping: AtomicBool::new(false),
            uploads: Mutex::default(),
            brake: Mutex::default(),
            served: Mutex::default(),
        }
    }

    /// Milliseconds since the server started.
    pub(super) fn now(&self) -> Millis {
        self.start.elapsed().into()
    }

    /// Locks the round state. The lock must not be held while waiting for the disk or across an await.
    pub(super) fn rounds(&self) -> MutexGuard<'_, RoundState> {
        lock(&self.rounds)
    }

    /// Subscribes to changes of the round state.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Wakes all subscribers of [`Self::watch`].
    pub(super) fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Begins the shutdown and wakes all waiting requests.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// True while the server shuts down.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Brake on wrong tokens.
    pub(super) fn brake(&self) -> MutexGuard<'_, TokenBrake> {
        lock(&self.brake)
    }

    /// Registers an upload of a client; `None` if the client already has [`UPLOADS_MAX`] uploads.
    pub(super) fn begin_upload(self: &Arc<Self>, client: ClientIndex) -> Option<UploadPermit> {
        let mut uploads = lock(&self.uploads);
        let count = uploads.entry(client).or_insert(0);
        (*count < UPLOADS_MAX).then(|| {
            *count += 1;
            UploadPermit(Arc::clone(self), client)
        })
    }

    /// Records that a client has requested the final adapter. No effect before all rounds are committed.
    pub(super) fn mark_served(&self, client: ClientIndex) {
        if self.is_finished() {
            lock(&self.served).insert(client);
            self.notify();
        }
    }

    /// True once all rounds are committed.
    pub(super) fn is_finished(&self) -> bool {
        let rounds = self.rounds();
        rounds.committed() >= rounds.rules().rounds
    }

    /// True once every client has requested the final adapter.
    pub(super) fn all_served(&self) -> bool {
        lock(&self.served).len() == self.settings.registry.names().len()
    }

    /// Accepts an update if the round still admits it. The merged adapter must be validated and synced; `written` is the
    /// state of SHA-256 after its bytes. Blocks on the disk.
    ///
    /// # Errors
    /// [`ServerError::Io`]; the update is not accepted in that case.
    pub(super) fn accept(
        &self,
        client: ClientIndex,
        round: u32,
        update: UpdateSummary,
        merged: &std::path::Path,
        written: Sha256,
    ) -> Result<Admission, ServerError> {
        // Hashing takes time, so it is done before the lock is taken.
        let name = self.store.seal(round, self.settings.registry.name(client), update, merged, written)?;
        // No round closes while this lock is held; other requests are not blocked.
        let _guard = lock(&self.commit_lock);
        let admission = self.rounds().admit(client, round, Some(&update));
        if let Admission::Accepted(_) = admission {
            self.store.accept(round, &name, merged)?;
            self.rounds().accept(client, update);
            self.notify();
        }
        Ok(admission)
    }

    /// Closes the open round if it is due. Blocks on the disk while an update is being accepted.
    pub(super) fn close(&self) -> Option<super::OpenRound> {
        let _guard = lock(&self.commit_lock);
        let now = self.now();
        self.rounds().close(now)
    }

    /// Averages a closed round, commits the mean and opens the next round. If updates are damaged, the closed round
    /// opens again without them. Blocks on the disk.
    ///
    /// # Errors
    /// Same as [`RoundStore::commit`].
    pub(super) fn commit(&self, open: &super::OpenRound, threads: usize) -> Result<(), ServerError> {
        let (names, by_samples) = (self.settings.registry.names(), self.settings.by_samples);
        let samples_max = self.settings.limits.samples;
        let options = AverageOptions { names, by_samples, samples_max, threads, open_files: self.mean_files };
        match self.store.commit(open, options, &|| !self.is_stopping())? {
            Commit::Done(record) => {
                // Logged before the commit becomes visible, so that the log contains the line even if the server is
                // stopped right after the commit.
                log_round(&record);
                self.rounds().commit(self.now());
            }
            Commit::Damaged(clients) => {
                self.counters.add("damaged", clients.len() as u64);
                self.rounds().reopen(self.now(), &clients);
            }
        }
        self.notify();
        Ok(())
    }
}

/// Logs a committed round.
fn log_round(record: &RoundRecord) {
    let RoundRecord { round, trained, clients, interference, .. } = record;
    let samples: u64 = clients.values().map(|(samples, _)| u64::from(*samples)).sum();
    let interference =
        interference.map_or_else(|| "not computed".to_owned(), |interference| format!("{interference:.3e}"));
    let without_weight = clients.values().filter(|(samples, _)| *samples == 0).count();
    let updates = clients.len();
    tracing::info!(round, %trained, updates, without_weight, samples, %interference, "round committed");
    if without_weight == updates {
        tracing::warn!(round, "no update has samples: the adapter stays as it was");
    }
}

/// Locks a mutex even if it is poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
