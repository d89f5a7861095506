//! Labelled samples, of tables and others, that are not anybody's yet, or their users', and how they become clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_engine::random::{Purpose, stream};

use super::holdout::Holdout;
use super::partition::{Partition, partition};
use super::split::{Order, OrderSplit, Parts};
use super::table::CLIENTS;
use super::table::names::{is_number, is_same_number};
use super::{Client, DataError, Dataset, LARGEST_VALUES, Labels, Layout, Set};

/// Labelled samples.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// What to call them in a message: a file, mostly.
    pub name: String,
    /// Values of a sample, with the constant.
    pub features: usize,
    /// Classes: every label is below.
    pub classes: usize,
    /// All samples.
    pub set: Set,
    /// Samples from this one on are the test part of the files; as many as there are samples where they have none.
    pub tests_from: usize,
    /// Who has which samples, in the order of their names, where the data say so.
    pub users: Vec<User>,
    /// What the values are.
    pub layout: Layout,
    /// Names of the features without the constant, where the data have some; empty otherwise.
    pub feature_names: Vec<String>,
    /// Names of the classes, where the data have some; empty otherwise.
    pub class_names: Vec<String>,
    /// Remarks for whoever runs it, one line each.
    pub warnings: Vec<String>,
}

/// Somebody whose samples are in the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// As the data call them.
    pub name: String,
    /// Their samples' numbers.
    pub samples: Vec<usize>,
}

/// What becomes the test part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitBy {
    /// A part of each client's samples.
    Clients,
    /// A part of each class, before clients are made; so many samples of each class train, or 0 for a fraction.
    Classes(usize),
    /// What is the test part in the files; of a table without one nothing is.
    Files,
}

/// Which of the test part a client is scored on, where it was cut off before clients were made. SRPFL's tests are
/// consistent with what a client trains on; the released code deals test shards of the same classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tests {
    /// Of every class the part that it has of this class' training samples.
    Share,
    /// All samples of the classes that it trains on.
    All,
}

/// How samples become clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Cutting {
    /// Who has what.
    pub partition: Partition,
    /// What trains and what tests.
    pub by: SplitBy,
    /// In which order a client's own samples are cut.
    pub order: Order,
    /// In which parts.
    pub split: OrderSplit,
    /// What a client is scored on.
    pub tests: Tests,
    /// Who comes later.
    pub holdout: Holdout,
    /// Classes that only those have who come later (FedRep, Figure 6), by name or number; nobody else has any of them.
    pub holdout_classes: Vec<String>,
}

/// Clients and their names, and users that became none.
type Named = (Vec<(String, Client)>, usize);

