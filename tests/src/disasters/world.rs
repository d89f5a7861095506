//! A simulated world: devices, links and a server, with faults, under one event queue.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fedspan_client::session::Protection;
use fedspan_engine::{DeviceId, Millis, Phase};
use fedspan_protocol::message::AckOutcome;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::device::{Device, DeviceOutput};
use super::fault_schedule::{self, Fault};
use super::history::History;
use super::link::Link;
use super::plan::{Kind, Plan, draw_chance, draw_within};
use super::queue::Queue;
use super::report::{Report, Watcher};
use super::server::Server;
use super::server_tasks::{LinkKey, ServerOutput};
use super::storage::{Disk, Faults as DiskFaults};
use super::violation::Violation;

/// Time without a commit after the last fault until the campaign counts as stuck.
const STUCK_AFTER: Millis = Millis::new(2 * 3_600_000);

/// Memory to reserve for the disk of a large fleet, in bytes.
const DISK_CAPACITY: usize = 1 << 28;

const HOUR: Millis = Millis::new(3_600_000);

/// Frames longer than this (in bytes) carry a round or an update.
const LONG_FRAME: usize = 60;

/// Interval of the heartbeat, which prevents the queue from becoming empty.
const HEARTBEAT: Millis = Millis::new(10_000);

/// Event of a world.
#[derive(Debug)]
pub enum Event {
    ServerBoot,
    /// The server core runs because messages wait.
    ServerTurn,
    /// The server core runs because a timer is due.
    ServerTick,
    /// Prevents the queue from becoming empty.
    Heartbeat,
    /// The server checks the deadlines of a link.
    Due(LinkKey),
    /// A peer session handles its commands, unless the server has been restarted since the boot with this
    /// number.
    Commands(LinkKey, u64),
    DeviceBoot(usize),
    /// A device's timer is due. Ignored unless the number is that of the device's current wake-up.
    DeviceWake(usize, u64),
    ToDevice(LinkKey, Vec<u8>),
    ToServer(LinkKey, Vec<u8>),
    /// The server accepts a new connection.
    ServerLinkUp(LinkKey),
    /// The device is notified that its link is up.
    DeviceLinkUp(LinkKey),
    /// The device is notified that its link is down, or could not be opened.
    DeviceLinkDown(LinkKey),
    /// The server is notified that a link was closed.
    ServerLinkDown(LinkKey),
    Fault(Fault),
    DiskHeals,
    /// All faults end.
    Heal,
    /// All links are reset, so that every device sends a hello.
    ReconnectAll,
    /// An hour of virtual time has passed.
    Hour(u64),
}

/// A device and its link.
#[derive(Debug)]
pub struct Node {
    pub device: Device,
    pub link: Link,
    /// Input that arrived while the device was computing silently.
    pub unread: Vec<Vec<u8>>,
    /// Number of the device's current wake-up; earlier ones are ignored.
    pub wake_number: u64,
    /// Longest delay of an answer.
    pub max_delay: Millis,
}

/// State of a world.
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
    /// World time of the next scheduled run of the server core.
    pub next_tick: Option<Millis>,
    pub is_healed: bool,
    /// Length of the outage that follows the next power cut during a write.
    pub outage: Millis,
    /// Rounds that each device has paid for, according to the server's acknowledgements.
    paid: BTreeMap<DeviceId, BTreeSet<u32>>,
    pub watcher: &'a mut dyn Watcher,
}

/// Runs the world of a seed.
///
/// # Errors
/// The first broken invariant.
pub fn run(seed: u64, kind: Kind, watcher: &mut dyn Watcher) -> Result<Report, Violation> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let plan = Plan::new(seed, &mut random, kind).map_err(Violation::new)?;
    let keys = plan.is_encrypted.then(|| {
        let name = format!("fedspan-disasters-{}-{seed}", std::process::id());
        std::env::temp_dir().join(name)
    });
    let result =
        run_world(seed, &plan, random, keys.as_ref().map(|directory| directory.join("keys")), watcher);
    if let Some(directory) = keys {
        let _ = std::fs::remove_dir_all(directory);
    }
    result
}

