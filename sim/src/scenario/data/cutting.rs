//! `[data.partition]`, and `[split]` of data that are cut into clients.

use fedspan_aggregator::config::{Problem, Section};

use crate::data::holdout::Holdout;
use crate::data::partition::{Partition, Shares};
use crate::data::pool::{Cutting, SplitBy, Tests};
use crate::data::sizes::Sizes;
use crate::data::split::OrderSplit;
use crate::scenario::LARGEST_SIGMA;

/// Most clients that data are cut into.
const CLIENTS: usize = 100_000;
/// Most samples that are asked for, of a client or a class.
const SAMPLES: usize = 1_000_000;

/// What the data bring along, beside labelled samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brings {
    /// It says whose samples are whose.
    pub users: bool,
    /// A test part of their own.
    pub tests: bool,
}

/// Reads both sections.
pub fn read_cutting(section: &Section<'_>, split: &Section<'_>, brings: Brings) -> Result<Cutting, Problem> {
    let partition = read_partition(&section.section("partition")?, brings.users)?;
    #[derive(Clone, Copy)]
    enum By {
        Clients,
        Classes,
        Files,
    }
    let all = [("time", By::Clients), ("classes", By::Classes), ("files", By::Files)];
    let (word, known) = if brings.tests { ("files", &all[..]) } else { ("time", &all[..2]) };
    let by = split.choice("by", Some(word), known)?;
    let test = |default| split.number("test", Some(default), 0.0..=0.95);
    let (by, test) = match by {
        By::Clients => (SplitBy::Clients, test(0.2)?),
        By::Classes => (SplitBy::Classes(split.size("train_per_class", Some(0), 0..=SAMPLES)?), test(0.2)?),
        By::Files => (SplitBy::Files, 0.0),
    };
    let tests = [("share", Tests::Share), ("all", Tests::All)];
    let tests = match by {
        SplitBy::Clients => Tests::Share,
        SplitBy::Classes(_) | SplitBy::Files => split.choice("tests", Some("share"), &tests)?,
    };
    let holdout = Holdout {
        clients: split.size("holdout_clients", Some(0), 0..=CLIENTS)?,
        fold: split.size("fold", Some(0), 0..=CLIENTS)?,
        samples: split.size("labels_per_class", Some(1), 0..=SAMPLES)?,
        key: "holdout_clients",
    };
    let allowed = "a list of class numbers from 0 to 255";
    let classes = split.list("holdout_classes", allowed, |value| {
        value.as_integer().and_then(|class| u8::try_from(class).ok())
    })?;
    let mut holdout_classes = classes.unwrap_or_default();
    holdout_classes.sort_unstable();
    holdout_classes.dedup();
    if !holdout_classes.is_empty() && holdout.clients == 0 {
        let message = "nobody has these: set holdout_clients to how many come after training";
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
    let validation = split.number("validation", Some(0.0), 0.0..=0.9)?;
    let split = OrderSplit { test, validation, gap: 0 };
    Ok(Cutting { partition, by, split, tests, holdout, holdout_classes })
}

fn read_partition(part: &Section<'_>, users: bool) -> Result<Partition, Problem> {
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
    let (word, known) = if users { ("natural", &all[..]) } else { ("shards", &all[1..]) };
    let kind = part.choice("kind", Some(word), known)?;
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
