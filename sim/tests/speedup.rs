//! Tests of the speedup measurement and of its assumptions on small fleets.

use std::sync::atomic::AtomicBool;

use fedspan_experiments::speedup::{
    Crossings, Measured, Policy, SPEEDS, STATIONARY, Settings, SpeedupError, Trajectory, hunt, markdown,
    measure, scenario, stationary,
};
use fedspan_experiments::survey::Cell;
use fedspan_sim_core::progress::Progress;

/// Stop flag that is never set.
static GO_ON: AtomicBool = AtomicBool::new(false);

/// Progress display without output.
struct Silent;

impl Progress for Silent {
    fn advance(&self, _parts: u64, _of: u64, _what: &str) {}
}

fn policy(name: &str, adaptive: bool, changes: &[&str]) -> Policy {
    let changes = changes.iter().map(|change| (*change).to_owned()).collect();
    Policy { name: name.to_owned(), changes, adaptive }
}

/// Built-in schedule with the given name.
fn policy_by_name(name: &str) -> Policy {
    Policy::known().into_iter().find(|policy| policy.name == name).unwrap()
}

/// Settings of a small measurement.
fn settings(policies: Vec<Policy>) -> Settings {
    Settings {
        clients: vec![16],
        speeds: SPEEDS.to_vec(),
        communication: vec![0.0, 10.0],
        policies,
        seed: 1,
        seeds: 6,
        factor: 1.15,
        changes: Vec::new(),
        measure_target: false,
        threads: 2,
    }
}

fn measured(settings: &Settings) -> Measured {
    measure(settings, &GO_ON, &Silent).unwrap()
}

fn to_owned_strings(changes: &[&str]) -> Vec<String> {
    changes.iter().map(|change| (*change).to_owned()).collect()
}

#[test]
fn results_do_not_depend_on_threads() {
    let settings = settings(vec![policy_by_name("fixed"), policy_by_name("adaptive")]);
    let single_thread = measured(&Settings { threads: 1, ..settings.clone() });
    let three_threads = measured(&Settings { threads: 3, ..settings });
    assert_eq!(single_thread, three_threads);
    assert_eq!(single_thread.rows.len(), 6);
    assert_eq!(markdown(&single_thread.rows).lines().count(), 8);
}

/// Full participation has speedup 1 over itself if it is expressed as a policy, as a schedule of one stage,
/// or as a policy that runs separately for each communication cost.
#[test]
fn full_participation_has_speedup_one_over_itself() {
    let one_stage = ["participation.schedule=\"fixed\"", "participation.stage_rounds=1000000"];
    let policies = vec![
        policy("full", false, &["participation={ policy = \"full\" }"]),
        policy("one stage", false, &[&one_stage[..], &["participation.n0=16"]].concat()),
    ];
    for row in measured(&settings(policies)).rows {
        for policy in row.policies {
            let speedup = policy.speedup;
            assert_eq!(speedup.time, Some(row.full), "{}", policy.name);
            for ratio in [speedup.ratio, speedup.low, speedup.high] {
                assert_eq!((ratio.value, ratio.below), (1.0, false), "{}", policy.name);
            }
        }
    }
    // Policies that are adaptive or contain the communication cost run separately for each cost. Their times
    // differ by rounding, because they are summed in another order.
    let full = "participation={ policy = \"full\" }";
    let cost_dependent = policy("cost-dependent", false, &[full, "fleet.communication={communication}"]);
    for row in measured(&settings(vec![policy("adapts", true, &[full]), cost_dependent])).rows {
        for policy in row.policies {
            let speedup = policy.speedup;
            assert!((speedup.time.unwrap() / row.full - 1.0).abs() < 1e-9, "{}", policy.name);
            assert!((speedup.ratio.value - 1.0).abs() < 1e-9 && !speedup.ratio.below, "{}", policy.name);
        }
    }
}

#[test]
fn bounds_contain_the_ratio_and_unreached_targets_give_upper_bounds() {
    let four_devices =
        policy("four", false, &["participation.schedule=\"fixed\"", "participation.stage_rounds=1000000"]);
    let rows =
        measured(&settings(vec![policy_by_name("fixed"), four_devices, policy_by_name("adaptive")])).rows;
    for row in &rows {
        for policy in &row.policies {
            let s = policy.speedup;
            assert!(s.low.value <= s.ratio.value && s.ratio.value <= s.high.value, "{row:?}");
        }
        assert!(row.start > 0.0 && row.full > 0.0);
        let unreached = row.policies[1].speedup;
        assert!(
            unreached.ratio.below && unreached.time.is_none() && unreached.ratio.value <= 0.26,
            "{unreached:?}"
        );
    }
    let table = markdown(&rows);
    assert!(table.contains("**") && table.contains("<0.2"), "{table}");
}

