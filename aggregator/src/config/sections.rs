//! The sections that scenario files and `fleet.toml` share: `[model] [algorithm] [participation] [stop]`.

use std::ops::RangeInclusive;

use fedspan_protocol::message::{HeadSolve, Numeric, Upload};
use fedspan_protocol::tensor::Encoding;

use super::network::{NetworkModel, NetworkSection, read_network, read_network_model};
use super::power::{PowerSection, read_power};
use super::reader::Section;
use super::source::Problem;
use crate::algorithm::Weighting;
use crate::engine::participation::{By, Draw, Schedule};

/// `[model]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSection {
    /// Width of the representation.
    pub k: usize,
    /// Where the representation starts.
    pub init: Init,
    /// Directions that a power method is to find: how it is scored.
    pub target: usize,
    /// Of a network; a linear model has none.
    pub network: Option<NetworkModel>,
}

/// Where the representation starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// A random basis.
    Random,
    /// Power iterations on y-weighted samples.
    Power {
        /// How many.
        iterations: u32,
    },
    /// The same of devices that hide each product in noise: one release of each, for each iteration.
    NoisyPower {
        /// How many.
        iterations: u32,
    },
    /// Method of moments; regression only, reveals records.
    Moments,
    /// At a given distance (sine of the angle) from the ground truth; synthetic data only.
    TruthSine(f64),
    /// From an npy file, d x k.
    Npy(String),
}

impl Init {
    /// What it is among devices that add noise: what they would not send is left out, or hidden.
    ///
    /// # Errors
    /// The word of a start that cannot be hidden.
    pub fn hidden(self) -> Result<Self, &'static str> {
        match self {
            Self::Power { iterations } => Ok(Self::NoisyPower { iterations }),
            Self::Moments => Err("moments"),
            other => Ok(other),
        }
    }

    /// Noisy releases of each device before training.
    #[must_use]
    pub fn releases(&self) -> u32 {
        match *self {
            Self::NoisyPower { iterations } => iterations,
            _ => 0,
        }
    }
}

/// `[algorithm]`.
#[derive(Clone, Debug, PartialEq)]
pub struct AlgorithmSection {
    /// Which one.
    pub name: AlgorithmName,
    /// Rounds; 0 for baselines that need none.
    pub rounds: u32,
    /// Step size of the representation.
    pub step_size: f64,
    /// How heads are solved.
    pub head: HeadSolve,
    /// How heads are solved at the end, for evaluation and new devices.
    pub final_head: HeadSolve,
    /// Step size of a shared head.
    pub head_step_size: f64,
    /// Local steps of FedAvg.
    pub local_steps: u16,
    /// Weights of the mean.
    pub weighting: Weighting,
    /// What FedRep devices send.
    pub send: Upload,
    /// Encoding towards the server.
    pub upload: Encoding,
    /// Encoding towards the device.
    pub download: Encoding,
    /// Arithmetic of the updates.
    pub numeric: Numeric,
    /// Of a power method.
    pub power: Option<PowerSection>,
    /// Of a network.
    pub network: Option<NetworkSection>,
}

/// The algorithms that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmName {
    /// FedRep.
    FedRep,
    /// FedRep with one gradient step on the head.
    GdGd,
    /// One shared linear model, averaged.
    FedAvg,
    /// Power iterations on the devices, aligned and averaged.
    FedPower,
    /// Shared body, own head, trained together.
    FedPer,
    /// FedAvg with a pull towards what came.
    FedProx,
    /// FedAvg with control variates.
    Scaffold,
    /// Own body, shared head.
    LgFedAvg,
    /// Meta-learning, first order.
    PerFedAvg,
    /// Meta-learning, Hessian-free.
    PerFedAvgHf,
    /// FedAvg, and one's own network near it.
    Ditto,
    /// A mixture of FedAvg and one's own network.
    Apfl,
    /// One's own network, drawn towards the mean.
    L2gd,
    /// The same at each step.
    FedMtl,
    /// Each client alone; no communication.
    LocalOnly,
    /// The same on a network, by rounds of epochs.
    LocalSgd,
    /// One model of all data in one place.
    Pooled,
}

