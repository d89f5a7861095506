//! Tests of independent and correlated device dropouts and of rounds with a deadline: participants, round
//! times, and a small dropout measurement with the thresholds of `sim/DROPOUT.md`.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use crate::common::{assert_contains_all, empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_engine::DeviceId;
use fedspan_experiments::dropout::{PATTERNS, POLICIES, Row, Settings, markdown, measure};
use fedspan_protocol::message::Task;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::{Job, NoProgress, Outcome, RoundRow, Times};
use fedspan_sim_core::scenario::Scenario;

/// Scenario of the tests.
const LINEAR: &str = "[data]\nkind = \"linear-regression\"\nclients = 12\nd = 6\nk = 2\nsamples = 8\n\
                      [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 60\nstep_size = 0.2\n";

/// Change of the scenario: compute times are drawn in every round.
const SPEED: &str = "fleet.speed=exponential-dynamic";

/// Task that takes one computation time.
const ONE: Task = Task::PowerStart;

fn scenario(changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse("my.toml", LINEAR, &changes).unwrap()
}

fn outcome(changes: &[&str], seed: u64) -> Outcome {
    Job::prepare(&scenario(changes), seed).unwrap().run(&mut NoProgress).unwrap()
}

fn times(scenario: &Scenario, seed: u64) -> Times {
    Times::new(scenario, &scenario.dataset(seed).unwrap(), seed).unwrap()
}

/// Rows of the training rounds, without the row of the initial model.
fn trained(outcome: &Outcome) -> &[RoundRow] {
    &outcome.rounds[1..]
}

/// Simulated time of each round, without the initialisation.
fn durations(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.windows(2).map(|pair| pair[1].time - pair[0].time).collect()
}

/// Participants of each round, ascending.
fn sets(outcome: &Outcome) -> Vec<Vec<DeviceId>> {
    let sorted = |row: &RoundRow| {
        let mut devices = row.participants.clone();
        devices.sort_unstable();
        devices
    };
    trained(outcome).iter().map(sorted).collect()
}

/// Exactly the devices that finish before the deadline participate. The model equals that of a fleet in which
/// the other devices never send an update.
#[test]
fn straggler_past_the_deadline_never_counts() {
    for (seed, deadline_time) in [(1, 1.0), (2, 0.7), (3, 2.0)] {
        let deadline = format!("rounds.deadline={deadline_time}");
        let changes = [SPEED, &deadline];
        let scenario = scenario(&changes);
        let outcome = outcome(&changes, seed);
        let times = times(&scenario, seed);
        let mut in_time = BTreeMap::new();
        let mut late_answers = 0;
        for (round, (row, duration)) in (1u32..).zip(trained(&outcome).iter().zip(durations(&outcome))) {
            let mut slowest: f64 = 0.0;
            for client in 0..12u64 {
                let time = times.time(client as usize, round, &ONE);
                assert_eq!(
                    row.participants.contains(&DeviceId(client)),
                    time < deadline_time,
                    "{client} in {round}: {time}"
                );
                slowest = slowest.max(time);
                if time < deadline_time {
                    in_time.insert((client as usize, round), time);
                } else {
                    late_answers += 1;
                }
            }
            assert!((duration - slowest.min(deadline_time)).abs() < 1e-5, "{duration}");
        }
        let counters = outcome.counters;
        assert!(late_answers > 50 && counters.short > 20, "{late_answers} {}", counters.short);
        assert_eq!((counters.extended, counters.repeated, counters.late, counters.rejected()), (0, 0, 0, 0));
        let without_late_devices =
            Job::prepare(&scenario, seed).unwrap().with_times(Times::from_table(in_time));
        let without_late_devices = without_late_devices.run(&mut NoProgress).unwrap();
        assert!(without_late_devices.representation == outcome.representation, "the bits differ");
        assert_eq!(without_late_devices.updates, outcome.updates);
    }
}

/// Participants and model do not depend on whether the server is notified of a dropout or waits for the
/// deadline. Only the round times differ.
#[test]
fn silent_dropouts_cost_time_and_change_no_model() {
    for pattern in ["independent", "persistent"] {
        let changes = [SPEED, "fleet.dropout=0.5", &format!("fleet.dropout_pattern={pattern}")];
        let notified = outcome(&changes, 4);
        let unnotified = outcome(&[&changes[..], &["rounds.deadline=1000"]].concat(), 4);
        assert_eq!(sets(&notified), sets(&unnotified));
        assert!(notified.representation == unnotified.representation, "the bits differ");
        assert!(durations(&unnotified).iter().all(|duration| (duration - 1000.0).abs() < 1e-5));
        assert_eq!((unnotified.counters.declined, unnotified.counters.extended), (0, 0));
        let count = |outcome: &Outcome| sets(outcome).concat().len();
        assert!((count(&notified) as f64 / 720.0 - 0.5).abs() < 0.08, "{}", count(&notified));
    }
}

