//! One world from its beginning to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fedspan_client::session::Protection;
use fedspan_engine::{DeviceId, Phase};
use fedspan_protocol::message::AckOutcome;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::Millis;
use super::chaos::{self, Disaster};
use super::device::{Device, Said};
use super::history::{History, Violation};
use super::link::Link;
use super::plan::{Kind, Plan, percent, within};
use super::queue::Queue;
use super::report::{Report, Watcher};
use super::running::{LinkKey, Out};
use super::server::Server;
use super::storage::{Disk, Faults as DiskFaults};

/// Time without progress after the last disaster until nothing will ever come of it.
const PATIENCE: Millis = 2 * 3_600_000;

/// Bytes of a large fleet's disk, at most.
const DISK: usize = 1 << 28;

const HOUR: Millis = 3_600_000;

/// Bytes of a frame in which somebody asks for something, or answers.
const LONG: usize = 60;

/// Time after which something happens, if nothing else does.
const BEAT: Millis = 10_000;

/// What happens.
#[derive(Debug)]
pub enum Event {
    ServerBoot,
    /// The host comes to what waits for it.
    Settle,
    /// The host's time.
    Look,
    /// Nothing, for a while.
    Beat,
    /// Something may be due on a link of the server.
    Due(LinkKey),
    /// A conversation of the server, in its so manieth life, comes to what the host wants.
    Commands(LinkKey, u64),
    DeviceBoot(usize),
    /// Only the newest counts.
    DeviceWake(usize, u64),
    ToDevice(LinkKey, Vec<u8>),
    ToServer(LinkKey, Vec<u8>),
    /// The server hears of a link.
    Connect(LinkKey),
    /// The device does.
    Connected(LinkKey),
    /// The device hears that its link is gone, or was never made.
    Down(LinkKey),
    /// The server hears that a link is gone.
    Gone(LinkKey),
    Chaos(Disaster),
    DiskHeals,
    /// All is well from now on.
    Heal,
    /// All links begin anew.
    Hello,
    /// An hour has passed.
    Hour(Millis),
}

/// A device with what surrounds it.
#[derive(Debug)]
pub struct Place {
    pub device: Device,
    pub link: Link,
    /// What has come while it was quiet.
    pub unread: Vec<Vec<u8>>,
    /// Which of its wakes counts.
    pub wake: u64,
    /// How long it thinks before it answers, at most.
    pub pace: Millis,
}

/// One world.
pub struct World<'a> {
    pub plan: &'a Plan,
    pub seed: u64,
    pub random: ChaCha8Rng,
    pub queue: Queue<Event>,
    pub server: Server,
    pub places: Vec<Place>,
    pub history: History,
    pub report: Report,
    pub settling: bool,
    /// When the host is looked at next.
    pub looks: Option<Millis>,
    pub is_healed: bool,
    /// How long the server is off when its power goes next in the middle of something.
    pub off: Millis,
    /// Rounds for which devices have paid: they were told that they count.
    paid: BTreeMap<DeviceId, BTreeSet<u32>>,
    pub watcher: &'a mut dyn Watcher,
}

/// Runs the world of a seed.
///
/// # Errors
/// What must never be.
pub fn run(seed: u64, kind: Kind, watcher: &mut dyn Watcher) -> Result<Report, Violation> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let plan = Plan::new(seed, &mut random, kind).map_err(Violation::new)?;
    let keys = plan.is_encrypted.then(|| {
        let name = format!("fedspan-disasters-{}-{seed}", std::process::id());
        std::env::temp_dir().join(name)
    });
    let done = world(seed, &plan, random, keys.as_ref().map(|directory| directory.join("keys")), watcher);
    if let Some(directory) = keys {
        let _ = std::fs::remove_dir_all(directory);
    }
    done
}

