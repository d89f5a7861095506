//! Tests of networks in the simulator: transmitted data, scored models, diverging runs, and accepted
//! settings.

use crate::common::{empty_directory, exit_code, run_program, stderr_text, stdout_text};
use fedspan_engine::DeviceId;
use fedspan_engine::config::names_for_model;
use fedspan_protocol::tensor::Role;
use fedspan_sim_core::data::Labels;
use fedspan_sim_core::run::{NoProgress, Outcome, RoundRow, RunError, run};
use fedspan_sim_core::scenario::Scenario;

/// Creates the scenario of the tests: digits with two classes per client, a small network, and a few rounds.
fn scenario(changes: &[&str]) -> Result<Scenario, String> {
    let small_model = ["model.hidden=[16]", "algorithm.rounds=12", "evaluate_every=1"];
    let changes: Vec<String> = small_model.iter().chain(changes).map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in("digits-network").unwrap();
    Scenario::parse("digits-network", text, &changes).map_err(|problem| problem.to_string())
}

/// Creates the scenario of the tests with three rounds and the network of the built-in scenario or of
/// `changes`.
fn scenario_with(changes: &[&str]) -> Result<Scenario, String> {
    let small = ["algorithm.rounds=3"].iter().chain(changes).map(|change| (*change).to_owned());
    let text = Scenario::built_in("digits-network").unwrap();
    Scenario::parse("digits-network", text, &small.collect::<Vec<_>>()).map_err(|problem| problem.to_string())
}

/// Runs the scenario of [`scenario_with`].
fn outcome_of(changes: &[&str]) -> Result<Outcome, String> {
    run(&scenario_with(changes)?, 1, &mut NoProgress).map_err(|error| error.to_string())
}

/// Runs the scenario of [`scenario`].
fn outcome(changes: &[&str]) -> Outcome {
    run(&scenario(changes).unwrap(), 1, &mut NoProgress).unwrap()
}

/// Change of the scenario that sets the algorithm.
fn set_algorithm(name: &str) -> String {
    format!("algorithm.name=\"{name}\"")
}

/// Only shared layers are sent and contribute to the number of bytes.
#[test]
fn only_shared_layers_are_sent() {
    let (body, head) = (65 * 16, 17 * 10);
    for (name, roles, values) in [
        ("fedrep", vec![Role::Representation], body),
        ("fedper", vec![Role::Representation], body),
        ("fedavg", vec![Role::Representation, Role::SharedHead], body + head),
        ("lg-fedavg", vec![Role::SharedHead], head),
        ("local-only", vec![], 0),
    ] {
        let outcome = outcome(&[&set_algorithm(name), "algorithm.lg-fedavg.shared_layers=1"]);
        let travelled: Vec<Role> = outcome.layers.iter().map(|layer| layer.role).collect();
        assert_eq!(travelled, roles, "{name}");
        for row in &outcome.rounds[1..] {
            let bytes_per_client = row.bytes_up / row.participants.len() as u64;
            // The tolerance is for frame headers of a few bytes.
            assert!(
                (4 * values..4 * values + 40 + 4 * values / 10).contains(&bytes_per_client),
                "{name}: {bytes_per_client}"
            );
        }
    }
}

/// A client that never participated is scored with the shared body and its initial head, which is zero.
#[test]
fn unasked_clients_are_scored_with_the_shared_body_and_a_zero_head() {
    let outcome = outcome(&["algorithm.rounds=1", "participation.r=0.05"]);
    let [_, round] = &outcome.rounds[..] else { panic!("one round") };
    let [participant] = round.participants[..] else { panic!("one client") };
    for (number, client) in (0..).map(DeviceId).zip(&outcome.clients) {
        assert_eq!(number == participant, client.head.iter().any(|value| *value != 0.0), "{number}");
        if number != participant {
            assert!((client.loss - 10f64.ln()).abs() < 1e-6);
        }
    }
    // In the final fit all clients train a head.
    assert!(outcome.tuned.iter().all(|client| client.head.iter().any(|value| *value != 0.0)));
}

