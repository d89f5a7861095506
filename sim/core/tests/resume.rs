//! A saved simulation continues with the bits of one that was not interrupted.

use fedspan_engine::algorithm::algorithms;
use fedspan_engine::participation::{Policy, Schedule};
use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::run::{Job, NoProgress, Outcome, SavedRun, SavedRunError, Watcher, run};
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};

const VERSION: &str = "0.0.0 test";

/// Keeps the state after each of these rounds, and after the last round; ends the run after `ends_after` rounds.
struct Keeper {
    rounds: Vec<u32>,
    ends_after: Option<u32>,
    now: u32,
    files: Vec<Vec<u8>>,
}

impl Keeper {
    fn new(rounds: &[u32]) -> Self {
        Self { rounds: rounds.to_vec(), ends_after: None, now: 0, files: Vec::new() }
    }
}

impl Watcher for Keeper {
    fn round(&mut self, done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        self.now = done;
        self.ends_after.is_none_or(|last| done < last)
    }

    fn wants_state(&mut self, is_last: bool) -> bool {
        is_last || self.rounds.contains(&self.now)
    }

    fn keep_state(&mut self, state: SavedRun) {
        assert_eq!(state.done(), self.now);
        self.files.push(state.encode(VERSION));
    }
}

/// All results without times of the machine. Debug output shows every bit of a number, since it is its shortest exact form.
fn bits(outcome: &Outcome) -> String {
    let mut outcome = outcome.clone();
    outcome.seconds = 0.0;
    format!("{outcome:?}")
}

#[track_caller]
fn assert_same(expected: &Outcome, found: &Outcome, label: &str) {
    if bits(expected) == bits(found) {
        return;
    }
    for (expected, found) in expected.rounds.iter().zip(&found.rounds) {
        assert_eq!(expected, found, "{label}");
    }
    assert_eq!(expected.scores, found.scores, "{label}");
    assert_eq!(expected.counters, found.counters, "{label}");
    assert_eq!(bits(expected), bits(found), "{label}");
}

fn resume(file: &[u8], rounds: Option<u32>) -> Outcome {
    let mut saved = SavedRun::decode(file, VERSION).unwrap();
    if let Some(rounds) = rounds {
        saved.extend(rounds).unwrap();
    }
    let scenario = saved.parse().unwrap();
    Job::prepare(&scenario, saved.seed).unwrap().resume(&saved, &mut NoProgress).unwrap()
}

/// Checks a scenario of at least seven rounds: continued after rounds 1, 4 and the last, and extended from round 5.
fn check(name: &str, changes: &[&str]) {
    let label = format!("{name} {changes:?}");
    let text = Scenario::built_in(name).unwrap();
    let changed: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let algorithm = Scenario::parse(name, text, &changed).unwrap().algorithm;
    let is_power = algorithm.power().is_some();
    let has_derived_rounds = is_power || algorithm.learned_prior().is_some();
    let parse = |rounds: u32| {
        let rounds =
            if is_power { "algorithm.iterations=8".to_owned() } else { format!("algorithm.rounds={rounds}") };
        let all =
            changes.iter().map(|change| (*change).to_owned()).chain([rounds, "evaluate_every=3".to_owned()]);
        Scenario::parse(name, text, &all.collect::<Vec<_>>())
            .unwrap_or_else(|error| panic!("{label}: {error}"))
    };
    let scenario = parse(7);
    if !scenario.is_federated() {
        return;
    }
    let mut keeper = Keeper::new(&[1, 4]);
    let expected = run(&scenario, 11, &mut keeper).unwrap_or_else(|error| panic!("{label}: {error}"));
    let job = Job::prepare(&scenario, 11).unwrap().with_awake_devices(0);
    assert_same(&expected, &job.run(&mut NoProgress).unwrap(), &format!("{label}, devices sleep"));
    if let Policy::Doubling(settings) = &scenario.participation
        && matches!(settings.schedule, Schedule::Adaptive | Schedule::Verified)
    {
        assert!(keeper.files.is_empty(), "{label}: no state, since it would not be whole");
        return;
    }
    assert!(!keeper.files.is_empty(), "{label}");
    for (number, file) in keeper.files.iter().enumerate() {
        assert_same(&expected, &resume(file, None), &format!("{label}, state {number}"));
    }
    if scenario.privacy.is_some() {
        let mut saved = SavedRun::decode(&keeper.files[0], VERSION).unwrap();
        assert_eq!(saved.extend(9), Err(SavedRunError::Private), "{label}");
        return;
    }
    if has_derived_rounds {
        let mut saved = SavedRun::decode(&keeper.files[0], VERSION).unwrap();
        assert_eq!(saved.extend(9), Err(SavedRunError::DerivedRounds(algorithm.name())), "{label}");
        return;
    }
    let mut keeper = Keeper::new(&[2]);
    let shorter = run(&parse(5), 11, &mut keeper).unwrap();
    if shorter.rounds.last().unwrap().round < 5 {
        return;
    }
    for (number, file) in keeper.files.iter().enumerate() {
        assert_same(&expected, &resume(file, Some(7)), &format!("{label}, extended from state {number}"));
    }
    // Ctrl-C after round 4.
    let mut keeper = Keeper { ends_after: Some(4), ..Keeper::new(&[]) };
    let interrupted = run(&scenario, 11, &mut keeper).unwrap();
    assert!(interrupted.interrupted, "{label}");
    assert_same(&expected, &resume(&keeper.files[0], None), &format!("{label}, interrupted"));
}

