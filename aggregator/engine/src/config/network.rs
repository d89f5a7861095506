//! Keys of networks in the sections `[model]` and `[algorithm]` of configuration files.

use std::ops::RangeInclusive;

use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX, UNTIL_PLATEAU};
use fedspan_protocol::message::{Descent, Filters};

use crate::algorithm::network::{MethodKeys, NetworkMethod};
use crate::reader::Problem;
use crate::reader::Section;

/// Layers of a network, from `[model]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// Layers before the dense ones.
    pub front: FrontModel,
    /// Widths of the hidden dense layers, padded with zeros.
    pub hidden: [u16; HIDDEN_MAX],
}

/// Layers at the front of a network, without the sizes that come from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontModel {
    /// No front: dense layers only.
    Nothing,
    /// Convolutional layers. Unused entries at the end of the array have a count of zero.
    Filters([Filters; FILTERS_MAX]),
    /// LSTM layer with this number of cells.
    Cells(u16),
    /// Frozen layer with a parallel low-rank adapter.
    Adapter {
        /// Rank of the adapter, `r`.
        rank: u16,
        /// Number of outputs of the frozen layer.
        width: u16,
        /// CRC-32C of the frozen layer, or 0 if none was given.
        frozen: u32,
    },
}

impl NetworkModel {
    /// Network of one layer, from the features to the outputs.
    pub(super) const WITHOUT_HIDDEN: Self = Self { front: FrontModel::Nothing, hidden: [0; HIDDEN_MAX] };

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
    /// Network with these layers.
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
    /// Algorithm, with the settings of that algorithm.
    pub method: NetworkMethod,
    /// Stochastic gradient descent of the devices: step size, momentum and batch size.
    pub descent: Descent,
    /// Number of epochs per round in which devices train the head (FedRep).
    pub head_epochs: u16,
    /// Number of epochs per round in which devices train the other layers.
    pub epochs: u16,
    /// Number of epochs in which devices train the head after the last round; [`UNTIL_PLATEAU`] to train as
    /// long as the loss decreases.
    pub tuning_epochs: u16,
    /// Whether models are evaluated after the `tuning_epochs`.
    pub tuned: bool,
}

/// Reads the kind of the model (`default` if the key `kind` is missing) and the layers of a network. The
/// caller reads the other keys of linear models.
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
            let read_side = |key: &str, default: u64, max: u64| {
                section.integer(key, Some(default), 1..=max).map(|n| u8::try_from(n).unwrap_or(u8::MAX))
            };
            let (side, pool) = (read_side("side", 5, 31)?, read_side("pool", 2, 16)?);
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
            for (target, width) in widths.iter_mut().zip(list) {
                *target = width;
            }
            Ok(widths)
        }
        _ => Err(section.problem(key, format!("missing or empty or too long, allowed: {allowed}"))),
    }
}

/// Reads the keys of an algorithm on a network from `common`. Keys in a table of `section` named like the
/// algorithm take precedence, so that one file can compare several algorithms.
///
/// # Errors
/// [`Problem`] for the first mistake, including mistakes in the tables of other algorithms.
pub(super) fn read_network(
    section: &Section<'_>,
    common: &Section<'_>,
    model: &NetworkModel,
    name: &str,
    tuned: bool,
) -> Result<NetworkSection, Problem> {
    let layers = model.counts();
    for other in NetworkMethod::names(model.is_adapted()).filter(|other| *other != name) {
        let table = section.section(other)?;
        read_steps(&MethodKeys { own: &table, common: None, layers }, other, tuned)?;
        table.finish()?;
    }
    let table = section.section(name)?;
    let network = read_steps(&MethodKeys { own: &table, common: Some(common), layers }, name, tuned)?;
    table.finish()?;
    Ok(network)
}

/// Reads the settings of an algorithm, and those of the gradient descent of its devices.
fn read_steps(keys: &MethodKeys<'_, '_>, name: &str, tuned: bool) -> Result<NetworkSection, Problem> {
    let steps = keys.section_of("step_size");
    if steps.peek_str("step_size") == Some("auto") {
        let message = "found \"auto\", which is measured for linear models, whose curvature is that of their samples; allowed for \
                       networks: a number from 0 to 1000000, by default 0.1";
        return Err(steps.problem("step_size", message));
    }
    let Some(method) = NetworkMethod::read(name, keys) else {
        return Err(keys.section_of("name").problem("name", format!("{name:?} is for linear models")));
    };
    let method = method?;
    let descent = Descent {
        step_size: keys.number("step_size", 0.1, 0.0..=1e6)?,
        momentum: keys.number("momentum", method.default_momentum(), 0.0..=0.999_999)?,
        batch: keys.count("batch", 10, 1..=65_535)?,
    };
    let checked = method.check_descent(&descent);
    checked.map_err(|(key, message)| keys.section_of(key).problem(key, message))?;
    let head_epochs = if method.has_head_epochs() { keys.count("head_epochs", 10, 0..=65_535)? } else { 0 };
    let epochs = keys.count("body_epochs", 1, 1..=65_535)?;
    // `register` makes the key known even if it is absent.
    let tuning = keys.section_of("tuning_epochs");
    let is_given = tuning.register("tuning_epochs") && tuning.peek_str("tuning_epochs") != Some("auto");
    let tuning_epochs = if is_given {
        let epochs = tuning.integer("tuning_epochs", None, 0..=u64::from(UNTIL_PLATEAU) - 1)?;
        u16::try_from(epochs).unwrap_or(u16::MAX)
    } else {
        UNTIL_PLATEAU
    };
    Ok(NetworkSection { method, descent, head_epochs, epochs, tuning_epochs, tuned })
}
