//! Virtual device for a real server: runs the client's session over TCP and in real time.

use std::time::Duration;

use embedded_io_adapters::tokio_1::FromTokio;
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, Closed, run_async};
use fedspan_client::secure::{Key, Suite};
use fedspan_client::session::{About, Config, Protection, Sleep};
use fedspan_protocol::datagram::FRAME_MAX;
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::data::Dataset;
use crate::fleet::{DeviceFactory, SimSession, deterministic_rng};
use crate::network::JoinTime;
use crate::noise::SeedSource;
use crate::scenario::Scenario;

/// Number of a device, the key that authenticates it to a server, and the times at which it connects.
#[derive(Clone, Debug)]
pub struct Identity {
    device: u64,
    protection: Protection,
    /// Random generator for the handshake; `None` for a generator that is seeded from the scenario's seed.
    random: Option<ChaCha8Rng>,
    sleep: Option<Sleep>,
    receives_beacons: bool,
    about: Option<About>,
    suite: Suite,
    /// Longest frame that the link carries, in bytes.
    longest_frame: usize,
}

impl Identity {
    /// Creates the identity of a device without a key.
    #[must_use]
    pub fn plaintext(device: u64) -> Self {
        Self {
            device,
            protection: Protection::Plaintext,
            random: None,
            sleep: None,
            receives_beacons: false,
            about: None,
            suite: Suite::default(),
            longest_frame: FRAME_LIMIT_MAX,
        }
    }

    /// Creates the identity of a device with a key. `random` must be unpredictable and never reused, because
    /// a virtual device has no flash in which handshakes are counted.
    #[must_use]
    pub fn with_key(device: u64, key: Key, random: ChaCha8Rng) -> Self {
        Self {
            device,
            protection: Protection::Key(key),
            random: Some(random),
            sleep: None,
            receives_beacons: false,
            about: None,
            suite: Suite::default(),
            longest_frame: FRAME_LIMIT_MAX,
        }
    }

    /// Lets a device with a key seal its frames with short counters and tags.
    #[must_use]
    pub fn with_short_tags(self) -> Self {
        let protection = match self.protection {
            Protection::Key(key) => Protection::ShortTags(key),
            other => other,
        };
        Self { protection, ..self }
    }

    /// Lets a device with a key seal its frames with this algorithm.
    #[must_use]
    pub fn with_suite(self, suite: Suite) -> Self {
        Self { suite, ..self }
    }

    /// Lets the device use a link over packets, which carries shorter frames than a stream.
    #[must_use]
    pub fn over_packets(self) -> Self {
        Self { longest_frame: FRAME_MAX, ..self }
    }

    /// Lets the device report about itself.
    #[must_use]
    pub fn with_about(self, about: About) -> Self {
        Self { about: Some(about), ..self }
    }

    /// Lets rounds open on the device by beacons, which its link delivers.
    #[must_use]
    pub fn with_beacons(self) -> Self {
        Self { receives_beacons: true, ..self }
    }

    /// Lets the device sleep between rounds; with `None` it stays connected.
    #[must_use]
    pub fn with_sleep(self, sleep: Option<Sleep>) -> Self {
        Self { sleep, ..self }
    }
}

/// Creates the session of a client of a scenario. `index` counts from 0; newcomers follow the training
/// clients. Returns `None` if the scenario has no such client or the device cannot be built.
#[must_use]
pub fn client_session(
    scenario: &Scenario,
    dataset: &Dataset,
    index: usize,
    identity: Identity,
    leave_when_fitted: bool,
) -> Option<SimSession> {
    let client = dataset.clients.iter().chain(&dataset.newcomers).nth(index)?;
    let mut build = DeviceFactory::new(scenario, dataset, scenario.seed, SeedSource::System).ok()?;
    // The arithmetic is the client's, for every number of its device.
    build.arithmetic.numeric = Some(build.arithmetic.numeric_of(index as u64));
    let Identity { device, protection, random, sleep, receives_beacons, about, suite, longest_frame } =
        identity;
    (build.suite, build.longest_frame) = (suite, longest_frame);
    let frame_limit = build.frame_limit();
    let config =
        Config { frame_limit, leave_when_fitted, sleep, receives_beacons, about, ..Config::new(device) };
    let random = random.unwrap_or_else(|| deterministic_rng(scenario.seed, device));
    // The number of epochs that the other devices have trained is unknown here, so a newcomer trains only its
    // head.
    let newcomer_join = JoinTime::AfterTraining { epochs: 0 };
    let join_time = if index < dataset.clients.len() { JoinTime::BeforeTraining } else { newcomer_join };
    build.session(config, protection, client, join_time, random).ok()
}

/// Runs a session over a new TCP connection until the session or the connection ends.
///
/// # Errors
/// The system's error if the connection cannot be made.
pub async fn run_session(
    session: &mut SimSession,
    address: &str,
    began: Instant,
) -> std::io::Result<Closed<std::io::Error>> {
    let socket = connect(address).await?;
    Ok(run_session_over(session, socket, began).await)
}

/// Opens a TCP connection to a server, with Nagle's algorithm disabled.
///
/// # Errors
/// The system's error if the connection cannot be made.
pub async fn connect(address: &str) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Time on a device's clock: milliseconds since `began`.
#[must_use]
pub fn now_since(began: Instant) -> Millis {
    began.elapsed().into()
}

/// Runs a session over an open link until the session or the link ends. `began` is time 0 of the device's
/// clock.
pub async fn run_session_over(
    session: &mut SimSession,
    link: impl AsyncRead + AsyncWrite + Unpin,
    began: Instant,
) -> Closed<std::io::Error> {
    let config = session.config();
    let mut receive = vec![0; usize::from(config.frame_limit)];
    let mut transmit = vec![0; config.transmit_capacity()];
    let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
    let clock = move || now_since(began);
    let sleep = move |until: Millis| {
        tokio::time::sleep_until(began + Duration::from_millis(until.as_u64().min(1 << 40)))
    };
    run_async(session, &mut FromTokio::new(link), buffers, clock, sleep).await
}
