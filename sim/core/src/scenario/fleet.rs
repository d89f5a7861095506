//! Reader of the section `[fleet]`: computation times, links and dropouts of the devices.

use fedspan_engine::algorithm::LinearMethod;
use fedspan_engine::config::{AlgorithmSection, Method, Problem, Section};

use crate::data::sizes::LARGEST_SIGMA;
use crate::energy::{CHIPS, Chip, Core, is_exact};
use crate::radio::{RADIOS, Radio};

/// Largest probability of a dropout or a lost frame. Larger values would make runs very long.
const LARGEST_LOSS: f64 = 0.99;

/// Longest mean duration of an outage in rounds, which is also the largest number of rounds of a run.
const LONGEST_OUTAGE: f64 = 1e7;

/// Largest current of a device in mA.
const LARGEST_CURRENT: f64 = 1e4;

/// Largest number of cycles of a computation.
const LARGEST_CYCLES: f64 = 1e15;

/// Nominal capacity of a button cell CR2032 in mAh.
pub const CR2032_MAH: f64 = 225.0;

/// Longest period of a cycle, in mean computations.
const LONGEST_CYCLE: f64 = 1e9;

/// Names of the phases of cycles.
const PHASES: [(&str, Phases); 3] =
    [("together", Phases::Together), ("even", Phases::Even), ("random", Phases::Random)];

/// Values of the key `head_solver`: whether only the normal equations are solved.
const HEAD_SOLVERS: [(&str, bool); 2] = [("minimum-norm", false), ("normal-equations", true)];

/// Section `[fleet]`.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSection {
    /// Source of the computation times of clients.
    pub compute_times: ComputeTimes,
    /// Occasional long computations; `None` if there are none.
    pub spikes: Option<Spikes>,
    /// Communication time that is added to every answer, in mean computations.
    pub communication: f64,
    /// Probability that a client misses a round.
    pub dropout: f64,
    /// Correlation of dropouts across clients and rounds.
    pub pattern: DropoutPattern,
    /// Bandwidths and losses of links; `None` if transmission takes no time.
    pub link: Option<LinkSection>,
    /// Duty cycle of devices that sleep; `None` if they are always awake.
    pub waking: Option<Cycle>,
    /// Window in which devices can be reached, such as a part of the day; `None` if they always can.
    pub window: Option<Cycle>,
    /// With `algorithm.numeric = "any"`: share of the clients that compute in 16-bit fixed point.
    pub i16_share: f64,
    /// True if clients decline rounds that need the solver of minimum norm, as firmware without it does.
    pub normal_equations_only: bool,
}

/// Cycle in which a device can be reached for a part of each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cycle {
    /// Period, in mean computations.
    pub period: f64,
    /// Part of the period in which the device can be reached, in mean computations.
    pub length: f64,
    /// Beginning of the cycle for each client.
    pub phases: Phases,
}

/// Times at which the cycles of clients begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phases {
    /// All clients begin at time 0.
    Together,
    /// The clients begin one after the other, at equal distances.
    Even,
    /// Each client begins at a random time of its first period.
    Random,
}

/// Source of the computation times of clients.
#[derive(Clone, Debug, PartialEq)]
pub enum ComputeTimes {
    /// Times are drawn from a distribution whose mean over the fleet is 1, and assigned to the clients.
    Drawn(Speed, Correlation),
    /// Times are read from this trace file.
    Trace(String),
}

/// Occasional long computations, independent for each client and round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spikes {
    /// Probability that a computation takes longer.
    pub probability: f64,
    /// Factor by which it takes longer.
    pub factor: f64,
}

