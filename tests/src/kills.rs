//! A real server under load from real device sessions, killed again and again without warning. Whatever a device was told is
//! held against what the server has kept, and everything that the server has decided is decided again from its journal.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fedspan_sim_core::device::{Identity, client_session, converse_over};
use fedspan_sim_core::scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fleet_of;
use crate::told::{Kept, Tap, Told, examine};

/// Devices.
const DEVICES: usize = 50;

/// A server's life after it listens, in milliseconds.
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

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// How often the server was killed.
    pub kills: u32,
    /// How often in the middle of a round that had updates.
    pub amid: usize,
    /// Rounds that were committed.
    pub rounds: usize,
    /// Updates that were counted.
    pub counted: usize,
    /// Acknowledgements that came to devices.
    pub acknowledged: usize,
    /// Milliseconds from a server's start until it listens: the middle one, and the longest.
    pub recovery: [u128; 2],
}

/// Kills the server `kills` times, then stops it and looks.
///
/// # Errors
/// What was lost, counted twice, or decided otherwise; or why it could not be tried.
pub async fn run(server: &Path, kills: u32, seed: u64) -> Result<Report, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let scenario =
        Scenario::parse("kills", &format!("{SCENARIO}{SECTIONS}"), &[]).map_err(|error| text(&error))?;
    let dataset = Arc::new(scenario.dataset(scenario.seed).map_err(|error| text(&error))?);
    let directory = std::env::temp_dir().join(format!("fedspan-kills-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(|error| text(&error))?;
    let (state, config) = (directory.join("state"), directory.join("fleet.toml"));
    let fleet = fleet_of(&scenario, &dataset, &state, SECTIONS).replace("tcp = ", "plaintext = true\ntcp = ")
        + "[rounds]\ndeadline = 0\n[limits]\nupdates = 1000000\n";
    std::fs::write(&config, fleet).map_err(|error| text(&error))?;
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let told = Told::default();
    let (address, _) = watch::channel(None);
    let mut devices = JoinSet::new();
    let mut recovery = Vec::new();
    for number in 0..=kills {
        let began = Instant::now();
        let (mut child, listening) = start(server, &config)?;
        recovery.push(began.elapsed().as_millis());
        address.send_replace(Some(listening));
        if number == 0 {
            for index in 0..DEVICES {
                let (scenario, dataset) = (scenario.clone(), Arc::clone(&dataset));
                let (told, mut address) = (told.clone(), address.subscribe());
                devices.spawn(async move {
                    let identity = Identity::plaintext(index as u64);
                    let Some(mut session) = client_session(&scenario, &dataset, index, identity, true) else {
                        return;
                    };
                    let began = tokio::time::Instant::now();
                    loop {
                        let at = *address.borrow_and_update();
                        if let Some(at) = at
                            && let Ok(stream) = TcpStream::connect(at).await
                        {
                            let _ = stream.set_nodelay(true);
                            let tap = Tap::new(stream, index as u64, told.clone());
                            let _ = converse_over(&mut session, tap, began).await;
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                });
            }
        }
        let span = LIFE.end - LIFE.start;
        let life = u64::from(LIFE.start + random.next_u32() % span);
        // The first has everybody come; the last is to show that it goes on.
        let life = if number == 0 || number == kills { 1000 } else { life };
        tokio::time::sleep(Duration::from_millis(life)).await;
        let ended = child.try_wait().map_err(|error| text(&error))?;
        if let Some(status) = ended {
            return Err(format!("the server ended by itself after {number} kills: {status}"));
        }
        child.kill().and_then(|()| child.wait()).map_err(|error| text(&error))?;
        if number % 100 == 99 {
            eprintln!("{} kills", number + 1);
        }
    }
    devices.shutdown().await;
    recovery.sort_unstable();
    let recovery =
        [recovery.len() / 2, recovery.len() - 1].map(|place| recovery.get(place).copied().unwrap_or(0));
    // A last server writes down what was durable and had not come to the journal's file, and is told to stop.
    let (mut child, _) = start(server, &config)?;
    let stopped = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    stopped.and_then(|_| child.wait()).map_err(|error| text(&error))?;
    let Kept { amid, rounds, counted } = examine(&scenario, &state, DEVICES, &told)?;
    std::fs::remove_dir_all(&directory).map_err(|error| text(&error))?;
    Ok(Report { kills, amid, rounds, counted, acknowledged: told.count(), recovery })
}

/// Starts a server, and waits until it listens.
///
/// # Errors
/// If it does not.
pub fn start(server: &Path, config: &Path) -> Result<(Child, SocketAddr), String> {
    let mut command = Command::new(server);
    command.args(["serve", "--config"]).arg(config).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", server.display()))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
    }
    let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(',').next()?.parse().ok());
    address.map(|address| (child, address)).ok_or_else(|| format!("the server said {line:?}"))
}
