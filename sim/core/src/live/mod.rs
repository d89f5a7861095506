//! Live run of a scenario with a real server. Each client is a device that is connected over TCP on loopback
//! and sleeps for its computation time. The server records its decisions in a journal, which
//! [`crate::run::Job::replay`] compares with the simulator's decisions.

mod delayed_link;
mod replay_check;
mod server_config;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fedspan_aggregator::config::{Fleet, Limits, RoundsSection, Security};
use fedspan_aggregator::server::{Protection, ServeError, Server, Status, query};
use fedspan_engine::CustomNames;
use fedspan_engine::config::GivenKeys;
use fedspan_protocol::message::RoundOpen;
use getrandom::SysRng;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use replay_check::{ReplayCheck, ReplayCheckError, TimedRound, check_replay};
pub use server_config::server_configuration;

use crate::data::Dataset;
use crate::device::{Identity, client_session, run_session_over};
use crate::fleet::SimSession;
use crate::run::Times;
use crate::scenario::{AttackNotAllowed, Scenario};

/// Delay before a device retries a failed connection.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Largest number of connection attempts of a device.
const MAX_ATTEMPTS: u32 = 500;

/// Interval between two status requests to the server.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// Capacity in bytes of the pipe between a device's link and its session.
const PIPE_CAPACITY: usize = 1 << 16;

/// Settings of a live run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Scenario to run. A server must be able to compute the initial representation.
    pub scenario: &'a Scenario,
    /// Data of the scenario.
    pub dataset: &'a Dataset,
    /// Duration of a mean computation, the unit of computation times.
    pub unit: Duration,
    /// State directory of the server.
    pub state: &'a Path,
}

/// Error of a live run.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The scenario cannot be served.
    #[error("{0}")]
    Scenario(String),
    /// The scenario has attackers, or step sizes that can only be measured in a simulation.
    #[error(transparent)]
    AttackNotAllowed(#[from] AttackNotAllowed),
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServeError),
    /// A device failed.
    #[error("client {client}: {message}")]
    Device {
        /// Index of the client, from 0.
        client: usize,
        /// Cause of the failure.
        message: String,
    },
    /// A task panicked, which is a bug in this program.
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Builds the server's configuration for a scenario. The engine is configured as in the simulator, and limits
/// are so high that a run on loopback does not reach them.
///
/// # Errors
/// [`LiveError::Scenario`] or [`LiveError::AttackNotAllowed`] if a server cannot run the scenario.
pub fn campaign(scenario: &Scenario, dataset: &Dataset, state: &Path) -> Result<Fleet, LiveError> {
    if let Some(reason) = scenario.not_served_because() {
        return Err(LiveError::Scenario(format!("{}: {reason}", scenario.name)));
    }
    scenario.check_runs_on_devices()?;
    let clients = dataset.clients.len();
    let one_day = Duration::from_secs(86_400);
    Ok(Fleet {
        seed: scenario.seed,
        state: state.to_owned(),
        journal: true,
        tcp: "127.0.0.1:0".to_owned(),
        udp: None,
        packet: 1232,
        short_tags: true,
        beacon: None,
        beacon_delay: Duration::ZERO,
        serial: Vec::new(),
        baud: 115_200,
        expected: clients,
        // Devices have the numbers of the clients, from 0.
        first_device: 0,
        allowed: None,
        held_out: Vec::new(),
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
        rounds: RoundsSection { deadline: None, patience: None, every: None, min_count: 1, over_select: 1.0 },
        limits: Limits {
            connections: clients + 16,
            per_address: clients + 16,
            unauthenticated: clients + 16,
            updates: u32::MAX,
            hello: Duration::from_secs(60),
            // A sleeping device sends nothing, but must not be disconnected or asked again.
            idle: one_day,
            frame: Duration::from_secs(60),
            repeat: one_day,
            norm: scenario.norm,
            samples: scenario.samples,
        },
        given: configured_keys(scenario),
        custom: CustomNames::default(),
    })
}

/// Keys of the server's configuration that the scenario sets.
fn configured_keys(scenario: &Scenario) -> GivenKeys {
    let mut keys = scenario.given.clone();
    // These keys are determined by the data.
    ["data.d", "data.outputs", "data.image"].into_iter().for_each(|key| keys.add(key));
    if keys.contains("fleet.communication") {
        keys.add("participation.communication");
    }
    keys
}

/// Runs a scenario until the campaign ends and returns the server's final status. `progress` is called with
/// the status at a fixed interval. Dropping the future stops the server and the devices.
///
/// # Errors
/// [`LiveError`] if the scenario cannot be served, the server or a device fails, or `interrupted` completes.
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
    let times = Times::new(scenario, dataset, scenario.seed);
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
            run_device(session, &address, sleep)
                .await
                .map_err(|message| LiveError::Device { client, message })
        });
    }
    let mut interrupted = std::pin::pin!(interrupted);
    let mut ask = tokio::time::interval(STATUS_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = &mut interrupted => return Err(LiveError::Interrupted),
            Some(served) = serving.join_next() => return Ok(served??),
            Some(ended) = devices.join_next() => ended??,
            _ = ask.tick() => {
                let status_query = query(state, "status", |line| {
                    if let Ok(status) = serde_json::from_str(line) {
                        progress(&status);
                    }
                    Ok(())
                });
                // Errors are ignored: the server may not have started yet, or may have ended.
                let _ = status_query.await;
            }
        }
    }
}

/// Runs a device until its head is fitted. Reconnects if the connection is lost.
async fn run_device(
    mut session: SimSession,
    address: &str,
    sleep: impl Fn(&RoundOpen) -> Duration,
) -> Result<(), String> {
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        let failed = match TcpStream::connect(address).await {
            Ok(socket) => {
                let _ = socket.set_nodelay(true);
                let (line, end) = tokio::io::duplex(PIPE_CAPACITY);
                let limit = usize::from(session.config().frame_limit);
                tokio::select! {
                    _ = run_session_over(&mut session, end, began) => {}
                    _ = delayed_link::relay(socket, line, limit, &sleep) => {}
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
        attempts += 1;
        if attempts == MAX_ATTEMPTS {
            return Err(failed);
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