/// Built-in scenarios that take more than two seconds.
const SLOW: [&str; 7] =
    ["fedpower", "fedpower-sbm", "fedpower-mnist", "mnist", "mnist-lenet", "mnist-lora", "srpfl-network"];

#[test]
fn built_in_scenarios_continue_with_the_same_bits() {
    let fast = BUILT_IN.iter().map(|(name, ..)| *name).filter(|name| !SLOW.contains(name));
    // Few rounds of refinement: they follow from the settings of the prior, not from `rounds`.
    let short = ["algorithm.learned-prior.refining_rounds=2"];
    fast.for_each(|name| check(name, if name == "watch-prior" { &short } else { &[] }));
}

/// Two minutes: `tests/nightly resume`.
#[test]
#[ignore = "two minutes"]
fn slow_built_in_scenarios_continue_with_the_same_bits() {
    SLOW.iter().for_each(|name| check(name, &[]));
    for (algorithm, _) in algorithms() {
        check_if_possible("mnist-lora", algorithm);
    }
}

/// Checks a scenario with an algorithm, and returns true, if the scenario allows the algorithm.
fn check_if_possible(scenario: &str, algorithm: &str) -> bool {
    let change = format!("algorithm.name={algorithm}");
    let text = Scenario::built_in(scenario).unwrap();
    let is_possible = Scenario::parse(scenario, text, std::slice::from_ref(&change)).is_ok();
    if is_possible {
        check(scenario, &[&change]);
    }
    is_possible
}

#[test]
fn all_algorithms_continue_with_the_same_bits() {
    // A single adapter of networks is fast enough; the ignored test has all.
    let unchecked: Vec<&str> = algorithms()
        .map(|(algorithm, _)| algorithm)
        .filter(|algorithm| {
            let scenarios = ["digits", "digits-network", "rolora"].iter();
            scenarios.filter(|scenario| check_if_possible(scenario, algorithm)).count() == 0
        })
        .collect();
    assert_eq!(unchecked, ["fedpower", "lora", "flexlora"]);
    check("mnist-lora", &["algorithm.name=rolora", "data.partition.clients=5"]);
}

#[test]
fn settings_of_all_parts_continue_with_the_same_bits() {
    check("linear", &["algorithm.numeric=i16"]);
    check("linear", &["data.scale=fleet"]);
    check("watch-gate", &["data.scale=fleet"]);
    check("digits", &["algorithm.name=gd-gd", "data.scale=fleet", "algorithm.numeric=i16"]);
    check("linear", &["algorithm.step_size=auto"]);
    check("linear", &["fleet.dropout=0.3"]);
    check("linear", &["fleet={ radio = \"lora-sf9\", energy = \"stm32wle5\", loss = 0.2, dropout = 0.2 }"]);
    check("stragglers", &["rounds.deadline=2.0", "fleet.dropout=0.2"]);
    check("stragglers", &["participation={ policy = \"fraction\", r = 0.3 }"]);
    check("digits-network", &["algorithm.momentum=0.5", "participation={ policy = \"fraction\", r = 0.3 }"]);
    check(
        "digits-network",
        &["algorithm.name=apfl", "participation={ policy = \"doubling\", schedule = \"verified\" }"],
    );
    check("digits-network", &["algorithm.name=scaffold", "participation={ policy = \"fraction\", r = 0.3 }"]);
    check("byzantine", &["attack.kind=search", "attack.strength=5"]);
    check("watch-network", &["data.scale=fleet"]);
    check("fedrep-private", &["fleet.dropout=0.3", "data.clients=20"]);
    check(
        "linear",
        &["fleet.wake_every=20", "fleet.awake=2", "participation={ policy = \"fraction\", r = 0.3 }"],
    );
    check("linear", &["stop.distance=0.9"]);
    check("linear", &["stop.change=0.9"]);
}
