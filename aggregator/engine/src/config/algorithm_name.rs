//! Algorithms by name.

use super::network::NetworkModel;
use super::sections::ModelSection;
use crate::reader::Problem;
use crate::reader::Section;

/// Algorithm of a campaign or a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmName {
    /// FedRep: shared representation, personal heads.
    FedRep,
    /// FedRep with one gradient step on the head.
    GdGd,
    /// FedAvg: one shared model.
    FedAvg,
    /// FedPower: power iterations on the devices, aligned and averaged.
    FedPower,
    /// FedPer: shared body and personal heads, trained together.
    FedPer,
    /// FedProx: FedAvg with a proximal term.
    FedProx,
    /// SCAFFOLD: FedAvg with control variates.
    Scaffold,
    /// LG-FedAvg: personal bodies, shared last layers.
    LgFedAvg,
    /// Per-FedAvg, first order.
    PerFedAvg,
    /// Per-FedAvg, Hessian-free.
    PerFedAvgHf,
    /// Ditto: FedAvg, and personal networks near the shared one.
    Ditto,
    /// APFL: mixtures of a shared and personal networks.
    Apfl,
    /// L2GD: personal networks that move towards their mean each round.
    L2gd,
    /// Fed-MTL: personal networks drawn towards their mean at each step.
    FedMtl,
    /// RoLoRA: low-rank adapters, one factor per round.
    RoLora,
    /// Plain averaging of low-rank adapters, each factor by itself.
    Lora,
    /// FFA-LoRA: low-rank adapters with a fixed down-projection.
    FfaLora,
    /// FlexLoRA: low-rank adapters, products averaged and cut to the rank.
    FlexLora,
    /// Local training on a linear model, without communication.
    LocalOnly,
    /// Local training on a network, in rounds of epochs.
    LocalOnlyNetwork,
    /// One model of all data in one place.
    Pooled,
}

/// Names with a one-line summary, as `list --algorithms` prints them.
pub const ALGORITHMS: [(&str, AlgorithmName, &str); 20] = [
    ("fedrep", AlgorithmName::FedRep, "shared representation, personal heads (Collins et al. 2021)"),
    ("gd-gd", AlgorithmName::GdGd, "FedRep with one gradient step on the head instead of the exact solution"),
    ("fedper", AlgorithmName::FedPer, "shared body, personal heads, trained together (networks)"),
    ("fedavg", AlgorithmName::FedAvg, "one model for all, averaged"),
    ("fedprox", AlgorithmName::FedProx, "fedavg with a proximal term (networks)"),
    ("scaffold", AlgorithmName::Scaffold, "fedavg with steps corrected by control variates (networks)"),
    ("lg-fedavg", AlgorithmName::LgFedAvg, "personal bodies, shared last layers (networks)"),
    ("perfedavg", AlgorithmName::PerFedAvg, "a shared model that adapts in one step, first order (networks)"),
    (
        "perfedavg-hf",
        AlgorithmName::PerFedAvgHf,
        "perfedavg with a Hessian-free second derivative (networks)",
    ),
    ("ditto", AlgorithmName::Ditto, "fedavg, and personal models that stay near it (networks)"),
    ("apfl", AlgorithmName::Apfl, "mixtures of a shared and personal models (networks)"),
    ("l2gd", AlgorithmName::L2gd, "personal models that move towards their mean each round (networks)"),
    ("fed-mtl", AlgorithmName::FedMtl, "personal models drawn to their mean at each step (networks)"),
    (
        "fedpower",
        AlgorithmName::FedPower,
        "principal directions of all samples, without labels (Guo et al. 2024)",
    ),
    (
        "rolora",
        AlgorithmName::RoLora,
        "low-rank adapters, one factor per round, averaged exactly (Chen et al. 2025)",
    ),
    ("lora", AlgorithmName::Lora, "low-rank adapters, both factors averaged by themselves (Hu et al. 2022)"),
    ("ffa-lora", AlgorithmName::FfaLora, "low-rank adapters, down-projection as drawn (Sun et al. 2024)"),
    (
        "flexlora",
        AlgorithmName::FlexLora,
        "low-rank adapters, products averaged and cut to the rank (Bai et al. 2024)",
    ),
    ("local-only", AlgorithmName::LocalOnly, "each client on its own samples, no communication"),
    ("pooled", AlgorithmName::Pooled, "least squares on all clients' samples in one place, no federation"),
];

/// Suffix of a name for which models are evaluated after their heads were tuned at the end.
pub const TUNED: &str = "+ft";

