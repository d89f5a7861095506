//! Settings of `adapter serve`: parser of the configuration file `exchange.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::host_check::HostNames;
use super::round_state::RoundRules;
use super::{ClientRegistry, LoraMethod};
use crate::files::SAMPLES_MAX;
use fedspan_engine::config::{Problem, Section, Source};
use fedspan_engine::participation::{Draws, Policy};
use fedspan_engine::{Millis, Participation};
use fedspan_files::read_secret;

/// Longest token file, in bytes.
const TOKENS_MAX: usize = 16 << 20;

/// Largest allowed number of concurrent connections of clients. Each may block one of tokio's 512 threads for
/// file operations.
const CONNECTIONS_MAX: usize = 400;

/// Largest allowed number of connections without a valid token.
const UNAUTHENTICATED_MAX: usize = 100_000;

/// Default number of connections without a valid token, as on the device server.
const UNAUTHENTICATED: usize = 256;

/// Smallest default number of connections of one client. The default is a quarter of all connections of clients.
const PER_CLIENT_LEAST: usize = 8;

/// Default number of samples above which an update counts as one of that number, as on the device server.
const SAMPLES: u64 = 100_000;

/// Longest deadline, in seconds: a year.
const DEADLINE_MAX: f64 = 31_536_000.0;

/// Settings of the server, fixed while it runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address on which the server listens.
    pub listen: SocketAddr,
    /// Path of the state directory.
    pub state: PathBuf,
    /// Path of the adapter from which round 1 starts: a directory in PEFT's layout, or a safetensors file.
    pub base: PathBuf,
    /// Clients and their tokens.
    pub registry: ClientRegistry,
    /// Host names under which clients reach the server.
    pub hosts: HostNames,
    /// LoRA method, number of rounds, deadline and smallest number of updates.
    pub rules: RoundRules,
    /// True to weigh clients by their samples, false to give every client with samples the same weight.
    pub by_samples: bool,
    /// Seed for drawing cohorts.
    pub seed: u64,
    /// Policy that chooses the cohort and the target of each round.
    pub participation: Policy,
    /// Limits on clients and connections.
    pub limits: Limits,
}

/// Limits on clients and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of concurrent connections with a valid token.
    pub connections: usize,
    /// Largest number of concurrent connections of one client.
    pub per_client: usize,
    /// Largest number of connections without a valid token, in addition to those of clients.
    pub unauthenticated: usize,
    /// Number of samples above which an update counts as one of that number.
    pub samples: u32,
    /// Longest time for the head of a request.
    pub head: Duration,
    /// Longest time for an upload or a download.
    pub transfer: Duration,
}

impl Settings {
    /// Parses the text of a configuration file and applies the changes of the command line
    /// (`--set KEY=VALUE`).
    ///
    /// # Errors
    /// [`Problem`] for the first invalid value.
    pub fn parse(name: &str, text: &str, changes: &[String]) -> Result<Self, Problem> {
        let source = Source::parse(name, text, changes)?;
        let root = source.root();
        let listen = root.string("listen", Some("127.0.0.1:4480"), "an address and a port")?;
        let listen: SocketAddr = listen.parse().map_err(|_| {
            root.problem("listen", format!("found {listen:?}, allowed: an IP address and a port"))
        })?;
        let registry = read_registry(&root, listen)?;
        let hosts = read_hosts(&root, listen)?;
        let state = root.string("state", Some("exchange-state"), "a directory")?.into();
        let base = root.string("base", None, "an adapter's directory or file")?.into();
        let method = read_method(&root)?;
        let rounds = root.integer("rounds", None, 1..=1_000_000)?;
        let weights = [("samples", true), ("uniform", false)];
        let by_samples = root.choice("weights", Some("samples"), &weights)?;
        let seed = root.integer("seed", Some(1), 0..=i64::MAX as u64)?;
        let clients = registry.names().len();
        let deadline = root.optional_number("deadline", 0.001..=DEADLINE_MAX)?.map(millis);
        let minimum = root.size("minimum", Some(1), 1..=clients)?;
        let participation = read_policy(&root.section("participation")?, clients)?;
        let limits = read_limits(&root.section("limits")?, clients)?;
        root.finish()?;
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let rules = RoundRules { method, rounds, deadline, minimum };
        Ok(Self { listen, state, base, registry, hosts, rules, by_samples, seed, participation, limits })
    }

    /// Starts the participation policy.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Participation> {
        self.participation.start(Draws { seed: self.seed, over_select: 1.0 })
    }
}

