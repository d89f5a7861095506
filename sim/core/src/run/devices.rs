//! The devices of a run, as the server sees them: admitted by their hello, each with its connection.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::session::{Config, Protection};
use fedspan_engine::Engine;
use fedspan_engine::admission::Requirements;
use fedspan_protocol::message::{Privacy, Welcome};
use rayon::prelude::*;

use super::RunError;
use crate::data::Client;
use crate::fleet::{Build, SimDevice, foreseeable};
use crate::network::Joins;
use crate::scenario::Scenario;

/// What a campaign asks of its devices' hellos. Frames are not encrypted: there is no wire that somebody could be on.
#[must_use]
pub fn gate(scenario: &Scenario, build: &Build, engine: &Engine) -> Arc<Acceptor> {
    let requirements = Requirements::new(build.model(), &engine.requests(), None);
    let welcome = Welcome { campaign: 1, idle_milliseconds: u32::MAX };
    Arc::new(Acceptor::plaintext(requirements.with_numeric(scenario.algorithm.numeric), welcome))
}

/// All devices; a device's number is its place.
pub struct Devices {
    build: Build,
    seed: u64,
    gate: Arc<Acceptor>,
    all: Vec<SimDevice>,
    /// What each said of its noise.
    privacy: Vec<Privacy>,
    /// Bytes up and down when they were last asked for.
    told: (u64, u64),
}

impl Devices {
    /// Nobody is connected.
    pub fn new(build: Build, seed: u64, gate: Arc<Acceptor>) -> Self {
        Self { build, seed, gate, all: Vec::new(), privacy: Vec::new(), told: (0, 0) }
    }

    /// Connects a device for each client: hello, admission as on a server, welcome.
    ///
    /// # Errors
    /// [`RunError::Refused`].
    pub fn connect(&mut self, clients: &[Client], joins: Joins) -> Result<(), RunError> {
        let limit = self.build.frame_limit();
        for client in clients {
            let id = self.all.len() as u64;
            let config = Config { frame_limit: limit, ..Config::new(id) };
            let (bench, random) = (Protection::Plaintext, foreseeable(self.seed, id));
            let session = self.build.session(config, bench, client, joins, random)?;
            let mut device = SimDevice::connect(session, Arc::clone(&self.gate));
            for said in device.said.drain(..) {
                match said {
                    PeerMessage::Hello(hello) => self.privacy.push(hello.capabilities.privacy),
                    PeerMessage::Refused(refusal) => return Err(RunError::Refused { client: id, refusal }),
                    _ => return Err(RunError::Silent),
                }
            }
            device.pump();
            device.connection.reset_traffic();
            self.all.push(device);
        }
        Ok(())
    }

    /// What a device said of its noise.
    pub fn privacy(&self, device: u64) -> Privacy {
        let said = usize::try_from(device).ok().and_then(|index| self.privacy.get(index));
        said.copied().unwrap_or_default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them, in order.
    pub fn as_slice(&self) -> &[SimDevice] {
        &self.all
    }

    /// One of them.
    pub fn get(&mut self, index: usize) -> Option<&mut SimDevice> {
        self.all.get_mut(index)
    }

    /// All of them, in order.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, SimDevice> {
        self.all.iter_mut()
    }

    /// Lets every device take what waits for it, but for those of whom `waits` is true; in parallel, in portions that are
    /// worth a thread's while.
    pub fn pump(&mut self, waits: impl Fn(usize) -> bool + Sync) {
        let portion = (self.all.len() / 64).max(1);
        self.all.par_iter_mut().enumerate().with_min_len(portion).for_each(|(index, device)| {
            if !waits(index) {
                device.pump();
            }
        });
    }

    /// Bytes up and down so far.
    pub fn traffic(&self) -> (u64, u64) {
        self.all.iter().map(SimDevice::traffic).fold((0, 0), |(up, down), t| (up + t.up, down + t.down))
    }

    /// Bytes up and down since they were last asked for.
    pub fn traffic_since(&mut self) -> (u64, u64) {
        let now = self.traffic();
        let before = std::mem::replace(&mut self.told, now);
        (now.0 - before.0, now.1 - before.1)
    }

    /// Bytes up and down when they were last asked for.
    pub fn traffic_told(&self) -> (u64, u64) {
        self.told
    }
}
