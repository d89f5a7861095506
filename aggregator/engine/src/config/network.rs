//! The keys of networks in `[model]` and `[algorithm]`.

use std::ops::RangeInclusive;

use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX, UNTIL_PLATEAU};
use fedspan_protocol::message::{Descent, Filters};

use super::algorithm_name::AlgorithmName;
use super::participation::ParticipationSection;
use super::reader::Section;
use super::sections::ModelSection;
use super::source::Problem;
use crate::algorithm::network::{Averaging, Method};
use crate::participation::Schedule;

/// The layers of a network, in `[model]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// What comes before the dense layers.
    pub front: FrontModel,
    /// Widths of its hidden dense layers, zeros after the last.
    pub hidden: [u16; HIDDEN_MAX],
}

/// What a network begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontModel {
    /// Dense layers.
    Nothing,
    /// Filters; those after the last have a count of zero.
    Filters([Filters; FILTERS_MAX]),
    /// So many cells of long short-term memory.
    Cells(u16),
    /// An adapter beside a layer that stays as it is.
    Adapter {
        /// `r`.
        rank: u16,
        /// Outputs of the layer.
        width: u16,
        /// CRC-32C of the layer, 0 without.
        frozen: u32,
    },
}

impl NetworkModel {
    /// Layers before the dense ones, and hidden dense layers.
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

/// A kind of model; of networks with their layers.
pub(super) enum ModelKind {
    /// One basis.
    Linear,
    /// The same as an adapter: two factors, both everyone's.
    LinearAdapter,
    /// Layers.
    Network(NetworkModel),
}

/// Kinds of models.
#[derive(Clone, Copy)]
enum Kind {
    Linear,
    LoraLinear,
    Mlp,
    Cnn,
    Lstm,
    LoraMlp,
}

/// What stochastic gradient descent on a network needs to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkSection {
    /// What is done.
    pub method: Method,
    /// The steps.
    pub descent: Descent,
    /// FedRep's epochs of the head.
    pub head_epochs: u16,
    /// Epochs of everything else.
    pub epochs: u16,
    /// Epochs of the head after the last round; [`UNTIL_PLATEAU`] for as many as the loss falls in.
    pub tuning_epochs: u16,
    /// Whether models are scored after those.
    pub tuned: bool,
}

/// That no schedule is asked for that looks at how a representation moves: of a network it would look at a million numbers, and
/// the factors of an adapter move in turn.
///
/// # Errors
/// [`Problem`] if one is.
pub fn check_schedule(
    model: &ModelSection,
    participation: &ParticipationSection,
    section: &Section<'_>,
) -> Result<(), Problem> {
    match participation {
        ParticipationSection::Doubling { schedule: Schedule::Adaptive, .. }
            if model.network.is_some() || model.adapter =>
        {
            let message = "found \"adaptive\" (the default), which is for linear models; allowed for networks and adapters: \
                           \"fixed\", \"theorem\", \"optimal\"";
            Err(section.problem("schedule", message))
        }
        _ => Ok(()),
    }
}

/// Reads the kind of model, `default` where none stands there, and the layers of a network; of a linear model nothing else
/// has been read.
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
            let small = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
            let rank = small(section.integer("rank", None, 1..=4096)?);
            let width = small(section.integer("width", None, 1..=4096)?);
            let frozen = section.integer("frozen", Some(0), 0..=u64::from(u32::MAX))?;
            let frozen = u32::try_from(frozen).unwrap_or(u32::MAX);
            let allowed = "a list of up to 2 widths from 1 to 4096, like [64]";
            let hidden = read_widths(section, "hidden", Some(&[]), 0..=HIDDEN_MAX - 1, allowed)?;
            network(FrontModel::Adapter { rank, width, frozen }, hidden)
        }
    }
}

/// Reads sizes of layers, with zeros after the last; so many are allowed.
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

/// Reads the keys of networks from `common`. What stands in a table of the method's own name, in `section`, is for this method
/// alone, so that one file serves to compare several.
///
/// # Errors
/// [`Problem`] for the first mistake, in the tables of other methods too.
pub(super) fn read_network(
    section: &Section<'_>,
    common: &Section<'_>,
    model: &NetworkModel,
    name: AlgorithmName,
    tuned: bool,
) -> Result<NetworkSection, Problem> {
    for (word, other) in AlgorithmName::of_networks(model).filter(|(_, other)| *other != name) {
        let table = section.section(word)?;
        read_method(&table, None, model, other, tuned)?;
        table.finish()?;
    }
    let own = section.section(name.word())?;
    let read = read_method(&own, Some(common), model, name, tuned)?;
    own.finish()?;
    Ok(read)
}

