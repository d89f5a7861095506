//! What all connections share: the course of rounds, the shelf of files, and what moves when either does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::counters::Tally;
use super::round_state::{Client, Counted, Course, Verdict};
use super::round_store::{Making, Record, Shelf};
use super::{ExchangeError, Settings};
use fedspan_engine::Millis;

/// A client may send one update while the server still waits for the rest of another one that was cut off.
const UPLOADS_MAX: u32 = 2;

/// All of it.
pub struct Desk {
    pub(super) settings: Settings,
    pub(super) shelf: Shelf,
    /// Longest body.
    pub(super) most: u64,
    pub(super) tally: Tally,
    course: Mutex<Course>,
    /// Held while an update is being counted and while a round is closed, where the disk may be waited for.
    counting: Mutex<()>,
    start: Instant,
    /// Counts up whenever a round moves.
    moved: watch::Sender<u64>,
    /// The server ends: who waits for a round is told what there is.
    ended: AtomicBool,
    /// Clients that send, and how many updates at a time.
    sending: Mutex<BTreeMap<Client, u32>>,
    /// Who has asked for the final adapter.
    served: Mutex<BTreeSet<Client>>,
}

/// As long as it lives, a client is sending.
pub struct Sending(Arc<Desk>, Client);

impl Drop for Sending {
    fn drop(&mut self) {
        let mut sending = locked(&self.0.sending);
        if let Some(count) = sending.get_mut(&self.1) {
            *count = count.saturating_sub(1);
        }
    }
}

impl Desk {
    pub(super) fn new(settings: Settings, shelf: Shelf, most: u64, course: Course) -> Self {
        Self {
            settings,
            shelf,
            most,
            tally: Tally::default(),
            course: Mutex::new(course),
            counting: Mutex::new(()),
            start: Instant::now(),
            moved: watch::Sender::new(0),
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
    pub(super) fn course(&self) -> MutexGuard<'_, Course> {
        locked(&self.course)
    }

    /// Is told when a round moves.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    pub(super) fn moves(&self) {
        self.moved.send_modify(|count| *count += 1);
    }

    /// Ends what waits.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.moves();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// A client begins to send, unless it does so too often at a time.
    pub(super) fn sending(self: &Arc<Self>, client: Client) -> Option<Sending> {
        let mut sending = locked(&self.sending);
        let count = sending.entry(client).or_insert(0);
        (*count < UPLOADS_MAX).then(|| {
            *count += 1;
            Sending(Arc::clone(self), client)
        })
    }

    /// A client has asked for the adapter.
    pub(super) fn serves(&self, client: Client) {
        if self.is_finished() {
            locked(&self.served).insert(client);
            self.moves();
        }
    }

    /// Whether all rounds are committed.
    pub(super) fn is_finished(&self) -> bool {
        let course = self.course();
        course.done() >= course.rules().rounds
    }

    /// Whether every client has asked for the final adapter.
    pub(super) fn all_served(&self) -> bool {
        locked(&self.served).len() == self.settings.roster.names().len()
    }

    /// Counts an update whose whole adapter is checked and durable, if it is still welcome. Waits for the disk.
    ///
    /// # Errors
    /// What the system says; it does not count then.
    pub(super) fn count(
        &self,
        client: Client,
        round: u32,
        update: Counted,
        whole: &std::path::Path,
    ) -> Result<Verdict, ExchangeError> {
        // No round is closed meanwhile; everybody else goes on.
        let _counting = locked(&self.counting);
        let verdict = self.course().judge(client, round, Some(&update));
        if let Verdict::Welcome(_) = verdict {
            self.shelf.count(round, self.settings.roster.name(client), &update, whole)?;
            self.course().count(client, update);
            self.moves();
        }
        Ok(verdict)
    }

    /// Closes the round if it is time; the same again where its mean could not be made. Waits for the disk.
    pub(super) fn close(&self) -> Option<super::Open> {
        let _counting = locked(&self.counting);
        let now = self.now();
        self.course().close(now)
    }

    /// Makes the mean of a closed round. Waits for the disk.
    ///
    /// # Errors
    /// As [`Shelf::commit`].
    pub(super) fn commit(&self, open: &super::Open, threads: usize) -> Result<(), ExchangeError> {
        let (names, by_samples) = (self.settings.roster.names(), self.settings.by_samples);
        let record = self.shelf.commit(open, Making { names, by_samples, threads }, &|| !self.has_ended())?;
        // Before anybody can see it: who ends the server then has the line.
        tell(&record);
        self.course().commit(self.now());
        self.moves();
        Ok(())
    }
}

fn tell(record: &Record) {
    let Record { round, trained, clients, interference, .. } = record;
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