impl AlgorithmName {
    /// Name in files; that of [`Self::LocalOnly`] for its variant on networks.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let listed = if self == Self::LocalOnlyNetwork { Self::LocalOnly } else { self };
        ALGORITHMS.iter().find(|(_, name, _)| *name == listed).map_or("fedrep", |(word, _, _)| word)
    }

    /// Names and algorithms that fit a model.
    pub fn for_model(model: &ModelSection) -> impl Iterator<Item = (&'static str, Self)> {
        let (network, adapter) = (model.network.as_ref(), model.adapter);
        let linear = move |name: &Self| match adapter {
            true => name.is_for_linear_adapters(),
            false => name.is_for_linear_models(),
        };
        named(move |name| match network {
            Some(network) => name.variant_for_network(network),
            None => Some(name).filter(linear),
        })
    }

    /// Names of the algorithms that exist on networks alone.
    pub fn network_only_names() -> impl Iterator<Item = &'static str> {
        let alone = |name: &Self| name.as_network_algorithm().is_some() && !name.is_for_linear_models();
        ALGORITHMS.iter().filter(move |(_, name, _)| alone(name)).map(|(word, _, _)| *word)
    }

    /// Whether a name in a file belongs to an algorithm that needs a network, as all names with the suffix
    /// `+ft` do.
    #[must_use]
    pub fn needs_network(word: &str) -> bool {
        let tuned = word.strip_suffix(TUNED).and_then(Self::named);
        tuned.is_some_and(|name| name.as_network_algorithm().is_some())
            || Self::network_only_names().any(|name| name == word)
    }

    /// Models that an algorithm fits, with the keys to write for each; `None` for an unknown name.
    fn needs(word: &str) -> Option<String> {
        let plain = word.strip_suffix(TUNED);
        let name = Self::named(plain.unwrap_or(word))?;
        let linear = plain.is_none();
        let models = [
            (linear && name.is_for_linear_models(), "a linear model (model.kind = \"linear\" and model.k)"),
            (
                name.as_network_algorithm().is_some(),
                "a network (model.kind = \"mlp\" and model.hidden = [32], \"cnn\" or \"lstm\")",
            ),
            (Self::needs_network(word), "one beside a linear model (model.network.hidden = [32])"),
            (name.is_for_adapters(), "an adapter (model.kind = \"lora-mlp\", model.rank and model.width)"),
            (
                linear && name.is_for_linear_adapters(),
                "a linear model as an adapter (model.kind = \"lora-linear\" and model.rank)",
            ),
        ];
        let models: Vec<&str> =
            models.iter().filter(|(is_one, _)| *is_one).map(|(_, model)| *model).collect();
        (!models.is_empty()).then(|| models.join(", or "))
    }

    /// Algorithm of a name, for any model.
    fn named(word: &str) -> Option<Self> {
        ALGORITHMS.iter().find(|(known, _, _)| *known == word).map(|(_, name, _)| *name)
    }

    /// Names and algorithms that fit a network.
    pub(super) fn for_network(network: &NetworkModel) -> impl Iterator<Item = (&'static str, Self)> {
        named(move |name| name.variant_for_network(network))
    }

    /// Variant of the algorithm for a network, if it has one.
    fn variant_for_network(self, network: &NetworkModel) -> Option<Self> {
        if network.is_adapted() {
            Some(self).filter(|name| name.is_for_adapters())
        } else {
            self.as_network_algorithm()
        }
    }

    /// Whether the algorithm fits linear models.
    fn is_for_linear_models(self) -> bool {
        use AlgorithmName::{FedAvg, FedPower, FedRep, GdGd, LocalOnly, Pooled};
        matches!(self, FedRep | GdGd | FedAvg | FedPower | LocalOnly | Pooled)
    }

    /// Whether the algorithm fits linear models with two shared factors.
    fn is_for_linear_adapters(self) -> bool {
        matches!(self, Self::RoLora | Self::FfaLora)
    }

    /// Whether the algorithm fits networks with an adapter.
    fn is_for_adapters(self) -> bool {
        matches!(self, Self::RoLora | Self::Lora | Self::FfaLora | Self::FlexLora)
    }

    /// Variant of the algorithm on networks without an adapter, if it has one.
    fn as_network_algorithm(self) -> Option<Self> {
        match self {
            Self::LocalOnly => Some(Self::LocalOnlyNetwork),
            Self::GdGd | Self::FedPower | Self::Pooled => None,
            name => Some(name).filter(|name| !name.is_for_adapters()),
        }
    }

    /// Whether devices and server exchange rounds.
    #[must_use]
    pub fn is_federated(self) -> bool {
        !matches!(self, Self::LocalOnly | Self::Pooled)
    }
}

/// Names with the algorithms that `of` maps theirs to, without those that it maps to `None`.
fn named(
    of: impl Fn(AlgorithmName) -> Option<AlgorithmName>,
) -> impl Iterator<Item = (&'static str, AlgorithmName)> {
    ALGORITHMS.iter().filter_map(move |(word, name, _)| Some((*word, of(*name)?)))
}

/// Reads the algorithm's name, and whether it ends with [`TUNED`].
pub(super) fn read_name(
    section: &Section<'_>,
    model: &ModelSection,
) -> Result<(AlgorithmName, bool), Problem> {
    let names: Vec<(&str, AlgorithmName)> = AlgorithmName::for_model(model).collect();
    let network = model.network.is_some();
    let plain = names.iter().map(|(word, name)| ((*word).to_owned(), (*name, false)));
    let tuned =
        names.iter().filter(|_| network).map(|(word, name)| (format!("{word}{TUNED}"), (*name, true)));
    let words: Vec<(String, (AlgorithmName, bool))> = plain.chain(tuned).collect();
    let words: Vec<(&str, (AlgorithmName, bool))> =
        words.iter().map(|(word, value)| (word.as_str(), *value)).collect();
    section.choice("name", None, &words).map_err(|problem| {
        let word = section.peek_str("name").unwrap_or_default();
        let Some(needs) = AlgorithmName::needs(word) else { return problem };
        section.problem("name", format!("{word:?} needs {needs}"))
    })
}