fn world(
    seed: u64,
    plan: &Plan,
    mut random: ChaCha8Rng,
    keys: Option<PathBuf>,
    watcher: &mut dyn Watcher,
) -> Result<Report, Violation> {
    let disk = Disk::new(seed);
    if plan.kind != Kind::Hectic {
        disk.reserve(DISK);
    }
    let server = Server::new(plan.fleet.clone(), disk, keys, plan.is_line, seed).map_err(Violation::new)?;
    let slowest = if plan.kind == Kind::Hectic { 4_000 } else { 600_000 };
    let places = (0..plan.dataset.clients.len())
        .map(|index| {
            let id = index as u64;
            let protection = server.key(id).map_or(Protection::Plaintext, Protection::Key);
            Place {
                device: Device::new(id, protection),
                link: Link::new(plan.is_line, &mut random),
                unread: Vec::new(),
                wake: 0,
                pace: within(&mut random, 1, slowest),
            }
        })
        .collect();
    let mut world = World {
        plan,
        seed,
        random,
        queue: Queue::new(),
        server,
        places,
        history: History::default(),
        report: Report::default(),
        settling: false,
        looks: None,
        is_healed: false,
        off: 0,
        paid: BTreeMap::new(),
        watcher,
    };
    world.begin();
    world.go()
}

