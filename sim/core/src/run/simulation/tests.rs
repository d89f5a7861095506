use fedspan_client::Task;
use fedspan_engine::DeviceId;

use super::*;
use crate::run::engine;
use crate::run::{Job, NoProgress};

const TEXT: &str = "[data]\nkind = \"linear-regression\"\nclients = 9\nd = 5\nk = 2\nsamples = 6\nfresh = true\n\
                    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.2\n\
                    [fleet]\nspeed = \"exponential\"\ndropout = 0.4\n";

fn heads(devices: &mut Devices<'_>) -> Result<Vec<Vec<f32>>, RunError> {
    (0..devices.len()).map(|index| Ok(devices.wake(index)?.session.task_mut().head().to_vec())).collect()
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
        let heads_before = heads(&mut run.devices)?;
        let is_dropped: Vec<bool> =
            (0..9).map(|i| run.arrivals.pending(i).is_some_and(|answer| answer.dropped_out)).collect();
        run.step(&mut actions, &mut NoProgress)?;
        for ((heads_before, head_after), dropped) in
            heads_before.iter().zip(heads(&mut run.devices)?).zip(is_dropped)
        {
            assert_eq!(*heads_before == head_after, dropped);
            lost += u64::from(dropped);
        }
    }
    let counted: u64 = run.devices.awake().map(|d| u64::from(d.session.counters().counted)).sum();
    assert_eq!((lost + counted, lost > 40), (20 * 9, true));
    Ok(())
}

/// Keeps the state after the last round.
struct LastState(Option<crate::run::SavedRun>);

impl Watcher for LastState {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        true
    }

    fn wants_state(&mut self, _is_last: bool) -> bool {
        true
    }

    fn keep_state(&mut self, state: crate::run::SavedRun) {
        self.0 = Some(state);
    }
}

/// A restored device has spent the same privacy budget as before.
#[test]
fn restored_devices_know_what_they_have_spent() -> Result<(), RunError> {
    let text = Scenario::built_in("fedrep-private").unwrap_or_default();
    let changes = ["data.clients=4".to_owned(), "algorithm.rounds=3".to_owned()];
    let scenario =
        Scenario::parse("fedrep-private", text, &changes).map_err(|p| RunError::Mismatch(p.to_string()))?;
    let job = Job::prepare(&scenario, 3)?;
    let mut watcher = LastState(None);
    job.run(&mut watcher)?;
    let saved = watcher.0.ok_or(RunError::Silent)?;
    let times = Times::new(&scenario, &job.dataset, 3)?;
    let mut run =
        Simulation::new(&scenario, &job.dataset, 3, engine(&scenario, &job.dataset, 3, None), times)?;
    run.devices.restore(&job.dataset.clients, &saved.devices, saved.traffic)?;
    for (index, state) in saved.devices.iter().enumerate() {
        assert!(state.spent > 0);
        let privacy = run.devices.wake(index)?.session.privacy();
        assert!(
            matches!(privacy, fedspan_protocol::message::Privacy::Gaussian { spent, .. } if spent == state.spent)
        );
    }
    Ok(())
}
