//! Tests of the command line: output and exit codes of commands.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};

#[test]
fn scenarios_are_listed_shown_and_valid() {
    let folder = empty_directory("listed");
    let list = stdout_text(&run_program(&folder, &["list"]));
    assert_eq!(list.lines().count(), BUILT_IN.len());
    for (name, _, file) in BUILT_IN {
        assert!(list.contains(name));
        assert_eq!(stdout_text(&run_program(&folder, &["show", name])), file);
        Scenario::parse(name, file, &[]).unwrap();
    }
    let algorithms = stdout_text(&run_program(&folder, &["list", "--algorithms"]));
    assert!(algorithms.contains("fedrep ") && algorithms.contains("local-only "));
}

#[test]
fn unknown_names_get_the_nearest_known_name() {
    let folder = empty_directory("unknown");
    for arguments in [vec!["run", "lineer"], vec!["show", "lineer"], vec!["compare", "demo", "lineer"]] {
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2, "{arguments:?}");
        assert!(stderr_text(&output).contains("did you mean \"linear\""), "{}", stderr_text(&output));
        assert!(stderr_text(&output).contains("new-clients"), "the names are not listed");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files were written");
}

#[test]
fn wrong_command_line_exits_with_2() {
    let folder = empty_directory("wrong");
    std::fs::write(folder.join("file"), "").unwrap();
    for arguments in [
        vec!["frobnicate"],
        vec!["run"],
        vec!["run", "linear", "--seeds", "0"],
        vec!["run", "linear", "--seed", "-1"],
        vec!["run", "linear", "--threads", "0"],
        vec!["run", "linear", "--format", "xml"],
        vec!["run", "linear", "--out", "file"],
        vec!["compare"],
        vec!["--frobnicate"],
    ] {
        assert_eq!(exit_code(&run_program(&folder, &arguments)), 2, "{arguments:?}");
    }
}

/// Firmware has fixed sizes or a limit of them, so a scenario with other sizes is refused before the firmware is
/// built.
#[test]
fn emulate_refuses_scenarios_of_another_shape() {
    let folder = empty_directory("emulate");
    for (arguments, message) in [
        (vec!["emulate", "smallest"], "data.kind = \"watch-imu\""),
        (
            vec!["emulate", "--core", "m0", "demo"],
            "20 features (a file's 19 and the constant 1) and one output",
        ),
        (
            vec!["emulate", "--core", "m0", "--set", "data.d=19"],
            "20 features (a file's 19 and the constant 1) and one output",
        ),
        (
            vec!["emulate", "--core", "m0", "watch-network"],
            "the network takes 23564 bytes, boards with a Cortex-M0, microbit, 16 KiB of RAM have 0 for it",
        ),
        (vec!["emulate", "watch-network", "--in-c"], "linear models only"),
        (vec!["emulate", "--core", "m5"], "m0"),
        (vec!["emulate", "--resets", "1001"], "0..=1000"),
        (vec!["emulate", "--boards", "0"], "1..=256"),
    ] {
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2, "{arguments:?}");
        assert!(stderr_text(&output).contains(message), "{}", stderr_text(&output));
    }
}