impl Cutting {
    /// Makes clients of samples.
    ///
    /// # Errors
    /// [`DataError`] with the numbers, where there are too few samples, classes or users.
    pub fn dataset(&self, pool: &Pool, seed: u64) -> Result<Dataset, DataError> {
        let wrong = |message: String| DataError::new(&pool.name, message);
        // Samples with values are cut as samples of one class.
        let alike = match &pool.set.y {
            Labels::Classes(_) => Vec::new(),
            Labels::Values { .. } => vec![0; pool.set.len()],
            Labels::Absent(_) => return Err(wrong("no targets".to_owned())),
        };
        let classification = pool.set.is_classes();
        let labels = if let Labels::Classes(labels) = &pool.set.y { labels } else { &alike };
        let parts = self.parts(pool, labels, seed).map_err(wrong)?;
        let mut dataset = Dataset {
            features: pool.features,
            outputs: pool.classes,
            classification,
            clients: Vec::new(),
            truth: None,
            layout: pool.layout,
            warnings: pool.warnings.clone(),
            ..Dataset::default()
        };
        if self.holdout_classes.is_empty() {
            let (clients, left_out) =
                self.clients(pool, labels, &parts, self.partition, seed).map_err(wrong)?;
            dataset.left_out = left_out;
            dataset.class_names.clone_from(&pool.class_names);
            let (names, clients): (Vec<String>, Vec<Client>) = clients.into_iter().unzip();
            dataset.clients = clients;
            let mut dataset = self.holdout.apply(dataset, &names, &pool.name, seed)?;
            if !self.natural() {
                // Numbers are nobody's names.
                dataset.client_names.clear();
                dataset.newcomer_names.clear();
            }
            return Ok(dataset);
        }
        let held_classes = held_classes(&self.holdout_classes, &pool.class_names).map_err(wrong)?;
        let held = |i: &usize| labels.get(*i).is_some_and(|label| held_classes.contains(label));
        let part = |later: bool| Parts {
            train: parts.train.iter().copied().filter(|i| held(i) == later).collect(),
            test: parts.test.iter().copied().filter(|i| held(i) == later).collect(),
        };
        let occurs = |class: &&u8| !labels.contains(class);
        if let Some(absent) = held_classes.iter().find(occurs) {
            return Err(wrong(format!("split.holdout_classes: there is no sample of class {absent}")));
        }
        let all = self.partition.clients();
        let later = self.holdout.clients;
        let stay = all.saturating_sub(later);
        if stay == 0 && all > 0 {
            return Err(wrong(format!(
                "split.{} = {later} of {all} clients: someone has to stay",
                self.holdout.key
            )));
        }
        let classes = held_classes.len();
        let (stays, comes) = (self.partition.resized(stay, 256), self.partition.resized(later, classes));
        let numbers = |later| {
            let all = (0..=u8::MAX).take(pool.classes);
            all.filter(|class| held_classes.contains(class) == later).collect::<Vec<u8>>()
        };
        let (first, then) = (numbers(false), numbers(true));
        dataset.outputs = first.len().max(then.len());
        let (clients, left_out) = self.clients(pool, labels, &part(false), stays, seed).map_err(wrong)?;
        dataset.clients.extend(clients.iter().map(|(_, client)| renumbered(client, &first)));
        let (newcomers, more) = self.clients(pool, labels, &part(true), comes, seed).map_err(wrong)?;
        dataset.left_out = left_out + more;
        for (index, (name, client)) in (all as u64..).zip(newcomers) {
            let client = self.holdout.labelled(client, &name, index, &pool.name, seed)?;
            dataset.newcomers.push(renumbered(&client, &then));
        }
        Ok(dataset)
    }

    /// What trains and what is scored, of all samples; what is scored is empty where each client's own are cut.
    fn parts(&self, pool: &Pool, labels: &[u8], seed: u64) -> Result<Parts, String> {
        let all: Vec<usize> = (0..labels.len()).collect();
        let (train, test) = all.split_at(pool.tests_from.min(all.len()));
        match self.by {
            SplitBy::Clients => Ok(Parts { train: all, test: Vec::new() }),
            SplitBy::Classes(0) => Ok(self.split.shuffled(labels, &all, seed)),
            SplitBy::Classes(count) => Ok(self.split.counted(count, labels, &all, seed)),
            SplitBy::Files if test.is_empty() => {
                Err("split.by = \"files\": the data have no test part; allowed here: \"time\", \"classes\""
                    .to_owned())
            }
            // Of each client's own part, in its order.
            SplitBy::Files if self.natural() && self.order == Order::Time => {
                Ok(Parts { train: train.to_vec(), test: test.to_vec() })
            }
            SplitBy::Files => Ok(self.split.given(labels, train.to_vec(), test.to_vec(), seed)),
        }
    }

    fn natural(&self) -> bool {
        matches!(self.partition, Partition::Natural { .. })
    }

