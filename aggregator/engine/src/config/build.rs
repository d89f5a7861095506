//! Construction of an engine from its sections: the only place where names become algorithms and policies.

use fedspan_protocol::message::Image;

use super::algorithm_name::AlgorithmName;
use super::network::{FrontModel, NetworkModel};
use super::power::PowerSection;
use super::sections::{AlgorithmSection, Init, ModelSection};
use crate::aggregate::Rule;
use crate::algorithm::network::{self, Front, NetworkParameters, NetworkShape};
use crate::algorithm::{
    Algorithm, FedAvg, FedAvgParameters, FedPower, FedPowerParameters, FedRep, FedRepParameters,
    LinearAdapter, LinearAdapterParameters, MomentsStart, PowerStart, random_start,
};
use crate::custom::CustomParts;
use crate::linalg::Matrix;
use crate::participation::{Draws, Policy};
use crate::rounds::{Engine, Settings};

/// Sizes of the data that a campaign trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of features, `d`.
    pub features: usize,
    /// Number of outputs, `C`.
    pub outputs: usize,
    /// Arrangement of a sample's values; `None` for a signal of one channel.
    pub image: Option<Image>,
}

/// Builds the engine of a campaign. `given` is the initial representation if the file names one (`npy:`,
/// `truth-sine:`); `over_select` is the ratio of invited devices to those waited for.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "one for each section of a file")]
pub fn build_engine(
    settings: Settings,
    shape: Shape,
    model: &ModelSection,
    algorithm: &AlgorithmSection,
    rule: Rule,
    participation: Policy,
    over_select: f64,
    seed: u64,
    given: Option<Matrix>,
) -> Engine {
    let custom = CustomParts::default();
    build_custom_engine(
        settings,
        shape,
        model,
        algorithm,
        rule,
        participation,
        over_select,
        seed,
        given,
        custom,
    )
}

/// Builds the engine of a campaign, with the algorithm and the participation policy of `custom` in place of the
/// sections' own, if it has them.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "one for each section of a file")]
pub fn build_custom_engine(
    settings: Settings,
    shape: Shape,
    model: &ModelSection,
    algorithm: &AlgorithmSection,
    rule: Rule,
    participation: Policy,
    over_select: f64,
    seed: u64,
    given: Option<Matrix>,
    custom: CustomParts,
) -> Engine {
    let (d, k) = (shape.features, model.k);
    // A network has no basis, so a minimal one stands in.
    let k = if model.network.is_some() { 1 } else { k };
    let basis = given.unwrap_or_else(|| random_start(d, k, seed));
    let start: Option<Box<dyn Algorithm>> = match model.init {
        Init::Power { iterations } => {
            Some(Box::new(PowerStart::new(basis.clone(), iterations, algorithm.weighting, rule)))
        }
        Init::NoisyPower { iterations } => {
            Some(Box::new(PowerStart::new(basis.clone(), iterations, algorithm.weighting, rule).noisy()))
        }
        Init::Moments => Some(Box::new(MomentsStart::new(d, k, algorithm.weighting, rule))),
        Init::Random | Init::TruthSine(_) | Init::Npy(_) => None,
    };
    let network = network_parameters(shape, model, algorithm, rule, settings.fleet_size, seed);
    let server = custom.algorithm.unwrap_or_else(|| match network {
        Some(network) => network::build(network),
        None => build_linear(algorithm, rule, basis, shape.outputs),
    });
    let policy = custom.participation.unwrap_or_else(|| participation.start(Draws { seed, over_select }));
    // With one output there are no classes to predict.
    let ridge_labels = algorithm.ridge_labels.filter(|_| shape.outputs > 1);
    Engine::new(settings, start, server, policy).with_ridge_scores(ridge_labels)
}

