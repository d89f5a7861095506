//! The devices of a run, as the server sees them: admitted by their hello, each with its connection.

use fedspan_aggregator::admission::Requirements;
use fedspan_aggregator::connection::Inbound;
use fedspan_client::memory::Shape;
use fedspan_client::session::Config;
use fedspan_protocol::message::{Numeric, ToDevice, Welcome};
use rayon::prelude::*;

use super::RunError;
use crate::data::Client;
use crate::fleet::{SimDevice, frame_limit, session};

/// All devices; a device's number is its place.
pub struct Devices {
    shape: Shape,
    numeric: Numeric,
    seed: u64,
    /// What the campaign asks of a device's hello.
    requirements: Requirements,
    all: Vec<SimDevice>,
    /// Bytes up and down when they were last asked for.
    told: (u64, u64),
}

impl Devices {
    /// Nobody is connected.
    pub fn new(shape: Shape, numeric: Numeric, seed: u64, requirements: Requirements) -> Self {
        Self { shape, numeric, seed, requirements, all: Vec::new(), told: (0, 0) }
    }

    /// Connects a device for each client: hello, admission as on a server, welcome.
    ///
    /// # Errors
    /// [`RunError::Refused`].
    pub fn connect(&mut self, clients: &[Client]) -> Result<(), RunError> {
        let limit = frame_limit(self.shape);
        for client in clients {
            let id = self.all.len() as u64;
            let config = Config { frame_limit: limit, ..Config::new(id) };
            let session = session(config, self.shape, self.numeric, client.source(), self.seed);
            let mut device = SimDevice::connect(session);
            for said in device.said.drain(..) {
                let admitted = match said {
                    Inbound::Hello(hello) => self.requirements.admit(&hello),
                    Inbound::Foreign(refusal) => Err(refusal),
                    _ => return Err(RunError::Silent),
                };
                admitted.map_err(|refusal| RunError::Refused { client: id, refusal })?;
            }
            device.connection.send(ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: u32::MAX }));
            device.pump();
            device.connection.forget_traffic();
            self.all.push(device);
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
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
