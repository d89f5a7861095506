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
use fedspan_sim_core::fleet::{DeviceFactory, SimDevice};
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::run::{engine, gate};
use fedspan_sim_core::scenario::Scenario;

/// Returns the final representation (`d x k`, row-major) of a campaign. In the `n`th round, from 0, only the
/// clients with the indices `rounds[n]` count; in later rounds all clients count.
///
/// # Errors
/// If a client that should count does not exist or sends no update, or the engine fails.
pub fn replay(
    scenario: &Scenario,
    dataset: &Dataset,
    rounds: &[BTreeSet<DeviceId>],
) -> Result<Vec<f32>, String> {
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
            return Ok(to_f32(engine.representation()));
        }
        // Declines come first, because the last update closes the round.
        events.sort_by_key(|(_, event)| matches!(event, Event::Update(..)));
        for (_, event) in events {
            engine.handle(Millis::ZERO, event, &mut actions);
        }
    }
}