/// Names and one line each, as `list --algorithms` prints them.
pub const ALGORITHMS: [(&str, AlgorithmName, &str); 16] = [
    ("fedrep", AlgorithmName::FedRep, "shared representation, personal heads (Collins et al. 2021)"),
    ("gd-gd", AlgorithmName::GdGd, "FedRep with one gradient step on the head instead of the exact solution"),
    ("fedper", AlgorithmName::FedPer, "shared body, personal heads, trained together (networks)"),
    ("fedavg", AlgorithmName::FedAvg, "one model for all, averaged"),
    ("fedprox", AlgorithmName::FedProx, "fedavg with a pull towards the model that came (networks)"),
    ("scaffold", AlgorithmName::Scaffold, "fedavg with steps corrected by control variates (networks)"),
    ("lg-fedavg", AlgorithmName::LgFedAvg, "personal bodies, shared last layers (networks)"),
    ("perfedavg", AlgorithmName::PerFedAvg, "a model one step from everyone's, first order (networks)"),
    ("perfedavg-hf", AlgorithmName::PerFedAvgHf, "the same with a Hessian-free second derivative (networks)"),
    ("ditto", AlgorithmName::Ditto, "fedavg, and personal models that stay near it (networks)"),
    ("apfl", AlgorithmName::Apfl, "mixtures of a shared and personal models (networks)"),
    ("l2gd", AlgorithmName::L2gd, "personal models that move towards their mean each round (networks)"),
    ("fed-mtl", AlgorithmName::FedMtl, "personal models drawn to their mean at each step (networks)"),
    (
        "fedpower",
        AlgorithmName::FedPower,
        "principal directions of all samples, without labels (Guo et al. 2024)",
    ),
    ("local-only", AlgorithmName::LocalOnly, "each client on its own samples, no communication"),
    ("pooled", AlgorithmName::Pooled, "least squares on all clients' samples in one place, no federation"),
];

/// What a name may end with: models are scored after their heads were tuned at the end.
const TUNED: &str = "+ft";

impl AlgorithmName {
    /// The name as it stands in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        let listed = if self == Self::LocalSgd { Self::LocalOnly } else { self };
        ALGORITHMS.iter().find(|(_, name, _)| *name == listed).map_or("fedrep", |(word, _, _)| word)
    }

    /// Names and algorithms on networks.
    pub fn on_networks() -> impl Iterator<Item = (&'static str, Self)> {
        ALGORITHMS.iter().filter_map(|(word, name, _)| Some((*word, name.on_a_network()?)))
    }

    /// Names and algorithms on linear models.
    pub fn on_linear_models() -> impl Iterator<Item = (&'static str, Self)> {
        let words = ALGORITHMS.iter().map(|(word, name, _)| (*word, *name));
        words.filter(|(_, name)| name.is_for_linear_models())
    }

    /// Whether it is for linear models.
    fn is_for_linear_models(self) -> bool {
        use AlgorithmName::{FedAvg, FedPower, FedRep, GdGd, LocalOnly, Pooled};
        matches!(self, FedRep | GdGd | FedAvg | FedPower | LocalOnly | Pooled)
    }

    /// The same on a network, if there is such a thing.
    fn on_a_network(self) -> Option<Self> {
        match self {
            Self::LocalOnly => Some(Self::LocalSgd),
            Self::GdGd | Self::FedPower | Self::Pooled => None,
            name => Some(name),
        }
    }

    /// Whether devices and server exchange rounds.
    #[must_use]
    pub fn is_federated(self) -> bool {
        !matches!(self, Self::LocalOnly | Self::Pooled)
    }
}

/// `[participation]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParticipationSection {
    /// Everyone.
    Full,
    /// A random part.
    Fraction {
        /// The rate `r`.
        r: f64,
    },
    /// The first to answer.
    FirstArrivals {
        /// How many answers complete a round.
        n: usize,
        /// How many are asked; all without it.
        cohort: Option<usize>,
    },
    /// Draws of one device each, with replacement.
    WithReplacement {
        /// K, how many.
        draws: usize,
    },
    /// The fastest few, then twice as many, until all count.
    Doubling {
        /// `n0`, how many answers the first stage waits for.
        n0: usize,
        /// `N`, how many are asked; all without it.
        cohort: Option<usize>,
        /// When they are drawn anew.
        draw: Draw,
        /// When a stage ends.
        schedule: Schedule,
        /// What doubles.
        by: By,
    },
}

