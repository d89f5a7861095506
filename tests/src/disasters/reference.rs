//! The same campaign without disasters, where it is known who counted in which round: everybody is asked, who did not count
//! declines, the others answer in order of their numbers. Whoever was asked, in which order answers came, and what was lost in
//! between makes no difference to what a round makes of a set of updates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::session::{Config, Protection};
use fedspan_engine::admission::Requirements;
use fedspan_engine::config::ParticipationSection;
use fedspan_engine::{Action, DeviceId, Engine, Event, Opening, Update};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{Decline, DeclineReason, ToDevice, Welcome};
use fedspan_sim_core::fleet::{SimDevice, foreseeable};
use fedspan_sim_core::network::Joins;
use sha2::{Digest, Sha256};

use super::history::Violation;
use super::plan::Plan;

/// A round as it was committed: its number, who counted under which of its numbers, and the digest of the representation
/// after it.
pub struct Round {
    pub number: u32,
    pub counted: BTreeMap<DeviceId, u32>,
    pub representation: String,
    /// What others are told of the representation: its SHA-256.
    pub told: String,
}

/// Where the updates come from.
pub trait Updates {
    /// That of a device for a round, of which the server's name is `number`.
    fn of(&mut self, device: DeviceId, number: u32, opening: &Arc<Opening>) -> Result<Update, Violation>;

    /// The engine has taken it.
    fn acknowledged(&mut self, device: DeviceId, ack: fedspan_protocol::message::Ack);
}

/// Makes every round again.
///
/// # Errors
/// The first that is another one.
pub fn compare(plan: &Plan, rounds: &[Round], updates: &mut dyn Updates) -> Result<(), Violation> {
    let mut fleet = plan.fleet.clone();
    fleet.participation = ParticipationSection::Full;
    fleet.rounds.deadline = None;
    fleet.rounds.min_count = 1;
    let mut engine = fleet.engine();
    let mut actions = Vec::new();
    for device in 0..fleet.expected as u64 {
        engine.handle(0, Event::Joined(device), &mut actions);
    }
    for round in rounds {
        let mut events = Vec::new();
        for action in std::mem::take(&mut actions) {
            if let Action::Open(device, opening) = action {
                events.push(match round.counted.get(&device) {
                    None => (1, device, declined(device, &opening)),
                    Some(number) => {
                        let update = updates.of(device, *number, &opening)?;
                        (0, device, Event::Update(device, Update { id: opening.id, ..update }))
                    }
                });
            }
        }
        // Nobody who counts may find the round closed.
        events.sort_by_key(|(last, device, _)| (1 - last, *device));
        let mut committed = false;
        for (_, _, event) in events {
            engine.handle(0, event, &mut actions);
        }
        for action in &actions {
            match action {
                Action::Acknowledge(device, ack) => updates.acknowledged(*device, *ack),
                Action::Commit(record) => {
                    let counted: BTreeSet<DeviceId> = record.participants.iter().copied().collect();
                    committed = counted.iter().eq(round.counted.keys());
                }
                _ => {}
            }
        }
        let (found, told) = (digest(&engine), sha256(&engine));
        if told != round.told {
            return Err(Violation::new(format!(
                "of round {} it is said that the representation is {}, and it is {told}",
                round.number, round.told
            )));
        }
        if !committed || found != round.representation {
            return Err(Violation::new(format!(
                "round {} with {:?} has the representation {}, and without disasters {found}",
                round.number, round.counted, round.representation
            )));
        }
    }
    Ok(())
}

fn declined(device: DeviceId, opening: &Opening) -> Event {
    Event::Declined(device, Decline { id: opening.id, reason: DeclineReason::Device })
}

fn digest(engine: &Engine) -> String {
    let bytes: Vec<u8> = engine.representation().iter().flat_map(|value| value.to_le_bytes()).collect();
    format!("{:08x}", crc32c(&bytes))
}

/// Column by column, as numpy and C would have to be told.
fn sha256(engine: &Engine) -> String {
    let columns = engine.representation().column_iter();
    let bytes: Vec<u8> = columns
        .flat_map(|column| column.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        .collect();
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Devices to which nothing has ever happened.
pub struct Calm(Vec<SimDevice>);

impl Calm {
    /// Those of a plan.
    ///
    /// # Errors
    /// What stands in their way; there should be nothing.
    pub fn new(plan: &Plan) -> Result<Self, Violation> {
        let requirements = Requirements::new(plan.fleet.model(), &plan.fleet.engine().requests(), None);
        let welcome = Welcome { campaign: 1, idle_milliseconds: u32::MAX };
        let gate = Arc::new(Acceptor::plaintext(requirements, welcome));
        let devices = (0..).zip(&plan.dataset.clients).map(|(id, client)| {
            let config = Config { frame_limit: 256, ..Config::new(id) };
            let random = foreseeable(1, id);
            let session = plan.build.session(config, Protection::Plaintext, client, Joins::First, random);
            let session = session.map_err(|error| Violation::new(error.to_string()))?;
            let mut device = SimDevice::connect(session, Arc::clone(&gate));
            device.pump();
            device.said.clear();
            Ok(device)
        });
        devices.collect::<Result<_, _>>().map(Self)
    }

    fn device(&mut self, device: DeviceId) -> Result<&mut SimDevice, Violation> {
        let place = usize::try_from(device).ok().and_then(|place| self.0.get_mut(place));
        place.ok_or_else(|| Violation::new(format!("there is no device {device}")))
    }
}

impl Updates for Calm {
    fn of(&mut self, device: DeviceId, _: u32, opening: &Arc<Opening>) -> Result<Update, Violation> {
        let own = self.device(device)?;
        own.connection.open(opening);
        own.pump();
        let update = own.said.drain(..).find_map(|said| match said {
            PeerMessage::Update(update) => Some(update),
            _ => None,
        });
        update
            .ok_or_else(|| Violation::new(format!("device {device} does not answer where nothing is wrong")))
    }

    fn acknowledged(&mut self, device: DeviceId, ack: fedspan_protocol::message::Ack) {
        if let Ok(own) = self.device(device) {
            own.connection.send(ToDevice::Ack(ack));
            own.pump();
        }
    }
}

impl Updates for BTreeMap<(DeviceId, u32), Update> {
    fn of(&mut self, device: DeviceId, number: u32, _: &Arc<Opening>) -> Result<Update, Violation> {
        let update = self.get(&(device, number)).cloned();
        update.ok_or_else(|| Violation::new(format!("device {device} has sent nothing for round {number}")))
    }

    fn acknowledged(&mut self, _: DeviceId, _: fedspan_protocol::message::Ack) {}
}
