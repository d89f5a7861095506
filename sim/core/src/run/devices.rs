//! Devices of a run with their connections to the server.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::memory::Shape;
use fedspan_client::session::{Config, Protection};
use fedspan_engine::admission::Requirements;
use fedspan_engine::{Engine, RoundBroadcast};
use fedspan_protocol::message::{Privacy, Refusal, Welcome};
use rayon::prelude::*;

use super::RunError;
use crate::data::Client;
use crate::evaluate::{ClientScore, score_device};
use crate::fleet::{BuildError, DeviceFactory, SavedDevice, SimDevice, SimSession, deterministic_rng};
use crate::network::JoinTime;
use crate::scenario::Scenario;

/// Creates the acceptor, which admits devices by the requirements of a campaign. Frames are not encrypted,
/// since they do not leave the process.
#[must_use]
pub fn gate(scenario: &Scenario, build: &DeviceFactory, engine: &Engine) -> Arc<Acceptor> {
    let requirements = Requirements::new(build.model(), &engine.requests(), None);
    let welcome = Welcome { campaign: 1, idle_milliseconds: u32::MAX };
    Arc::new(Acceptor::plaintext(requirements.with_numeric(scenario.algorithm.numeric), welcome))
}

/// Bookkeeping of one device, so that work in a round grows with the devices that take part.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    is_active: bool,
    is_uncounted: bool,
    /// Uploaded and downloaded bytes that are counted.
    counted: (u64, u64),
}

/// All devices of a run, indexed by device number.
pub struct Devices {
    build: DeviceFactory,
    seed: u64,
    acceptor: Arc<Acceptor>,
    all: Vec<SimDevice>,
    /// State of the bookkeeping of each device.
    marks: Vec<Mark>,
    /// Devices that may have frames to process.
    active: Vec<usize>,
    /// Devices whose bytes may have changed since they were counted.
    uncounted: Vec<usize>,
    /// Uploaded and downloaded bytes that are counted in `marks`.
    counted: (u64, u64),
    /// Privacy parameters that each device declared in its hello.
    privacy: Vec<Privacy>,
    /// Uploaded and downloaded bytes at the last call of `traffic_since`.
    last_traffic: (u64, u64),
    /// Uploaded and downloaded bytes before the devices were restored.
    traffic_before: (u64, u64),
}

impl Devices {
    /// Creates an empty set of devices.
    pub fn new(build: DeviceFactory, seed: u64, acceptor: Arc<Acceptor>) -> Self {
        Self {
            build,
            seed,
            acceptor,
            all: Vec::new(),
            marks: Vec::new(),
            active: Vec::new(),
            uncounted: Vec::new(),
            counted: (0, 0),
            privacy: Vec::new(),
            last_traffic: (0, 0),
            traffic_before: (0, 0),
        }
    }

    /// Creates and connects a device for each client. Hello, admission and welcome are exchanged as with a
    /// server.
    ///
    /// # Errors
    /// [`RunError::Refused`] if a hello does not meet the campaign's requirements, [`RunError::Build`] if a
    /// device cannot be built.
    pub fn connect(&mut self, clients: &[Client], join_time: JoinTime) -> Result<(), RunError> {
        let limit = self.build.frame_limit();
        for client in clients {
            let id = self.all.len() as u64;
            let config = Config { frame_limit: limit, ..Config::new(id) };
            let (protection, random) = (Protection::Plaintext, deterministic_rng(self.seed, id));
            let session = self.build.session(config, protection, client, join_time, random)?;
            self.add(id, session)?;
        }
        Ok(())
    }

