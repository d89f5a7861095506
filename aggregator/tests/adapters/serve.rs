//! Tests of the command `adapter serve`: after kills, restarts and signals no acknowledged update is lost.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use fedspan_adapters::files::{Dtype, RoundKind};
use serde_json::json;

use super::common::Adapter;
use super::common::http::send_request;
use super::common::live::{
    CLIENTS, RunningServer, ServerDirectory, list_files, mean_file, parse_adapter, trained_part,
};
use crate::common::decode_output;

/// Server process, with a handle for requests.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    server: RunningServer,
}

fn serve_command(directory: &ServerDirectory, options: &[&str]) -> Command {
    let config = directory.file_path("exchange.toml");
    std::fs::write(&config, directory.config_text()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
    command.args(["adapter", "serve", "--config"]).arg(config).args(options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a server and waits until it listens.
fn start_program(directory: &ServerDirectory, options: &[&str]) -> Program {
    let mut child = serve_command(directory, options).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(": ").next());
    let address: SocketAddr = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    Program { child, stdout, server: RunningServer { address, running: None } }
}

impl Program {
    fn kill_and_wait(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the exit; returns the exit code and the last line of standard output.
    fn wait_for_exit(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let last_line = self.stdout.lines().map(Result::unwrap).last().unwrap_or_default();
        (status.code(), last_line)
    }

    fn send_signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

/// Runs a server that must exit at once; returns exit code and standard error.
fn run_refused(directory: &ServerDirectory, options: &[&str]) -> (i32, String) {
    let (code, _, errors) = decode_output(&serve_command(directory, options).output().unwrap());
    (code, errors)
}

/// Acknowledged updates are kept although the server is killed after every acknowledgement, while another
/// upload is in progress.
#[test]
fn acknowledged_updates_survive_kill() {
    let directory = ServerDirectory::new();
    let mut now = directory.base.clone();
    for number in 1..=3 {
        let trains = if number % 2 == 1 { RoundKind::Up } else { RoundKind::Down };
        let updates: Vec<(u32, Adapter)> =
            (0..3).map(|client| (client + 1, now.trained(trains, u64::from(10 * number + client)))).collect();
        for (client, (samples, update)) in CLIENTS.iter().zip(&updates) {
            let program = start_program(&directory, &[]);
            let upload = trained_part(update, trains).bytes();
            let mut incomplete = TcpStream::connect(program.server.address).unwrap();
            let head = format!(
                "PUT /round/{number}/adapter_model.safetensors?samples=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client}\r\n\
                 Content-Length: {}\r\n\r\n",
                upload.len()
            );
            incomplete.write_all(head.as_bytes()).unwrap();
            incomplete.write_all(&upload[..upload.len() / 2]).unwrap();
            program.server.put(client, number, *samples, &upload).expect_status(201);
            program.kill_and_wait();
        }
        let program = start_program(&directory, &[]);
        program.server.round_after(CLIENTS[0], number);
        let expected = mean_file(&now, &updates, trains);
        assert_eq!(program.server.download_model(), expected);
        // A client that missed the acknowledgement gets it again.
        let missed_update = trained_part(&updates[2].1, trains).bytes();
        assert_eq!(
            program.server.put(CLIENTS[2], number, 3, &missed_update).expect_json(200)["update"],
            "repeated"
        );
        program.kill_and_wait();
        now = parse_adapter(&expected);
    }
    assert!(list_files(&directory.file_path("state")).iter().all(|file| !file.starts_with("updates-0003/")));
}

#[test]
fn server_stops_on_signal_and_when_finished() {
    let directory = ServerDirectory::new();
    for signal in ["-INT", "-TERM"] {
        let program = start_program(&directory, &[]);
        // A request that waits for a round is answered on shutdown.
        let address = program.server.address;
        let waiting = std::thread::spawn(move || {
            send_request(address, "GET", CLIENTS[0], "/round?after=1&wait=60", &[])
        });
        while program.server.get(CLIENTS[1], "/status").expect_json(200)["counts"]["waiting"] != json!(1) {
            std::thread::yield_now();
        }
        program.send_signal(signal);
        assert_eq!(waiting.join().unwrap().expect_json(200)["round"], 1);
        assert_eq!(program.wait_for_exit(), (Some(0), "stopped after round 0 of 3".to_owned()));
    }
    let program = start_program(&directory, &["--set", "rounds=1", "--exit-when-finished"]);
    for client in CLIENTS {
        program
            .server
            .put(client, 1, 1, &directory.base.trained(RoundKind::Up, 1).bytes())
            .expect_status(201);
    }
    for client in CLIENTS {
        assert_eq!(program.server.round_after(client, 1)["finished"], true);
        program.server.get(client, "/adapter/adapter_model.safetensors?since=0").expect_status(200);
    }
    assert_eq!(program.wait_for_exit(), (Some(0), "stopped after round 1 of 1".to_owned()));
}

#[test]
fn state_directory_belongs_to_one_configuration() {
    let directory = ServerDirectory::new();
    let program = start_program(&directory, &[]);
    let (code, errors) = run_refused(&directory, &[]);
    assert!(code == 1 && errors.contains("another server is running"), "{code} {errors}");
    program.kill_and_wait();
    let (code, errors) = run_refused(&directory, &["--set", "method=\"lora\""]);
    assert!(
        code == 2 && errors.contains("created with the method rolora") && errors.contains("has lora"),
        "{errors}"
    );
    directory.base.trained(RoundKind::Up, 3).write(&directory.file_path("base.safetensors"));
    let (code, errors) = run_refused(&directory, &[]);
    assert!(code == 2 && errors.contains("the base of SHA-256"), "{errors}");
    directory.base.write(&directory.file_path("base.safetensors"));
    // A directory with a similar name is not treated as a round.
    std::fs::create_dir(directory.file_path("state/round-7")).unwrap();
    let program = start_program(&directory, &[]);
    program
        .server
        .put(CLIENTS[1], 1, 1, &directory.base.trained(RoundKind::Up, 1).bytes())
        .expect_status(201);
    program.kill_and_wait();
    // A misspelt name in the list of clients must not drop an acknowledged update.
    let (code, errors) = run_refused(&directory, &["--set", "clients=[\"anton\", \"bete\", \"carla\"]"]);
    assert!(
        code == 2 && errors.contains("beate.1.") && errors.contains("no client of the configuration"),
        "{code} {errors}"
    );
    let program = start_program(&directory, &[]);
    assert_eq!(program.server.get(CLIENTS[1], "/round").expect_json(200)["counted"], true);
    program.kill_and_wait();
    std::fs::write(directory.file_path("state/round-0000/round.json"), "{").unwrap();
    let (code, errors) = run_refused(&directory, &[]);
    assert!(code == 1 && errors.contains("round.json: damaged: EOF"), "{code} {errors}");
    let (code, errors) = run_refused(&directory, &["--set", "base=\"none\""]);
    assert!(code == 2 && errors.contains("none: No such file"), "{code} {errors}");
    let (code, errors) = run_refused(&directory, &["--set", "bass=3"]);
    assert!(code == 2 && errors.contains("bass"), "{code} {errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// Runs `adapter check-exchange`; returns exit code, standard output and standard error.
fn check_exchange(state: &std::path::Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
    decode_output(&command.args(["adapter", "check-exchange"]).arg(state).output().unwrap())
}

#[test]
fn check_of_an_exchange_names_damaged_files() {
    let directory = ServerDirectory::new();
    let state = directory.file_path("state");
    let (code, _, errors) = check_exchange(&state);
    assert!(code == 1 && errors.contains("No such file"), "{code} {errors}");
    std::fs::create_dir(directory.file_path("empty")).unwrap();
    let (code, _, errors) = check_exchange(&directory.file_path("empty"));
    assert!(code == 2 && errors.contains("no rounds were begun here"), "{code} {errors}");
    let program = start_program(&directory, &[]);
    program
        .server
        .put(CLIENTS[1], 1, 1, &directory.base.trained(RoundKind::Up, 1).bytes())
        .expect_status(201);
    let (code, _, errors) = check_exchange(&state);
    assert!(code == 1 && errors.contains("another server is running"), "{code} {errors}");
    program.kill_and_wait();
    let (code, facts, errors) = check_exchange(&state);
    assert!(code == 0 && errors.is_empty(), "{code} {errors}");
    assert!(facts.contains("round 1: 1 updates sound") && facts.ends_with("sound\n"), "{facts}");
    let model = state.join("round-0000/adapter_model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let (code, facts, errors) = check_exchange(&state);
    assert!(
        code == 1 && errors.lines().count() == 1 && !facts.ends_with("sound\n"),
        "{code} {facts} {errors}"
    );
    assert!(errors.contains("round-0000/adapter_model.safetensors: damaged: found SHA-256"), "{errors}");
    let (code, errors) = run_refused(&directory, &[]);
    assert!(code == 1 && errors.contains("adapter_model.safetensors: damaged"), "{code} {errors}");
    assert!(errors.contains("restore the file from a backup"), "{errors}");
}

/// The check fails for what the server refuses at its start; with the configuration also for a client that it lacks.
#[test]
fn check_of_an_exchange_finds_what_the_server_refuses() {
    let directory = ServerDirectory::new();
    let state = directory.file_path("state");
    let program = start_program(&directory, &[]);
    program
        .server
        .put(CLIENTS[1], 1, 1, &directory.base.trained(RoundKind::Up, 1).bytes())
        .expect_status(201);
    program.kill_and_wait();
    let config = directory.file_path("checked.toml");
    let check = |text: &str| {
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
        command.args(["adapter", "check-exchange"]).arg(&state).arg("--config").arg(&config);
        decode_output(&command.output().unwrap())
    };
    let text = directory.config_text();
    let (code, facts, errors) = check(&text);
    assert!(code == 0 && facts.ends_with("sound\n"), "{code} {facts} {errors}");
    let (code, _, errors) = check(&text.replace(CLIENTS[1], "bruno"));
    assert!(code == 1 && errors.contains("add the client to the configuration"), "{code} {errors}");
    let (code, _, errors) = check("bass = 3");
    assert!(code == 2 && errors.contains("checked.toml"), "{code} {errors}");
    std::fs::create_dir(state.join("updates-0004")).unwrap();
    std::fs::write(state.join("updates-0004/x"), "").unwrap();
    let (code, _, errors) = check_exchange(&state);
    assert!(code == 1 && errors.contains("updates of a later round"), "{code} {errors}");
}

/// A configuration that an average would refuse is refused before any client trains.
#[test]
fn rank_mismatch_is_refused_at_start() {
    let directory = ServerDirectory::new();
    std::fs::create_dir(directory.file_path("base")).unwrap();
    directory.base.write(&directory.file_path("base/adapter_model.safetensors"));
    let config = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "out"]}"#;
    std::fs::write(directory.file_path("base/adapter_config.json"), config).unwrap();
    let (code, errors) =
        run_refused(&directory, &["--set", &format!("base={:?}", directory.file_path("base"))]);
    assert!(code == 2 && errors.contains("rank 4") && errors.contains('8'), "{code} {errors}");
}

/// Uploads and downloads of a 48 MB adapter take less than 40 MB of memory.
#[test]
fn memory_does_not_grow_with_the_adapter() {
    let mut base = Adapter { dtype: Dtype::F32, tensors: std::collections::BTreeMap::new() };
    for (name, shape) in [("A", [4, 1_500_000]), ("B", [1_500_000, 4])] {
        let count = shape.iter().product();
        let name = format!("base_model.model.x.lora_{name}.weight");
        base.tensors.insert(name, (shape.to_vec(), vec![0.25; count]));
    }
    let directory = ServerDirectory::with_base(base);
    let program = start_program(&directory, &["--set", "rounds=1"]);
    let bytes = std::fs::read(directory.file_path("base.safetensors")).unwrap();
    std::thread::scope(|scope| {
        for client in CLIENTS {
            let (server, bytes) = (&program.server, &bytes);
            scope.spawn(move || server.put(client, 1, 1, bytes).expect_status(201));
        }
    });
    program.server.round_after(CLIENTS[0], 1);
    assert_eq!(program.server.download_model(), bytes);
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 40_000, "{peak} kB");
    program.kill_and_wait();
}
