//! Simulated server that can be switched on and off: the real server core with its coordinator, keys and peer
//! sessions, over a failing disk.

use std::path::PathBuf;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::core::{CoreError, ServerCore, Timeouts};
use fedspan_aggregator::durable_engine::{DurableEngine, ResumeError};
use fedspan_aggregator::journal::JournalEntry;
use fedspan_aggregator::keys::{Argon2Cost, Entropy, KeyStore, SharedKeyStore, Unlock};
use fedspan_client::secure::Key;
use fedspan_engine::{DeviceId, Millis, Phase};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use zeroize::Zeroizing;

use super::server_tasks::{LinkKey, ServerOutput, ServerTasks};
use super::storage::Disk;
use super::violation::Violation;

/// Id of the campaign.
const CAMPAIGN: u64 = 7;

/// A server that can be switched on and off.
#[derive(Debug)]
pub struct Server {
    fleet: Fleet,
    pub disk: Disk,
    key_file: Option<KeyFile>,
    is_serial: bool,
    boots: u64,
    seed: u64,
    /// Number of power cuts of the disk when the server last booted or was switched off.
    disk_cuts_at_boot: u32,
    /// Number of journal entries read so far; all of them are durable.
    entries_read: u64,
    /// Number of journal entries at the last boot.
    entries_at_boot: u64,
    /// Number of write stalls.
    pub stalls: usize,
    is_stalled: bool,
    running: Option<ServerTasks>,
}

/// Key store of the fleet, on a real disk.
#[derive(Debug)]
struct KeyFile {
    path: PathBuf,
    /// Open store while the server runs; `None` after a power cut.
    key_store: Option<SharedKeyStore>,
}

fn unlock() -> Unlock {
    Unlock::KeyFile(Zeroizing::new([9; 32]))
}

impl Server {
    /// Creates a server that has never run. With a path, creates keys for all devices there.
    pub fn new(
        fleet: Fleet,
        disk: Disk,
        keys: Option<PathBuf>,
        is_serial: bool,
        seed: u64,
    ) -> Result<Self, String> {
        let key_file = match keys {
            Some(path) => {
                let random = ChaCha20Rng::seed_from_u64(seed);
                let mut store = KeyStore::create(&path, &unlock(), Argon2Cost::RECOMMENDED, random)
                    .map_err(|error| error.to_string())?;
                let devices: Vec<DeviceId> = (0..fleet.expected as u64).map(DeviceId).collect();
                store.add(&devices, false, 0).map_err(|error| error.to_string())?;
                Some(KeyFile { path, key_store: Some(SharedKeyStore::new(store)) })
            }
            None => None,
        };
        Ok(Self {
            fleet,
            disk,
            key_file,
            is_serial,
            boots: 0,
            seed,
            disk_cuts_at_boot: 0,
            entries_read: 0,
            entries_at_boot: 0,
            stalls: 0,
            is_stalled: false,
            running: None,
        })
    }

    /// Returns the key of a device.
    pub fn key(&self, device: DeviceId) -> Option<Key> {
        let key_store = self.key_file.as_ref()?.key_store.as_ref()?;
        key_store.keys().lookup(device, 0).map(|accepted| accepted.key().clone())
    }

    /// Returns true while the server runs.
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the number of boots.
    pub fn boots(&self) -> u64 {
        self.boots
    }

    /// Returns true during a write stall.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Returns the phase of the campaign.
    pub fn phase(&self) -> Option<Phase> {
        self.coordinator().map(|coordinator| coordinator.engine().phase())
    }

    /// Returns the coordinator of the running server.
    pub fn coordinator(&self) -> Option<&DurableEngine> {
        self.running.as_ref().map(|running| running.host.durable())
    }

    /// Returns true if the power failed during the current operation. In this case none of its output may
    /// leave the server.
    pub fn is_cut(&self) -> bool {
        self.disk_cuts_at_boot != self.disk.cuts()
    }

    /// Starts the server. Returns false after a disk error that may be temporary. The power may fail during
    /// the boot, see [`Self::is_cut`].
    pub fn boot(
        &mut self,
        now: Millis,
        devices: usize,
        out: &mut Vec<ServerOutput>,
    ) -> Result<bool, Violation> {
        let started = self.start_core(now, devices, out);
        if self.is_cut() { Ok(true) } else { started }
    }

    /// Opens store and keys and starts the server core; errors after a power cut have no meaning.
    fn start_core(
        &mut self,
        now: Millis,
        devices: usize,
        out: &mut Vec<ServerOutput>,
    ) -> Result<bool, Violation> {
        self.boots += 1;
        let violation = |problem: String| Violation::new(format!("the server cannot start: {problem}"));
        let store = match self.disk.try_store() {
            Ok(store) => store,
            Err(error) if error.may_pass() => return Ok(false),
            Err(error) => return Err(violation(error.to_string())),
        };
        let keys = match &mut self.key_file {
            None => None,
            Some(KeyFile { path, key_store }) => {
                let key_store = match key_store {
                    Some(key_store) => key_store.clone(),
                    None => {
                        let store = KeyStore::open(path, &unlock(), ChaCha20Rng::seed_from_u64(self.boots))
                            .map_err(|error| violation(error.to_string()))?;
                        key_store.insert(SharedKeyStore::new(store)).clone()
                    }
                };
                let random = ChaCha20Rng::seed_from_u64(self.seed ^ self.boots << 40);
                Some((key_store, Box::new(random) as Box<dyn Entropy>))
            }
        };
        let host = match ServerCore::new(&self.fleet, store, CAMPAIGN, keys, None) {
            Ok(host) => host,
            Err(CoreError::Resume(ResumeError::Store(error))) if error.may_pass() => return Ok(false),
            Err(error) => return Err(violation(error.to_string())),
        };
        // Each boot appends one entry.
        if host.durable().lines() <= self.entries_read {
            return Err(self.journal_shrank(host.durable().lines()));
        }
        self.entries_at_boot = host.durable().lines();
        let timeouts = Timeouts::from(&self.fleet.limits);
        let lines = self.is_serial.then_some(devices);
        self.running = Some(ServerTasks::new(host, timeouts, now, lines, out));
        self.read_journal(out)?;
        Ok(true)
    }