/// Attacks exist only in simulations, so `emulate`, `live` and `device` refuse a scenario with attackers.
#[test]
fn attacks_are_refused_outside_simulations() {
    let folder = empty_directory("attackers");
    let device = ["device", "--connect", "127.0.0.1:9", "--wearer", "1", "--plaintext"];
    for arguments in [
        &["live", "byzantine"][..],
        &["live", "byzantine,attack.kind=none", "linear,attack.kind=mimic", "--set", "model.init=random"],
        &["emulate", "--core", "m0", "--firmware", "nowhere.elf", "--set", "attack.kind=mimic"],
        &[&device[..], &["--scenario", "byzantine"]].concat(),
        &[&device[..], &["--set", "attack.kind=mimic"]].concat(),
    ] {
        let output = run_program(&folder, arguments);
        assert_eq!(exit_code(&output), 2, "{arguments:?}: {}", stderr_text(&output));
        for part in ["set attack.kind = \"none\"", "`run`, `compare` or `byzantine`"] {
            assert!(
                stderr_text(&output).contains(part),
                "{arguments:?}: {part:?} is not in {:?}",
                stderr_text(&output)
            );
        }
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files were written");
}

/// The output directory is checked before the first run, so that no result is lost because of a wrong path.
#[test]
fn unusable_output_directory_exits_with_2_before_any_run() {
    let folder = empty_directory("unmakeable");
    std::fs::write(folder.join("file"), "").unwrap();
    for out in ["/proc/fedspan", "file/below", "file"] {
        for command in [&["run", "linear"][..], &["compare", "linear"], &[]] {
            let output = run_program(&folder, &[command, &["--out", out]].concat());
            assert_eq!(exit_code(&output), 2, "{command:?} {out}: {}", stderr_text(&output));
            assert!(stderr_text(&output).contains(out), "{}", stderr_text(&output));
            assert!(!stderr_text(&output).contains("round"), "{}", stderr_text(&output));
        }
    }
}

#[test]
fn moments_start_prints_a_privacy_note() {
    let folder = empty_directory("moments-note");
    for (algorithm, warned) in [("fedrep", true), ("local-only", false), ("pooled", false)] {
        let name = format!("algorithm.name={algorithm}");
        let output = run_program(&folder, &["run", "linear", "--set", &name, "--set", "algorithm.rounds=2"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        assert_eq!(
            stderr_text(&output).contains("note: init"),
            warned,
            "{algorithm}: {}",
            stderr_text(&output)
        );
    }
}

#[test]
fn program_prints_the_licences_of_its_data() {
    let folder = empty_directory("notices");
    let notices = stdout_text(&run_program(&folder, &["list", "--licences"]));
    for part in ["2018, David M. Burns", "2014-2026, Sebastian Raschka", "E. Alpaydin", "CC BY 4.0"] {
        assert!(notices.contains(part), "{part:?}");
    }
}

/// Progress display without output.
struct Silent;

impl fedspan_sim_core::progress::Progress for Silent {
    fn advance(&self, _parts: u64, _of: u64, _what: &str) {}
}

#[test]
fn early_end_of_demo_is_reported() {
    let folder = empty_directory("early");
    let printed =
        fedspan_experiments::demo::run(&folder, &std::sync::atomic::AtomicBool::new(true), &Silent).unwrap();
    assert_eq!(printed.text, "");
    assert_eq!(printed.interruption(), Some("interrupted; nothing was finished"));
}

#[test]
fn help_exits_with_0_and_shows_examples() {
    let folder = empty_directory("help");
    for command in ["list", "show", "run", "compare", "live", "replay", "device"] {
        let output = run_program(&folder, &[command, "--help"]);
        assert_eq!(exit_code(&output), 0, "{command}");
        assert!(stdout_text(&output).contains("Example"), "{command}");
    }
}

#[test]
fn json_format_prints_only_json() {
    let folder = empty_directory("json");
    let output = run_program(&folder, &["run", "linear", "--set", "algorithm.rounds=5", "--format", "json"]);
    assert_eq!(exit_code(&output), 0);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["rounds"], 5);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files were written without --out");
}

#[test]
fn progress_without_terminal_is_a_few_lines() {
    let folder = empty_directory("progress");
    let output = run_program(&folder, &["run", "linear", "--set", "algorithm.rounds=95"]);
    let lines = stderr_text(&output).lines().filter(|line| line.contains("round ")).count();
    assert!((5..=11).contains(&lines), "{lines}");
    assert!(!stderr_text(&output).contains('\u{1b}'), "found an escape sequence");
    assert!(stdout_text(&output).contains("distance"));
}

#[test]
fn closed_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
        .args(["show", "demo"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut reported = String::new();
    child.stderr.take().unwrap().read_to_string(&mut reported).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(reported, "");
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_on_standard_output_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fedspan-sim"));
    let arguments = ["run", "linear", "--set", "algorithm.rounds=2", "--format", "json"];
    let output = command.args(arguments).stdout(full).output().unwrap();
    assert_eq!(exit_code(&output), 1);
    assert!(stderr_text(&output).contains("standard output"), "{}", stderr_text(&output));
}

/// The start by moments sends matrices that can equal a client's records, so runs with noise refuse it.
#[test]
fn moments_start_is_refused_with_noise() {
    let folder = empty_directory("moments-private");
    let private = "seed = 7\n[data]\nkind = \"linear-regression\"\nclients = 4\nd = 8\nk = 2\nsamples = 6\n[model]\nk = 2\n\
                   init = \"INIT\"\n[algorithm]\nname = \"fedpower\"\niterations = 3\n[privacy]\nepsilon = 5.0\ndelta = 1e-3\n";
    for (init, succeeds) in [("random", true), ("moments", false)] {
        std::fs::write(folder.join("private.toml"), private.replace("INIT", init)).unwrap();
        let output = run_program(&folder, &["run", "private.toml"]);
        assert_eq!(exit_code(&output) == 0, succeeds, "{init}: {}", stderr_text(&output));
    }
}
