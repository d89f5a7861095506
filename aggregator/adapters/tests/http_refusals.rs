//! Tests of refused uploads, requests and settings: the status, the kind and the text of the error. A refused
//! upload leaves no files.

use fedspan_adapters::files::RoundKind;
use fedspan_adapters::http::Settings;
use fedspan_engine::participation::{FirstArrivalsSettings, FractionSettings, Policy};

use crate::common::http::{send_raw, send_request};
use crate::common::live::{CLIENTS, RunningServer, ServerDirectory, list_files, trained_part};
use crate::common::{Adapter, DOWN, SAVED, UP};

/// Asserts that the round has no updates and that the state directory has no additional files.
fn assert_untouched(directory: &ServerDirectory, server: &RunningServer) {
    assert_eq!(server.get(CLIENTS[0], "/round").expect_json(200)["updates"], 0);
    let files = list_files(&directory.file_path("state"));
    assert_eq!(files, ["lock", "round-0000/adapter_model.safetensors", "round-0000/round.json"]);
}

#[test]
fn invalid_updates_are_refused() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let valid = directory.base.trained(RoundKind::Up, 1);
    let changed = |change: &dyn Fn(&mut Adapter)| {
        let mut adapter = valid.clone();
        change(&mut adapter);
        adapter.bytes()
    };
    let truncated_len = valid.bytes().len() - 4;
    let json_len = u64::from_le_bytes(directory.base.bytes()[..8].try_into().unwrap());
    let long_header = 8 + json_len + (1 << 16) + 1;
    let long = [&long_header.to_le_bytes()[..], &vec![b' '; long_header as usize]].concat();
    let allowed = format!("at most {}", long_header - 1);
    let cases: [(Vec<u8>, &[&str]); 12] = [
        (long, &["found a header of", &allowed]),
        (
            changed(&|adapter| adapter.tensors.get_mut(UP).unwrap().1[23] = f32::NAN),
            &[UP, "element 23", "NaN"],
        ),
        (
            changed(&|adapter| adapter.add_random_tensor(UP, &[10, 3], 7)),
            &["q_proj.lora_B", "rank 3", "expected 4"],
        ),
        (
            changed(&|adapter| adapter.add_random_tensor(SAVED, &[30], 7)),
            &[SAVED, "[30]", "the adapter of this round"],
        ),
        (changed(&|adapter| drop(adapter.tensors.remove(UP))), &[UP, "missing"]),
        (
            changed(&|adapter| adapter.add_random_tensor("base_model.model.more", &[2], 7)),
            &["base_model.model.more", "no such tensor"],
        ),
        (
            directory.base.trained(RoundKind::Down, 8).bytes(),
            &["lora_A", "frozen", "the wrong factor, or both"],
        ),
        (directory.base.trained(RoundKind::Plain, 8).bytes(), &["lora_A", "frozen"]),
        (trained_part(&valid, RoundKind::Down).bytes(), &["lora_B", "missing"]),
        (valid.bytes()[..truncated_len].to_vec(), &["from the header"]),
        (b"hello".to_vec(), &["truncated"]),
        (Vec::new(), &["truncated"]),
    ];
    let count = cases.len() as u64;
    for (body, expected) in cases {
        let (kind, message) = server.put(CLIENTS[0], 1, 4, &body).expect_error(422);
        assert_eq!(kind, "unsound", "{message}");
        for excerpt in expected {
            assert!(message.contains(excerpt), "{message:?} has no {excerpt:?}");
        }
        let server_path = directory.directory.path().display().to_string();
        assert!(!message.contains(&server_path) && !message.contains("incoming"), "{message}");
    }
    assert_eq!(server.status_count("unsound"), count);
    assert_untouched(&directory, &server);
    // The client can still send a valid update. NaN in a frozen factor is refused as a changed frozen factor.
    server.put(CLIENTS[0], 1, 4, &valid.bytes()).expect_status(201);
    let (_, message) = server
        .put(CLIENTS[1], 1, 4, &{
            let mut adapter = valid.clone();
            adapter.tensors.get_mut(DOWN).unwrap().1[7] = f32::NAN;
            adapter.bytes()
        })
        .expect_error(422);
    assert!(message.contains("element 7 "), "{message}");
}

