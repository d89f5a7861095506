//! Command `device`: runs one virtual device that takes part in the campaign of a real server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use fedspan_aggregator::keys::read_keys;
use fedspan_client::Millis;
use fedspan_client::secure::Suite;
use fedspan_client::session::{About, Event, ResetReason, Sleep};
use fedspan_engine::DeviceId;
use fedspan_engine::config::read_file;
use fedspan_sim_core::data::{self, Dataset};
use fedspan_sim_core::device::{Identity, client_session, connect, now_since, run_session_over};
use fedspan_sim_core::evaluate;
use fedspan_sim_core::fleet::SimSession;
use fedspan_sim_core::scenario::Scenario;
use fedspan_sim_core::udp_link::UdpLink;
use getrandom::SysRng;
use rand_chacha::ChaCha8Rng;
use rand_core::{SeedableRng, TryRng};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// Options of command `device`.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// Address of the aggregator, HOST:PORT
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    /// Client of the scenario whose data this device has, from 1; held-out clients follow the other clients.
    /// The number is also the identity of the device.
    #[arg(long, value_name = "N", visible_alias = "client")]
    wearer: usize,
    /// Scenario with the data, model and seed of the device: name of a built-in scenario, or a file.
    #[arg(long, value_name = "NAME|FILE", default_value = "demo")]
    scenario: String,
    /// Change a key of the scenario.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// File with the device's key, as written by `fedspan-aggregator keys export`.
    #[arg(long, value_name = "FILE", required_unless_present = "plaintext", conflicts_with = "plaintext")]
    keys: Option<PathBuf>,
    /// Connect without a key, for a test bench; the server's configuration must have `plaintext = true`.
    #[arg(long)]
    plaintext: bool,
    /// Send packets over UDP to the address of --connect, where the server listens (udp in its section listen).
    #[arg(long)]
    udp: bool,
    /// With --udp: longest packet in bytes.
    #[arg(long, value_name = "BYTES", requires = "udp", default_value_t = 1232, value_parser = clap::value_parser!(u16).range(18..=4096))]
    packet: u16,
    /// With --udp: address at which beacons of the server arrive, one of this host or a multicast group (beacon in its section listen).
    #[arg(long, value_name = "HOST:PORT", requires = "udp", requires = "keys")]
    beacons: Option<String>,
    /// Save 14 bytes of each frame by short counters and tags.
    #[arg(long, requires = "keys")]
    short_tags: bool,
    /// Algorithm that seals frames; the server takes both.
    #[arg(long, value_name = "ALGORITHM", requires = "keys", value_enum, default_value_t)]
    cipher: Cipher,
    /// Stay connected after the final head is fitted.
    #[arg(long)]
    stay: bool,
    /// Sleep between rounds: disconnect after a round, or if none opens within two seconds, and connect again after this time, or
    /// when the server has said that the next round can open.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    sleep: Option<u32>,
}

/// Algorithm that seals frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Cipher {
    /// ChaCha20-Poly1305.
    #[default]
    Chacha20Poly1305,
    /// AES-128-CCM, for which many chips have hardware.
    #[value(name = "aes-128-ccm")]
    Aes128Ccm,
}

/// Runs command `device`: connects, takes part in the campaign, and reconnects after a lost connection.
#[must_use]
pub fn command(arguments: &DeviceOptions) -> ExitCode {
    match prepare_session(arguments) {
        Ok((scenario, dataset, session)) => {
            if let Some(warning) = fedspan_client::WARNING {
                eprintln!("device {}: {warning}", arguments.wearer);
            }
            if session.is_plaintext() {
                eprintln!(
                    "device {}: PLAINTEXT: frames are not encrypted and the server is not authenticated; for the test bench only",
                    arguments.wearer
                );
            }
            if arguments.wearer > dataset.clients.len() {
                eprintln!(
                    "device {}: this client comes after training in the scenario; a server whose [devices] has no held_out = [{}] trains on \
                     its samples too (`fedspan-sim fleet` writes that key)",
                    arguments.wearer, arguments.wearer
                );
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(run_device(arguments, &scenario, &dataset, session)),
                Err(error) => report_failure(1, &error.to_string()),
            }
        }
        Err(message) => report_failure(2, &message),
    }
}