/// A deadline that all devices meet has no effect.
#[test]
fn met_deadline_changes_nothing() {
    let (with_deadline, without_deadline) =
        (outcome(&[SPEED, "rounds.deadline=1000"], 5), outcome(&[SPEED], 5));
    assert_eq!(with_deadline.rounds, without_deadline.rounds);
    assert_eq!(with_deadline.counters, without_deadline.counters);
    assert!(with_deadline.representation == without_deadline.representation);
}

/// With persistent dropouts, the same half of the fleet is absent in every round, and only the other half
/// participates.
#[test]
fn absent_devices_never_count() {
    for deadline in [None, Some("rounds.deadline=9")] {
        let mut changes = vec![SPEED, "fleet.dropout=0.5", "fleet.dropout_pattern=persistent"];
        changes.extend(deadline);
        let sets = sets(&outcome(&changes, 6));
        assert_eq!(sets.len(), 60);
        assert!(sets.concat().len() > 300);
        let mut sorted = sets.concat();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 6, "{sorted:?}");
    }
}

/// During an outage of the complete fleet the round is extended, no update is lost, and the campaign
/// continues without intervention.
#[test]
fn round_survives_outage_of_the_whole_fleet() {
    let changes = [
        "fleet.dropout=0.5",
        "fleet.dropout_pattern=outages",
        "fleet.outage_sites=1",
        "fleet.outage_rounds=6",
        "rounds.deadline=3",
    ];
    let outcome = outcome(&changes, 7);
    assert!(trained(&outcome).iter().all(|row| row.participants.len() == 12));
    assert_eq!(trained(&outcome).len(), 60);
    let counters = outcome.counters;
    assert!(counters.extended > 20, "{}", counters.extended);
    assert_eq!((counters.repeated, counters.short), (0, 0));
    // Each deadline without an update takes time 3, and a round with constant compute times takes time 1.
    let time = outcome.rounds[60].time;
    assert!((time - 60.0 - 3.0 * counters.extended as f64).abs() < 1e-3, "{time}");
}

/// An absent cohort does not block the campaign, because at the deadline the round is extended to all
/// devices.
#[test]
fn absent_cohort_is_replaced_at_the_deadline() {
    let changes = [
        "fleet.dropout=0.5",
        "fleet.dropout_pattern=persistent",
        "rounds.deadline=3",
        "participation={ policy = \"first-arrivals\", n = 2, cohort = 2 }",
    ];
    let outcome = outcome(&changes, 8);
    assert_eq!(trained(&outcome).len(), 60);
    let extended_rounds = trained(&outcome).iter().filter(|row| row.cohort.len() == 12).count();
    assert!(extended_rounds > 3 && extended_rounds as u64 == outcome.counters.extended, "{extended_rounds}");
    for row in trained(&outcome) {
        assert!(row.cohort.len() == 2 || row.participants.len() == 2, "{row:?}");
    }
}

/// For each dropout pattern, results with one thread and with two threads are equal, bit for bit.
#[test]
fn results_do_not_depend_on_threads() {
    let folder = empty_directory("dropout-threads");
    for pattern in PATTERNS {
        let run = |threads: &str| {
            let mut arguments =
                vec!["run", "stragglers", "--out", threads, "--overwrite", "--threads", threads];
            let sets = ["algorithm.rounds=30", "fleet.dropout=0.4", SPEED, "rounds.deadline=2"];
            arguments.extend(sets.iter().chain(pattern.changes).flat_map(|set| ["--set", *set]));
            let output = run_program(&folder, &arguments);
            assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
            let file = |name: &str| std::fs::read(folder.join(threads).join(name)).unwrap();
            (file("rounds.jsonl"), file("model/representation.npy"))
        };
        assert!(run("1") == run("2"), "{}", pattern.name);
    }
}

