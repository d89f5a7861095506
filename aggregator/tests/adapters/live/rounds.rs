//! Rounds as they should go.

use fedspan_adapters::files::{Dtype, RoundKind};
use fedspan_adapters::http::{RoundRecord, ServeSummary, Settings};
use serde_json::json;

use super::super::files::Adapter;
use super::{CLIENTS, Place, files, mean, part, read};

fn record(place: &Place, round: u32) -> RoundRecord {
    let path = place.at(&format!("state/round-{round:04}/round.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Plays all rounds; returns the adapter after each, which is what `adapter average` makes of the same files.
fn play(place: &Place, changes: &[&str], kinds: [RoundKind; 3]) -> Vec<Vec<u8>> {
    let live = place.serve(changes);
    let mut now = place.base.clone();
    let mut after = Vec::new();
    for (number, trains) in (1..).zip(kinds) {
        let told = live.round_after(CLIENTS[1], number - 1);
        assert_eq!((&told["round"], &told["trains"]), (&json!(number), &json!(trains.name())), "{told}");
        let updates: Vec<(u32, Adapter)> =
            (0..3).map(|client| (client + 2, now.trained(trains, u64::from(number * 10 + client)))).collect();
        // Each round another one comes first; some send all, some what they trained.
        for place in 0..3 {
            let client = (place + number as usize) % 3;
            let (samples, update) = &updates[client];
            let sent = if client == 1 { update.clone() } else { part(update, trains) };
            assert_eq!(live.put(CLIENTS[client], number, *samples, &sent.bytes()).status, 201);
        }
        live.round_after(CLIENTS[0], number);
        let expected = mean(&now, &updates, trains);
        assert_eq!(live.model(), expected, "round {number}");
        let record = record(place, number);
        assert_eq!(record.clients.len(), 3);
        let lost = record.interference.unwrap();
        assert!(if trains == RoundKind::Plain { lost > 1e-3 } else { lost == 0.0 }, "{lost}");
        // Who had the adapter before needs no more than what has changed.
        let answer =
            live.get(CLIENTS[0], &format!("/adapter/adapter_model.safetensors?since={}", number - 1));
        assert_eq!(answer.header("fedspan-part"), Some("changed"));
        assert_eq!(answer.header("fedspan-round"), Some(number.to_string().as_str()));
        let changed = read(&answer.ok(200));
        let whole = read(&expected);
        assert_eq!(changed.tensors, part(&whole, trains).tensors);
        now = now.with(&whole, |name| changed.tensors.contains_key(name));
        assert_eq!(now.tensors, whole.tensors);
        after.push(expected);
    }
    let told = live.round_after(CLIENTS[2], 3);
    assert_eq!(
        (&told["round"], &told["finished"], &told["adapter"]),
        (&json!(null), &json!(true), &json!(3))
    );
    assert_eq!(live.stop().unwrap(), ServeSummary { committed: 3, rounds: 3 });
    after
}

#[test]
fn rounds_are_those_of_the_files() {
    let place = Place::new();
    play(&place, &[], [RoundKind::Up, RoundKind::Down, RoundKind::Up]);
    let mut expected = vec!["lock".to_owned()];
    for round in 0..4 {
        let name = |file: &str| format!("round-{round:04}/{file}");
        expected.extend([name("adapter_model.safetensors"), name("round.json")]);
        expected.extend((round > 0).then(|| name("changed.safetensors")));
    }
    expected.sort();
    assert_eq!(files(&place.at("state")), expected);
}

#[test]
fn every_method_and_type_of_numbers() {
    let plain = [RoundKind::Plain; 3];
    play(&Place::new(), &["method=\"lora\""], plain);
    play(&Place::new(), &["method=\"ffa-lora\""], [RoundKind::Up; 3]);
    for kind in [Dtype::F16, Dtype::Bf16] {
        let base = Adapter::drawn(kind, 3, 2, 17, 9);
        play(&Place::with(base), &[], [RoundKind::Up, RoundKind::Down, RoundKind::Up]);
    }
}

#[test]
fn the_configuration_of_peft_goes_along() {
    let place = Place::new();
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "out"]}"#;
    std::fs::create_dir(place.at("base")).unwrap();
    place.base.write(&place.at("base/adapter_model.safetensors"));
    std::fs::write(place.at("base/adapter_config.json"), config).unwrap();
    let base = format!("base={:?}", place.at("base"));
    let live = place.serve(&[&base, "rounds=1"]);
    let served = live.get(CLIENTS[0], "/adapter/adapter_config.json").ok(200);
    assert_eq!(String::from_utf8(served).unwrap(), config);
    for client in CLIENTS {
        live.put(client, 1, 1, &part(&place.base.trained(RoundKind::Up, 5), RoundKind::Up).bytes()).ok(201);
    }
    live.round_after(CLIENTS[0], 1);
    let path = place.at("state/round-0001/adapter_config.json");
    assert_eq!(std::fs::read_to_string(path).unwrap(), config);
}

#[test]
fn the_first_n_are_enough() {
    let place = Place::new();
    let live =
        place.serve(&["participation.policy=\"first-arrivals\"", "participation.n=2", "weights=\"uniform\""]);
    let updates: Vec<Adapter> = (0..3).map(|client| place.base.trained(RoundKind::Up, client)).collect();
    assert_eq!(live.put(CLIENTS[2], 1, 5, &updates[2].bytes()).status, 201);
    assert_eq!(live.put(CLIENTS[0], 1, 9, &updates[0].bytes()).status, 201);
    assert_eq!(live.put(CLIENTS[1], 1, 5, &updates[1].bytes()).refusal(409).0, "closed");
    live.round_after(CLIENTS[0], 1);
    let counted = [(1, updates[0].clone()), (1, updates[2].clone())];
    assert_eq!(live.model(), mean(&place.base, &counted, RoundKind::Up));
    // Who counts may ask again what became of it; who does not is told.
    assert_eq!(live.put(CLIENTS[0], 1, 9, &updates[0].bytes()).json(200)["update"], "repeated");
    assert_eq!(live.put(CLIENTS[0], 1, 9, &updates[1].bytes()).refusal(409).0, "another");
    assert_eq!(live.put(CLIENTS[1], 1, 5, &updates[1].bytes()).refusal(409).0, "closed");
}

#[test]
fn a_part_of_the_clients_is_asked() {
    let place = Place::new();
    let live = place.serve(&["participation.policy=\"fraction\"", "participation.r=0.34", "rounds=8"]);
    let mut asked = std::collections::BTreeSet::new();
    for number in 1..=8 {
        let told: Vec<bool> = CLIENTS
            .iter()
            .map(|client| live.round_after(client, number - 1)["asked"].as_bool().unwrap())
            .collect();
        let trains = if number % 2 == 1 { RoundKind::Up } else { RoundKind::Down };
        let now = read(&live.model());
        for (client, is_asked) in CLIENTS.iter().zip(&told).filter(|(_, is_asked)| !**is_asked) {
            let (kind, text) = live.put(client, number, 1, &now.bytes()).refusal(403);
            assert_eq!((kind.as_str(), *is_asked), ("not-asked", false), "{text}");
        }
        for (client, _) in CLIENTS.iter().zip(&told).filter(|(_, is_asked)| **is_asked) {
            asked.insert(*client);
            live.put(client, number, 1, &now.trained(trains, u64::from(number)).bytes()).ok(201);
        }
        live.round_after(CLIENTS[0], number);
    }
    assert_eq!(asked.len(), 3, "drawn anew in every round");
}

/// The deadline has passed when the first answer comes: that one is enough, and none is not.
#[test]
fn a_deadline_closes_with_fewer() {
    let place = Place::new();
    let live = place.serve(&["deadline=0.001"]);
    let update = place.base.trained(RoundKind::Up, 1);
    live.put(CLIENTS[1], 1, 3, &update.bytes()).ok(201);
    assert_eq!(live.round_after(CLIENTS[1], 1)["round"], 2);
    assert_eq!(live.model(), update.bytes());
    assert_eq!(live.put(CLIENTS[0], 1, 3, &update.bytes()).refusal(409).0, "closed");
    drop(live);
    let place = Place::new();
    let live = place.serve(&["deadline=0.001", "minimum=2"]);
    live.put(CLIENTS[1], 1, 3, &update.bytes()).ok(201);
    assert_eq!(live.get(CLIENTS[1], "/round").json(200)["updates"], 1);
    live.put(CLIENTS[2], 1, 3, &update.bytes()).ok(201);
    assert_eq!(live.round_after(CLIENTS[1], 1)["round"], 2);
    assert_eq!(record(&place, 1).clients.len(), 2);
}

/// Up and down: the numbers of one factor, half of all, and a header.
#[test]
fn half_the_bytes() {
    let mut base = Adapter::drawn(Dtype::F32, 1, 8, 400, 400);
    base.tensors.retain(|name, _| name.contains("lora_"));
    let place = Place::with(base.clone());
    let live = place.serve(&[]);
    let whole = base.bytes().len();
    let numbers = 2 * 2 * 8 * 400 * 4;
    assert_eq!(live.model().len(), whole);
    let sent = part(&base.trained(RoundKind::Up, 1), RoundKind::Up).bytes();
    for client in CLIENTS {
        live.put(client, 1, 1, &sent).ok(201);
    }
    live.round_after(CLIENTS[0], 1);
    let got = live.get(CLIENTS[0], "/adapter/adapter_model.safetensors?since=0").ok(200);
    assert!(sent.len() < numbers / 2 + 400 && got.len() < numbers / 2 + 400, "{} {}", sent.len(), got.len());
    assert!(whole > numbers, "{whole}");
    // Who has another one gets all of it.
    for since in ["?since=1", "?since=7", ""] {
        let answer = live.get(CLIENTS[0], &format!("/adapter/adapter_model.safetensors{since}"));
        assert_eq!((answer.header("fedspan-part"), answer.body.len()), (Some("whole"), whole));
    }
}

#[test]
fn the_example_is_read() {
    let text = include_str!("../../../examples/exchange.toml");
    let settings = Settings::parse("exchange.toml", text, &[]).unwrap();
    assert_eq!(settings.registry.names(), CLIENTS);
    // The values shown are the defaults.
    let required = "base = \"base\"\nclients = [\"anton\", \"beate\", \"carla\"]\nrounds = 10";
    let least = Settings::parse("exchange.toml", required, &[]).unwrap();
    assert_eq!(format!("{settings:?}"), format!("{least:?}"));
}
