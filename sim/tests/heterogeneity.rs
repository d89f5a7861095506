//! Tests of devices with different speeds, dropouts and slow links: round times, participants, and results
//! that do not depend on these properties.

use std::collections::BTreeMap;

use crate::common::{empty_directory, exit_code, run_program, stderr_text};
use fedspan_engine::DeviceId;
use fedspan_protocol::message::Task;
use fedspan_sim_core::data::{Dataset, Labels};
use fedspan_sim_core::run::{Job, NoProgress, Outcome, RoundRow, RunError, Times};
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};
use proptest::prelude::*;

/// Task that takes one computation time.
const ONE: Task = Task::PowerStart;

/// Scenario of the tests.
const LINEAR: &str = "[data]\nkind = \"linear-regression\"\nclients = 12\nd = 6\nk = 2\nsamples = 8\n\
                      [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 6\nstep_size = 0.2\n";

fn scenario(text: &str, changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse("my.toml", text, &changes).unwrap()
}

fn try_run(scenario: &Scenario, seed: u64) -> Result<Outcome, RunError> {
    Job::prepare(scenario, seed)?.run(&mut NoProgress)
}

fn outcome(changes: &[&str], seed: u64) -> Outcome {
    try_run(&scenario(LINEAR, changes), seed).unwrap()
}

/// Compute times and data set of a scenario.
fn times(text: &str, changes: &[&str], seed: u64) -> (Times, Dataset) {
    let scenario = scenario(text, changes);
    let dataset = scenario.dataset(seed).unwrap();
    (Times::new(&scenario, &dataset, seed).unwrap(), dataset)
}

/// Simulated time of each round, without the initialisation.
fn durations(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.windows(2).map(|pair| pair[1].time - pair[0].time).collect()
}

/// Rows of the training rounds, without the row of the initial model.
fn trained(outcome: &Outcome) -> &[RoundRow] {
    &outcome.rounds[1..]
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(1.0)
}

/// Creates a directory with a scenario that reads compute times from `trace.csv`.
fn directory_with_trace(name: &str, trace: &str, fleet: &str) -> std::path::PathBuf {
    let folder = empty_directory(&format!("trace-{name}"));
    std::fs::write(folder.join("trace.csv"), trace).unwrap();
    let text = LINEAR.replace("clients = 12", "clients = 3");
    let fleet = format!("[fleet]\nspeed = \"trace\"\ntrace = \"trace.csv\"\n{fleet}");
    std::fs::write(folder.join("my.toml"), format!("{text}{fleet}")).unwrap();
    folder
}