/// Prints an error message and returns the exit code.
fn report_failure(code: u8, message: &str) -> ExitCode {
    eprintln!("fedspan-sim device: {message}");
    ExitCode::from(code)
}

/// Prepares scenario, data and session of the device.
fn prepare_session(arguments: &DeviceOptions) -> Result<(Scenario, Dataset, SimSession), String> {
    let address = &arguments.connect;
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    if port.and_then(|port| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
        return Err(format!("--connect {address}: allowed: HOST:PORT, with a port from 1 to 65535"));
    }
    let name = &arguments.scenario;
    let text = match Scenario::built_in(name) {
        Some(text) => text.to_owned(),
        None => read_file(Path::new(name)).map_err(|problem| problem.to_string())?,
    };
    let scenario = Scenario::parse(name, &text, &arguments.set).map_err(|problem| problem.to_string())?;
    // Step sizes come from the server, so one that is to be measured is no reason to refuse.
    if scenario.attack.is_some() {
        scenario.check_runs_on_devices().map_err(|error| error.to_string())?;
    }
    let dataset = scenario.dataset(scenario.seed).map_err(|error| error.to_string())?;
    let count = dataset.clients.len() + dataset.newcomers.len();
    let sleep = arguments.sleep.map(|seconds| Sleep::once_in(seconds.saturating_mul(1_000)));
    let mut identity = identity(arguments)?.with_sleep(sleep).with_about(about());
    if arguments.short_tags {
        identity = identity.with_short_tags();
    }
    if arguments.cipher == Cipher::Aes128Ccm {
        identity = identity.with_suite(Suite::Aes128Ccm);
    }
    if arguments.beacons.is_some() {
        identity = identity.with_beacons();
    }
    if arguments.udp {
        identity = identity.over_packets();
    }
    let session = arguments
        .wearer
        .checked_sub(1)
        .and_then(|index| client_session(&scenario, &dataset, index, identity, !arguments.stay))
        .ok_or_else(|| format!("--wearer {}: this scenario has clients 1 to {count}", arguments.wearer))?;
    Ok((scenario, dataset, session))
}

/// Reads the device's key, if there is one, and creates the identity for the connection.
fn identity(arguments: &DeviceOptions) -> Result<Identity, String> {
    let device = arguments.wearer as u64;
    let Some(file) = &arguments.keys else { return Ok(Identity::plaintext(device)) };
    let mut keys = read_keys(file).map_err(|error| error.to_string())?;
    let key = keys
        .remove(&DeviceId(device))
        .ok_or_else(|| format!("{}: no key of device {device} in it", file.display()))?;
    let mut seed = [0; 32];
    SysRng.try_fill_bytes(&mut seed).map_err(|error| format!("no randomness: {error}"))?;
    Ok(Identity::with_key(device, key, ChaCha8Rng::from_seed(seed)))
}

