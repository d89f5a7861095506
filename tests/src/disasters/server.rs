//! The server: the real host with its coordinator, keys and conversations, switched on and off, over a disk that fails.

use std::path::PathBuf;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::core::{CoreError, ServerCore, Timeouts};
use fedspan_aggregator::durable_engine::{DurableEngine, ResumeError};
use fedspan_aggregator::journal::JournalEntry;
use fedspan_aggregator::keys::{Argon2Cost, Entropy, KeyStore, SharedKeyStore, Unlock};
use fedspan_client::secure::Key;
use fedspan_engine::{DeviceId, Phase};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use zeroize::Zeroizing;

use super::Millis;
use super::history::Violation;
use super::running::{LinkKey, Out, Running};
use super::storage::Disk;

/// The campaign's number.
const CAMPAIGN: u64 = 7;

/// A server that is switched on and off.
#[derive(Debug)]
pub struct Server {
    fleet: Fleet,
    pub disk: Disk,
    secrets: Option<Secrets>,
    is_line: bool,
    boots: u64,
    seed: u64,
    /// How often its disk had lost its power when it was switched on.
    life: u32,
    /// Lines of the journal that were read: they are durable.
    lines: u64,
    /// Lines of the journal that there were when it was switched on.
    before: u64,
    /// How often it had to wait for its disk, and whether it does.
    pub stalls: usize,
    is_stalled: bool,
    running: Option<Running>,
}

/// The keys of its fleet, in a file.
#[derive(Debug)]
struct Secrets {
    path: PathBuf,
    /// Open while it runs.
    desk: Option<SharedKeyStore>,
}

fn unlock() -> Unlock {
    Unlock::KeyFile(Zeroizing::new([9; 32]))
}

impl Server {
    /// One that has never run, with its devices' keys if there is a path for them.
    pub fn new(
        fleet: Fleet,
        disk: Disk,
        keys: Option<PathBuf>,
        is_line: bool,
        seed: u64,
    ) -> Result<Self, String> {
        let secrets = match keys {
            Some(path) => {
                let random = ChaCha20Rng::seed_from_u64(seed);
                let mut store = KeyStore::create(&path, &unlock(), Argon2Cost::RECOMMENDED, random)
                    .map_err(|error| error.to_string())?;
                let devices: Vec<DeviceId> = (0..fleet.expected as u64).collect();
                store.add(&devices, false, 0).map_err(|error| error.to_string())?;
                Some(Secrets { path, desk: Some(SharedKeyStore::new(store)) })
            }
            None => None,
        };
        Ok(Self {
            fleet,
            disk,
            secrets,
            is_line,
            boots: 0,
            seed,
            life: 0,
            lines: 0,
            before: 0,
            stalls: 0,
            is_stalled: false,
            running: None,
        })
    }

    /// A device's key.
    pub fn key(&self, device: DeviceId) -> Option<Key> {
        let desk = self.secrets.as_ref()?.desk.as_ref()?;
        desk.keys().lookup(device, 0).map(|accepted| accepted.key().clone())
    }

    /// Whether it runs.
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// How often it has been switched on.
    pub fn life(&self) -> u64 {
        self.boots
    }

    /// It waits for its disk.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Where its campaign is.
    pub fn phase(&self) -> Option<Phase> {
        self.coordinator().map(|coordinator| coordinator.engine().phase())
    }

    /// The coordinator.
    pub fn coordinator(&self) -> Option<&DurableEngine> {
        self.running.as_ref().map(|running| running.host.durable())
    }

    /// Its power has gone in the middle of what it did: nothing of that has left it.
    pub fn is_cut(&self) -> bool {
        self.life != self.disk.cuts()
    }

    /// It starts. False if it cannot, which may pass; [its power may go](Self::is_cut) meanwhile.
    pub fn boot(&mut self, now: Millis, devices: usize, out: &mut Vec<Out>) -> Result<bool, Violation> {
        let started = self.start(now, devices, out);
        if self.is_cut() { Ok(true) } else { started }
    }