/// Server's half of an algorithm on a linear model.
fn build_linear(
    algorithm: &AlgorithmSection,
    rule: Rule,
    basis: Matrix,
    outputs: usize,
) -> Box<dyn Algorithm> {
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    let narrow = |value: f64| value as f32;
    let k = basis.ncols();
    match (algorithm.name, algorithm.power) {
        (_, Some(power)) => Box::new(FedPower::new(basis, power_parameters(algorithm, power, rule))),
        (AlgorithmName::RoLora | AlgorithmName::FfaLora, None) => Box::new(LinearAdapter::new(
            basis,
            Matrix::zeros(k, outputs),
            LinearAdapterParameters {
                // The paper's loss is twice ours.
                step_size: (algorithm.name == AlgorithmName::RoLora)
                    .then(|| narrow(2.0 * algorithm.step_size)),
                head: algorithm.head,
                download_encoding: algorithm.download,
                upload_encoding: algorithm.upload,
                weighting: algorithm.weighting,
                rule,
            },
        )),
        (AlgorithmName::FedAvg, None) => Box::new(FedAvg::new(
            basis,
            Matrix::zeros(k, outputs),
            FedAvgParameters {
                step_size: narrow(algorithm.step_size),
                head_step_size: narrow(algorithm.head_step_size),
                local_steps: algorithm.local_steps,
                encoding: algorithm.upload,
                weighting: algorithm.weighting,
                rule,
            },
        )),
        // The baselines without rounds have FedRep's requests. No reader gives a linear model one of the
        // names of networks, nor `fedpower` without its section.
        (
            AlgorithmName::FedRep
            | AlgorithmName::GdGd
            | AlgorithmName::LocalOnly
            | AlgorithmName::Pooled
            | AlgorithmName::FedPower
            | AlgorithmName::FedPer
            | AlgorithmName::FedProx
            | AlgorithmName::Scaffold
            | AlgorithmName::LgFedAvg
            | AlgorithmName::PerFedAvg
            | AlgorithmName::PerFedAvgHf
            | AlgorithmName::Ditto
            | AlgorithmName::Apfl
            | AlgorithmName::L2gd
            | AlgorithmName::FedMtl
            | AlgorithmName::Lora
            | AlgorithmName::FlexLora
            | AlgorithmName::LocalOnlyNetwork,
            None,
        ) => Box::new(FedRep::new(
            basis,
            FedRepParameters {
                step_size: narrow(algorithm.step_size),
                head: algorithm.head,
                upload: algorithm.send,
                download_encoding: algorithm.download,
                upload_encoding: algorithm.upload,
                weighting: algorithm.weighting,
                rule,
            },
        )),
    }
}

/// Sizes of the network, if the model is one.
#[must_use]
pub fn network_shape(shape: Shape, model: &ModelSection) -> Option<NetworkShape> {
    let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let (features, outputs) = (to_u16(shape.features), to_u16(shape.outputs));
    let NetworkModel { front, hidden } = model.network?;
    let image = shape.image.unwrap_or(Image { height: 1, width: features, channels: 1 });
    let front = match front {
        FrontModel::Nothing => Front::Nothing,
        FrontModel::Filters(filters) => Front::Filters(image, filters),
        FrontModel::Cells(cells) => Front::Cells(image, cells),
        FrontModel::Adapter { rank, width, frozen } => Front::Adapter { rank, width, frozen },
    };
    Some(NetworkShape { features, front, hidden, outputs })
}

/// Parameters of an algorithm on a network, from `[model]` and `[algorithm]`.
#[must_use]
pub fn network_parameters(
    shape: Shape,
    model: &ModelSection,
    algorithm: &AlgorithmSection,
    rule: Rule,
    fleet: usize,
    seed: u64,
) -> Option<NetworkParameters> {
    let (shape, network) = (network_shape(shape, model)?, algorithm.network?);
    Some(NetworkParameters {
        shape,
        method: network.method,
        descent: network.descent,
        head_epochs: network.head_epochs,
        epochs: network.epochs,
        download_encoding: algorithm.download,
        upload_encoding: algorithm.upload,
        weighting: algorithm.weighting,
        rule,
        fleet,
        seed,
    })
}

/// Parameters of FedPower, from `[algorithm]`.
fn power_parameters(algorithm: &AlgorithmSection, power: PowerSection, rule: Rule) -> FedPowerParameters {
    FedPowerParameters {
        iterations: power.iterations,
        local_steps: power.local_steps,
        decay: power.decay,
        procrustes: power.procrustes,
        reference: Some(power.reference),
        rows: power.rows,
        download_encoding: algorithm.download,
        upload_encoding: algorithm.upload,
        weighting: algorithm.weighting,
        rule,
    }
}
