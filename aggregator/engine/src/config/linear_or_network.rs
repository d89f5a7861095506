//! Reader of files that serve algorithms on linear models and on networks: a table `[model.network]`
//! accompanies a linear `[model]` and applies to the algorithms that need a network.

use super::algorithm::{
    AlgorithmSection, MeasuredSteps, read_algorithm, read_linear, read_network_algorithm,
};
use super::algorithm_names::{needs_network, read_name};
use super::model::{ModelSection, read_model, read_model_with_default};
use super::network::read_network;
use crate::algorithm::{FedRepSettings, LinearAlgorithm};
use crate::reader::Problem;
use crate::reader::Section;

/// Reads `[model]` and `[algorithm]`. A linear model may be accompanied by a table `[model.network]`, with
/// the keys of a network's `[model]`, and by `[algorithm.network]`, with the keys of algorithms on networks.
/// These tables apply if the algorithm exists only on networks. Rounds, weighting and encodings are always
/// read from `[algorithm]`. Step sizes of linear models may be `"auto"`.
///
/// # Errors
/// [`Problem`] for the first mistake, including mistakes in tables that this algorithm does not use.
pub fn read_linear_or_network(
    model: &Section<'_>,
    algorithm: &Section<'_>,
) -> Result<(ModelSection, AlgorithmSection, MeasuredSteps), Problem> {
    let linear = model.peek_str("kind").is_none_or(|kind| kind == "linear");
    // The key `network` is allowed for linear models alone.
    let table = linear.then(|| model.section("network")).transpose()?.filter(Section::is_present);
    let main_model = read_model(model)?;
    let Some(table) = table else {
        if main_model.network.is_none() {
            let (algorithm, measured) =
                read_linear(algorithm, read_name(algorithm, &main_model)?.0, true, true)?;
            return Ok((main_model, algorithm, measured));
        }
        let algorithm = read_algorithm(algorithm, &main_model)?;
        return Ok((main_model, algorithm, MeasuredSteps::default()));
    };
    let network_model = read_model_with_default(&table, "mlp")?;
    let Some(network) = &network_model.network else {
        let message = "found a linear kind, which [model] has; allowed here: \"mlp\", \"cnn\", \"lstm\"";
        return Err(table.problem("kind", message));
    };
    let needed = algorithm.peek_str("name").is_some_and(needs_network);
    let (name, tuned) =
        if needed { read_name(algorithm, &network_model)? } else { (FedRepSettings::NAME, false) };
    let common = algorithm.section("network")?;
    let steps = read_network(algorithm, &common, network, name, tuned)?;
    common.finish()?;
    if needed {
        read_linear(algorithm, FedRepSettings::NAME, false, true)?;
        let algorithm = read_network_algorithm(algorithm, steps)?;
        return Ok((network_model, algorithm, MeasuredSteps::default()));
    }
    let (algorithm, measured) = read_linear(algorithm, read_name(algorithm, &main_model)?.0, true, true)?;
    Ok((main_model, algorithm, measured))
}
