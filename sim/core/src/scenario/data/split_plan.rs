//! Reader of the sections `[data.partition]` and `[split]` for data that are partitioned among clients.

use fedspan_engine::config::{Problem, Section};

use crate::data::holdout::Holdout;
use crate::data::partition::{ClientSizes, Partition};
use crate::data::pool::{CLIENTS, SplitBy, SplitPlan, TestAssignment};
use crate::data::sizes::LARGEST_SIGMA;
use crate::data::sizes::Sizes;
use crate::data::split::{Order, OrderSplit};

/// Largest value of keys that set a number of samples per client or per class.
pub(super) const SAMPLES: usize = 1_000_000;

/// Properties of a data source that determine the allowed settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolContents {
    /// True if the data name the user of each sample.
    pub users: bool,
    /// True if the files have a test part.
    pub tests: bool,
    /// True if the data name the classes.
    pub names: bool,
}

/// Reads both sections into a plan for dividing samples among clients.
pub fn read_plan(
    section: &Section<'_>,
    split: &Section<'_>,
    contents: PoolContents,
) -> Result<SplitPlan, Problem> {
    let partition = read_partition(&section.section("partition")?, contents.users, true)?;
    let choices = [
        ("stratified", SplitKind::Clients(Order::Stratified)),
        ("random", SplitKind::Clients(Order::Random)),
        ("classes", SplitKind::Classes),
        ("files", SplitKind::Files),
    ];
    let (default, available) =
        if contents.tests { ("files", &choices[..]) } else { ("stratified", &choices[..3]) };
    if split.peek_str("by") == Some("time") {
        let allowed: Vec<String> = available.iter().map(|(name, _)| format!("{name:?}")).collect();
        let message = format!(
            "found \"time\", but these samples have no order in time; allowed here: {} (\"stratified\" shuffles each class \
             of a client's samples and cuts it)",
            allowed.join(", ")
        );
        return Err(split.problem("by", message));
    }
    let by = split.choice("by", Some(default), available)?;
    let (by, order, test) = by.read(split, Order::Stratified)?;
    let tests = read_tests(split, by)?;
    let holdout = Holdout {
        clients: split.size("holdout_clients", Some(0), 0..=CLIENTS)?,
        fold: split.size("fold", Some(0), 0..=CLIENTS)?,
        samples: split.size("labels_per_class", Some(1), 0..=SAMPLES)?,
        key: "holdout_clients",
    };
    check_fold(split, &holdout)?;
    let holdout_classes = read_holdout_classes(split, &holdout, partition, contents.names)?;
    let validation = split.number("validation", Some(0.0), 0.0..=0.9)?;
    let split = OrderSplit { test, validation, gap: 0 };
    Ok(SplitPlan { partition, by, order, split, tests, holdout, holdout_classes })
}

/// Values of the key `split.by`.
#[derive(Clone, Copy)]
pub enum SplitKind {
    /// A fraction of each client's samples, which are split in this order.
    Clients(Order),
    /// A fraction of each class, before the data are partitioned.
    Classes,
    /// The test part of the files.
    Files,
}

impl SplitKind {
    /// Reads the further keys for this value. Returns the method that selects the test samples, the order of
    /// samples, and the fraction of test samples.
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

/// Reads the assignment of test samples to clients. The key is allowed only if test samples are selected
/// before the data are partitioned.
pub fn read_tests(split: &Section<'_>, by: SplitBy) -> Result<TestAssignment, Problem> {
    let tests = [("share", TestAssignment::UpdateWeight), ("all", TestAssignment::All)];
    match by {
        SplitBy::Clients => Ok(TestAssignment::UpdateWeight),
        SplitBy::Classes(_) | SplitBy::Files => split.choice("tests", Some("share"), &tests),
    }
}

/// Rejects the key `split.fold`, the index of a group of newcomers, if there are no newcomers.
pub fn check_fold(split: &Section<'_>, holdout: &Holdout) -> Result<(), Problem> {
    let Holdout { clients, fold, key, .. } = holdout;
    if *clients > 0 || *fold == 0 {
        return Ok(());
    }
    let message =
        format!("found {fold}, but there are no newcomers: set {key} to their number, or leave it out");
    Err(split.problem("fold", message))
}

/// Reads the classes that only newcomers have. Each class is given by number, or by name if `named` is true,
/// that is, if the data name the classes.
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
        let message =
            format!("no client would have these classes: set {} to the number of newcomers", holdout.key);
        return Err(split.problem("holdout_classes", message));
    }
    if !holdout_classes.is_empty() && matches!(partition, Partition::Natural { .. }) {
        let message = "found with kind = \"natural\", where a user may have samples on both sides; allowed with \"shards\", \
                       \"iid\", \"dirichlet\", \"log-normal-sizes\"";
        return Err(split.problem("holdout_classes", message));
    }
    if !holdout_classes.is_empty() && holdout.fold > 0 {
        return Err(split.problem("fold", "there are no folds of clients with holdout_classes: leave it out"));
    }
    Ok(holdout_classes)
}

/// Reads the section `[data.partition]`. `users` is true if the data name the user of each sample. `classes`
/// is true if samples have classes; regression data can only be partitioned at random or by user.
pub fn read_partition(part: &Section<'_>, users: bool, classes: bool) -> Result<Partition, Problem> {
    #[derive(Clone, Copy)]
    enum Kind {
        Shards,
        Iid,
        LogNormal,
        Dirichlet,
        Natural,
    }
    let choices = [
        ("natural", Kind::Natural),
        ("shards", Kind::Shards),
        ("dirichlet", Kind::Dirichlet),
        ("iid", Kind::Iid),
        ("log-normal-sizes", Kind::LogNormal),
    ];
    let by_class = |kind: &Kind| matches!(kind, Kind::Shards | Kind::Dirichlet);
    let available: Vec<(&str, Kind)> = choices
        .into_iter()
        .filter(|(name, kind)| (users || *name != "natural") && (classes || !by_class(kind)))
        .collect();
    let default = if users { "natural" } else { "shards" };
    let kind = part.choice("kind", Some(default), &available)?;
    let clients = || part.size("clients", Some(20), 1..=CLIENTS);
    let min_samples = |lowest| part.size("min_samples", Some(1), lowest..=SAMPLES);
    let samples = || part.size("samples", Some(0), 0..=SAMPLES);
    let shares = || Ok(ClientSizes { sizes: Sizes::read(part)?, samples: samples()? });
    let partition = match kind {
        Kind::Shards => Partition::Shards {
            clients: clients()?,
            classes: part.size("classes", Some(2), 1..=256)?,
            shares: shares()?,
        },
        Kind::Iid => Partition::Iid { clients: clients()?, shares: shares()? },
        Kind::LogNormal => {
            let sigma = part.number("size_sigma", Some(1.0), 0.0..=LARGEST_SIGMA)?;
            let shares = ClientSizes { sizes: Sizes::LogNormal { sigma }, samples: samples()? };
            Partition::Iid { clients: clients()?, shares }
        }
        Kind::Dirichlet => Partition::Dirichlet {
            clients: clients()?,
            alpha: part.number("alpha", Some(0.5), 1e-3..=1e6)?,
            min_samples: min_samples(0)?,
        },
        Kind::Natural => Partition::Natural {
            users: part.size("users", Some(0), 0..=SAMPLES)?,
            min_samples: min_samples(1)?,
        },
    };
    part.finish()?;
    Ok(partition)
}
