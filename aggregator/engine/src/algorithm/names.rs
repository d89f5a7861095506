//! Names of all algorithms, on linear models and on networks.

use super::linear::LinearMethod;
use super::network::NetworkMethod;

/// Name of each algorithm and a description in one line. An algorithm that exists for linear models and for
/// networks is listed once.
pub fn algorithms() -> impl Iterator<Item = (&'static str, &'static str)> {
    let linear = LinearMethod::NAMES.iter().map(|(name, summary, _)| (*name, *summary));
    let network = NetworkMethod::NAMES.iter().filter(|(name, ..)| !is_for_linear_models(name));
    linear.chain(network.map(|(name, summary, _)| (*name, *summary)))
}

/// Names of the algorithms on networks without an adapter that do not exist on linear models.
pub fn network_only_names() -> impl Iterator<Item = &'static str> {
    NetworkMethod::names(false).filter(|name| !is_for_linear_models(name))
}

/// Whether an algorithm of this name exists for linear models, with or without an adapter.
fn is_for_linear_models(name: &str) -> bool {
    LinearMethod::NAMES.iter().any(|(known, ..)| *known == name)
}
