//! Section `[model]` of configuration files, which scenario files and `fleet.toml` share.

use super::algorithm::{AlgorithmSection, Method};
use super::network::{ModelKind, NetworkModel, read_model_kind};
use crate::participation::Policy;
use crate::reader::{Problem, Section};

/// Settings of the section `[model]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSection {
    /// Width of the representation.
    pub k: usize,
    /// Initial representation.
    pub init: Init,
    /// Number of leading directions on which a power method is evaluated, at most `k`.
    pub target: usize,
    /// Layers, if the model is a network; `None` for a linear model.
    pub network: Option<NetworkModel>,
    /// Whether a linear model is a low-rank adapter, whose two factors of rank `k` are both shared.
    pub adapter: bool,
    /// Directory from which simulated devices read the frozen layers of an adapter.
    pub base: Option<String>,
}

impl ModelSection {
    /// Checks a policy against the model and the algorithm; `section` is `[participation]`.
    ///
    /// # Errors
    /// [`Problem`] for a policy that supports only linear models without an adapter, or no such algorithm.
    pub fn check_policy(
        &self,
        policy: &Policy,
        algorithm: &AlgorithmSection,
        section: &Section<'_>,
    ) -> Result<(), Problem> {
        if self.network.is_none() && !self.adapter {
            return Ok(());
        }
        let steps_show_round = match algorithm.method {
            Method::Network(network) => network.method.steps_show_round(),
            Method::Linear(_) => true,
        };
        policy.fits_network(steps_show_round).map_err(|(key, message)| section.problem(key, message))
    }

    /// Name of the key that sets the width `k`.
    #[must_use]
    pub fn width_key(&self) -> &'static str {
        if self.adapter { "rank" } else { "k" }
    }
}

/// Source of the initial representation.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Random basis.
    Random,
    /// Power iterations on samples weighted by their targets.
    Power {
        /// Number of iterations.
        iterations: u32,
    },
    /// Power iterations in which devices add noise to each product. An iteration is one noisy release of each
    /// device.
    NoisyPower {
        /// Number of iterations.
        iterations: u32,
    },
    /// Method of moments, for regression only. It can reveal records of a device.
    Moments,
    /// Basis at a given distance (sine of the angle) from the ground truth, for synthetic data only.
    TruthSine(f64),
    /// Basis from an npy file, d x k.
    Npy(String),
}

impl Init {
    /// Variant of the start for devices that add noise.
    ///
    /// # Errors
    /// Returns the name of the start if devices cannot add noise to it.
    pub fn with_noise(self) -> Result<Self, &'static str> {
        match self {
            Self::Power { iterations } => Ok(Self::NoisyPower { iterations }),
            Self::Moments => Err("moments"),
            Self::Random | Self::NoisyPower { .. } | Self::TruthSine(_) | Self::Npy(_) => Ok(self),
        }
    }

    /// Number of noisy releases of each device before training.
    #[must_use]
    pub fn releases(&self) -> u32 {
        match *self {
            Self::NoisyPower { iterations } => iterations,
            Self::Random | Self::Power { .. } | Self::Moments | Self::TruthSine(_) | Self::Npy(_) => 0,
        }
    }
}

/// Reads the section `[model]`.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_model(section: &Section<'_>) -> Result<ModelSection, Problem> {
    read_model_with_default(section, "linear")
}

/// Reads the section `[model]`. `default` is the kind of model if the key `kind` is missing.
pub(super) fn read_model_with_default(section: &Section<'_>, default: &str) -> Result<ModelSection, Problem> {
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
    let init_text = section.string("init", Some("random"), allowed)?;
    let invalid = || section.problem("init", format!("found {init_text:?}, allowed: {allowed}"));
    let init = match init_text.split_once(':') {
        None => match init_text.as_str() {
            "random" => Init::Random,
            "power" => Init::Power { iterations: u32::try_from(iterations).unwrap_or(u32::MAX) },
            "moments" => Init::Moments,
            _ => return Err(invalid()),
        },
        Some(("npy", file)) if !file.is_empty() => Init::Npy(file.to_owned()),
        Some(("truth-sine", sine)) => match sine.parse::<f64>() {
            Ok(sine) if (0.0..=1.0).contains(&sine) => Init::TruthSine(sine),
            _ => return Err(invalid()),
        },
        Some(_) => return Err(invalid()),
    };
    let target = section.size("target", Some(k), 1..=k)?;
    section.finish()?;
    Ok(ModelSection { k, init, target, network: None, adapter, base: None })
}
