//! Devices of a run with their connections to the server.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::memory::Shape;
use fedspan_client::session::{Config, Protection};
use fedspan_client::task::lanes::lanes;
use fedspan_engine::admission::Requirements;
use fedspan_engine::{Engine, RoundBroadcast};
use fedspan_protocol::message::{Numeric, Privacy, Refusal, Welcome};
use rayon::prelude::*;

use super::RunError;
use crate::data::{Client, Dataset};
use crate::evaluate::{ClientScore, score_device};
use crate::fleet::{
    BuildError, DeviceFactory, LaneRound, SavedDevice, SimDevice, StepsPool, deterministic_rng,
};
use crate::in_order::in_order;
use crate::network::{JoinTime, NetworkConfig};
use crate::scenario::Scenario;

/// Creates the acceptor, which admits devices by the requirements of a campaign. Frames are not encrypted,
/// since they do not leave the process.
#[must_use]
pub fn gate(scenario: &Scenario, build: &DeviceFactory, engine: &Engine) -> Arc<Acceptor> {
    let requirements = Requirements::new(build.model(), &engine.requests(), None);
    let welcome = Welcome { campaign: 1, idle_milliseconds: u32::MAX };
    Arc::new(Acceptor::plaintext(requirements.with_numeric(scenario.algorithm.numeric), welcome))
}

/// Number of devices from which on devices without work are put to sleep between rounds.
pub const AWAKE_MAX: usize = 8_192;

/// Largest number of devices that fit their final heads together if not all stay awake. The memory of so few stays in the second
/// cache.
const FITTING_MAX: usize = 1_024;

/// Number of devices that compute together of more than `awake_max`, which are put to sleep afterwards if it is not for `training`.
#[must_use]
pub fn portion(awake_max: usize, training: bool) -> usize {
    if training { awake_max.max(1) } else { awake_max.clamp(1, FITTING_MAX) }
}

/// Memory in bytes that the devices of a run take at least, with the records of those that sleep. `all_fit_heads` is true if
/// every client fits a final head, so that as many as may be are awake.
#[must_use]
pub fn least_memory(build: &DeviceFactory, dataset: &Dataset, awake_max: usize, all_fit_heads: bool) -> u64 {
    let clients = dataset.clients.len() as u64;
    let (awake, values) = match &build.network {
        // Devices of networks are always awake.
        Some(network) => (clients, network.shape.parameters() + build.prior_values()),
        None => {
            let Shape { features, width, outputs } = build.shape;
            let awake = match dataset.clients.len() {
                _ if !all_fit_heads => 0,
                clients if clients > awake_max => portion(awake_max, false),
                clients => clients,
            };
            (awake as u64, features * (width + outputs))
        }
    };
    // Buffers for a frame: of the device and of the server, for both directions.
    let device = size_of::<SimDevice>() + 4 * values + 3 * usize::from(build.frame_limit());
    let asleep = size_of::<Client>() + size_of::<Slot>() + size_of::<Mark>();
    clients.saturating_mul(asleep as u64).saturating_add(awake.saturating_mul(device as u64))
}

/// Device of a client.
#[derive(Debug)]
enum Slot {
    /// A device that has no memory of its own: it has not been asked yet, or it sleeps between two rounds with this state.
    Asleep {
        state: Option<Box<SavedDevice>>,
        /// Round that was sent to it and that it has not received yet.
        opening: Option<Arc<RoundBroadcast>>,
    },
    /// A device with its connection.
    Awake(Box<SimDevice>),
}

/// Bookkeeping of one device, so that work in a round grows with the devices that take part.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    is_active: bool,
    is_uncounted: bool,
    /// True if a round was sent to the device since it last processed frames.
    has_round: bool,
    /// Number of the last round that was sent to the device.
    round: u32,
    /// Uploaded and downloaded bytes that are counted, of the present connection.
    counted: (u64, u64),
}

/// Clients whose devices have joined together.
#[derive(Clone, Copy, Debug)]
struct Group<'a> {
    /// Number of the first device.
    first: usize,
    clients: &'a [Client],
    join_time: JoinTime,
}