/// Outcome of a run with compute times from a trace.
fn traced_outcome(name: &str, trace: &str, fleet: &str) -> Outcome {
    let file = directory_with_trace(name, trace, fleet).join("my.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let scenario = Scenario::parse(&file.display().to_string(), &text, &[]).unwrap();
    try_run(&scenario, 1).unwrap()
}

#[test]
fn round_times_follow_the_trace_cyclically() {
    let rows = "client,round,time\n0,1,1\n1,1,2\n2,1,0.5\n0,2,4\n1,2,0\n2,2,3\n";
    let fixed = traced_outcome("rounds", rows, "communication = 10\n");
    assert!(durations(&fixed).iter().zip([12.0, 14.0, 12.0, 14.0, 12.0, 14.0]).all(|(a, b)| is_close(*a, b)));
    let arrivals: Vec<&[DeviceId]> = trained(&fixed).iter().map(|row| &row.participants[..]).collect();
    assert_eq!(arrivals[..2], [[2, 0, 1], [1, 2, 0]].map(|round| round.map(DeviceId)));
    // Columns may have any order, and without a column for rounds all rounds have the same times.
    let same_times = traced_outcome("same", "time, client\n1, 0\n2.5, 1\n0.5, 2\n", "");
    assert!(durations(&same_times).iter().all(|time| is_close(*time, 2.5)));
}

/// The rounds of the initialisation use the first rounds of the trace, so training starts at a later round of
/// the trace.
#[test]
fn trace_counts_the_exchanges_of_the_start() {
    let rows = "client,round,time\n0,1,1\n1,1,1\n2,1,1\n0,2,7\n1,2,7\n2,2,7\n0,3,5\n1,3,5\n2,3,5\n";
    let folder = directory_with_trace("start", rows, "");
    let text = std::fs::read_to_string(folder.join("my.toml")).unwrap();
    let changes = ["model.init=power", "model.power_iterations=1"].map(str::to_owned);
    let scenario = Scenario::parse(&folder.join("my.toml").display().to_string(), &text, &changes).unwrap();
    let outcome = try_run(&scenario, 1).unwrap();
    let starts = [1.0, 8.0].iter().position(|time| is_close(outcome.rounds[0].time, *time)).unwrap() + 1;
    let expected = [1.0, 7.0, 5.0].iter().cycle().skip(starts);
    assert!(durations(&outcome).iter().zip(expected).all(|(a, b)| is_close(*a, *b)));
}

#[test]
fn unusable_traces_are_refused() {
    for (name, trace, parts) in [
        ("nothing", "client,time\n", &["no rows"][..]),
        ("header", "client,round\n0,1\n", &["no column \"time\""]),
        ("stranger", "client,time,colour\n0,1,red\n", &["\"colour\"", "client, round, time"]),
        ("short", "client,time\n0,1\n1\n", &["line: 3", "1 fields"]),
        ("client", "client,time\n0,1\n3,1\n", &["line 3", "column client", "\"3\"", "from 0 to 2"]),
        ("word", "client,time\nme,1\n", &["line 2", "column client", "\"me\""]),
        ("round", "client,round,time\n0,0,1\n", &["line 2", "column round", "\"0\"", "from 1"]),
        ("negative", "client,time\n0,-1\n", &["line 2", "column time", "\"-1\"", "finite number from 0"]),
        ("nan", "client,time\n0,1\n1,NaN\n", &["line 3", "column time", "\"NaN\""]),
        ("infinite", "client,time\n0,inf\n", &["line 2", "\"inf\""]),
        ("twice", "client,round,time\n0,1,1\n1,1,1\n0,1,2\n", &["line 4", "client 0", "round 1", "already"]),
        ("who", "client,time\n0,1\n2,1\n", &["client 1", "round 1", "all 3 clients"]),
        ("gap", "client,round,time\n0,1,1\n1,1,1\n2,1,1\n0,9999999,1\n", &["client 0 in round 2", "9999999"]),
    ] {
        let folder = directory_with_trace(name, trace, "");
        let output = run_program(&folder, &["run", "my.toml", "--out", "out"]);
        assert_eq!(exit_code(&output), 2, "{name}: {}", stderr_text(&output));
        let reported = stderr_text(&output);
        assert!(reported.lines().count() == 1 && reported.contains("trace.csv"), "{name}: {reported}");
        assert!(!folder.join("out").exists(), "{name}: files were written");
        assert!(parts.iter().all(|part| reported.contains(part)), "{name}: {reported}");
    }
    let folder = directory_with_trace("absent", "", "");
    std::fs::remove_file(folder.join("trace.csv")).unwrap();
    assert!(stderr_text(&run_program(&folder, &["run", "my.toml"])).contains("trace.csv"));
}

proptest! {
    /// A trace with any content is accepted or refused without a panic.
    #[test]
    fn damaged_traces_never_panic(rows in "[0-3,.e\\n\"x-]{0,80}") {
        let folder = directory_with_trace("any", &format!("client,round,time\n{rows}"), "");
        let text = std::fs::read_to_string(folder.join("my.toml")).unwrap();
        let file = folder.join("my.toml").display().to_string();
        let scenario = Scenario::parse(&file, &text, &[]).unwrap();
        let _ = Job::prepare(&scenario, 1);
    }
}

#[test]
fn recorded_times_are_reproduced() {
    let times = Times::from_table(BTreeMap::from([((0, 1), 1.5), ((1, 2), 3.0)]));
    assert_eq!(
        (times.time(0, 1, &ONE), times.time(1, 2, &ONE), times.time(1, 1, &ONE)),
        (1.5, 3.0, f64::INFINITY)
    );
}

/// A device without a compute time never sends an update. The run fails if a round needs more devices than
/// have compute times.
#[test]
fn devices_without_times_never_answer() {
    let run = |first: &str| {
        let policy = format!("participation={{ policy = \"doubling\", n0 = {first}, schedule = \"fixed\" }}");
        let scenario = scenario(LINEAR, &[&policy]);
        let times_seen =
            (1..=6).flat_map(|round| (0..3).map(move |client| ((client, round), f64::from(round))));
        Job::prepare(&scenario, 1)
            .unwrap()
            .with_times(Times::from_table(times_seen.collect()))
            .run(&mut NoProgress)
    };
    let outcome = run("3").unwrap();
    assert!(durations(&outcome).iter().zip(1..).all(|(time, round)| is_close(*time, f64::from(round))));
    assert!(
        trained(&outcome)
            .iter()
            .all(|row| row.participants == [0, 1, 2].map(DeviceId) && row.cohort.len() == 12)
    );
    assert!(matches!(run("4"), Err(RunError::Silent)));
}

/// With correlated speeds, a client with more samples is slower, and clients with the same classes have
/// similar speeds.
#[test]
fn speed_follows_the_data_on_request() {
    let sizes = ["fleet.speed=exponential", "fleet.correlation=samples", "data.sizes=log-normal"];
    let (by_samples, dataset) = times(LINEAR, &sizes, 3);
    let mut pairs: Vec<(usize, f64)> = (0..12)
        .map(|client| (dataset.clients[client].train.len(), by_samples.time(client, 1, &ONE)))
        .collect();
    pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
    assert!(pairs.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{pairs:?}");
    assert!(pairs[0].0 < pairs[11].0);

    let digits = Scenario::built_in("digits").unwrap();
    let (by_task, dataset) = times(digits, &["fleet.speed=uniform", "fleet.correlation=task"], 3);
    let classes = |client: usize| match &dataset.clients[client].train.y {
        Labels::Classes(classes) => classes.iter().map(|c| f64::from(*c)).sum::<f64>() / classes.len() as f64,
        Labels::Values { .. } | Labels::Absent(_) => panic!("digits are classes"),
    };
    let mut pairs: Vec<(f64, f64)> =
        (0..dataset.clients.len()).map(|client| (classes(client), by_task.time(client, 1, &ONE))).collect();
    pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
    assert!(pairs.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{pairs:?}");

    // Correlation only assigns the times to other clients; the set of times is the same.
    for change in ["fleet.correlation=task", "fleet.correlation=samples"] {
        let sorted = |changes: &[&str]| {
            let (times, _) = times(LINEAR, changes, 3);
            let mut times_in_order: Vec<f64> = (0..12).map(|client| times.time(client, 1, &ONE)).collect();
            times_in_order.sort_by(f64::total_cmp);
            times_in_order
        };
        let two_class = ["fleet.speed=two-class", "fleet.slow_fraction=0.25"];
        assert_eq!(sorted(&two_class), sorted(&[&two_class[..], &[change]].concat()));
    }
}

/// If fast devices have similar tasks, their tasks span few directions. A stage of fast devices then ends
/// farther from the true representation.
#[test]
fn fast_devices_have_similar_regression_tasks() {
    let runs = |changes: &[&str]| -> f64 {
        let fixed =
            ["participation.schedule=\"fixed\"", "participation.stage_rounds=30", "algorithm.rounds=30"];
        let text = Scenario::built_in("srpfl-figure-8-correlated").unwrap();
        let final_distance = |seed| {
            let outcome = try_run(&scenario(text, &[&fixed[..], changes].concat()), seed).unwrap();
            outcome.scores.distance.unwrap()
        };
        (1..=8).map(final_distance).sum::<f64>() / 8.0
    };
    let (correlated_runs, uncorrelated_runs) = (runs(&[]), runs(&["fleet.correlation=none"]));
    assert!(correlated_runs > 1.5 * uncorrelated_runs, "{correlated_runs} {uncorrelated_runs}");
}

/// A device that drops out of a round does not participate in this round. The frequency of dropouts matches
/// the configured probability.
#[test]
fn dropout_rate_equals_the_probability() {
    for probability in [0.0, 0.2, 0.7] {
        let drop = format!("fleet.dropout={probability}");
        let outcome = outcome(&["data.clients=100", "algorithm.rounds=40", &drop], 2);
        let requested: usize = trained(&outcome).iter().map(|row| row.cohort.len()).sum();
        let counted: usize = trained(&outcome).iter().map(|row| row.participants.len()).sum();
        assert_eq!(requested, 4000);
        // The tolerance is four standard deviations of a binomial variable.
        let tolerance = 4.0 * (probability * (1.0 - probability) / 4000.0f64).sqrt();
        let lost = 1.0 - counted as f64 / requested as f64;
        assert!((lost - probability).abs() <= tolerance, "{probability}: {lost}");
        assert_eq!(outcome.counters.declined, (requested - counted) as u64);
        assert_eq!((outcome.counters.rejected(), outcome.counters.late), (0, 0));
    }
}

/// A device that drops out is replaced by the next device that sends an update, and the round lasts until
/// this update.
#[test]
fn next_arrival_replaces_a_dropout() {
    let doubling =
        "participation={ policy = \"doubling\", n0 = 4, schedule = \"fixed\", stage_rounds = 100 }";
    let changes = ["fleet.speed=exponential", "fleet.dropout=0.3", "algorithm.rounds=30", doubling];
    let outcome = outcome(&changes, 5);
    let (times, _) = times(LINEAR, &changes, 5);
    let mut by_time: Vec<DeviceId> = (0..12).map(DeviceId).collect();
    by_time.sort_by(|a, b| times.time(a.0 as usize, 1, &ONE).total_cmp(&times.time(b.0 as usize, 1, &ONE)));
    let mut replaced = 0;
    for (row, duration) in trained(&outcome).iter().zip(durations(&outcome)) {
        assert_eq!(row.participants.len(), 4);
        let slowest = *row.participants.last().unwrap();
        assert!(
            is_close(duration, times.time(slowest.0 as usize, 1, &ONE)),
            "the round did not last until the slowest counted answer"
        );
        let rank = by_time.iter().position(|id| *id == slowest).unwrap();
        replaced += usize::from(rank > 3);
        // Participants are in the order of their compute times, and devices that dropped out are missing.
        let ranks: Vec<usize> = row
            .participants
            .iter()
            .map(|id| by_time.iter().position(|client| client == id).unwrap())
            .collect();
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]));
    }
    assert!(replaced > 5, "{replaced}");
}

