//! Test that a simulated device answers every round: with an update or, if its values are not finite, with a decline. Such an
//! update is not sent, and the decline is the frame after it.

use std::path::Path;
use std::sync::Arc;

use fedspan_aggregator::connection::PeerMessage;
use fedspan_client::Task;
use fedspan_engine::{Action, DeviceId, Event, Millis};
use fedspan_sim_core::device::{Identity, client_session};
use fedspan_sim_core::fleet::{DeviceFactory, SimDevice};
use fedspan_sim_core::live::campaign;
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::run::gate;
use fedspan_sim_core::scenario::Scenario;

/// The head of a client that diverges passes through all magnitudes. Near the square root of the largest f32 the head is
/// finite, and the product of residuals and head is not.
#[test]
fn device_answers_with_a_head_of_any_size() {
    let text = "seed = 1\n[data]\nkind = \"digits\"\n[data.partition]\nkind = \"shards\"\nclients = 2\nclasses = 2\n[split]\nby = \"stratified\"\ntest = 0.2\n[model]\nk = 4\n\
                [algorithm]\nname = \"gd-gd\"\nrounds = 2\nstep_size = 0.1\n";
    let scenario = Scenario::parse("test", text, &[]).unwrap();
    let dataset = scenario.dataset(1).unwrap();
    let engine = campaign(&scenario, &dataset, Path::new("")).unwrap().engine();
    let build = DeviceFactory::new(&scenario, &dataset, 1, SeedSource::System).unwrap();
    let acceptor = gate(&scenario, &build, &engine);
    let (mut updates, mut declines) = (0, 0);
    for exponent in 0..380 {
        let mut engine = campaign(&scenario, &dataset, Path::new("")).unwrap().engine();
        let mut actions = Vec::new();
        for device in 0..2 {
            engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions);
        }
        let broadcast = actions.into_iter().find_map(|action| match action {
            Action::Open(DeviceId(0), broadcast) => Some(broadcast),
            _ => None,
        });
        let mut session = client_session(&scenario, &dataset, 0, Identity::plaintext(0), false).unwrap();
        session.task_mut().head_mut().fill(10_f32.powf(exponent as f32 / 10.0));
        let mut device = SimDevice::connect(session, Arc::clone(&acceptor));
        device.pump();
        device.inbox.clear();
        device.connection.open(&broadcast.unwrap());
        device.pump();
        match device.inbox[..] {
            [PeerMessage::Update(_)] => updates += 1,
            [PeerMessage::Decline(_)] => declines += 1,
            _ => panic!("a head of 10^{}: {:?}", f64::from(exponent) / 10.0, device.inbox),
        }
    }
    assert!(updates > 100 && declines > 100, "{updates} updates, {declines} declines");
}
