//! Keys of networks in `[model]` and `[algorithm]`.

use std::ops::RangeInclusive;

use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX, UNTIL_PLATEAU};
use fedspan_protocol::message::{Descent, Filters};

use super::algorithm_name::AlgorithmName;
use crate::algorithm::network::{Averaging, NetworkMethod};
use crate::reader::Problem;
use crate::reader::Section;

/// Layers of a network, from `[model]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// Layers before the dense ones.
    pub front: FrontModel,
    /// Widths of the hidden dense layers; zeros after the last.
    pub hidden: [u16; HIDDEN_MAX],
}

/// Layers at the front of a network, without the sizes that come from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontModel {
    /// No front: dense layers only.
    Nothing,
    /// Convolutional filters; those after the last have a count of zero.
    Filters([Filters; FILTERS_MAX]),
    /// LSTM cells, with their number.
    Cells(u16),
    /// Frozen layer with a low-rank adapter beside it.
    Adapter {
        /// Rank of the adapter, `r`.
        rank: u16,
        /// Outputs of the frozen layer.
        width: u16,
        /// CRC-32C of the frozen layer; 0 without one.
        frozen: u32,
    },
}

impl NetworkModel {
    /// Number of layers in the front, and number of hidden dense layers.
    fn counts(&self) -> (usize, usize) {
        let front = match self.front {
            FrontModel::Nothing => 0,
            FrontModel::Filters(filters) => filters.iter().filter(|filters| filters.count > 0).count(),
            FrontModel::Cells(_) => 1,
            FrontModel::Adapter { .. } => 2,
        };
        (front, self.hidden.iter().filter(|width| **width > 0).count())
    }
}

impl NetworkModel {
    /// Whether only an adapter is trained.
    #[must_use]
    pub fn is_adapted(&self) -> bool {
        matches!(self.front, FrontModel::Adapter { .. })
    }
}

/// Kind of a model, with the layers of a network.
pub(super) enum ModelKind {
    /// Linear model with one basis.
    Linear,
    /// Linear model with two shared factors.
    LinearAdapter,
    /// Network.
    Network(NetworkModel),
}

/// Values of the key `kind`.
#[derive(Clone, Copy)]
enum Kind {
    Linear,
    LoraLinear,
    Mlp,
    Cnn,
    Lstm,
    LoraMlp,
}

/// Settings of an algorithm on a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkSection {
    /// Algorithm with its own parameters.
    pub method: NetworkMethod,
    /// Stochastic gradient descent: step size, momentum and batch.
    pub descent: Descent,
    /// Epochs of the head per round (FedRep).
    pub head_epochs: u16,
    /// Epochs of all other layers per round.
    pub epochs: u16,
    /// Epochs of the head after the last round; [`UNTIL_PLATEAU`] to train as long as the loss falls.
    pub tuning_epochs: u16,
    /// Whether models are evaluated after these epochs.
    pub tuned: bool,
}

/// Reads the kind of the model, `default` if the key is missing, and the layers of a network. The other keys
/// of linear models are left to the caller.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub(super) fn read_model_kind(section: &Section<'_>, default: &str) -> Result<ModelKind, Problem> {
    let kinds = [
        ("linear", Kind::Linear),
        ("mlp", Kind::Mlp),
        ("cnn", Kind::Cnn),
        ("lstm", Kind::Lstm),
        ("lora-mlp", Kind::LoraMlp),
        ("lora-linear", Kind::LoraLinear),
    ];
    let network = |front, hidden| Ok(ModelKind::Network(NetworkModel { front, hidden }));
    match section.choice("kind", Some(default), &kinds)? {
        Kind::Linear => Ok(ModelKind::Linear),
        Kind::LoraLinear => Ok(ModelKind::LinearAdapter),
        Kind::Mlp => {
            let allowed = "a list of 1 to 3 widths from 1 to 4096, like [128, 64]";
            let hidden = read_widths(section, "hidden", None, 1..=HIDDEN_MAX, allowed)?;
            network(FrontModel::Nothing, hidden)
        }
        Kind::Cnn => {
            let allowed = "a list of 1 or 2 numbers of filters from 1 to 4096, like [64, 64]";
            let counts: [u16; FILTERS_MAX] = read_widths(section, "filters", None, 1..=FILTERS_MAX, allowed)?;
            let side = |key: &str, default: u64, most: u64| {
                section.integer(key, Some(default), 1..=most).map(|n| u8::try_from(n).unwrap_or(u8::MAX))
            };
            let (side, pool) = (side("side", 5, 31)?, side("pool", 2, 16)?);
            let filters = counts.map(|count| match count {
                0 => Filters::default(),
                count => Filters { count, side, pool },
            });
            let allowed = "a list of up to 2 widths from 1 to 4096, like [120, 64]";
            let hidden = read_widths(section, "hidden", Some(&[]), 0..=HIDDEN_AFTER_FILTERS_MAX, allowed)?;
            network(FrontModel::Filters(filters), hidden)
        }
        Kind::Lstm => {
            let cells = section.integer("cells", None, 1..=4096)?;
            let allowed = "a list of up to 3 widths from 1 to 4096, like [64]";
            let hidden = read_widths(section, "hidden", Some(&[]), 0..=HIDDEN_MAX, allowed)?;
            network(FrontModel::Cells(u16::try_from(cells).unwrap_or(u16::MAX)), hidden)
        }
        Kind::LoraMlp => {
            let to_u16 = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
            let rank = to_u16(section.integer("rank", None, 1..=4096)?);
            let width = to_u16(section.integer("width", None, 1..=4096)?);
            let frozen = section.integer("frozen", Some(0), 0..=u64::from(u32::MAX))?;
            let frozen = u32::try_from(frozen).unwrap_or(u32::MAX);
            let allowed = "a list of up to 2 widths from 1 to 4096, like [64]";
            let hidden = read_widths(section, "hidden", Some(&[]), 0..=HIDDEN_MAX - 1, allowed)?;
            network(FrontModel::Adapter { rank, width, frozen }, hidden)
        }
    }
}