#[test]
fn fleet_that_never_answers_is_refused() {
    let folder = empty_directory("dropout-refused");
    std::fs::write(folder.join("my.toml"), LINEAR).unwrap();
    for (sets, parts) in [
        (
            &["fleet.dropout=0.97", "fleet.dropout_pattern=persistent"][..],
            &["fleet.dropout: found 0.97", "all of 12 clients"][..],
        ),
        (
            &["fleet.dropout=0.5", "fleet.dropout_pattern=outages", "fleet.outage_sites=13"],
            &["fleet.outage_sites: found 13", "at most the fleet's 12 clients"],
        ),
    ] {
        let mut arguments = vec!["run", "my.toml", "--out", "out", "--overwrite"];
        arguments.extend(sets.iter().flat_map(|set| ["--set", *set]));
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
        assert_contains_all(&stderr_text(&output), parts);
        assert!(!folder.join("out").exists());
    }
}

/// Progress display without output.
struct Silent;

impl Progress for Silent {
    fn advance(&self, _parts: u64, _of: u64, _what: &str) {}
}

/// Runs a small dropout measurement.
fn small_measurement(rates: &[f64], threads: usize) -> Vec<Row> {
    let settings = Settings {
        policies: POLICIES.to_vec(),
        patterns: PATTERNS.to_vec(),
        rates: rates.to_vec(),
        folds: 1,
        changes: Vec::new(),
        seed: 1,
        seeds: 2,
        threads,
    };
    measure(&settings, &AtomicBool::new(false), &Silent).unwrap().unwrap()
}

/// At a dropout rate of 50 % every round finishes without intervention, and the model is about as accurate as
/// without dropouts.
#[test]
fn campaign_survives_half_of_the_fleet_dropping_out() {
    let rows = small_measurement(&[0.5], 2);
    assert_eq!(rows.len(), POLICIES.len() * (1 + PATTERNS.len()));
    for row in &rows {
        assert_eq!(row.runs.len(), 2);
        for run in &row.runs {
            let context = format!("{}, {} {}: {run:?}", row.policy, row.pattern, row.rate);
            assert_eq!((run.rounds, run.not_counted), (300, 0), "{context}");
            // All eight devices are absent in one of 256 rounds on average, and all four sites in one of 16
            // outage periods, which last several rounds.
            let max_extensions = if row.pattern == "outages" { 60 } else { 8 };
            assert!(run.again <= max_extensions, "{context}");
            assert!(run.answers >= 300 && run.answers <= 300 * row.wanted, "{context}");
            assert!(run.change > -0.03 && run.accuracy > 0.9, "{context}");
            assert_eq!(row.pattern == "persistent", run.absent_there == 0.0, "{context}");
            assert!(run.absent_change > -0.06, "{context}");
            assert!(
                row.rate > 0.0 || (run.change, run.absent_change, run.newcomers_change) == (0.0, 0.0, 0.0)
            );
        }
    }
    let table = markdown(&rows);
    assert_eq!(table.matches("Rounds wait for").count(), 3);
    assert_eq!(table.matches("| 50 %, persistent |").count(), 3);
    assert!(!table.contains("NaN"), "{table}");
}

#[test]
fn dropout_command_names_unknown_options() {
    let folder = empty_directory("dropout-command");
    for (arguments, parts) in [
        (["--rates", "1"], ["--rates", "above 0 to 0.9"]),
        (["--rates", "0"], ["--rates", "above 0 to 0.9"]),
        (["--patterns", "often"], ["--patterns: found \"often\"", "\"persistent\""]),
        (["--policies", "some"], ["--policies: found \"some\"", "\"first 4 of 8\""]),
        (["--folds", "6"], ["--folds", "1..=5"]),
        (["--set", "fleet.dropouts=1"], ["fleet.dropouts", "unknown key"]),
    ] {
        let output = run_program(&folder, &[&["dropout"], &arguments[..]].concat());
        assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
        assert_contains_all(&stderr_text(&output), &parts);
    }
    let short_run =
        ["--rates", "0.5", "--patterns", "persistent", "--policies", "all", "--folds", "1", "--seeds", "1"];
    let run = |threads: &str| {
        let sets = ["--set", "algorithm.rounds=20", "--threads", threads, "--format", "json"];
        let output = run_program(&folder, &[&["dropout"], &short_run[..], &sets[..]].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let reported = stdout_text(&output);
        reported.split_once("\"timing\"").unwrap().0.to_owned()
    };
    assert_eq!(run("1"), run("2"));
}
