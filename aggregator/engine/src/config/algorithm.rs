//! Section `[algorithm]` of configuration files: the settings of the algorithm, which scenario files and
//! `fleet.toml` share.

use fedspan_protocol::message::{HeadSolve, Numeric, Upload};
use fedspan_protocol::tensor::Encoding;

use super::algorithm_names::read_name;
use super::model::ModelSection;
use super::network::{NetworkSection, read_network};
use crate::algorithm::network::NetworkMethod;
use crate::algorithm::{
    FedPowerSettings, LearnedPriorSettings, LinearAlgorithm, LinearMethod, LinearSettings, Uploads,
};
use crate::reader::Problem;
use crate::reader::Section;
use crate::rounds::DEFAULT_RIDGE;
use crate::types::Weighting;

/// Values of the key `weighting`.
pub const WEIGHTINGS: [(&str, Weighting); 2] =
    [("uniform", Weighting::Uniform), ("samples", Weighting::Samples)];

/// Values of the key `numeric`.
pub const NUMERICS: [(&str, Option<Numeric>); 3] =
    [("f32", Some(Numeric::F32)), ("i16", Some(Numeric::I16)), ("any", None)];

/// Values of the key `send`.
pub const SENDS: [(&str, Upload); 2] =
    [("gradient", Upload::Gradient), ("representation", Upload::Representation)];

/// Values of the key `upload`. Only gradients of a linear model may leave values out.
pub const ENCODINGS: [(&str, Encoding); 4] =
    [("f32", Encoding::F32), ("f16", Encoding::F16), ("i8", Encoding::I8), ("i8-top-k", Encoding::I8TopK)];

/// Values of the key `download`, and of `upload` in networks.
const DENSE_ENCODINGS: [(&str, Encoding); 3] =
    [("f32", Encoding::F32), ("f16", Encoding::F16), ("i8", Encoding::I8)];

/// Settings of the section `[algorithm]`.
#[derive(Clone, Debug, PartialEq)]
pub struct AlgorithmSection {
    /// Algorithm, with the settings of that algorithm.
    pub method: Method,
    /// Number of rounds, of which those of [`Self::training_rounds`] come first; 0 for baselines without rounds.
    pub rounds: u32,
    /// Step size of the representation.
    pub step_size: f64,
    /// Head solver in training rounds.
    pub head: HeadSolve,
    /// Head solver at the end, for evaluation and new devices.
    pub final_head: HeadSolve,
    /// Number of samples of each class on which devices fit heads when they score ridges; `None` if the fleet
    /// does not choose the ridge.
    pub ridge_labels: Option<u16>,
    /// Step size of a shared head.
    pub head_step_size: f64,
    /// Local steps of FedAvg.
    pub local_steps: u16,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Upload of FedRep's devices.
    pub send: Upload,
    /// Encoding of uploads.
    pub upload: Encoding,
    /// Encoding of downloads.
    pub download: Encoding,
    /// Arithmetic of the updates; `None` if each device may compute in its own.
    pub numeric: Option<Numeric>,
}

/// Algorithm, on a linear model or on a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Algorithm on a linear model.
    Linear(LinearMethod),
    /// Algorithm on a network.
    Network(NetworkSection),
}

impl AlgorithmSection {
    /// Name of the algorithm in configuration files, without a suffix.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.method {
            Method::Linear(method) => method.name(),
            Method::Network(network) => network.method.name(),
        }
    }

    /// Settings of an algorithm on a network; `None` for a linear model.
    #[must_use]
    pub fn network(&self) -> Option<NetworkSection> {
        match self.method {
            Method::Linear(_) => None,
            Method::Network(network) => Some(network),
        }
    }

    /// Algorithm on a linear model; `None` for a network.
    #[must_use]
    pub fn linear(&self) -> Option<LinearMethod> {
        match self.method {
            Method::Linear(method) => Some(method),
            Method::Network(_) => None,
        }
    }

    /// Settings of FedPower; `None` for another algorithm.
    #[must_use]
    pub fn power(&self) -> Option<FedPowerSettings> {
        match self.method {
            Method::Linear(LinearMethod::FedPower(power)) => Some(power),
            Method::Linear(_) | Method::Network(_) => None,
        }
    }

    /// Settings of heads with a learned prior; `None` for another algorithm.
    #[must_use]
    pub fn learned_prior(&self) -> Option<LearnedPriorSettings> {
        match self.method {
            Method::Linear(LinearMethod::LearnedPrior(settings)) => Some(settings),
            Method::Network(NetworkSection { method: NetworkMethod::LearnedPrior(prior), .. }) => {
                Some(prior.0)
            }
            Method::Linear(_) | Method::Network(_) => None,
        }
    }

    /// Settings of an algorithm on a network whose heads are trained by gradient steps; `None` for a linear model, and for heads under a
    /// learned prior, which are solutions of linear equations.
    #[must_use]
    pub fn network_with_trained_heads(&self) -> Option<NetworkSection> {
        self.network().filter(|network| !network.method.has_prior())
    }

    /// Number of rounds in which a model is trained: all of them, except on a network whose heads have a learned prior.
    #[must_use]
    pub fn training_rounds(&self) -> u32 {
        let after = self.network().map_or(0, |network| network.method.rounds_after_training());
        self.rounds.saturating_sub(after)
    }

    /// Whether the campaign has rounds. True also for local training on a network, whose rounds count epochs.
    #[must_use]
    pub fn is_federated(&self) -> bool {
        match self.method {
            Method::Linear(method) => method.is_federated(),
            Method::Network(_) => true,
        }
    }

    /// Settings common to the algorithms on linear models.
    #[must_use]
    pub fn linear_settings(&self) -> LinearSettings {
        LinearSettings {
            step_size: self.step_size,
            head: self.head,
            head_step_size: self.head_step_size,
            local_steps: self.local_steps,
            weighting: self.weighting,
            send: self.send,
            upload: self.upload,
            download: self.download,
        }
    }
}

