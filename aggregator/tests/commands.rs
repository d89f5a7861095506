//! Tests of the program's commands as processes: exit codes, closed pipes, and invalid files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::ServerProcess;

const CAMPAIGN: &str = "[listen]\ntcp = \"127.0.0.1:0\"\nplaintext = true\n[devices]\nexpected = 2\n[data]\nd = 8\n[model]\nk = 2\n\
    [algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.5\n";

/// Creates a new directory with a `fleet.toml` whose state directory is inside it.
fn create_directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    let state = path.join("state").display().to_string();
    std::fs::write(path.join("fleet.toml"), format!("state = {state:?}\n{CAMPAIGN}")).unwrap();
    path
}

fn program_command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
    command.current_dir(directory).args(arguments).arg("--config").arg("fleet.toml");
    command
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a server and stops it.
fn run_and_stop_server(name: &str) -> PathBuf {
    let directory = create_directory(name);
    let server = ServerProcess::start(program_command(&directory, &["serve"]).stderr(Stdio::null()));
    assert!(server.stop_with("-INT").success());
    directory
}

#[test]
fn status_reads_files_without_server() {
    let directory = run_and_stop_server("offline");
    let output = program_command(&directory, &["status", "--format", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&status["phase"], &status["round"]), (&"not running".into(), &0.into()));
    let output = program_command(&directory, &["watch"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr_text(&output).contains("no server is running"), "{}", stderr_text(&output));
}

#[test]
fn closed_pipe_is_no_error_and_full_disk_is() {
    let directory = run_and_stop_server("gone");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output =
        program_command(&directory, &["status", "--format", "json"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), stderr_text(&output)), (Some(0), String::new()));
    let Ok(full_device) = File::options().write(true).open("/dev/full") else { return };
    let output =
        program_command(&directory, &["status", "--format", "json"]).stdout(full_device).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_text(&output).contains("No space left"), "{}", stderr_text(&output));
}