/// A round in which all devices drop out is repeated until a device sends an update. The simulated time
/// includes computation and communication of all attempts.
#[test]
fn rounds_without_answers_are_repeated() {
    let changes = ["data.clients=2", "fleet.dropout=0.9", "fleet.communication=10", "algorithm.rounds=20"];
    let outcome = outcome(&changes, 1);
    assert_eq!(trained(&outcome).len(), 20);
    assert!(outcome.counters.repeated > 20, "{}", outcome.counters.repeated);
    let tries = 20 + outcome.counters.repeated;
    assert!(
        is_close(outcome.rounds[20].time, tries as f64 * 11.0),
        "a repeated round did not take one computation and the communication"
    );
}

/// A fleet without samples fails immediately even with dropouts, because devices without samples are not a
/// temporary condition.
#[test]
fn fleet_without_samples_fails_with_dropouts() {
    for dropout in ["fleet.dropout=0", "fleet.dropout=0.2"] {
        let failed = try_run(&scenario(LINEAR, &["data.samples=0", dropout]), 1).unwrap_err();
        assert!(failed.to_string().contains("no client is left to train"), "{dropout}: {failed}");
    }
}

/// Outcome of a run of 20 rounds with changes of the link.
fn with_link(changes: &[&str], seed: u64) -> Outcome {
    outcome(&[&["algorithm.rounds=20"], changes].concat(), seed)
}

