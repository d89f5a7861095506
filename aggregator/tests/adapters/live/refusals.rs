//! What is refused, by name and number; nothing of it stays.

use fedspan_adapters::files::RoundKind;
use fedspan_adapters::http::Settings;

use super::super::files::{Adapter, DOWN, SAVED, UP};
use super::http::{ask, raw};
use super::{CLIENTS, Live, Place, files, part};

/// After whatever was refused the round is as it was.
fn untouched(place: &Place, live: &Live) {
    assert_eq!(live.get(CLIENTS[0], "/round").json(200)["updates"], 0);
    let found = files(&place.at("state"));
    assert_eq!(found, ["lock", "round-0000/adapter_model.safetensors", "round-0000/round.json"]);
}

#[test]
fn updates_that_are_unsound() {
    let place = Place::new();
    let live = place.serve(&[]);
    let good = place.base.trained(RoundKind::Up, 1);
    let changed = |change: &dyn Fn(&mut Adapter)| {
        let mut adapter = good.clone();
        change(&mut adapter);
        adapter.bytes()
    };
    let cut = good.bytes().len() - 4;
    let cases: [(Vec<u8>, &[&str]); 11] = [
        (changed(&|one| one.tensors.get_mut(UP).unwrap().1[23] = f32::NAN), &[UP, "element 23", "NaN"]),
        (changed(&|one| one.put(UP, &[10, 3], 7)), &["q_proj.lora_B", "rank 3", "is 4"]),
        (changed(&|one| one.put(SAVED, &[30], 7)), &[SAVED, "[30]", "the adapter of this round"]),
        (changed(&|one| drop(one.tensors.remove(UP))), &[UP, "missing"]),
        (
            changed(&|one| one.put("base_model.model.more", &[2], 7)),
            &["base_model.model.more", "no such tensor"],
        ),
        (place.base.trained(RoundKind::Down, 8).bytes(), &["lora_A", "frozen", "the wrong factor, or both"]),
        (place.base.trained(RoundKind::Plain, 8).bytes(), &["lora_A", "frozen"]),
        (part(&good, RoundKind::Down).bytes(), &["lora_B", "missing"]),
        (good.bytes()[..cut].to_vec(), &["accounts for"]),
        (b"hello".to_vec(), &["truncated"]),
        (Vec::new(), &["truncated"]),
    ];
    let count = cases.len() as u64;
    for (body, says) in cases {
        let (kind, text) = live.put(CLIENTS[0], 1, 4, &body).refusal(422);
        assert_eq!(kind, "unsound", "{text}");
        for part in says {
            assert!(text.contains(part), "{text:?} has no {part:?}");
        }
        let ours = place.directory.path().display().to_string();
        assert!(!text.contains(&ours) && !text.contains("incoming"), "{text}");
    }
    assert_eq!(live.count("unsound"), count);
    untouched(&place, &live);
    // The client is welcome still; a NaN in a frozen factor cannot be told from another frozen factor, and need not.
    live.put(CLIENTS[0], 1, 4, &good.bytes()).ok(201);
    let (_, text) = live
        .put(CLIENTS[1], 1, 4, &{
            let mut adapter = good.clone();
            adapter.tensors.get_mut(DOWN).unwrap().1[7] = f32::NAN;
            adapter.bytes()
        })
        .refusal(422);
    assert!(text.contains("element 7 "), "{text}");
}

#[test]
fn requests_out_of_place() {
    let place = Place::new();
    let live = place.serve(&[]);
    let body = place.base.trained(RoundKind::Up, 1).bytes();
    let model = "/round/1/adapter_model.safetensors?samples=3";
    for token in ["", "dora", "anton ", "ANTON", "anton, beate", "\u{e9}"] {
        // Spaces around a value do not belong to it.
        if token != "anton " {
            let answer = ask(live.address, "PUT", token, model, &body);
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert_eq!(answer.refusal(401).0, "unauthorized", "{token:?}");
        }
    }
    let lower = format!("GET /status HTTP/1.1\r\nHost: x\r\nauthorization: bearer {}\r\n\r\n", CLIENTS[0]);
    assert_eq!(raw(live.address, &[lower.as_bytes()]).unwrap().status, 200);
    for (round, kind) in [(0, "not-open"), (2, "not-open"), (4, "not-open"), (u32::MAX, "not-open")] {
        assert_eq!(live.put(CLIENTS[0], round, 3, &body).refusal(409).0, kind);
    }
    for (method, path, status, kind) in [
        ("GET", "/", 404, "not-found"),
        ("GET", "/round/1/../../lock", 404, "not-found"),
        ("GET", "/adapter/adapter_config.json", 404, "not-found"),
        ("PUT", "/round/1/adapter_model.safetensors", 400, "bad-request"),
        ("PUT", "/round/1/adapter_model.safetensors?samples=536870912", 400, "bad-request"),
        ("PUT", "/round/1/adapter_model.safetensors?samples=1&samples=2", 400, "bad-request"),
        ("PUT", "/round/..%2f1/adapter_model.safetensors?samples=1", 404, "not-found"),
        ("POST", model, 405, "method-not-allowed"),
        ("DELETE", "/adapter/adapter_model.safetensors", 405, "method-not-allowed"),
        ("PUT", "/status", 405, "method-not-allowed"),
    ] {
        let (found, text) = ask(live.address, method, CLIENTS[0], path, &body).refusal(status);
        assert_eq!(found, kind, "{method} {path}: {text}");
    }
    assert_eq!((live.count("unauthorized"), live.count("not-open")), (5, 4));
    assert_eq!((live.count("not-found"), live.count("method-not-allowed")), (4, 3));
    untouched(&place, &live);
}

#[test]
fn configurations_that_make_no_sense() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "anton 0123456789abcdef\n").unwrap();
    let shared = format!("tokens={tokens:?}");
    let least = "base = \"base\"\nrounds = 10\n";
    let good = ["clients=[\"a\", \"b\"]"];
    assert!(Settings::parse("x.toml", least, &good.map(str::to_owned)).is_ok());
    for (changes, says) in [
        (&[][..], "who takes part"),
        (&["clients=[]"], "clients"),
        (&["clients=[\"a/b\"]"], "letters, digits"),
        (&["clients=[\"a\", \"a\"]"], "twice"),
        (&["clients=[\"a\"]", "listen=\"0.0.0.0:4480\""], "set tokens"),
        (&["clients=[\"a\"]", "listen=\"here\""], "an IP address and a port"),
        (&["clients=[\"a\"]", &shared], "beside tokens"),
        (&["tokens=\"/nowhere\""], "No such file"),
        (&["clients=[\"a\"]", "method=\"flexlora\""], "as large as the model"),
        (&["clients=[\"a\"]", "method=\"fedavg\""], "rolora"),
        (&["clients=[\"a\"]", "rounds=0"], "rounds"),
        (&["clients=[\"a\"]", "minimum=2"], "minimum"),
        (&["clients=[\"a\"]", "deadline=-1.0"], "deadline"),
        (&["clients=[\"a\"]", "participation.policy=\"doubling\"", "participation.n0=1"], "not for files"),
        (
            &["clients=[\"a\"]", "participation.policy=\"first-arrivals\"", "participation.n=2"],
            "participation.n",
        ),
        (&["clients=[\"a\"]", "limits.connections=0"], "connections"),
        (&["clients=[\"a\"]", "colour=\"blue\""], "colour"),
    ] {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let problem = Settings::parse("x.toml", least, &changes).unwrap_err().to_string();
        assert!(problem.contains(says), "{changes:?}: {problem}");
        assert!(!problem.contains("0123456789abcdef"), "{problem}");
    }
}