/// Distribution of computation times, whose mean over the fleet is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// Times are equal for all clients and rounds.
    Constant,
    /// Times are drawn once for each client from the uniform distribution on (0, 2).
    Uniform,
    /// Times are drawn once for each client from an exponential distribution.
    Exponential,
    /// Times are drawn once for each client from an exponential distribution with one of two means.
    TwoClass {
        /// Fraction of slow clients in the fleet.
        slow_fraction: f64,
        /// Ratio of the mean time of slow clients to the mean time of fast clients.
        slow_factor: f64,
    },
    /// Times are drawn once for each client from a Pareto distribution, `P(t > x) ~ x^-tail_index`.
    Pareto {
        /// Tail index, above 1. The variance is infinite up to 2.
        tail_index: f64,
    },
    /// Times are drawn for each client and round from an exponential distribution. The parameter of a client
    /// is uniformly distributed on [1/M, 1] for M clients.
    Dynamic(DynamicParameter),
}

/// Meaning of the parameter of [`Speed::Dynamic`]. The theory of SRPFL uses a rate, and its experiments use a
/// mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicParameter {
    /// Mean of the times of a client.
    Mean,
    /// Rate of the exponential distribution of a client.
    Rate,
}

/// Rule by which drawn times are assigned to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correlation {
    /// Times are assigned at random.
    None,
    /// Clients with more samples are slower.
    Samples,
    /// Clients with similar tasks have similar speeds.
    Task,
    /// Clients with fewer features that are ever different from 0 are faster.
    Features,
    /// Clients with smaller targets are faster.
    Targets,
}

/// Correlation of dropouts across clients and rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DropoutPattern {
    /// Dropouts are independent for each client and round.
    Independent,
    /// The same clients drop out in every round.
    Persistent,
    /// All clients of a site drop out together for several rounds.
    Outages {
        /// Number of sites.
        sites: usize,
        /// Mean length of an outage, in rounds.
        rounds: f64,
    },
}

/// Links between devices and the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSection {
    /// Speed of the links.
    pub speed: LinkSpeed,
    /// Probability that a frame, or packet of a radio, is lost and retransmitted.
    pub loss: f64,
}

/// Speed of the links between devices and the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkSpeed {
    /// A number of bytes per mean computation.
    Bandwidth {
        /// Median bandwidth of the devices, in bytes per mean computation.
        bandwidth: f64,
        /// Standard deviation of the logarithm of the bandwidth.
        spread: f64,
    },
    /// Time on the air of packets, and pauses of the device that the duty cycle requires.
    Radio {
        /// Radio of all devices.
        radio: Radio,
        /// Length of a mean computation in seconds.
        computation: f64,
        /// Energy of devices; `None` if it is not computed.
        energy: Option<EnergySettings>,
    },
}

/// Settings of the energy of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnergySettings {
    /// Chip of all devices.
    pub chip: Chip,
    /// Cycles of each computation; `None` for the model of FedRep.
    pub cycles: Option<f64>,
    /// Capacity of the battery in mAh.
    pub battery_mah: f64,
}

/// Reads the section.
///
/// # Errors
/// [`Problem`] for the first error.
pub fn read_fleet(section: &Section<'_>, algorithm: &AlgorithmSection) -> Result<FleetSection, Problem> {
    let is_mixed = algorithm.numeric.is_none();
    let fits_heads = algorithm.linear().is_some_and(|method| method.is_federated());
    let compute_times = read_computing(section)?;
    let communication = section.number("communication", Some(0.0), 0.0..=f64::MAX)?;
    let dropout = section.number("dropout", Some(0.0), 0.0..=LARGEST_LOSS)?;
    let spikes = read_spikes(section, &compute_times)?;
    let fleet = FleetSection {
        compute_times,
        spikes,
        communication,
        dropout,
        pattern: read_pattern(section, dropout)?,
        link: read_link(section, algorithm)?,
        waking: read_waking(section)?,
        window: read_window(section)?,
        i16_share: if is_mixed { section.number("i16_share", Some(0.5), 0.0..=1.0)? } else { 0.0 },
        normal_equations_only: fits_heads
            && section.choice("head_solver", Some("minimum-norm"), &HEAD_SOLVERS)?,
    };
    section.finish()?;
    Ok(fleet)
}

