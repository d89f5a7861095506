//! Reference run: the same campaign without faults, given the devices that counted in each round. All devices
//! are invited; devices that did not count decline, and the others answer in order of their ids. The model
//! after a round depends only on the set of counted updates, so it must have the same bits as in the run with
//! faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::session::{Config, Protection};
use fedspan_engine::admission::Requirements;
use fedspan_engine::participation::Policy;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, RoundBroadcast, Update};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{Decline, DeclineReason, ToDevice, Welcome};
use fedspan_sim_core::fleet::{SimDevice, deterministic_rng};
use fedspan_sim_core::network::JoinTime;
use sha2::{Digest, Sha256};

use super::plan::Plan;
use super::violation::Violation;

/// A committed round: its number, the round number under which each participant counted, and the CRC of the
/// resulting representation.
pub struct Round {
    pub number: u32,
    pub counted: BTreeMap<DeviceId, u32>,
    pub representation: String,
    /// Published SHA-256 digest of the representation.
    pub sha256: String,
}

/// Source of updates.
pub trait Updates {
    /// Returns the update of `device` for the round that the server called `number`.
    fn update(
        &mut self,
        device: DeviceId,
        number: u32,
        opening: &Arc<RoundBroadcast>,
    ) -> Result<Update, Violation>;

    /// Reports that the engine has acknowledged the update.
    fn acknowledge(&mut self, device: DeviceId, ack: fedspan_protocol::message::Ack);
}

/// Recomputes every round and compares the representations.
///
/// # Errors
/// The first round whose representation differs.
pub fn compare(plan: &Plan, rounds: &[Round], updates: &mut dyn Updates) -> Result<(), Violation> {
    let mut fleet = plan.fleet.clone();
    fleet.participation = Policy::FULL;
    fleet.rounds.deadline = None;
    (fleet.rounds.every, fleet.rounds.min_count) = (None, 1);
    let mut engine = fleet.engine();
    let mut actions = Vec::new();
    for device in 0..fleet.expected as u64 {
        engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions);
    }
    for round in rounds {
        let mut events = Vec::new();
        for action in std::mem::take(&mut actions) {
            if let Action::Open(device, opening) = action {
                events.push(match round.counted.get(&device) {
                    None => (1, device, decline_event(device, &opening)),
                    Some(number) => {
                        let update = updates.update(device, *number, &opening)?;
                        (0, device, Event::Update(device, Update { id: opening.id, ..update }))
                    }
                });
            }
        }
        // Declines come first, because the last update closes the round.
        events.sort_by_key(|(last, device, _)| (1 - last, *device));
        let mut committed = false;
        for (_, _, event) in events {
            engine.handle(Millis::ZERO, event, &mut actions);
        }
        for action in &actions {
            match action {
                Action::Acknowledge(device, ack) => updates.acknowledge(*device, *ack),
                Action::Commit(record) => {
                    let counted: BTreeSet<DeviceId> = record.participants.iter().copied().collect();
                    committed = counted.iter().eq(round.counted.keys());
                }
                _ => {}
            }
        }
        let (crc, sha256) = (representation_crc(&engine), representation_sha256(&engine));
        if sha256 != round.sha256 {
            return Err(Violation::new(format!(
                "round {} published the representation digest {}, but the reference run has {sha256}",
                round.number, round.sha256
            )));
        }
        if !committed || crc != round.representation {
            return Err(Violation::new(format!(
                "round {} with {:?} has the representation {}, but the reference run has {crc}",
                round.number, round.counted, round.representation
            )));
        }
    }
    Ok(())
}

fn decline_event(device: DeviceId, opening: &RoundBroadcast) -> Event {
    Event::Declined(device, Decline { id: opening.id, reason: DeclineReason::Device })
}

fn representation_crc(engine: &Engine) -> String {
    let bytes: Vec<u8> = engine.representation().iter().flat_map(|value| value.to_le_bytes()).collect();
    format!("{:08x}", crc32c(&bytes))
}

/// Returns the SHA-256 digest of the representation in column-major order, as the journal defines it.
fn representation_sha256(engine: &Engine) -> String {
    let columns = engine.representation().column_iter();
    let bytes: Vec<u8> = columns
        .flat_map(|column| column.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        .collect();
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Devices to which no fault has occurred.
pub struct FaultFreeDevices(Vec<SimDevice>);

impl FaultFreeDevices {
    /// Connects the devices of a plan.
    ///
    /// # Errors
    /// If a session cannot be built, which would be a bug of the plan.
    pub fn new(plan: &Plan) -> Result<Self, Violation> {
        let requirements = Requirements::new(plan.fleet.model(), &plan.fleet.engine().requests(), None);
        let welcome = Welcome { campaign: 1, idle_milliseconds: u32::MAX };
        let acceptor = Arc::new(Acceptor::plaintext(requirements, welcome));
        let devices = (0..).zip(&plan.dataset.clients).map(|(id, client)| {
            let config = Config { frame_limit: 256, ..Config::new(id) };
            let random = deterministic_rng(1, id);
            let session =
                plan.build.session(config, Protection::Plaintext, client, JoinTime::BeforeTraining, random);
            let session = session.map_err(|error| Violation::new(error.to_string()))?;
            let mut device = SimDevice::connect(session, Arc::clone(&acceptor));
            device.pump();
            device.inbox.clear();
            Ok(device)
        });
        devices.collect::<Result<_, _>>().map(Self)
    }

    fn device(&mut self, device: DeviceId) -> Result<&mut SimDevice, Violation> {
        let slot = usize::try_from(device.0).ok().and_then(|slot| self.0.get_mut(slot));
        slot.ok_or_else(|| Violation::new(format!("the plan has no device {device}")))
    }
}

impl Updates for FaultFreeDevices {
    fn update(
        &mut self,
        device: DeviceId,
        _: u32,
        opening: &Arc<RoundBroadcast>,
    ) -> Result<Update, Violation> {
        let sim_device = self.device(device)?;
        sim_device.connection.open(opening);
        sim_device.pump();
        let update = sim_device.inbox.drain(..).find_map(|inbound| match inbound {
            PeerMessage::Update(update) => Some(update),
            _ => None,
        });
        update.ok_or_else(|| Violation::new(format!("device {device} sends no update in the reference run")))
    }

    fn acknowledge(&mut self, device: DeviceId, ack: fedspan_protocol::message::Ack) {
        if let Ok(sim_device) = self.device(device) {
            sim_device.connection.send(ToDevice::Ack(ack));
            sim_device.pump();
        }
    }
}

impl Updates for BTreeMap<(DeviceId, u32), Update> {
    fn update(
        &mut self,
        device: DeviceId,
        number: u32,
        _: &Arc<RoundBroadcast>,
    ) -> Result<Update, Violation> {
        let update = self.get(&(device, number)).cloned();
        update.ok_or_else(|| {
            Violation::new(format!("device {device} has no recorded update for round {number}"))
        })
    }

    fn acknowledge(&mut self, _: DeviceId, _: fedspan_protocol::message::Ack) {}
}
