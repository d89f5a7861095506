//! Tests that every round can be committed: with updates of 0 samples, with buffers that are not averaged,
//! and with stacks of experts.

use fedspan_adapters::files::{Dtype, RoundKind};
use fedspan_adapters::http::RoundRecord;
use safetensors::Dtype as FileDtype;

use crate::common::http::send_request;
use crate::common::live::{CLIENTS, ServerDirectory, mean_file};
use crate::common::{Adapter, Buffer};

/// Reads the record of a committed round.
fn read_record(directory: &ServerDirectory, round: u32) -> RoundRecord {
    let path = directory.file_path(&format!("state/round-{round:04}/round.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// An update with 0 samples is accepted and reported, and does not change the mean.
#[test]
fn update_without_samples_has_no_weight() {
    for (weights, expected_samples) in [("samples", [5, 3]), ("uniform", [1, 1])] {
        let directory = ServerDirectory::new();
        let server = directory.start_server(&[&format!("weights={weights:?}")]);
        let updates: Vec<Adapter> =
            (0..3).map(|client| directory.base.trained(RoundKind::Up, client)).collect();
        let response = server.put(CLIENTS[0], 1, 0, &updates[0].bytes()).expect_json(201);
        assert_eq!(
            (&response["samples"], &response["weighs"], &response["update"]),
            (&0.into(), &false.into(), &"counted".into())
        );
        let response = server.put(CLIENTS[0], 1, 0, &updates[0].bytes()).expect_json(200);
        assert_eq!((&response["weighs"], &response["update"]), (&false.into(), &"repeated".into()));
        assert_eq!(server.put(CLIENTS[0], 1, 1, &updates[0].bytes()).expect_error(409).0, "another");
        assert_eq!(server.get(CLIENTS[0], "/round").expect_json(200)["updates"], 1);
        assert_eq!(server.put(CLIENTS[1], 1, 5, &updates[1].bytes()).expect_json(201)["weighs"], true);
        server.put(CLIENTS[2], 1, 3, &updates[2].bytes()).expect_status(201);
        server.round_after(CLIENTS[0], 1);
        let counted = [(expected_samples[0], updates[1].clone()), (expected_samples[1], updates[2].clone())];
        assert_eq!(server.download_model(), mean_file(&directory.base, &counted, RoundKind::Up), "{weights}");
        assert_eq!((server.status_count("counted"), server.status_count("counted-without-weight")), (3, 1));
        let record = read_record(&directory, 1);
        assert_eq!((record.clients.len(), record.clients[CLIENTS[0]].0), (3, 0));
    }
}

/// A client that states more samples than the bound has the weight of the bound, and is counted.
#[test]
fn samples_are_capped() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["limits.samples=10"]);
    let updates: Vec<Adapter> = (0..3).map(|client| directory.base.trained(RoundKind::Up, client)).collect();
    for (client, (samples, counts)) in [(3, 3), (11, 10), (536_870_911, 10)].into_iter().enumerate() {
        let response = server.put(CLIENTS[client], 1, samples, &updates[client].bytes()).expect_json(201);
        assert_eq!((&response["samples"], &response["counts"]), (&samples.into(), &counts.into()));
    }
    server.round_after(CLIENTS[0], 1);
    let counted: Vec<(u32, Adapter)> = [3, 10, 10].into_iter().zip(updates).collect();
    assert_eq!(server.download_model(), mean_file(&directory.base, &counted, RoundKind::Up));
    assert_eq!(server.status_count("counted-capped"), 2);
    let record = read_record(&directory, 1);
    assert_eq!((record.samples_max, record.clients[CLIENTS[2]].0), (Some(10), 536_870_911));
}

/// If all updates have 0 samples, the adapter does not change and the next round opens, even after a restart.
#[test]
fn round_without_samples_keeps_adapter() {
    for method in ["rolora", "lora"] {
        let directory = ServerDirectory::new();
        let change = format!("method={method:?}");
        let server = directory.start_server(&[&change]);
        let trains = if method == "lora" { RoundKind::Plain } else { RoundKind::Up };
        let initial_model = server.download_model();
        server.put(CLIENTS[0], 1, 0, &directory.base.trained(trains, 1).bytes()).expect_status(201);
        server.put(CLIENTS[1], 1, 0, &directory.base.trained(trains, 2).bytes()).expect_status(201);
        drop(server);
        let server = directory.start_server(&[&change]);
        assert_eq!(server.get(CLIENTS[0], "/round").expect_json(200)["updates"], 2);
        server.put(CLIENTS[2], 1, 0, &directory.base.trained(trains, 3).bytes()).expect_status(201);
        assert_eq!(server.round_after(CLIENTS[0], 1)["round"], 2);
        assert_eq!(server.download_model(), initial_model);
        assert_eq!(
            (read_record(&directory, 1).interference, read_record(&directory, 1).clients.len()),
            (Some(0.0), 3)
        );
        let response = server.get(CLIENTS[0], "/adapter/adapter_model.safetensors?since=0");
        assert_eq!(response.header("fedspan-part"), Some("changed"));
    }
}

#[test]
fn sample_count_is_bounded() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let body = directory.base.trained(RoundKind::Up, 1).bytes();
    for (samples, shown) in [
        ("536870912", "536870912"),
        ("99999999999999999999", "99999999999999999999"),
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("", "\"\""),
    ] {
        let path = format!("/round/1/adapter_model.safetensors?samples={samples}");
        let (kind, message) = send_request(server.address, "PUT", CLIENTS[0], &path, &body).expect_error(400);
        assert!(
            kind == "bad-request" && message.contains(shown) && message.contains("from 0 to 536870911"),
            "{message}"
        );
    }
    server.put(CLIENTS[0], 1, 536_870_911, &body).expect_status(201);
}