impl ParticipationSection {
    /// Checks it against a fleet that begins with `devices` and may have `most` one day.
    ///
    /// # Errors
    /// The key that asks for more, and in words what is wrong with it.
    pub fn fits(&self, devices: usize, most: usize) -> Result<(), (&'static str, String)> {
        let (key, first, cohort) = match *self {
            Self::FirstArrivals { n, cohort } => ("n", n, cohort),
            Self::Doubling { n0, cohort, .. } => ("n0", n0, cohort),
            Self::Full | Self::Fraction { .. } | Self::WithReplacement { .. } => return Ok(()),
        };
        let wrong =
            |key, found, most| Err((key, format!("found {found}, allowed: at most the fleet's {most}")));
        match cohort {
            _ if first > devices => wrong(key, first, devices),
            Some(cohort) if cohort > most => wrong("cohort", cohort, most),
            _ => Ok(()),
        }
    }
}

/// `[stop]`: the campaign ends early at the first of these; `rounds` always bounds it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StopSection {
    /// At this distance or below.
    pub distance: Option<f64>,
    /// At this accuracy or above.
    pub accuracy: Option<f64>,
    /// At this loss or below.
    pub loss: Option<f64>,
    /// At this simulated time or above.
    pub simulated_time: Option<f64>,
    /// Where the representation moved less than this in a training round (sine of the largest principal
    /// angle between before and after); the only one that a server can measure.
    pub change: Option<f64>,
}

/// What `change` may be: below, rounding moves a representation as much.
const CHANGES: RangeInclusive<f64> = 1e-12..=1.0;

/// Reads `[model]`.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_model(section: &Section<'_>) -> Result<ModelSection, Problem> {
    if let Some(network) = read_network_model(section)? {
        section.finish()?;
        let k = network.hidden.iter().rev().find(|width| **width > 0).copied().unwrap_or(1).into();
        return Ok(ModelSection { k, init: Init::Random, target: k, network: Some(network) });
    }
    let k = section.size("k", None, 1..=1024)?;
    let iterations = section.integer("power_iterations", Some(5), 1..=1000)?;
    let allowed = "\"random\", \"power\", \"moments\", \"truth-sine:S\" with S from 0 to 1, \"npy:FILE\"";
    let word = section.string("init", Some("random"), allowed)?;
    let wrong = || section.problem("init", format!("found {word:?}, allowed: {allowed}"));
    let init = match word.split_once(':') {
        None => match word.as_str() {
            "random" => Init::Random,
            "power" => Init::Power { iterations: u32::try_from(iterations).unwrap_or(u32::MAX) },
            "moments" => Init::Moments,
            _ => return Err(wrong()),
        },
        Some(("npy", file)) if !file.is_empty() => Init::Npy(file.to_owned()),
        Some(("truth-sine", sine)) => match sine.parse::<f64>() {
            Ok(sine) if (0.0..=1.0).contains(&sine) => Init::TruthSine(sine),
            _ => return Err(wrong()),
        },
        Some(_) => return Err(wrong()),
    };
    let target = section.size("target", Some(k), 1..=k)?;
    section.finish()?;
    Ok(ModelSection { k, init, target, network: None })
}