/// All devices of a run, indexed by device number. Devices of linear models come to be when the first round is sent to them,
/// and sleep between rounds if there are many.
pub struct Devices<'a> {
    build: DeviceFactory,
    seed: u64,
    acceptor: Arc<Acceptor>,
    steps: StepsPool,
    groups: Vec<Group<'a>>,
    all: Vec<Slot>,
    /// Largest number of devices without work that stay awake between rounds.
    awake_max: usize,
    /// Representation of the last device that went to sleep.
    last_representation: Option<Arc<[f32]>>,
    /// Devices that are awake, in the order in which they woke.
    awake: Vec<usize>,
    /// State of the bookkeeping of each device.
    marks: Vec<Mark>,
    /// Devices that may have frames to process.
    active: Vec<usize>,
    /// Devices whose bytes may have changed since they were counted.
    uncounted: Vec<usize>,
    /// Uploaded and downloaded bytes that are counted in `marks`, and those of earlier connections.
    counted: (u64, u64),
    /// Privacy parameters that devices declare in their hello: those in f32, and those in fixed point.
    privacy: [Option<Privacy>; 2],
    /// Uploaded and downloaded bytes at the last call of `traffic_since`.
    last_traffic: (u64, u64),
    /// Uploaded and downloaded bytes before the devices were restored.
    traffic_before: (u64, u64),
}

impl<'a> Devices<'a> {
    /// Creates an empty set of devices.
    pub fn new(build: DeviceFactory, seed: u64, acceptor: Arc<Acceptor>) -> Self {
        Self {
            build,
            seed,
            acceptor,
            steps: StepsPool::default(),
            groups: Vec::new(),
            all: Vec::new(),
            awake_max: AWAKE_MAX,
            last_representation: None,
            awake: Vec::new(),
            marks: Vec::new(),
            active: Vec::new(),
            uncounted: Vec::new(),
            counted: (0, 0),
            privacy: [None; 2],
            last_traffic: (0, 0),
            traffic_before: (0, 0),
        }
    }

    /// Sets the number of devices from which on devices without work are put to sleep between rounds.
    pub fn set_awake_max(&mut self, awake_max: usize) {
        self.awake_max = awake_max;
    }

    /// Number of devices without work that stay awake between rounds.
    pub fn awake_max(&self) -> usize {
        self.awake_max
    }

    /// Adds a device for each client. One device of each kind is connected, which exchanges hello, admission and welcome as
    /// with a server. The others have the same capabilities; they connect when a round is sent to them.
    ///
    /// # Errors
    /// [`RunError::Refused`] if a hello does not meet the campaign's requirements, [`RunError::Build`] if a
    /// device cannot be built.
    pub fn connect(&mut self, clients: &'a [Client], join_time: JoinTime) -> Result<(), RunError> {
        self.add(clients, join_time, clients.iter().map(|_| None))
    }

    /// Adds a device for each client, with the saved states, and continues the count of bytes.
    ///
    /// # Errors
    /// Errors of [`Self::connect`], and [`RunError::Build`] if the states belong to other devices.
    pub fn restore(
        &mut self,
        clients: &'a [Client],
        states: &[SavedDevice],
        traffic: (u64, u64),
    ) -> Result<(), RunError> {
        if clients.len() != states.len() {
            let message =
                format!("the saved run has {} devices, but the data have {}", states.len(), clients.len());
            return Err(RunError::Mismatch(message));
        }
        self.add(
            clients,
            JoinTime::BeforeTraining,
            states.iter().map(|state| Some(Box::new(state.clone()))),
        )?;
        (self.traffic_before, self.last_traffic) = (traffic, traffic);
        Ok(())
    }