/// Reads the registry of clients from a token file. If the server listens only on the loopback interface,
/// names without tokens are allowed instead.
fn read_registry(root: &Section<'_>, listen: SocketAddr) -> Result<ClientRegistry, Problem> {
    let tokens = root.optional_string("tokens", "a file of lines CLIENT TOKEN")?;
    let names = root.list("clients", "a list of names", |value| value.as_str().map(str::to_owned))?;
    match (tokens, names) {
        (Some(_), Some(_)) => Err(root.problem(
            "clients",
            "found clients and tokens, allowed: one of them; the token file names all clients",
        )),
        (None, None) => Err(root.problem("tokens", "found neither tokens nor clients; set one of them")),
        (None, Some(_)) if !listen.ip().is_loopback() => Err(root.problem(
            "listen",
            format!("found {listen}, which other machines can reach, and clients without tokens; set tokens"),
        )),
        (None, Some(names)) => {
            ClientRegistry::from_names(&names).map_err(|error| root.problem("clients", error.problem))
        }
        (Some(path), None) => {
            let bytes =
                read_secret(path.as_ref(), TOKENS_MAX).map_err(|error| root.problem("tokens", error))?;
            let text = std::str::from_utf8(&bytes)
                .map_err(|_| root.problem("tokens", format!("{path}: not UTF-8")))?;
            ClientRegistry::parse(text).map_err(|error| root.problem("tokens", format!("{path}: {error}")))
        }
    }
}

/// Reads the host names.
fn read_hosts(root: &Section<'_>, listen: SocketAddr) -> Result<HostNames, Problem> {
    let names = root.list("hosts", "a list of host names", |value| value.as_str().map(str::to_owned))?;
    let names = names.unwrap_or_default();
    let is_name = |name: &&String| !name.is_empty() && !name.contains([':', '/', ' ']);
    match names.iter().find(|name| !is_name(name)) {
        Some(found) => {
            let text = format!(
                "found {found:?}, allowed: names without scheme and port, such as \"exchange.example.org\""
            );
            Err(root.problem("hosts", text))
        }
        None => Ok(HostNames::new(&names, listen.ip().is_loopback())),
    }
}

/// Reads the LoRA method.
fn read_method(root: &Section<'_>) -> Result<LoraMethod, Problem> {
    let methods = LoraMethod::ALL.map(|(name, method)| (name, Some(method)));
    let choices: Vec<_> = methods.into_iter().chain([("flexlora", None)]).collect();
    let refusal = "found \"flexlora\", which averages products as large as the model; allowed: \"rolora\", \"lora\", \"ffa-lora\"";
    root.choice("method", Some("rolora"), &choices)?.ok_or_else(|| root.problem("method", refusal))
}

/// Reads `[participation]` and refuses policies that adapter files do not support.
fn read_policy(section: &Section<'_>, clients: usize) -> Result<Policy, Problem> {
    let policy = Policy::read_for_adapter_files(section)?;
    policy.fits(clients, clients).map_err(|(key, text)| section.problem(key, text))?;
    Ok(policy)
}

/// Reads `[limits]`; the default number of connections depends on the number of clients.
fn read_limits(section: &Section<'_>, clients: usize) -> Result<Limits, Problem> {
    let seconds =
        |key, default| section.number(key, Some(default), 0.001..=86_400.0).map(Duration::from_secs_f64);
    let default = clients.saturating_mul(2).saturating_add(16).clamp(64, CONNECTIONS_MAX);
    // The default allows every client to wait for a round and to upload at the same time, plus 16 further connections.
    let connections = section.size("connections", Some(default), 1..=CONNECTIONS_MAX)?;
    let per_client = (connections / 4).max(PER_CLIENT_LEAST).min(connections);
    let samples = section.integer("samples", Some(SAMPLES), 1..=SAMPLES_MAX.into())?;
    let limits = Limits {
        connections,
        per_client: section.size("per_client", Some(per_client), 1..=connections)?,
        unauthenticated: section.size("unauthenticated", Some(UNAUTHENTICATED), 1..=UNAUTHENTICATED_MAX)?,
        samples: u32::try_from(samples).unwrap_or(SAMPLES_MAX),
        head: seconds("head", 10.0)?,
        transfer: seconds("transfer", 600.0)?,
    };
    section.finish()?;
    Ok(limits)
}

/// Converts seconds to milliseconds.
fn millis(seconds: f64) -> Millis {
    Duration::from_secs_f64(seconds).into()
}
