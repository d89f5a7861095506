//! Tests of command `device` without a server.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{empty_directory, exit_code, run_program, stderr_text};

#[test]
fn ctrl_c_ends_a_reconnecting_device() {
    // The port was free just before, so no server listens on it.
    let free_address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut device = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
        .args(["device", "--connect", &free_address.to_string(), "--wearer", "3", "--plaintext"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = BufReader::new(device.stderr.take().unwrap()).lines();
    assert!(reported.any(|line| line.unwrap().contains("trying again")));
    assert!(Command::new("kill").args(["-INT", &device.id().to_string()]).status().unwrap().success());
    assert!(device.wait().unwrap().success());
}

/// A campaign cannot know which clients the scenario holds out, so the device says so before it connects.
#[test]
fn held_out_client_warns_before_it_connects() {
    for (wearer, warns) in [("8", false), ("9", true)] {
        let free_address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut device = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
            .args(["device", "--connect", &free_address.to_string(), "--wearer", wearer, "--plaintext"])
            .args(["--set", "split.holdout_users=2"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let reported = BufReader::new(device.stderr.take().unwrap()).lines().map(Result::unwrap);
        let before: Vec<String> = reported.take_while(|line| !line.contains("trying again")).collect();
        assert_eq!(before.iter().any(|line| line.contains("comes after training")), warns, "{before:?}");
        device.kill().unwrap();
        device.wait().unwrap();
    }
}

#[test]
fn invalid_address_exits_with_2() {
    let folder = empty_directory("device-address");
    for address in ["nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ":4410", "host:port"] {
        let output = run_program(&folder, &["device", "--connect", address, "--wearer", "3", "--plaintext"]);
        assert_eq!(exit_code(&output), 2, "{address}");
        assert!(
            stderr_text(&output).contains(address) && stderr_text(&output).contains("HOST:PORT"),
            "{address}"
        );
    }
}

/// A device that lost its connection retries with growing delays and reports each reconnection once.
#[test]
fn device_backs_off_and_reports_reconnection() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut device = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
        .args(["device", "--connect", &address.to_string(), "--wearer", "3", "--plaintext"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = BufReader::new(device.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The upper bound of the random delay starts at 0.5 s and doubles; the lower bound is half of the upper
    // bound.
    for ceiling in [500, 1000, 2000] {
        let line = reported.find(|line| line.contains("again")).unwrap();
        let delay = line.split_once(", trying again in ").and_then(|(_, delay)| delay.strip_suffix(" ms"));
        let delay: u64 = delay.expect(&line).parse().unwrap();
        assert!((ceiling / 2..=ceiling).contains(&delay), "{line}");
    }
    // The server accepts and closes two connections; the device reports each of them once.
    let listener = std::net::TcpListener::bind(address).unwrap();
    // The first connection is not called a repeated one.
    for connected in ["device 3: connected", "device 3: connected again"] {
        drop(listener.accept().unwrap());
        let is_about = |line: &String| line.starts_with("device 3: connect");
        let lines: Vec<String> = reported.by_ref().filter(is_about).take(2).collect();
        assert!(lines[0] == connected && lines[1].contains("connection lost"), "{lines:?}");
    }
    device.kill().unwrap();
    device.wait().unwrap();
}

/// The example commands of the help text are complete.
#[test]
fn help_examples_are_valid_commands() {
    let folder = empty_directory("device-examples");
    let help = run_program(&folder, &["device", "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let examples: Vec<&str> =
        help.lines().filter_map(|line| line.trim().strip_prefix("fedspan-sim device ")).collect();
    assert_eq!(examples.len(), 2, "{help}");
    for example in examples {
        let words = example.split_whitespace().take_while(|word| !word.starts_with('('));
        // An invalid change is appended, so that the command ends before it connects to a server.
        let arguments: Vec<&str> =
            ["device"].into_iter().chain(words).chain(["--set", "attack.kind=mimic"]).collect();
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 2);
        assert!(stderr_text(&output).contains("attack.kind"), "{example}: {}", stderr_text(&output));
    }
}