    fn start(&mut self, now: Millis, devices: usize, out: &mut Vec<Out>) -> Result<bool, Violation> {
        self.boots += 1;
        let wrong = |what: String| Violation::new(format!("the server cannot start: {what}"));
        let store = match self.disk.try_store() {
            Ok(store) => store,
            Err(error) if error.may_pass() => return Ok(false),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let keys = match &mut self.secrets {
            None => None,
            Some(Secrets { path, desk }) => {
                let desk = match desk {
                    Some(desk) => desk.clone(),
                    None => {
                        let store = KeyStore::open(path, &unlock(), ChaCha20Rng::seed_from_u64(self.boots))
                            .map_err(|error| wrong(error.to_string()))?;
                        desk.insert(SharedKeyStore::new(store)).clone()
                    }
                };
                let random = ChaCha20Rng::seed_from_u64(self.seed ^ self.boots << 40);
                Some((desk, Box::new(random) as Box<dyn Entropy>))
            }
        };
        let host = match ServerCore::new(&self.fleet, store, CAMPAIGN, keys, None) {
            Ok(host) => host,
            Err(CoreError::Resume(ResumeError::Store(error))) if error.may_pass() => return Ok(false),
            Err(error) => return Err(wrong(error.to_string())),
        };
        // It has one more already, which says that it is here.
        if host.durable().lines() <= self.lines {
            return Err(self.forgot(host.durable().lines()));
        }
        self.before = host.durable().lines();
        let patience = Timeouts::from(&self.fleet.limits);
        let lines = self.is_line.then_some(devices);
        self.running = Some(Running::new(host, patience, now, lines, out));
        self.follow(out)?;
        Ok(true)
    }

    fn forgot(&self, now: u64) -> Violation {
        Violation::new(format!("the journal has {now} lines, and had {}", self.lines))
    }

    /// Its power goes, if it has not already.
    pub fn crash(&mut self) {
        if !self.is_cut() {
            self.disk.cut();
        }
        self.life = self.disk.cuts();
        self.is_stalled = false;
        // Only now: what ends in order writes what it has not written.
        self.running = None;
        if let Some(secrets) = &mut self.secrets {
            secrets.desk = None;
        }
    }

    /// Its clock jumps.
    pub fn jump(&mut self, now: Millis, by: Millis, out: &mut Vec<Out>) {
        if let Some(running) = &mut self.running {
            running.jump(now, by, out);
        }
    }

    /// A device's key counts no more.
    pub fn revoke(&mut self, device: DeviceId) -> Result<bool, Violation> {
        let Some(desk) = self.secrets.as_ref().and_then(|secrets| secrets.desk.as_ref()) else {
            return Ok(false);
        };
        let answer = desk.answer(&format!("{{\"revoke\":[[{device},{device}]]}}"), 1);
        if answer.contains("\"changed\"") {
            return Ok(true);
        }
        Err(Violation::new(format!("the key of device {device} was not revoked: {}", answer.trim_end())))
    }

    /// A device has connected.
    pub fn connect(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) -> bool {
        let Some(running) = &mut self.running else { return false };
        running.connect(now, link, out);
        true
    }

    /// A link has ended.
    pub fn gone(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        if let Some(running) = &mut self.running {
            running.gone(now, link, out);
        }
    }

    /// Bytes have come. False if there is no such link.
    pub fn hear(&mut self, now: Millis, link: LinkKey, bytes: &[u8], out: &mut Vec<Out>) -> bool {
        self.running.as_mut().is_some_and(|running| running.hear(now, link, bytes, out))
    }

    /// Something may be due on a link.
    pub fn elapse(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        if let Some(running) = &mut self.running {
            running.elapse(now, link, out);
        }
    }

    /// A conversation comes to what the host wants.
    pub fn obey(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        if let Some(running) = &mut self.running {
            running.obey(now, link, out);
        }
    }

    /// The host's turn.
    pub fn turn(&mut self, now: Millis, out: &mut Vec<Out>) -> Result<(), Violation> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let turned = running.turn(now, out);
        let is_stalled = running.host.is_stalled();
        if self.is_cut() {
            return Ok(());
        }
        turned.map_err(|error| Violation::new(format!("the server stopped: {error}")))?;
        let was_stalled = std::mem::replace(&mut self.is_stalled, is_stalled);
        self.stalls += usize::from(self.is_stalled && !was_stalled);
        self.follow(out)
    }

    /// Reads what has become durable, unless something waits for the disk.
    fn follow(&mut self, out: &mut Vec<Out>) -> Result<(), Violation> {
        let Some(running) = self.running.as_mut().filter(|running| !running.host.is_stalled()) else {
            return Ok(());
        };
        let coordinator = running.host.durable();
        let lines = match coordinator.lines().checked_sub(self.lines) {
            None => {
                let now = coordinator.lines();
                return Err(self.forgot(now));
            }
            Some(0) => Vec::new(),
            Some(_) => {
                coordinator.store().journal(self.lines).map_err(|error| Violation::new(error.to_string()))?
            }
        };
        for (number, text) in (self.lines..).zip(&lines) {
            let line: JournalEntry =
                serde_json::from_str(text).map_err(|error| Violation::new(format!("{text}: {error}")))?;
            if number >= self.before {
                running.tally.reads(&line);
            }
            if let JournalEntry::Committed(committed) = line {
                out.push(Out::Committed(committed));
            }
        }
        self.lines += lines.len() as u64;
        running.tally.check(&running.host)
    }

    /// Whether there is something that the host would listen to.
    pub fn has_mail(&self) -> bool {
        self.running.as_ref().is_some_and(Running::has_mail)
    }

    /// Somebody exports everything that it keeps: as a server that runs reads it.
    pub fn read_all(&self) -> Result<(), Violation> {
        let Some(running) = self.running.as_ref().filter(|_| !self.is_stalled) else { return Ok(()) };
        let past = running.host.read_snapshot().and_then(|past| {
            past.rounds(|_| true)?;
            past.journal(|_| true)
        });
        past.map_err(|error| Violation::new(error.to_string()))
    }

    /// When the host wants to be woken.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        self.running.as_ref()?.wake(now)
    }
}
