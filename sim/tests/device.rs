//! `fedspan-sim device` where no server is.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{code, directory, errors, program};

#[test]
fn ctrl_c_ends_a_device_that_waits_for_its_server() {
    // Nobody listens there: the port was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut device = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"))
        .args(["device", "--connect", &free.to_string(), "--wearer", "3", "--plaintext"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(device.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("trying again")));
    assert!(Command::new("kill").args(["-INT", &device.id().to_string()]).status().unwrap().success());
    assert!(device.wait().unwrap().success());
}

#[test]
fn an_address_that_is_none_is_exit_2() {
    let here = directory("device-address");
    for address in ["nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ":4410", "host:port"] {
        let output = program(&here, &["device", "--connect", address, "--wearer", "3", "--plaintext"]);
        assert_eq!(code(&output), 2, "{address}");
        assert!(errors(&output).contains(address) && errors(&output).contains("HOST:PORT"), "{address}");
    }
}
