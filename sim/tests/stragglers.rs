//! Tests of doubling participation in simulated time: a round lasts until the last update for which it waits,
//! and the adaptive schedule is never much slower than full participation.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn outcome(changes: &[&str], seed: u64) -> Outcome {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in("stragglers").unwrap();
    let scenario = Scenario::parse("stragglers", text, &changes).unwrap();
    run(&scenario, seed, &mut NoProgress).unwrap()
}

/// Change of the scenario: full participation.
const FULL: &str = "participation={ policy = \"full\" }";
/// Change of the scenario: doubling participation after a fixed number of rounds.
const FIXED: &str = "participation.schedule=\"fixed\"";

/// Simulated time of each round, without the initialisation.
fn durations(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.windows(2).map(|pair| pair[1].time - pair[0].time).collect()
}

/// First time at which the median distance over the runs is at or below `target`.
fn time_to_target(runs: &[Outcome], target: f64) -> f64 {
    let started: Vec<f64> = runs.iter().map(|run| run.rounds[0].time).collect();
    let mut times: Vec<f64> = runs
        .iter()
        .zip(&started)
        .flat_map(|(run, start)| run.rounds.iter().map(move |row| row.time - start))
        .collect();
    times.sort_by(f64::total_cmp);
    for time in times {
        let mut distances: Vec<f64> = runs
            .iter()
            .zip(&started)
            .map(|(run, start)| {
                let row = run.rounds.iter().rev().find(|row| row.time - start <= time + 1e-9).unwrap();
                row.scores.unwrap().distance.unwrap()
            })
            .collect();
        distances.sort_by(f64::total_cmp);
        let middle = distances.len() / 2;
        if (distances[middle - 1] + distances[middle]) / 2.0 <= target {
            return time;
        }
    }
    panic!("no run comes to {target}")
}

#[test]
fn round_ends_with_its_last_awaited_answer() {
    let stages = [FIXED, "participation.stage_rounds=3", "algorithm.rounds=15", "fleet.communication=2.0"];
    let outcome = outcome(&stages, 1);
    let n: Vec<usize> = outcome.rounds.iter().skip(1).map(|row| row.participants.len()).collect();
    assert_eq!(n, [4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64]);
    // Speeds are fixed, so the order of arrivals is always the same, and all rounds of a stage take the same
    // time.
    let durations = durations(&outcome);
    for (stage, rounds) in outcome.rounds[1..].chunks(3).enumerate() {
        let first = &rounds[0].participants;
        assert!(rounds.iter().all(|row| row.participants == *first && usize::from(row.stage) == stage));
        assert!(
            first.starts_with(&outcome.rounds[1].participants),
            "the fastest clients are not among the first cohort"
        );
        for time in &durations[3 * stage..3 * stage + 3] {
            assert!((time - durations[3 * stage]).abs() < 1e-5 && *time > 2.0);
        }
    }
    assert!(durations.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
    // No update is late, because the server stops all devices that have not finished when a round ends.
    assert_eq!((outcome.counters.late, outcome.counters.rejected()), (0, 0));
}

#[test]
fn equal_devices_have_no_speedup() {
    let common_changes = ["fleet.speed=\"constant\"", "algorithm.rounds=12", "fleet.communication=0.5"];
    let full = outcome(&[&common_changes[..], &[FULL]].concat(), 3);
    let doubling = outcome(&common_changes, 3);
    assert_eq!(durations(&full), durations(&doubling));
    assert_eq!(full.representation, doubling.representation);
}

/// The adaptive schedule is faster than full participation although one in ten devices drops out of every
/// round and the schedule never observes all arrivals.
#[test]
fn adaptive_schedule_tolerates_dropouts() {
    let runs = |changes: &[&str]| -> Vec<Outcome> {
        let dropout = ["fleet.dropout=0.1", "stop.distance=0.05"];
        (1..=8).map(|seed| outcome(&[&dropout[..], changes].concat(), seed)).collect()
    };
    let (full, adaptive) = (runs(&[FULL]), runs(&[]));
    let time = |runs: &[Outcome]| {
        let mut times: Vec<f64> = runs.iter().map(|run| durations(run).iter().sum()).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let waits_for_few =
        adaptive.iter().all(|run| run.rounds.iter().skip(2).any(|row| row.participants.len() <= 8));
    assert!(waits_for_few, "a run never waited for at most eight clients");
    assert!(time(&adaptive) < 0.7 * time(&full), "{} {}", time(&adaptive), time(&full));
}

/// The adaptive schedule has the speedups of the documented table, with 16 seeds and exponential speeds that
/// are drawn once.
#[test]
fn adaptive_schedule_gains_without_communication_and_never_loses() {
    let runs = |changes: &[&str]| -> Vec<Outcome> { (1..=16).map(|seed| outcome(changes, seed)).collect() };
    for (communication, min_ratio) in [(0.0, 2.0), (1.0, 1.3), (100.0, 0.97)] {
        let c = format!("fleet.communication={communication}");
        let full = runs(&[FULL, &c]);
        let adaptive = runs(&[&c]);
        let ratio = time_to_target(&full, 0.041) / time_to_target(&adaptive, 0.041);
        println!("communication {communication}: {ratio:.2} times as fast as waiting for all");
        assert!(ratio >= min_ratio, "communication {communication}: {ratio}");
    }
}

#[test]
fn first_stage_larger_than_the_fleet_is_refused() {
    let text = Scenario::built_in("stragglers").unwrap();
    for (change, key) in [("participation.n0=65", "n0"), ("participation.cohort=65", "cohort")] {
        let scenario = Scenario::parse("stragglers", text, &[change.to_owned()]).unwrap();
        let reported = run(&scenario, 1, &mut NoProgress).unwrap_err().to_string();
        assert_eq!(
            reported,
            format!("participation.{key}: found 65, allowed: at most the fleet's 64 clients")
        );
    }
    let change = ["participation.n0=9".to_owned(), "participation.cohort=8".to_owned()];
    let reported = Scenario::parse("stragglers", text, &change).unwrap_err().to_string();
    assert!(reported.contains("participation.n0: 9 is more than the cohort of 8"), "{reported}");
}