    /// Adds devices with states.
    fn add(
        &mut self,
        clients: &'a [Client],
        join_time: JoinTime,
        states: impl Iterator<Item = Option<Box<SavedDevice>>>,
    ) -> Result<(), RunError> {
        let first = self.all.len();
        self.groups.push(Group { first, clients, join_time });
        self.all.extend(states.map(|state| Slot::Asleep { state, opening: None }));
        self.marks.resize(self.all.len(), Mark::default());
        for index in first..self.all.len() {
            // Networks are scored on their devices.
            let is_first_of_kind = self.privacy_of_kind(index).is_none();
            if is_first_of_kind || self.build.network.is_some() {
                self.wake(index)?;
            }
        }
        Ok(())
    }

    /// Privacy parameters of devices of the same kind as this device.
    fn privacy_of_kind(&mut self, index: usize) -> &mut Option<Privacy> {
        let [f32s, integers] = &mut self.privacy;
        match self.build.arithmetic.numeric_of(index as u64) {
            Numeric::I16 => integers,
            _ => f32s,
        }
    }

    /// Connects the device of a client: hello, admission and welcome.
    fn create(
        &self,
        index: usize,
        state: Option<&SavedDevice>,
    ) -> Result<(Box<SimDevice>, Privacy), RunError> {
        let group = self.groups.iter().rfind(|group| group.first <= index).ok_or(RunError::Silent)?;
        let client = group.clients.get(index - group.first).ok_or(RunError::Silent)?;
        let (id, protection) = (index as u64, Protection::Plaintext);
        let config = Config { frame_limit: self.build.frame_limit(), ..Config::new(id) };
        let random = deterministic_rng(self.seed, id);
        let session = match state {
            Some(state) => self.build.restored_session(config, client, state, random)?,
            None => self.build.session(config, protection, client, group.join_time, random)?,
        };
        let mut device = Box::new(SimDevice::connect(session, Arc::clone(&self.acceptor)));
        let mut privacy = Privacy::None;
        for inbound in device.inbox.drain(..) {
            match inbound {
                PeerMessage::Hello(hello) => privacy = hello.capabilities.privacy,
                PeerMessage::Refused(Refusal::FrameLimit { min, .. })
                    if usize::from(min) > self.build.longest_frame =>
                {
                    let longest = self.build.longest_frame;
                    let message = format!(
                        "a round needs frames of {min} bytes, and packets of [fleet] radio carry at most {longest}"
                    );
                    return Err(BuildError(message).into());
                }
                PeerMessage::Refused(refusal) => return Err(RunError::Refused { client: id, refusal }),
                _ => return Err(RunError::Silent),
            }
        }
        device.pump();
        device.connection.reset_traffic();
        Ok((device, privacy))
    }

    /// Returns a device, which is connected first if it sleeps, and sent the round that it has not received yet. Its frames
    /// are processed by the next [`Self::pump`].
    ///
    /// # Errors
    /// Errors of [`Self::connect`], and [`RunError::Silent`] if there is no such device.
    pub fn wake(&mut self, index: usize) -> Result<&mut SimDevice, RunError> {
        self.wake_all(&[index])?;
        self.get(index).ok_or(RunError::Silent)
    }

    /// Sends a round to a device. If the device sleeps, it connects when it processes the round.
    pub fn open(&mut self, index: usize, round: &Arc<RoundBroadcast>) {
        self.activate(index);
        if let Some(mark) = self.marks.get_mut(index) {
            (mark.has_round, mark.round) = (true, round.id.round);
        }
        match self.all.get_mut(index) {
            Some(Slot::Awake(device)) => device.connection.open(round),
            Some(Slot::Asleep { opening, .. }) => *opening = Some(Arc::clone(round)),
            None => {}
        }
    }

