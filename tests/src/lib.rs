//! Helpers of the cross-crate tests: a server on a free port, devices as tasks.

#![forbid(unsafe_code)]

pub mod cycles;
pub mod disasters;
pub mod epochs;
pub mod exponential;
pub mod keys;
pub mod kills;
pub mod lists;
pub mod load;
pub mod recovery;
pub mod replay;
pub mod tables;
pub mod told;

use std::net::SocketAddr;
use std::path::Path;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::{Protection, ServeError, Server, Status};
use fedspan_protocol::message::Image;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::device::{Identity, client_session, converse};
use fedspan_sim_core::fleet::SimSession;
use fedspan_sim_core::scenario::Scenario;
use getrandom::SysRng;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A running server.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// Completes it early.
    pub stop: oneshot::Sender<()>,
    /// Its end.
    pub end: JoinHandle<Result<Status, ServeError>>,
}

/// Starts a server from the text of a `fleet.toml`; it ends when the campaign is finished. Frames are not encrypted.
///
/// # Errors
/// What the server says.
pub async fn start(fleet: &str) -> Result<Running, String> {
    start_with(fleet, Protection::Plaintext, Vec::new(), true).await
}

/// [`start`] with keys, with lines that are there already, and if wanted until it is stopped.
///
/// # Errors
/// What the server says.
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
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        // A sender that was dropped is no command to stop.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let end = tokio::spawn(server.serve(shutdown, until_finished));
    Ok(Running { address, stop, end })
}

/// The `fleet.toml` that serves a scenario's campaign.
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

/// Client `index` (from 0) of a scenario as a device task that takes part until its head is fitted.
///
/// # Errors
/// If there is no such client, or the connection fails for good.
pub async fn device(
    scenario: Scenario,
    dataset: std::sync::Arc<Dataset>,
    index: usize,
    identity: Identity,
    address: SocketAddr,
) -> Result<SimSession, String> {
    let mut session = client_session(&scenario, &dataset, index, identity, true).ok_or("no such client")?;
    let began = Instant::now();
    for _ in 0..200 {
        let ended = converse(&mut session, &address.to_string(), began).await;
        if session.is_fitted() {
            return Ok(session);
        }
        if let Some(refusal) = session.refusal() {
            return Err(refusal.to_string());
        }
        if ended.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    Err("the device never finished".to_owned())
}
