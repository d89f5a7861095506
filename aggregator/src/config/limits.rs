//! Reader of the sections `[rounds]` and `[limits]`: deadlines of rounds and limits on peers.

use std::num::NonZeroU32;
use std::time::Duration;

use fedspan_engine::aggregate::{Rule, SampleCap};
use fedspan_engine::config::Problem;
use fedspan_engine::config::Section;
use fedspan_engine::config::read_bounds;

/// Default of [`Limits::norm`].
pub(super) const NORM: f64 = 1e4;
/// Default of the cap on sample counts: more samples than a microcontroller processes in a round.
pub(super) const SAMPLES: u32 = 100_000;
/// Largest value of [`RoundsSection::patience`].
const PATIENCE_MAX: u64 = 1_000_000;
/// Smallest default of [`Limits::unauthenticated`]. The default is a quarter of [`Limits::connections`],
/// because a handshake is short, and never below this value, so that all devices of a small fleet can
/// reconnect at the same time.
const UNAUTHENTICATED_LEAST: usize = 64;

/// Section `[rounds]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundsSection {
    /// Time after which a round closes; `None` to wait for all devices.
    pub deadline: Option<Duration>,
    /// Number of deadlines in a row that a device may miss before rounds stop waiting for it; `None` to wait
    /// for every device until every deadline.
    pub patience: Option<NonZeroU32>,
    /// Shortest time between the openings of two rounds; `None` to open a round as soon as the one before is
    /// closed.
    pub every: Option<Duration>,
    /// Smallest number of updates with which a round closes, and of present devices with which it opens.
    pub min_count: usize,
    /// Ratio of the number of selected devices to the number of updates that complete a round.
    pub over_select: f64,
}

/// Section `[limits]`: limits on each peer and on all peers together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest number of connected devices: connections that have proved their key, or in plaintext have sent
    /// an admissible hello.
    pub connections: usize,
    /// Largest number of connected devices per address.
    pub per_address: usize,
    /// Largest number of connections before their handshake, in addition to those of devices.
    pub unauthenticated: usize,
    /// Largest number of updates of one device that are examined for the open round. The same limit applies
    /// to updates of the device for other rounds.
    pub updates: u32,
    /// Longest time until the hello.
    pub hello: Duration,
    /// Longest time without a valid message on a connection.
    pub idle: Duration,
    /// Longest time for receiving one frame, between two chunks of an update, and for sending one frame.
    pub frame: Duration,
    /// Time after which an unanswered round is sent again.
    pub repeat: Duration,
    /// Largest Frobenius norm of an update.
    pub norm: f32,
    /// Cap on declared sample counts.
    pub samples: SampleCap,
}

/// Reads `[rounds]`.
pub(super) fn read_rounds(section: &Section<'_>) -> Result<RoundsSection, Problem> {
    let every = section.number("every", Some(0.0), 0.0..=1e7)?;
    // No round can follow before the interval has passed, so a shorter deadline would only lose answers.
    let deadline = section.number("deadline", Some(every.max(60.0)), 0.0..=1e7)?;
    let patience = u32::try_from(section.integer("patience", Some(0), 0..=PATIENCE_MAX)?).unwrap_or(u32::MAX);
    if patience > 0 && deadline == 0.0 {
        let message = format!(
            "found {patience}, allowed: 0 with deadline = 0, since no device misses a deadline; give a deadline in \
             seconds, or leave patience out"
        );
        return Err(section.problem("patience", message));
    }
    let rounds = RoundsSection {
        deadline: (deadline > 0.0).then(|| Duration::from_secs_f64(deadline)),
        patience: NonZeroU32::new(patience),
        every: (every > 0.0).then(|| Duration::from_secs_f64(every)),
        min_count: section.size("min_count", Some(1), 1..=1_000_000)?,
        over_select: section.number("over_select", Some(1.0), 1.0..=10.0)?,
    };
    section.finish()?;
    Ok(rounds)
}

/// Reads `[limits]`; the defaults depend on the aggregation rule.
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