/// The transfer time is the number of bytes divided by the bandwidth. The bytes are those of the encoded
/// frames, up to the escaping of zeros.
#[test]
fn round_time_is_computation_plus_transfer() {
    for (features, chunked) in [("data.d=6", false), ("data.d=200", true)] {
        let link = with_link(&[features, "fleet.bandwidth=1000", "fleet.communication=3"], 1);
        for (row, duration) in trained(&link).iter().zip(durations(&link)) {
            // Bytes of each of 12 clients, divided by the bandwidth of 1000. A round also takes time 1 for
            // the computation and time 3 for communication. The transfer time does not contain
            // acknowledgements, which have at most 9 bytes.
            let expected = (row.bytes_up + row.bytes_down) as f64 / 12.0 / 1000.0;
            let transfer = duration - 4.0;
            assert!(
                transfer > expected - 0.012 && transfer < 1.005 * expected + 0.003,
                "{transfer} {expected}"
            );
            assert_eq!(transfer > 1.0, chunked, "{transfer}");
        }
    }
    let without_bandwidth = with_link(&["fleet.communication=3"], 1);
    assert!(durations(&without_bandwidth).iter().all(|duration| is_close(*duration, 4.0)));
    // Results and numbers of bytes do not depend on the link.
    let link = with_link(&["fleet.bandwidth=1000"], 1);
    assert_eq!(link.representation, without_bandwidth.representation);
    assert_eq!(link.bytes, without_bandwidth.bytes);
}

