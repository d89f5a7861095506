//! The configuration that is written for a scenario configures a server as the simulator configures its engine.

use std::path::Path;

use fedspan_aggregator::config::Fleet;
use fedspan_sim_core::live::{campaign, server_configuration};
use fedspan_sim_core::run::Job;
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};

fn parse(name: &str, changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap()
}

/// Parts of a configuration that determine the model, and who takes part.
fn essence(fleet: &Fleet) -> String {
    let Fleet {
        seed,
        shape,
        scale,
        model,
        algorithm,
        rule,
        participation,
        stop_change,
        expected,
        limits,
        ..
    } = fleet;
    let limits = (limits.norm, limits.samples);
    format!(
        "{:?}",
        (seed, shape, scale, model, algorithm, rule, participation, stop_change, expected, limits)
    )
}

fn check(name: &str, changes: &[&str]) -> bool {
    let scenario = parse(name, changes);
    let dataset = Job::prepare(&scenario, scenario.seed).unwrap().dataset;
    let Ok(expected) = campaign(&scenario, &dataset, Path::new("state")) else {
        assert!(
            server_configuration(&scenario, &dataset, &[]).is_err(),
            "{name}: a scenario that cannot be served"
        );
        return false;
    };
    match server_configuration(&scenario, &dataset, &[]) {
        Ok(text) => {
            let found = Fleet::parse("fleet.toml", &text).unwrap();
            assert_eq!(essence(&found), essence(&expected), "{name} {changes:?}");
            true
        }
        // A server does not start by moments, which reveal records; the simulator's server on loopback does.
        Err(error) => {
            assert!(error.to_string().contains("model.init"), "{name}: {error}");
            false
        }
    }
}

#[test]
fn all_served_scenarios_have_a_configuration() {
    let slow = ["fedpower", "fedpower-sbm", "fedpower-mnist"];
    let names = BUILT_IN.iter().map(|(name, ..)| *name).filter(|name| !slow.contains(name));
    let written: Vec<&str> = names.filter(|name| check(name, &[])).collect();
    for name in ["demo", "mnist", "mnist-lenet", "watch-gate", "watch-prior", "watch-signal", "digits"] {
        assert!(written.contains(&name), "{name} is not in {written:?}");
    }
    assert!(check("digits", &["data.scale=fleet"]));
    assert!(check("linear", &["model.init=random", "algorithm.name=gd-gd", "algorithm.head_steps=3"]));
    assert!(check("watch-network", &["participation={ policy = \"first-arrivals\", n = 3 }"]));
    assert!(check(
        "digits",
        &["stop.change=0.001", "limits.norm=50.0", "aggregation={ rule = \"trimmed-mean\", trim = 0.2 }"]
    ));
}

/// A server does not measure step sizes, so the file has the measured numbers, and nothing for an algorithm without steps.
#[test]
fn measured_step_sizes_are_written_as_numbers() {
    for (name, changes) in [
        ("fedrep", &[][..]),
        ("gd-gd", &["algorithm.head_steps=3"]),
        ("gd-gd", &["algorithm.head_steps=3", "algorithm.head_step_size=auto"]),
        ("learned-prior", &[]),
    ] {
        let name_change = format!("algorithm.name={name}");
        let changes = [&["algorithm.step_size=auto", name_change.as_str()], changes].concat();
        let scenario = parse("digits", &changes);
        let job = Job::prepare(&scenario, scenario.seed).unwrap();
        let text = server_configuration(job.scenario(), &job.dataset, &[]).unwrap();
        let (found, expected) =
            (Fleet::parse("fleet.toml", &text).unwrap().algorithm, &job.scenario().algorithm);
        assert_eq!(found.step_size.to_bits(), expected.step_size.to_bits(), "{text}");
        assert_eq!(found.head_step_size.to_bits(), expected.head_step_size.to_bits(), "{text}");
        assert_eq!(found.head, expected.head, "{text}");
        assert_eq!(found.step_size > 0.0, name != "learned-prior", "{text}");
    }
}

#[test]
fn attackers_are_not_served() {
    let scenario = parse("byzantine", &[]);
    let dataset = scenario.dataset(1).unwrap();
    assert!(
        server_configuration(&scenario, &dataset, &[]).unwrap_err().to_string().contains("simulated only")
    );
}