/// Builds the world of a plan and runs it.
fn run_world(
    seed: u64,
    plan: &Plan,
    mut random: ChaCha8Rng,
    keys: Option<PathBuf>,
    watcher: &mut dyn Watcher,
) -> Result<Report, Violation> {
    let disk = Disk::new(seed);
    if matches!(plan.kind, Kind::Day { .. }) {
        disk.reserve(DISK_CAPACITY);
    }
    let server = Server::new(plan.fleet.clone(), disk, keys, plan.is_serial, seed).map_err(Violation::new)?;
    let slowest = match plan.kind {
        Kind::Hectic => 4_000,
        Kind::Day { .. } => 600_000,
        Kind::Sleeping { .. } => 100,
    };
    let nodes = (0..plan.dataset.clients.len())
        .map(|index| {
            let id = index as u64;
            let protection = server.key(DeviceId(id)).map_or(Protection::Plaintext, Protection::Key);
            Node {
                device: Device::new(id, protection),
                link: Link::new(plan.is_serial, &mut random),
                unread: Vec::new(),
                wake_number: 0,
                max_delay: Millis::new(draw_within(&mut random, 1, slowest)),
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
        outage: Millis::ZERO,
        paid: BTreeMap::new(),
        watcher,
    };
    world.schedule_faults();
    world.run()
}

impl World<'_> {
    /// Schedules the first boot of server and devices, and all faults.
    fn schedule_faults(&mut self) {
        if self.watcher.wants_events() {
            let Plan { scenario, fleet, is_encrypted, is_private, is_serial, .. } = self.plan;
            let description = format!(
                "{} devices, encrypted: {is_encrypted}, private: {is_private}, serial: {is_serial}, {:?}, {:?}, {:?}, absence {:?}, {} rounds",
                self.nodes.len(),
                scenario.participation,
                scenario.rule,
                fleet.rounds,
                fleet.absence,
                scenario.algorithm.rounds,
            );
            self.watcher.event(Millis::ZERO, &description);
        }
        self.queue.schedule_at(Millis::ZERO, Event::ServerBoot);
        for index in 0..self.nodes.len() {
            let mut time = draw_within(&mut self.random, 0, 3_000);
            if let Kind::Sleeping { devices, period, .. } = self.plan.kind {
                time = 10 + index as u64 * 1_000 * period / devices;
            }
            self.queue.schedule_at(Millis::new(time), Event::DeviceBoot(index));
        }
        let horizon = fault_schedule::draw_horizon(&mut self.random, self.plan.kind);
        let devices = self.nodes.len();
        let faults = match self.plan.kind {
            Kind::Hectic => {
                fault_schedule::draw_faults(&mut self.random, devices, horizon, self.plan.is_encrypted)
            }
            Kind::Day { .. } => {
                (1..=24).for_each(|hour| {
                    self.queue.schedule_at(Millis::new(hour * HOUR.as_u64()), Event::Hour(hour))
                });
                fault_schedule::draw_day_faults(&mut self.random, devices)
            }
            Kind::Sleeping { .. } => Vec::new(),
        };
        for (time, fault) in faults {
            self.queue.schedule_at(time, Event::Fault(fault));
        }
        self.queue.schedule_at(horizon, Event::Heal);
        self.queue.schedule_at(Millis::ZERO, Event::Heartbeat);
    }

    /// Handles events until the campaign has ended and every device has sent two more hellos.
    fn run(mut self) -> Result<Report, Violation> {
        // Time of the last commit since the faults ended, and the number of rounds at that time.
        let (mut last_commit, mut rounds) = (None, 0);
        let mut end = None;
        while let Some(event) = self.queue.next() {
            let now = self.queue.now();
            self.report.events += 1;
            self.handle(now, event)?;
            let has_committed = self.history.rounds() != rounds;
            if has_committed {
                self.report.last_commit = now;
            }
            if self.is_healed && (last_commit.is_none() || has_committed) {
                last_commit = Some(now);
            }
            rounds = self.history.rounds();
            // A day ends on time, even if the campaign is not finished.
            let finished = matches!(self.plan.kind, Kind::Day { .. }) && self.is_healed
                || matches!(self.server.phase(), Some(Phase::Finished | Phase::FitHead));
            if let (Some(_), None, true, false) = (last_commit, end, finished, self.is_turn_planned) {
                // Every device sends two more hellos. An update still in flight arrives between them.
                end = Some(now + Millis::new(240_000));
                self.queue.schedule_at(now, Event::ReconnectAll);
                self.queue.schedule_at(now + Millis::new(120_000), Event::ReconnectAll);
            }
            if end.is_some_and(|end| now >= end) {
                break;
            }
            if end.is_none() && last_commit.is_some_and(|last_commit| now > last_commit + STUCK_AFTER) {
                let open =
                    self.server.coordinator().and_then(|coordinator| coordinator.engine().open_round());
                let open = open
                    .map(|round| (round.broadcast.id, &round.cohort, &round.participants, &round.excluded));
                return Err(Violation::new(format!(
                    "no commit for two hours: the campaign is in {:?}, the open round is {open:?}",
                    self.server.phase()
                )));
            }
        }
        self.finish()
    }

    /// Checks the durable state and the accounts at the end of the world.
    fn finish(mut self) -> Result<Report, Violation> {
        let Some(coordinator) = self.server.coordinator() else {
            return Err(Violation::new("the server is off at the end of the world"));
        };
        let (rounds, counted) = self.history.verify(self.plan, coordinator)?;
        if self.plan.is_private {
            let accounts = coordinator.engine().ledger().accounts();
            for (id, node) in (0..).map(DeviceId).zip(&self.nodes) {
                let known = accounts.get(&id).map(|account| account.spent);
                if node.device.spent() != known && !self.history.is_revoked(id) {
                    return Err(Violation::new(format!(
                        "device {id} has spent {:?}, but the server's account has {known:?}",
                        node.device.spent()
                    )));
                }
            }
        }
        self.report.faults.stalls = self.server.stalls;
        self.report = Report { rounds, counted, time: self.queue.now(), ..self.report };
        Ok(self.report)
    }

    /// Handles one event, then applies its effects.
    fn handle(&mut self, now: Millis, event: Event) -> Result<(), Violation> {
        if self.watcher.wants_events()
            && !matches!(
                event,
                Event::ServerTick
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
                        self.queue.schedule_after(Millis::new(1_000), Event::ServerBoot);
                    }
                }
            }
            Event::ServerTurn => {
                self.is_turn_planned = false;
                self.server.run_core(now, &mut out)?;
            }
            Event::ServerTick => {
                self.next_tick = None;
                self.server.run_core(now, &mut out)?;
            }
            Event::Heartbeat => self.queue.schedule_after(HEARTBEAT, Event::Heartbeat),
            Event::Due(link) => self.server.check_deadlines(now, link, &mut out),
            Event::Commands(link, boot) => {
                if boot == self.server.boots() {
                    self.server.run_commands(now, link, &mut out);
                }
            }
            Event::DeviceBoot(index) => self.boot_device(now, index)?,
            Event::DeviceWake(index, wake) => {
                if self.nodes.get(index).is_some_and(|node| node.wake_number == wake) {
                    self.wake_device(now, index)?;
                }
            }
            Event::ToDevice(link, bytes) => {
                if let Some(node) = self.node(link) {
                    node.unread.push(bytes);
                    self.deliver_input(now, link.0)?;
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
                self.server.read_everything()?;
                self.watcher.hour(
                    (Millis::new(hour)).as_u64(),
                    self.history.rounds(),
                    self.server.disk.memory() as u64,
                );
            }
            Event::ReconnectAll => (0..self.nodes.len()).for_each(|index| self.reset_link(now, index)),
        }
        if self.server.is_cut() {
            // The power failed before this output left the server.
            out.clear();
            self.power_off_server(now, self.outage);
        }
        self.apply_server_output(now, out)?;
        self.schedule_server(now);
        Ok(())
    }

    fn is_fitting(&self) -> bool {
        matches!(self.server.phase(), Some(Phase::FitHead | Phase::Finished))
    }

    /// Counts a restart into an open round, and checks all accounts.
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

    /// Checks that the server's account of a device covers every round that the device has paid for.
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
            "device {device} has paid {paid} for counted updates, but the server's account has {known}"
        )))
    }

    /// Returns the node of a link, unless the device has a newer connection.
    pub fn node(&mut self, (index, number): LinkKey) -> Option<&mut Node> {
        self.nodes.get_mut(index).filter(|node| node.link.number == number)
    }

    /// Returns the device at an index.
    #[allow(clippy::indexing_slicing, reason = "every link belongs to a device")]
    pub fn device(&mut self, index: usize) -> &mut Device {
        &mut self.nodes[index].device
    }

    /// Schedules the server core: within 30 ms if messages wait, and when its next timer is due.
    fn schedule_server(&mut self, now: Millis) {
        if self.server.has_messages() && !std::mem::replace(&mut self.is_turn_planned, true) {
            let wait = draw_within(&mut self.random, 0, 30);
            self.queue.schedule_after(Millis::new(wait), Event::ServerTurn);
        }
        if let Some(wake) = self.server.wake(now)
            && self.next_tick.is_none_or(|next_tick| wake < next_tick)
        {
            self.next_tick = Some(wake);
            self.queue.schedule_at(wake, Event::ServerTick);
        }
    }

    /// Notifies a device that its connection failed, after the end of a partition.
    pub fn refuse_link(&mut self, now: Millis, link: LinkKey) {
        if self.plan.is_serial {
            return;
        }
        let Some(node) = self.node(link) else { return };
        let time = now.max(node.link.partitioned_until) + node.link.quality.latency;
        self.queue.schedule_at(time, Event::DeviceLinkDown(link));
    }

    /// Starts a device that has no power.
    fn boot_device(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        let clock_offset = draw_within(&mut self.random, 0, 1 << 20);
        let (plan, seed, is_serial) = (self.plan, self.seed, self.plan.is_serial);
        let Some(node) = self.nodes.get_mut(index).filter(|node| !node.device.is_on()) else {
            return Ok(());
        };
        node.device.boot(plan, seed, Millis::new(clock_offset))?;
        node.unread.clear();
        if is_serial {
            node.link.is_up = true;
            let output = node.device.link_up(now)?;
            return self.apply_device_output(now, index, output);
        }
        self.wake_device(now, index)
    }

    /// Handles a due timer of a device: ticks it, delivers unread input, and reconnects it if it has no link.
    pub fn wake_device(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
        let output = self.device(index).tick(now)?;
        let lost_power = output.lost_power;
        self.apply_device_output(now, index, output)?;
        if !lost_power {
            self.deliver_input(now, index)?;
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
            self.queue.schedule_after(latency, Event::ServerLinkUp(link));
            self.queue.schedule_after(latency + latency, Event::DeviceLinkUp(link));
        }
        Ok(())
    }

    /// Delivers the device's unread input, unless the device is computing silently.
    fn deliver_input(&mut self, now: Millis, index: usize) -> Result<(), Violation> {
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

    /// Applies the effects of an event on a device.
    fn apply_device_output(
        &mut self,
        now: Millis,
        index: usize,
        output: DeviceOutput,
    ) -> Result<(), Violation> {
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        if output.lost_power {
            let duration = draw_within(&mut self.random, 20, 10_000);
            self.report.faults.device_power_cuts += 1;
            self.report.faults.flash_cuts += 1;
            self.power_off_device(now, index, Millis::new(duration));
            return Ok(());
        }
        if output.counted > 0 {
            self.history.record_observed_ack(DeviceId(index as u64), node.device.last_round());
        }
        let number = node.link.number;
        for frame in output.frames {
            // A long answer takes time to compute; meanwhile the device may send it again.
            let thinking_time = match self.plan.kind {
                Kind::Hectic if frame.len() > LONG_FRAME => {
                    draw_within(&mut self.random, 0, node.max_delay.as_u64())
                }
                _ => 0,
            };
            for (arrival, bytes) in
                node.link.send(now + Millis::new(thinking_time), true, frame, &mut self.random)
            {
                self.queue.schedule_at(arrival, Event::ToServer((index, number), bytes));
            }
        }
        if let Some(wake) = output.wake {
            node.wake_number += 1;
            self.queue.schedule_at(wake, Event::DeviceWake(index, node.wake_number));
        }
        if output.closes {
            node.link.is_up = false;
            node.unread.clear();
            let (link, latency) = ((index, number), node.link.quality.latency);
            if !self.plan.is_serial {
                self.queue.schedule_after(latency, Event::ServerLinkDown(link));
            }
            let output = self.device(index).link_down(now)?;
            return self.apply_device_output(now, index, output);
        }
        Ok(())
    }

    /// Applies the server's outputs.
    fn apply_server_output(&mut self, now: Millis, out: Vec<ServerOutput>) -> Result<(), Violation> {
        for output in out {
            match output {
                ServerOutput::Bytes(link, bytes) => {
                    if let Some(node) = self.nodes.get_mut(link.0).filter(|node| node.link.number == link.1) {
                        // In a day-long world, devices are busy before they read an invitation.
                        let busy = match self.plan.kind {
                            Kind::Day { .. } if bytes.len() > LONG_FRAME => {
                                draw_within(&mut self.random, 0, node.max_delay.as_u64())
                            }
                            _ => 0,
                        };
                        for (arrival, bytes) in
                            node.link.send(now + Millis::new(busy), false, bytes, &mut self.random)
                        {
                            self.queue.schedule_at(arrival, Event::ToDevice(link, bytes));
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
                ServerOutput::Due(link, time) => self.queue.schedule_at(time, Event::Due(link)),
                // Most commands are handled at once. A task that is busy, or waits for its socket, handles
                // them later.
                ServerOutput::Commands(link) => {
                    let wait = if draw_chance(&mut self.random, 70) {
                        0
                    } else {
                        draw_within(&mut self.random, 1, 80)
                    };
                    self.queue.schedule_after(Millis::new(wait), Event::Commands(link, self.server.boots()));
                }
            }
        }
        Ok(())
    }
}
