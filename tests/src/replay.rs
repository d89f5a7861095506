//! Replay of a campaign in memory with given participants in each round, without late answers or losses, to
//! compare fleets whose devices were disturbed.

use std::collections::BTreeSet;
use std::sync::Arc;

use fedspan_aggregator::connection::PeerMessage;
use fedspan_engine::linalg::to_f32;
use fedspan_engine::{Action, DeviceId, Event, Millis};
use fedspan_protocol::message::{Decline, DeclineReason, ToDevice};
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::{Identity, client_session};
use fedspan_sim_core::fleet::{DeviceFactory, SimDevice, SimTask};
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::run::{engine, gate};
use fedspan_sim_core::scenario::Scenario;

/// Result of a replayed campaign.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Final representation of a linear model (`d x k`, row-major).
    pub representation: Vec<f32>,
    /// Final parameters of all layers of each client's network. Empty for a linear model.
    pub networks: Vec<Vec<f32>>,
}

/// Returns the result of a campaign. In the `n`th round, from 0, only the clients with the indices `rounds[n]`
/// count; in later rounds all clients count.
///
/// # Errors
/// If a client that should count does not exist or sends no update, or the engine fails.
pub fn replay(
    scenario: &Scenario,
    dataset: &Dataset,
    rounds: &[BTreeSet<DeviceId>],
) -> Result<Replayed, String> {
    let mut engine = engine(scenario, dataset, scenario.seed, None);
    let build = DeviceFactory::new(scenario, dataset, scenario.seed, SeedSource::System)
        .map_err(|error| error.to_string())?;
    let acceptor = gate(scenario, &build, &engine);
    let mut devices = Vec::new();
    let mut actions = Vec::new();
    for index in 0..dataset.clients.len() {
        let session = client_session(scenario, dataset, index, Identity::plaintext(index as u64), false)
            .ok_or("no such client")?;
        let mut device = SimDevice::connect(session, Arc::clone(&acceptor));
        device.inbox.clear();
        device.pump();
        devices.push(device);
        engine.handle(Millis::ZERO, Event::Joined(DeviceId(index as u64)), &mut actions);
    }
    let mut round = 0;
    loop {
        let mut events = Vec::new();
        for action in actions.drain(..) {
            match action {
                Action::Open(id, opening) => {
                    let absent = rounds.get(round).is_some_and(|counted| !counted.contains(&id));
                    if absent {
                        let reason = DeclineReason::Device;
                        events.push((id, Event::Declined(id, Decline { id: opening.id, reason })));
                        continue;
                    }
                    let index = usize::try_from(id.0).map_err(|error| error.to_string())?;
                    let device = devices.get_mut(index).ok_or("no such device")?;
                    device.connection.open(&opening);
                    device.pump();
                    for inbound in device.inbox.drain(..) {
                        if let PeerMessage::Update(update) = inbound {
                            events.push((id, Event::Update(id, update)));
                        }
                    }
                }
                Action::Acknowledge(id, ack) => {
                    let index = usize::try_from(id.0).map_err(|error| error.to_string())?;
                    let device = devices.get_mut(index).ok_or("no such device")?;
                    device.connection.send(ToDevice::Ack(ack));
                    device.pump();
                }
                Action::Commit(_) => round += 1,
                Action::Failed(failure) => return Err(failure.to_string()),
                _ => {}
            }
        }
        if events.is_empty() {
            let network_of = |device: &SimDevice| match device.session.task().model() {
                SimTask::Network(network) => Some(network.own().to_vec()),
                SimTask::PriorNetwork(model) => Some(model.network().parameters().to_vec()),
                _ => None,
            };
            let networks = devices.iter().filter_map(network_of).collect();
            return Ok(Replayed { representation: to_f32(engine.representation()), networks });
        }
        // Declines come first, because the last update closes the round.
        events.sort_by_key(|(_, event)| matches!(event, Event::Update(..)));
        for (_, event) in events {
            engine.handle(Millis::ZERO, event, &mut actions);
        }
    }
}
