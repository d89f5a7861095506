//! The server: the real coordinator, gate, keys and connections, and a loop around them that has no sockets and no clock of its
//! own. As the real one does, it hears what has come, makes it durable, and only then does what follows from it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fedspan_aggregator::admission::Requirements;
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::connection::{Connection, Gate, Inbound};
use fedspan_aggregator::coordinator::{Campaign, Coordinator, ResumeError};
use fedspan_aggregator::engine::{Action, DeviceId, Event, Failure, Opening, Phase, RoundRecord, Update};
use fedspan_aggregator::keys::{Cost, KeyStore, Unlock};
use fedspan_client::secure::Key;
use fedspan_protocol::message::{Ack, Privacy, ToDevice, Welcome};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use zeroize::Zeroizing;

use super::Millis;
use super::history::Violation;
use super::storage::Disk;

/// The device at the other end, and which of its links this is.
pub type LinkKey = (usize, u64);

/// Silence within an update in chunks after which the missing ones are asked for.
const ASK_AGAIN: Millis = 1_000;

/// What the server wants to be done, in this order.
#[derive(Debug)]
pub enum Out {
    /// Bytes for a link.
    Bytes(LinkKey, Vec<u8>),
    /// A link that it closes.
    Closed(LinkKey),
    /// A device is asked.
    Opened(Arc<Opening>),
    /// A device's update has come.
    Heard(DeviceId, Box<Update>),
    /// A device is told what became of its update.
    Told(DeviceId, Ack),
    /// A round is over.
    Committed(Box<RoundRecord>),
    /// The campaign has failed.
    Failed(Failure),
}

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

struct Running {
    coordinator: Coordinator,
    gate: Arc<Gate>,
    peers: BTreeMap<LinkKey, Peer>,
    /// The newest link of each device.
    current: BTreeMap<DeviceId, LinkKey>,
    /// The campaign's clock is that of the world, and this.
    ahead: i64,
    /// What has come while nothing could be written.
    inbox: Vec<(LinkKey, Vec<u8>)>,
    is_stalled: bool,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

#[derive(Debug)]
struct Peer {
    connection: Connection,
    device: Option<DeviceId>,
    began: Millis,
    heard: Millis,
    accepted: u32,
    chunks: u32,
    /// Since when a frame, or an update in chunks, has been unfinished, and when its chunks were last asked for.
    unfinished: Option<Millis>,
    asked: Option<Millis>,
    unanswered: Option<(Millis, u64)>,
}

impl Peer {
    fn new(connection: Connection, now: Millis) -> Self {
        Self {
            connection,
            device: None,
            began: now,
            heard: now,
            accepted: 0,
            chunks: 0,
            unfinished: None,
            asked: None,
            unanswered: None,
        }
    }
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
        let is_line = self.is_line;
        if let Some(running) = &mut self.running {
            running.end(now, link, is_line, out);
        }
    }

    /// Bytes have come. False if there is no such link.
    pub fn hear(&mut self, now: Millis, link: LinkKey, bytes: Vec<u8>, out: &mut Vec<Out>) -> bool {
        let is_line = self.is_line;
        let Some(running) = &mut self.running else { return false };
        if !running.peers.contains_key(&link) {
            return false;
        }
        if running.is_stalled {
            running.inbox.push((link, bytes));
        } else {
            running.listen(now, link, &bytes, is_line, out);
        }
        true
    }

    /// Makes durable what has happened, and does what follows.
    pub fn settle(&mut self, now: Millis, out: &mut Vec<Out>) -> Result<(), Violation> {
        let is_line = self.is_line;
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
                running.listen(now, link, &bytes, is_line, out);
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
        let (is_line, limits) = (self.is_line, self.fleet.limits);
        let Some(running) = self.running.as_mut().filter(|running| !running.is_stalled) else { return };
        let own = running.own(now);
        if running.coordinator.engine().wake().is_some_and(|wake| wake <= own) {
            running.coordinator.handle(own, Event::Tick);
        }
        let milliseconds =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (hello, idle) = (milliseconds(limits.hello), milliseconds(limits.idle));
        let (frame, repeat) = (milliseconds(limits.frame), milliseconds(limits.repeat));
        let mut ended = Vec::new();
        for (link, peer) in &mut running.peers {
            let silent = match peer.device {
                None if is_line => false,
                None => now >= peer.began + hello,
                Some(_) => now >= peer.heard + idle,
            };
            let slow = peer.unfinished.is_some_and(|since| now >= since + frame);
            if peer.connection.is_revoked() || silent || slow {
                ended.push(*link);
                continue;
            }
            let asked = peer.connection.unanswered();
            let since = peer.unanswered.filter(|(_, before)| asked == Some(*before));
            peer.unanswered = asked.map(|asked| since.unwrap_or((now, asked)));
            if since.is_some_and(|(since, _)| now >= since + repeat) {
                peer.unanswered = None;
                peer.connection.open_again();
            }
            if let Some(since) = peer.unfinished.filter(|_| peer.connection.is_mid_update())
                && now >= peer.asked.unwrap_or(since) + ASK_AGAIN
            {
                peer.asked = Some(now);
                peer.connection.ask_missing();
            }
        }
        for link in ended {
            running.end(now, link, is_line, out);
        }
        running.flush(out);
    }
}