/// Reads a method from its own table, and what that has not from the one that is common to all.
fn read_method(
    own: &Section<'_>,
    common: Option<&Section<'_>>,
    model: &NetworkModel,
    name: AlgorithmName,
    tuned: bool,
) -> Result<NetworkSection, Problem> {
    let place = |key: &str| match common {
        Some(common) => {
            // Known in both, whichever counts.
            let (_, own_has) = (common.asks(key), own.asks(key));
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
    if place("step_size").word("step_size") == Some("auto") {
        let message = "found \"auto\", which is measured for linear models, whose curvature is that of their samples; allowed for \
                       networks: a number from 0 to 1000000, by default 0.1";
        return Err(place("step_size").problem("step_size", message));
    }
    // Control variates are made for plain steps.
    let momentum = if name == AlgorithmName::Scaffold { 0.0 } else { 0.5 };
    let descent = Descent {
        step_size: number("step_size", 0.1, 0.0..=1e6)?,
        momentum: number("momentum", momentum, 0.0..=0.999_999)?,
        batch: count("batch", 10, 1..=65_535)?,
    };
    if name == AlgorithmName::Scaffold && descent.momentum > 0.0 {
        let message = format!(
            "found {}, scaffold's control variates are for steps without; allowed: 0",
            descent.momentum
        );
        return Err(place("momentum").problem("momentum", message));
    }
    if name == AlgorithmName::Scaffold && descent.step_size == 0.0 {
        let message = "found 0, by which scaffold's control variates are divided; allowed: above 0";
        return Err(place("step_size").problem("step_size", message));
    }
    // Where a batch's curvature is above 1 / alpha, second derivatives turn a step round.
    let inner_step = if name == AlgorithmName::PerFedAvgHf { 0.05 } else { 0.1 };
    let method = match name {
        AlgorithmName::FedPer => Method::FedPer,
        AlgorithmName::FedAvg => Method::FedAvg,
        AlgorithmName::FedProx => Method::FedProx { pull: number("pull", 0.1, 0.0..=1e6)? },
        AlgorithmName::Scaffold => Method::Scaffold,
        AlgorithmName::LgFedAvg => {
            let (front, hidden) = model.counts();
            // With all layers it would be FedAvg. After filters or cells the dense layers are shared (Collins et al. 2021,
            // appendix A).
            let most = (front + hidden) as u64;
            let default = if front > 0 { hidden as u64 + 1 } else { most.min(2) };
            Method::LgFedAvg { layers: count("shared_layers", default, 1..=most)?.into() }
        }
        AlgorithmName::PerFedAvg | AlgorithmName::PerFedAvgHf => Method::PerFedAvg {
            inner_step: number("inner_step", inner_step, 0.0..=1e6)?,
            hessian_free: name == AlgorithmName::PerFedAvgHf,
        },
        AlgorithmName::Ditto => Method::Ditto { pull: number("pull", 0.1, 0.0..=1e6)? },
        AlgorithmName::Apfl => Method::Apfl {
            own: number("own", 0.25, 0.0..=1.0)?,
            adaptation: number("adaptation", 0.0, 0.0..=1e6)?,
        },
        AlgorithmName::L2gd => {
            let coin = place("coin").number("coin", Some(0.0), 0.0..=0.99)?;
            if coin > 0.0 && coin < 0.01 {
                let message = format!(
                    "found {coin}, with which rounds are hardly ever over; allowed: 0, or 0.01 to 0.99"
                );
                return Err(place("coin").problem("coin", message));
            }
            let (part, coin) = (number("part", 0.05, 0.0..=1.0)?, narrow(coin));
            Method::L2gd { part, coin }
        }
        AlgorithmName::FedMtl => Method::FedMtl { pull: number("pull", 0.05, 0.0..=1e6)? },
        AlgorithmName::LocalOnlyNetwork => Method::LocalOnly,
        AlgorithmName::RoLora => Method::LowRank(Averaging::RoLora),
        AlgorithmName::Lora => Method::LowRank(Averaging::Lora),
        AlgorithmName::FfaLora => Method::LowRank(Averaging::FfaLora),
        AlgorithmName::FlexLora => Method::LowRank(Averaging::FlexLora),
        _ => Method::FedRep,
    };
    let head_epochs = if name == AlgorithmName::FedRep { count("head_epochs", 10, 0..=65_535)? } else { 0 };
    Ok(NetworkSection {
        method,
        descent,
        head_epochs,
        epochs: count("body_epochs", 1, 1..=65_535)?,
        tuning_epochs: match place("tuning_epochs") {
            // Known, whether it is there or not.
            section if section.asks("tuning_epochs") && section.word("tuning_epochs") != Some("auto") => {
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