/// Reads the section `[algorithm]` for a model.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_algorithm(section: &Section<'_>, model: &ModelSection) -> Result<AlgorithmSection, Problem> {
    let (name, tuned) = read_name(section, model)?;
    match &model.network {
        None => Ok(read_linear(section, name, true, false)?.0),
        Some(network) => {
            let network = read_network(section, section, network, name, tuned)?;
            read_network_algorithm(section, network)
        }
    }
}

/// Step sizes set to `"auto"`, which the simulator measures on the samples. Their values in
/// [`AlgorithmSection`] are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredSteps {
    /// Whether the step size of the representation is measured.
    pub step_size: bool,
    /// Whether the step size of heads is measured.
    pub head_step_size: bool,
}

/// Value of a step size that the simulator shall measure.
const AUTO: &str = "auto";

/// Reads a step size, and whether it shall be measured. `measured` is whether the value `"auto"` is allowed.
fn read_step(
    section: &Section<'_>,
    key: &str,
    default: Option<f64>,
    measured: bool,
) -> Result<(f64, bool), Problem> {
    match section.peek_str(key) {
        Some(AUTO) if measured => section.string(key, None, AUTO).map(|_| (0.0, true)),
        Some(AUTO) => {
            let message = "found \"auto\", which is measured on the samples of simulated clients; allowed here: a number from 0 to \
                           1000000";
            Err(section.problem(key, message))
        }
        _ => section.number(key, default, 0.0..=1e6).map(|step| (step, false)),
    }
}

