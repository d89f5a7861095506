//! Names of the algorithms that fit a model, and error messages for those that do not.

use super::model::ModelSection;
use crate::algorithm::network::NetworkMethod;
use crate::algorithm::{LinearMethod, network_only_names};
use crate::reader::{Problem, Section};

/// Suffix of an algorithm's name with which models are evaluated after fine-tuning of their heads.
pub const TUNED: &str = "+ft";

/// Names of the algorithms that fit a model.
#[must_use]
pub fn names_for_model(model: &ModelSection) -> Vec<&'static str> {
    match &model.network {
        Some(network) => NetworkMethod::names(network.is_adapted()).collect(),
        None => LinearMethod::names(model.adapter).collect(),
    }
}

/// Whether a name in a file belongs to an algorithm that needs a network. This holds for all names with the
/// suffix `+ft`.
#[must_use]
pub fn needs_network(full_name: &str) -> bool {
    let tuned = full_name.strip_suffix(TUNED);
    tuned.is_some_and(|name| NetworkMethod::names(false).any(|known| known == name))
        || network_only_names().any(|name| name == full_name)
}

/// Text that lists the models which an algorithm fits, with the keys to set for each; `None` for an unknown
/// name.
fn describe_needs(full_name: &str) -> Option<String> {
    let untuned = full_name.strip_suffix(TUNED);
    let name = untuned.unwrap_or(full_name);
    let is_untuned = untuned.is_none();
    let is_linear = |adapter| is_untuned && LinearMethod::names(adapter).any(|known| known == name);
    let is_network = |adapter| NetworkMethod::names(adapter).any(|known| known == name);
    let models = [
        (is_linear(false), "a linear model (model.kind = \"linear\" and model.k)"),
        (is_network(false), "a network (model.kind = \"mlp\" and model.hidden = [32], \"cnn\" or \"lstm\")"),
        (needs_network(full_name), "one beside a linear model (model.network.hidden = [32])"),
        (is_network(true), "an adapter (model.kind = \"lora-mlp\", model.rank and model.width)"),
        (is_linear(true), "a linear model as an adapter (model.kind = \"lora-linear\" and model.rank)"),
    ];
    let models: Vec<&str> = models.iter().filter(|(fits, _)| *fits).map(|(_, model)| *model).collect();
    (!models.is_empty()).then(|| models.join(", or "))
}

/// Reads the algorithm's name, and whether it ends with [`TUNED`].
pub(super) fn read_name(
    section: &Section<'_>,
    model: &ModelSection,
) -> Result<(&'static str, bool), Problem> {
    let names = names_for_model(model);
    let network = model.network.is_some();
    let untuned = names.iter().map(|name| ((*name).to_owned(), (*name, false)));
    let tuned = names.iter().filter(|_| network).map(|name| (format!("{name}{TUNED}"), (*name, true)));
    let choices: Vec<(String, (&str, bool))> = untuned.chain(tuned).collect();
    let choices: Vec<(&str, (&'static str, bool))> =
        choices.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    section.choice("name", None, &choices).map_err(|problem| {
        let name = section.peek_str("name").unwrap_or_default();
        let Some(needs) = describe_needs(name) else { return problem };
        section.problem("name", format!("{name:?} needs {needs}"))
    })
}