/// Reads `[algorithm]` for a model.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_algorithm(section: &Section<'_>, model: &ModelSection) -> Result<AlgorithmSection, Problem> {
    let (name, tuned) = read_name(section, model.network.is_some())?;
    let network = model.network.as_ref().map(|network| read_network(section, network, name, tuned));
    let network = network.transpose()?;
    let power = (name == AlgorithmName::FedPower).then(|| read_power(section)).transpose()?;
    let steps = name.is_federated() && power.is_none();
    if let Some(network) = network {
        return read_rest(section, name, network);
    }
    let rounds = match power {
        Some(power) => power.rounds(),
        None => section.integer("rounds", (!steps).then_some(0), u64::from(steps)..=10_000_000)?,
    };
    let default_step = if steps { None } else { Some(0.0) };
    let step_size = section.number("step_size", default_step, 0.0..=1e6)?;
    let ridge = section.number("ridge", Some(0.0), 0.0..=1e6)?;
    let final_ridge = section.number("final_ridge", Some(ridge), 0.0..=1e6)?;
    let default_head = if name == AlgorithmName::GdGd { "gradient" } else { "least-squares" };
    let gradient =
        section.choice("head", Some(default_head), &[("least-squares", false), ("gradient", true)])?;
    let head_step_size = section.number("head_step_size", Some(step_size), 0.0..=1e6)?;
    let head_steps = small(section.integer("head_steps", Some(1), 1..=65_535)?);
    let local_steps = small(section.integer("local_steps", Some(1), 1..=65_535)?);
    let weighting = read_weighting(section)?;
    let numerics = [("f32", Numeric::F32), ("i16", Numeric::I16)];
    let numeric = section.choice("numeric", Some("f32"), &numerics)?;
    let sends = [("gradient", Upload::Gradient), ("representation", Upload::Representation)];
    let send = section.choice("send", Some("gradient"), &sends)?;
    let (upload, download) = (read_encoding(section, "upload")?, read_encoding(section, "download")?);
    section.finish()?;
    if name == AlgorithmName::GdGd && !gradient {
        return Err(section
            .problem("head", "found \"least-squares\", which is \"fedrep\"; gd-gd takes gradient steps"));
    }
    if name == AlgorithmName::FedAvg && upload != download {
        return Err(section.problem("download", "fedavg encodes both ways alike: give upload the same value"));
    }
    if numeric == Numeric::I16 && !matches!(name, AlgorithmName::FedRep | AlgorithmName::GdGd) {
        let message = format!("found \"i16\", {:?} is computed in \"f32\" only", name.word());
        return Err(section.problem("numeric", message));
    }
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    let narrow = |value: f64| value as f32;
    let head = if gradient {
        HeadSolve::Gradient { steps: head_steps, step_size: narrow(head_step_size) }
    } else {
        HeadSolve::LeastSquares { ridge: narrow(ridge) }
    };
    Ok(AlgorithmSection {
        name,
        rounds: u32::try_from(rounds).unwrap_or(u32::MAX),
        step_size,
        head,
        final_head: HeadSolve::LeastSquares { ridge: narrow(final_ridge) },
        head_step_size,
        local_steps,
        weighting,
        send,
        upload,
        download,
        numeric,
        power,
        network: None,
    })
}

/// The algorithm's name, and whether it ends with [`TUNED`].
fn read_name(section: &Section<'_>, network: bool) -> Result<(AlgorithmName, bool), Problem> {
    let names: Vec<(&str, AlgorithmName)> = match network {
        true => AlgorithmName::on_networks().collect(),
        false => AlgorithmName::on_linear_models().collect(),
    };
    let plain = names.iter().map(|(word, name)| ((*word).to_owned(), (*name, false)));
    let tuned =
        names.iter().filter(|_| network).map(|(word, name)| (format!("{word}{TUNED}"), (*name, true)));
    let words: Vec<(String, (AlgorithmName, bool))> = plain.chain(tuned).collect();
    let words: Vec<(&str, (AlgorithmName, bool))> =
        words.iter().map(|(word, value)| (word.as_str(), *value)).collect();
    section.choice("name", None, &words)
}

/// What algorithms on networks have in common with others.
fn read_rest(
    section: &Section<'_>,
    name: AlgorithmName,
    network: NetworkSection,
) -> Result<AlgorithmSection, Problem> {
    let rounds = section.integer("rounds", None, 1..=10_000_000)?;
    let weighting = read_weighting(section)?;
    let (upload, download) = (read_encoding(section, "upload")?, read_encoding(section, "download")?);
    section.finish()?;
    let descent = network.descent;
    Ok(AlgorithmSection {
        name,
        rounds: u32::try_from(rounds).unwrap_or(u32::MAX),
        step_size: descent.step_size.into(),
        head: HeadSolve::Sgd { epochs: network.head_epochs, descent },
        final_head: HeadSolve::Sgd { epochs: network.tuning_epochs, descent },
        head_step_size: descent.step_size.into(),
        local_steps: network.epochs,
        weighting,
        send: Upload::Representation,
        upload,
        download,
        numeric: Numeric::F32,
        power: None,
        network: Some(network),
    })
}

fn read_weighting(section: &Section<'_>) -> Result<Weighting, Problem> {
    let weightings = [("uniform", Weighting::Uniform), ("samples", Weighting::Samples)];
    section.choice("weighting", Some("uniform"), &weightings)
}

fn read_encoding(section: &Section<'_>, key: &str) -> Result<Encoding, Problem> {
    let encodings = [("f32", Encoding::F32), ("f16", Encoding::F16), ("i8", Encoding::I8)];
    section.choice(key, Some("f32"), &encodings)
}

