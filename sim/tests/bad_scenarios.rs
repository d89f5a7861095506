//! Tests of malformed scenarios: each is refused with exit code 2 and a one-line message with file, line,
//! key, the found value and the allowed values.

use std::process::Command;

use crate::common::{empty_directory, exit_code, run_program, stderr_text};
use fedspan_sim_core::scenario::Scenario;

/// Valid scenario, of which each test changes a part.
const GOOD: &str = "seed = 7\n[data]\nkind = \"linear-regression\"\nclients = 10\nd = 8\nk = 2\nsamples = 6\n\
                    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n";

/// Runs [`GOOD`] with `from` replaced by `to` and returns the error message.
fn error_after_replacement(name: &str, from: &str, to: &str) -> String {
    let folder = empty_directory(&format!("bad-{name}"));
    assert!(GOOD.contains(from), "{from}");
    std::fs::write(folder.join("my.toml"), GOOD.replace(from, to)).unwrap();
    let output = run_program(&folder, &["run", "my.toml", "--out", "out"]);
    assert_eq!(exit_code(&output), 2, "{name}: {}", stderr_text(&output));
    assert!(!folder.join("out").exists(), "{name}: files were written");
    let reported = stderr_text(&output);
    assert_eq!(reported.lines().count(), 1, "{name}: {reported}");
    assert!(reported.contains("my.toml"), "{name}: {reported}");
    reported
}

#[test]
fn valid_scenario_is_accepted() {
    let folder = empty_directory("good");
    std::fs::write(folder.join("my.toml"), GOOD).unwrap();
    assert_eq!(exit_code(&run_program(&folder, &["run", "my.toml"])), 0);
}

#[test]
fn error_names_place_and_allowed_values() {
    for (name, from, to, parts) in [
        ("toml", "clients = 10", "clients = = 10", &["my.toml:4"][..]),
        ("key", "samples = 6", "sampels = 6", &["my.toml:7", "data.sampels", "did you mean \"samples\""]),
        ("missing", "samples = 6", "", &["my.toml:2", "data.samples", "missing"]),
        (
            "extra",
            "d = 8",
            "d = 8\nnoise_sdt = 0.1",
            &["my.toml:6", "noise_sdt", "did you mean \"noise_std\""],
        ),
        (
            "type",
            "clients = 10",
            "clients = \"ten\"",
            &["my.toml:4", "data.clients", "\"ten\"", "an integer"],
        ),
        ("range", "clients = 10", "clients = 0", &["my.toml:4", "data.clients", "found 0", "from 1"]),
        ("negative", "clients = 10", "clients = -3", &["my.toml:4", "found -3", "from 1"]),
        ("float", "step_size = 0.25", "step_size = nan", &["my.toml:13", "algorithm.step_size", "nan"]),
        (
            "kind",
            "linear-regression",
            "linear-regresion",
            &["my.toml:3", "did you mean \"linear-regression\"", "watch-imu"],
        ),
        ("algorithm", "\"fedrep\"", "\"fedrap\"", &["my.toml:11", "did you mean \"fedrep\"", "gd-gd"]),
        ("wide", "[model]\nk = 2", "[model]\nk = 9", &["my.toml:9", "model.k", "found 9", "from 1 to 8"]),
        (
            "minority",
            "samples = 6",
            "samples = 6\nminority = 1.5",
            &["my.toml:8", "data.minority", "found 1.5", "from 0 to 1"],
        ),
        (
            "minority-width",
            "k = 2\nsamples = 6\n[model]\nk = 2",
            "k = 1\nminority = 0.1\nsamples = 6\n[model]\nk = 1",
            &["my.toml:7", "data.minority", "found 0.1", "data.k = 1", "allowed: 0"],
        ),
        (
            "minority-strength",
            "samples = 6",
            "samples = 6\nminority = 0.1\nminority_strength = 0",
            &["my.toml:9", "data.minority_strength", "found 0"],
        ),
        ("truth", "d = 8\nk = 2", "d = 8\nk = 9", &["my.toml:6", "data.k", "from 1 to 8"]),
        ("section", "seed = 7", "seed = 7\nmodels = 3", &["my.toml:2", "models", "did you mean \"model\""]),
        (
            "policy",
            "[model]",
            "[participation]\npolicy = \"fractoin\"\n[model]",
            &["my.toml:9", "did you mean \"fraction\"", "full"],
        ),
        (
            "rate",
            "[model]",
            "[participation]\npolicy = \"fraction\"\nr = 1.5\n[model]",
            &["my.toml:10", "participation.r", "1.5"],
        ),
        (
            "init",
            "[model]\nk = 2",
            "[model]\nk = 2\ninit = \"magic\"",
            &["my.toml:10", "model.init", "npy:FILE"],
        ),
        ("file", "[model]\nk = 2", "[model]\nk = 2\ninit = \"npy:no.npy\"", &["no.npy", "No such file"]),
        ("table", "[model]\nk = 2", "model = 3", &["model"]),
        (
            "accuracy",
            "[model]",
            "[stop]\naccuracy = 0.9\n[model]",
            &["my.toml:9", "stop.accuracy", "real values", "loss"],
        ),
        (
            "memory",
            "clients = 10\nd = 8\nk = 2\nsamples = 6",
            "clients = 1000000\nd = 65535\nk = 2\nsamples = 1000000",
            &["my.toml:4", "1000000", "65535", "2147483648"],
        ),
        (
            "memory-tests",
            "samples = 6",
            "samples = 6\nnew_clients = 300000\ntest_samples = 1000000",
            &["my.toml:4", "300000", "1000000", "2147483648"],
        ),
        (
            "memory-heads",
            "clients = 10\nd = 8\nk = 2\nsamples = 6",
            "clients = 100000\nd = 60000\nk = 60000\nsamples = 0",
            &["my.toml:4", "100000", "60000", "2147483648"],
        ),
    ] {
        let reported = error_after_replacement(name, from, to);
        for part in parts {
            assert!(reported.contains(part), "{name}: {part:?} is not in {reported:?}");
        }
    }
}

