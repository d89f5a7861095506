//! The keys of networks in `[model]` and `[algorithm]`.

use fedspan_protocol::limits::HIDDEN_MAX;
use fedspan_protocol::message::Descent;

use super::reader::Section;
use super::sections::AlgorithmName;
use super::source::Problem;
use crate::algorithm::network::Method;

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
    /// Epochs of the head after the last round.
    pub tuning_epochs: u16,
    /// Whether models are scored after those.
    pub tuned: bool,
}

/// Reads the widths of hidden layers.
///
/// # Errors
/// [`Problem`] if they are none.
pub(super) fn read_hidden(section: &Section<'_>) -> Result<[u16; HIDDEN_MAX], Problem> {
    let allowed = "a list of 1 to 3 widths from 1 to 4096, like [128, 64]";
    let width = |value: &toml_edit::Value| {
        value
            .as_integer()
            .and_then(|width| u16::try_from(width).ok())
            .filter(|width| (1..=4096).contains(width))
    };
    let list = section.list("hidden", allowed, width)?;
    let mut hidden = [0; HIDDEN_MAX];
    match list {
        Some(list) if (1..=HIDDEN_MAX).contains(&list.len()) => {
            for (place, width) in hidden.iter_mut().zip(list) {
                *place = width;
            }
            Ok(hidden)
        }
        _ => Err(section.problem("hidden", format!("missing or empty or too long, allowed: {allowed}"))),
    }
}

/// Reads the keys of networks.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub(super) fn read_network(
    section: &Section<'_>,
    name: AlgorithmName,
    tuned: bool,
) -> Result<NetworkSection, Problem> {
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    let number = |key: &str, default: f64, range| section.number(key, Some(default), range).map(|v| v as f32);
    let epochs = |key: &str, default: u64, least: u64| {
        section.integer(key, Some(default), least..=65_535).map(|n| u16::try_from(n).unwrap_or(u16::MAX))
    };
    // Control variates are made for plain steps.
    let momentum = if name == AlgorithmName::Scaffold { 0.0 } else { 0.5 };
    let descent = Descent {
        step_size: number("step_size", 0.1, 0.0..=1e6)?,
        momentum: number("momentum", momentum, 0.0..=0.999_999)?,
        batch: epochs("batch", 10, 1)?,
    };
    if name == AlgorithmName::Scaffold && descent.momentum > 0.0 {
        let message = format!(
            "found {}, scaffold's control variates are for steps without: allowed: 0",
            descent.momentum
        );
        return Err(section.problem("momentum", message));
    }
    let method = match name {
        AlgorithmName::FedPer => Method::FedPer,
        AlgorithmName::FedAvg => Method::FedAvg,
        AlgorithmName::FedProx => Method::FedProx { pull: number("pull", 0.1, 0.0..=1e6)? },
        AlgorithmName::Scaffold => Method::Scaffold,
        AlgorithmName::LgFedAvg => {
            Method::LgFedAvg { layers: section.size("shared_layers", Some(2), 1..=HIDDEN_MAX + 1)? }
        }
        AlgorithmName::PerFedAvg | AlgorithmName::PerFedAvgHf => Method::PerFedAvg {
            inner_step: number("inner_step", 0.1, 0.0..=1e6)?,
            hessian_free: name == AlgorithmName::PerFedAvgHf,
        },
        AlgorithmName::Ditto => Method::Ditto { pull: number("pull", 0.75, 0.0..=1e6)? },
        AlgorithmName::Apfl => Method::Apfl {
            own: number("own", 0.5, 0.0..=1.0)?,
            adaptation: number("adaptation", 0.0, 0.0..=1e6)?,
        },
        AlgorithmName::L2gd => Method::L2gd { part: number("part", 0.5, 0.0..=1.0)? },
        AlgorithmName::FedMtl => Method::FedMtl { pull: number("pull", 0.1, 0.0..=1e6)? },
        AlgorithmName::LocalSgd => Method::LocalOnly,
        _ => Method::FedRep,
    };
    let head_epochs = if name == AlgorithmName::FedRep { epochs("head_epochs", 10, 0)? } else { 0 };
    Ok(NetworkSection {
        method,
        descent,
        head_epochs,
        epochs: epochs("body_epochs", 1, 1)?,
        tuning_epochs: epochs("tuning_epochs", 10, 0)?,
        tuned,
    })
}