/// Integers become the largest value. An update whose boolean differs from that of the base is refused and
/// does not block the round.
#[test]
fn buffers_are_merged_or_refused_on_upload() {
    let directory = ServerDirectory::new();
    let buffers = |count: i64, flag: u8| -> [Buffer; 2] {
        [
            ("norm.num_batches_tracked", FileDtype::I64, vec![], count.to_le_bytes().to_vec()),
            ("norm.initialized", FileDtype::BOOL, vec![1], vec![flag]),
        ]
    };
    std::fs::write(directory.file_path("base.safetensors"), directory.base.bytes_with(&buffers(3, 0)))
        .unwrap();
    let server = directory.start_server(&[]);
    let update = |client: u64, count, flag| {
        directory.base.trained(RoundKind::Up, client).bytes_with(&buffers(count, flag))
    };
    let (kind, message) = server.put(CLIENTS[0], 1, 1, &update(0, 9, 1)).expect_error(422);
    assert_eq!(kind, "unsound");
    assert!(
        message.contains(
            "norm.initialized: element 0 of dtype BOOL is true, but false in the adapter of this round"
        ),
        "{message}"
    );
    for (client, count) in [(0, 9), (1, 70), (2, 900)] {
        // The weight of the client with the largest counter is 0.
        server
            .put(CLIENTS[client as usize], 1, u32::from(client < 2), &update(client, count, 0))
            .expect_status(201);
    }
    server.round_after(CLIENTS[0], 1);
    let model = server.download_model();
    let file = safetensors::SafeTensors::deserialize(&model).unwrap();
    assert_eq!(file.tensor("norm.num_batches_tracked").unwrap().data(), 70_i64.to_le_bytes());
    assert_eq!(file.tensor("norm.initialized").unwrap().data(), [0]);
}

#[test]
fn expert_stacks_complete_rounds() {
    let mut base = Adapter::random(Dtype::F32, 1, 12, 6, 9);
    base.tensors.retain(|name, _| name.contains("q_proj"));
    let directory = ServerDirectory::with_base(base);
    std::fs::create_dir(directory.file_path("base")).unwrap();
    directory.base.write(&directory.file_path("base/adapter_model.safetensors"));
    let write = |target: &str| {
        let config =
            format!(r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_parameters": [{target:?}]}}"#);
        std::fs::write(directory.file_path("base/adapter_config.json"), config).unwrap();
    };
    let base = format!("base={:?}", directory.file_path("base"));
    write("k_proj.weight");
    assert!(directory.try_start_server(&[&base]).is_err());
    write("q_proj.weight");
    let server = directory.start_server(&[&base, "method=\"lora\"", "rounds=1"]);
    for (index, client) in CLIENTS.iter().enumerate() {
        server
            .put(client, 1, 1, &directory.base.trained(RoundKind::Plain, index as u64).bytes())
            .expect_status(201);
    }
    server.round_after(CLIENTS[0], 1);
    assert!(read_record(&directory, 1).interference.unwrap() > 0.0);
}
