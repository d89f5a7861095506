//! Tests of command `compare` with networks: times to accuracies, spread over folds, and clients that join
//! after training.

use crate::common::{
    self, assert_contains_all, empty_directory, exit_code, random_numbers, run_program, stderr_text,
    stdout_text,
};
use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;
use serde_json::Value;

/// Options of a short run of a small network.
const SMALL: [&str; 4] = ["--set", "algorithm.rounds=6", "--set", "model.hidden=[8]"];

fn outcome(changes: &[&str]) -> Outcome {
    let small = ["model.hidden=[16]", "algorithm.rounds=6", "evaluate_every=1"];
    let changes: Vec<String> = small.iter().chain(changes).map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in("digits-network").unwrap();
    run(&Scenario::parse("digits-network", text, &changes).unwrap(), 1, &mut NoProgress).unwrap()
}

/// Mean accuracy after each round.
fn accuracies(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.iter().map(|row| row.scores.unwrap().accuracy.unwrap()).collect()
}

/// With 0 fine-tuning epochs, `+ft` has the results of the algorithm without `+ft`. With the default number
/// of epochs, the accuracy is higher after every round, and the trained network is the same.
#[test]
fn fine_tuned_heads_are_scored_after_every_round() {
    let plain = outcome(&["algorithm.name=\"fedavg\""]);
    let without_tuning = outcome(&["algorithm.name=\"fedavg+ft\"", "algorithm.tuning_epochs=0"]);
    assert_eq!(accuracies(&plain), accuracies(&without_tuning));
    let tuned = outcome(&["algorithm.name=\"fedavg+ft\""]);
    assert_eq!(plain.layers, tuned.layers);
    for (round, (tuned, plain)) in accuracies(&tuned).iter().zip(accuracies(&plain)).enumerate() {
        assert!(*tuned > plain, "round {round}: {tuned}, {plain}");
    }
}