    /// Creates and connects a device for each client, with the saved states, and continues the count of bytes.
    ///
    /// # Errors
    /// Errors of [`Self::connect`], and [`RunError::Build`] if the states belong to other devices.
    pub fn restore(
        &mut self,
        clients: &[Client],
        states: &[SavedDevice],
        traffic: (u64, u64),
    ) -> Result<(), RunError> {
        let limit = self.build.frame_limit();
        if clients.len() != states.len() {
            let message =
                format!("the saved run has {} devices, but the data have {}", states.len(), clients.len());
            return Err(RunError::Mismatch(message));
        }
        for (client, state) in clients.iter().zip(states) {
            let id = self.all.len() as u64;
            let config = Config { frame_limit: limit, ..Config::new(id) };
            let random = deterministic_rng(self.seed, id);
            self.add(id, self.build.restored_session(config, client, state, random)?)?;
        }
        (self.traffic_before, self.last_traffic) = (traffic, traffic);
        Ok(())
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

    /// Connects a device: hello, admission and welcome.
    fn add(&mut self, id: u64, session: SimSession) -> Result<(), RunError> {
        let mut device = SimDevice::connect(session, Arc::clone(&self.acceptor));
        for inbound in device.inbox.drain(..) {
            match inbound {
                PeerMessage::Hello(hello) => self.privacy.push(hello.capabilities.privacy),
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
        self.all.push(device);
        self.marks.push(Mark::default());
        Ok(())
    }

    /// Privacy parameters that a device declared in its hello.
    pub fn privacy(&self, device: u64) -> Privacy {
        let privacy = usize::try_from(device).ok().and_then(|index| self.privacy.get(index));
        privacy.copied().unwrap_or_default()
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All devices, in the order of their numbers.
    pub fn as_slice(&self) -> &[SimDevice] {
        &self.all
    }

    /// Device with this index. Its frames are processed by the next [`Self::pump`].
    pub fn get(&mut self, index: usize) -> Option<&mut SimDevice> {
        let mark = self.marks.get_mut(index)?;
        if !std::mem::replace(&mut mark.is_active, true) {
            self.active.push(index);
        }
        if !std::mem::replace(&mut mark.is_uncounted, true) {
            self.uncounted.push(index);
        }
        self.all.get_mut(index)
    }

    /// Iterates over all devices in the order of their numbers.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, SimDevice> {
        self.all.iter_mut()
    }

    /// Processes the pending frames of all devices except those for which `waits` is true. Devices are
    /// processed in parallel, in portions that are large enough to outweigh the overhead of threads.
    pub fn pump(&mut self, waits: impl Fn(usize) -> bool) {
        let (mut ready, waiting): (Vec<usize>, Vec<usize>) =
            std::mem::take(&mut self.active).into_iter().partition(|index| !waits(*index));
        self.active = waiting;
        ready.sort_unstable();
        let mut devices = Vec::with_capacity(ready.len());
        let (mut rest, mut first) = (self.all.as_mut_slice(), 0);
        for index in ready {
            if let Some(mark) = self.marks.get_mut(index) {
                mark.is_active = false;
                if !std::mem::replace(&mut mark.is_uncounted, true) {
                    self.uncounted.push(index);
                }
            }
            let Some((device, after)) = rest.split_at_mut(index - first).1.split_first_mut() else { break };
            devices.push(device);
            (rest, first) = (after, index + 1);
        }
        let portion = (devices.len() / 64).max(1);
        devices.into_par_iter().with_min_len(portion).for_each(SimDevice::pump);
    }

    /// Numbers of uploaded and downloaded bytes so far.
    pub fn traffic(&self) -> (u64, u64) {
        let before = (self.traffic_before.0 + self.counted.0, self.traffic_before.1 + self.counted.1);
        self.uncounted.iter().fold(before, |(up, down), index| {
            let (Some(device), Some(mark)) = (self.all.get(*index), self.marks.get(*index)) else {
                return (up, down);
            };
            let traffic = device.traffic();
            (up + traffic.up - mark.counted.0, down + traffic.down - mark.counted.1)
        })
    }

    /// Counts the bytes of all devices.
    fn count_traffic(&mut self) {
        for index in self.uncounted.drain(..) {
            let (Some(device), Some(mark)) = (self.all.get(index), self.marks.get_mut(index)) else {
                continue;
            };
            let traffic = device.traffic();
            self.counted.0 += traffic.up - mark.counted.0;
            self.counted.1 += traffic.down - mark.counted.1;
            (mark.counted, mark.is_uncounted) = ((traffic.up, traffic.down), false);
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