#[test]
fn invalid_requests_are_refused() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let body = directory.base.trained(RoundKind::Up, 1).bytes();
    let model = "/round/1/adapter_model.safetensors?samples=3";
    for token in ["", "dora", "anton ", "ANTON", "anton, beate", "\u{e9}"] {
        // Spaces around a header value are ignored, so this token is valid.
        if token != "anton " {
            let response = send_request(server.address, "PUT", token, model, &body);
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert_eq!(response.expect_error(401).0, "unauthorized", "{token:?}");
        }
    }
    let lower =
        format!("GET /status HTTP/1.1\r\nHost: localhost\r\nauthorization: bearer {}\r\n\r\n", CLIENTS[0]);
    assert_eq!(send_raw(server.address, &[lower.as_bytes()]).unwrap().status, 200);
    for (round, kind) in [(0, "not-open"), (2, "not-open"), (4, "not-open"), (u32::MAX, "not-open")] {
        assert_eq!(server.put(CLIENTS[0], round, 3, &body).expect_error(409).0, kind);
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
        let (kind_found, message) =
            send_request(server.address, method, CLIENTS[0], path, &body).expect_error(status);
        assert_eq!(kind_found, kind, "{method} {path}: {message}");
    }
    assert_eq!((server.status_count("unauthorized"), server.status_count("not-open")), (5, 4));
    assert_eq!((server.status_count("not-found"), server.status_count("method-not-allowed")), (4, 3));
    assert_untouched(&directory, &server);
}

#[test]
fn invalid_settings_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "anton 0123456789abcdef\n").unwrap();
    let shared = format!("tokens={tokens:?}");
    let required_keys = "base = \"base\"\nrounds = 10\n";
    let valid_clients = ["clients=[\"a\", \"b\"]"];
    assert!(Settings::parse("x.toml", required_keys, &valid_clients.map(str::to_owned)).is_ok());
    for (changes, expected) in [
        (&[][..], "neither tokens nor clients"),
        (&["clients=[]"], "clients"),
        (&["clients=[\"a/b\"]"], "letters, digits"),
        (&["clients=[\"a\", \"a\"]"], "twice"),
        (&["clients=[\"a\"]", "listen=\"0.0.0.0:4480\""], "set tokens"),
        (&["clients=[\"a\"]", "listen=\"here\""], "an IP address and a port"),
        (&["clients=[\"a\"]", &shared], "allowed: one of them"),
        (&["tokens=\"/nowhere\""], "No such file"),
        (&["clients=[\"a\"]", "method=\"flexlora\""], "as large as the model"),
        (&["clients=[\"a\"]", "method=\"fedavg\""], "rolora"),
        (&["clients=[\"a\"]", "rounds=0"], "rounds"),
        (&["clients=[\"a\"]", "minimum=2"], "minimum"),
        (&["clients=[\"a\"]", "deadline=-1.0"], "deadline"),
        (
            &["clients=[\"a\"]", "participation.policy=\"doubling\"", "participation.n0=1"],
            "adapter files do not support",
        ),
        (
            &["clients=[\"a\"]", "participation.policy=\"first-arrivals\"", "participation.n=2"],
            "participation.n",
        ),
        (&["clients=[\"a\"]", "limits.connections=0"], "connections"),
        (&["clients=[\"a\"]", "colour=\"blue\""], "colour"),
    ] {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let problem = Settings::parse("x.toml", required_keys, &changes).unwrap_err().to_string();
        assert!(problem.contains(expected), "{changes:?}: {problem}");
        assert!(!problem.contains("0123456789abcdef"), "{problem}");
    }
}

#[test]
fn unsupported_policies_are_refused_with_the_supported_ones() {
    let parse = |policy: &str| {
        let changes = ["base=\"base\"", "rounds=1", "clients=[\"a\", \"b\"]"];
        let changes: Vec<String> = changes.into_iter().chain(policy.split(' ')).map(str::to_owned).collect();
        Settings::parse("x.toml", "", &changes).map(|settings| settings.participation)
    };
    for (policy, expected) in [
        ("participation.policy=\"full\"", Policy::FULL),
        (
            "participation.policy=\"fraction\" participation.r=0.5",
            Policy::Fraction(FractionSettings { r: 0.5 }),
        ),
        (
            "participation.policy=\"first-arrivals\" participation.n=1",
            Policy::FirstArrivals(FirstArrivalsSettings { n: 1, cohort: None }),
        ),
    ] {
        assert_eq!(parse(policy).unwrap(), expected);
    }
    for (policy, name) in [
        ("participation.policy=\"with-replacement\" participation.draws=2", "with-replacement"),
        ("participation.policy=\"doubling\" participation.n0=1", "doubling"),
    ] {
        let message = parse(policy).unwrap_err().to_string();
        assert!(message.contains(&format!("found {name:?}")), "{message}");
        assert!(message.contains("allowed: \"full\", \"fraction\", \"first-arrivals\""), "{message}");
    }
}