/// Runs `compare --reach` and returns the times to accuracies of its summary.
fn times_to_accuracies(folder: &str, further_arguments: &[&str]) -> Vec<Value> {
    let folder = empty_directory(folder);
    let words = [
        "compare",
        "srpfl-network,participation.stage_rounds=1",
        "srpfl-network,participation={ policy = \"full\" }",
        "--algorithms",
        "fedavg",
        "--set",
        "data.kind=\"digits\"",
        "--set",
        "evaluate_every=1",
        "--reach",
        "0.5,1",
        "--format",
        "json",
    ];
    let output = run_program(&folder, &[&words[..], &SMALL, further_arguments].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let summary: Value = serde_json::from_str(&stdout_text(&output)).unwrap();
    summary["reached"].as_array().unwrap().clone()
}

/// Times that are computed for another communication cost equal the times of a run with this cost.
#[test]
fn shifted_times_equal_times_of_real_runs() {
    let at_once = times_to_accuracies("comparisons-at-once", &["--communication", "0,10"]);
    let simulated_at_ten = times_to_accuracies("comparisons-with", &["--set", "fleet.communication=10"]);
    let at_ten: Vec<&Value> = at_once.iter().filter(|entry| entry["communication"] == 10.0).collect();
    assert_eq!((at_once.len(), at_ten.len(), simulated_at_ten.len()), (8, 4, 4));
    for (entry, expected) in at_ten.iter().zip(&simulated_at_ten) {
        for name in ["label", "accuracy", "target"] {
            assert_eq!(entry[name], expected[name]);
        }
        match (entry["time"].as_f64(), expected["time"].as_f64()) {
            (Some(a), Some(b)) => assert!((a - b).abs() < 1e-6 * b.max(1.0), "{a}, {b}"),
            (a, b) => assert_eq!(a, b),
        }
    }
    // Only entries with doubling participation have a gain over full participation.
    assert!(
        at_once
            .iter()
            .all(|entry| !entry["label"].as_str().unwrap().contains("full") || entry["gain"].is_null())
    );
}

#[test]
fn communication_dependent_runs_are_refused() {
    let folder = empty_directory("comparisons-refused");
    let digits = "data.kind=\"digits\"";
    for (words, expected_parts) in [
        (&["compare", "stragglers", "--reach", "0.9", "--communication", "1"][..], "adaptive"),
        (
            &[
                "compare",
                "srpfl-network",
                "--set",
                digits,
                "--reach",
                "0.9",
                "--communication",
                "1",
                "--set",
                "fleet.dropout=0.1",
            ],
            "fleet.dropout",
        ),
        (&["compare", "srpfl-network", "--reach", "1.5"], "above 0 to 1"),
        (&["compare", "srpfl-network", "--communication", "1"], "--reach"),
        (&["compare", "digits-network", "--over", "seed=1"], "--algorithms"),
        (&["compare", "digits-network", "--algorithms", "fedrep", "--over", "seed"], "KEY=VALUE,VALUE"),
        (&["compare", "digits-network", "--algorithms", "fedrep", "--over", "seed=1,,2"], "KEY=VALUE,VALUE"),
    ] {
        let output = run_program(&folder, words);
        assert_eq!(exit_code(&output), 2, "{words:?}");
        assert!(stderr_text(&output).contains(expected_parts), "{words:?}: {}", stderr_text(&output));
    }
}

/// A table cell covers all values of `--over`, here the folds. A second table shows the clients that join
/// after training.
#[test]
fn table_cell_covers_all_values_of_over() {
    let folder = empty_directory("comparisons-over");
    let words = [
        "compare",
        "watch-network",
        "watch-network,split.labels_per_class=2",
        "--algorithms",
        "fedrep,lg-fedavg",
        "--over",
        "split.fold=0,1",
        "--seeds",
        "2",
    ];
    let output = run_program(&folder, &[&words[..], &SMALL].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let printed = stdout_text(&output);
    assert_eq!(printed.matches("4 runs").count(), 2, "{printed}");
    let newcomer_table = printed.split("came after training").nth(1).unwrap();
    let row = |name: &str| newcomer_table.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert_eq!(row("fedrep").matches("+-").count(), 2, "{printed}");
    assert_eq!(row("lg-fedavg").matches("+-").count(), 2, "{printed}");
    assert!(!printed.contains("fold"), "{printed}");
}

/// Writes a table of fifteen speakers; rows have ten features, and the classes are twelve vowels.
fn write_speakers(folder: &std::path::Path) {
    let mut table = String::from("speaker,vowel");
    (0..10).for_each(|j| table += &format!(",f{j}"));
    let (centres, noise) = (common::random_numbers(120, 1), common::random_numbers(15 * 12 * 8 * 10, 2));
    let mut noise = noise.chunks(10);
    for speaker in 0..15 {
        for take in 0..8 * 12 {
            let vowel = take % 12;
            table += &format!("\ns{speaker},v{vowel}");
            for (j, noise) in noise.next().unwrap().iter().enumerate() {
                table += &format!(",{:.4}", 2.0 * centres[vowel * 10 + j] + 0.4 * noise);
            }
        }
    }
    std::fs::write(folder.join("speakers.csv"), table).unwrap();
    let scenario = "[data]\nkind = \"csv\"\npath = \"speakers.csv\"\nclient = \"speaker\"\ntarget = \"vowel\"\n\
                    task = \"classes\"\n\
                    features = [\"f0\", \"f1\", \"f2\", \"f3\", \"f4\", \"f5\", \"f6\", \"f7\", \"f8\", \"f9\"]\n\
                    [split]\nholdout_users = 3\n[model]\nk = 5\n\
                    [algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.1\n";
    std::fs::write(folder.join("speakers.toml"), scenario).unwrap();
}

/// If there are more classes than features, every algorithm runs, on a linear model or on a network.
#[test]
fn all_algorithms_run_on_a_table_of_many_classes() {
    let folder = empty_directory("comparisons-speakers");
    write_speakers(&folder);
    let output = run_program(&folder, &["compare", "speakers.toml", "--algorithms", "all"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let printed = stdout_text(&output);
    let client_table = printed.split("came after training").next().unwrap();
    for name in [
        "fedrep",
        "gd-gd",
        "fedavg",
        "local-only",
        "pooled",
        "fedper",
        "fedprox",
        "scaffold",
        "lg-fedavg",
        "perfedavg",
        "perfedavg-hf",
        "ditto",
        "apfl",
        "l2gd",
        "fed-mtl",
    ] {
        let row = client_table.lines().find(|line| line.split_whitespace().next() == Some(name));
        assert!(row.is_some_and(|row| row.contains('.')), "{name}: {printed}");
    }
    // The table of clients that came later repeats the note on the networks.
    let notes = printed.matches("networks of").count();
    assert_eq!(notes, 2, "{printed}");
    assert!(printed.contains("networks: mean over the last ten rounds (accuracy_last_10"), "{printed}");
    let one_line = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.contains("fedprox, scaffold: in the row +ft"), "{printed}");
    // The model of pooled is shared, so its row shows the same figure.
    assert!(one_line.contains(" fedavg: each client with a head of its own"), "{printed}");
    assert!(!printed.contains("hidden="), "a label contains the network: {printed}");
    // Algorithms that require a network use the configured network and step size, other algorithms the linear
    // model.
    let further_arguments = [
        "--set",
        "model.network.hidden=[64, 7]",
        "--set",
        "algorithm.network.step_size=0.05",
        "--set",
        "algorithm.ditto.pull=0.5",
    ];
    let words = ["compare", "speakers.toml", "--algorithms", "fedrep,ditto,fedavg+ft", "--out", "beside"];
    let output = run_program(&folder, &[&words[..], &further_arguments].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert!(!stdout_text(&output).contains("one hidden layer"), "{}", stdout_text(&output));
    assert!(folder.join("beside/speakers-ditto/model/layer-2.npy").exists());
    assert!(folder.join("beside/speakers-fedrep/model/representation.npy").exists());
}

/// The error message for an algorithm without the required model contains the kind of model.
#[test]
fn algorithm_errors_name_the_needed_model() {
    let folder = empty_directory("comparisons-needs");
    write_speakers(&folder);
    for (words, expected_parts) in [
        (
            &["run", "speakers.toml", "--set", "algorithm.name=\"fedper\""][..],
            &["needs a network", "mlp", "hidden"][..],
        ),
        (&["run", "speakers.toml", "--set", "algorithm.name=\"rolora\""], &["needs an adapter", "rank"]),
        (&["compare", "digits-network", "--algorithms", "pooled"], &["\"pooled\" needs a linear model"]),
        (&["compare", "linear", "--algorithms", "fedper"], &["needs class labels"]),
        (
            &[
                "run",
                "speakers.toml",
                "--set",
                "model.network.hidden=[0]",
                "--set",
                "algorithm.name=\"fedrep\"",
            ],
            &["model.network.hidden", "1 to 4096"],
        ),
        (
            &[
                "run",
                "speakers.toml",
                "--set",
                "model.network.hidden=[8]",
                "--set",
                "algorithm.network.pull=1",
            ],
            &["algorithm.network.pull", "unknown key"],
        ),
    ] {
        let output = run_program(&folder, words);
        assert_eq!(exit_code(&output), 2, "{words:?}: {}", stderr_text(&output));
        for part in expected_parts {
            assert!(stderr_text(&output).contains(part), "{words:?}: {}", stderr_text(&output));
        }
    }
}

/// With as many columns as features every basis is equally good, and the measured curvature must not be a rounding error.
#[test]
fn measured_step_size_is_sane_for_square_representations() {
    let folder = empty_directory("comparisons-square");
    write_speakers(&folder);
    for ridge in ["0.0", "0.01"] {
        let ridge = format!("algorithm.ridge={ridge}");
        // Ten features and the constant.
        let sets = [
            "--set",
            "model.k=11",
            "--set",
            "algorithm.step_size=auto",
            "--set",
            &ridge,
            "--set",
            "algorithm.rounds=3",
        ];
        let output =
            run_program(&folder, &[&["run", "speakers.toml", "--format", "json"][..], &sets].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let step = summary["step_size"].as_f64().unwrap();
        assert!((1e-6..1e4).contains(&step), "{ridge}: {step}");
    }
}

/// An entry that does not fit is named at once and in the table; the others run, and the exit code says so.
#[test]
fn entries_that_do_not_fit_are_left_out() {
    let folder = empty_directory("comparisons-unfit");
    write_speakers(&folder);
    let rounds = ["--set", "algorithm.rounds=2"];
    let entries = ["speakers.toml", "speakers.toml,stop.distance=0.1", "speakers.toml,model.k=2"];
    let output = run_program(&folder, &[&["compare"][..], &entries, &rounds].concat());
    assert_eq!(exit_code(&output), 1, "{}", stderr_text(&output));
    let message = "stop.distance needs the truth";
    assert!(
        stderr_text(&output).starts_with("speakers distance=0.1 is left out"),
        "{}",
        stderr_text(&output)
    );
    assert!(stderr_text(&output).lines().last().unwrap().contains(message));
    let printed = stdout_text(&output);
    assert!(printed.contains("speakers k=2") && printed.contains(message), "{printed}");
    let table = std::fs::read_to_string(folder.join("fedspan-compare/results.csv")).unwrap();
    assert_eq!(table.lines().count(), 3);

    let output = run_program(
        &folder,
        &[&["compare", "speakers.toml", "--algorithms", "fedrep,rolora"][..], &rounds].concat(),
    );
    assert_eq!(exit_code(&output), 1, "{}", stderr_text(&output));
    assert!(stdout_text(&output).contains("speakers rolora: left out"), "{}", stdout_text(&output));
    assert!(
        folder.join("fedspan-compare-2/report.html").exists(),
        "the second comparison has no directory of its own"
    );

    let none = run_program(
        &folder,
        &["compare", "speakers.toml,stop.distance=0.1", "speakers.toml,stop.distance=0.2"],
    );
    assert_eq!(exit_code(&none), 2);
    assert!(!folder.join("fedspan-compare-3").exists());
}

/// Results are replaced only if the command says so, and then no file describes other runs.
#[test]
fn results_are_not_overwritten_unasked() {
    let folder = empty_directory("comparisons-overwrite");
    write_speakers(&folder);
    let rounds = ["--set", "algorithm.rounds=1", "--out", "out"];
    for command in [&["run", "speakers.toml"][..], &["compare", "speakers.toml", "speakers.toml,model.k=2"]] {
        std::fs::remove_dir_all(folder.join("out")).ok();
        assert_eq!(exit_code(&run_program(&folder, &[command, &rounds].concat())), 0);
        let before = std::fs::read(folder.join("out/summary.json")).unwrap();
        let again = run_program(&folder, &[command, &rounds].concat());
        assert_eq!(exit_code(&again), 2);
        assert!(stderr_text(&again).contains("--overwrite"), "{}", stderr_text(&again));
        assert!(before == std::fs::read(folder.join("out/summary.json")).unwrap());
        // A run that fails when it begins leaves no summary of earlier runs behind.
        let diverging = [
            "--set",
            "algorithm.name=gd-gd",
            "--set",
            "algorithm.step_size=1e6",
            "--set",
            "algorithm.rounds=20",
            "--overwrite",
            "--seeds",
            "2",
        ];
        let failed = run_program(&folder, &[command, &rounds, &diverging].concat());
        assert_eq!(exit_code(&failed), 1, "{}", stderr_text(&failed));
        let summary = std::fs::read_to_string(folder.join("out/summary.json")).unwrap_or_default();
        assert!(!summary.contains("\"accuracy\""), "{summary}");
        assert_eq!(exit_code(&run_program(&folder, &[command, &rounds, &["--overwrite"]].concat())), 0);
    }
}

/// A scenario or data in the result directory under the name of a result file is never removed, nor are single seeds that an
/// aborted run left.
#[test]
fn inputs_and_single_seeds_in_the_result_directory_are_kept() {
    let folder = empty_directory("comparisons-inputs");
    write_speakers(&folder);
    std::fs::create_dir(folder.join("out")).unwrap();
    let text = std::fs::read_to_string(folder.join("speakers.toml")).unwrap();
    std::fs::copy(folder.join("speakers.csv"), folder.join("out/predictions.csv")).unwrap();
    let text = text.replace("speakers.csv", "predictions.csv");
    std::fs::write(folder.join("out/scenario.toml"), &text).unwrap();
    let run = ["run", "out/scenario.toml", "--out", "out", "--set", "algorithm.rounds=1"];
    for more in [&[][..], &["--overwrite"], &["--overwrite", "--seeds", "2"]] {
        let output = run_program(&folder, &[&run[..], more].concat());
        assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
        assert!(stderr_text(&output).contains("scenario.toml"), "{}", stderr_text(&output));
        assert!(std::fs::read_to_string(folder.join("out/scenario.toml")).unwrap() == text);
        assert!(folder.join("out/predictions.csv").exists());
    }
    // Data with the name of a result, and a scenario elsewhere.
    std::fs::rename(folder.join("out/scenario.toml"), folder.join("out/mine.toml")).unwrap();
    let run = ["run", "out/mine.toml", "--out", "out", "--overwrite", "--set", "algorithm.rounds=1"];
    let output = run_program(&folder, &run);
    assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
    assert!(folder.join("out/predictions.csv").exists());
    // A comparison has files of its own next to the directories of its scenarios.
    std::fs::rename(folder.join("out/predictions.csv"), folder.join("out/results.csv")).unwrap();
    std::fs::write(folder.join("out/mine.toml"), text.replace("predictions.csv", "results.csv")).unwrap();
    for others in [&[][..], &["speakers.toml"], &["linear,algorithm.rounds=1"]] {
        let compare = [&["compare", "out/mine.toml"], others, &["--out", "out", "--overwrite"]].concat();
        let output = run_program(&folder, &compare);
        assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
        assert!(stderr_text(&output).contains("results.csv is an input"), "{}", stderr_text(&output));
        assert!(folder.join("out/results.csv").exists());
    }

    std::fs::create_dir_all(folder.join("aborted/seed-1")).unwrap();
    std::fs::write(folder.join("aborted/seed-1/summary.json"), "{}").unwrap();
    let output = run_program(&folder, &["run", "speakers.toml", "--out", "aborted"]);
    assert_eq!(exit_code(&output), 2);
    assert!(stderr_text(&output).contains("seed-1/summary.json"), "{}", stderr_text(&output));
}

/// A diverged run is reported in a note, and the other runs have results.
#[test]
fn failed_run_does_not_end_the_others() {
    let folder = empty_directory("comparisons-stopped");
    write_speakers(&folder);
    let words =
        ["compare", "speakers.toml", "--algorithms", "gd-gd,local-only", "--set", "algorithm.step_size=1e6"];
    let output = run_program(&folder, &[&words[..], &["--set", "algorithm.rounds=20"]].concat());
    assert_eq!(exit_code(&output), 1, "{}", stderr_text(&output));
    let printed = stdout_text(&output);
    assert!(printed.contains("1 of 1 seeds stopped") && printed.contains("local-only"), "{printed}");
    assert!(
        printed.lines().any(|line| line.trim_start().starts_with("local-only") && line.contains('.')),
        "{printed}"
    );
}

/// Hidden layers may be wider than the samples, for tables and for recordings.
#[test]
fn networks_may_be_wider_than_their_samples() {
    let folder = empty_directory("comparisons-wide");
    write_speakers(&folder);
    let network = [
        "--set",
        "model={ kind = \"mlp\", hidden = [32] }",
        "--set",
        "algorithm={ name = \"fedper\", rounds = 1 }",
    ];
    for words in [
        &["run", "watch-network", "--set", "model.hidden=[64]", "--set", "algorithm.rounds=1"][..],
        &[
            "run",
            "watch-signal",
            "--set",
            "model={ kind = \"mlp\", hidden = [700] }",
            "--set",
            "algorithm.rounds=1",
        ],
        &["run", "digits-network", "--set", "model.hidden=[128]", "--set", "algorithm.rounds=1"],
        &[&["run", "speakers.toml"][..], &network].concat(),
    ] {
        let output = run_program(&folder, words);
        assert_eq!(exit_code(&output), 0, "{words:?}: {}", stderr_text(&output));
    }
}

#[test]
fn linear_and_network_scenarios_get_the_same_algorithms() {
    let folder = empty_directory("comparisons-either");
    let words =
        ["compare", "demo", "watch-network", "--algorithms", "fedrep,fedper", "--set", "algorithm.rounds=2"];
    let output = run_program(&folder, &words);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    for name in ["fedrep", "fedper"] {
        let printed = stdout_text(&output);
        let row = printed.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        assert!(
            row.split_whitespace().skip(1).all(|cell| cell.contains('.')),
            "a column has no number: {printed}"
        );
    }
}

/// A scenario with a measured step size can be run with every algorithm. Networks and algorithms without
/// rounds ignore the step size.
#[test]
fn measured_step_size_is_accepted_by_every_algorithm() {
    let folder = empty_directory("comparisons-auto");
    let mut table = String::from("who,a,b,c,kind\n");
    for (row, values) in random_numbers(6 * 20 * 3, 11).chunks(3).enumerate() {
        let kind = row % 4;
        let cell = |j: usize| values[j] + f64::from(u8::from(j == kind));
        table += &format!("{},{},{},{},k{kind}\n", row / 20, cell(0), cell(1), cell(2));
    }
    std::fs::write(folder.join("table.csv"), table).unwrap();
    let scenario = "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\ntarget = \"kind\"\ntask = \"classes\"\n\
                    features = \"*\"\n[split]\ntest = 0.5\n[model]\nk = 2\n[model.network]\nkind = \"mlp\"\nhidden = [8]\n\
                    [algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = \"auto\"\n[algorithm.network]\n\
                    step_size = 0.1\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(&folder, &["compare", "my.toml", "--algorithms", "all"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    for method in ["fedrep", "gd-gd", "fedavg", "local-only", "pooled", "fedper", "scaffold", "lg-fedavg"] {
        assert_contains_all(&stdout_text(&output), &[method]);
    }
}

/// With `--against` two more tables have the differences to an algorithm, over values of `--over`, or over seeds; for regression the
/// scores are errors of predictions.
#[test]
fn differences_to_an_algorithm_have_intervals() {
    let folder = empty_directory("compare-differences");
    let compare = |arguments: &[&str]| {
        let fixed = ["compare", "--quiet", "--out", "out", "--overwrite", "--against", "fedrep"];
        run_program(&folder, &fixed.iter().chain(arguments).copied().collect::<Vec<_>>())
    };
    let digits = ["digits,split.holdout_clients=5", "--algorithms", "fedrep,pooled", "--set"];
    let over = compare(
        &[&digits[..], &["algorithm.rounds=2", "--over", "split.fold=0,1,2", "--seeds", "2"]].concat(),
    );
    assert_eq!(exit_code(&over), 0, "{}", stderr_text(&over));
    let shown = stdout_text(&over);
    assert_contains_all(
        &shown,
        &[
            "accuracy, 6 runs: mean +- standard deviation",
            "accuracy, difference to fedrep, mean [95 % interval over 3 values of split.fold]",
            "accuracy of clients that came after training, difference to fedrep, mean [95 % interval over 3 values of \
             split.fold]",
        ],
    );
    // The tables of scores, then those of differences, in which the algorithm itself has no row.
    let rows = |name: &str| shown.lines().filter(|line| line.trim_start().starts_with(name)).count();
    assert_eq!((rows("fedrep "), rows("pooled ")), (2, 4), "{shown}");
    // The mean of the differences is the difference of the means.
    let number = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
    let numbers = |name: &str| {
        shown.lines().filter(|line| line.trim_start().starts_with(name)).map(number).collect::<Vec<f64>>()
    };
    let (ours, others) = (numbers("fedrep "), numbers("pooled "));
    for score in 0..2 {
        assert!((others[score] - ours[score] - others[score + 2]).abs() < 2e-4, "{shown}");
    }
    let regression = ["new-clients", "--algorithms", "fedrep,local-only", "--set", "algorithm.rounds=2"];
    let seeds = compare(&[&regression[..], &["--seeds", "2"]].concat());
    assert_contains_all(
        &stdout_text(&seeds),
        &[
            "mean squared error of predictions, 2 seeds",
            "mean squared error of predictions, clients that came after training, 2 seeds",
            "mean squared error of predictions, difference to fedrep, mean [95 % interval over 2 seeds]",
        ],
    );
    let unknown = compare(&["new-clients", "--algorithms", "local-only"]);
    assert_eq!(exit_code(&unknown), 2);
    assert_contains_all(&stderr_text(&unknown), &["--against: found \"fedrep\", allowed: local-only"]);
}
