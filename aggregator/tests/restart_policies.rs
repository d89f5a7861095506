//! Tests of restarts with every participation policy, at every opening and in the middle of every round: the
//! decisions, including those that depend on the state of the policy, equal those of an uninterrupted run.

use crate::common::campaign::{honest_update, model_bits};
use fedspan_aggregator::config::Fleet;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase, Record, RecordedEffects};
use fedspan_protocol::message::RoundId;

const DEVICES: u64 = 50;

const POLICIES: [&str; 14] = [
    "policy = \"full\"",
    "policy = \"fraction\"\nr = 0.3",
    "policy = \"first-arrivals\"\nn = 20",
    "policy = \"first-arrivals\"\nn = 10\ncohort = 30",
    "policy = \"with-replacement\"\ndraws = 20",
    "policy = \"doubling\"",
    "policy = \"doubling\"\ncohort = 40",
    "policy = \"doubling\"\nby = \"samples\"",
    "policy = \"doubling\"\ncohort = 40\ndraw = \"stage\"\nby = \"samples\"",
    "policy = \"doubling\"\nschedule = \"fixed\"\nstage_rounds = 2",
    "policy = \"doubling\"\nschedule = \"fixed\"\nstage_rounds = 2\nby = \"samples\"",
    "policy = \"doubling\"\nschedule = \"fixed\"\nstage_rounds = 3\ncohort = 30\ndraw = \"stage\"",
    "policy = \"doubling\"\nschedule = \"theorem\"",
    "policy = \"doubling\"\nschedule = \"optimal\"\ncommunication = 1.0\nfloor = 0.001",
];

/// Response times of devices in ms, for three fleets.
const PACES: [fn(DeviceId) -> u64; 3] = [
    |DeviceId(device)| 100 + 50 * device / DEVICES,
    |DeviceId(device)| 10 + 20 * device * device,
    |DeviceId(device)| 1000 / (device % 7 + 1) + device,
];

fn create_engine(policy: &str, rule: &str) -> Engine {
    let configuration = format!(
        "seed = 3\n[devices]\nexpected = {DEVICES}\n[data]\nd = 4\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 14\n\
         step_size = 0.25\n[participation]\n{policy}\n[aggregation]\nrule = \"{rule}\"\n[rounds]\ndeadline = 0\n"
    );
    Fleet::parse("fleet.toml", &configuration).unwrap_or_else(|problem| panic!("{problem}")).engine()
}

/// Moment of restarts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Restart {
    Never,
    /// After every opening of a round.
    Opening,
    /// After this many updates counted in each round.
    After(usize),
}

/// Summary of a round: id, target and participants.
type RoundSummary = (RoundId, usize, Vec<DeviceId>);

/// Replays the records of an engine in a new engine, and lets all devices join.
fn restore_engine(mut fresh: Engine, now: u64, expected: &Engine, records: &[Record]) -> Engine {
    assert!(fresh.replay(Millis::new(now), records), "{:?} cannot be replayed", expected.phase());
    assert_eq!(fresh.checkpoint(), expected.checkpoint());
    let mut actions = Vec::new();
    fresh.handle(Millis::new(now), Event::Resumed, &mut actions);
    (0..DEVICES)
        .for_each(|device| fresh.handle(Millis::new(now), Event::Joined(DeviceId(device)), &mut actions));
    fresh
}

/// Runs a campaign with restarts. Returns a summary of each round, and the engine.
fn run_campaign(
    policy: &str,
    rule: &str,
    pace: fn(DeviceId) -> u64,
    restart: Restart,
) -> (Vec<RoundSummary>, Engine) {
    let mut engine = create_engine(policy, rule);
    let mut now = 0;
    let mut rounds = Vec::new();
    let mut effects = RecordedEffects::default();
    (0..DEVICES)
        .for_each(|device| engine.handle(Millis::new(now), Event::Joined(DeviceId(device)), &mut effects));
    while engine.phase() != Phase::FitHead {
        if restart == Restart::Opening {
            engine = restore_engine(create_engine(policy, rule), now, &engine, &effects.records);
        }
        let open_round = engine.open_round().expect("no round is open");
        let (opening, target) = (open_round.broadcast.clone(), open_round.target);
        let mut answers: Vec<(Millis, DeviceId)> = open_round
            .cohort
            .iter()
            .map(|device| (open_round.opened_at + Millis::new(pace(*device)), *device))
            .collect();
        answers.sort_unstable();
        let mut counted: Vec<DeviceId> = Vec::new();
        for (time, device) in answers {
            now = time.as_u64();
            effects.actions.clear();
            engine.handle(
                Millis::new(now),
                Event::Update(device, honest_update(device, &opening)),
                &mut effects,
            );
            counted.push(device);
            if effects.actions.iter().any(|action| matches!(action, Action::Commit(_))) {
                break;
            }
            if restart == Restart::After(counted.len()) {
                engine = restore_engine(create_engine(policy, rule), now, &engine, &effects.records);
            }
        }
        rounds.push((opening.id, target, counted));
    }
    (rounds, engine)
}

#[test]
fn every_policy_survives_restart() {
    let mut stages = 0;
    for policy in POLICIES {
        for pace in PACES {
            let (uninterrupted, final_engine) = run_campaign(policy, "mean", pace, Restart::Never);
            assert_eq!(uninterrupted.len(), 14, "{policy}");
            stages = stages.max(uninterrupted.last().unwrap().0.stage);
            for restart in [Restart::Opening, Restart::After(1), Restart::After(3), Restart::After(9)] {
                let (rounds, engine) = run_campaign(policy, "mean", pace, restart);
                assert_eq!(rounds, uninterrupted, "{policy}, {restart:?}");
                assert_eq!(model_bits(&engine), model_bits(&final_engine), "{policy}, {restart:?}");
            }
        }
    }
    assert!(stages > 2, "no stage has doubled");
}

#[test]
fn other_rules_survive_restart() {
    for policy in ["policy = \"doubling\"", "policy = \"with-replacement\"\ndraws = 20"] {
        let (uninterrupted, final_engine) =
            run_campaign(policy, "geometric-median", PACES[0], Restart::Never);
        for restart in [Restart::Opening, Restart::After(3)] {
            let (rounds, engine) = run_campaign(policy, "geometric-median", PACES[0], restart);
            assert_eq!(rounds, uninterrupted, "{policy}, {restart:?}");
            assert_eq!(model_bits(&engine), model_bits(&final_engine), "{policy}, {restart:?}");
        }
    }
}
