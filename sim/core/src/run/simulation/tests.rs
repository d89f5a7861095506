use fedspan_client::Task;
use fedspan_engine::DeviceId;

use super::*;
use crate::run::engine;
use crate::run::{Job, NoProgress};

const TEXT: &str = "[data]\nkind = \"linear-regression\"\nclients = 9\nd = 5\nk = 2\nsamples = 6\nfresh = true\n\
                    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.2\n\
                    [fleet]\nspeed = \"exponential\"\ndropout = 0.4\n";

fn heads(devices: &mut Devices) -> Vec<Vec<f32>> {
    devices.iter_mut().map(|device| device.session.task_mut().head().to_vec()).collect()
}

/// A device that drops out does not receive the round and keeps its head. All other devices fit new heads.
#[test]
fn dropped_device_keeps_its_head() -> Result<(), RunError> {
    let scenario = Scenario::parse("my.toml", TEXT, &[]).map_err(|p| RunError::Mismatch(p.to_string()))?;
    let dataset = Job::prepare(&scenario, 3)?.dataset;
    let times = Times::new(&scenario, &dataset, 3)?;
    let engine = engine(&scenario, &dataset, 3, None);
    let mut run = Simulation::new(&scenario, &dataset, 3, engine, times)?;
    run.devices.connect(&dataset.clients, JoinTime::BeforeTraining)?;
    let mut actions = Vec::new();
    for id in 0..9 {
        run.engine.handle(Millis::ZERO, Event::Joined(DeviceId(id)), &mut actions);
    }
    let mut lost = 0;
    loop {
        run.execute(&mut actions, &mut NoProgress)?;
        if run.engine.phase() == Phase::FitHead {
            break;
        }
        let heads_before = heads(&mut run.devices);
        let is_dropped: Vec<bool> =
            (0..9).map(|i| run.arrivals.pending(i).is_some_and(|answer| answer.dropped_out)).collect();
        run.step(&mut actions, &mut NoProgress)?;
        for ((heads_before, head_after), dropped) in
            heads_before.iter().zip(heads(&mut run.devices)).zip(is_dropped)
        {
            assert_eq!(*heads_before == head_after, dropped);
            lost += u64::from(dropped);
        }
    }
    let counted: u64 = run.devices.iter_mut().map(|d| u64::from(d.session.counters().counted)).sum();
    assert_eq!((lost + counted, lost > 40), (20 * 9, true));
    Ok(())
}