/// Runs the session over successive connections until the final head is fitted, the server refuses the
/// device, or Ctrl-C. Then prints the report.
async fn run_device(
    arguments: &DeviceOptions,
    scenario: &Scenario,
    dataset: &Dataset,
    mut session: SimSession,
) -> ExitCode {
    let began = Instant::now();
    // A single future serves the whole loop, so that a signal between two waits is not lost.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    // The message about a connection is not printed if the first attempt succeeds.
    let mut is_retry = false;
    let mut was_connected = false;
    loop {
        let conversation = async {
            let link = open_link(arguments).await?;
            if is_retry {
                let again = if was_connected { " again" } else { "" };
                eprintln!("device {}: connected{again}", arguments.wearer);
            }
            was_connected = true;
            Ok::<_, std::io::Error>(run_session_over(&mut session, link, began).await)
        };
        let ended = tokio::select! {
            ended = conversation => Some(ended),
            _ = &mut interrupted => None,
        };
        let retry_at = match ended {
            None => break,
            Some(Ok(closed)) => {
                if let Some(refusal) = session.refusal() {
                    return report_failure(1, &format!("the server refused this device: {refusal}"));
                }
                if session.is_fitted() && !arguments.stay {
                    break;
                }
                if session.has_left() {
                    let time = closed.retry_at.as_u64().saturating_sub(now_since(began).as_u64());
                    eprintln!(
                        "device {}: {} rounds counted, asleep for {:.1} s",
                        arguments.wearer,
                        session.counters().counted,
                        Duration::from_millis(time).as_secs_f64()
                    );
                } else {
                    eprintln!(
                        "device {}: connection lost, reconnecting{}",
                        arguments.wearer,
                        likely_cause(&session)
                    );
                }
                // A device that wakes has not lost a connection.
                is_retry = !session.has_left();
                closed.retry_at
            }
            Some(Err(error)) => {
                let now = now_since(began);
                is_retry = true;
                let retry_at = retry_time(&mut session, now);
                eprintln!(
                    "device {}: {}: {error}, trying again in {} ms",
                    arguments.wearer,
                    arguments.connect,
                    retry_at.as_u64().saturating_sub(now.as_u64())
                );
                retry_at
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(began + Duration::from_millis(retry_at.as_u64())) => {}
            _ = &mut interrupted => break,
        }
    }
    report(arguments, scenario, dataset, &mut session)
}

/// Opens the link to the server.
async fn open_link(arguments: &DeviceOptions) -> std::io::Result<Box<dyn Link>> {
    let address = &arguments.connect;
    Ok(if arguments.udp {
        Box::new(UdpLink::open(address, arguments.packet.into(), arguments.beacons.as_deref()).await?)
    } else {
        Box::new(connect(address).await?)
    })
}

/// Link of either kind.
trait Link: AsyncRead + AsyncWrite + Unpin {}

impl<L: AsyncRead + AsyncWrite + Unpin> Link for L {}

/// Likely cause of a lost connection. A server that cannot authenticate itself to the device cannot send a
/// reason, so the cause is estimated from the session's counters.
fn likely_cause(session: &SimSession) -> &'static str {
    let counters = session.counters();
    match (counters.unopened, counters.unsealed) {
        _ if session.is_plaintext() || counters.counted > 0 => "",
        (1.., _) => " (the server has another key than this device)",
        (0, 1..) => {
            " (the server refused it without authentication: it may not know the key, or run without keys)"
        }
        _ => "",
    }
}

/// Prints the device's counters and the score of its model.
fn report(
    arguments: &DeviceOptions,
    scenario: &Scenario,
    dataset: &Dataset,
    session: &mut SimSession,
) -> ExitCode {
    let counters = session.counters();
    let name = arguments.wearer;
    let mut text = format!(
        "device {name}: {} rounds counted, {} late, {} rejected, {} declined\n",
        counters.counted, counters.late, counters.rejected, counters.declined
    );
    let shape = data::shape_of(dataset, scenario.model.k);
    if let Some(client) = dataset.clients.iter().chain(&dataset.newcomers).nth(name - 1) {
        let score = evaluate::score_device(session.task_mut(), client, shape);
        let suffix = "on its own test samples";
        match (score.accuracy, score.test_mse) {
            (Some(accuracy), _) => text += &format!("device {name}: accuracy {accuracy:.3} {suffix}\n"),
            (None, Some(mse)) => text += &format!("device {name}: mean squared error {mse:.6} {suffix}\n"),
            _ => {}
        }
    }
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Time of the next connection attempt. The delay grows in the same way as after a lost connection.
fn retry_time(session: &mut SimSession, now: Millis) -> Millis {
    let mut nothing = vec![0; session.config().transmit_capacity()];
    session.handle(now, Event::Tick, &mut nothing).wake
}

/// Facts that a device of this program reports: the version of the program.
fn about() -> About {
    About { firmware: fedspan_client::firmware!(), reset: ResetReason::PowerOn }
}
