//! Tests of complete rounds over HTTP: methods, dtypes, policies, deadlines.

use fedspan_adapters::files::{Dtype, RoundKind};
use fedspan_adapters::http::{RoundRecord, ServeSummary, Settings};
use serde_json::json;

use crate::common::Adapter;
use crate::common::live::{CLIENTS, ServerDirectory, list_files, mean_file, parse_adapter, trained_part};

/// Reads the record of a committed round.
fn read_record(directory: &ServerDirectory, round: u32) -> RoundRecord {
    let path = directory.file_path(&format!("state/round-{round:04}/round.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Runs all rounds. Asserts that the adapter after each round equals the result of `adapter average` for the
/// same files.
fn run_rounds(directory: &ServerDirectory, changes: &[&str], kinds: [RoundKind; 3]) -> Vec<Vec<u8>> {
    let server = directory.start_server(changes);
    let mut now = directory.base.clone();
    let mut models = Vec::new();
    for (number, trains) in (1..).zip(kinds) {
        let described = server.round_after(CLIENTS[1], number - 1);
        assert_eq!(
            (&described["round"], &described["trains"]),
            (&json!(number), &json!(trains.name())),
            "{described}"
        );
        let updates: Vec<(u32, Adapter)> =
            (0..3).map(|client| (client + 2, now.trained(trains, u64::from(number * 10 + client)))).collect();
        // A different client uploads first in each round. One client uploads its whole adapter, the others
        // only the trained tensors.
        for turn in 0..3 {
            let client = (turn + number as usize) % 3;
            let (samples, update) = &updates[client];
            let uploaded = if client == 1 { update.clone() } else { trained_part(update, trains) };
            assert_eq!(server.put(CLIENTS[client], number, *samples, &uploaded.bytes()).status, 201);
        }
        server.round_after(CLIENTS[0], number);
        let expected = mean_file(&now, &updates, trains);
        assert_eq!(server.download_model(), expected, "round {number}");
        let record = read_record(directory, number);
        assert_eq!(record.clients.len(), 3);
        let interference = record.interference.unwrap();
        assert!(
            if trains == RoundKind::Plain { interference > 1e-3 } else { interference == 0.0 },
            "{interference}"
        );
        // A client with the previous adapter needs only the changed tensors.
        let response =
            server.get(CLIENTS[0], &format!("/adapter/adapter_model.safetensors?since={}", number - 1));
        assert_eq!(response.header("fedspan-part"), Some("changed"));
        assert_eq!(response.header("fedspan-round"), Some(number.to_string().as_str()));
        let changed = parse_adapter(&response.expect_status(200));
        let downloaded = parse_adapter(&expected);
        assert_eq!(changed.tensors, trained_part(&downloaded, trains).tensors);
        now = now.with_tensors_of(&downloaded, |name| changed.tensors.contains_key(name));
        assert_eq!(now.tensors, downloaded.tensors);
        models.push(expected);
    }
    let described = server.round_after(CLIENTS[2], 3);
    assert_eq!(
        (&described["round"], &described["finished"], &described["adapter"]),
        (&json!(null), &json!(true), &json!(3))
    );
    assert_eq!(server.stop().unwrap(), ServeSummary { committed: 3, rounds: 3 });
    models
}

#[test]
fn http_rounds_equal_file_averages() {
    let directory = ServerDirectory::new();
    run_rounds(&directory, &[], [RoundKind::Up, RoundKind::Down, RoundKind::Up]);
    let mut expected = vec!["lock".to_owned()];
    for round in 0..4 {
        let name = |file: &str| format!("round-{round:04}/{file}");
        expected.extend([name("adapter_model.safetensors"), name("round.json")]);
        expected.extend((round > 0).then(|| name("changed.safetensors")));
    }
    expected.sort();
    assert_eq!(list_files(&directory.file_path("state")), expected);
}

#[test]
fn every_method_and_dtype_completes_rounds() {
    let all_plain = [RoundKind::Plain; 3];
    run_rounds(&ServerDirectory::new(), &["method=\"lora\""], all_plain);
    run_rounds(&ServerDirectory::new(), &["method=\"ffa-lora\""], [RoundKind::Up; 3]);
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let base = Adapter::random(dtype, 3, 2, 17, 9);
        run_rounds(&ServerDirectory::with_base(base), &[], [RoundKind::Up, RoundKind::Down, RoundKind::Up]);
    }
}

#[test]
fn peft_configuration_is_served_and_kept() {
    let directory = ServerDirectory::new();
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "out"]}"#;
    std::fs::create_dir(directory.file_path("base")).unwrap();
    directory.base.write(&directory.file_path("base/adapter_model.safetensors"));
    std::fs::write(directory.file_path("base/adapter_config.json"), config).unwrap();
    let base = format!("base={:?}", directory.file_path("base"));
    let server = directory.start_server(&[&base, "rounds=1"]);
    let served = server.get(CLIENTS[0], "/adapter/adapter_config.json").expect_status(200);
    assert_eq!(String::from_utf8(served).unwrap(), config);
    for client in CLIENTS {
        server
            .put(
                client,
                1,
                1,
                &trained_part(&directory.base.trained(RoundKind::Up, 5), RoundKind::Up).bytes(),
            )
            .expect_status(201);
    }
    server.round_after(CLIENTS[0], 1);
    let path = directory.file_path("state/round-0001/adapter_config.json");
    assert_eq!(std::fs::read_to_string(path).unwrap(), config);
}

