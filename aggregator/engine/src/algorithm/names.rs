//! Names of all algorithms, on linear models and on networks.

use super::linear::LinearMethod;
use super::network::NetworkMethod;

/// Name of each algorithm and a description in one line; an algorithm that linear models and networks have is
/// listed once.
pub fn algorithms() -> impl Iterator<Item = (&'static str, &'static str)> {
    let linear = LinearMethod::NAMES.iter().map(|(name, summary, _)| (*name, *summary));
    let network = NetworkMethod::NAMES.iter().filter(|(name, ..)| !is_for_linear_models(name));
    linear.chain(network.map(|(name, summary, _)| (*name, *summary)))
}

/// Names of the algorithms that exist on networks without an adapter, and not on linear models.
pub fn network_only_names() -> impl Iterator<Item = &'static str> {
    NetworkMethod::names(false).filter(|name| !is_for_linear_models(name))
}

/// Whether an algorithm is listed for linear models, with one shared factor or with both.
fn is_for_linear_models(name: &str) -> bool {
    LinearMethod::NAMES.iter().any(|(known, ..)| *known == name)
}
