//! Updates without samples, buffers without a mean, stacks of experts: a round always ends.

use fedspan_adapters::files::{Dtype, RoundKind};
use fedspan_adapters::http::RoundRecord;
use safetensors::Dtype as FileDtype;

use super::super::files::{Adapter, Buffer};
use super::http::ask;
use super::{CLIENTS, Place, mean};

fn record(place: &Place, round: u32) -> RoundRecord {
    let path = place.at(&format!("state/round-{round:04}/round.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// An update without samples is counted and told, and changes nothing in the mean of the others.
#[test]
fn no_samples_are_an_answer_without_weight() {
    for (weights, own) in [("samples", [5, 3]), ("uniform", [1, 1])] {
        let place = Place::new();
        let live = place.serve(&[&format!("weights={weights:?}")]);
        let updates: Vec<Adapter> = (0..3).map(|client| place.base.trained(RoundKind::Up, client)).collect();
        let told = live.put(CLIENTS[0], 1, 0, &updates[0].bytes()).json(201);
        assert_eq!(
            (&told["samples"], &told["weighs"], &told["update"]),
            (&0.into(), &false.into(), &"counted".into())
        );
        let told = live.put(CLIENTS[0], 1, 0, &updates[0].bytes()).json(200);
        assert_eq!((&told["weighs"], &told["update"]), (&false.into(), &"repeated".into()));
        assert_eq!(live.put(CLIENTS[0], 1, 1, &updates[0].bytes()).refusal(409).0, "another");
        assert_eq!(live.get(CLIENTS[0], "/round").json(200)["updates"], 1);
        assert_eq!(live.put(CLIENTS[1], 1, 5, &updates[1].bytes()).json(201)["weighs"], true);
        live.put(CLIENTS[2], 1, 3, &updates[2].bytes()).ok(201);
        live.round_after(CLIENTS[0], 1);
        let counted = [(own[0], updates[1].clone()), (own[1], updates[2].clone())];
        assert_eq!(live.model(), mean(&place.base, &counted, RoundKind::Up), "{weights}");
        assert_eq!((live.count("counted"), live.count("counted-without-weight")), (3, 1));
        let record = record(&place, 1);
        assert_eq!((record.clients.len(), record.clients[CLIENTS[0]].0), (3, 0));
    }
}

/// Nobody has trained: the adapter stays, byte for byte, and the next round opens; also after a restart.
#[test]
fn a_round_without_samples_leaves_the_adapter() {
    for method in ["rolora", "lora"] {
        let place = Place::new();
        let change = format!("method={method:?}");
        let live = place.serve(&[&change]);
        let trains = if method == "lora" { RoundKind::Plain } else { RoundKind::Up };
        let before = live.model();
        live.put(CLIENTS[0], 1, 0, &place.base.trained(trains, 1).bytes()).ok(201);
        live.put(CLIENTS[1], 1, 0, &place.base.trained(trains, 2).bytes()).ok(201);
        drop(live);
        let live = place.serve(&[&change]);
        assert_eq!(live.get(CLIENTS[0], "/round").json(200)["updates"], 2);
        live.put(CLIENTS[2], 1, 0, &place.base.trained(trains, 3).bytes()).ok(201);
        assert_eq!(live.round_after(CLIENTS[0], 1)["round"], 2);
        assert_eq!(live.model(), before);
        assert_eq!((record(&place, 1).interference, record(&place, 1).clients.len()), (Some(0.0), 3));
        let part = live.get(CLIENTS[0], "/adapter/adapter_model.safetensors?since=0");
        assert_eq!(part.header("fedspan-part"), Some("changed"));
    }
}

#[test]
fn numbers_of_samples_have_one_bound() {
    let place = Place::new();
    let live = place.serve(&[]);
    let body = place.base.trained(RoundKind::Up, 1).bytes();
    for (samples, found) in [
        ("536870912", "536870912"),
        ("99999999999999999999", "99999999999999999999"),
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("", "\"\""),
    ] {
        let path = format!("/round/1/adapter_model.safetensors?samples={samples}");
        let (kind, text) = ask(live.address, "PUT", CLIENTS[0], &path, &body).refusal(400);
        assert!(
            kind == "bad-request" && text.contains(found) && text.contains("from 0 to 536870911"),
            "{text}"
        );
    }
    live.put(CLIENTS[0], 1, 536_870_911, &body).ok(201);
}

/// Counters go to the largest; a switch that is not the base's is told to who sends it, and stops no round.
#[test]
fn buffers_are_kept_or_refused_at_once() {
    let place = Place::new();
    let buffers = |count: i64, flag: u8| -> [Buffer; 2] {
        [
            ("norm.num_batches_tracked", FileDtype::I64, vec![], count.to_le_bytes().to_vec()),
            ("norm.initialized", FileDtype::BOOL, vec![1], vec![flag]),
        ]
    };
    std::fs::write(place.at("base.safetensors"), place.base.bytes_with(&buffers(3, 0))).unwrap();
    let live = place.serve(&[]);
    let update = |client: u64, count, flag| {
        place.base.trained(RoundKind::Up, client).bytes_with(&buffers(count, flag))
    };
    let (kind, text) = live.put(CLIENTS[0], 1, 1, &update(0, 9, 1)).refusal(422);
    assert_eq!(kind, "unsound");
    assert!(
        text.contains(
            "norm.initialized: element 0 of dtype BOOL is true, and false in the adapter of this round"
        ),
        "{text}"
    );
    for (client, count) in [(0, 9), (1, 70), (2, 900)] {
        // The largest is of a client without weight.
        live.put(CLIENTS[client as usize], 1, u32::from(client < 2), &update(client, count, 0)).ok(201);
    }
    live.round_after(CLIENTS[0], 1);
    let model = live.model();
    let file = safetensors::SafeTensors::deserialize(&model).unwrap();
    assert_eq!(file.tensor("norm.num_batches_tracked").unwrap().data(), 70_i64.to_le_bytes());
    assert_eq!(file.tensor("norm.initialized").unwrap().data(), [0]);
}

#[test]
fn stacks_of_experts_have_rounds() {
    let mut base = Adapter::drawn(Dtype::F32, 1, 12, 6, 9);
    base.tensors.retain(|name, _| name.contains("q_proj"));
    let place = Place::with(base);
    std::fs::create_dir(place.at("base")).unwrap();
    place.base.write(&place.at("base/adapter_model.safetensors"));
    let write = |target: &str| {
        let config =
            format!(r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_parameters": [{target:?}]}}"#);
        std::fs::write(place.at("base/adapter_config.json"), config).unwrap();
    };
    let base = format!("base={:?}", place.at("base"));
    write("k_proj.weight");
    assert!(place.try_serve(&[&base]).is_err());
    write("q_proj.weight");
    let live = place.serve(&[&base, "method=\"lora\"", "rounds=1"]);
    for (index, client) in CLIENTS.iter().enumerate() {
        live.put(client, 1, 1, &place.base.trained(RoundKind::Plain, index as u64).bytes()).ok(201);
    }
    live.round_after(CLIENTS[0], 1);
    assert!(record(&place, 1).interference.unwrap() > 0.0);
}