    /// Puts devices to sleep that have no frames to process and `has_work` is false for, if more than `limit` are awake. Only
    /// devices to which round `current` was not sent sleep: the others may be sent a round that refers to this one.
    pub fn rest(&mut self, limit: usize, current: u32, has_work: impl Fn(usize) -> bool) {
        // Devices of networks keep their networks, on which they are scored.
        if self.awake.len() <= limit || self.build.network.is_some() {
            return;
        }
        for index in std::mem::take(&mut self.awake) {
            let rests = self.marks.get(index).is_some_and(|mark| !mark.is_active && mark.round < current)
                && !has_work(index);
            let state = match self.all.get(index) {
                Some(Slot::Awake(device)) if rests => {
                    Some(Box::new(SavedDevice::of(device).sharing(&mut self.last_representation)))
                }
                _ => {
                    self.awake.push(index);
                    continue;
                }
            };
            self.count_traffic_of(index);
            if let (Some(slot), Some(mark)) = (self.all.get_mut(index), self.marks.get_mut(index)) {
                *slot = Slot::Asleep { state, opening: None };
                mark.counted = (0, 0);
            }
        }
    }

    /// Scores of clients that would join now: each fits a head in the round `opening` on a device of its own, which is not
    /// one of these devices. Clients are processed in parallel; results are in their order.
    ///
    /// # Errors
    /// Errors of [`Self::connect`].
    pub fn score_visitors(
        &self,
        clients: &[Client],
        opening: &Arc<RoundBroadcast>,
        shape: Shape,
    ) -> Result<Vec<ClientScore>, RunError> {
        let limit = self.build.frame_limit();
        let first = self.all.len();
        let score = |(index, client): (usize, &Client)| {
            let id = (first + index) as u64;
            let config = Config { frame_limit: limit, ..Config::new(id) };
            let (random, join_time) =
                (deterministic_rng(self.seed, id), JoinTime::AfterTraining { epochs: 0 });
            let session = self.build.session(config, Protection::Plaintext, client, join_time, random)?;
            let mut device = SimDevice::connect(session, Arc::clone(&self.acceptor));
            device.pump();
            device.connection.open(opening);
            device.pump();
            Ok(score_device(device.session.task_mut(), client, shape))
        };
        clients.par_iter().enumerate().map(score).collect()
    }

    /// Privacy parameters that a device declared in its hello, or that a device of the same kind declared.
    pub fn privacy(&mut self, device: u64) -> Privacy {
        let index = usize::try_from(device).unwrap_or(usize::MAX);
        self.privacy_of_kind(index).unwrap_or_default()
    }