fn small(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// How many answers a round waits for at first, under `key`, and how many devices it asks.
fn read_first(
    section: &Section<'_>,
    key: &str,
    default: Option<usize>,
) -> Result<(usize, Option<usize>), Problem> {
    let first = section.size(key, default, 1..=1_000_000)?;
    let cohort = section.has("cohort").then(|| section.size("cohort", None, 1..=1_000_000)).transpose()?;
    match cohort.filter(|cohort| first > *cohort) {
        Some(cohort) => Err(section.problem(key, format!("{first} is more than the cohort of {cohort}"))),
        None => Ok((first, cohort)),
    }
}

fn read_schedule(section: &Section<'_>, communication: Option<f64>) -> Result<Schedule, Problem> {
    let schedules = [("adaptive", 0), ("fixed", 1), ("theorem", 2), ("optimal", 3)];
    let word = section.choice("schedule", Some("adaptive"), &schedules)?;
    let contraction = || section.number("contraction", Some(0.2), 1e-6..=0.99);
    Ok(match word {
        0 => Schedule::Adaptive,
        1 => {
            let rounds = section.integer("stage_rounds", Some(10), 1..=1_000_000)?;
            Schedule::Fixed(u32::try_from(rounds).unwrap_or(u32::MAX))
        }
        2 => Schedule::Theorem { contraction: contraction()? },
        _ => Schedule::Optimal {
            contraction: contraction()?,
            communication: section.number("communication", communication, 0.0..=1e9)?,
            start: section.number("start", Some(1.0), f64::MIN_POSITIVE..=1.0)?,
            floor: section.number("floor", None, 1e-12..=1.0)?,
        },
    })
}

/// Reads `[participation]`; `communication` is what a round takes besides computation, in mean computations, where
/// that is known from elsewhere.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_participation(
    section: &Section<'_>,
    communication: Option<f64>,
) -> Result<ParticipationSection, Problem> {
    let policies =
        [("full", 0), ("fraction", 1), ("first-arrivals", 2), ("with-replacement", 3), ("doubling", 4)];
    let policy = match section.choice("policy", Some("full"), &policies)? {
        0 => ParticipationSection::Full,
        1 => ParticipationSection::Fraction { r: section.number("r", None, 1e-9..=1.0)? },
        2 => {
            let (n, cohort) = read_first(section, "n", None)?;
            ParticipationSection::FirstArrivals { n, cohort }
        }
        3 => ParticipationSection::WithReplacement { draws: section.size("draws", None, 1..=1_000_000)? },
        _ => {
            let (n0, cohort) = read_first(section, "n0", Some(4))?;
            let by = section.choice(
                "by",
                Some("devices"),
                &[("devices", By::Devices), ("samples", By::Samples)],
            )?;
            let draws = [("round", Draw::Round), ("stage", Draw::Stage)];
            let draw = section.choice("draw", Some("round"), &draws)?;
            let schedule = read_schedule(section, communication)?;
            ParticipationSection::Doubling { n0, cohort, draw, schedule, by }
        }
    };
    section.finish()?;
    Ok(policy)
}

/// Reads `[stop]`.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_stop(section: &Section<'_>) -> Result<StopSection, Problem> {
    let stop = StopSection {
        distance: section.optional_number("distance", 0.0..=1.0)?,
        accuracy: section.optional_number("accuracy", 0.0..=1.0)?,
        loss: section.optional_number("loss", 0.0..=f64::MAX)?,
        simulated_time: section.optional_number("simulated_time", 0.0..=f64::MAX)?,
        change: section.optional_number("change", CHANGES)?,
    };
    section.finish()?;
    Ok(stop)
}

/// Reads `[stop]` of a campaign whose data and truth nobody here sees: the largest change that ends it.
///
/// # Errors
/// [`Problem`] for the first mistake, and for a target that only a simulation can measure.
pub fn read_server_stop(section: &Section<'_>) -> Result<Option<f64>, Problem> {
    for (key, why) in [
        ("distance", "only a simulation knows the true representation"),
        ("accuracy", "a server sees no samples, only a simulation does"),
        ("loss", "a server sees no samples, only a simulation does"),
        ("simulated_time", "only a simulation has such a clock"),
    ] {
        if section.has(key) {
            return Err(section.problem(key, format!("{why}; a server can stop by \"change\"")));
        }
    }
    let change = section.optional_number("change", CHANGES)?;
    section.finish()?;
    Ok(change)
}