/// A shared network is scored before and after each client fine-tuned its head. The scores of an algorithm
/// with `+ft` are those after fine-tuning.
#[test]
fn scores_name_the_scored_model() {
    let plain = outcome(&[&set_algorithm("fedavg")]);
    let tuned = outcome(&[&set_algorithm("fedavg+ft")]);
    let accuracy = |clients: &[fedspan_sim_core::evaluate::ClientScore]| {
        clients.iter().filter_map(|client| client.accuracy).sum::<f64>() / clients.len() as f64
    };
    assert_eq!(plain.scores.accuracy, Some(accuracy(&plain.clients)));
    assert_eq!(tuned.scores.accuracy, Some(accuracy(&plain.tuned)));
    assert_eq!(plain.layers, tuned.layers);
    assert!(plain.clients.windows(2).all(|pair| pair[0].head == pair[1].head));
    assert!(plain.tuned.windows(2).any(|pair| pair[0].head != pair[1].head));
    assert!(accuracy(&plain.tuned) > accuracy(&plain.clients));
}

/// Newcomers of an algorithm without a shared body train all layers. With as many labels as training clients
/// have, their accuracy is the same.
#[test]
fn newcomers_without_a_body_train_all_layers() {
    let newcomer_changes = ["split.holdout_clients=5", "split.labels_per_class=0", "algorithm.rounds=40"];
    for name in ["lg-fedavg", "local-only"] {
        let outcome = outcome(&[&[&*set_algorithm(name)], &newcomer_changes[..]].concat());
        let accuracy = fedspan_sim_core::evaluate::average(&outcome.newcomers).accuracy.unwrap();
        let final_accuracy = outcome.scores.accuracy.unwrap();
        assert!(
            (accuracy - final_accuracy).abs() < 0.05 && accuracy > 0.85,
            "{name}: {accuracy} {final_accuracy}"
        );
    }
    let folder = empty_directory("network-newcomers");
    let sets: Vec<&str> = newcomer_changes.iter().flat_map(|change| ["--set", *change]).collect();
    let words = ["run", "digits-network", "--format", "json", "--set", "algorithm.name=\"local-only\""];
    let reported = stdout_text(&run_program(&folder, &[&words[..], &sets].concat()));
    assert!(reported.contains("\"scored_new_clients\": \"the newcomer's own network"), "{reported}");
    assert!(reported.contains("\"accuracy_new_clients\""), "{reported}");
}

