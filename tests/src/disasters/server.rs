//! The server: the real coordinator, gate, keys and connections, and a loop around them that has no sockets and no clock of its
//! own. As the real one does, it hears what has come, makes it durable, and only then does what follows from it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fedspan_aggregator::admission::Requirements;
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::connection::{Connection, Gate};
use fedspan_aggregator::coordinator::{Campaign, Coordinator, ResumeError};
use fedspan_aggregator::engine::{Action, DeviceId, Phase};
use fedspan_aggregator::keys::{Cost, KeyStore, Unlock};
use fedspan_client::secure::Key;
use fedspan_protocol::message::Welcome;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use zeroize::Zeroizing;

use super::Millis;
use super::history::Violation;
use super::running::{LinkKey, Out, Peer, Running};
use super::storage::Disk;

/// A server that is switched on and off.
#[derive(Debug)]
pub struct Server {
    fleet: Fleet,
    requirements: Requirements,
    pub disk: Disk,
    secrets: Option<Secrets>,
    is_line: bool,
    boots: u64,
    seed: u64,
    running: Option<Running>,
}

/// The keys of its fleet, in a file.
#[derive(Debug)]
struct Secrets {
    path: PathBuf,
    /// Open while it runs.
    store: Option<KeyStore>,
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
        let engine = fleet.engine();
        let requirements = Requirements::new(fleet.model(), &engine.requests(), None);
        let secrets = match keys {
            Some(path) => {
                let random = ChaCha20Rng::seed_from_u64(seed);
                let mut store = KeyStore::create(&path, &unlock(), Cost::RECOMMENDED, random)
                    .map_err(|error| error.to_string())?;
                let devices: Vec<DeviceId> = (0..fleet.expected as u64).collect();
                store.add(&devices, false, 0).map_err(|error| error.to_string())?;
                Some(Secrets { path, store: Some(store) })
            }
            None => None,
        };
        Ok(Self { fleet, requirements, disk, secrets, is_line, boots: 0, seed, running: None })
    }

    /// A device's key.
    pub fn key(&self, device: DeviceId) -> Option<Key> {
        let store = self.secrets.as_ref()?.store.as_ref()?;
        store.keys().lookup(device, 0).map(|accepted| accepted.key().clone())
    }

    /// Whether it runs.
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Where its campaign is.
    pub fn phase(&self) -> Option<Phase> {
        self.running.as_ref().map(|running| running.coordinator.engine().phase())
    }

    /// The coordinator.
    pub fn coordinator(&self) -> Option<&Coordinator> {
        self.running.as_ref().map(|running| &running.coordinator)
    }

    /// It starts. False if it cannot, which may pass.
    pub fn boot(&mut self, now: Millis, lines: usize) -> Result<bool, Violation> {
        self.boots += 1;
        let campaign = Campaign {
            configuration: self.fleet.fingerprint(),
            number: 7,
            expected: self.fleet.expected,
            journal: Some(0),
        };
        let wrong = |what: String| Violation::new(format!("the server cannot start: {what}"));
        let store = match self.disk.try_store() {
            Ok(store) => store,
            Err(error) if error.may_pass() => return Ok(false),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let (coordinator, clock) = match Coordinator::new(self.fleet.engine(), store, &campaign) {
            Ok(begun) => begun,
            Err(ResumeError::Store(error)) if error.may_pass() => return Ok(false),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let idle_milliseconds = u32::try_from(self.fleet.limits.idle.as_millis()).unwrap_or(u32::MAX);
        let welcome = Welcome { campaign: coordinator.campaign(), idle_milliseconds };
        let random = ChaCha20Rng::seed_from_u64(self.seed ^ self.boots << 40);
        let requirements = self.requirements.clone();
        let gate = match &mut self.secrets {
            None => Gate::plaintext(requirements, welcome),
            Some(Secrets { path, store }) => {
                let opened = match store.take() {
                    Some(store) => store,
                    None => KeyStore::open(path, &unlock(), ChaCha20Rng::seed_from_u64(self.boots))
                        .map_err(|error| wrong(error.to_string()))?,
                };
                let keys = opened.keys();
                *store = Some(opened);
                Gate::encrypted(requirements, welcome, keys, Box::new(random))
            }
        };
        let gate = Arc::new(gate);
        let line = |number| ((number, 0), Peer::new(Connection::lasting(Arc::clone(&gate)), now));
        let peers = if self.is_line { (0..lines).map(line).collect() } else { BTreeMap::new() };
        let ahead = i64::try_from(clock).unwrap_or(i64::MAX) - i64::try_from(now).unwrap_or(i64::MAX);
        self.running = Some(Running {
            coordinator,
            gate,
            peers,
            current: BTreeMap::new(),
            ahead,
            inbox: Vec::new(),
            is_stalled: false,
            is_line: self.is_line,
        });
        Ok(true)
    }

    /// An operator looks after a round that has answers, and waits for more than there will ever be: the configuration asks for
    /// as many as have come. False if that is not what is wrong.
    pub fn ask_for_less(&mut self) -> bool {
        let open = self.coordinator().and_then(|coordinator| coordinator.engine().open_round());
        let Some((counted, least)) = open.map(|round| (round.participants.len(), round.least)) else {
            return false;
        };
        let asks = counted > 0 && counted < least;
        if asks {
            self.fleet.rounds.min_count = counted;
        }
        asks
    }

    /// Its power goes.
    pub fn crash(&mut self) {
        self.running = None;
        self.disk.cut();
        if let Some(secrets) = &mut self.secrets {
            secrets.store = None;
        }
    }

    /// Its clock jumps.
    pub fn jump(&mut self, by: Millis) {
        if let Some(running) = &mut self.running {
            running.ahead += i64::try_from(by).unwrap_or(0);
        }
    }

    /// A device's key counts no more.
    pub fn revoke(&mut self, device: DeviceId) -> Result<bool, Violation> {
        let Some(store) = self.secrets.as_mut().and_then(|secrets| secrets.store.as_mut()) else {
            return Ok(false);
        };
        store.revoke(&[device], 1).map_err(|error| Violation::new(error.to_string()))?;
        Ok(true)
    }

    /// A device has connected.
    pub fn connect(&mut self, now: Millis, link: LinkKey) -> bool {
        let Some(running) = &mut self.running else { return false };
        let connection = Connection::new(Arc::clone(&running.gate));
        running.peers.insert(link, Peer::new(connection, now));
        true
    }

    /// A link has ended.
    pub fn gone(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        if let Some(running) = &mut self.running {
            running.end(now, link, out);
        }
    }

    /// Bytes have come. False if there is no such link.
    pub fn hear(&mut self, now: Millis, link: LinkKey, bytes: Vec<u8>, out: &mut Vec<Out>) -> bool {
        let Some(running) = &mut self.running else { return false };
        if !running.peers.contains_key(&link) {
            return false;
        }
        if running.is_stalled {
            running.inbox.push((link, bytes));
        } else {
            running.listen(now, link, &bytes, out);
        }
        true
    }

    /// Makes durable what has happened, and does what follows.
    pub fn settle(&mut self, now: Millis, out: &mut Vec<Out>) -> Result<(), Violation> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let settled = match running.coordinator.settle() {
            Ok(settled) => settled,
            Err(error) if error.may_pass() => {
                running.is_stalled = true;
                return Ok(());
            }
            Err(error) => return Err(Violation::new(format!("the store: {error}"))),
        };
        let mut closed = false;
        for action in settled.actions {
            closed |= matches!(action, Action::Commit(_));
            running.act(action, out);
        }
        if closed && let Some(store) = self.secrets.as_mut().and_then(|secrets| secrets.store.as_mut()) {
            store.round_closed().map_err(|error| Violation::new(error.to_string()))?;
        }
        if std::mem::replace(&mut running.is_stalled, false) {
            for (link, bytes) in std::mem::take(&mut running.inbox) {
                running.listen(now, link, &bytes, out);
            }
        }
        running.flush(out);
        Ok(())
    }

    /// Whether what has happened waits for the disk.
    pub fn is_stalled(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_stalled)
    }

    /// When the engine wants to be woken.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        let running = self.running.as_ref()?;
        let wake = i64::try_from(running.coordinator.engine().wake()?).unwrap_or(i64::MAX);
        Some(u64::try_from(wake.saturating_sub(running.ahead)).unwrap_or(0).max(now))
    }

    /// Looks at what time has brought: the engine's deadlines, and links that are silent.
    pub fn check(&mut self, now: Millis, out: &mut Vec<Out>) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.is_stalled) {
            running.check(now, &self.fleet.limits, out);
        }
    }
}