/// On average, a loss rate p multiplies transfer times by 1 / (1 - p). Losses are drawn in each round.
#[test]
fn lost_frames_are_retransmitted() {
    let transfer_time = |changes: &[&str]| {
        let mut all_changes =
            vec!["data.clients=1", "algorithm.rounds=2000", "fleet.bandwidth=100", "evaluate_every=2000"];
        all_changes.extend(changes);
        let outcome = outcome(&all_changes, 1);
        outcome.rounds.last().unwrap().time - 2000.0
    };
    let (without_loss, with_loss) = (transfer_time(&[]), transfer_time(&["fleet.loss=0.5"]));
    assert!((with_loss / without_loss - 2.0).abs() < 0.1, "{}", with_loss / without_loss);
    let spread = with_link(&["fleet.bandwidth=100", "fleet.loss=0.5"], 1);
    assert!(durations(&spread).windows(2).any(|pair| !is_close(pair[0], pair[1])));
}

/// With `fleet.bandwidth_spread`, the bandwidths of devices vary around the median and are the same in every
/// round.
#[test]
fn links_differ_between_devices_not_between_rounds() {
    let same_bandwidth = with_link(&["fleet.bandwidth=100"], 1);
    let spread = with_link(&["fleet.bandwidth=100", "fleet.bandwidth_spread=1"], 1);
    let order =
        |outcome: &Outcome| trained(outcome).iter().map(|r| r.participants.clone()).collect::<Vec<_>>();
    assert!(
        order(&same_bandwidth).iter().all(|row| row.iter().copied().eq((0..12).map(DeviceId))),
        "equally fast clients answered in another order"
    );
    let order = order(&spread);
    assert!(order.iter().all(|row| *row == order[0]) && !order[0].iter().copied().eq((0..12).map(DeviceId)));
    assert!(
        durations(&spread)[0] > durations(&same_bandwidth)[0],
        "the slowest of twelve was not slower than the median"
    );
}

