//! Tests of commands `live` and `replay`: output, written files, and exit codes. No test checks durations.

use std::time::Duration;

use crate::common::{empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_sim_core::live::{self, Plan};
use fedspan_sim_core::scenario::Scenario;

/// Options of a short run of a small scenario.
const SMALL: [&str; 8] = [
    "--set",
    "data.clients=8",
    "--set",
    "algorithm.rounds=6",
    "--set",
    "participation={ policy = \"doubling\", n0 = 2, schedule = \"fixed\", stage_rounds = 2 }",
    "--seed",
    "5",
];

#[test]
fn server_decisions_are_recorded_and_replayed() {
    let folder = empty_directory("live");
    let live = ["live", "stragglers", "stragglers,model.init=random", "--unit-ms", "2", "--out", "kept"];
    let output = run_program(&folder, &[&live[..], &["--target", "1"], &SMALL].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let table = stdout_text(&output);
    for row in ["rounds", "seconds to 1 ", "times the first's", "distance", "answers late", "decided again"] {
        assert!(table.contains(row), "{row}: {table}");
    }
    assert_eq!(table.matches("equal").count(), 2, "{table}");
    let summary = std::fs::read_to_string(folder.join("kept/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let runs = summary["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!((run["rounds"].as_u64(), run["clients"].as_u64()), (Some(6), Some(8)));
        // Every distance is at most 1, so the initial model reaches the target at time 0.
        assert_eq!(run["target_seconds"].as_f64(), Some(0.0));
        assert_eq!(run["curve"].as_array().unwrap().len(), 7);
    }
    let journal_path = "kept/stragglers/arrivals.jsonl";
    let replayed = run_program(&folder, &[&["replay", "stragglers", journal_path][..], &SMALL].concat());
    assert_eq!(exit_code(&replayed), 0, "{}", stderr_text(&replayed));
    assert!(stdout_text(&replayed).ends_with("rounds: every decision equal\n"));

    // If one decision of the journal is changed, the message shows the decisions of journal and simulator.
    let journal = std::fs::read_to_string(folder.join(journal_path)).unwrap();
    let changed = journal.replacen("\"target\":4,", "\"target\":5,", 1);
    assert_ne!(changed, journal);
    std::fs::write(folder.join("changed.jsonl"), changed).unwrap();
    let output = run_program(&folder, &[&["replay", "stragglers", "changed.jsonl"][..], &SMALL].concat());
    assert_eq!(exit_code(&output), 1);
    let reported = stderr_text(&output);
    assert!(reported.contains("waits for 5 of") && reported.contains("waits for 4 of"), "{reported}");
    assert_eq!(reported.lines().count(), 1, "{reported}");

    // The journal of a live server contains no simulated attackers, so a scenario with an attack is refused.
    let output = run_program(
        &folder,
        &[&["replay", "stragglers", journal_path, "--set", "attack.kind=mimic"][..], &SMALL].concat(),
    );
    assert_eq!(exit_code(&output), 2);
    assert!(stderr_text(&output).contains("set attack.kind = \"none\""), "{}", stderr_text(&output));

    // The journal of another scenario and a file that is not a journal are refused.
    let output = run_program(&folder, &["replay", "stragglers", journal_path]);
    assert_eq!(exit_code(&output), 2);
    let reported = stderr_text(&output);
    for part in ["another campaign than stragglers", "- devices.expected = ", "; + devices.expected = "] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert_eq!(reported.lines().count(), 1, "{reported}");
    std::fs::write(folder.join("garbage.jsonl"), format!("{journal}garbage\n")).unwrap();
    let output = run_program(&folder, &[&["replay", "stragglers", "garbage.jsonl"][..], &SMALL].concat());
    assert_eq!(exit_code(&output), 2);
    let line = format!("garbage.jsonl: line {}: ", journal.lines().count() + 1);
    assert!(stderr_text(&output).contains(&line), "{}", stderr_text(&output));
}

/// Groups of devices are the same with a server as in the simulator, of linear models and of networks.
#[test]
fn learned_priors_are_those_of_the_simulator() {
    let folder = empty_directory("live-prior");
    let settings = [
        "algorithm.name=learned-prior",
        "algorithm.rounds=2",
        "algorithm.learned-prior={ groups = 3, learning_rounds = 1, refining_rounds = 1 }",
        "data.partition.clients=10",
    ];
    let changes = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> =
        ["live", "digits", "digits-network", "--unit-ms", "1"].into_iter().chain(changes).collect();
    let output = run_program(&folder, &arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert_eq!(stdout_text(&output).matches("equal").count(), 2, "{}", stdout_text(&output));
}

/// The server runs a campaign with devices that add noise, in the initialisation by power iterations and in
/// training. The decisions of this campaign cannot be replayed, because the noise is secret.
#[test]
fn devices_with_noise_are_served() {
    let changes = ["data.clients=6", "algorithm.rounds=3", "model.power_iterations=2"].map(str::to_owned);
    let text = Scenario::built_in("fedrep-private").unwrap();
    let scenario = Scenario::parse("fedrep-private", text, &changes).unwrap();
    let dataset = scenario.dataset(scenario.seed).unwrap();
    let state = empty_directory("noisy");
    let plan = Plan { scenario: &scenario, dataset: &dataset, unit: Duration::from_millis(1), state: &state };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(live::run(&plan, std::future::pending(), |_| {})).unwrap();
    let privacy = status.privacy.unwrap();
    assert_eq!(privacy.devices.len(), 6);
    // Five releases spend the epsilon of 10 of the scenario. The server has no section [privacy] and uses its
    // default delta, which equals the delta of the scenario.
    assert!(privacy.devices.values().all(|each| *each <= 10.0 && *each > 9.99), "{privacy:?}");
}

#[test]
fn unservable_scenarios_exit_with_2() {
    let folder = empty_directory("unserved");
    std::fs::write(folder.join("file"), "").unwrap();
    for arguments in [
        vec!["live"],
        vec!["live", "stragglerz"],
        vec!["live", "stragglers", "--unit-ms", "-1"],
        vec!["live", "stragglers", "--target", "2"],
        vec!["live", "stragglers", "--out", "file"],
        vec!["live", "digits", "--target", "0.1"],
        vec!["live", "linear", "--set", "model.init=truth-sine:0.5"],
        vec!["live", "linear", "--set", "algorithm.name=pooled"],
        vec!["replay", "stragglers"],
        vec!["replay", "stragglers", "nowhere.jsonl"],
    ] {
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2, "{arguments:?}: {}", stderr_text(&output));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "files were written");
}
