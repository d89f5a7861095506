//! A scenario in real time: a real server, and every client as a device of its own over TCP on loopback, which sleeps
//! for as long as the scenario's fleet computes. What the server decided is in its journal; [`crate::run::Job::replay`]
//! decides it again.

mod again;
mod pace;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fedspan_aggregator::config::{Fleet, Limits, RoundsSection, Security};
use fedspan_aggregator::server::{Protection, ServeError, Server, Status, query};
use fedspan_engine::config::{Init, Said};
use fedspan_protocol::message::RoundOpen;
use getrandom::SysRng;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use again::{Again, AgainError, Timed, again};

use crate::data::Dataset;
use crate::device::{Identity, client_session, converse_over};
use crate::fleet::SimSession;
use crate::run::Times;
use crate::scenario::{Attacked, Scenario};

/// How long a device that found no server waits before it tries again.
const RETRY: Duration = Duration::from_millis(20);

/// Times that it tries in a row.
const TRIES: u32 = 500;

/// How often the server is asked how far it is.
const ASK: Duration = Duration::from_millis(200);

/// Bytes between a device's line and its session.
const LINE: usize = 1 << 16;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The scenario; its start must be one that a server can make.
    pub scenario: &'a Scenario,
    /// Its data.
    pub dataset: &'a Dataset,
    /// How long a mean computation takes.
    pub unit: Duration,
    /// The server's state directory.
    pub state: &'a Path,
}

