//! `[rounds]` and `[limits]` of a server: how long it waits, and what bounds a peer.

use std::time::Duration;

use fedspan_engine::aggregate::{Rule, SampleCap};
use fedspan_engine::config::Problem;
use fedspan_engine::config::Section;
use fedspan_engine::config::read_bounds;

/// Largest Frobenius norm of an update, unless the file says otherwise.
pub(super) const NORM: f64 = 1e4;
/// Most samples that a device may declare with effect: more than a microcontroller goes through in a round.
pub(super) const SAMPLES: u32 = 100_000;
/// Places for connections that have not proved who they are, unless the file says otherwise: a quarter of the devices',
/// as a handshake is short, and no fewer than this, so that a small fleet can come back all at once.
const UNAUTHENTICATED_LEAST: usize = 64;

/// `[rounds]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundsSection {
    /// A round closes after this long; `None` to wait for everyone, for ever.
    pub deadline: Option<Duration>,
    /// Fewest answers that a round closes with, at its deadline or when nobody else can answer.
    pub min_count: usize,
    /// Asked over waited for.
    pub over_select: f64,
}

/// `[limits]`: what one peer, and all together, may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Devices that are connected at once: connections that have proved their key, or in plaintext said a hello.
    pub connections: usize,
    /// Of these, from one address.
    pub per_address: usize,
    /// Connections at once that have not, beside those.
    pub unauthenticated: usize,
    /// Updates of one device that are looked at in one round, and as many again for others.
    pub updates: u32,
    /// Time until hello.
    pub hello: Duration,
    /// Silence until a connection is closed.
    pub idle: Duration,
    /// Time from a frame's first byte to its last, from a chunk of an update to the next, and for writing a frame.
    pub frame: Duration,
    /// Time after which a round that a device has not answered is sent to it again.
    pub repeat: Duration,
    /// Largest Frobenius norm of an update.
    pub norm: f32,
    /// What declared numbers of samples may count.
    pub samples: SampleCap,
}

pub(super) fn read_rounds(section: &Section<'_>) -> Result<RoundsSection, Problem> {
    let deadline = section.number("deadline", Some(60.0), 0.0..=1e7)?;
    let rounds = RoundsSection {
        deadline: (deadline > 0.0).then(|| Duration::from_secs_f64(deadline)),
        min_count: section.size("min_count", Some(1), 1..=1_000_000)?,
        over_select: section.number("over_select", Some(1.0), 1.0..=10.0)?,
    };
    section.finish()?;
    Ok(rounds)
}

pub(super) fn read_limits(section: &Section<'_>, rule: Rule) -> Result<Limits, Problem> {
    let seconds =
        |key: &str, default: f64| section.number(key, Some(default), 0.01..=1e6).map(Duration::from_secs_f64);
    let (norm, samples) = read_bounds(section, NORM, SAMPLES, rule)?;
    let connections = section.size("connections", Some(1024), 1..=1_000_000)?;
    let unauthenticated = (connections / 4).max(UNAUTHENTICATED_LEAST);
    let limits = Limits {
        connections,
        per_address: section.size("per_address", Some(256), 1..=1_000_000)?,
        unauthenticated: section.size("unauthenticated", Some(unauthenticated), 1..=1_000_000)?,
        updates: u32::try_from(section.size("updates", Some(16), 1..=1_000_000)?).unwrap_or(u32::MAX),
        hello: seconds("hello", 5.0)?,
        idle: seconds("idle", 120.0)?,
        frame: seconds("frame", 10.0)?,
        repeat: seconds("repeat", 10.0)?,
        norm,
        samples,
    };
    section.finish()?;
    Ok(limits)
}
