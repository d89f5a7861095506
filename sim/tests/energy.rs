//! Tests of the energy of devices: laws of simulated fleets, agreement with command `radio`, refusals.

use std::path::Path;

use crate::common::{assert_contains_all, empty_directory, exit_code, run_program, stderr_text, stdout_text};
use serde_json::Value;

const FLEET: [&str; 9] = [
    "run",
    "smallest",
    "--set",
    "model.init=\"random\"",
    "--set",
    "algorithm.rounds=10",
    "--set",
    "fleet.radio=\"lora-sf9\"",
    "--quiet",
];
const CHIP: &str = "fleet.energy=\"stm32wle5\"";

/// Columns of a line of `energy.csv` by name.
type Device = std::collections::BTreeMap<String, f64>;

fn arguments<'a>(changes: &[&'a str]) -> Vec<&'a str> {
    FLEET.into_iter().chain(changes.iter().flat_map(|change| ["--set", *change])).collect()
}

/// Runs the fleet with changes, and returns the energy of its devices and the summary.
fn energy(folder: &Path, changes: &[&str]) -> (Vec<Device>, Value) {
    let command = [arguments(&[&[CHIP], changes].concat()), vec!["--out", "out", "--overwrite"]].concat();
    let output = run_program(folder, &command);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let text = std::fs::read_to_string(folder.join("out/energy.csv")).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let devices = lines.map(|line| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .zip(line.iter().map(|cell| cell.parse().unwrap()))
            .collect()
    });
    let summary = std::fs::read_to_string(folder.join("out/summary.json")).unwrap();
    (devices.collect(), serde_json::from_str(&summary).unwrap())
}

fn sum(devices: &[Device], column: &str) -> f64 {
    devices.iter().map(|device| device[column]).sum()
}

/// Each device of a fleet without losses takes the energy of ten rounds of command `radio`, also with a model whose frames would be
/// longer on a stream than packets can carry.
#[test]
fn fleet_without_losses_takes_the_energy_of_command_radio() {
    let folder = empty_directory("energy-radio");
    let large = [
        "data.d=20000",
        "data.k=4",
        "model.k=4",
        "data.samples=5",
        "fleet.radio=\"ble\"",
        "fleet.energy=\"nrf52840\"",
    ];
    for (name, changes) in [("lora-sf9", &[][..]), ("ble", &large)] {
        let (devices, summary) = energy(&folder, changes);
        let options = changes.iter().take(4).flat_map(|change| ["--set", *change]);
        let command: Vec<_> = ["radio", "smallest", "--format", "json"].into_iter().chain(options).collect();
        let radio: Value = serde_json::from_slice(&run_program(&folder, &command).stdout).unwrap();
        let rows = radio["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["radio"] == name).unwrap();
        assert_eq!(devices.len(), 8);
        for device in &devices {
            assert_eq!((device["rounds"], device["uncounted"]), (10.0, 0.0));
            for use_of in ["computation", "sending", "receiving"] {
                let expected = 1e4 * row["energy"]["round"][use_of].as_f64().unwrap();
                let found = device[&format!("{use_of}_mj")];
                assert!(found > 0.0, "{use_of} {changes:?}");
                assert!((found - expected).abs() < 1e-9 * expected, "{use_of}: {found} mJ, {expected} mJ");
            }
            let parts = ["computation_mj", "sending_mj", "receiving_mj", "sleep_mj"].map(|name| device[name]);
            assert!((parts.iter().sum::<f64>() - device["total_mj"]).abs() < 1e-9 * device["total_mj"]);
        }
        let mean = summary["per_client"]["energy_mj"]["mean"].as_f64().unwrap();
        assert!((mean - sum(&devices, "total_mj") / 8.0).abs() < 1e-9 * mean, "{mean}");
    }
}

/// A model that is too large for packets is refused by both commands, with the numbers.
#[test]
fn model_that_packets_cannot_carry_is_refused() {
    let folder = empty_directory("energy-large");
    let changes = ["data.d=30000", "data.k=9", "model.k=9", "data.samples=5"];
    let options: Vec<_> = changes.iter().flat_map(|change| ["--set", *change]).collect();
    let output = run_program(&folder, &[&["radio", "smallest"], &options[..]].concat());
    assert_eq!(exit_code(&output), 2);
    assert_contains_all(&stderr_text(&output), &["270000 values", "256 frames of 4096 bytes"]);
    let output = run_program(&folder, &arguments(&changes));
    assert_eq!(exit_code(&output), 2, "{}", stderr_text(&output));
    assert_contains_all(&stderr_text(&output), &["4260 bytes", "4096"]);
}

#[test]
fn more_losses_take_more_energy_of_the_radio() {
    let folder = empty_directory("energy-loss");
    let fleets = ["0.0", "0.2", "0.6"].map(|loss| energy(&folder, &[&format!("fleet.loss={loss}")]).0);
    for [less, more] in fleets.array_windows() {
        for column in ["sending_mj", "receiving_mj", "total_mj"] {
            assert!(sum(more, column) > sum(less, column), "{column}");
        }
        assert!((sum(more, "computation_mj") - sum(less, "computation_mj")).abs() < 1e-9);
    }
}

#[test]
fn longer_computations_take_more_sleep_and_the_battery_lasts_longer() {
    let folder = empty_directory("energy-sleep");
    let [short, long] =
        ["1.0", "3600.0"].map(|seconds| energy(&folder, &[&format!("fleet.computation={seconds}")]).0);
    for (short, long) in short.iter().zip(&long) {
        assert!(long["seconds"] > short["seconds"] && long["sleep_mj"] > short["sleep_mj"]);
        assert_eq!(long["sending_mj"], short["sending_mj"]);
        assert!(long["battery_months"] > short["battery_months"]);
    }
}

/// Energy changes no model, and devices that drop out of a round take no energy in it.
#[test]
fn only_received_rounds_take_energy() {
    let folder = empty_directory("energy-dropout");
    let (all, with) = energy(&folder, &[]);
    let (some, _) = energy(&folder, &["fleet.dropout=0.5"]);
    assert!(sum(&some, "rounds") < 0.75 * sum(&all, "rounds"));
    let per_round = |devices: &[Device]| sum(devices, "sending_mj") / sum(devices, "rounds");
    assert!((per_round(&some) - per_round(&all)).abs() < 1e-9 * per_round(&all));
    let output = run_program(&folder, &[arguments(&[]), vec!["--format", "json"]].concat());
    let without: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&with["final"], &with["time"]), (&without["final"], &without["time"]));
    assert!(without["per_client"].get("energy_mj").is_none());
}

