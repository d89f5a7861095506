//! `exchange.toml`: everything that `adapter serve` needs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::round_state::RoundRules;
use super::{ClientRegistry, LoraMethod};
use fedspan_engine::config::{ParticipationSection, Problem, Section, Source, read_participation};
use fedspan_engine::participation::{FirstArrivals, Fraction, Full};
use fedspan_engine::{Millis, Participation};
use fedspan_files::read_secret;

/// Longest file of tokens.
const TOKENS_MAX: usize = 16 << 20;

/// Most connections: one may keep a thread waiting for the disk, and there are 512 of these.
const CONNECTIONS_MAX: usize = 400;

/// A year, in seconds.
const LONGEST: f64 = 31_536_000.0;

/// Everything that is fixed while the server runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The state directory.
    pub state: PathBuf,
    /// The adapter that the first round begins with.
    pub base: PathBuf,
    /// Who takes part.
    pub registry: ClientRegistry,
    /// Rounds.
    pub rules: RoundRules,
    /// Whether clients count by their samples.
    pub by_samples: bool,
    /// Seed of cohorts that are drawn.
    pub seed: u64,
    /// Who is asked, and how many are waited for.
    pub participation: ParticipationSection,
    /// What a connection may take.
    pub limits: Limits,
}

/// What a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many there are at most.
    pub connections: usize,
    /// How long a request's head may take.
    pub head: Duration,
    /// How long an upload or a download may take.
    pub transfer: Duration,
}

impl Settings {
    /// Reads a file's text, with the changes of the command line.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    pub fn parse(name: &str, text: &str, changes: &[String]) -> Result<Self, Problem> {
        let source = Source::parse(name, text, changes)?;
        let root = source.root();
        let listen = root.string("listen", Some("127.0.0.1:4480"), "an address and a port")?;
        let listen: SocketAddr = listen.parse().map_err(|_| {
            root.problem("listen", format!("found {listen:?}, allowed: an IP address and a port"))
        })?;
        let registry = read_registry(&root, listen)?;
        let state = root.string("state", Some("exchange-state"), "a directory")?.into();
        let base = root.string("base", None, "an adapter's directory or file")?.into();
        let method = read_method(&root)?;
        let rounds = root.integer("rounds", None, 1..=1_000_000)?;
        let weights = [("samples", true), ("uniform", false)];
        let by_samples = root.choice("weights", Some("samples"), &weights)?;
        let seed = root.integer("seed", Some(1), 0..=i64::MAX as u64)?;
        let clients = registry.names().len();
        let deadline = root.optional_number("deadline", 0.001..=LONGEST)?.map(millis);
        let minimum = root.size("minimum", Some(1), 1..=clients)?;
        let participation = read_policy(&root.section("participation")?, clients)?;
        let limits = read_limits(&root.section("limits")?, clients)?;
        root.finish()?;
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let rules = RoundRules { method, rounds, deadline, minimum };
        Ok(Self { listen, state, base, registry, rules, by_samples, seed, participation, limits })
    }

    /// Who is asked.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Participation> {
        let seed = self.seed;
        match self.participation {
            ParticipationSection::Fraction { r } => Box::new(Fraction { rate: r, over_select: 1.0, seed }),
            ParticipationSection::FirstArrivals { n, cohort } => Box::new(FirstArrivals { n, cohort, seed }),
            _ => Box::new(Full),
        }
    }
}

/// Tokens from a file, or names where nobody else can connect.
fn read_registry(root: &Section<'_>, listen: SocketAddr) -> Result<ClientRegistry, Problem> {
    let tokens = root.optional_string("tokens", "a file of lines CLIENT TOKEN")?;
    let names = root.list("clients", "a list of names", |value| value.as_str().map(str::to_owned))?;
    match (tokens, names) {
        (Some(_), Some(_)) => {
            Err(root.problem("clients", "beside tokens: the file of tokens names all clients"))
        }
        (None, None) => Err(root.problem("tokens", "neither tokens nor clients: who takes part?")),
        (None, Some(_)) if !listen.ip().is_loopback() => Err(root.problem(
            "listen",
            format!("{listen} can be reached by others, and clients have no tokens: set tokens"),
        )),
        (None, Some(names)) => {
            ClientRegistry::from_names(&names).map_err(|error| root.problem("clients", error.what))
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

fn read_method(root: &Section<'_>) -> Result<LoraMethod, Problem> {
    let known = LoraMethod::ALL.map(|(name, method)| (name, Some(method)));
    let choices: Vec<_> = known.into_iter().chain([("flexlora", None)]).collect();
    let why = "\"flexlora\" averages products, which are as large as the model: not for files; allowed: \"rolora\", \"lora\", \"ffa-lora\"";
    root.choice("method", Some("rolora"), &choices)?.ok_or_else(|| root.problem("method", why))
}

fn read_policy(section: &Section<'_>, clients: usize) -> Result<ParticipationSection, Problem> {
    let participation = read_participation(section, None)?;
    let refused = match participation {
        ParticipationSection::WithReplacement { .. } => Some("with-replacement"),
        ParticipationSection::Doubling { .. } => Some("doubling"),
        _ => None,
    };
    if let Some(name) = refused {
        let text = format!("{name:?} is not for files; allowed: \"full\", \"fraction\", \"first-arrivals\"");
        return Err(section.problem("policy", text));
    }
    participation.fits(clients, clients).map_err(|(key, text)| section.problem(key, text))?;
    Ok(participation)
}

fn read_limits(section: &Section<'_>, clients: usize) -> Result<Limits, Problem> {
    let seconds =
        |key, default| section.number(key, Some(default), 0.001..=86_400.0).map(Duration::from_secs_f64);
    let usual = clients.saturating_mul(2).saturating_add(16).clamp(64, CONNECTIONS_MAX);
    let limits = Limits {
        // Everybody may wait for a round and send, and a few more.
        connections: section.size("connections", Some(usual), 1..=CONNECTIONS_MAX)?,
        head: seconds("head", 10.0)?,
        transfer: seconds("transfer", 600.0)?,
    };
    section.finish()?;
    Ok(limits)
}

fn millis(seconds: f64) -> Millis {
    Millis::try_from(Duration::from_secs_f64(seconds).as_millis()).unwrap_or(Millis::MAX)
}