    /// The clients that a partition makes of samples, and how many have nothing to train on, or too little to be one.
    fn clients(
        &self,
        pool: &Pool,
        labels: &[u8],
        parts: &Parts,
        how: Partition,
        seed: u64,
    ) -> Result<Named, String> {
        let mut left_out = 0;
        let (owners, natural): (Vec<(String, Parts)>, bool) = match how {
            Partition::Natural { users, least } => {
                let all = natural(pool, parts, least)?;
                left_out = pool.users.len() - all.len();
                (drawn(pool, all, (users, least), seed)?, true)
            }
            _ => {
                let own: Vec<u8> = parts.train.iter().filter_map(|&i| labels.get(i).copied()).collect();
                let cut = partition(&own, how, seed)?;
                let part =
                    |own: &Vec<usize>| own.iter().filter_map(|&i| parts.train.get(i).copied()).collect();
                let owner = |(number, own): (usize, &Vec<usize>)| {
                    (number.to_string(), Parts { train: part(own), test: Vec::new() })
                };
                ((0usize..).zip(&cut).map(owner).collect(), false)
            }
        };
        let d = pool.features;
        let mut tests = match (self.by, natural) {
            (SplitBy::Clients, _) | (_, true) => Vec::new(),
            _ => match self.tests {
                Tests::Share => dealt(labels, &owners, &parts.test),
                Tests::All => whole(pool, labels, &owners, &parts.test)?,
            },
        }
        .into_iter();
        let mut shared: BTreeMap<Vec<usize>, Arc<Set>> = BTreeMap::new();
        let client = |(number, (name, own)): (u64, (String, Parts))| {
            let own = match self.by {
                SplitBy::Clients => self.split.own(self.order, labels, &own.train, number, seed),
                SplitBy::Files if natural && self.order == Order::Time => self.split.validate(own),
                _ if natural => own,
                _ => Parts { test: tests.next().unwrap_or_default(), ..own },
            };
            let train = Arc::new(pool.set.select(d, &own.train));
            // Clients with the same classes are scored on the same samples, which need not be there twice.
            let test = shared.entry(own.test).or_insert_with_key(|test| Arc::new(pool.set.select(d, test)));
            let whole = Client::new(Set::empty(true), Set::empty(true));
            (name, Client { train, test: Arc::clone(test), ..whole })
        };
        let mut clients: Vec<(String, Client)> = (0..).zip(owners).map(client).collect();
        let all = clients.len();
        clients.retain(|(_, client)| !client.train.is_empty());
        let left_out = left_out + all - clients.len();
        Ok((clients, left_out))
    }
}

/// The numbers of classes that are named, in order. A number is the class of that name; where no class is called by a number, or
/// classes have no names, it is the class of that number from 0.
fn held_classes(said: &[String], names: &[String]) -> Result<Vec<u8>, String> {
    let numbered = names.is_empty() || !names.iter().any(|name| is_number(name));
    let class = |text: &String| {
        let named = names.iter().position(|name| name == text || is_same_number(name, text));
        let number =
            || text.parse::<usize>().ok().filter(|at| numbered && (names.is_empty() || *at < names.len()));
        let class = named.or_else(number).and_then(|class| u8::try_from(class).ok());
        class.ok_or_else(|| {
            format!("split.holdout_classes: there is no class {text:?}, there are: {}", names.join(", "))
        })
    };
    let mut classes: Vec<u8> = said.iter().map(class).collect::<Result<_, _>>()?;
    classes.sort_unstable();
    classes.dedup();
    Ok(classes)
}

/// The data's own users, those with enough samples.
fn natural(pool: &Pool, parts: &Parts, least: usize) -> Result<Vec<(String, Parts)>, String> {
    if pool.users.is_empty() {
        return Err(
            "data.partition.kind = \"natural\": the data do not say whose samples are whose".to_owned()
        );
    }
    let mut fates = vec![None; pool.set.len()];
    for (trains, part) in [(true, &parts.train), (false, &parts.test)] {
        for &i in part {
            if let Some(fate) = fates.get_mut(i) {
                *fate = Some(trains);
            }
        }
    }
    let own = |user: &User, trains: bool| {
        let fated = |i: &usize| fates.get(*i).copied().flatten() == Some(trains);
        user.samples.iter().copied().filter(fated).collect::<Vec<usize>>()
    };
    Ok(pool
        .users
        .iter()
        .filter(|user| user.samples.len() >= least)
        .map(|user| (user.name.clone(), Parts { train: own(user, true), test: own(user, false) }))
        // Someone whose samples are all held out, or none, has nothing to train on.
        .filter(|(_, parts)| !parts.train.is_empty())
        .collect())
}