/// A configuration with the initial model `moments` is refused, because moments can reveal records of a
/// device.
#[test]
fn configuration_revealing_moments_is_refused() {
    let directory = create_directory("moments");
    let file = directory.join("fleet.toml");
    let configuration =
        std::fs::read_to_string(&file).unwrap().replace("k = 2\n", "k = 2\ninit = \"moments\"\n");
    std::fs::write(&file, configuration).unwrap();
    let output = program_command(&directory, &["serve"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr_text(&output));
    for excerpt in ["model.init", "allowed for a real fleet", "moments reveal records"] {
        assert!(stderr_text(&output).contains(excerpt), "{}", stderr_text(&output));
    }
    assert!(!directory.join("state").exists(), "a refused command created the state directory");
}

/// A configuration that is not a regular file is not opened. A configuration that is too long, not UTF-8 or
/// nested too deeply is refused with one line.
#[test]
fn invalid_configuration_is_refused_in_one_line() {
    let directory_path = create_directory("no-configuration");
    assert!(Command::new("mkfifo").arg(directory_path.join("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(directory_path.join("socket")).unwrap();
    File::create(directory_path.join("long")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(directory_path.join("binary"), b"seed = \"\xff\"\n").unwrap();
    std::fs::write(directory_path.join("deep"), format!("{}b = 1\n", "a.".repeat(20_000))).unwrap();
    let cases = [
        ("pipe", "pipe: found a pipe, allowed: a file of at most 2097152 bytes"),
        ("socket", "socket: found a socket, allowed: a file of at most 2097152 bytes"),
        (".", ".: found a directory, allowed: a file of at most 2097152 bytes"),
        ("/dev/zero", "/dev/zero: found a device, allowed: a file of at most 2097152 bytes"),
        ("/dev/null", "/dev/null: found a device, allowed: a file of at most 2097152 bytes"),
        ("long", "long: found 1099511627776 bytes, allowed: at most 2097152"),
        ("binary", "binary: found invalid UTF-8 at byte 8, allowed: text in UTF-8"),
        ("deep", "deep:1: found keys, tables or lists more than 32 deep, allowed: at most 32"),
        ("none", "none: No such file or directory (os error 2)"),
    ];
    let commands: [&[&str]; 7] = [
        &["serve"],
        &["status"],
        &["watch"],
        &["check"],
        &["export", "--out", "out"],
        &["keys", "list"],
        &["adapter", "serve"],
    ];
    let run = |arguments: &[&str]| {
        let mut limited = Command::new("timeout");
        limited.arg("20").arg(env!("CARGO_BIN_EXE_fedspan-aggregator")).args(arguments);
        let output = limited.current_dir(&directory_path).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr_text(&output));
        assert_eq!(output.stdout, b"", "{arguments:?}");
        stderr_text(&output)
    };
    for (file, expected) in cases {
        for command in commands {
            let error = run(&[command, &["--config", file]].concat());
            assert_eq!(error, format!("fedspan-aggregator: {expected}\n"), "{command:?}");
        }
    }
    let (deep, wide) = (format!("{}b=1", "a.".repeat(20_000)), format!("rounds={}", "[".repeat(100_000)));
    for change in [&deep, &wide] {
        let error = run(&["adapter", "serve", "--config", "fleet.toml", "--set", change]);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.len() < 300, "{} characters", error.len());
    }
    let error = run(&["adapter", "serve", "--config", "fleet.toml", "--set", &deep]);
    assert!(error.ends_with("...: found a key of 20001 parts, allowed: at most 32\n"), "{error}");
}

/// Every command reports in one line if the path of a state file is not a regular file. Opening a pipe would
/// wait for its other end, and reading a device would exhaust memory.
#[test]
fn special_files_in_state_directory_are_not_opened() {
    let directory_path = run_and_stop_server("no-state");
    let state = directory_path.join("state");
    let mut names: Vec<String> = std::fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "control.sock")
        .collect();
    names.sort();
    assert!(names.iter().any(|name| name == "campaign.redb") && names.iter().any(|name| name == "lock"));
    std::fs::write(state.join("arrivals.jsonl"), "").unwrap();
    names.extend(["arrivals.jsonl".to_owned(), "round.key".to_owned()]);
    names.dedup();
    for name in &names {
        let (path, aside) = (state.join(name), directory_path.join("aside"));
        let moved = std::fs::rename(&path, &aside).is_ok();
        for pipe in [true, false] {
            if pipe {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            } else {
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }
            let mut outputs = Vec::new();
            for command in [&["status"][..], &["check"], &["export", "--out", "out"], &["serve"]] {
                // The server never opens this file, so the server would not report it.
                if command == ["serve"] && name != "lock" && name != "campaign.redb" {
                    continue;
                }
                let mut limited = Command::new("timeout");
                limited.arg("30").arg(env!("CARGO_BIN_EXE_fedspan-aggregator")).args(command);
                let output =
                    limited.arg("--config").arg("fleet.toml").current_dir(&directory_path).output().unwrap();
                let code = output.status.code();
                assert!(
                    code == Some(0) || code == Some(1),
                    "{name} {command:?}: {code:?} {}",
                    stderr_text(&output)
                );
                outputs.push(stderr_text(&output) + &String::from_utf8_lossy(&output.stdout));
                let _ = std::fs::remove_dir_all(directory_path.join("out"));
            }
            let expected =
                if pipe { "found a pipe, allowed: a file" } else { "found a device, allowed: a file" };
            // The server follows no links in its state directory.
            let is_refused = |output: &String| {
                output.contains(name.as_str())
                    && (output.contains(expected) || !pipe && output.contains("a symbolic link"))
            };
            if name == "lock" || name == "campaign.redb" {
                assert!(outputs.iter().all(is_refused), "{outputs:?}");
            }
            std::fs::remove_file(&path).unwrap();
        }
        if moved {
            std::fs::rename(&aside, &path).unwrap();
        }
    }
}
