//! One world from its beginning to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fedspan_aggregator::engine::{DeviceId, Phase};
use fedspan_client::session::Protection;
use fedspan_protocol::message::AckOutcome;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::Millis;
use super::device::{Device, DeviceOutput};
use super::fault_schedule::{self, Fault};
use super::history::{History, Violation};
use super::link::Link;
use super::plan::{Kind, Plan, percent, within};
use super::queue::Queue;
use super::report::{Report, Watcher};
use super::server::Server;
use super::server_tasks::{LinkKey, ServerOutput};
use super::storage::{Disk, Faults as DiskFaults};

/// Time without progress after the last disaster until nothing will ever come of it.
const STUCK_AFTER: Millis = 2 * 3_600_000;

/// Bytes of a large fleet's disk, at most.
const DISK_CAPACITY: usize = 1 << 28;

const HOUR: Millis = 3_600_000;

/// Bytes of a frame in which somebody asks for something, or answers.
const LONG_FRAME: usize = 60;

/// Time after which something happens, if nothing else does.
const HEARTBEAT: Millis = 10_000;

/// What happens.
#[derive(Debug)]
pub enum Event {
    ServerBoot,
    /// The host comes to what waits for it.
    HostTurn,
    /// The host's time.
    HostTick,
    /// Nothing, for a while.
    Heartbeat,
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
    ServerLinkUp(LinkKey),
    /// The device does.
    DeviceLinkUp(LinkKey),
    /// The device hears that its link is gone, or was never made.
    DeviceLinkDown(LinkKey),
    /// The server hears that a link is gone.
    ServerLinkDown(LinkKey),
    Fault(Fault),
    DiskHeals,
    /// All is well from now on.
    Heal,
    /// All links begin anew.
    ReconnectAll,
    /// An hour has passed.
    Hour(Millis),
}

/// A device with what surrounds it.
#[derive(Debug)]
pub struct Node {
    pub device: Device,
    pub link: Link,
    /// What has come while it was quiet.
    pub unread: Vec<Vec<u8>>,
    /// Which of its wakes counts.
    pub wake_number: u64,
    /// How long it thinking_time before it answers, at most.
    pub max_delay: Millis,
}

/// One world.
pub struct World<'a> {
    pub plan: &'a Plan,
    pub seed: u64,
    pub random: ChaCha8Rng,
    pub queue: Queue<Event>,
    pub server: Server,
    pub nodes: Vec<Node>,
    pub history: History,
    pub report: Report,
    pub is_turn_planned: bool,
    /// When the host is looked at next.
    pub next_tick: Option<Millis>,
    pub is_healed: bool,
    /// How long the server is off when its power goes next in the middle of something.
    pub outage: Millis,
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
        disk.reserve(DISK_CAPACITY);
    }
    let server = Server::new(plan.fleet.clone(), disk, keys, plan.is_serial, seed).map_err(Violation::new)?;
    let slowest = if plan.kind == Kind::Hectic { 4_000 } else { 600_000 };
    let nodes = (0..plan.dataset.clients.len())
        .map(|index| {
            let id = index as u64;
            let protection = server.key(id).map_or(Protection::Plaintext, Protection::Key);
            Node {
                device: Device::new(id, protection),
                link: Link::new(plan.is_serial, &mut random),
                unread: Vec::new(),
                wake_number: 0,
                max_delay: within(&mut random, 1, slowest),
            }
        })
        .collect();
    let mut world = World {
        plan,
        seed,
        random,
        queue: Queue::new(),
        server,
        nodes,
        history: History::default(),
        report: Report::default(),
        is_turn_planned: false,
        next_tick: None,
        is_healed: false,
        outage: 0,
        paid: BTreeMap::new(),
        watcher,
    };
    world.schedule();
    world.run()
}