/// So many of those who have `least` samples.
fn drawn(
    pool: &Pool,
    all: Vec<(String, Parts)>,
    (users, least): (usize, usize),
    seed: u64,
) -> Result<Vec<(String, Parts)>, String> {
    if all.is_empty() || users > all.len() {
        return Err(format!(
            "data.partition.users = {users}: of {} users {} have min_samples = {least} samples and something to train on",
            pool.users.len(),
            all.len()
        ));
    }
    if users == 0 {
        if all.len() > CLIENTS {
            let found = all.len();
            return Err(format!(
                "{found} users, allowed: at most {CLIENTS} clients; data.partition.users draws so many of them"
            ));
        }
        return Ok(all);
    }
    let numbers: Vec<usize> = (0..all.len()).collect();
    let mut chosen = stream(seed, Purpose::Partition, 4001).choose(&numbers, users);
    chosen.sort_unstable();
    Ok(chosen.into_iter().filter_map(|number| all.get(number).cloned()).collect())
}

/// Test samples of each class, dealt in proportion to what clients have of this class' training samples.
fn dealt(labels: &[u8], owners: &[(String, Parts)], test: &[usize]) -> Vec<Vec<usize>> {
    let mut tests = vec![Vec::new(); owners.len()];
    for class in 0..=u8::MAX {
        let of_class = |i: &usize| labels.get(*i) == Some(&class);
        let own: Vec<usize> = test.iter().copied().filter(of_class).collect();
        if own.is_empty() {
            continue;
        }
        let counts: Vec<usize> =
            owners.iter().map(|(_, parts)| parts.train.iter().filter(|i| of_class(i)).count()).collect();
        let total: usize = counts.iter().sum();
        let (mut sum, mut start) = (0, 0);
        for (tests, count) in tests.iter_mut().zip(counts) {
            sum += count;
            let end = (own.len() * sum).checked_div(total).unwrap_or(0);
            tests.extend_from_slice(own.get(start..end).unwrap_or_default());
            start = end;
        }
    }
    tests
}

/// All test samples of the classes that a client trains on.
fn whole(
    pool: &Pool,
    labels: &[u8],
    owners: &[(String, Parts)],
    test: &[usize],
) -> Result<Vec<Vec<usize>>, String> {
    let mut sizes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut tests = Vec::with_capacity(owners.len());
    for (_, parts) in owners {
        let mut classes: Vec<u8> = parts.train.iter().filter_map(|&i| labels.get(i).copied()).collect();
        classes.sort_unstable();
        classes.dedup();
        let has = |i: &usize| labels.get(*i).is_some_and(|label| classes.binary_search(label).is_ok());
        let own: Vec<usize> = test.iter().copied().filter(has).collect();
        sizes.insert(classes, own.len() as u64 * pool.features as u64);
        // Everybody's list is kept as well, in numbers of two values' size.
        let values = sizes.values().sum::<u64>() + 2 * (tests.len() as u64 + 1) * own.len() as u64;
        if values > LARGEST_VALUES {
            return Err(format!(
                "split.tests = \"all\": test sets of more than {LARGEST_VALUES} values; \"share\" takes no more than the \
                 data"
            ));
        }
        tests.push(own);
    }
    Ok(tests)
}

/// The client with its classes numbered by their places in `numbers`.
fn renumbered(client: &Client, numbers: &[u8]) -> Client {
    let set = |set: &Set| {
        let mut set = set.clone();
        if let Labels::Classes(labels) = &mut set.y {
            for label in labels {
                let place = numbers.iter().position(|number| number == label).unwrap_or(0);
                *label = u8::try_from(place).unwrap_or(0);
            }
        }
        Arc::new(set)
    };
    Client { train: set(&client.train), test: set(&client.test), ..client.clone() }
}