    fn journal_shrank(&self, entries: u64) -> Violation {
        Violation::new(format!(
            "the journal has {entries} entries, fewer than the {} read before",
            self.entries_read
        ))
    }

    /// Cuts the power, unless it has just failed.
    pub fn crash(&mut self) {
        if !self.is_cut() {
            self.disk.cut();
        }
        self.disk_cuts_at_boot = self.disk.cuts();
        self.is_stalled = false;
        // The server is dropped only after the cut, because an orderly end would still write.
        self.running = None;
        if let Some(key_file) = &mut self.key_file {
            key_file.key_store = None;
        }
    }

    /// Moves the server's clock forward.
    pub fn jump_clock(&mut self, now: Millis, by: Millis, out: &mut Vec<ServerOutput>) {
        if let Some(running) = &mut self.running {
            running.jump_clock(now, by, out);
        }
    }

    /// Revokes a device's key. Returns false if the key store is not open.
    pub fn revoke(&mut self, device: DeviceId) -> Result<bool, Violation> {
        let Some(key_store) = self.key_file.as_ref().and_then(|key_file| key_file.key_store.as_ref()) else {
            return Ok(false);
        };
        let answer = key_store.answer(&format!("{{\"revoke\":[[{device},{device}]]}}"), 1);
        if answer.contains("\"changed\"") {
            return Ok(true);
        }
        Err(Violation::new(format!("the key of device {device} was not revoked: {}", answer.trim_end())))
    }

    /// Reports a new connection. Returns false if the server does not run.
    pub fn connect(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) -> bool {
        let Some(running) = &mut self.running else { return false };
        running.connect(now, link, out);
        true
    }

    /// Reports that a link was closed.
    pub fn link_closed(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        if let Some(running) = &mut self.running {
            running.link_closed(now, link, out);
        }
    }

    /// Delivers bytes to a link. Returns false if there is no such link.
    pub fn receive(&mut self, now: Millis, link: LinkKey, bytes: &[u8], out: &mut Vec<ServerOutput>) -> bool {
        self.running.as_mut().is_some_and(|running| running.receive(now, link, bytes, out))
    }

    /// Checks the deadlines of a link.
    pub fn check_deadlines(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        if let Some(running) = &mut self.running {
            running.check_deadlines(now, link, out);
        }
    }

    /// Handles the commands of a peer session.
    pub fn run_commands(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        if let Some(running) = &mut self.running {
            running.run_commands(now, link, out);
        }
    }

    /// Runs the server core once.
    pub fn run_core(&mut self, now: Millis, out: &mut Vec<ServerOutput>) -> Result<(), Violation> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let result = running.run_core(now, out);
        let is_stalled = running.host.is_stalled();
        if self.is_cut() {
            return Ok(());
        }
        result.map_err(|error| Violation::new(format!("the server stopped: {error}")))?;
        let was_stalled = std::mem::replace(&mut self.is_stalled, is_stalled);
        self.stalls += usize::from(self.is_stalled && !was_stalled);
        self.read_journal(out)
    }

    /// Reads the new journal entries and checks the counters, unless the server waits for its disk.
    fn read_journal(&mut self, out: &mut Vec<ServerOutput>) -> Result<(), Violation> {
        let Some(running) = self.running.as_mut().filter(|running| !running.host.is_stalled()) else {
            return Ok(());
        };
        let coordinator = running.host.durable();
        let lines = match coordinator.lines().checked_sub(self.entries_read) {
            None => {
                let entries = coordinator.lines();
                return Err(self.journal_shrank(entries));
            }
            Some(0) => Vec::new(),
            Some(_) => coordinator
                .store()
                .journal(self.entries_read)
                .map_err(|error| Violation::new(error.to_string()))?,
        };
        for (number, text) in (self.entries_read..).zip(&lines) {
            let line: JournalEntry =
                serde_json::from_str(text).map_err(|error| Violation::new(format!("{text}: {error}")))?;
            if number >= self.entries_at_boot {
                running.shadow.count_entry(&line);
            }
            if let JournalEntry::Committed(committed) = line {
                out.push(ServerOutput::Committed(committed));
            }
        }
        self.entries_read += lines.len() as u64;
        running.shadow.check(&running.host)
    }

    /// Returns true if messages wait for the server core.
    pub fn has_messages(&self) -> bool {
        self.running.as_ref().is_some_and(ServerTasks::has_messages)
    }

    /// Reads all rounds and journal entries, as an export of the running server does.
    pub fn read_everything(&self) -> Result<(), Violation> {
        let Some(running) = self.running.as_ref().filter(|_| !self.is_stalled) else { return Ok(()) };
        let result = running.host.read_snapshot().and_then(|snapshot| {
            snapshot.rounds(|_| true)?;
            snapshot.journal(|_| true)
        });
        result.map_err(|error| Violation::new(error.to_string()))
    }

    /// Returns the world time at which the server core must run next.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        self.running.as_ref()?.wake(now)
    }
}
