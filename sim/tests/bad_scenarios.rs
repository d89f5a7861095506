//! Malformed scenarios: exit 2 and one message with file, line, key, what was found and what is allowed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{code, directory, errors, program};

const GOOD: &str = "seed = 7\n[data]\nkind = \"linear-regression\"\nclients = 10\nd = 8\nk = 2\nsamples = 6\n\
                    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n";

/// Runs GOOD with a replacement; the message.
fn message(name: &str, from: &str, to: &str) -> String {
    let here = directory(&format!("bad-{name}"));
    assert!(GOOD.contains(from), "{from}");
    std::fs::write(here.join("my.toml"), GOOD.replace(from, to)).unwrap();
    let output = program(&here, &["run", "my.toml", "--out", "out"]);
    assert_eq!(code(&output), 2, "{name}: {}", errors(&output));
    assert!(!here.join("out").exists(), "{name}: nothing is written");
    let said = errors(&output);
    assert_eq!(said.lines().count(), 1, "{name}: {said}");
    assert!(said.contains("my.toml"), "{name}: {said}");
    said
}

#[test]
fn the_good_one_is_good() {
    let here = directory("good");
    std::fs::write(here.join("my.toml"), GOOD).unwrap();
    assert_eq!(code(&program(&here, &["run", "my.toml"])), 0);
}

#[test]
fn each_mistake_names_its_place_and_what_is_allowed() {
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
    ] {
        let said = message(name, from, to);
        for part in parts {
            assert!(said.contains(part), "{name}: {part:?} is not in {said:?}");
        }
    }
}

#[test]
fn moments_are_for_regression() {
    let here = directory("moments");
    let output = program(&here, &["run", "digits", "--set", "model.init=moments"]);
    assert_eq!(code(&output), 2);
    assert!(errors(&output).contains("regression"), "{}", errors(&output));
}

#[test]
fn changes_on_the_command_line_are_checked_like_the_file() {
    let here = directory("changes");
    for (change, parts) in [
        ("algorithm.rouns=3", &["--set algorithm.rouns", "did you mean \"rounds\""][..]),
        ("algorithm.rounds=many", &["--set algorithm.rounds", "\"many\"", "an integer"]),
        ("algorithm.rounds", &["--set algorithm.rounds", "KEY=VALUE"]),
        ("=3", &["--set =3", "dotted key"]),
        ("data.k.deeper=3", &["--set data.k.deeper=3"]),
    ] {
        let output = program(&here, &["run", "linear", "--set", change]);
        assert_eq!(code(&output), 2, "{change}");
        for part in parts {
            assert!(errors(&output).contains(part), "{change}: {part:?} is not in {:?}", errors(&output));
        }
    }
}
