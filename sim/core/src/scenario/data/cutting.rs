//! `[data.partition]`, and `[split]` of data that are cut into clients.

use fedspan_engine::config::{Problem, Section};

use crate::data::holdout::Holdout;
use crate::data::partition::{Partition, Shares};
use crate::data::pool::{Cutting, SplitBy, Tests};
use crate::data::sizes::Sizes;
use crate::data::split::{Order, OrderSplit};
use crate::scenario::LARGEST_SIGMA;

/// Most clients that data are cut into.
pub(super) const CLIENTS: usize = 100_000;
/// Most samples that are asked for, of a client or a class.
pub(super) const SAMPLES: usize = 1_000_000;

/// What the data bring along, beside labelled samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brings {
    /// It says whose samples are whose.
    pub users: bool,
    /// A test part of their own.
    pub tests: bool,
    /// Names of classes.
    pub names: bool,
}

/// Reads both sections.
pub fn read_cutting(section: &Section<'_>, split: &Section<'_>, brings: Brings) -> Result<Cutting, Problem> {
    let partition = read_partition(&section.section("partition")?, brings.users, true)?;
    // Images have no order in time.
    let all = [
        ("time", By::Clients(Order::Stratified)),
        ("stratified", By::Clients(Order::Stratified)),
        ("random", By::Clients(Order::Random)),
        ("classes", By::Classes),
        ("files", By::Files),
    ];
    let (word, known) = if brings.tests { ("files", &all[..]) } else { ("time", &all[..4]) };
    let by = split.choice("by", Some(word), known)?;
    let (by, order, test) = by.read(split, Order::Stratified)?;
    let tests = read_tests(split, by)?;
    let holdout = Holdout {
        clients: split.size("holdout_clients", Some(0), 0..=CLIENTS)?,
        fold: split.size("fold", Some(0), 0..=CLIENTS)?,
        samples: split.size("labels_per_class", Some(1), 0..=SAMPLES)?,
        key: "holdout_clients",
    };
    let holdout_classes = read_holdout_classes(split, &holdout, partition, brings.names)?;
    let validation = split.number("validation", Some(0.0), 0.0..=0.9)?;
    let split = OrderSplit { test, validation, gap: 0 };
    Ok(Cutting { partition, by, order, split, tests, holdout, holdout_classes })
}

/// The words of `by`.
#[derive(Clone, Copy)]
pub enum By {
    /// A part of each client's samples, in this order.
    Clients(Order),
    /// A part of each class.
    Classes,
    /// The files' own.
    Files,
}

impl By {
    /// Reads what belongs to it: who cuts, in which order, and which fraction tests.
    pub fn read(self, split: &Section<'_>, order: Order) -> Result<(SplitBy, Order, f64), Problem> {
        let test = || split.number("test", Some(0.2), 0.0..=0.95);
        Ok(match self {
            Self::Clients(order) => (SplitBy::Clients, order, test()?),
            Self::Classes => {
                let count = split.size("train_per_class", Some(0), 0..=SAMPLES)?;
                (SplitBy::Classes(count), Order::Stratified, test()?)
            }
            Self::Files => (SplitBy::Files, order, 0.0),
        })
    }
}

/// Reads which of the test part a client is scored on, where it is cut off before there are clients.
pub fn read_tests(split: &Section<'_>, by: SplitBy) -> Result<Tests, Problem> {
    let tests = [("share", Tests::Share), ("all", Tests::All)];
    match by {
        SplitBy::Clients => Ok(Tests::Share),
        SplitBy::Classes(_) | SplitBy::Files => split.choice("tests", Some("share"), &tests),
    }
}

/// Reads the classes that only those have who come later: numbers, and where data name their classes (`named`) names.
pub fn read_holdout_classes(
    split: &Section<'_>,
    holdout: &Holdout,
    partition: Partition,
    named: bool,
) -> Result<Vec<String>, Problem> {
    let numbers = "a list of class numbers from 0 to 255";
    let names = "a list of names of classes";
    let classes = split.list("holdout_classes", if named { names } else { numbers }, |value| {
        let text = || value.as_str().map(|name| name.trim().to_owned());
        match value.as_integer() {
            Some(class) if named || u8::try_from(class).is_ok() => Some(class.to_string()),
            Some(_) => None,
            None => text().filter(|_| named),
        }
    })?;
    let holdout_classes = classes.unwrap_or_default();
    if !holdout_classes.is_empty() && holdout.clients == 0 {
        let message = format!("nobody has these: set {} to how many come after training", holdout.key);
        return Err(split.problem("holdout_classes", message));
    }
    if !holdout_classes.is_empty() && matches!(partition, Partition::Natural { .. }) {
        let message = "found with natural users, who would have samples on both sides; allowed with \"shards\", \"iid\", \
                       \"dirichlet\", \"log-normal-sizes\"";
        return Err(split.problem("holdout_classes", message));
    }
    if !holdout_classes.is_empty() && holdout.fold > 0 {
        return Err(
            split.problem("fold", "with holdout_classes there are no groups of clients: leave it out")
        );
    }
    Ok(holdout_classes)
}

/// Reads `[data.partition]` of data that say whose samples are whose, or not, and of samples with classes, or with values,
/// which are cut at random alone.
pub fn read_partition(part: &Section<'_>, users: bool, classes: bool) -> Result<Partition, Problem> {
    #[derive(Clone, Copy)]
    enum Kind {
        Shards,
        Iid,
        LogNormal,
        Dirichlet,
        Natural,
    }
    let all = [
        ("natural", Kind::Natural),
        ("shards", Kind::Shards),
        ("dirichlet", Kind::Dirichlet),
        ("iid", Kind::Iid),
        ("log-normal-sizes", Kind::LogNormal),
    ];
    let by_class = |kind: &Kind| matches!(kind, Kind::Shards | Kind::Dirichlet);
    let known: Vec<(&str, Kind)> = all
        .into_iter()
        .filter(|(word, kind)| (users || *word != "natural") && (classes || !by_class(kind)))
        .collect();
    let word = if users { "natural" } else { "shards" };
    let kind = part.choice("kind", Some(word), &known)?;
    let clients = || part.size("clients", Some(20), 1..=CLIENTS);
    let least = |least| part.size("min_samples", Some(1), least..=SAMPLES);
    let samples = || part.size("samples", Some(0), 0..=SAMPLES);
    let shares = || Ok(Shares { sizes: Sizes::read(part)?, samples: samples()? });
    let partition = match kind {
        Kind::Shards => Partition::Shards {
            clients: clients()?,
            classes: part.size("classes", Some(2), 1..=256)?,
            shares: shares()?,
        },
        Kind::Iid => Partition::Iid { clients: clients()?, shares: shares()? },
        Kind::LogNormal => {
            let sigma = part.number("size_sigma", Some(1.0), 0.0..=LARGEST_SIGMA)?;
            let shares = Shares { sizes: Sizes::LogNormal { sigma }, samples: samples()? };
            Partition::Iid { clients: clients()?, shares }
        }
        Kind::Dirichlet => Partition::Dirichlet {
            clients: clients()?,
            alpha: part.number("alpha", Some(0.5), 1e-3..=1e6)?,
            least: least(0)?,
        },
        Kind::Natural => {
            Partition::Natural { users: part.size("users", Some(0), 0..=SAMPLES)?, least: least(1)? }
        }
    };
    part.finish()?;
    Ok(partition)
}
