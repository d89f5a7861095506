//! `[fleet]`: how long devices take, and how they fail.

use fedspan_engine::config::{Problem, Section};

/// Largest probability of a loss: above it a run is all waiting.
const LARGEST_LOSS: f64 = 0.99;
/// Largest deviation of a logarithm: three of them are a factor of 10^13.
pub const LARGEST_SIGMA: f64 = 10.0;

/// Longest mean of an outage, in rounds: no run has more.
const LONGEST_OUTAGE: f64 = 1e7;

/// `[fleet]`.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSection {
    /// How long clients compute.
    pub computing: Computing,
    /// Added to every round, in mean computations.
    pub communication: f64,
    /// Probability that a client loses a round.
    pub dropout: f64,
    /// Which clients lose which rounds.
    pub pattern: Pattern,
    /// What is sent takes time, too.
    pub link: Option<LinkSection>,
}

/// How long clients compute.
#[derive(Clone, Debug, PartialEq)]
pub enum Computing {
    /// Drawn, the mean of the fleet being 1, and dealt to the clients.
    Drawn(Speed, Correlation),
    /// As a file says.
    Trace(String),
}

/// How times are drawn, the mean of the fleet being 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// All the same.
    Constant,
    /// Drawn once for each client, uniform on (0, 2).
    Uniform,
    /// Drawn once for each client, exponential.
    Exponential,
    /// Drawn once for each client, exponential around one of two means.
    TwoClass {
        /// Which part of the fleet is slow.
        slow_fraction: f64,
        /// How many times the fast ones' mean the slow ones' is.
        slow_factor: f64,
    },
    /// Drawn anew in every round, exponential, around a parameter of the client that is uniform on [1/M, 1].
    Dynamic(Reading),
}

/// What the parameter of [`Speed::Dynamic`] is. SRPFL's theory takes it for a rate, its experiments for a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The mean of the client's times.
    Mean,
    /// Their rate.
    Rate,
}

/// What the times that belong to the clients are dealt by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correlation {
    /// Chance.
    None,
    /// Who has more samples is slower.
    Samples,
    /// Whose tasks are alike are about as fast.
    Task,
}

/// Which clients lose which rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Each on its own, each round on its own.
    Independent,
    /// The same ones in every round.
    Persistent,
    /// All of a site together, for several rounds.
    Outages {
        /// How many sites there are.
        sites: usize,
        /// Mean length of an outage, in rounds.
        rounds: f64,
    },
}

/// The links of the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSection {
    /// Median of the devices', bytes in a mean computation.
    pub bandwidth: f64,
    /// Standard deviation of its logarithm.
    pub spread: f64,
    /// Probability that a frame is lost, and sent again.
    pub loss: f64,
}

/// Reads the section.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_fleet(section: &Section<'_>) -> Result<FleetSection, Problem> {
    let computing = read_computing(section)?;
    let communication = section.number("communication", Some(0.0), 0.0..=f64::MAX)?;
    let dropout = section.number("dropout", Some(0.0), 0.0..=LARGEST_LOSS)?;
    let fleet = FleetSection {
        computing,
        communication,
        dropout,
        pattern: read_pattern(section, dropout)?,
        link: match section.optional_number("bandwidth", 1e-6..=f64::MAX)? {
            None => None,
            Some(bandwidth) => Some(LinkSection {
                bandwidth,
                spread: section.number("bandwidth_spread", Some(0.0), 0.0..=LARGEST_SIGMA)?,
                loss: section.number("loss", Some(0.0), 0.0..=LARGEST_LOSS)?,
            }),
        },
    };
    section.finish()?;
    Ok(fleet)
}

fn read_pattern(section: &Section<'_>, dropout: f64) -> Result<Pattern, Problem> {
    let patterns = [("independent", 0), ("persistent", 1), ("outages", 2)];
    Ok(match section.choice("dropout_pattern", Some("independent"), &patterns)? {
        0 => Pattern::Independent,
        1 => Pattern::Persistent,
        _ => {
            let sites = section.size("outage_sites", None, 1..=1_000_000)?;
            let rounds = section.number("outage_rounds", Some(10.0), 1.0..=LONGEST_OUTAGE)?;
            // Between two of them a site is there for a round at least.
            let shortest = dropout / (1.0 - dropout);
            if rounds < shortest {
                let message = format!(
                    "found {rounds}, allowed: from {shortest:.3}, that is dropout / (1 - dropout): a site that is back is \
                     there for one round at least"
                );
                return Err(section.problem("outage_rounds", message));
            }
            Pattern::Outages { sites, rounds }
        }
    })
}

fn read_computing(section: &Section<'_>) -> Result<Computing, Problem> {
    #[derive(Clone, Copy)]
    enum Word {
        Constant,
        Uniform,
        Exponential,
        TwoClass,
        Dynamic,
        Trace,
    }
    let speeds = [
        ("constant", Word::Constant),
        ("uniform", Word::Uniform),
        ("exponential", Word::Exponential),
        ("two-class", Word::TwoClass),
        ("exponential-dynamic", Word::Dynamic),
        ("trace", Word::Trace),
    ];
    let readings = [("mean", Reading::Mean), ("rate", Reading::Rate)];
    let speed = match section.choice("speed", Some("constant"), &speeds)? {
        Word::Constant => return Ok(Computing::Drawn(Speed::Constant, Correlation::None)),
        Word::Trace => return Ok(Computing::Trace(section.string("trace", None, "a file name")?)),
        Word::Uniform => Speed::Uniform,
        Word::Exponential => Speed::Exponential,
        Word::TwoClass => Speed::TwoClass {
            slow_fraction: section.number("slow_fraction", None, 0.0..=1.0)?,
            slow_factor: section.number("slow_factor", Some(100.0), 1.0..=1e6)?,
        },
        Word::Dynamic => Speed::Dynamic(section.choice("reading", Some("mean"), &readings)?),
    };
    let correlations =
        [("none", Correlation::None), ("samples", Correlation::Samples), ("task", Correlation::Task)];
    Ok(Computing::Drawn(speed, section.choice("correlation", Some("none"), &correlations)?))
}