/// A run that failed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The scenario cannot be served.
    #[error("{0}")]
    Scenario(String),
    /// The scenario has attackers.
    #[error(transparent)]
    Attacked(#[from] Attacked),
    /// The server ended early.
    #[error(transparent)]
    Server(#[from] ServeError),
    /// A device ended early.
    #[error("client {client}: {message}")]
    Device {
        /// Which, from 0.
        client: usize,
        /// What happened.
        message: String,
    },
    /// A fault of this program.
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// The server's configuration for a scenario's campaign: the engine that the simulator builds, and limits that
/// nothing on loopback comes near.
///
/// # Errors
/// [`LiveError::Scenario`] and [`LiveError::Attacked`] if a server cannot run it.
pub fn campaign(scenario: &Scenario, dataset: &Dataset, state: &Path) -> Result<Fleet, LiveError> {
    let refuse = |why: &str| Err(LiveError::Scenario(format!("{}: {why}", scenario.name)));
    if !scenario.is_federated() {
        return refuse("this algorithm has no rounds to serve");
    }
    if matches!(scenario.model.init, Init::TruthSine(_) | Init::Npy(_)) {
        return refuse("a server starts by \"random\", \"power\" or \"moments\": set model.init");
    }
    if scenario.fleet.dropout > 0.0 || scenario.fleet.link.is_some() || scenario.deadline.is_some() {
        return refuse(
            "dropouts, slow links and deadlines in mean computations are simulated only: leave out fleet.dropout, \
             fleet.bandwidth and rounds.deadline",
        );
    }
    scenario.check_honest()?;
    let clients = dataset.clients.len();
    let long = Duration::from_secs(86_400);
    Ok(Fleet {
        seed: scenario.seed,
        state: state.to_owned(),
        journal: true,
        tcp: "127.0.0.1:0".to_owned(),
        serial: Vec::new(),
        baud: 115_200,
        expected: clients,
        allowed: None,
        security: Security::Plaintext,
        absence: Duration::from_secs(30),
        shape: dataset.sizes(),
        scale: scenario.scale.clone(),
        model: scenario.model.clone(),
        algorithm: scenario.algorithm.clone(),
        rule: scenario.rule,
        participation: scenario.participation,
        privacy: None,
        stop_change: scenario.stop.change,
        rounds: RoundsSection { deadline: None, min_count: 1, over_select: 1.0 },
        limits: Limits {
            connections: clients + 16,
            per_address: clients + 16,
            unauthenticated: clients + 16,
            updates: u32::MAX,
            hello: Duration::from_secs(60),
            // Who sleeps is silent, and is not to be asked again.
            idle: long,
            frame: Duration::from_secs(60),
            repeat: long,
            norm: scenario.norm,
            samples: scenario.samples,
        },
        said: said(scenario),
    })
}

/// Keys of a server's configuration that a scenario says.
fn said(scenario: &Scenario) -> Said {
    let mut said = scenario.said.clone();
    // They are the data's.
    ["data.d", "data.outputs", "data.image"].into_iter().for_each(|key| said.add(key));
    if said.says("fleet.communication") {
        said.add("participation.communication");
    }
    said
}

/// Runs it to the end of its campaign and gives the server's last status; `progress` hears one now and then. Whatever
/// ends this future ends server and devices.
///
/// # Errors
/// [`LiveError`].
pub async fn run(
    plan: &Plan<'_>,
    interrupted: impl Future<Output = ()>,
    mut progress: impl FnMut(&serde_json::Value),
) -> Result<Status, LiveError> {
    let Plan { scenario, dataset, unit, state } = plan;
    let server = Server::bind(campaign(scenario, dataset, state)?, 1, SysRng, Protection::Plaintext).await?;
    let address = server.address()?.to_string();
    let mut serving = JoinSet::new();
    serving.spawn(server.serve(std::future::pending(), true));
    let clients = dataset.clients.len();
    let times = Times::of(scenario, dataset, scenario.seed);
    let times = Arc::new(times.map_err(|error| LiveError::Scenario(error.to_string()))?);
    let communication = scenario.fleet.communication;
    let mut devices = JoinSet::new();
    for client in 0..clients {
        let Some(session) =
            client_session(scenario, dataset, client, Identity::plaintext(client as u64), true)
        else {
            continue;
        };
        let (times, unit, address) = (Arc::clone(&times), *unit, address.clone());
        let sleep = move |open: &RoundOpen| {
            let units = times.time(client, open.id.round, &open.task) + communication;
            Duration::try_from_secs_f64(unit.as_secs_f64() * units).unwrap_or(Duration::MAX)
        };
        devices.spawn(async move {
            take_part(session, &address, sleep).await.map_err(|message| LiveError::Device { client, message })
        });
    }
    let mut interrupted = std::pin::pin!(interrupted);
    let mut ask = tokio::time::interval(ASK);
    loop {
        tokio::select! {
            biased;
            () = &mut interrupted => return Err(LiveError::Interrupted),
            Some(served) = serving.join_next() => return Ok(served??),
            Some(ended) = devices.join_next() => ended??,
            _ = ask.tick() => {
                let asked = query(state, "status", |line| {
                    if let Ok(status) = serde_json::from_str(line) {
                        progress(&status);
                    }
                    Ok(())
                });
                // It may not be up yet, or be gone already.
                let _ = asked.await;
            }
        }
    }
}

/// One device, until its head is fitted.
async fn take_part(
    mut session: SimSession,
    address: &str,
    sleep: impl Fn(&RoundOpen) -> Duration,
) -> Result<(), String> {
    let began = Instant::now();
    let mut tries = 0;
    loop {
        let failed = match TcpStream::connect(address).await {
            Ok(socket) => {
                let _ = socket.set_nodelay(true);
                let (line, end) = tokio::io::duplex(LINE);
                let limit = usize::from(session.config().frame_limit);
                tokio::select! {
                    _ = converse_over(&mut session, end, began) => {}
                    _ = pace::carry(socket, line, limit, &sleep) => {}
                }
                if session.is_fitted() {
                    return Ok(());
                }
                if let Some(refusal) = session.refusal() {
                    return Err(refusal.to_string());
                }
                "the connection was lost".to_owned()
            }
            Err(error) => error.to_string(),
        };
        tries += 1;
        if tries == TRIES {
            return Err(failed);
        }
        tokio::time::sleep(RETRY).await;
    }
}