/// Reads layer widths, padded with zeros; `lengths` is the allowed number of widths.
fn read_widths<const N: usize>(
    section: &Section<'_>,
    key: &str,
    default: Option<&[u16]>,
    lengths: RangeInclusive<usize>,
    allowed: &str,
) -> Result<[u16; N], Problem> {
    let width = |value: &toml_edit::Value| {
        value
            .as_integer()
            .and_then(|width| u16::try_from(width).ok())
            .filter(|width| (1..=4096).contains(width))
    };
    let list = section.list(key, allowed, width)?.or(default.map(<[u16]>::to_vec));
    let mut widths = [0; N];
    match list {
        Some(list) if lengths.contains(&list.len()) => {
            for (place, width) in widths.iter_mut().zip(list) {
                *place = width;
            }
            Ok(widths)
        }
        _ => Err(section.problem(key, format!("missing or empty or too long, allowed: {allowed}"))),
    }
}

/// Reads the keys of networks from `common`. Keys in a table with the algorithm's own name, within `section`,
/// take precedence, so that one file can compare several algorithms.
///
/// # Errors
/// [`Problem`] for the first mistake, also in the tables of other algorithms.
pub(super) fn read_network(
    section: &Section<'_>,
    common: &Section<'_>,
    model: &NetworkModel,
    name: AlgorithmName,
    tuned: bool,
) -> Result<NetworkSection, Problem> {
    for (word, other) in AlgorithmName::for_network(model).filter(|(_, other)| *other != name) {
        let table = section.section(word)?;
        read_method(&table, None, model, other, tuned)?;
        table.finish()?;
    }
    let own = section.section(name.as_str())?;
    let read = read_method(&own, Some(common), model, name, tuned)?;
    own.finish()?;
    Ok(read)
}