    /// Settings of the devices' networks; `None` for linear models.
    pub fn network(&self) -> Option<&NetworkConfig> {
        self.build.network.as_ref()
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Devices that are awake, in the order of their numbers. Those of networks are always awake.
    pub fn awake(&self) -> impl Iterator<Item = &SimDevice> {
        self.all.iter().filter_map(|slot| match slot {
            Slot::Awake(device) => Some(&**device),
            Slot::Asleep { .. } => None,
        })
    }

    /// State of every device.
    ///
    /// # Errors
    /// Errors of [`Self::connect`].
    pub fn saved(&self) -> Result<Vec<SavedDevice>, RunError> {
        let saved = |(index, slot): (usize, &Slot)| match slot {
            Slot::Awake(device) => Ok(SavedDevice::of(device)),
            Slot::Asleep { state: Some(state), .. } => Ok(SavedDevice::clone(state)),
            Slot::Asleep { state: None, .. } => Ok(SavedDevice::of(&self.create(index, None)?.0)),
        };
        self.all.par_iter().enumerate().map(saved).collect()
    }

    /// Device with this index, if it is awake. Its frames are processed by the next [`Self::pump`].
    pub fn get(&mut self, index: usize) -> Option<&mut SimDevice> {
        if !matches!(self.all.get(index), Some(Slot::Awake(_))) {
            return None;
        }
        self.activate(index);
        match self.all.get_mut(index) {
            Some(Slot::Awake(device)) => Some(device),
            _ => None,
        }
    }

    /// Notes that a device has frames to process.
    fn activate(&mut self, index: usize) {
        let Some(mark) = self.marks.get_mut(index) else { return };
        if !std::mem::replace(&mut mark.is_active, true) {
            self.active.push(index);
        }
        if !std::mem::replace(&mut mark.is_uncounted, true) {
            self.uncounted.push(index);
        }
    }

    /// Leaves the frames of devices pending until [`Self::take_up`].
    pub fn set_aside(&mut self, devices: impl Iterator<Item = usize>) {
        let mut is_later = vec![false; self.all.len()];
        for index in devices {
            if let Some(is_later) = is_later.get_mut(index) {
                *is_later = true;
            }
        }
        self.active.retain(|index| is_later.get(*index).is_none_or(|later| !later));
    }

    /// Lets the frames of devices that were set aside be processed.
    pub fn take_up(&mut self, devices: impl Iterator<Item = usize>) {
        let marks = &self.marks;
        self.active.extend(devices.filter(|index| marks.get(*index).is_some_and(|mark| mark.is_active)));
    }

    /// Processes the pending frames of all devices except those for which `waits` is true. Devices that sleep connect first.
    /// Devices are processed in parallel, in portions that are large enough to outweigh the overhead of threads. Those that
    /// were sent `round` compute its steps in lanes.
    ///
    /// # Errors
    /// Errors of [`Self::connect`].
    pub fn pump(
        &mut self,
        round: Option<&RoundBroadcast>,
        waits: impl Fn(usize) -> bool,
    ) -> Result<(), RunError> {
        self.pump_in_order(round, waits, &[], |_, _| {})
    }

    /// Processes pending frames like [`Self::pump`]. Meanwhile calls `deliver` for each number in `order` and its device, in
    /// this order, as soon as the frames of the device have been processed, and then processes the frames that `deliver` has sent it.
    /// Numbers without a device are delivered, too.
    ///
    /// # Errors
    /// Errors of [`Self::connect`].
    pub fn pump_in_order(
        &mut self,
        round: Option<&RoundBroadcast>,
        waits: impl Fn(usize) -> bool,
        order: &[usize],
        mut deliver: impl FnMut(usize, Option<&mut SimDevice>) + Send,
    ) -> Result<(), RunError> {
        let (mut ready, waiting): (Vec<usize>, Vec<usize>) =
            std::mem::take(&mut self.active).into_iter().partition(|index| !waits(*index));
        self.active = waiting;
        ready.sort_unstable();
        self.wake_all(&ready)?;
        let round = round.and_then(LaneRound::of);
        let mut devices: Vec<(usize, Option<&mut SimDevice>)> = Vec::with_capacity(ready.len());
        let mut has_rounds = true;
        let (mut rest, mut first) = (self.all.as_mut_slice(), 0);
        for index in ready {
            if let Some(mark) = self.marks.get_mut(index) {
                mark.is_active = false;
                let is_of_round = round.as_ref().is_some_and(|round| round.id.round == mark.round);
                has_rounds &= std::mem::take(&mut mark.has_round) && is_of_round;
                if !std::mem::replace(&mut mark.is_uncounted, true) {
                    self.uncounted.push(index);
                }
            }
            let Some((slot, after)) = rest.split_at_mut(index - first).1.split_first_mut() else { break };
            if let Slot::Awake(device) = slot {
                devices.push((index, Some(&mut **device)));
            }
            (rest, first) = (after, index + 1);
        }
        // Mostly the order is that of the devices.
        let mut next = 0;
        let answering = order.iter().map(|index| {
            if devices.get(next).is_none_or(|(other, _)| other != index) {
                next = devices.binary_search_by_key(index, |(index, _)| *index).unwrap_or(usize::MAX);
            }
            let device = devices.get_mut(next).and_then(|(_, device)| device.take());
            next = next.saturating_add(1);
            (*index, device)
        });
        let mut answering: Vec<_> = answering.collect();
        devices.retain(|(_, device)| device.is_some());
        let group = if has_rounds { lanes() } else { 1 };
        let portion = (answering.len().max(devices.len()) / (64 * group)).max(1) * group;
        let (pool, round) = (&self.steps, round.as_ref().filter(|_| has_rounds));
        let work = |portion: &mut [(usize, Option<&mut SimDevice>)]| {
            let Some(round) = round else {
                return portion
                    .iter_mut()
                    .filter_map(|(_, device)| device.as_deref_mut())
                    .for_each(SimDevice::pump);
            };
            let mut memory = pool.take();
            for group in portion.chunks_mut(group) {
                let mut group: Vec<_> =
                    group.iter_mut().filter_map(|(_, device)| device.as_deref_mut()).collect();
                round.prepare(&mut group, &mut memory.steps);
                group.iter_mut().for_each(|device| device.pump());
            }
        };
        devices.par_chunks_mut(portion).for_each(work);
        in_order(
            answering.chunks_mut(portion),
            |portion| work(portion),
            |portion| {
                portion.iter_mut().for_each(|(index, device)| deliver(*index, device.as_deref_mut()));
            },
            // Their acknowledgements.
            |portion| {
                portion.iter_mut().filter_map(|(_, device)| device.as_deref_mut()).for_each(SimDevice::pump);
            },
        );
        Ok(())
    }

    /// Connects those of the devices that sleep.
    fn wake_all(&mut self, devices: &[usize]) -> Result<(), RunError> {
        let sleepers: Vec<usize> = devices
            .iter()
            .copied()
            .filter(|index| matches!(self.all.get(*index), Some(Slot::Asleep { .. })))
            .collect();
        let portion = (sleepers.len() / 64).max(1);
        let woken: Vec<_> = sleepers
            .par_iter()
            .with_min_len(portion)
            .map(|&index| {
                let Some(Slot::Asleep { state, opening }) = self.all.get(index) else {
                    return Err(RunError::Silent);
                };
                let (mut device, privacy) = self.create(index, state.as_deref())?;
                if let Some(opening) = opening {
                    device.connection.open(opening);
                }
                Ok((index, device, privacy))
            })
            .collect::<Result<_, RunError>>()?;
        for (index, device, privacy) in woken {
            self.privacy_of_kind(index).get_or_insert(privacy);
            if let Some(slot) = self.all.get_mut(index) {
                *slot = Slot::Awake(device);
                self.awake.push(index);
            }
        }
        Ok(())
    }

    /// Numbers of uploaded and downloaded bytes so far.
    pub fn traffic(&self) -> (u64, u64) {
        let before = (self.traffic_before.0 + self.counted.0, self.traffic_before.1 + self.counted.1);
        self.uncounted.iter().fold(before, |(up, down), index| {
            let (new_up, new_down) = self.uncounted_traffic(*index);
            (up + new_up, down + new_down)
        })
    }

    /// Numbers of bytes of a device that are not counted yet.
    fn uncounted_traffic(&self, index: usize) -> (u64, u64) {
        let (Some(Slot::Awake(device)), Some(mark)) = (self.all.get(index), self.marks.get(index)) else {
            return (0, 0);
        };
        let traffic = device.traffic();
        (traffic.up - mark.counted.0, traffic.down - mark.counted.1)
    }

    /// Counts the bytes of a device.
    fn count_traffic_of(&mut self, index: usize) {
        let (up, down) = self.uncounted_traffic(index);
        self.counted = (self.counted.0 + up, self.counted.1 + down);
        if let Some(mark) = self.marks.get_mut(index) {
            mark.counted = (mark.counted.0 + up, mark.counted.1 + down);
        }
    }

    /// Counts the bytes of all devices.
    fn count_traffic(&mut self) {
        for index in std::mem::take(&mut self.uncounted) {
            self.count_traffic_of(index);
            if let Some(mark) = self.marks.get_mut(index) {
                mark.is_uncounted = false;
            }
        }
    }

    /// Numbers of uploaded and downloaded bytes since the previous call.
    pub fn traffic_since(&mut self) -> (u64, u64) {
        self.count_traffic();
        let current = self.traffic();
        let previous = std::mem::replace(&mut self.last_traffic, current);
        (current.0 - previous.0, current.1 - previous.1)
    }

    /// Numbers of uploaded and downloaded bytes at the last call of [`Self::traffic_since`].
    pub fn last_traffic(&self) -> (u64, u64) {
        self.last_traffic
    }
}
