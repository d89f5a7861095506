//! Test of a real server that is killed repeatedly while real device sessions load it. Afterwards every
//! acknowledgement is compared with the server's state, and the journal is replayed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fedspan_sim_core::device::{Identity, client_session, run_session_over};
use fedspan_sim_core::scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fleet_of;
use crate::observed_acks::{AckRecorder, Audit, ObservedAcks, audit};

/// Number of devices.
const DEVICES: usize = 50;

/// Time from the start of listening to the kill, in ms.
const LIFE: std::ops::Range<u32> = 1..60;

const SCENARIO: &str = r#"
seed = 11
[data]
kind = "linear-regression"
clients = 50
d = 20
k = 2
samples = 10
noise_std = 0.1
[limits]
norm = 1e4
samples = 100000
"#;

const SECTIONS: &str = r#"
[model]
k = 2
[algorithm]
name = "fedrep"
rounds = 1000000
step_size = 0.25
[participation]
policy = "full"
"#;

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Number of kills.
    pub kills: u32,
    /// Number of kills in the middle of a round that had updates.
    pub mid_round: usize,
    /// Number of committed rounds.
    pub rounds: usize,
    /// Number of counted updates.
    pub counted: usize,
    /// Number of acknowledgements that devices received.
    pub acknowledged: usize,
    /// Time from the server's start until it listens, in ms: median and maximum.
    pub recovery: [u128; 2],
}

/// Kills the server `kills` times, then stops it in order and audits its state.
///
/// # Errors
/// The first finding of [`audit`], or the reason why the run failed.
pub async fn run(server: &Path, kills: u32, seed: u64) -> Result<Report, String> {
    let describe = |error: &dyn std::fmt::Display| error.to_string();
    let scenario =
        Scenario::parse("kills", &format!("{SCENARIO}{SECTIONS}"), &[]).map_err(|error| describe(&error))?;
    let dataset = Arc::new(scenario.dataset(scenario.seed).map_err(|error| describe(&error))?);
    let directory = std::env::temp_dir().join(format!("fedspan-kills-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(|error| describe(&error))?;
    let (state, config) = (directory.join("state"), directory.join("fleet.toml"));
    let fleet = fleet_of(&scenario, &dataset, &state, SECTIONS).replace("tcp = ", "plaintext = true\ntcp = ")
        + "[rounds]\ndeadline = 0\n[limits]\nupdates = 1000000\n";
    std::fs::write(&config, fleet).map_err(|error| describe(&error))?;
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let acks = ObservedAcks::default();
    let (address, _) = watch::channel(None);
    let mut devices = JoinSet::new();
    let mut recovery = Vec::new();
    for number in 0..=kills {
        let start = Instant::now();
        let (mut child, listening) = start_server(server, &config)?;
        recovery.push(start.elapsed().as_millis());
        address.send_replace(Some(listening));
        if number == 0 {
            for index in 0..DEVICES {
                let (scenario, dataset) = (scenario.clone(), Arc::clone(&dataset));
                let (acks, mut address) = (acks.clone(), address.subscribe());
                devices.spawn(async move {
                    let identity = Identity::plaintext(index as u64);
                    let Some(mut session) = client_session(&scenario, &dataset, index, identity, true) else {
                        return;
                    };
                    let start = tokio::time::Instant::now();
                    loop {
                        let server_address = *address.borrow_and_update();
                        if let Some(server_address) = server_address
                            && let Ok(stream) = TcpStream::connect(server_address).await
                        {
                            let _ = stream.set_nodelay(true);
                            let recorder = AckRecorder::new(stream, index as u64, acks.clone());
                            let _ = run_session_over(&mut session, recorder, start).await;
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                });
            }
        }
        let span = LIFE.end - LIFE.start;
        let life = u64::from(LIFE.start + random.next_u32() % span);
        // The first server runs long enough for all devices to join, the last one for some undisturbed
        // rounds.
        let life = if number == 0 || number == kills { 1000 } else { life };
        tokio::time::sleep(Duration::from_millis(life)).await;
        let exit_status = child.try_wait().map_err(|error| describe(&error))?;
        if let Some(status) = exit_status {
            return Err(format!("the server exited by itself after {number} kills: {status}"));
        }
        child.kill().and_then(|()| child.wait()).map_err(|error| describe(&error))?;
        if number % 100 == 99 {
            eprintln!("{} kills", number + 1);
        }
    }
    devices.shutdown().await;
    recovery.sort_unstable();
    let recovery =
        [recovery.len() / 2, recovery.len() - 1].map(|index| recovery.get(index).copied().unwrap_or(0));
    // One more run and an orderly stop bring the journal's file up to date with the store.
    let (mut child, _) = start_server(server, &config)?;
    let stopped = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    stopped.and_then(|_| child.wait()).map_err(|error| describe(&error))?;
    let Audit { mid_round, rounds, counted } = audit(&scenario, &state, DEVICES, &acks)?;
    std::fs::remove_dir_all(&directory).map_err(|error| describe(&error))?;
    Ok(Report { kills, mid_round, rounds, counted, acknowledged: acks.count(), recovery })
}

/// Starts a server and waits until it listens.
///
/// # Errors
/// If the server cannot be started or does not print its address.
pub fn start_server(server: &Path, config: &Path) -> Result<(Child, SocketAddr), String> {
    let mut command = Command::new(server);
    command.args(["serve", "--config"]).arg(config).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", server.display()))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
    }
    let address =
        line.strip_prefix("listening on ").and_then(|remaining| remaining.split(',').next()?.parse().ok());
    address
        .map(|address| (child, address))
        .ok_or_else(|| format!("the server printed {line:?} instead of its address"))
}
