//! The algorithms by name.

use super::network::NetworkModel;
use super::reader::Section;
use super::sections::ModelSection;
use super::source::Problem;

/// The algorithms that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmName {
    /// FedRep.
    FedRep,
    /// FedRep with one gradient step on the head.
    GdGd,
    /// One shared linear model, averaged.
    FedAvg,
    /// Power iterations on the devices, aligned and averaged.
    FedPower,
    /// Shared body, own head, trained together.
    FedPer,
    /// FedAvg with a pull towards what came.
    FedProx,
    /// FedAvg with control variates.
    Scaffold,
    /// Own body, shared head.
    LgFedAvg,
    /// Meta-learning, first order.
    PerFedAvg,
    /// Meta-learning, Hessian-free.
    PerFedAvgHf,
    /// FedAvg, and one's own network near it.
    Ditto,
    /// A mixture of FedAvg and one's own network.
    Apfl,
    /// One's own network, drawn towards the mean.
    L2gd,
    /// The same at each step.
    FedMtl,
    /// A low-rank adapter, one factor a round.
    RoLora,
    /// Both factors, averaged each.
    Lora,
    /// The up-projection alone.
    FfaLora,
    /// Both factors, products averaged and cut to the rank.
    FlexLora,
    /// Each client alone; no communication.
    LocalOnly,
    /// The same on a network, by rounds of epochs.
    LocalOnlyNetwork,
    /// One model of all data in one place.
    Pooled,
}

/// Names and one line each, as `list --algorithms` prints them.
pub const ALGORITHMS: [(&str, AlgorithmName, &str); 20] = [
    ("fedrep", AlgorithmName::FedRep, "shared representation, personal heads (Collins et al. 2021)"),
    ("gd-gd", AlgorithmName::GdGd, "FedRep with one gradient step on the head instead of the exact solution"),
    ("fedper", AlgorithmName::FedPer, "shared body, personal heads, trained together (networks)"),
    ("fedavg", AlgorithmName::FedAvg, "one model for all, averaged"),
    ("fedprox", AlgorithmName::FedProx, "fedavg with a pull towards the model that came (networks)"),
    ("scaffold", AlgorithmName::Scaffold, "fedavg with steps corrected by control variates (networks)"),
    ("lg-fedavg", AlgorithmName::LgFedAvg, "personal bodies, shared last layers (networks)"),
    ("perfedavg", AlgorithmName::PerFedAvg, "a model one step from everyone's, first order (networks)"),
    ("perfedavg-hf", AlgorithmName::PerFedAvgHf, "the same with a Hessian-free second derivative (networks)"),
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
        "low-rank adapters, one factor a round, averaged exactly (Chen et al. 2025)",
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

/// What a name may end with: models are scored after their heads were tuned at the end.
pub const TUNED: &str = "+ft";

impl AlgorithmName {
    /// The name as it stands in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        let listed = if self == Self::LocalOnlyNetwork { Self::LocalOnly } else { self };
        ALGORITHMS.iter().find(|(_, name, _)| *name == listed).map_or("fedrep", |(word, _, _)| word)
    }

    /// Names and algorithms for a model.
    pub fn of_model(model: &ModelSection) -> impl Iterator<Item = (&'static str, Self)> {
        let (network, adapter) = (model.network.as_ref(), model.adapter);
        let linear = move |name: &Self| match adapter {
            true => name.is_for_linear_adapters(),
            false => name.is_for_linear_models(),
        };
        named(move |name| match network {
            Some(network) => name.of_network(network),
            None => Some(name).filter(linear),
        })
    }

    /// Names of the methods that need a network: there is no such thing on a linear model.
    pub fn of_networks_alone() -> impl Iterator<Item = &'static str> {
        let alone = |name: &Self| name.on_a_network().is_some() && !name.is_for_linear_models();
        ALGORITHMS.iter().filter(move |(_, name, _)| alone(name)).map(|(word, _, _)| *word)
    }

    /// Whether a name as it stands in a file is that of a method that needs a network; all names that end with `+ft` are.
    #[must_use]
    pub fn needs_network(word: &str) -> bool {
        let tuned = word.strip_suffix(TUNED).and_then(Self::named);
        tuned.is_some_and(|name| name.on_a_network().is_some())
            || Self::of_networks_alone().any(|name| name == word)
    }

    /// The models that a name as it stands in a file is for, with what to write for each; `None` for a name that is none.
    fn needs(word: &str) -> Option<String> {
        let plain = word.strip_suffix(TUNED);
        let name = Self::named(plain.unwrap_or(word))?;
        let linear = plain.is_none();
        let models = [
            (linear && name.is_for_linear_models(), "a linear model (model.kind = \"linear\" and model.k)"),
            (
                name.on_a_network().is_some(),
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

    /// The algorithm of that name, whatever model it is for.
    fn named(word: &str) -> Option<Self> {
        ALGORITHMS.iter().find(|(known, _, _)| *known == word).map(|(_, name, _)| *name)
    }

    /// Names and algorithms for a network.
    pub(super) fn of_networks(network: &NetworkModel) -> impl Iterator<Item = (&'static str, Self)> {
        named(move |name| name.of_network(network))
    }

    /// The algorithm as it is on a network, if it is for that.
    fn of_network(self, network: &NetworkModel) -> Option<Self> {
        if network.is_adapted() {
            Some(self).filter(|name| name.is_for_adapters())
        } else {
            self.on_a_network()
        }
    }

    /// Whether it is for linear models.
    fn is_for_linear_models(self) -> bool {
        use AlgorithmName::{FedAvg, FedPower, FedRep, GdGd, LocalOnly, Pooled};
        matches!(self, FedRep | GdGd | FedAvg | FedPower | LocalOnly | Pooled)
    }

    /// Whether it is for linear models of which both factors are everyone's.
    fn is_for_linear_adapters(self) -> bool {
        matches!(self, Self::RoLora | Self::FfaLora)
    }

    /// Whether it is for networks with an adapter.
    fn is_for_adapters(self) -> bool {
        matches!(self, Self::RoLora | Self::Lora | Self::FfaLora | Self::FlexLora)
    }

    /// The same on a network, if there is such a thing.
    fn on_a_network(self) -> Option<Self> {
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

/// Names, and what `of` makes of their algorithms, where it makes anything.
fn named(
    of: impl Fn(AlgorithmName) -> Option<AlgorithmName>,
) -> impl Iterator<Item = (&'static str, AlgorithmName)> {
    ALGORITHMS.iter().filter_map(move |(word, name, _)| Some((*word, of(*name)?)))
}

/// The algorithm's name, and whether it ends with [`TUNED`].
pub(super) fn read_name(
    section: &Section<'_>,
    model: &ModelSection,
) -> Result<(AlgorithmName, bool), Problem> {
    let names: Vec<(&str, AlgorithmName)> = AlgorithmName::of_model(model).collect();
    let network = model.network.is_some();
    let plain = names.iter().map(|(word, name)| ((*word).to_owned(), (*name, false)));
    let tuned =
        names.iter().filter(|_| network).map(|(word, name)| (format!("{word}{TUNED}"), (*name, true)));
    let words: Vec<(String, (AlgorithmName, bool))> = plain.chain(tuned).collect();
    let words: Vec<(&str, (AlgorithmName, bool))> =
        words.iter().map(|(word, value)| (word.as_str(), *value)).collect();
    section.choice("name", None, &words).map_err(|problem| {
        let word = section.word("name").unwrap_or_default();
        let Some(needs) = AlgorithmName::needs(word) else { return problem };
        section.problem("name", format!("{word:?} needs {needs}"))
    })
}