/// Reads the keys of the links.
fn read_link(section: &Section<'_>, algorithm: &AlgorithmSection) -> Result<Option<LinkSection>, Problem> {
    let speed = if section.has("radio") {
        if section.has("bandwidth") {
            return Err(section.problem("radio", "either `radio` or `bandwidth`".to_owned()));
        }
        let radio = section.choice("radio", None, &RADIOS.map(|radio| (radio.name, radio)))?;
        let computation = section.number("computation", Some(1.0), 1e-6..=1e6)?;
        LinkSpeed::Radio { radio, computation, energy: read_energy(section, &radio, algorithm)? }
    } else {
        if section.has("energy") {
            let message =
                "the energy of devices follows from the time of their packets on the air: set `radio` too";
            return Err(section.problem("energy", message.to_owned()));
        }
        let Some(bandwidth) = section.optional_number("bandwidth", 1e-6..=f64::MAX)? else { return Ok(None) };
        let spread = section.number("bandwidth_spread", Some(0.0), 0.0..=LARGEST_SIGMA)?;
        LinkSpeed::Bandwidth { bandwidth, spread }
    };
    Ok(Some(LinkSection { speed, loss: section.number("loss", Some(0.0), 0.0..=LARGEST_LOSS)? }))
}

/// Reads the keys of the energy of devices.
fn read_energy(
    section: &Section<'_>,
    radio: &Radio,
    algorithm: &AlgorithmSection,
) -> Result<Option<EnergySettings>, Problem> {
    if !section.has("energy") {
        return Ok(None);
    }
    let chip = section.choice("energy", None, &CHIPS.map(|chip| (chip.name, chip)))?;
    if chip.family != radio.family() {
        let message = format!(
            "found {:?}, which has another radio than {:?}; allowed: {:?}",
            chip.name,
            radio.name,
            Chip::with(radio).name
        );
        return Err(section.problem("energy", message));
    }
    let cores = Core::ALL.map(|core| (core.name(), core));
    let core = section.choice("core", Some(chip.core.name()), &cores)?;
    let current = |key: &str, default: f64| section.number(key, Some(default), 0.0..=LARGEST_CURRENT);
    let chip = Chip {
        core,
        clock_mhz: section.number("clock_mhz", Some(chip.clock_mhz), 1e-3..=1e4)?,
        volts: section.number("volts", Some(chip.volts), 0.1..=100.0)?,
        active_ma: current("active_ma", chip.active_ma)?,
        transmit_ma: current("transmit_ma", chip.transmit_ma)?,
        receive_ma: current("receive_ma", chip.receive_ma)?,
        sleep_ua: section.number("sleep_ua", Some(chip.sleep_ua), 0.0..=1e3 * LARGEST_CURRENT)?,
        ..chip
    };
    let cycles = section.optional_number("cycles", 0.0..=LARGEST_CYCLES)?;
    let is_known =
        matches!(algorithm.method, Method::Linear(LinearMethod::FedRep(_))) && is_exact(algorithm.head);
    if cycles.is_none() && !is_known {
        let message = "the cycles of a computation are known for fedrep on a linear model with heads by least squares only: \
                       set `cycles` too";
        return Err(section.problem("energy", message.to_owned()));
    }
    let battery_mah = section.number("battery_mah", Some(CR2032_MAH), 1e-3..=1e7)?;
    Ok(Some(EnergySettings { chip, cycles, battery_mah }))
}

/// Reads the keys of the duty cycle.
fn read_waking(section: &Section<'_>) -> Result<Option<Cycle>, Problem> {
    let Some(period) = section.optional_number("wake_every", 1e-6..=LONGEST_CYCLE)? else { return Ok(None) };
    let length = section.number("awake", None, 1e-9..=period)?;
    Ok(Some(Cycle { period, length, phases: section.choice("wake_phases", Some("random"), &PHASES)? }))
}