#[test]
fn first_arrivals_close_the_round() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[
        "participation.policy=\"first-arrivals\"",
        "participation.n=2",
        "weights=\"uniform\"",
    ]);
    let updates: Vec<Adapter> = (0..3).map(|client| directory.base.trained(RoundKind::Up, client)).collect();
    assert_eq!(server.put(CLIENTS[2], 1, 5, &updates[2].bytes()).status, 201);
    assert_eq!(server.put(CLIENTS[0], 1, 9, &updates[0].bytes()).status, 201);
    assert_eq!(server.put(CLIENTS[1], 1, 5, &updates[1].bytes()).expect_error(409).0, "closed");
    server.round_after(CLIENTS[0], 1);
    let counted = [(1, updates[0].clone()), (1, updates[2].clone())];
    assert_eq!(server.download_model(), mean_file(&directory.base, &counted, RoundKind::Up));
    // A retry of an accepted update gets the same response. A different update and a late update are refused.
    assert_eq!(server.put(CLIENTS[0], 1, 9, &updates[0].bytes()).expect_json(200)["update"], "repeated");
    assert_eq!(server.put(CLIENTS[0], 1, 9, &updates[1].bytes()).expect_error(409).0, "another");
    assert_eq!(server.put(CLIENTS[1], 1, 5, &updates[1].bytes()).expect_error(409).0, "closed");
}

#[test]
fn fraction_asks_a_random_cohort() {
    let directory = ServerDirectory::new();
    let server =
        directory.start_server(&["participation.policy=\"fraction\"", "participation.r=0.34", "rounds=8"]);
    let mut drawn_clients = std::collections::BTreeSet::new();
    for number in 1..=8 {
        let described: Vec<bool> = CLIENTS
            .iter()
            .map(|client| server.round_after(client, number - 1)["asked"].as_bool().unwrap())
            .collect();
        let trains = if number % 2 == 1 { RoundKind::Up } else { RoundKind::Down };
        let now = parse_adapter(&server.download_model());
        for (client, is_asked) in CLIENTS.iter().zip(&described).filter(|(_, is_asked)| !**is_asked) {
            let (kind, message) = server.put(client, number, 1, &now.bytes()).expect_error(403);
            assert_eq!((kind.as_str(), *is_asked), ("not-asked", false), "{message}");
        }
        for (client, _) in CLIENTS.iter().zip(&described).filter(|(_, is_asked)| **is_asked) {
            drawn_clients.insert(*client);
            server.put(client, number, 1, &now.trained(trains, u64::from(number)).bytes()).expect_status(201);
        }
        server.round_after(CLIENTS[0], number);
    }
    assert_eq!(drawn_clients.len(), 3, "a client was drawn in no round");
}

/// If the deadline passes before the first update, the first update closes the round.
#[test]
fn deadline_closes_round_with_minimum() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["deadline=0.001"]);
    let update = directory.base.trained(RoundKind::Up, 1);
    server.put(CLIENTS[1], 1, 3, &update.bytes()).expect_status(201);
    assert_eq!(server.round_after(CLIENTS[1], 1)["round"], 2);
    assert_eq!(server.download_model(), update.bytes());
    assert_eq!(server.put(CLIENTS[0], 1, 3, &update.bytes()).expect_error(409).0, "closed");
    drop(server);
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["deadline=0.001", "minimum=2"]);
    server.put(CLIENTS[1], 1, 3, &update.bytes()).expect_status(201);
    assert_eq!(server.get(CLIENTS[1], "/round").expect_json(200)["updates"], 1);
    server.put(CLIENTS[2], 1, 3, &update.bytes()).expect_status(201);
    assert_eq!(server.round_after(CLIENTS[1], 1)["round"], 2);
    assert_eq!(read_record(&directory, 1).clients.len(), 2);
}

/// An upload and a download contain the values of one factor, that is half of all values, and a header.
#[test]
fn rolora_halves_the_traffic() {
    let mut base = Adapter::random(Dtype::F32, 1, 8, 400, 400);
    base.tensors.retain(|name, _| name.contains("lora_"));
    let directory = ServerDirectory::with_base(base.clone());
    let server = directory.start_server(&[]);
    let whole_len = base.bytes().len();
    let value_bytes = 2 * 2 * 8 * 400 * 4;
    assert_eq!(server.download_model().len(), whole_len);
    let upload = trained_part(&base.trained(RoundKind::Up, 1), RoundKind::Up).bytes();
    for client in CLIENTS {
        server.put(client, 1, 1, &upload).expect_status(201);
    }
    server.round_after(CLIENTS[0], 1);
    let download = server.get(CLIENTS[0], "/adapter/adapter_model.safetensors?since=0").expect_status(200);
    assert!(
        upload.len() < value_bytes / 2 + 400 && download.len() < value_bytes / 2 + 400,
        "{} {}",
        upload.len(),
        download.len()
    );
    assert!(whole_len > value_bytes, "{whole_len}");
    // A client with any other adapter gets the whole adapter.
    for since in ["?since=1", "?since=7", ""] {
        let response = server.get(CLIENTS[0], &format!("/adapter/adapter_model.safetensors{since}"));
        assert_eq!((response.header("fedspan-part"), response.body.len()), (Some("whole"), whole_len));
    }
}

#[test]
fn example_shows_the_defaults() {
    let example = include_str!("../../examples/exchange.toml");
    let settings = Settings::parse("exchange.toml", example, &[]).unwrap();
    assert_eq!(settings.registry.names(), CLIENTS);
    // All optional values in the example are the defaults.
    let required = "base = \"base\"\nclients = [\"anton\", \"beate\", \"carla\"]\nrounds = 10";
    let minimal_settings = Settings::parse("exchange.toml", required, &[]).unwrap();
    assert_eq!(format!("{settings:?}"), format!("{minimal_settings:?}"));
}