#[test]
fn given_currents_and_cycles_replace_those_of_the_chip() {
    let folder = empty_directory("energy-given");
    let (own, _) = energy(&folder, &[]);
    let (given, _) = energy(&folder, &["fleet.transmit_ma=30", "fleet.cycles=1e9", "fleet.battery_mah=450"]);
    for (own, given) in own.iter().zip(&given) {
        assert!((given["sending_mj"] - 2.0 * own["sending_mj"]).abs() < 1e-9 * own["sending_mj"]);
        assert!(given["cycles"] > 1e10 && own["cycles"] < 1e8);
        let capacity = |device: &Device| device["battery_months"] * device["total_mj"] / device["seconds"];
        assert!((capacity(given) - 2.0 * capacity(own)).abs() < 1e-6 * capacity(own));
    }
}

#[test]
fn energy_that_cannot_be_computed_is_refused() {
    let folder = empty_directory("energy-refused");
    let ble = "fleet.radio=\"ble\"";
    for (changes, parts) in [
        (&["fleet={ energy = \"nrf52840\" }"][..], &["fleet", "set `radio` too"][..]),
        (&[CHIP, ble], &["\"stm32wle5\", which has another radio than \"ble\"", "\"nrf52840\""]),
        (&[CHIP, "algorithm.name=\"fedavg\""], &["known for fedrep", "set `cycles` too"]),
        (&["fleet.energy=\"z80\""], &["found \"z80\", allowed: \"nrf52840\", \"stm32wle5\""]),
        (&[CHIP, "fleet.core=\"m9\""], &["found \"m9\", allowed: \"m4\""]),
        (&[CHIP, "fleet.volts=0"], &["found 0, allowed: a number from 0.1"]),
        (&[CHIP, "fleet.sleep_ua=-1"], &["found -1, allowed"]),
        (&["fleet.cycles=1"], &["unknown key"]),
    ] {
        let output = run_program(&folder, &arguments(changes));
        assert_eq!(exit_code(&output), 2, "{changes:?}: {}", stdout_text(&output));
        assert_contains_all(&stderr_text(&output), parts);
    }
    for option in [["--volts", "0"], ["--period", "-1"], ["--sleep-ua", "nan"], ["--core", "z80"]] {
        let output = run_program(&folder, &["radio", "smallest", option[0], option[1]]);
        assert_eq!(exit_code(&output), 2, "{option:?}");
    }
}

/// A scenario whose cycles are not known has no energy without `--cycles`, nor has a period shorter than the duty cycle allows.
#[test]
fn command_radio_leaves_unknown_energy_out() {
    let folder = empty_directory("energy-unknown");
    let known = |arguments: &[&str]| -> Vec<bool> {
        let output = run_program(&folder, &[&["radio"], arguments, &["--format", "json"]].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let radio: Value = serde_json::from_slice(&output.stdout).unwrap();
        radio["rows"].as_array().unwrap().iter().map(|row| !row["energy"].is_null()).collect()
    };
    assert_eq!(known(&["digits-network"]), [false; 8]);
    assert_eq!(known(&["digits-network", "--cycles", "1e9", "--period", "1e7"]), [true; 8]);
    assert_eq!(known(&["smallest"]), [true; 8]);
    // The update takes 12 s of the duty cycle at SF7, and more at the others.
    assert_eq!(known(&["smallest", "--period", "1"]), [true, true, false, false, false, false, false, false]);
}
