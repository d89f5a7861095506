//! Test helpers for tests across crates: a server on a free port, simulated clients as tokio tasks, and the
//! code of the programs that measure servers, devices and tables.

#![forbid(unsafe_code)]

pub mod benchmarks;
pub mod disasters;
pub mod exponential;
pub mod keys;
pub mod kills;
pub mod lists;
pub mod load;
pub mod measured_cycles;
pub mod observed_acks;
pub mod recovery;
pub mod replay;
pub mod silent;
pub mod tables;

use std::net::SocketAddr;
use std::path::Path;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::{Protection, ServeError, Server, Status};
use fedspan_protocol::message::Image;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::{Identity, client_session, run_session};
use fedspan_sim_core::fleet::SimSession;
use fedspan_sim_core::scenario::Scenario;
use getrandom::SysRng;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A server that runs as a task of this process.
#[derive(Debug)]
pub struct Running {
    /// Address on which the server listens.
    pub address: SocketAddr,
    /// Address for packets over UDP, if the configuration has one.
    pub udp: Option<SocketAddr>,
    /// Channel that shuts the server down before the end of the campaign when a message is sent.
    pub stop: oneshot::Sender<()>,
    /// Handle of the server's task; it yields the final status.
    pub end: JoinHandle<Result<Status, ServeError>>,
}

/// Starts a server from the text of a `fleet.toml`, without encryption. The server ends when the campaign is
/// finished.
///
/// # Errors
/// The message of the configuration error, or of the error with which the server could not bind.
pub async fn start(fleet: &str) -> Result<Running, String> {
    start_with(fleet, Protection::Plaintext, Vec::new(), true).await
}

/// Starts a server like [`start`], with keys and with serial lines that are already connected. If
/// `until_finished` is false, the server runs until it is stopped.
///
/// # Errors
/// See [`start`].
pub async fn start_with(
    fleet: &str,
    protection: Protection,
    lines: Vec<DuplexStream>,
    until_finished: bool,
) -> Result<Running, String> {
    let fleet = Fleet::parse("fleet.toml", fleet).map_err(|problem| problem.to_string())?;
    let mut server = Server::bind(fleet, 1, SysRng, protection).await.map_err(|error| error.to_string())?;
    for (index, line) in lines.into_iter().enumerate() {
        server.attach_link(format!("line {index}"), line);
    }
    let address = server.address().map_err(|error| error.to_string())?;
    let udp = server.udp_address();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        // Dropping the sender must not stop the server.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let end = tokio::spawn(server.serve(shutdown, until_finished));
    Ok(Running { address, udp, stop, end })
}

/// Returns the `fleet.toml` that serves the campaign of a scenario.
#[must_use]
pub fn fleet_of(scenario: &Scenario, dataset: &Dataset, state: &Path, sections: &str) -> String {
    let image = dataset.sizes().image.map_or_else(String::new, |Image { height, width, channels }| {
        format!("image = [{height}, {width}, {channels}]\n")
    });
    format!(
        "seed = {}\nstate = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\n[devices]\nexpected = {}\n[data]\nd = {}\noutputs = {}\n{image}{sections}",
        scenario.seed,
        state.display().to_string(),
        dataset.clients.len(),
        dataset.features,
        dataset.outputs,
    )
}

/// Runs client `index` (from 0) of a scenario as a device until its head is fitted.
///
/// # Errors
/// If the client does not exist, if the server refuses it, or if 200 connections did not suffice.
pub async fn device(
    scenario: Scenario,
    dataset: std::sync::Arc<Dataset>,
    index: usize,
    identity: Identity,
    address: SocketAddr,
) -> Result<SimSession, String> {
    let mut session = client_session(&scenario, &dataset, index, identity, true)
        .ok_or("the scenario has no client of this index")?;
    let start = Instant::now();
    for _ in 0..200 {
        let result = run_session(&mut session, &address.to_string(), start).await;
        if session.is_fitted() {
            return Ok(session);
        }
        if let Some(refusal) = session.refusal() {
            return Err(refusal.to_string());
        }
        if result.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    Err("the head was not fitted after 200 connections".to_owned())
}