impl Running {
    fn own(&self, now: Millis) -> Millis {
        u64::try_from(i64::try_from(now).unwrap_or(i64::MAX) + self.ahead).unwrap_or(0)
    }

    fn listen(&mut self, now: Millis, link: LinkKey, bytes: &[u8], is_line: bool, out: &mut Vec<Out>) {
        let mut said = Vec::new();
        let Some(peer) = self.peers.get_mut(&link) else { return };
        peer.connection.receive(bytes, &mut said);
        let accepted = peer.connection.traffic().frames.accepted;
        let progress = std::mem::replace(&mut peer.accepted, accepted) != accepted;
        if progress {
            peer.heard = now;
        }
        let mid_update = peer.connection.is_mid_update();
        let most = if mid_update { peer.chunks } else { 0 };
        peer.chunks = most.max(peer.connection.chunks());
        if !peer.connection.is_mid_message() {
            peer.unfinished = None;
        } else if peer.unfinished.is_none() || if mid_update { peer.chunks > most } else { progress } {
            peer.unfinished = Some(now);
            peer.asked = None;
        }
        for inbound in said {
            self.judge(now, link, inbound, is_line, out);
        }
        self.flush(out);
    }

    fn judge(&mut self, now: Millis, link: LinkKey, inbound: Inbound, is_line: bool, out: &mut Vec<Out>) {
        let own = self.own(now);
        let Some(peer) = self.peers.get_mut(&link) else { return };
        if peer.connection.key().is_some_and(|key| !key.is_accepted()) {
            return self.end(now, link, is_line, out);
        }
        let known = peer.device;
        let event = match (inbound, known) {
            (Inbound::Hello(hello), None) => {
                peer.device = Some(hello.device);
                let old = self.current.insert(hello.device, link).filter(|old| *old != link);
                if let Some(old) = old {
                    // The device is back before its old link was missed.
                    self.peers.remove(&old);
                    out.push(Out::Closed(old));
                }
                return self.join(own, hello.device, hello.capabilities.privacy);
            }
            (Inbound::Hello(hello), Some(device)) if self.current.get(&device) == Some(&link) => {
                return self.join(own, device, hello.capabilities.privacy);
            }
            (Inbound::Update(update), Some(device)) => {
                out.push(Out::Heard(device, Box::new(update.clone())));
                Event::Update(device, update)
            }
            (Inbound::Unread(id), Some(device)) => Event::Unread(device, id),
            (Inbound::Decline(decline), Some(device)) => Event::Declined(device, decline),
            (Inbound::Revoked | Inbound::Refused(_) | Inbound::Stranger, _) => {
                self.send(link, out);
                return self.end(now, link, is_line, out);
            }
            _ => return,
        };
        if known.and_then(|device| self.current.get(&device)) == Some(&link) {
            self.coordinator.handle(own, event);
        }
    }

    fn join(&mut self, own: Millis, device: DeviceId, privacy: Privacy) {
        self.coordinator.heard_privacy(device, privacy);
        self.coordinator.handle(own, Event::Joined(device));
    }

    /// A conversation is over; on a line the next one begins.
    fn end(&mut self, now: Millis, link: LinkKey, is_line: bool, out: &mut Vec<Out>) {
        let Some(peer) = self.peers.remove(&link) else { return };
        if is_line {
            let connection = Connection::lasting(Arc::clone(&self.gate));
            self.peers.insert(link, Peer::new(connection, now));
        } else {
            out.push(Out::Closed(link));
        }
        if let Some(device) = peer.device
            && self.current.get(&device) == Some(&link)
        {
            self.current.remove(&device);
            let own = self.own(now);
            self.coordinator.handle(own, Event::Left(device));
        }
    }

    fn act(&mut self, action: Action, out: &mut Vec<Out>) {
        let peer = |running: &Self, device| running.current.get(&device).copied();
        match action {
            Action::Open(device, opening) => {
                if let Some(peer) = peer(self, device).and_then(|link| self.peers.get_mut(&link)) {
                    peer.connection.open(&opening);
                    peer.unanswered = None;
                    out.push(Out::Opened(opening));
                }
            }
            Action::Acknowledge(device, ack) => {
                if let Some(peer) = peer(self, device).and_then(|link| self.peers.get_mut(&link)) {
                    peer.connection.send(ToDevice::Ack(ack));
                    out.push(Out::Told(device, ack));
                }
            }
            Action::Close(device, id) => {
                if let Some(peer) = peer(self, device).and_then(|link| self.peers.get_mut(&link)) {
                    peer.connection.close_round(id);
                }
            }
            Action::Commit(record) => out.push(Out::Committed(record)),
            Action::Failed(failure) => out.push(Out::Failed(failure)),
            Action::Finished => {}
        }
    }

    fn flush(&mut self, out: &mut Vec<Out>) {
        let links: Vec<LinkKey> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.connection.pending() > 0)
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            self.send(link, out);
        }
    }

    fn send(&mut self, link: LinkKey, out: &mut Vec<Out>) {
        let Some(peer) = self.peers.get_mut(&link) else { return };
        let mut frame = Vec::new();
        while peer.connection.next_frame(&mut frame) {
            out.push(Out::Bytes(link, std::mem::take(&mut frame)));
        }
    }
}