/// With two classes per client, personal networks are more accurate than a shared network for each of three
/// seeds.
#[test]
fn personal_heads_win_on_heterogeneous_clients() {
    for seed in 1..=3 {
        let right = |name: &str| {
            let scenario =
                scenario(&[&set_algorithm(name), "algorithm.rounds=40", "evaluate_every=40"]).unwrap();
            run(&scenario, seed, &mut NoProgress).unwrap().scores.accuracy.unwrap()
        };
        let (personal, shared) = (right("fedrep"), right("fedavg"));
        assert!(personal > 0.9 && personal > shared + 0.05, "seed {seed}: {personal} {shared}");
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let folder = empty_directory("network-threads");
    for threads in ["1", "2"] {
        let arguments = ["run", "digits-network", "--set", "algorithm.rounds=6", "--threads", threads];
        let output = run_program(&folder, &[&arguments[..], &["--out", threads]].concat());
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    }
    for file in ["rounds.jsonl", "clients.csv", "model/layer-0.npy", "model/heads.npy"] {
        let read = |threads: &str| std::fs::read(folder.join(threads).join(file)).unwrap();
        assert!(read("1") == read("2") && !read("1").is_empty(), "{file}");
    }
}

/// Every algorithm trains convolutional and recurrent networks, on images and on raw windows of motion
/// signals.
#[test]
fn every_algorithm_trains_convolutions_and_lstm_cells() {
    let filters = "model={ kind = \"cnn\", filters = [4, 3], side = 3, pool = 1, hidden = [8] }";
    let cells = "model={ kind = \"lstm\", cells = 6, hidden = [8] }";
    let model = scenario_with(&[filters]).unwrap().model;
    for (model, name) in names_for_model(&model).into_iter().flat_map(|name| [(filters, name), (cells, name)])
    {
        let result =
            run(&scenario_with(&[model, &set_algorithm(name)]).unwrap(), 1, &mut NoProgress).unwrap();
        assert!(
            result.diverged.is_none() && result.scores.accuracy.unwrap() > 0.1,
            "{model}, {name}: {:?}",
            result.scores
        );
    }
    let text = Scenario::built_in("watch-signal").unwrap();
    for change in ["model.side=3", "model={ kind = \"lstm\", cells = 8 }"] {
        let changes = ["algorithm.rounds=2".to_owned(), change.to_owned()];
        let result =
            run(&Scenario::parse("watch-signal", text, &changes).unwrap(), 1, &mut NoProgress).unwrap();
        assert!(result.scores.accuracy.unwrap() > 1.0 / 7.0, "{change}");
    }
}

/// Change of the scenario: low-rank adapter of rank 2 without a base network.
const ADAPTER: &str = "model={ kind = \"lora-mlp\", rank = 2, width = 12 }";

/// Only the factors that a round trains are sent. Algorithms that average both factors report the
/// interference.
#[test]
fn adapters_send_only_trained_factors() {
    let (down, up) = (64 * 2, 2 * 12);
    for (name, trained, received_values) in [
        ("rolora", [up, down, up], [down + up, up, down]),
        ("ffa-lora", [up, up, up], [down + up, up, up]),
        ("lora", [down + up; 3], [down + up; 3]),
        ("flexlora", [down + up; 3], [down + up; 3]),
    ] {
        let outcome = outcome_of(&[ADAPTER, &set_algorithm(name)]).unwrap();
        let roles: Vec<Role> = outcome.layers.iter().map(|layer| layer.role).collect();
        assert_eq!(roles, [Role::AdapterDown, Role::AdapterUp], "{name}");
        for (number, row) in outcome.rounds[1..].iter().enumerate() {
            let per_client = |bytes: u64| bytes / row.participants.len() as u64;
            let around = |values: u64| 4 * values..4 * values + 120;
            assert!(around(trained[number]).contains(&per_client(row.bytes_up)), "{name}: {row:?}");
            // A client that did not participate in the previous round receives both factors.
            let max_bytes = around(down + up).end;
            assert!(
                (4 * received_values[number]..max_bytes).contains(&per_client(row.bytes_down)),
                "{name}: {row:?}"
            );
            let interference = row.interference.unwrap();
            assert_eq!(interference > 0.0, name == "lora" || name == "flexlora", "{name}: {interference}");
        }
    }
    // With full participation, RoLoRA sends half as many values as LoRA from the second round on.
    let full_participation = "participation={ policy = \"full\" }";
    let lora =
        outcome_of(&[ADAPTER, &set_algorithm("lora"), full_participation, "algorithm.rounds=6"]).unwrap();
    let half =
        outcome_of(&[ADAPTER, &set_algorithm("rolora"), full_participation, "algorithm.rounds=6"]).unwrap();
    let sum = |outcome: &Outcome, value: &dyn Fn(&RoundRow) -> u64| -> f64 {
        outcome.rounds[3..].iter().map(value).sum::<u64>() as f64
    };
    for value in
        [&|row: &RoundRow| row.bytes_up, &|row: &RoundRow| row.bytes_down] as [&dyn Fn(&RoundRow) -> u64; 2]
    {
        let part = sum(&half, value) / sum(&lora, value);
        assert!((0.4..0.6).contains(&part), "{part}");
    }
}

/// Changes of the scenario for clients of different speeds, of which the verified schedule waits for the fastest.
const VERIFIED: [&str; 4] = [
    "fleet.speed=\"exponential\"",
    "fleet.communication=0.0",
    "participation={ policy = \"doubling\", n0 = 4, schedule = \"verified\" }",
    "evaluate_every=1",
];

/// Numbers of the clients that took part in each round.
fn participants(outcome: &Outcome) -> Vec<usize> {
    outcome.rounds[1..].iter().map(|row| row.participants.len()).collect()
}

/// With the verified schedule, networks reach the accuracy that full participation ends with in two thirds of its time.
#[test]
fn verified_schedule_is_faster_than_full_participation() {
    for algorithm in ["fedavg", "fedprox"] {
        let name = set_algorithm(algorithm);
        let with = |rounds: &str, participation: &[&str]| {
            let classes = ["data.partition.classes=5", name.as_str(), rounds];
            let changes: Vec<&str> =
                VERIFIED.iter().copied().chain(classes).chain(participation.iter().copied()).collect();
            outcome(&changes)
        };
        let full = with("algorithm.rounds=40", &["participation={ policy = \"full\" }"]);
        let verified = with("algorithm.rounds=300", &[]);
        let accuracy = |row: &RoundRow| row.scores.as_ref().and_then(|scores| scores.accuracy).unwrap();
        let last = full.rounds.last().unwrap();
        let reached = verified.rounds.iter().find(|row| accuracy(row) >= accuracy(last));
        let time = reached.map(|row| row.time);
        assert!(time.is_some_and(|time| 1.5 * time < last.time), "{algorithm}: {time:?}, full {}", last.time);
    }
}

/// RoLoRA trains its factors in alternate rounds, so both rounds of a cycle wait for as many clients. Other
/// algorithms decide in every round.
#[test]
fn verified_schedule_decides_once_per_cycle_of_factors() {
    for (name, alternates) in [("rolora", true), ("lora", false), ("ffa-lora", false)] {
        let name = set_algorithm(name);
        let changes: Vec<&str> = [ADAPTER, name.as_str(), "algorithm.rounds=60", "data.partition.classes=5"]
            .into_iter()
            .chain(VERIFIED)
            .collect();
        let numbers = participants(&outcome_of(&changes).unwrap());
        let (cycles, _) = numbers.as_chunks::<2>();
        assert!(numbers.iter().any(|number| *number < 20), "{name}: {numbers:?}");
        assert_eq!(cycles.iter().all(|[first, second]| first == second), alternates, "{name}: {numbers:?}");
    }
}

/// Combinations of an adapter with an unsupported option are refused.
#[test]
fn adapters_refuse_other_algorithms() {
    for (changes, expected) in [
        (vec![ADAPTER, "algorithm.name=\"fedrep\""], "\"fedrep\" needs"),
        (vec!["algorithm.name=\"rolora\""], "\"rolora\" needs"),
        (vec!["model={ kind = \"lora-mlp\", rank = 0, width = 4 }", "algorithm.name=\"lora\""], "1 to 4096"),
        (vec!["model={ kind = \"lora-mlp\", width = 4 }", "algorithm.name=\"lora\""], "rank"),
        (
            vec!["model={ kind = \"lora-mlp\", rank = 1, width = 4, frozen = 5 }", "algorithm.name=\"lora\""],
            "has checksum 0x00000000",
        ),
    ] {
        let reported = outcome_of(&changes).unwrap_err();
        assert!(reported.contains(expected), "{changes:?}: {reported}");
    }
}

/// Convolutions and the following layers are sent as layers with the sizes of the specification.
#[test]
fn filters_are_sent_as_layers() {
    let image = "model={ kind = \"cnn\", filters = [4, 3], side = 3, pool = 2, hidden = [8] }";
    let reported = outcome_of(&[image]).unwrap_err();
    assert!(reported.contains("leave nothing of an image of 3 rows of 3 pixels"), "{reported}");
    let image = image.replace("pool = 2", "pool = 1");
    let outcome = outcome_of(&[&image]).unwrap();
    let sizes: Vec<(u16, u16)> = outcome.layers.iter().map(|layer| (layer.rows, layer.cols)).collect();
    assert_eq!(sizes, [(9 + 1, 4), (9 * 4 + 1, 3), (4 * 4 * 3 + 1, 8)]);
}

/// Training ends if a loss is not finite. The message contains the client, and the results of earlier rounds
/// are kept.
#[test]
fn diverged_run_names_client_and_keeps_results() {
    let folder = empty_directory("network-diverges");
    let diverging = ["run", "digits-network", "--set", "algorithm.step_size=1e6", "--out", "results"];
    let output = run_program(&folder, &diverging);
    assert_eq!(exit_code(&output), 1);
    let reported = stderr_text(&output);
    assert!(reported.contains("round 1 of digits-network, seed 1: the loss of client"), "{reported}");
    assert!(reported.contains("finished results are in results"), "{reported}");
    let summary = std::fs::read_to_string(folder.join("results/summary.json")).unwrap();
    assert!(summary.contains("\"diverged\": {") && summary.contains("\"round\": 1"), "{summary}");
    let rounds = std::fs::read_to_string(folder.join("results/rounds.jsonl")).unwrap();
    assert!(rounds.lines().next().unwrap().contains("\"accuracy\""));
}

/// Divergence is detected in every algorithm, and the results of earlier rounds are kept. Divergence may
/// appear as a declined round, as an update above the norm bound, or as a body that is not finite.
#[test]
fn every_diverged_algorithm_keeps_its_results() {
    for (name, momentum) in [("fedprox", "0.5"), ("scaffold", "0.0"), ("ditto", "0.5"), ("lg-fedavg", "0.5")]
    {
        let changes =
            [&*set_algorithm(name), "algorithm.step_size=1e6", &*format!("algorithm.momentum={momentum}")];
        let outcome = outcome(&changes);
        let diverged = outcome.diverged.unwrap_or_else(|| panic!("{name}"));
        assert!(diverged.client < 20 && diverged.round <= 12, "{name}: {diverged:?}");
        assert!(outcome.scores.accuracy.is_some() && outcome.scores.loss.unwrap().is_finite(), "{name}");
        assert_eq!(outcome.clients.len(), 20);
    }
    // Newcomers, which train after the divergence, have finite results as well.
    let changes = [&*set_algorithm("lg-fedavg"), "algorithm.step_size=1e6", "split.holdout_clients=5"];
    let outcome = outcome(&changes);
    assert!(outcome.diverged.is_some());
    assert!(outcome.newcomers.len() == 5 && outcome.newcomers.iter().all(|client| client.loss.is_finite()));
}

/// If a run ends early, the scores are still those of the model without fine-tuning.
#[test]
fn early_end_does_not_change_the_scored_model() {
    let stopped_outcome =
        |evaluate: &str| outcome(&[&set_algorithm("fedavg"), "stop.simulated_time=5.0", evaluate]);
    let (evaluated_often, evaluated_rarely) =
        (stopped_outcome("evaluate_every=1"), stopped_outcome("evaluate_every=1000"));
    assert_eq!((evaluated_often.rounds.len(), evaluated_rarely.rounds.len()), (6, 6));
    assert_eq!(evaluated_often.scores, evaluated_rarely.scores);
    assert_eq!(evaluated_often.rounds.last(), evaluated_rarely.rounds.last());
    assert_ne!(evaluated_often.clients, evaluated_often.tuned);
}

#[test]
fn clients_with_one_class_or_one_sample_take_part() {
    let changes = ["data.partition.classes=1", "participation={ policy = \"full\" }"];
    let dataset = scenario(&changes).unwrap().dataset(1).unwrap();
    let single_class = outcome(&changes);
    assert_eq!(single_class.counters.rejected() + single_class.counters.declined, 0);
    let mut single_class_clients = 0;
    for (client, score) in dataset.clients.iter().zip(&single_class.clients) {
        let Labels::Classes(classes) = &client.train.y else { panic!("classes") };
        if classes.windows(2).all(|pair| pair[0] == pair[1]) {
            single_class_clients += 1;
            assert_eq!(score.accuracy, Some(1.0));
        }
    }
    assert!(single_class_clients > 5, "{single_class_clients}");
    let few_samples = outcome(&["data.partition.clients=400", "algorithm.batch=64"]);
    assert_eq!(few_samples.counters.rejected() + few_samples.counters.declined, 0);
}

#[test]
fn paper_table_has_a_row_for_each_algorithm() {
    let folder = empty_directory("network-compare");
    let small_run = ["--set", "algorithm.rounds=2", "--set", "model.hidden=[8]", "--seeds", "2"];
    let words = ["compare", "digits-network", "digits-network,data.partition.classes=5"];
    let methods = ["--algorithms", "fedrep,fedavg,local-only"];
    let output = run_program(&folder, &[&words[..], &methods, &small_run].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let table = stdout_text(&output);
    let rows: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let rule = rows.iter().position(|row| row.starts_with("---")).unwrap();
    // Notes follow the last row.
    let expected = ["fedrep", "fedavg", "fedavg+ft", "local-only", "networks:"];
    assert_eq!(rows[rule + 1..rule + 6], expected, "{table}");
    assert!(table.contains("digits-network classes=5"), "{table}");
    let report = std::fs::read_to_string(folder.join("fedspan-compare/report.html")).unwrap();
    assert!(report.contains("simulated time") && report.contains("bytes"));
}

#[test]
fn impossible_network_settings_are_refused() {
    let refused = |changes: &[&str]| scenario(changes).unwrap_err();
    for (changes, expected_part) in [
        (&["model.hidden=[]"][..], "1 to 3 widths"),
        (&["model.filters=[4]"], "unknown key"),
        (&["model={ kind = \"cnn\" }"], "1 or 2 numbers of filters"),
        (&["model={ kind = \"cnn\", filters = [] }"], "1 or 2 numbers of filters"),
        (&["model={ kind = \"cnn\", filters = [2, 2, 2] }"], "1 or 2 numbers of filters"),
        (&["model={ kind = \"cnn\", filters = [2], hidden = [1, 2, 3] }"], "up to 2 widths"),
        (&["model={ kind = \"cnn\", filters = [2], side = 0 }"], "1 to 31"),
        (&["model={ kind = \"cnn\", filters = [2], pool = 17 }"], "1 to 16"),
        (&["model={ kind = \"lstm\" }"], "1 to 4096"),
        (&["model={ kind = \"lstm\", cells = 0 }"], "1 to 4096"),
        (&["model={ kind = \"lstm\", cells = 4, hidden = [1, 2, 3, 4] }"], "up to 3 widths"),
        (&["model.hidden=[1, 2, 3, 4]"], "1 to 3 widths"),
        (&["model.hidden=[0]"], "1 to 3 widths"),
        (&["model.k=3"], "unknown key"),
        (&["algorithm.pull=1.0"], "unknown key"),
        (&["algorithm.ditto.pul=1.0"], "did you mean \"pull\""),
        (&["algorithm.momentum=1.0"], "0.999999"),
        (&["algorithm.name=\"scaffold\"", "algorithm.momentum=0.5"], "control variates"),
        (&["algorithm.name=\"gd-gd\""], "\"gd-gd\" needs a linear model"),
        (&["algorithm.batch=0"], "65535"),
        (&["stop.distance=0.1"], "no distance"),
        (&["aggregation.rule=\"projector-mean\""], "networks upload layers"),
        (&["privacy.epsilon=1.0", "privacy.delta=1e-5"], "adds no noise"),
        (&["attack.kind=\"scale\""], "linear models"),
        (
            &["participation={ policy = \"doubling\", n0 = 4 }"],
            "for linear models; allowed for networks and adapters: \"verified\"",
        ),
        (
            &[
                "algorithm.name=\"scaffold\"",
                "participation={ policy = \"doubling\", schedule = \"verified\" }",
            ],
            "change more than the model",
        ),
        (&["algorithm.name=\"lg-fedavg\"", "algorithm.shared_layers=2"], "1 to 1"),
        (&["algorithm.name=\"scaffold\"", "algorithm.step_size=0.0"], "above 0"),
    ] {
        let reported = refused(changes);
        assert!(reported.contains(expected_part), "{changes:?}: {reported}");
    }
    let regression =
        Scenario::built_in("linear").unwrap().replace("k = 2\ninit", "kind = \"mlp\"\nhidden = [4]\ninit");
    assert!(Scenario::parse("linear", &regression, &[]).is_err());
    // The key of an algorithm's section overrides the common key.
    let changes =
        ["algorithm.step_size=0.3", "algorithm.fedrep.step_size=0.2", "algorithm.ditto.step_size=0.5"];
    assert_eq!(
        scenario(&changes).unwrap().algorithm,
        scenario(&["algorithm.step_size=0.2"]).unwrap().algorithm
    );
    for coin in ["1e-60", "0.005"] {
        let reported = refused(&["algorithm.name=\"l2gd\"", &format!("algorithm.coin={coin}")]);
        assert!(reported.contains("0, or 0.01 to 0.99"), "{reported}");
    }
    // The section of another algorithm is checked but has no effect.
    assert_eq!(scenario(&["algorithm.ditto.pull=3.0"]).unwrap().algorithm, scenario(&[]).unwrap().algorithm);
    // A network that does not fit into the frames is refused.
    let wide_network = scenario(&["model.hidden=[4096, 4096]"]).unwrap();
    let refused = run(&wide_network, 1, &mut NoProgress).unwrap_err();
    assert!(
        matches!(refused, RunError::Mismatch(ref expected_part) if expected_part.contains("256 chunks")),
        "{refused}"
    );
}

/// An adapter on the network of an earlier run starts with the loss of this run and decreases it. A base
/// network that is missing or does not fit is refused.
#[test]
fn adapter_starts_from_its_base_model() {
    let folder = empty_directory("networks-base");
    let shared = ["--set", "data.partition.clients=6", "--set", "data.partition.classes=10"];
    let base = [
        "run",
        "digits-network",
        "--set",
        "algorithm.name=fedavg",
        "--set",
        "algorithm.rounds=5",
        "--set",
        "model.hidden=[12]",
    ];
    let output = run_program(&folder, &[&base[..], &shared, &["--out", "first"]].concat());
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let adapter = |base: &str, further_arguments: &[&str], out: &str| {
        let model = format!("model={{ kind = \"lora-mlp\", rank = 3, width = 12, base = \"{base}\" }}");
        let arguments = [
            "run",
            "digits-network",
            "--set",
            &model,
            "--set",
            "algorithm.name=rolora",
            "--set",
            "algorithm.rounds=20",
        ];
        run_program(
            &folder,
            &[
                &arguments[..],
                &shared,
                &["--set", "algorithm.step_size=0.3"],
                further_arguments,
                &["--out", out],
            ]
            .concat(),
        )
    };
    let output = adapter("first/model", &[], "second");
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let rows = |out: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(folder.join(out).join("rounds.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let loss = |row: &serde_json::Value| row["loss"].as_f64().unwrap();
    let (last_loss, continued) = (loss(rows("first").last().unwrap()), rows("second"));
    // The initial loss differs slightly, because the initial factor B is small but not zero.
    assert!(
        (loss(&continued[0]) - last_loss).abs() < 0.01 * last_loss,
        "{} {last_loss}",
        loss(&continued[0])
    );
    assert!(
        loss(continued.last().unwrap()) < 0.95 * last_loss,
        "{} {last_loss}",
        loss(continued.last().unwrap())
    );

    let refused = |output: std::process::Output, reported: &[&str]| {
        let message = stderr_text(&output);
        assert_eq!(exit_code(&output), 2, "{message}");
        for part in reported {
            assert!(message.contains(part), "{message}");
        }
    };
    refused(adapter("nowhere", &[], "third"), &["nowhere/layer-0.npy"]);
    refused(
        adapter("first/model", &["--set", "model.width=13"], "third"),
        &["layer-0.npy", "12 columns", "allowed: 13"],
    );
    refused(adapter("first/model", &["--set", "model.hidden=[12]"], "third"), &["layer-1.npy"]);
    refused(
        adapter("first/model", &["--set", "model.frozen=5"], "third"),
        &["model.frozen is 0x00000005", "model.base"],
    );
    std::fs::write(folder.join("first/model/layer-0.npy"), b"\x93NUMPY").unwrap();
    refused(adapter("first/model", &[], "third"), &["layer-0.npy"]);
}