/// Each case is a content of section `[fleet]`, whose header is in the second line of the file.
#[test]
fn impossible_fleets_are_refused() {
    const ALL: &str = "\"constant\", \"uniform\", \"exponential\", \"two-class\", \"pareto\", \"exponential-dynamic\", \"trace\"";
    const TWO: &str = "speed = \"two-class\"\nslow_fraction = 0.2\n";
    const EXPONENTIAL: &str = "speed = \"exponential\"\n";
    const DYNAMIC: &str = "speed = \"exponential-dynamic\"\n";
    const TRACE: &str = "speed = \"trace\"\ntrace = \"t.csv\"\n";
    const LINK: &str = "bandwidth = 100\n";
    const OUTAGES: &str = "dropout_pattern = \"outages\"\n";
    const SITES: &str = "dropout = 0.8\ndropout_pattern = \"outages\"\noutage_sites = 2\n";
    let fraction = "from 0 to 1";
    let unknown = "unknown key";
    for (name, preceding_lines, line, parts) in [
        ("speed", "", "speed = \"two-clas\"", ["fleet.speed", "did you mean \"two-class\"", ALL]),
        ("speed-type", "", "speed = 3", ["fleet.speed", "found 3", ALL]),
        ("no-fraction", "", "speed = \"two-class\"", ["fleet.slow_fraction", "missing", fraction]),
        (
            "fraction",
            "speed = \"two-class\"\n",
            "slow_fraction = 1.1",
            ["fleet.slow_fraction", "found 1.1", fraction],
        ),
        (
            "fraction-type",
            "speed = \"two-class\"\n",
            "slow_fraction = \"few\"",
            ["slow_fraction", "\"few\"", fraction],
        ),
        ("fraction-of-none", EXPONENTIAL, "slow_fraction = 0.2", ["fleet.slow_fraction", unknown, "dropout"]),
        ("factor", TWO, "slow_factor = 0.5", ["fleet.slow_factor", "found 0.5", "from 1 to 1000000"]),
        ("factor-type", TWO, "slow_factor = true", ["fleet.slow_factor", "found true", "a number"]),
        ("factor-of-none", DYNAMIC, "slow_factor = 5", ["fleet.slow_factor", unknown, "reading"]),
        ("reading", DYNAMIC, "reading = \"median\"", ["fleet.reading", "\"median\"", "\"mean\", \"rate\""]),
        ("reading-of-none", EXPONENTIAL, "reading = \"rate\"", ["fleet.reading", unknown, "correlation"]),
        (
            "correlation",
            EXPONENTIAL,
            "correlation = \"data\"",
            ["fleet.correlation", "found \"data\"", "\"none\", \"samples\", \"task\""],
        ),
        ("tail", "speed = \"pareto\"\n", "tail_index = 1", ["fleet.tail_index", "found 1", "from 1.01"]),
        ("no-tail", "", "speed = \"pareto\"", ["fleet.tail_index", "missing", "a number"]),
        ("tail-of-none", EXPONENTIAL, "tail_index = 2", ["fleet.tail_index", unknown, "correlation"]),
        ("spike", "", "spike_probability = 2", ["fleet.spike_probability", "found 2", "from 0 to 1"]),
        ("spike-of-none", "", "spike_factor = 5", ["fleet.spike_factor", unknown, "spike_probability"]),
        ("spike-of-trace", TRACE, "spike_probability = 0.1", ["fleet.spike_probability", unknown, "trace"]),
        ("correlation-type", TWO, "correlation = true", ["fleet.correlation", "found true", "\"task\""]),
        ("correlation-of-equals", "", "correlation = \"task\"", ["fleet.correlation", unknown, "speed"]),
        ("correlation-of-trace", TRACE, "correlation = \"task\"", ["fleet.correlation", unknown, "trace"]),
        ("no-trace", "", "speed = \"trace\"", ["fleet.trace", "missing", "a file name"]),
        ("trace-type", "speed = \"trace\"\n", "trace = 3", ["fleet.trace", "found 3", "a file name"]),
        ("trace-of-none", EXPONENTIAL, "trace = \"t.csv\"", ["fleet.trace", unknown, "speed"]),
        ("communication", "", "communication = -1", ["fleet.communication", "found -1", "from 0"]),
        ("dropout", "", "dropout = 1", ["fleet.dropout", "found 1", "from 0 to 0.99"]),
        ("dropout-negative", "", "dropout = -0.1", ["fleet.dropout", "found -0.1", "from 0 to 0.99"]),
        ("dropout-nan", "", "dropout = nan", ["fleet.dropout", "found nan", "from 0 to 0.99"]),
        ("dropout-type", "", "dropout = \"often\"", ["fleet.dropout", "\"often\"", "a number"]),
        (
            "pattern",
            "",
            "dropout_pattern = \"bursts\"",
            ["fleet.dropout_pattern", "\"bursts\"", "\"independent\", \"persistent\", \"outages\""],
        ),
        ("pattern-type", "", "dropout_pattern = 0.5", ["fleet.dropout_pattern", "found 0.5", "\"outages\""]),
        (
            "no-sites",
            "",
            "dropout_pattern = \"outages\"",
            ["fleet.outage_sites", "missing", "from 1 to 1000000"],
        ),
        ("sites", OUTAGES, "outage_sites = 0", ["fleet.outage_sites", "found 0", "from 1 to 1000000"]),
        ("sites-of-none", "", "outage_sites = 2", ["fleet.outage_sites", unknown, "dropout_pattern"]),
        ("outage", SITES, "outage_rounds = 0.5", ["fleet.outage_rounds", "found 0.5", "from 1 to"]),
        ("outage-short", SITES, "outage_rounds = 2", ["fleet.outage_rounds", "found 2", "from 4.000"]),
        ("outage-type", SITES, "outage_rounds = \"long\"", ["fleet.outage_rounds", "\"long\"", "a number"]),
        ("bandwidth", "", "bandwidth = 0", ["fleet.bandwidth", "found 0", "from 1e-6"]),
        ("bandwidth-infinite", "", "bandwidth = inf", ["fleet.bandwidth", "found inf", "a number"]),
        ("bandwidth-type", "", "bandwidth = \"1k\"", ["fleet.bandwidth", "\"1k\"", "a number"]),
        ("spread", LINK, "bandwidth_spread = 11", ["fleet.bandwidth_spread", "found 11", "from 0 to 10"]),
        ("spread-type", LINK, "bandwidth_spread = []", ["fleet.bandwidth_spread", "found", "a number"]),
        ("spread-of-none", "", "bandwidth_spread = 1", ["fleet.bandwidth_spread", unknown, "bandwidth"]),
        ("loss", LINK, "loss = 1.0", ["fleet.loss", "found 1", "from 0 to 0.99"]),
        ("loss-type", LINK, "loss = \"much\"", ["fleet.loss", "\"much\"", "a number"]),
        ("loss-of-none", "", "loss = 0.1", ["fleet.loss", unknown, "bandwidth"]),
    ] {
        let reported = error_after_replacement(
            &format!("fleet-{name}"),
            "seed = 7\n",
            &format!("seed = 7\n[fleet]\n{preceding_lines}{line}\n"),
        );
        // For a missing key the message contains the line of the section header.
        let expected_line = if parts[1] == "missing" { 2 } else { 3 + preceding_lines.lines().count() };
        assert!(
            reported.contains(&format!("my.toml:{expected_line}")),
            "{name}: {expected_line}: {reported}"
        );
        for part in parts {
            assert!(reported.contains(part), "{name}: {part:?} is not in {reported:?}");
        }
    }
}

