//! Tests of simulated fleets that sleep: only times change, and a round takes as long as the devices sleep.

use std::path::Path;

use crate::common::{assert_contains_all, empty_directory, exit_code, run_program, stderr_text};
use serde_json::Value;

const FLEET: [&str; 10] = [
    "run",
    "linear",
    "--set",
    "model.init=\"random\"",
    "--set",
    "data.clients=20",
    "--set",
    "algorithm.rounds=30",
    "--set",
    "participation={ policy = \"full\" }",
];

/// Runs the fleet with changes and returns its summary.
fn summary(folder: &Path, changes: &[&str]) -> Value {
    let mut arguments = FLEET.to_vec();
    changes.iter().for_each(|change| arguments.extend(["--set", change]));
    arguments.extend(["--format", "json"]);
    let output = run_program(folder, &arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// With full participation the sums of a round do not depend on the order of answers, so the model keeps its bits, and
/// rounds take as long as the last device sleeps.
#[test]
fn sleep_changes_times_and_no_model() {
    let folder = empty_directory("sleep-times");
    let awake = summary(&folder, &[]);
    // Devices that wake together have two rounds in each of 15 wakes.
    for (phases, from, to) in [("even", 18.0, 20.0), ("random", 14.0, 20.0), ("together", 9.4, 9.4)] {
        let phases = format!("fleet.wake_phases=\"{phases}\"");
        let asleep = summary(&folder, &["fleet.wake_every=20", "fleet.awake=2", &phases]);
        for name in ["final", "updates", "bytes"] {
            assert_eq!(asleep[name], awake[name], "{name}");
        }
        let [time, asleep_time] = [&awake, &asleep].map(|run| run["time"]["simulated"].as_f64().unwrap());
        assert!((time - 30.0).abs() < 1e-9, "{time}");
        let round = asleep_time / 30.0;
        assert!(round >= from - 1e-9 && round <= to + 1e-9, "{phases}: a round takes {round}");
    }
    // A device that is awake for longer than it computes need not sleep between rounds if its window is the whole period.
    let always = summary(&folder, &["fleet.wake_every=20", "fleet.awake=20"]);
    assert_eq!((&always["final"], &always["time"]), (&awake["final"], &awake["time"]));
}

/// A deadline shorter than the sleep loses answers, and the first answers are those of the devices that wake first.
#[test]
fn deadline_loses_sleeping_devices() {
    let folder = empty_directory("sleep-deadline");
    let sleep = ["fleet.wake_every=20", "fleet.awake=2", "fleet.wake_phases=\"even\""];
    let all = summary(&folder, &sleep);
    let some = summary(&folder, &[&sleep[..], &["rounds.deadline=8"]].concat());
    assert_eq!(all["updates"], 600);
    let updates = some["updates"].as_f64().unwrap();
    assert!((150.0..450.0).contains(&updates), "{updates}");
    assert_ne!(all["final"], some["final"]);
}

#[test]
fn impossible_cycles_are_refused() {
    let folder = empty_directory("sleep-refused");
    for (changes, expected) in [
        (&["fleet.wake_every=20"][..], "fleet.awake is missing"),
        (&["fleet.wake_every=20", "fleet.awake=21"], "fleet.awake: found 21"),
        (&["fleet.awake=2"], "fleet.awake: unknown key"),
        (
            &["fleet.wake_every=20", "fleet.awake=2", "fleet.wake_phases=\"odd\""],
            "\"together\", \"even\", \"random\"",
        ),
        (
            &[
                "fleet.wake_every=60",
                "fleet.awake=1",
                "fleet.wake_phases=\"even\"",
                "fleet.window_every=120",
                "fleet.window=20",
            ],
            "fleet.window: client 8 is never awake in its window",
        ),
    ] {
        let mut arguments = FLEET.to_vec();
        changes.iter().for_each(|change| arguments.extend(["--set", change]));
        let output = run_program(&folder, &arguments);
        assert!([1, 2].contains(&exit_code(&output)), "{changes:?}");
        assert_contains_all(&stderr_text(&output), &[expected]);
    }
    let live = [
        "live",
        "linear",
        "--set",
        "model.init=\"random\"",
        "--set",
        "fleet.wake_every=20",
        "--set",
        "fleet.awake=2",
    ];
    let output = run_program(&folder, &live);
    assert_ne!(exit_code(&output), 0);
    assert_contains_all(&stderr_text(&output), &["fleet.wake_every", "simulated only"]);
}