impl World<'_> {
    fn begin(&mut self) {
        if self.watcher.listens() {
            let Plan { scenario, fleet, is_encrypted, is_private, is_line, .. } = self.plan;
            let about = format!(
                "{} devices, encrypted: {is_encrypted}, private: {is_private}, lines: {is_line}, {:?}, {:?}, {:?}, absence {:?}, {} rounds",
                self.places.len(),
                scenario.participation,
                scenario.rule,
                fleet.rounds,
                fleet.absence,
                scenario.algorithm.rounds,
            );
            self.watcher.event(0, &about);
        }
        self.queue.at(0, Event::ServerBoot);
        for index in 0..self.places.len() {
            let at = within(&mut self.random, 0, 3_000);
            self.queue.at(at, Event::DeviceBoot(index));
        }
        let horizon = chaos::horizon(&mut self.random, self.plan.kind);
        let devices = self.places.len();
        let disasters = match self.plan.kind {
            Kind::Hectic => chaos::draw(&mut self.random, devices, horizon, self.plan.is_encrypted),
            Kind::Day { .. } => {
                (1..=24).for_each(|hour| self.queue.at(hour * HOUR, Event::Hour(hour)));
                chaos::bad_day(&mut self.random, devices)
            }
        };
        for (at, disaster) in disasters {
            self.queue.at(at, Event::Chaos(disaster));
        }
        self.queue.at(horizon, Event::Heal);
        self.queue.at(0, Event::Beat);
    }

    fn go(mut self) -> Result<Report, Violation> {
        // When something was last committed, once all was well, and how many rounds there were then.
        let (mut last, mut rounds) = (None, 0);
        let mut ends = None;
        while let Some(event) = self.queue.next() {
            let now = self.queue.now();
            self.report.events += 1;
            self.happen(now, event)?;
            let moved = self.history.rounds() != rounds;
            if self.is_healed && (last.is_none() || moved) {
                (last, rounds) = (Some(now), self.history.rounds());
            }
            // A day has an end, whatever its campaign has come to.
            let finished = self.plan.kind != Kind::Hectic && self.is_healed
                || matches!(self.server.phase(), Some(Phase::Finished | Phase::FitHead));
            if let (Some(_), None, true, false) = (last, ends, finished, self.settling) {
                // Everybody says hello twice more, and is heard: an update that was still on its way comes between the two.
                ends = Some(now + 240_000);
                self.queue.at(now, Event::Hello);
                self.queue.at(now + 120_000, Event::Hello);
            }
            if ends.is_some_and(|ends| now >= ends) {
                break;
            }
            if ends.is_none() && last.is_some_and(|last| now > last + PATIENCE) {
                let open =
                    self.server.coordinator().and_then(|coordinator| coordinator.engine().open_round());
                let open = open
                    .map(|round| (round.broadcast.id, &round.cohort, &round.participants, &round.excluded));
                return Err(Violation::new(format!(
                    "no progress: the campaign is in {:?} for hours, and open is {open:?}",
                    self.server.phase()
                )));
            }
        }
        self.end()
    }

    fn end(mut self) -> Result<Report, Violation> {
        let Some(coordinator) = self.server.coordinator() else {
            return Err(Violation::new("the server does not run at the end"));
        };
        let (rounds, counted) = self.history.verify(self.plan, coordinator)?;
        if self.plan.is_private {
            let accounts = coordinator.engine().ledger().accounts();
            for (id, place) in (0..).zip(&self.places) {
                let known = accounts.get(&id).map(|account| account.spent);
                if place.device.spent() != known && !self.history.is_revoked(id) {
                    return Err(Violation::new(format!(
                        "device {id} has spent {:?}, and the server knows of {known:?}",
                        place.device.spent()
                    )));
                }
            }
        }
        self.report.faults.stalls = self.server.stalls;
        self.report = Report { rounds, counted, time: self.queue.now(), ..self.report };
        Ok(self.report)
    }

    fn happen(&mut self, now: Millis, event: Event) -> Result<(), Violation> {
        if self.watcher.listens()
            && !matches!(
                event,
                Event::Look | Event::Beat | Event::Due(_) | Event::Commands(..) | Event::DeviceWake(..)
            )
        {
            let text = match &event {
                Event::ToDevice(link, bytes) => format!("ToDevice {link:?} {} bytes", bytes.len()),
                Event::ToServer(link, bytes) => format!("ToServer {link:?} {} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            self.watcher.event(now, &text);
        }
        let mut out = Vec::new();
        match event {
            Event::ServerBoot => {
                if !self.server.is_on() {
                    if self.server.boot(now, self.places.len(), &mut out)? {
                        self.came_back()?;
                    } else {
                        self.queue.after(1_000, Event::ServerBoot);
                    }
                }
            }
            Event::Settle => {
                self.settling = false;
                self.server.turn(now, &mut out)?;
            }
            Event::Look => {
                self.looks = None;
                self.server.turn(now, &mut out)?;
            }
            Event::Beat => self.queue.after(BEAT, Event::Beat),
            Event::Due(link) => self.server.elapse(now, link, &mut out),
            Event::Commands(link, life) => {
                if life == self.server.life() {
                    self.server.obey(now, link, &mut out);
                }
            }
            Event::DeviceBoot(index) => self.boot(now, index)?,
            Event::DeviceWake(index, wake) => {
                if self.places.get(index).is_some_and(|place| place.wake == wake) {
                    self.wake(now, index)?;
                }
            }
            Event::ToDevice(link, bytes) => {
                if let Some(place) = self.place(link) {
                    place.unread.push(bytes);
                    self.read(now, link.0)?;
                }
            }
            Event::ToServer(link, bytes) => {
                if !self.server.hear(now, link, &bytes, &mut out) {
                    self.refuse(now, link);
                }
            }
            Event::Connect(link) => {
                if !self.server.connect(now, link, &mut out) {
                    self.refuse(now, link);
                }
            }
            Event::Connected(link) => {
                if self.place(link).is_some_and(|place| place.link.is_up) {
                    let said = self.device(link.0).link_up(now)?;
                    self.said(now, link.0, said)?;
                }
            }
            Event::Down(link) => {
                if let Some(place) = self.place(link) {
                    place.link.is_up = false;
                    place.unread.clear();
                    let said = self.device(link.0).link_down(now)?;
                    self.said(now, link.0, said)?;
                }
            }
            Event::Gone(link) => self.server.gone(now, link, &mut out),
            Event::Chaos(disaster) => self.strike(now, disaster, &mut out)?,
            Event::DiskHeals => self.server.disk.fail(DiskFaults::None),
            Event::Heal => self.heal(now),
            Event::Hour(hour) => {
                self.server.read_all()?;
                self.watcher.hour(hour, self.history.rounds(), self.server.disk.memory() as u64);
            }
            Event::Hello => (0..self.places.len()).for_each(|index| self.reset(now, index)),
        }
        if self.server.is_cut() {
            // What it wanted to say had not left it.
            out.clear();
            self.power_off(now, self.off);
        }
        self.obey(now, out)?;
        self.plan(now);
        Ok(())
    }

    fn is_fitting(&self) -> bool {
        matches!(self.server.phase(), Some(Phase::FitHead | Phase::Finished))
    }

    /// The server has begun again, or for the first time.
    fn came_back(&mut self) -> Result<(), Violation> {
        if let Some(coordinator) = self.server.coordinator().filter(|_| !self.server.is_cut()) {
            let engine = coordinator.engine();
            let counted = engine.open_round().is_some_and(|round| !round.participants.is_empty());
            let trains = matches!(engine.phase(), Phase::Start(_) | Phase::Train(_));
            self.report.faults.amid += usize::from(counted && trains);
        }
        let devices: Vec<DeviceId> = self.paid.keys().copied().collect();
        devices.into_iter().try_for_each(|device| self.charged(device))
    }

    /// A device has paid for every round in which it counts, and the server knows.
    fn charged(&mut self, device: DeviceId) -> Result<(), Violation> {
        let rounds = self.paid.get(&device).map_or(0, BTreeSet::len);
        let paid = rounds as u64 * self.plan.price();
        let Some(coordinator) = self.server.coordinator().filter(|_| !self.server.is_cut()) else {
            return Ok(());
        };
        self.report.faults.accounts += 1;
        let known = coordinator.engine().ledger().accounts().get(&device).map_or(0, |account| account.spent);
        if known >= paid {
            return Ok(());
        }
        Err(Violation::new(format!(
            "device {device} has paid {paid} for what counts, and the server knows of {known}"
        )))
    }

    /// The link that is meant, if it is still the newest of its device.
    pub fn place(&mut self, (index, number): LinkKey) -> Option<&mut Place> {
        self.places.get_mut(index).filter(|place| place.link.number == number)
    }

    #[allow(clippy::indexing_slicing, reason = "links are of devices that there are")]
    pub fn device(&mut self, index: usize) -> &mut Device {
        &mut self.places[index].device
    }

    /// The host comes a little later to what waits for it, all at once, and in time to what is due.
    fn plan(&mut self, now: Millis) {
        if self.server.has_mail() && !std::mem::replace(&mut self.settling, true) {
            let wait = within(&mut self.random, 0, 30);
            self.queue.after(wait, Event::Settle);
        }
        if let Some(wake) = self.server.wake(now)
            && self.looks.is_none_or(|looks| wake < looks)
        {
            self.looks = Some(wake);
            self.queue.at(wake, Event::Look);
        }
    }

    /// Nobody is there: the device is told, if that comes through.
    pub fn refuse(&mut self, now: Millis, link: LinkKey) {
        if self.plan.is_line {
            return;
        }
        let Some(place) = self.place(link) else { return };
        let at = now.max(place.link.parted_until) + place.link.quality.latency;
        self.queue.at(at, Event::Down(link));
    }

    fn boot(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        let ahead = within(&mut self.random, 0, 1 << 20);
        let (plan, seed, is_line) = (self.plan, self.seed, self.plan.is_line);
        let Some(place) = self.places.get_mut(index).filter(|place| !place.device.is_on()) else {
            return Ok(());
        };
        place.device.boot(plan, seed, ahead)?;
        place.unread.clear();
        if is_line {
            place.link.is_up = true;
            let said = place.device.link_up(now)?;
            return self.said(now, index, said);
        }
        self.wake(now, index)
    }

    pub fn wake(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        let said = self.device(index).tick(now)?;
        let died = said.died;
        self.said(now, index, said)?;
        if !died {
            self.read(now, index)?;
        }
        let is_line = self.plan.is_line;
        let server = self.server.is_on();
        let Some(place) = self.places.get_mut(index) else { return Ok(()) };
        if !place.device.is_on() || place.device.is_linked() || place.link.is_up {
            return Ok(());
        }
        if is_line {
            place.link.is_up = true;
            let said = place.device.link_up(now)?;
            return self.said(now, index, said);
        }
        if server && now >= place.link.parted_until {
            place.link.renew(now);
            let (link, latency) = ((index, place.link.number), place.link.quality.latency);
            self.queue.after(latency, Event::Connect(link));
            self.queue.after(2 * latency, Event::Connected(link));
        }
        Ok(())
    }

    /// The device reads what has come, unless it computes in private.
    fn read(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        loop {
            let Some(place) = self.places.get_mut(index) else { return Ok(()) };
            if place.unread.is_empty() || place.device.is_quiet(now) || !place.device.is_linked() {
                return Ok(());
            }
            let bytes = place.unread.remove(0);
            let said = place.device.hear(now, &bytes)?;
            self.said(now, index, said)?;
        }
    }

    /// A device has said something: it goes on its way.
    fn said(&mut self, now: Millis, index: usize, said: Said) -> Result<(), Violation> {
        let Some(place) = self.places.get_mut(index) else { return Ok(()) };
        if said.died {
            let off = within(&mut self.random, 20, 10_000);
            self.report.faults.devices += 1;
            self.report.faults.flash += 1;
            self.cut(now, index, off);
            return Ok(());
        }
        if said.counted > 0 {
            self.history.heard(index as u64, place.device.last_round());
        }
        let number = place.link.number;
        for frame in said.frames {
            // What takes long to say took long to think of. Meanwhile it may say the same again.
            let thinks = match self.plan.kind {
                Kind::Hectic if frame.len() > LONG => within(&mut self.random, 0, place.pace),
                _ => 0,
            };
            for (at, bytes) in place.link.send(now + thinks, true, frame, &mut self.random) {
                self.queue.at(at, Event::ToServer((index, number), bytes));
            }
        }
        if let Some(wake) = said.wake {
            place.wake += 1;
            self.queue.at(wake, Event::DeviceWake(index, place.wake));
        }
        if said.closes {
            place.link.is_up = false;
            place.unread.clear();
            let (link, latency) = ((index, number), place.link.quality.latency);
            if !self.plan.is_line {
                self.queue.after(latency, Event::Gone(link));
            }
            let said = self.device(index).link_down(now)?;
            return self.said(now, index, said);
        }
        Ok(())
    }

    /// What the server wants.
    fn obey(&mut self, now: Millis, out: Vec<Out>) -> Result<(), Violation> {
        for one in out {
            match one {
                Out::Bytes(link, bytes) => {
                    if let Some(place) =
                        self.places.get_mut(link.0).filter(|place| place.link.number == link.1)
                    {
                        // It is busy with something else before it reads what it is asked.
                        let busy = match self.plan.kind {
                            Kind::Day { .. } if bytes.len() > LONG => within(&mut self.random, 0, place.pace),
                            _ => 0,
                        };
                        for (at, bytes) in place.link.send(now + busy, false, bytes, &mut self.random) {
                            self.queue.at(at, Event::ToDevice(link, bytes));
                        }
                    }
                }
                Out::Closed(link) => self.refuse(now, link),
                Out::Heard(device, update) => self.history.sent(device, *update, self.plan.is_private)?,
                Out::Opened(opening) => self.history.opened(&opening)?,
                Out::Told(device, ack) => {
                    self.history.told(device, ack)?;
                    let counts = matches!(ack.outcome, AckOutcome::Counted | AckOutcome::Duplicate);
                    if counts && self.plan.is_private && !self.is_fitting() {
                        self.paid.entry(device).or_default().insert(ack.id.round);
                        self.charged(device)?;
                    }
                }
                Out::Committed(committed) => self.history.committed(&committed)?,
                Out::Due(link, at) => self.queue.at(at, Event::Due(link)),
                // At once, mostly: a task that has something else to do, or waits for its socket, comes to it later.
                Out::Commands(link) => {
                    let wait =
                        if percent(&mut self.random, 70) { 0 } else { within(&mut self.random, 1, 80) };
                    self.queue.after(wait, Event::Commands(link, self.server.life()));
                }
            }
        }
        Ok(())
    }
}