#[test]
fn impossible_deadlines_are_refused() {
    for (name, line, parts) in [
        ("zero", "deadline = 0", ["rounds.deadline", "found 0", "from 0.001 to 1e9"]),
        ("negative", "deadline = -1.0", ["rounds.deadline", "found -1", "from 0.001"]),
        ("infinite", "deadline = inf", ["rounds.deadline", "found inf", "a number"]),
        ("nan", "deadline = nan", ["rounds.deadline", "found nan", "a number"]),
        ("type", "deadline = \"soon\"", ["rounds.deadline", "\"soon\"", "a number"]),
        ("of-a-server", "min_count = 2", ["rounds.min_count", "unknown key", "deadline"]),
    ] {
        let reported = error_after_replacement(
            &format!("rounds-{name}"),
            "seed = 7\n",
            &format!("seed = 7\n[rounds]\n{line}\n"),
        );
        assert!(reported.contains("my.toml:3"), "{name}: {reported}");
        for part in parts {
            assert!(reported.contains(part), "{name}: {part:?} is not in {reported:?}");
        }
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let laws = "\"equal\", \"uniform\", \"log-normal\"";
    let log_normal = "samples = 6\nsizes = \"log-normal\"";
    for (name, to, expected_line, parts) in [
        ("word", "samples = 6\nsizes = \"normal\"", 8, ["data.sizes", "\"normal\"", laws]),
        ("type", "samples = 6\nsizes = 3", 8, ["data.sizes", "found 3", laws]),
        (
            "sigma",
            &format!("{log_normal}\nsize_sigma = -1"),
            9,
            ["data.size_sigma", "found -1", "from 0 to 10"],
        ),
        ("sigma-type", &format!("{log_normal}\nsize_sigma = \"1\""), 9, ["size_sigma", "\"1\"", "a number"]),
        ("sigma-of-none", "samples = 6\nsize_sigma = 1", 8, ["data.size_sigma", "unknown key", "sizes"]),
        (
            "memory",
            "samples = 1000000\nsizes = \"log-normal\"\nsize_sigma = 10",
            4,
            ["data.clients", "1000000 or more", "2147483648"],
        ),
    ] {
        let reported = error_after_replacement(&format!("sizes-{name}"), "samples = 6", to);
        assert!(
            reported.contains(&format!("my.toml:{expected_line}")),
            "{name}: {expected_line}: {reported}"
        );
        for part in parts {
            assert!(reported.contains(part), "{name}: {part:?} is not in {reported:?}");
        }
    }
    // The option --seed can also make the drawn sizes too large.
    let folder = empty_directory("bad-sizes-seed");
    let text = GOOD.replace("samples = 6", "samples = 1000000\nsizes = \"log-normal\"\nsize_sigma = 2");
    std::fs::write(folder.join("my.toml"), text.replace("clients = 10", "clients = 1")).unwrap();
    let fits = |seed: &u64| {
        let changes = [format!("seed={seed}")];
        let text = std::fs::read_to_string(folder.join("my.toml")).unwrap();
        Scenario::parse("my.toml", &text, &changes).is_ok()
    };
    assert!(fits(&7));
    let too_much = (0..1_000_000).find(|seed| !fits(seed)).unwrap().to_string();
    let output = run_program(&folder, &["run", "my.toml", "--seed", &too_much]);
    assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
    assert!(stderr_text(&output).contains("my.toml") && stderr_text(&output).contains("2147483648"));
    // The same errors are reported for partitions of images.
    for (change, parts) in [
        ("data.partition.sizes=normal", ["data.partition.sizes", laws]),
        ("data.partition.size_sigma=1", ["data.partition.size_sigma", "unknown key"]),
    ] {
        let output = run_program(&folder, &["run", "digits", "--set", change]);
        assert_eq!(exit_code(&output), 2, "{change}");
        assert!(parts.iter().all(|part| stderr_text(&output).contains(part)), "{}", stderr_text(&output));
    }
}

/// The similarity of regression tasks can only be computed if the true models are known.
#[test]
fn speed_by_task_needs_known_tasks() {
    let text = "[data]\nkind = \"npz\"\npath = \"f\"\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 1\n\
                step_size = 0.1\n[fleet]\nspeed = \"exponential\"\ncorrelation = \"task\"\n";
    let problem = Scenario::parse("my.toml", text, &[]).unwrap_err().to_string();
    for part in ["my.toml:12", "fleet.correlation", "found \"task\"", "\"none\", \"samples\""] {
        assert!(problem.contains(part), "{part:?} is not in {problem:?}");
    }
    assert!(Scenario::parse("my.toml", &text.replace("task", "samples"), &[]).is_ok());
}

#[test]
fn moments_start_needs_regression() {
    let folder = empty_directory("moments");
    let output = run_program(&folder, &["run", "digits", "--set", "model.init=moments"]);
    assert_eq!(exit_code(&output), 2);
    assert!(stderr_text(&output).contains("regression"), "{}", stderr_text(&output));
}

/// A run would never end if its stop target refers to a metric that cannot be computed from the data.
#[test]
fn stop_targets_need_matching_data() {
    let folder = empty_directory("targets");
    for (changes, parts) in [
        (["run", "digits", "--set", "stop.accuracy=0.9", "--set", "split.test=0"], ["stop.accuracy", "test"]),
        (
            ["run", "digits", "--set", "stop.distance=0.1", "--set", "split.test=0.2"],
            ["stop.distance", "truth"],
        ),
    ] {
        let output = run_program(&folder, &changes);
        assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
        assert!(parts.iter().all(|part| stderr_text(&output).contains(part)), "{}", stderr_text(&output));
    }
}

#[test]
fn missing_windows_are_refused() {
    let folder = empty_directory("windows");
    for (change, parts) in [
        ("split.labels_per_class=1000", &["person 1", "labels_per_class", "1000"][..]),
        ("data.head_samples_per_class=1000", &["person 3", "head_samples_per_class", "1000"]),
        ("split.validation=0.1", &["person", "no window is left to score", "gap"]),
        ("split.gap=100", &["person", "no window is left to score", "gap"]),
        ("split.validation_fold=1", &["split.validation_fold", "found 1", "set split.validation"]),
    ] {
        let output = run_program(&folder, &["run", "demo", "--set", "algorithm.rounds=1", "--set", change]);
        assert_eq!(exit_code(&output), 2, "{change}: {}", stderr_text(&output));
        for part in parts {
            assert!(
                stderr_text(&output).contains(part),
                "{change}: {part:?} is not in {:?}",
                stderr_text(&output)
            );
        }
    }
}

#[test]
fn too_large_models_are_refused() {
    let folder = empty_directory("models");
    let sets = ["data.clients=2", "data.d=30000", "algorithm.name=local-only", "data.samples=5"];
    let arguments: Vec<&str> =
        ["run", "linear"].into_iter().chain(sets.iter().flat_map(|set| ["--set", *set])).collect();
    let output = run_program(&folder, &arguments);
    assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
    assert!(
        ["30000", "2147483648"].iter().all(|part| stderr_text(&output).contains(part)),
        "{}",
        stderr_text(&output)
    );
}

#[test]
fn repeated_columns_are_refused() {
    let columns = |features: &str| {
        format!(
            "[data]\nkind = \"csv\"\npath = \"my.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = {features}\n\
             [model]\nk = 1\n[algorithm]\nname = \"fedrep\"\nrounds = 1\nstep_size = 0.1\n"
        )
    };
    for (features, column) in [("[\"a\", \"y\"]", "\"y\""), ("[\"a\", \"b\", \"a\"]", "\"a\"")] {
        let problem = Scenario::parse("my.toml", &columns(features), &[]).unwrap_err().to_string();
        assert!(problem.contains("my.toml:6") && problem.contains("features"), "{problem}");
        assert!(problem.contains(column), "{problem}");
    }
}

#[test]
fn command_line_changes_are_checked_like_the_file() {
    let folder = empty_directory("changes");
    for (change, parts) in [
        ("algorithm.rouns=3", &["--set algorithm.rouns", "did you mean \"rounds\""][..]),
        ("algorithm.rounds=many", &["--set algorithm.rounds", "\"many\"", "an integer"]),
        ("algorithm.rounds", &["--set algorithm.rounds", "KEY=VALUE"]),
        ("=3", &["--set =3", "dotted key"]),
        ("data.k.deeper=3", &["--set data.k.deeper=3"]),
    ] {
        let output = run_program(&folder, &["run", "linear", "--set", change]);
        assert_eq!(exit_code(&output), 2, "{change}");
        for part in parts {
            assert!(
                stderr_text(&output).contains(part),
                "{change}: {part:?} is not in {:?}",
                stderr_text(&output)
            );
        }
    }
}

/// Pipes and device files are not read. Files that are too long, are not text, or are nested too deeply are
/// refused with a one-line message.
#[test]
fn non_scenario_files_are_refused_in_one_line() {
    let folder = empty_directory("no-scenario");
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    std::fs::File::create(folder.join("long")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(folder.join("binary"), b"seed = \"\xff\"\n").unwrap();
    std::fs::write(folder.join("deep"), format!("{}b = 1\n", "a.".repeat(20_000))).unwrap();
    std::fs::write(folder.join("good.toml"), GOOD).unwrap();
    let run = |arguments: &[&str]| {
        let mut limited = Command::new("timeout");
        limited.arg("20").arg(env!("CARGO_BIN_EXE_fedspan-sim")).args(arguments);
        let output = limited.current_dir(&folder).output().unwrap();
        assert_eq!(exit_code(&output), 2, "{arguments:?}: {}", stderr_text(&output));
        let reported = stderr_text(&output);
        assert!(reported.lines().count() == 1 && reported.len() < 300, "{arguments:?}: {reported}");
        reported
    };
    let a_file = "allowed: a file of at most 2097152 bytes";
    let cases = [
        ("./pipe", format!("./pipe: found a pipe, {a_file}")),
        (".", format!(".: found a directory, {a_file}")),
        ("/dev/zero", format!("/dev/zero: found a device, {a_file}")),
        ("long", "long: found 1099511627776 bytes, allowed: at most 2097152".to_owned()),
        ("binary", "binary: found invalid UTF-8 at byte 8, allowed: text in UTF-8".to_owned()),
        ("deep", "deep:1: found keys, tables or lists more than 32 deep, allowed: at most 32".to_owned()),
        ("none.toml", "none.toml: No such file or directory".to_owned()),
    ];
    for (file, expected_part) in &cases {
        let commands: [&[&str]; 5] = [
            &["run", file],
            &["compare", "good.toml", file],
            &["live", file],
            &["replay", file, "none.jsonl"],
            &["device", "--connect", "127.0.0.1:9", "--wearer", "1", "--plaintext", "--scenario", file],
        ];
        for command in commands {
            let reported = run(command);
            assert!(reported.contains(expected_part), "{command:?}: {reported}");
        }
    }
    for journal in ["pipe", "/dev/zero", "."] {
        let reported = run(&["replay", "good.toml", journal]);
        assert!(
            reported.contains(&format!("{journal}: found a")) && reported.contains("allowed: a file"),
            "{reported}"
        );
    }
    let (deep, unclosed) = (format!("{}b=1", "a.".repeat(20_000)), format!("seed={}", "[".repeat(100_000)));
    let long_key = format!("{}=1", "a".repeat(100_000));
    for change in [&deep, &unclosed, &long_key] {
        for command in
            [&["run", "good.toml"][..], &["replay", "good.toml", "none.jsonl"], &["live", "good.toml"]]
        {
            let reported = run(&[command, &["--set", change]].concat());
            assert!(reported.contains("--set "), "{reported}");
        }
        // The same change as part of a scenario argument is refused as well.
        run(&["compare", "good.toml", &format!("good.toml,{change}")]);
    }
}

/// Tests that a run with too little memory is refused before it begins, whether the data or the devices do not fit.
#[cfg(target_os = "linux")]
#[test]
fn run_that_does_not_fit_into_memory_is_refused() {
    let folder = empty_directory("memory");
    let rows = ["data.clients=20", "data.d=100", "data.samples=100000"];
    let many = ["data.clients=1000000", "data.d=20", "data.k=2"];
    let large = ["data.clients=500", "data.d=30000", "data.samples=2"];
    for (name, settings, what) in [
        ("fedpower", rows, "the generated data need at least "),
        ("linear", many, "the generated data need at least "),
        ("linear", large, "the devices of 500 clients need at least "),
    ] {
        // Addresses of the program itself, and of the stacks of two threads, are in the limit.
        let mut command = Command::new("sh");
        command.current_dir(&folder).args(["-c", "ulimit -v 250000; exec \"$0\" \"$@\""]);
        command.arg(env!("CARGO_BIN_EXE_fedspan-sim")).args(["run", name, "--threads", "2", "--out", "out"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = command.output().unwrap();
        let reported = stderr_text(&output);
        assert_eq!(exit_code(&output), 2, "{name}: {reported}");
        let error = reported.lines().last().unwrap_or_default();
        assert!(error.contains(what) && error.contains(" MB of memory, available: "), "{reported}");
        assert!(!folder.join("out").exists(), "files were written");
    }
}