/// Reads the keys of algorithms on linear models. If `run` is false, the keys are only checked, and none is
/// required. `measured` is whether step sizes may be `"auto"`.
pub(super) fn read_linear(
    section: &Section<'_>,
    name: &str,
    run: bool,
    measured: bool,
) -> Result<(AlgorithmSection, MeasuredSteps), Problem> {
    let Some(method) = LinearMethod::read(name, section) else {
        return Err(section.problem("name", format!("{name:?} is for networks")));
    };
    let method = method?;
    // If the number of rounds follows from other keys, the algorithm takes no gradient steps, so neither key
    // is required.
    let has_rounds = run && method.is_federated() && method.rounds().is_none();
    // Comparisons run the settings of one algorithm with others, which do nothing with keys that are not theirs.
    if method.has_prior() {
        section.integer("rounds", Some(0), 0..=10_000_000)?;
    } else {
        LearnedPriorSettings::read(section)?;
    }
    let rounds = match method.rounds() {
        Some(rounds) => rounds,
        None => section.integer("rounds", (!has_rounds).then_some(0), u64::from(has_rounds)..=10_000_000)?,
    };
    let default_step = if has_rounds && method.takes_steps() { None } else { Some(0.0) };
    // A learned prior does nothing with a step size.
    let measured = measured && (method.rounds().is_none() || method.has_prior());
    let (step_size, is_auto) = read_step(section, "step_size", default_step, measured)?;
    let ridge = section.number("ridge", Some(0.0), 0.0..=1e6)?;
    let final_ridge = section.automatic("final_ridge", 0.0..=1e6)?;
    let fallback_ridge = section.number("fallback_ridge", Some(DEFAULT_RIDGE), 0.0..=1e6)?;
    let labels = section.integer("labels_per_class", Some(1), 1..=65_535)?;
    let heads = [("least-squares", false), ("gradient", true)];
    let is_gradient_head = section.choice("head", Some(method.default_head()), &heads)?;
    let (head_step_size, is_head_auto) = match section.has("head_step_size") {
        true => read_step(section, "head_step_size", None, measured)?,
        false => (section.number("head_step_size", Some(step_size), 0.0..=1e6)?, is_auto),
    };
    // An algorithm without rounds takes no steps, so no step size is measured.
    let takes_steps = method.is_federated() && !method.has_prior();
    let measured =
        MeasuredSteps { step_size: is_auto && takes_steps, head_step_size: is_head_auto && takes_steps };
    let head_steps = to_u16(section.integer("head_steps", Some(1), 1..=65_535)?);
    let local_steps = to_u16(section.integer("local_steps", Some(1), 1..=65_535)?);
    let weighting = read_weighting(section)?;
    let numeric = section.choice("numeric", Some("f32"), &NUMERICS)?;
    let send = section.choice("send", Some("gradient"), &SENDS)?;
    let upload = section.choice("upload", Some("f32"), &ENCODINGS)?;
    let download = read_dense_encoding(section, "download")?;
    section.finish()?;
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    let to_f32 = |value: f64| value as f32;
    let head = if is_gradient_head {
        HeadSolve::Gradient { steps: head_steps, step_size: to_f32(head_step_size) }
    } else {
        HeadSolve::LeastSquares { ridge: to_f32(ridge) }
    };
    let algorithm = AlgorithmSection {
        method: Method::Linear(method),
        rounds: u32::try_from(rounds).unwrap_or(u32::MAX),
        step_size,
        head,
        final_head: match final_ridge {
            Some(ridge) => HeadSolve::LeastSquares { ridge: to_f32(ridge) },
            // The algorithm sends a prior instead, from which a head follows without a ridge.
            None if method.has_prior() => HeadSolve::LeastSquares { ridge: 0.0 },
            None => HeadSolve::LeaveOneOut { fallback_ridge: to_f32(fallback_ridge) },
        },
        ridge_labels: (final_ridge.is_none() && !method.has_prior()).then(|| to_u16(labels)),
        head_step_size,
        local_steps,
        weighting,
        send,
        upload,
        download,
        numeric,
    };
    let checked = method.check(&algorithm.linear_settings());
    checked.map_err(|(key, message)| section.problem(key, message))?;
    if numeric != Some(Numeric::F32) && !method.supports_i16() {
        let found = NUMERICS.iter().find(|(_, value)| *value == numeric).map_or("", |(name, _)| name);
        let message = format!("found {found:?}, {:?} is computed in \"f32\" only", method.name());
        return Err(section.problem("numeric", message));
    }
    let sends_gradients = method.uploads(&algorithm.linear_settings()) == Uploads::Gradients;
    if upload == Encoding::I8TopK && method.is_federated() && !sends_gradients {
        let message = format!(
            "found \"i8-top-k\", but {:?} uploads no gradients, and values that are left out are only made up for in gradients; \
             allowed: \"f32\", \"f16\", \"i8\"",
            method.name()
        );
        return Err(section.problem("upload", message));
    }
    Ok((algorithm, measured))
}

/// Reads the keys of `[algorithm]` that networks share with linear models.
pub(super) fn read_network_algorithm(
    section: &Section<'_>,
    network: NetworkSection,
) -> Result<AlgorithmSection, Problem> {
    let rounds = section.integer("rounds", None, 1..=10_000_000)?;
    let weighting = read_weighting(section)?;
    let (upload, download) =
        (read_dense_encoding(section, "upload")?, read_dense_encoding(section, "download")?);
    section.finish()?;
    if network.method.has_prior() && download != Encoding::F32 {
        let message = format!("found another encoding, {:?} sends \"f32\" only", network.method.name());
        return Err(section.problem("download", message));
    }
    if network.method.has_prior() && network.tuned {
        let message = "found \"learned-prior+ft\", whose heads follow from the prior, without tuning; allowed: \"learned-prior\"";
        return Err(section.problem("name", message));
    }
    let descent = network.descent;
    Ok(AlgorithmSection {
        method: Method::Network(network),
        rounds: u32::try_from(rounds)
            .unwrap_or(u32::MAX)
            .saturating_add(network.method.rounds_after_training()),
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
        numeric: Some(Numeric::F32),
    })
}

fn read_weighting(section: &Section<'_>) -> Result<Weighting, Problem> {
    section.choice("weighting", Some("uniform"), &WEIGHTINGS)
}

fn read_dense_encoding(section: &Section<'_>, key: &str) -> Result<Encoding, Problem> {
    section.choice(key, Some("f32"), &DENSE_ENCODINGS)
}

fn to_u16(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