/// Reads the keys of the window of availability.
fn read_window(section: &Section<'_>) -> Result<Option<Cycle>, Problem> {
    let Some(period) = section.optional_number("window_every", 1e-6..=LONGEST_CYCLE)? else {
        return Ok(None);
    };
    let length = section.number("window", None, 1e-9..=period)?;
    Ok(Some(Cycle { period, length, phases: section.choice("window_phases", Some("together"), &PHASES)? }))
}

/// Reads the keys `spike_probability` and `spike_factor`, which a trace does not have.
fn read_spikes(section: &Section<'_>, compute_times: &ComputeTimes) -> Result<Option<Spikes>, Problem> {
    if matches!(compute_times, ComputeTimes::Trace(_)) {
        return Ok(None);
    }
    let probability = section.optional_number("spike_probability", 0.0..=1.0)?;
    probability
        .map(|probability| {
            Ok(Spikes { probability, factor: section.number("spike_factor", Some(100.0), 1.0..=1e6)? })
        })
        .transpose()
}

/// Reads the key `dropout_pattern` and the keys of the chosen pattern.
fn read_pattern(section: &Section<'_>, dropout: f64) -> Result<DropoutPattern, Problem> {
    let patterns = [("independent", 0), ("persistent", 1), ("outages", 2)];
    Ok(match section.choice("dropout_pattern", Some("independent"), &patterns)? {
        0 => DropoutPattern::Independent,
        1 => DropoutPattern::Persistent,
        _ => {
            let sites = section.size("outage_sites", None, 1..=1_000_000)?;
            let rounds = section.number("outage_rounds", Some(10.0), 1.0..=LONGEST_OUTAGE)?;
            // Shortest mean outage for which a site can be up for at least one round between two outages.
            let shortest = dropout / (1.0 - dropout);
            if rounds < shortest {
                let message = format!(
                    "found {rounds}, allowed: from {shortest:.3}, that is dropout / (1 - dropout): between two outages a \
                     site is up for at least one round"
                );
                return Err(section.problem("outage_rounds", message));
            }
            DropoutPattern::Outages { sites, rounds }
        }
    })
}

/// Reads the key `speed` and the keys of the chosen distribution or trace.
fn read_computing(section: &Section<'_>) -> Result<ComputeTimes, Problem> {
    #[derive(Clone, Copy)]
    enum Word {
        Constant,
        Uniform,
        Exponential,
        TwoClass,
        Pareto,
        Dynamic,
        Trace,
    }
    let speeds = [
        ("constant", Word::Constant),
        ("uniform", Word::Uniform),
        ("exponential", Word::Exponential),
        ("two-class", Word::TwoClass),
        ("pareto", Word::Pareto),
        ("exponential-dynamic", Word::Dynamic),
        ("trace", Word::Trace),
    ];
    let readings = [("mean", DynamicParameter::Mean), ("rate", DynamicParameter::Rate)];
    let speed = match section.choice("speed", Some("constant"), &speeds)? {
        Word::Constant => return Ok(ComputeTimes::Drawn(Speed::Constant, Correlation::None)),
        Word::Trace => return Ok(ComputeTimes::Trace(section.string("trace", None, "a file name")?)),
        Word::Uniform => Speed::Uniform,
        Word::Exponential => Speed::Exponential,
        Word::TwoClass => Speed::TwoClass {
            slow_fraction: section.number("slow_fraction", None, 0.0..=1.0)?,
            slow_factor: section.number("slow_factor", Some(100.0), 1.0..=1e6)?,
        },
        Word::Pareto => Speed::Pareto { tail_index: section.number("tail_index", None, 1.01..=100.0)? },
        Word::Dynamic => Speed::Dynamic(section.choice("reading", Some("mean"), &readings)?),
    };
    let correlations = [
        ("none", Correlation::None),
        ("samples", Correlation::Samples),
        ("task", Correlation::Task),
        ("features", Correlation::Features),
        ("targets", Correlation::Targets),
    ];
    Ok(ComputeTimes::Drawn(speed, section.choice("correlation", Some("none"), &correlations)?))
}