impl World<'_> {
    fn schedule(&mut self) {
        if self.watcher.wants_events() {
            let Plan { scenario, fleet, is_encrypted, is_private, is_serial, .. } = self.plan;
            let about = format!(
                "{} devices, encrypted: {is_encrypted}, private: {is_private}, lines: {is_serial}, {:?}, {:?}, {:?}, absence {:?}, {} rounds",
                self.nodes.len(),
                scenario.participation,
                scenario.rule,
                fleet.rounds,
                fleet.absence,
                scenario.algorithm.rounds,
            );
            self.watcher.event(0, &about);
        }
        self.queue.at(0, Event::ServerBoot);
        for index in 0..self.nodes.len() {
            let at = within(&mut self.random, 0, 3_000);
            self.queue.at(at, Event::DeviceBoot(index));
        }
        let horizon = fault_schedule::horizon(&mut self.random, self.plan.kind);
        let devices = self.nodes.len();
        let faults = match self.plan.kind {
            Kind::Hectic => fault_schedule::draw(&mut self.random, devices, horizon, self.plan.is_encrypted),
            Kind::Day { .. } => {
                (1..=24).for_each(|hour| self.queue.at(hour * HOUR, Event::Hour(hour)));
                fault_schedule::bad_day(&mut self.random, devices)
            }
        };
        for (at, fault) in faults {
            self.queue.at(at, Event::Fault(fault));
        }
        self.queue.at(horizon, Event::Heal);
        self.queue.at(0, Event::Heartbeat);
    }

    fn run(mut self) -> Result<Report, Violation> {
        // When something was last committed, once all was well, and how many rounds there were then.
        let (mut last, mut rounds) = (None, 0);
        let mut ends = None;
        while let Some(event) = self.queue.next() {
            let now = self.queue.now();
            self.report.events += 1;
            self.handle(now, event)?;
            let moved = self.history.rounds() != rounds;
            if self.is_healed && (last.is_none() || moved) {
                (last, rounds) = (Some(now), self.history.rounds());
            }
            // A day has an end, whatever its campaign has come to.
            let finished = self.plan.kind != Kind::Hectic && self.is_healed
                || matches!(self.server.phase(), Some(Phase::Finished | Phase::FitHead));
            if let (Some(_), None, true, false) = (last, ends, finished, self.is_turn_planned) {
                // Everybody says hello twice more, and is heard: an update that was still on its way comes between the two.
                ends = Some(now + 240_000);
                self.queue.at(now, Event::ReconnectAll);
                self.queue.at(now + 120_000, Event::ReconnectAll);
            }
            if ends.is_some_and(|ends| now >= ends) {
                break;
            }
            if ends.is_none() && last.is_some_and(|last| now > last + STUCK_AFTER) {
                let open =
                    self.server.coordinator().and_then(|coordinator| coordinator.engine().open_round());
                let open =
                    open.map(|round| (round.opening.id, &round.cohort, &round.participants, &round.out));
                return Err(Violation::new(format!(
                    "no progress: the campaign is in {:?} for hours, and open is {open:?}",
                    self.server.phase()
                )));
            }
        }
        self.finish()
    }

    fn finish(mut self) -> Result<Report, Violation> {
        let Some(coordinator) = self.server.coordinator() else {
            return Err(Violation::new("the server does not run at the end"));
        };
        let (rounds, counted) = self.history.verify(self.plan, coordinator)?;
        if self.plan.is_private {
            let accounts = coordinator.engine().ledger().accounts();
            for (id, node) in (0..).zip(&self.nodes) {
                let known = accounts.get(&id).map(|account| account.spent);
                if node.device.spent() != known && !self.history.is_revoked(id) {
                    return Err(Violation::new(format!(
                        "device {id} has spent {:?}, and the server knows of {known:?}",
                        node.device.spent()
                    )));
                }
            }
        }
        self.report.faults.stalls = self.server.stalls;
        self.report = Report { rounds, counted, time: self.queue.now(), ..self.report };
        Ok(self.report)
    }

    fn handle(&mut self, now: Millis, event: Event) -> Result<(), Violation> {
        if self.watcher.wants_events()
            && !matches!(
                event,
                Event::HostTick
                    | Event::Heartbeat
                    | Event::Due(_)
                    | Event::Commands(..)
                    | Event::DeviceWake(..)
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
                    if self.server.boot(now, self.nodes.len(), &mut out)? {
                        self.after_server_boot()?;
                    } else {
                        self.queue.after(1_000, Event::ServerBoot);
                    }
                }
            }
            Event::HostTurn => {
                self.is_turn_planned = false;
                self.server.turn(now, &mut out)?;
            }
            Event::HostTick => {
                self.next_tick = None;
                self.server.turn(now, &mut out)?;
            }
            Event::Heartbeat => self.queue.after(HEARTBEAT, Event::Heartbeat),
            Event::Due(link) => self.server.elapse(now, link, &mut out),
            Event::Commands(link, boot) => {
                if boot == self.server.boots() {
                    self.server.run_commands(now, link, &mut out);
                }
            }
            Event::DeviceBoot(index) => self.boot(now, index)?,
            Event::DeviceWake(index, wake) => {
                if self.nodes.get(index).is_some_and(|node| node.wake_number == wake) {
                    self.wake(now, index)?;
                }
            }
            Event::ToDevice(link, bytes) => {
                if let Some(node) = self.node(link) {
                    node.unread.push(bytes);
                    self.read(now, link.0)?;
                }
            }
            Event::ToServer(link, bytes) => {
                if !self.server.receive(now, link, &bytes, &mut out) {
                    self.refuse_link(now, link);
                }
            }
            Event::ServerLinkUp(link) => {
                if !self.server.connect(now, link, &mut out) {
                    self.refuse_link(now, link);
                }
            }
            Event::DeviceLinkUp(link) => {
                if self.node(link).is_some_and(|node| node.link.is_up) {
                    let output = self.device(link.0).link_up(now)?;
                    self.apply_device_output(now, link.0, output)?;
                }
            }
            Event::DeviceLinkDown(link) => {
                if let Some(node) = self.node(link) {
                    node.link.is_up = false;
                    node.unread.clear();
                    let output = self.device(link.0).link_down(now)?;
                    self.apply_device_output(now, link.0, output)?;
                }
            }
            Event::ServerLinkDown(link) => self.server.link_closed(now, link, &mut out),
            Event::Fault(fault) => self.inject(now, fault, &mut out)?,
            Event::DiskHeals => self.server.disk.fail(DiskFaults::None),
            Event::Heal => self.heal(now),
            Event::Hour(hour) => {
                self.server.read_all()?;
                self.watcher.hour(hour, self.history.rounds(), self.server.disk.memory() as u64);
            }
            Event::ReconnectAll => (0..self.nodes.len()).for_each(|index| self.reset_link(now, index)),
        }
        if self.server.is_cut() {
            // What it wanted to say had not left it.
            out.clear();
            self.power_off_server(now, self.outage);
        }
        self.apply_server_output(now, out)?;
        self.plan_host(now);
        Ok(())
    }

    fn is_fitting(&self) -> bool {
        matches!(self.server.phase(), Some(Phase::FitHead | Phase::Finished))
    }

    /// The server has begun again, or for the first time.
    fn after_server_boot(&mut self) -> Result<(), Violation> {
        if let Some(coordinator) = self.server.coordinator().filter(|_| !self.server.is_cut()) {
            let engine = coordinator.engine();
            let counted = engine.open_round().is_some_and(|round| !round.participants.is_empty());
            let trains = matches!(engine.phase(), Phase::Start(_) | Phase::Train(_));
            self.report.faults.mid_round += usize::from(counted && trains);
        }
        let devices: Vec<DeviceId> = self.paid.keys().copied().collect();
        devices.into_iter().try_for_each(|device| self.check_account(device))
    }

    /// A device has paid for every round in which it counts, and the server knows.
    fn check_account(&mut self, device: DeviceId) -> Result<(), Violation> {
        let rounds = self.paid.get(&device).map_or(0, BTreeSet::len);
        let paid = rounds as u64 * self.plan.price();
        let Some(coordinator) = self.server.coordinator().filter(|_| !self.server.is_cut()) else {
            return Ok(());
        };
        self.report.faults.account_checks += 1;
        let known = coordinator.engine().ledger().accounts().get(&device).map_or(0, |account| account.spent);
        if known >= paid {
            return Ok(());
        }
        Err(Violation::new(format!(
            "device {device} has paid {paid} for what counts, and the server knows of {known}"
        )))
    }

    /// The link that is meant, if it is still the newest of its device.
    pub fn node(&mut self, (index, number): LinkKey) -> Option<&mut Node> {
        self.nodes.get_mut(index).filter(|node| node.link.number == number)
    }

    #[allow(clippy::indexing_slicing, reason = "links are of devices that there are")]
    pub fn device(&mut self, index: usize) -> &mut Device {
        &mut self.nodes[index].device
    }

    /// The host comes a little later to what waits for it, all at once, and in time to what is due.
    fn plan_host(&mut self, now: Millis) {
        if self.server.has_messages() && !std::mem::replace(&mut self.is_turn_planned, true) {
            let wait = within(&mut self.random, 0, 30);
            self.queue.after(wait, Event::HostTurn);
        }
        if let Some(wake) = self.server.wake(now)
            && self.next_tick.is_none_or(|next_tick| wake < next_tick)
        {
            self.next_tick = Some(wake);
            self.queue.at(wake, Event::HostTick);
        }
    }

    /// Nobody is there: the device is told, if that comes through.
    pub fn refuse_link(&mut self, now: Millis, link: LinkKey) {
        if self.plan.is_serial {
            return;
        }
        let Some(node) = self.node(link) else { return };
        let at = now.max(node.link.partitioned_until) + node.link.quality.latency;
        self.queue.at(at, Event::DeviceLinkDown(link));
    }

    fn boot(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        let ahead = within(&mut self.random, 0, 1 << 20);
        let (plan, seed, is_serial) = (self.plan, self.seed, self.plan.is_serial);
        let Some(node) = self.nodes.get_mut(index).filter(|node| !node.device.is_on()) else {
            return Ok(());
        };
        node.device.boot(plan, seed, ahead)?;
        node.unread.clear();
        if is_serial {
            node.link.is_up = true;
            let output = node.device.link_up(now)?;
            return self.apply_device_output(now, index, output);
        }
        self.wake(now, index)
    }

    pub fn wake(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        let output = self.device(index).tick(now)?;
        let lost_power = output.lost_power;
        self.apply_device_output(now, index, output)?;
        if !lost_power {
            self.read(now, index)?;
        }
        let is_serial = self.plan.is_serial;
        let server = self.server.is_on();
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        if !node.device.is_on() || node.device.is_linked() || node.link.is_up {
            return Ok(());
        }
        if is_serial {
            node.link.is_up = true;
            let output = node.device.link_up(now)?;
            return self.apply_device_output(now, index, output);
        }
        if server && now >= node.link.partitioned_until {
            node.link.renew(now);
            let (link, latency) = ((index, node.link.number), node.link.quality.latency);
            self.queue.after(latency, Event::ServerLinkUp(link));
            self.queue.after(2 * latency, Event::DeviceLinkUp(link));
        }
        Ok(())
    }

    /// The device reads what has come, unless it computes in private.
    fn read(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        loop {
            let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
            if node.unread.is_empty() || node.device.is_quiet(now) || !node.device.is_linked() {
                return Ok(());
            }
            let bytes = node.unread.remove(0);
            let output = node.device.receive(now, &bytes)?;
            self.apply_device_output(now, index, output)?;
        }
    }

    /// A device has said something: it goes on its way.
    fn apply_device_output(
        &mut self,
        now: Millis,
        index: usize,
        output: DeviceOutput,
    ) -> Result<(), Violation> {
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        if output.lost_power {
            let off = within(&mut self.random, 20, 10_000);
            self.report.faults.device_power_cuts += 1;
            self.report.faults.flash_cuts += 1;
            self.power_off_device(now, index, off);
            return Ok(());
        }
        if output.counted > 0 {
            self.history.record_observed_ack(index as u64, node.device.last_round());
        }
        let number = node.link.number;
        for frame in output.frames {
            // What takes long to say took long to think of. Meanwhile it may say the same again.
            let thinking_time = match self.plan.kind {
                Kind::Hectic if frame.len() > LONG_FRAME => within(&mut self.random, 0, node.max_delay),
                _ => 0,
            };
            for (at, bytes) in node.link.send(now + thinking_time, true, frame, &mut self.random) {
                self.queue.at(at, Event::ToServer((index, number), bytes));
            }
        }
        if let Some(wake) = output.wake {
            node.wake_number += 1;
            self.queue.at(wake, Event::DeviceWake(index, node.wake_number));
        }
        if output.closes {
            node.link.is_up = false;
            node.unread.clear();
            let (link, latency) = ((index, number), node.link.quality.latency);
            if !self.plan.is_serial {
                self.queue.after(latency, Event::ServerLinkDown(link));
            }
            let output = self.device(index).link_down(now)?;
            return self.apply_device_output(now, index, output);
        }
        Ok(())
    }

    /// What the server wants.
    fn apply_server_output(&mut self, now: Millis, out: Vec<ServerOutput>) -> Result<(), Violation> {
        for output in out {
            match output {
                ServerOutput::Bytes(link, bytes) => {
                    if let Some(node) = self.nodes.get_mut(link.0).filter(|node| node.link.number == link.1) {
                        // It is busy with something else before it reads what it is asked.
                        let busy = match self.plan.kind {
                            Kind::Day { .. } if bytes.len() > LONG_FRAME => {
                                within(&mut self.random, 0, node.max_delay)
                            }
                            _ => 0,
                        };
                        for (at, bytes) in node.link.send(now + busy, false, bytes, &mut self.random) {
                            self.queue.at(at, Event::ToDevice(link, bytes));
                        }
                    }
                }
                ServerOutput::Closed(link) => self.refuse_link(now, link),
                ServerOutput::UpdateReceived(device, update) => {
                    self.history.record_update(device, *update, self.plan.is_private)?
                }
                ServerOutput::Opened(opening) => self.history.record_opening(&opening)?,
                ServerOutput::Acknowledged(device, ack) => {
                    self.history.record_ack(device, ack)?;
                    let counts = matches!(ack.outcome, AckOutcome::Counted | AckOutcome::Duplicate);
                    if counts && self.plan.is_private && !self.is_fitting() {
                        self.paid.entry(device).or_default().insert(ack.id.round);
                        self.check_account(device)?;
                    }
                }
                ServerOutput::Committed(committed) => self.history.record_commit(&committed)?,
                ServerOutput::Due(link, at) => self.queue.at(at, Event::Due(link)),
                // At once, mostly: a task that has something else to do, or waits for its socket, comes to it later.
                ServerOutput::Commands(link) => {
                    let wait =
                        if percent(&mut self.random, 70) { 0 } else { within(&mut self.random, 1, 80) };
                    self.queue.after(wait, Event::Commands(link, self.server.boots()));
                }
            }
        }
        Ok(())
    }
}
