//! Construction of an engine from the sections of a configuration. Only this file maps names to algorithms
//! and policies.

use fedspan_protocol::message::Image;

use super::algorithm::{AlgorithmSection, Method};
use super::model::{Init, ModelSection};
use super::network::{FrontModel, NetworkModel, NetworkSection};
use crate::aggregate::Rule;
use crate::algorithm::network::{Front, NetworkMethod, NetworkParameters, NetworkShape};
use crate::algorithm::{Algorithm, LinearStart, MomentsStart, PowerStart, random_start};
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
/// `truth-sine:`). `over_select` is the ratio of the number of invited devices to the number of updates that
/// a round waits for.
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

/// Builds the engine of a campaign like [`build_engine`]. An algorithm or a participation policy in `custom`
/// replaces the one that the sections select.
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
    let (d, k, first_device) = (shape.features, model.k, settings.first_device);
    // A network has no basis, so a placeholder of width 1 is used.
    let k = if model.network.is_some() { 1 } else { k };
    let basis = given.unwrap_or_else(|| random_start(d, k, seed));
    // A prior is learned from rounds of its own at the start.
    let learns_prior = algorithm.learned_prior().is_some();
    let start: Option<Box<dyn Algorithm>> = match model.init {
        _ if learns_prior => None,
        Init::Power { iterations } => {
            Some(Box::new(PowerStart::new(basis.clone(), iterations, algorithm.weighting, rule)))
        }
        Init::NoisyPower { iterations } => {
            Some(Box::new(PowerStart::new(basis.clone(), iterations, algorithm.weighting, rule).noisy()))
        }
        Init::Moments => Some(Box::new(MomentsStart::new(d, k, algorithm.weighting, rule))),
        Init::Random | Init::TruthSine(_) | Init::Npy(_) => None,
    };
    let server = custom.algorithm.unwrap_or_else(|| match algorithm.method {
        Method::Linear(method) => {
            let settings = &algorithm.linear_settings();
            method.server(LinearStart { settings, rule, basis, outputs: shape.outputs, first_device })
        }
        Method::Network(network) => {
            let layers = model.network.unwrap_or(NetworkModel::WITHOUT_HIDDEN);
            let parameters = build_parameters(
                shape,
                layers,
                algorithm,
                network,
                rule,
                settings.fleet_size,
                seed,
                first_device,
            );
            network.method.server(parameters)
        }
    });
    let policy = custom.participation.unwrap_or_else(|| participation.start(Draws { seed, over_select }));
    // With one output there are no classes, so ridges cannot be scored by correct predictions.
    let ridge_labels = algorithm.ridge_labels.filter(|_| shape.outputs > 1);
    Engine::new(settings, start, server, policy).with_ridge_scores(ridge_labels)
}

/// Sizes of the network; `None` for a linear model.
#[must_use]
pub fn network_shape(shape: Shape, model: &ModelSection) -> Option<NetworkShape> {
    model.network.map(|layers| build_network_shape(shape, layers))
}

/// Sizes of a network with these layers on data of this shape.
fn build_network_shape(shape: Shape, layers: NetworkModel) -> NetworkShape {
    let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let (features, outputs) = (to_u16(shape.features), to_u16(shape.outputs));
    let NetworkModel { front, hidden } = layers;
    let image = shape.image.unwrap_or(Image { height: 1, width: features, channels: 1 });
    let front = match front {
        FrontModel::Nothing => Front::Nothing,
        FrontModel::Filters(filters) => Front::Filters(image, filters),
        FrontModel::Cells(cells) => Front::Cells(image, cells),
        FrontModel::Adapter { rank, width, frozen } => Front::Adapter { rank, width, frozen },
    };
    NetworkShape { features, front, hidden, outputs }
}

/// Algorithm on a network and its parameters, from `[model]` and `[algorithm]`; `None` for a linear model.
#[must_use]
pub fn network_parameters(
    shape: Shape,
    model: &ModelSection,
    algorithm: &AlgorithmSection,
    rule: Rule,
    fleet: usize,
    seed: u64,
) -> Option<(NetworkMethod, NetworkParameters)> {
    let (layers, network) = (model.network?, algorithm.network()?);
    Some((network.method, build_parameters(shape, layers, algorithm, network, rule, fleet, seed, 0)))
}

/// Parameters of an algorithm on a network, from the sections of a configuration.
#[allow(clippy::too_many_arguments, reason = "one for each section of a file")]
fn build_parameters(
    shape: Shape,
    layers: NetworkModel,
    algorithm: &AlgorithmSection,
    network: NetworkSection,
    rule: Rule,
    fleet: usize,
    seed: u64,
    first_device: u64,
) -> NetworkParameters {
    NetworkParameters {
        shape: build_network_shape(shape, layers),
        descent: network.descent,
        head_epochs: network.head_epochs,
        epochs: network.epochs,
        download_encoding: algorithm.download,
        upload_encoding: algorithm.upload,
        weighting: algorithm.weighting,
        rule,
        fleet,
        seed,
        training_rounds: algorithm.training_rounds(),
        first_device,
    }
}