/// Reads an algorithm from its own table, with `common` for the keys missing there.
fn read_method(
    own: &Section<'_>,
    common: Option<&Section<'_>>,
    model: &NetworkModel,
    name: AlgorithmName,
    tuned: bool,
) -> Result<NetworkSection, Problem> {
    let place = |key: &str| match common {
        Some(common) => {
            // The key becomes known in both tables, whichever takes precedence.
            let (_, own_has) = (common.register(key), own.register(key));
            if own_has { own } else { common }
        }
        None => own,
    };
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    let narrow = |value: f64| value as f32;
    let number = |key: &str, default: f64, range| place(key).number(key, Some(default), range).map(narrow);
    let count = |key: &str, default: u64, range| {
        place(key).integer(key, Some(default), range).map(|n| u16::try_from(n).unwrap_or(u16::MAX))
    };
    if place("step_size").peek_str("step_size") == Some("auto") {
        let message = "found \"auto\", which is measured for linear models, whose curvature is that of their samples; allowed for \
                       networks: a number from 0 to 1000000, by default 0.1";
        return Err(place("step_size").problem("step_size", message));
    }
    // SCAFFOLD's control variates are derived for steps without momentum.
    let momentum = if name == AlgorithmName::Scaffold { 0.0 } else { 0.5 };
    let descent = Descent {
        step_size: number("step_size", 0.1, 0.0..=1e6)?,
        momentum: number("momentum", momentum, 0.0..=0.999_999)?,
        batch: count("batch", 10, 1..=65_535)?,
    };
    if name == AlgorithmName::Scaffold && descent.momentum > 0.0 {
        let message = format!(
            "found {}, but scaffold's control variates need steps without momentum; allowed: 0",
            descent.momentum
        );
        return Err(place("momentum").problem("momentum", message));
    }
    if name == AlgorithmName::Scaffold && descent.step_size == 0.0 {
        let message = "found 0, but scaffold divides its control variates by the step size; allowed: above 0";
        return Err(place("step_size").problem("step_size", message));
    }
    // Where a batch's curvature is above 1 / alpha, second derivatives reverse a step.
    let inner_step = if name == AlgorithmName::PerFedAvgHf { 0.05 } else { 0.1 };
    let method = match name {
        AlgorithmName::FedPer => NetworkMethod::FedPer,
        AlgorithmName::FedAvg => NetworkMethod::FedAvg,
        AlgorithmName::FedProx => NetworkMethod::FedProx { proximal_weight: number("pull", 0.1, 0.0..=1e6)? },
        AlgorithmName::Scaffold => NetworkMethod::Scaffold,
        AlgorithmName::LgFedAvg => {
            let (front, hidden) = model.counts();
            // With all layers shared it would be FedAvg. After filters or cells the dense layers are shared
            // (Collins et al. 2021, appendix A).
            let most = (front + hidden) as u64;
            let default = if front > 0 { hidden as u64 + 1 } else { most.min(2) };
            NetworkMethod::LgFedAvg { layers: count("shared_layers", default, 1..=most)?.into() }
        }
        AlgorithmName::PerFedAvg | AlgorithmName::PerFedAvgHf => NetworkMethod::PerFedAvg {
            inner_step: number("inner_step", inner_step, 0.0..=1e6)?,
            hessian_free: name == AlgorithmName::PerFedAvgHf,
        },
        AlgorithmName::Ditto => NetworkMethod::Ditto { proximal_weight: number("pull", 0.1, 0.0..=1e6)? },
        AlgorithmName::Apfl => NetworkMethod::Apfl {
            mixing_weight: number("own", 0.25, 0.0..=1.0)?,
            mixing_step_size: number("adaptation", 0.0, 0.0..=1e6)?,
        },
        AlgorithmName::L2gd => {
            let coin = place("coin").number("coin", Some(0.0), 0.0..=0.99)?;
            if coin > 0.0 && coin < 0.01 {
                let message =
                    format!("found {coin}, which makes rounds too long; allowed: 0, or 0.01 to 0.99");
                return Err(place("coin").problem("coin", message));
            }
            let (averaging_step, averaging_probability) = (number("part", 0.05, 0.0..=1.0)?, narrow(coin));
            NetworkMethod::L2gd { averaging_step, averaging_probability }
        }
        AlgorithmName::FedMtl => NetworkMethod::FedMtl { proximal_weight: number("pull", 0.05, 0.0..=1e6)? },
        AlgorithmName::LocalOnlyNetwork => NetworkMethod::LocalOnly,
        AlgorithmName::RoLora => NetworkMethod::LowRank(Averaging::RoLora),
        AlgorithmName::Lora => NetworkMethod::LowRank(Averaging::Lora),
        AlgorithmName::FfaLora => NetworkMethod::LowRank(Averaging::FfaLora),
        AlgorithmName::FlexLora => NetworkMethod::LowRank(Averaging::FlexLora),
        AlgorithmName::FedRep => NetworkMethod::FedRep,
        // The reader of names refuses these on a network; `local-only` is `LocalOnlyNetwork` there.
        AlgorithmName::GdGd | AlgorithmName::FedPower | AlgorithmName::LocalOnly | AlgorithmName::Pooled => {
            let message = format!("{:?} is for linear models", name.as_str());
            return Err(place("name").problem("name", message));
        }
    };
    let head_epochs = if name == AlgorithmName::FedRep { count("head_epochs", 10, 0..=65_535)? } else { 0 };
    Ok(NetworkSection {
        method,
        descent,
        head_epochs,
        epochs: count("body_epochs", 1, 1..=65_535)?,
        tuning_epochs: match place("tuning_epochs") {
            // The key is known whether it is present or not.
            section
                if section.register("tuning_epochs") && section.peek_str("tuning_epochs") != Some("auto") =>
            {
                let most = u64::from(UNTIL_PLATEAU) - 1;
                section
                    .integer("tuning_epochs", None, 0..=most)
                    .map(|n| u16::try_from(n).unwrap_or(u16::MAX))?
            }
            _ => UNTIL_PLATEAU,
        },
        tuned,
    })
}
