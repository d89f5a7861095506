//! One virtual device for a real server: the same session, over TCP and real time.

use std::time::Duration;

use embedded_io_adapters::tokio_1::FromTokio;
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, Closed, run_async};
use fedspan_client::secure::Key;
use fedspan_client::session::{Config, Protection};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::data::Dataset;
use crate::fleet::{Build, SimSession, foreseeable};
use crate::network::Joins;
use crate::noise::Seeds;
use crate::scenario::Scenario;

/// A device that a real server knows: its number, and how it shows that it is the one.
#[derive(Clone, Debug)]
pub struct Identity {
    device: u64,
    protection: Protection,
    /// `None`: the scenario's seed will do.
    random: Option<ChaCha8Rng>,
}

impl Identity {
    /// A device without a key.
    #[must_use]
    pub fn plaintext(device: u64) -> Self {
        Self { device, protection: Protection::Plaintext, random: None }
    }

    /// A device with a key. Nobody may foresee `random`, nor may it come twice: there is no flash that numbers
    /// handshakes.
    #[must_use]
    pub fn with_key(device: u64, key: Key, random: ChaCha8Rng) -> Self {
        Self { device, protection: Protection::Key(key), random: Some(random) }
    }
}

/// Makes the session of client `index` (from 0) of a scenario.
#[must_use]
pub fn client_session(
    scenario: &Scenario,
    dataset: &Dataset,
    index: usize,
    identity: Identity,
    leave_when_fitted: bool,
) -> Option<SimSession> {
    let client = dataset.clients.iter().chain(&dataset.newcomers).nth(index)?;
    let build = Build::of(scenario, dataset, scenario.seed, Seeds::System).ok()?;
    let frame_limit = build.frame_limit();
    let config = Config { frame_limit, leave_when_fitted, ..Config::new(identity.device) };
    let random = identity.random.unwrap_or_else(|| foreseeable(scenario.seed, identity.device));
    // How long the others have trained nobody tells it.
    let after = Joins::AfterTraining { epochs: 0 };
    let joins = if index < dataset.clients.len() { Joins::First } else { after };
    build.session(config, identity.protection, client, joins, random).ok()
}

/// Runs a session over one connection until it ends.
///
/// # Errors
/// What the system says if the connection cannot be made.
pub async fn converse(
    session: &mut SimSession,
    address: &str,
    began: Instant,
) -> std::io::Result<Closed<std::io::Error>> {
    let socket = connect(address).await?;
    Ok(converse_over(session, socket, began).await)
}

/// Opens a TCP connection to a server, without Nagle's delay.
///
/// # Errors
/// The system's error if the connection cannot be made.
pub async fn connect(address: &str) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// The device's time: milliseconds since `began`.
#[must_use]
pub fn now_since(began: Instant) -> Millis {
    Millis::new(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Runs a session over a link that is there, until it ends. `began` is the device's time 0.
pub async fn converse_over(
    session: &mut SimSession,
    link: impl AsyncRead + AsyncWrite + Unpin,
    began: Instant,
) -> Closed<std::io::Error> {
    let config = session.config();
    let mut receive = vec![0; usize::from(config.frame_limit)];
    let mut transmit = vec![0; config.transmit_capacity()];
    let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
    let clock = move || now_since(began);
    let sleep =
        move |at: Millis| tokio::time::sleep_until(began + Duration::from_millis(at.as_u64().min(1 << 40)));
    run_async(session, &mut FromTokio::new(link), buffers, clock, sleep).await
}
