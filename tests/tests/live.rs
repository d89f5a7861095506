//! Tests of replays of journals. Real servers, with devices that sleep over TCP, must make the same decisions
//! as the simulator, in any order of arriving updates. No assertion depends on durations.
#![allow(clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fedspan_aggregator::journal::{self, JournalEntry, JournalError, JournalPhase, Outcome};
use fedspan_aggregator::server::{Protection, Server, Status, query};
use fedspan_engine::DeviceId;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::Identity;
use fedspan_sim_core::live::{self, Plan, ReplayCheck, ReplayCheckError, campaign, check_replay};
use fedspan_sim_core::run::replay::ReplayError;
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::device;
use getrandom::SysRng;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Real duration of one unit of the scenario's simulated time.
const UNIT: Duration = Duration::from_millis(5);

const SCENARIO_TEXT: &str = r#"
seed = 3
[data]
kind = "linear-regression"
clients = 16
d = 10
k = 2
samples = 10
fresh = true
noise_std = 1.0
new_clients = 2
[model]
k = 2
[algorithm]
name = "fedrep"
rounds = 12
step_size = 0.125
[fleet]
speed = "exponential-dynamic"
communication = 0.2
[participation]
"#;

fn scenario(participation: &str) -> Scenario {
    Scenario::parse("test", &format!("{SCENARIO_TEXT}{participation}"), &[]).expect("scenario")
}

const ADAPTIVE: &str = "policy = \"doubling\"\nn0 = 2\n";
const FIXED: &str = "policy = \"doubling\"\nn0 = 2\nschedule = \"fixed\"\nstage_rounds = 3\n";
const COHORT: &str = "policy = \"doubling\"\nn0 = 2\ncohort = 8\nschedule = \"fixed\"\nstage_rounds = 3\n";

fn load_data(scenario: &Scenario) -> Dataset {
    scenario.dataset(scenario.seed).expect("data")
}

async fn run_campaign(scenario: &Scenario, state: &Path) -> (Status, Vec<JournalEntry>) {
    let dataset = load_data(scenario);
    let plan = Plan { scenario, dataset: &dataset, unit: UNIT, state };
    let status = live::run(&plan, std::future::pending(), |_| {}).await.expect("a campaign");
    (status, journal::read(&state.join(journal::FILE)).expect("a journal"))
}

fn count_commits(lines: &[JournalEntry]) -> usize {
    lines.iter().filter(|line| matches!(line, JournalEntry::Committed(_))).count()
}

fn assert_no_difference(check: &ReplayCheck, rounds: usize) {
    if let Some(difference) = check.replay.difference() {
        panic!("{difference}");
    }
    assert_eq!(check.replay.rounds(), rounds);
}