#[test]
fn sample_counts_follow_their_distribution() {
    let lengths = |changes: &[&str]| -> Vec<usize> {
        let dataset = scenario(LINEAR, changes).dataset(2).unwrap();
        dataset.clients.iter().map(|client| client.train.len()).collect()
    };
    assert!(lengths(&[]).iter().all(|length| *length == 8));
    let uniform = lengths(&["data.clients=200", "data.sizes=uniform"]);
    assert_eq!((uniform.iter().min(), uniform.iter().max()), (Some(&8), Some(&12)));
    let log_normal = lengths(&["data.clients=200", "data.sizes=log-normal", "data.size_sigma=2"]);
    assert!(log_normal.iter().all(|length| *length > 0) && log_normal.iter().any(|length| *length > 40));
    // Fresh batches have the same sizes as the first batch.
    let fresh_batches = scenario(LINEAR, &["data.sizes=uniform", "data.fresh=true"]).dataset(2).unwrap();
    assert!(fresh_batches.clients.iter().any(|client| client.train.len() > 8));
    try_run(&scenario(LINEAR, &["data.sizes=uniform", "data.fresh=true", "algorithm.weighting=samples"]), 2)
        .unwrap();
}

/// With all options of heterogeneity together, results with one thread and with two threads are equal, bit
/// for bit.
#[test]
fn results_do_not_depend_on_threads() {
    let folder = empty_directory("heterogeneity-threads");
    let run = |threads: &str| {
        let sets = [
            "algorithm.rounds=30",
            "fleet.dropout=0.2",
            "fleet.bandwidth=500",
            "fleet.bandwidth_spread=0.5",
            "fleet.loss=0.1",
            "fleet.speed=exponential-dynamic",
            "fleet.correlation=task",
            "data.sizes=log-normal",
        ];
        let arguments = ["run", "stragglers", "--out", threads, "--threads", threads];
        let arguments: Vec<&str> =
            arguments.into_iter().chain(sets.iter().flat_map(|set| ["--set", *set])).collect();
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let file = |name: &str| std::fs::read(folder.join(threads).join(name)).unwrap();
        (file("rounds.jsonl"), file("model/representation.npy"))
    };
    assert!(run("1") == run("2"));
}

/// The built-in scenarios of the papers' figures can be run with the policies and communication costs of the
/// figures.
#[test]
fn paper_scenarios_run() {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, ..)| *name).collect();
    let figures: Vec<&&str> =
        names.iter().filter(|name| name.starts_with("srpfl-") || **name == "flanp").collect();
    assert_eq!(figures.len(), 10);
    for name in figures {
        let text = Scenario::built_in(name).unwrap();
        for (policy, communication) in [("", "fleet.communication=0"), (" full", "fleet.communication=10")] {
            let mut changes = vec!["algorithm.rounds=4", communication];
            if !policy.is_empty() {
                changes.push("participation={ policy = \"full\" }");
            }
            let outcome = try_run(&scenario(text, &changes), 1).unwrap();
            assert!(outcome.rounds.len() > 1 && outcome.rounds.last().unwrap().time > 0.0, "{name}");
        }
    }
}

/// The commands in the headers of the scenarios of the papers' figures are valid.
#[test]
fn commands_in_scenario_headers_work() {
    let folder = empty_directory("headers");
    for (name, _, text) in BUILT_IN.iter().filter(|(name, ..)| name.starts_with("srpfl-") || *name == "flanp")
    {
        let command = text.lines().find_map(|line| line.strip_prefix("# fedspan-sim ")).unwrap();
        assert!(command.starts_with(&format!("compare {name} ")), "{command}");
        let mut arguments: Vec<&str> = Vec::new();
        for (index, part) in command.split('\'').enumerate() {
            if index % 2 == 1 {
                arguments.push(part);
            } else {
                arguments.extend(part.split_whitespace());
            }
        }
        arguments.extend(["--set", "algorithm.rounds=2", "--out", name]);
        let output = run_program(&folder, &arguments);
        assert_eq!(exit_code(&output), 0, "{name}: {}", stderr_text(&output));
    }
}
