//! `[model]` and `[algorithm]`, which scenario files and `fleet.toml` share.

use fedspan_protocol::message::{HeadSolve, Numeric, Upload};
use fedspan_protocol::tensor::Encoding;

use super::algorithm_name::{AlgorithmName, read_name};
use super::network::{ModelKind, NetworkModel, NetworkSection, read_model_kind, read_network};
use super::power::{PowerSection, read_power};
use super::reader::Section;
use super::source::Problem;
use crate::rounds::DEFAULT_RIDGE;
use crate::types::Weighting;

/// Words of `weighting`.
pub const WEIGHTINGS: [(&str, Weighting); 2] =
    [("uniform", Weighting::Uniform), ("samples", Weighting::Samples)];

/// Words of `numeric`.
pub const NUMERICS: [(&str, Numeric); 2] = [("f32", Numeric::F32), ("i16", Numeric::I16)];

/// Words of `send`.
pub const SENDS: [(&str, Upload); 2] =
    [("gradient", Upload::Gradient), ("representation", Upload::Representation)];

/// Words of `upload` and `download`.
pub const ENCODINGS: [(&str, Encoding); 3] =
    [("f32", Encoding::F32), ("f16", Encoding::F16), ("i8", Encoding::I8)];

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
    /// A linear model's head is everyone's: both factors of an adapter of rank k.
    pub adapter: bool,
    /// Of a network with an adapter: where simulated devices read what it is put into.
    pub base: Option<String>,
}

impl ModelSection {
    /// The key that the width stands in.
    #[must_use]
    pub fn width_key(&self) -> &'static str {
        if self.adapter { "rank" } else { "k" }
    }
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
    /// Where the fleet chooses a ridge for who has no two samples of each class: samples of each class that it plays to have.
    pub ridge_labels: Option<u16>,
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

/// Reads `[model]`.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_model(section: &Section<'_>) -> Result<ModelSection, Problem> {
    read_model_of(section, "linear")
}

/// Reads `[model]`, of this kind where none stands there.
pub(super) fn read_model_of(section: &Section<'_>, default: &str) -> Result<ModelSection, Problem> {
    let adapter = match read_model_kind(section, default)? {
        ModelKind::Network(network) => {
            let base = match network.is_adapted() {
                true => section.optional_string("base", "a directory with layer-0.npy and so on")?,
                false => None,
            };
            section.finish()?;
            let k = network.hidden.iter().rev().find(|width| **width > 0).copied().unwrap_or(1).into();
            let (init, network) = (Init::Random, Some(network));
            return Ok(ModelSection { k, init, target: k, network, adapter: false, base });
        }
        ModelKind::LinearAdapter => true,
        ModelKind::Linear => false,
    };
    let k = section.size(if adapter { "rank" } else { "k" }, None, 1..=1024)?;
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
    Ok(ModelSection { k, init, target, network: None, adapter, base: None })
}

/// Reads `[algorithm]` for a model.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_algorithm(section: &Section<'_>, model: &ModelSection) -> Result<AlgorithmSection, Problem> {
    let (name, tuned) = read_name(section, model)?;
    match &model.network {
        None => Ok(read_linear(section, name, true, false)?.0),
        Some(network) => {
            let network = read_network(section, section, network, name, tuned)?;
            read_rest(section, name, network)
        }
    }
}

/// Step sizes that are measured on samples, of which a server has none; they are 0 in the section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredSteps {
    /// That of the representation.
    pub step_size: bool,
    /// That of heads.
    pub head_step_size: bool,
}

/// The word of a step size that is measured.
const AUTO: &str = "auto";

/// Reads a step size; whether it is to be measured, where that is allowed.
fn read_step(
    section: &Section<'_>,
    key: &str,
    default: Option<f64>,
    measured: bool,
) -> Result<(f64, bool), Problem> {
    match section.word(key) {
        Some(AUTO) if measured => section.string(key, None, AUTO).map(|_| (0.0, true)),
        Some(AUTO) => {
            let message = "found \"auto\", which is measured on the samples of simulated clients; allowed here: a number from 0 to \
                           1000000";
            Err(section.problem(key, message))
        }
        _ => section.number(key, default, 0.0..=1e6).map(|step| (step, false)),
    }
}

/// Reads what algorithms on linear models have. Where it does not `run`, nothing is required. Step sizes may be `measured`.
pub(super) fn read_linear(
    section: &Section<'_>,
    name: AlgorithmName,
    run: bool,
    measured: bool,
) -> Result<(AlgorithmSection, MeasuredSteps), Problem> {
    let power = (name == AlgorithmName::FedPower).then(|| read_power(section)).transpose()?;
    let steps = run && name.is_federated() && power.is_none();
    let rounds = match power {
        Some(power) => power.rounds(),
        None => section.integer("rounds", (!steps).then_some(0), u64::from(steps)..=10_000_000)?,
    };
    // FFA-LoRA takes none.
    let default_step = if steps && name != AlgorithmName::FfaLora { None } else { Some(0.0) };
    let measured = measured && name != AlgorithmName::FedPower;
    let (step_size, auto) = read_step(section, "step_size", default_step, measured)?;
    let ridge = section.number("ridge", Some(0.0), 0.0..=1e6)?;
    let final_ridge = section.automatic("final_ridge", 0.0..=1e6)?;
    let fallback = section.number("fallback_ridge", Some(DEFAULT_RIDGE), 0.0..=1e6)?;
    let labels = section.integer("labels_per_class", Some(1), 1..=65_535)?;
    let default_head = if name == AlgorithmName::GdGd { "gradient" } else { "least-squares" };
    let gradient =
        section.choice("head", Some(default_head), &[("least-squares", false), ("gradient", true)])?;
    let (head_step_size, head_auto) = match section.has("head_step_size") {
        true => read_step(section, "head_step_size", None, measured)?,
        false => (section.number("head_step_size", Some(step_size), 0.0..=1e6)?, auto),
    };
    // Without rounds there are no steps, whatever is said of them.
    let federated = name.is_federated();
    let measured = MeasuredSteps { step_size: auto && federated, head_step_size: head_auto && federated };
    let head_steps = small(section.integer("head_steps", Some(1), 1..=65_535)?);
    let local_steps = small(section.integer("local_steps", Some(1), 1..=65_535)?);
    let weighting = read_weighting(section)?;
    let numeric = section.choice("numeric", Some("f32"), &NUMERICS)?;
    let send = section.choice("send", Some("gradient"), &SENDS)?;
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
    let section = AlgorithmSection {
        name,
        rounds: u32::try_from(rounds).unwrap_or(u32::MAX),
        step_size,
        head,
        final_head: match final_ridge {
            Some(ridge) => HeadSolve::LeastSquares { ridge: narrow(ridge) },
            None => HeadSolve::LeaveOneOut { fallback_ridge: narrow(fallback) },
        },
        ridge_labels: final_ridge.is_none().then(|| small(labels)),
        head_step_size,
        local_steps,
        weighting,
        send,
        upload,
        download,
        numeric,
        power,
        network: None,
    };
    Ok((section, measured))
}

/// What algorithms on networks have in common with others.
pub(super) fn read_rest(
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
        ridge_labels: None,
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
    section.choice("weighting", Some("uniform"), &WEIGHTINGS)
}

fn read_encoding(section: &Section<'_>, key: &str) -> Result<Encoding, Problem> {
    section.choice(key, Some("f32"), &ENCODINGS)
}

fn small(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