/// Runs a campaign with a participation policy and checks that its journal replays without a difference.
async fn assert_policy_replays(participation: &str) -> Vec<JournalEntry> {
    let scenario = scenario(participation);
    let state = tempfile::tempdir().unwrap();
    let (status, lines) = run_campaign(&scenario, state.path()).await;
    assert_eq!(status.phase, "finished");
    assert_eq!(status.journal_lost, 0);
    assert_eq!(count_commits(&lines), 12);
    let check = check_replay(&scenario, &lines).expect("the same campaign");
    assert_no_difference(&check, 12);
    let timed = check.timed_rounds();
    assert_eq!(timed.len(), 13);
    assert!(timed.iter().all(|round| round.distance.is_some()));
    // The journal contains every answer of the server, and the counts agree with the status.
    let count_outcomes = |outcome: Outcome| {
        let answered = |line: &&JournalEntry| matches!(line, JournalEntry::Answered(answer) if answer.outcome == outcome);
        lines.iter().filter(answered).count() as u64
    };
    assert_eq!(count_outcomes(Outcome::Counted), status.updates.counted);
    assert_eq!(count_outcomes(Outcome::Late), status.updates.late);
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn adaptive_schedule_replays_identically() {
    let lines = assert_policy_replays(ADAPTIVE).await;
    // The first round waits for all devices, which calibrates the clock.
    let first = lines.iter().find_map(|line| match line {
        JournalEntry::Opened(opened) if opened.phase == JournalPhase::Training => Some(opened.target),
        _ => None,
    });
    assert_eq!(first, Some(16));
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_schedule_replays_identically() {
    let lines = assert_policy_replays(FIXED).await;
    let targets: Vec<usize> = lines
        .iter()
        .filter_map(|line| match line {
            JournalEntry::Opened(opened) if opened.phase == JournalPhase::Training => Some(opened.target),
            _ => None,
        })
        .collect();
    assert_eq!(targets, [2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_policies_replay_identically() {
    assert_policy_replays(COHORT).await;
    assert_policy_replays("policy = \"first-arrivals\"\nn = 5\n").await;
    assert_policy_replays("policy = \"doubling\"\nn0 = 2\nby = \"samples\"\n").await;
    assert_policy_replays("policy = \"full\"\n").await;
}

/// Tests a fleet-wide scale of the features, and an initial representation computed with this scale.
/// The server must compute the same bits as the simulator, and its journal must be replayable.
#[tokio::test(flavor = "multi_thread")]
async fn fleet_scale_has_the_same_bits() {
    let text = SCENARIO_TEXT
        .replace("fresh = true", "scale = \"fleet\"")
        .replace("[model]\nk = 2", "[model]\nk = 2\ninit = \"power\"");
    let scenario = Scenario::parse("test", &format!("{text}policy = \"full\"\n"), &[]).expect("scenario");
    let state = tempfile::tempdir().unwrap();
    let (status, lines) = run_campaign(&scenario, state.path()).await;
    assert_eq!((status.phase.as_str(), status.updates.rejected()), ("finished", 0));
    // The commits are two rounds that collect sums for the scale, the initial representation, and the training
    // rounds.
    assert!(count_commits(&lines) > 12 + 2);
    // Every device counts in every round, so the model depends only on the data.
    let check = check_replay(&scenario, &lines).expect("the same campaign");
    assert_no_difference(&check, count_commits(&lines));

    let dataset = load_data(&scenario);
    let mut fleet = campaign(&scenario, &dataset, state.path()).expect("a server's campaign");
    fleet.state = state.path().to_owned();
    let directory = tempfile::tempdir().unwrap();
    let model_folder = directory.path().join("model");
    fedspan_aggregator::export::export(&fleet, &model_folder).expect("exported");
    let simulated = fedspan_sim_core::run::Job::prepare(&scenario, scenario.seed).expect("a job");
    let outcome = simulated.run(&mut fedspan_sim_core::run::NoProgress).expect("a run");
    let scale = outcome.scale.expect("found");
    let read = |name: &str| -> Vec<f64> {
        let npy = std::fs::read(model_folder.join(name)).expect("an array");
        let header = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
        let (values, _) = npy[header..].as_chunks::<8>();
        values.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    };
    let exported = read("scale.npy");
    let simulated_scale: Vec<f64> =
        scale.shift().iter().chain(scale.factor()).map(|value| f64::from(*value)).collect();
    assert_eq!(exported, simulated_scale);
    let representation = outcome.representation.expect("a representation");
    let is_equal = read("representation.npy")
        .iter()
        .zip(representation.transpose().iter())
        .all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(is_equal && !representation.is_empty());
    assert!(scale.factor().iter().all(|factor| *factor != 1.0));
    let model = std::fs::read(model_folder.join("model.safetensors")).expect("model.safetensors");
    assert!(String::from_utf8_lossy(&model).contains("1.scale"));
}

/// Tests GD-GD, whose heads depend on every round that a device has computed, also on rounds in which it did
/// not count.
#[tokio::test(flavor = "multi_thread")]
async fn stateful_heads_replay_identically() {
    let text = SCENARIO_TEXT.replace("[model]\nk = 2", "[model]\nk = 2\ninit = \"moments\"");
    let text = text.replace("name = \"fedrep\"", "name = \"gd-gd\"");
    let scenario = Scenario::parse("test", &format!("{text}{FIXED}"), &[]).expect("scenario");
    let state = tempfile::tempdir().unwrap();
    let (_, lines) = run_campaign(&scenario, state.path()).await;
    assert_no_difference(&check_replay(&scenario, &lines).expect("the same campaign"), count_commits(&lines));
    assert!(count_commits(&lines) > 12);
}

/// Change of a journal entry.
type Change<'a> = &'a dyn Fn(&mut JournalEntry);

#[tokio::test(flavor = "multi_thread")]
async fn replay_finds_any_changed_decision() {
    let scenario = scenario(ADAPTIVE);
    let state = tempfile::tempdir().unwrap();
    let (_, lines) = run_campaign(&scenario, state.path()).await;
    let check_changed = |decision: usize, change: Change<'_>| {
        let mut lines = lines.clone();
        let decisions = lines
            .iter_mut()
            .filter(|line| matches!(line, JournalEntry::Opened(_) | JournalEntry::Committed(_)));
        change(decisions.into_iter().nth(decision).unwrap());
        check_replay(&scenario, &lines).expect("the same campaign")
    };
    // The changed entries are the opening and the commit of the sixth round.
    let changes: [(usize, Change<'_>); 6] = [
        (10, &|line| change_opened(line, |opened| opened.target = 17 - opened.target)),
        (10, &|line| change_opened(line, |opened| opened.stage += 1)),
        (10, &|line| change_opened(line, |opened| opened.cohort.truncate(15))),
        (10, &|line| change_opened(line, |opened| opened.number += 1)),
        (11, &|line| change_committed(line, |committed| committed.participants.reverse())),
        (11, &|line| change_committed(line, |committed| committed.representation = "0".repeat(8))),
    ];
    for (decision, change) in changes {
        let check = check_changed(decision, change);
        assert_eq!(check.replay.rounds(), 5);
        let difference = check.replay.difference().expect("a difference");
        assert!(difference.journal.is_some() && difference.simulator.is_some());
        assert!(difference.to_string().contains("exchange 6"), "{difference}");
    }
}

fn change_opened(line: &mut JournalEntry, change: impl Fn(&mut journal::Opened)) {
    match line {
        JournalEntry::Opened(opened) => change(opened),
        other => panic!("{other:?}"),
    }
}

fn change_committed(line: &mut JournalEntry, change: impl Fn(&mut journal::Committed)) {
    match line {
        JournalEntry::Committed(committed) => change(committed),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_prefix_of_a_journal_replays_identically() {
    let scenario = scenario(ADAPTIVE);
    let state = tempfile::tempdir().unwrap();
    let (_, lines) = run_campaign(&scenario, state.path()).await;
    let text = std::fs::read(state.path().join(journal::FILE)).unwrap();
    for length in (0..40).map(|length| text.len() * length / 40) {
        // The journal is cut at any place, mostly within a line.
        let complete_lines = journal::parse("torn", &text[..length]).expect("whole lines");
        assert_eq!(complete_lines[..], lines[..complete_lines.len()]);
        match check_replay(&scenario, &complete_lines) {
            Ok(check) => assert_no_difference(&check, count_commits(&complete_lines)),
            Err(error) => assert!(complete_lines.is_empty(), "{error}"),
        }
    }
    // If a counted answer is missing, the replay makes another decision.
    let counted = |line: &JournalEntry| matches!(line, JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted && answer.round == 3);
    let mut missing = lines.clone();
    missing.remove(lines.iter().position(counted).unwrap());
    let check = check_replay(&scenario, &missing).expect("the same campaign");
    assert_eq!(check.replay.rounds(), 2);
    assert!(check.replay.difference().is_some());
}

#[test]
fn malformed_line_is_reported_with_its_number() {
    for (text, expected) in [
        ("garbage\n", 1),
        ("{\"event\":\"opened\"}\n", 1),
        ("{\"event\":\"began\",\"after\":0,\"expected\":2,\"configuration\":\"\"}\n\n", 2),
        (
            "{\"event\":\"began\",\"after\":0,\"expected\":2,\"configuration\":\"\"}\n{\"event\":\"x\"}\n{}\n",
            2,
        ),
        ("{\"event\":\"began\",\"after\":0,\"expected\":-2,\"configuration\":\"\"}\n", 1),
        ("\u{0}\n", 1),
    ] {
        match journal::parse("name", text.as_bytes()) {
            Err(error @ JournalError::Line { line, .. }) => {
                assert_eq!(line, expected, "{text:?}");
                assert!(error.to_string().starts_with(&format!("name: line {expected}: ")), "{error}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_of_another_campaign_is_refused() {
    let served = scenario(FIXED);
    let state = tempfile::tempdir().unwrap();
    let (_, lines) = run_campaign(&served, state.path()).await;
    let message = |changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let other = Scenario::parse("other", &format!("{SCENARIO_TEXT}{FIXED}"), &changes).unwrap();
        let error = check_replay(&other, &lines).expect_err("another campaign");
        assert!(matches!(error, ReplayCheckError::Other { .. }));
        error.to_string()
    };
    assert!(message(&["seed=4"]).contains("- seed = 3; + seed = 4"));
    assert!(message(&["data.clients=15"]).ends_with("- devices.expected = 16; + devices.expected = 15"));
    assert!(message(&["participation.n0=3"]).contains("n0 = 3"));
    assert_eq!(message(&["seed=4", "data.clients=15"]).lines().count(), 1);
    // The server cannot detect other noise in the data, but the results differ.
    let noisy =
        Scenario::parse("other", &format!("{SCENARIO_TEXT}{FIXED}"), &["data.noise_std=2.0".to_owned()]);
    let noisy_check = check_replay(&noisy.unwrap(), &lines).expect("the same settings");
    assert_eq!(noisy_check.replay.rounds(), 0);
    assert!(noisy_check.replay.difference().is_some());
    // The journals are empty or lack their beginning.
    let journal_error = |lines: &[JournalEntry]| match check_replay(&served, lines) {
        Err(ReplayCheckError::Journal(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(journal_error(&[]), ReplayError::Empty));
    assert!(matches!(journal_error(&lines[1..]), ReplayError::NoBeginning { line: 1 }));
    // The journal has a device that the scenario does not have.
    let mut unknown = lines.clone();
    for line in &mut unknown {
        if let JournalEntry::Answered(answered) = line
            && answered.device == DeviceId(5)
        {
            answered.device = DeviceId(99);
        }
    }
    assert!(matches!(
        check_replay(&served, &unknown),
        Err(ReplayCheckError::Device { device: 99, last: 15 })
    ));
}

/// Ways in which a run of the server ends.
enum RunEnd {
    /// The campaign is finished.
    Finished,
    /// The server is stopped during or after this training round.
    Stopped(u64),
    /// The server crashes during or after this training round.
    Crashed(u64),
}

/// Runs a server for a campaign with devices that do not sleep.
async fn serve(scenario: &Scenario, state: &Path, end: RunEnd) {
    let dataset = Arc::new(load_data(scenario));
    let server = Server::bind(campaign(scenario, &dataset, state).unwrap(), 1, SysRng, Protection::Plaintext)
        .await
        .unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let serving = tokio::spawn(server.serve(shutdown, true));
    let mut devices = JoinSet::new();
    for index in 0..dataset.clients.len() {
        devices.spawn(device(
            scenario.clone(),
            Arc::clone(&dataset),
            index,
            Identity::plaintext(index as u64),
            address,
        ));
    }
    if let RunEnd::Stopped(round) | RunEnd::Crashed(round) = end {
        let mut current_round = 0;
        while current_round < round {
            let mut line = None;
            // The server may not listen yet, so errors are ignored.
            let _ = query(state, "status", |text| {
                line = serde_json::from_str::<serde_json::Value>(text).ok();
                Ok(())
            })
            .await;
            current_round = line.and_then(|line| line["round"].as_u64()).unwrap_or(current_round);
        }
    }
    match end {
        RunEnd::Crashed(_) => {
            serving.abort();
            let _ = serving.await;
        }
        _ => {
            if matches!(end, RunEnd::Stopped(_)) {
                stop.send(()).unwrap();
            }
            serving.await.unwrap().unwrap();
        }
    }
    devices.shutdown().await;
}

/// Starts a server and stops it before any device joins.
async fn serve_without_devices(scenario: &Scenario, state: &Path) {
    let server = Server::bind(
        campaign(scenario, &load_data(scenario), state).unwrap(),
        1,
        SysRng,
        Protection::Plaintext,
    )
    .await
    .unwrap();
    server.serve(std::future::ready(()), true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn campaign_of_several_server_runs_replays_identically() {
    let stages = FIXED.replace("= 3", "= 60");
    for participation in [ADAPTIVE, &stages] {
        let rounds = ["algorithm.rounds=200".to_owned()];
        let scenario = Scenario::parse("test", &format!("{SCENARIO_TEXT}{participation}"), &rounds).unwrap();
        let state = tempfile::tempdir().unwrap();
        serve_without_devices(&scenario, state.path()).await;
        serve(&scenario, state.path(), RunEnd::Stopped(5)).await;
        serve_without_devices(&scenario, state.path()).await;
        serve(&scenario, state.path(), RunEnd::Crashed(60)).await;
        serve(&scenario, state.path(), RunEnd::Finished).await;
        let lines = journal::read(&state.path().join(journal::FILE)).unwrap();
        assert_eq!(lines.iter().filter(|line| matches!(line, JournalEntry::Resumed(_))).count(), 3);
        // No round is repeated, regardless of the updates that it had counted when the server ended.
        assert_eq!(count_commits(&lines), 200);
        assert_no_difference(&check_replay(&scenario, &lines).expect("the same campaign"), 200);
        // The replay reports lines that are missing before a restart.
        let second = lines
            .iter()
            .enumerate()
            .filter(|(_, line)| matches!(line, JournalEntry::Resumed(_)))
            .nth(1)
            .unwrap()
            .0;
        let opened =
            lines[..second].iter().rposition(|line| matches!(line, JournalEntry::Opened(_))).unwrap();
        let mut missing = lines.clone();
        missing.drain(opened..second);
        assert!(matches!(
            check_replay(&scenario, &missing),
            Err(ReplayCheckError::Journal(ReplayError::Gap { .. }))
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_a_journal_writes_none() {
    let scenario = scenario(FIXED);
    let dataset = load_data(&scenario);
    let state = tempfile::tempdir().unwrap();
    let mut fleet = campaign(&scenario, &dataset, state.path()).unwrap();
    fleet.journal = false;
    let server = Server::bind(fleet, 1, SysRng, Protection::Plaintext).await.unwrap();
    server.serve(std::future::ready(()), true).await.unwrap();
    assert!(!state.path().join(journal::FILE).exists());
}
