//! The real program: killed, started again, stopped; what was acknowledged is there.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use fedspan_adapters::files::{Dtype, RoundKind};
use serde_json::json;

use super::super::files::Adapter;
use super::http::ask;
use super::{CLIENTS, Live, Place, files, mean, part};

struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
    live: Live,
}

fn command(place: &Place, more: &[&str]) -> Command {
    let config = place.at("exchange.toml");
    std::fs::write(&config, place.text()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
    command.args(["adapter", "serve", "--config"]).arg(config).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(place: &Place, more: &[&str]) -> Program {
    let mut child = command(place, more).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(": ").next());
    let address: SocketAddr = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    Program { child, out, live: Live { address, running: None } }
}

impl Program {
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Exit code and the last line of what it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let last = self.out.lines().map(Result::unwrap).last().unwrap_or_default();
        (status.code(), last)
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

fn fails(place: &Place, more: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } = command(place, more).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

/// Killed after every acknowledgement, and in the middle of what was not acknowledged.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    let place = Place::new();
    let mut now = place.base.clone();
    for number in 1..=3 {
        let trains = if number % 2 == 1 { RoundKind::Up } else { RoundKind::Down };
        let updates: Vec<(u32, Adapter)> =
            (0..3).map(|client| (client + 1, now.trained(trains, u64::from(10 * number + client)))).collect();
        for (client, (samples, update)) in CLIENTS.iter().zip(&updates) {
            let program = start(&place, &[]);
            let sent = part(update, trains).bytes();
            let mut cut = TcpStream::connect(program.live.address).unwrap();
            let head = format!(
                "PUT /round/{number}/adapter_model.safetensors?samples=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client}\r\n\
                 Content-Length: {}\r\n\r\n",
                sent.len()
            );
            cut.write_all(head.as_bytes()).unwrap();
            cut.write_all(&sent[..sent.len() / 2]).unwrap();
            program.live.put(client, number, *samples, &sent).ok(201);
            program.kill();
        }
        let program = start(&place, &[]);
        program.live.round_after(CLIENTS[0], number);
        let expected = mean(&now, &updates, trains);
        assert_eq!(program.live.model(), expected);
        // The acknowledgement may have been lost: it is said again.
        let last = part(&updates[2].1, trains).bytes();
        assert_eq!(program.live.put(CLIENTS[2], number, 3, &last).json(200)["update"], "repeated");
        program.kill();
        now = super::read(&expected);
    }
    assert!(files(&place.at("state")).iter().all(|file| !file.starts_with("updates-0003/")));
}

#[test]
fn it_stops_when_it_is_told_and_when_it_has_finished() {
    let place = Place::new();
    for signal in ["-INT", "-TERM"] {
        let program = start(&place, &[]);
        // Who waits for a round is told that there is none yet.
        let address = program.live.address;
        let waiting =
            std::thread::spawn(move || ask(address, "GET", CLIENTS[0], "/round?after=1&wait=60", &[]));
        while program.live.get(CLIENTS[1], "/status").json(200)["counts"]["waiting"] != json!(1) {
            std::thread::yield_now();
        }
        program.signal(signal);
        assert_eq!(waiting.join().unwrap().json(200)["round"], 1);
        assert_eq!(program.end(), (Some(0), "stopped after round 0 of 3".to_owned()));
    }
    let program = start(&place, &["--set", "rounds=1", "--exit-when-finished"]);
    for client in CLIENTS {
        program.live.put(client, 1, 1, &place.base.trained(RoundKind::Up, 1).bytes()).ok(201);
    }
    for client in CLIENTS {
        assert_eq!(program.live.round_after(client, 1)["finished"], true);
        program.live.get(client, "/adapter/adapter_model.safetensors?since=0").ok(200);
    }
    assert_eq!(program.end(), (Some(0), "stopped after round 1 of 1".to_owned()));
}

#[test]
fn a_state_directory_belongs_to_one_exchange() {
    let place = Place::new();
    let program = start(&place, &[]);
    let (code, text) = fails(&place, &[]);
    assert!(code == 1 && text.contains("another server is running"), "{code} {text}");
    program.kill();
    let (code, text) = fails(&place, &["--set", "method=\"lora\""]);
    assert!(
        code == 2 && text.contains("begun with the method rolora") && text.contains("has lora"),
        "{text}"
    );
    place.base.trained(RoundKind::Up, 3).write(&place.at("base.safetensors"));
    let (code, text) = fails(&place, &[]);
    assert!(code == 2 && text.contains("the base of SHA-256"), "{text}");
    place.base.write(&place.at("base.safetensors"));
    // What only looks like a round is none.
    std::fs::create_dir(place.at("state/round-7")).unwrap();
    let program = start(&place, &[]);
    program.live.put(CLIENTS[1], 1, 1, &place.base.trained(RoundKind::Up, 1).bytes()).ok(201);
    program.kill();
    // Who was told that it counts is not forgotten because of a slip in a list of names.
    let (code, text) = fails(&place, &["--set", "clients=[\"anton\", \"bete\", \"carla\"]"]);
    assert!(code == 2 && text.contains("beate.1.") && text.contains("no such client"), "{code} {text}");
    let program = start(&place, &[]);
    assert_eq!(program.live.get(CLIENTS[1], "/round").json(200)["counted"], true);
    program.kill();
    std::fs::write(place.at("state/round-0000/round.json"), "{").unwrap();
    let (code, text) = fails(&place, &[]);
    assert!(code == 1 && text.contains("round.json: EOF"), "{code} {text}");
    let (code, text) = fails(&place, &["--set", "base=\"none\""]);
    assert!(code == 2 && text.contains("none: No such file"), "{code} {text}");
    let (code, text) = fails(&place, &["--set", "bass=3"]);
    assert!(code == 2 && text.contains("bass"), "{code} {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// What a mean would be refused for is refused before anybody has trained.
#[test]
fn a_configuration_that_does_not_fit_the_base_is_found_at_the_start() {
    let place = Place::new();
    std::fs::create_dir(place.at("base")).unwrap();
    place.base.write(&place.at("base/adapter_model.safetensors"));
    let config = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "out"]}"#;
    std::fs::write(place.at("base/adapter_config.json"), config).unwrap();
    let (code, text) = fails(&place, &["--set", &format!("base={:?}", place.at("base"))]);
    assert!(code == 2 && text.contains("rank 4") && text.contains('8'), "{code} {text}");
}

/// An adapter of 50 MB goes both ways through a few of memory.
#[test]
fn memory_does_not_depend_on_the_length() {
    let mut base = Adapter { dtype: Dtype::F32, tensors: std::collections::BTreeMap::new() };
    for (name, shape) in [("A", [4, 1_500_000]), ("B", [1_500_000, 4])] {
        let count = shape.iter().product();
        let name = format!("base_model.model.x.lora_{name}.weight");
        base.tensors.insert(name, (shape.to_vec(), vec![0.25; count]));
    }
    let place = Place::with(base);
    let program = start(&place, &["--set", "rounds=1"]);
    let bytes = std::fs::read(place.at("base.safetensors")).unwrap();
    std::thread::scope(|scope| {
        for client in CLIENTS {
            let (live, bytes) = (&program.live, &bytes);
            scope.spawn(move || live.put(client, 1, 1, bytes).ok(201));
        }
    });
    program.live.round_after(CLIENTS[0], 1);
    assert_eq!(program.live.model(), bytes);
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 40_000, "{peak} kB");
    program.kill();
}