/// Times that are converted to another communication cost equal the times of a run with this cost.
#[test]
fn communication_only_shifts_times_of_fixed_schedules() {
    for speed in SPEEDS {
        for participation in ["participation={ policy = \"full\" }", "participation.schedule=\"fixed\""] {
            let changes = [speed.changes, &[participation, "algorithm.rounds=60"]].concat();
            let run = |communication: f64| {
                let c = format!("fleet.communication={communication:?}");
                let scenario = scenario(16, &to_owned_strings(&[&changes[..], &[&c]].concat())).unwrap();
                Trajectory::run(&scenario, 3, &GO_ON).unwrap().unwrap()
            };
            let without_communication = run(0.0);
            for communication in [1.0, 100.0] {
                let with_communication = run(communication);
                let is_near = |a: f64, b: f64| (a - b).abs() < 1e-9;
                assert!(is_near(
                    without_communication.start(communication),
                    with_communication.start(communication)
                ));
                assert!(is_near(
                    without_communication.end(communication),
                    with_communication.end(communication)
                ));
                let points =
                    without_communication.points(communication).zip(with_communication.points(communication));
                assert!(
                    with_communication.rounds() == 60
                        && with_communication.start(communication) > communication
                );
                for (recomputed, real) in points {
                    assert!(is_near(recomputed.0, real.0) && recomputed.1 == real.1);
                }
                let crossing_times = [&without_communication, &with_communication]
                    .map(|run| Crossings::new(std::slice::from_ref(run), communication, 0.1).time().unwrap());
                assert!(is_near(crossing_times[0], crossing_times[1]));
            }
        }
    }
}

/// A run that computes only distances has the same distances as a run with all metrics.
#[test]
fn trajectory_distances_equal_those_of_a_full_run() {
    let scenario = scenario(16, &to_owned_strings(&["algorithm.rounds=20"])).unwrap();
    let run = Trajectory::run(&scenario, 1, &GO_ON).unwrap().unwrap();
    let full = fedspan_sim_core::run::run(&scenario, 1, &mut fedspan_sim_core::run::NoProgress).unwrap();
    let distances: Vec<f64> = full.rounds.iter().map(|row| row.scores.unwrap().distance.unwrap()).collect();
    assert_eq!(run.points(0.0).map(|point| point.1).collect::<Vec<_>>(), distances);
    assert!(full.scores.loss.is_some());
}

/// The measured stationary distance of the smallest fleet agrees with the recorded value. The standard error
/// of a median over 20 seeds and 150 rounds, which are correlated over about ten rounds, is about 2 %.
#[test]
fn recorded_stationary_distance_is_reproduced() {
    let settings = Settings { seeds: 20, ..settings(Vec::new()) };
    let (clients, recorded) = STATIONARY[0];
    let measured = stationary(clients, &settings, &GO_ON).unwrap().unwrap();
    println!("{clients} clients: {measured:.5}, recorded {recorded}");
    assert!((measured / recorded - 1.0).abs() < 0.06, "{measured}");
}

#[test]
fn unrecorded_target_is_refused_and_interruption_keeps_whole_parts() {
    let settings_without_target = Settings { clients: vec![20], ..settings(Vec::new()) };
    assert!(matches!(measure(&settings_without_target, &GO_ON, &Silent), Err(SpeedupError::NoTarget(20))));
    let measured = measure(&settings(Vec::new()), &AtomicBool::new(true), &Silent).unwrap();
    assert!(measured.interrupted && measured.rows.is_empty());
}

/// Every world fits the scenario, the first worlds do not depend on the number of worlds, and 300 worlds have every
/// kind of speeds and correlations.
#[test]
fn worlds_of_a_hunt_are_valid_and_of_every_kind() {
    let settings = |worlds| hunt::Settings { worlds, changes: Vec::new(), seed: 5, seeds: 1 };
    let worlds = hunt::worlds(&settings(300));
    worlds.iter().for_each(|world| world.check().unwrap());
    assert_eq!(hunt::worlds(&settings(20)), worlds[..20]);
    for part in [
        "uniform",
        "speed=\"exponential\"",
        "two-class",
        "pareto",
        "\"mean\"",
        "\"rate\"",
        "spike_probability",
        "\"features\"",
        "\"targets\"",
        "\"task\"",
        "\"samples\"",
        "dropout",
        "log-normal",
        "init=\"random\"",
        "fresh=true",
        "fresh=false",
    ] {
        let has = |world: &hunt::World| world.changes().iter().any(|change| change.contains(part));
        assert!(worlds.iter().any(has), "no world with {part}");
    }
    let too_many = hunt::Settings { changes: vec!["data.k=0".to_owned()], ..settings(1) };
    assert!(hunt::worlds(&too_many)[0].check().is_err());
}

/// A schedule that always waits for all clients is neither faster nor slower in any world.
#[test]
fn full_participation_has_ratio_one_in_every_world() {
    let small = ["data.clients=8", "data.d=6", "data.k=1", "model.k=1", "data.samples=12"];
    let all = ["participation.n0=8", "participation.schedule=\"fixed\""];
    let changes = small.iter().chain(&all).map(|change| (*change).to_owned()).collect();
    let worlds = hunt::worlds(&hunt::Settings { worlds: 6, changes, seed: 2, seeds: 3 });
    let outcomes: Vec<_> = worlds.iter().map(|world| world.measure(&GO_ON).unwrap()).collect();
    let ratios: Vec<f64> =
        outcomes.iter().flatten().flat_map(|outcome| &outcome.ratios).copied().flatten().collect();
    assert!(ratios.len() > 10, "{outcomes:?}");
    assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-9), "{ratios:?}");
    let table = hunt::markdown(&worlds, &outcomes);
    assert!(table.contains("| 0 | ") && table.contains("| 0.0 % | 1.00 | 1.00 |"), "{table}");
}
