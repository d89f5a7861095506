//! Pool of labelled samples that were read from files, and the division of a pool into clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_engine::random::{Purpose, stream};

use super::holdout::Holdout;
use super::partition::{Partition, partition};
use super::split::{Order, OrderSplit, Parts};
use super::table::names::{is_number, is_same_number};
use super::{Client, DataError, Dataset, LARGEST_VALUES, Labels, Layout, Set, SharedSet};

/// Largest number of clients.
pub const CLIENTS: usize = 100_000;

/// Labelled samples before their division into clients.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Name of the pool for messages, usually the path of a file.
    pub name: String,
    /// Number of values of a sample, including the constant.
    pub features: usize,
    /// Number of classes. Labels are below this number.
    pub classes: usize,
    /// All samples.
    pub set: Set,
    /// Index of the first sample of the test part in the files; the number of samples if there is no test
    /// part.
    pub tests_from: usize,
    /// Users and the indices of their samples, in the order of the users' names; empty if the data name no
    /// users.
    pub users: Vec<User>,
    /// Arrangement of the values of a row.
    pub layout: Layout,
    /// Names of the features without the constant; empty if the data name none.
    pub feature_names: Vec<String>,
    /// Names of the classes; empty if the data name none.
    pub class_names: Vec<String>,
    /// Warnings for the user of the program, one line each.
    pub warnings: Vec<String>,
}

/// A user named by the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name of the user in the data.
    pub name: String,
    /// Indices of the user's samples.
    pub samples: Vec<usize>,
}

/// Method that selects the test samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitBy {
    /// A fraction of each client's samples.
    Clients,
    /// A fraction of each class, selected before the partition. If the number is above 0, it is the number of
    /// training samples of each class, and the other samples are test samples.
    Classes(usize),
    /// The test part of the files.
    Files,
}

/// Assignment of the test samples to clients, used if test samples are selected before the partition. As in
/// SRPFL, clients are tested on the classes that they train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestAssignment {
    /// Test samples of each class are divided in proportion to the clients' training samples of the class.
    UpdateWeight,
    /// Each client receives all test samples of the classes that the client trains on.
    All,
}

/// Division of a pool into clients.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitPlan {
    /// Method of partitioning samples among clients.
    pub partition: Partition,
    /// Method that selects the test samples.
    pub by: SplitBy,
    /// Order in which a client's samples are split.
    pub order: Order,
    /// Fractions of the test and validation parts.
    pub split: OrderSplit,
    /// Assignment of the test samples to clients.
    pub tests: TestAssignment,
    /// Selection of the newcomers.
    pub holdout: Holdout,
    /// Classes that only newcomers have (FedRep, Figure 6), each given by name or number.
    pub holdout_classes: Vec<String>,
}

/// Clients with their names, and the number of users that did not become clients.
type NamedClients = (Vec<(String, Client)>, usize);

impl SplitPlan {
    /// Divides a pool into clients.
    ///
    /// # Errors
    /// [`DataError`] with the numbers if there are too few samples, classes or users.
    pub fn dataset(&self, pool: &Pool, seed: u64) -> Result<Dataset, DataError> {
        let data_error = |message: String| DataError::new(&pool.name, message);
        // Regression samples are partitioned as samples of a single class.
        let single_class = match &pool.set.y {
            Labels::Classes(_) => Vec::new(),
            Labels::Values { .. } => vec![0; pool.set.len()],
            Labels::Absent(_) => return Err(data_error("no targets".to_owned())),
        };
        let classification = pool.set.is_classes();
        let labels = if let Labels::Classes(labels) = &pool.set.y { labels } else { &single_class };
        let parts = self.parts(pool, labels, seed).map_err(data_error)?;
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
            let (clients, dropped_users) =
                self.clients(pool, labels, &parts, self.partition, seed).map_err(data_error)?;
            dataset.dropped_users = dropped_users;
            dataset.class_names.clone_from(&pool.class_names);
            let (names, clients): (Vec<String>, Vec<Client>) = clients.into_iter().unzip();
            dataset.clients = clients;
            let mut dataset = self.holdout.apply(dataset, &names, &pool.name, seed)?;
            if !self.is_natural() {
                // Clients of a partition have numbers and no names.
                dataset.client_names.clear();
                dataset.newcomer_names.clear();
            }
            return Ok(dataset);
        }
        let held_classes = held_classes(&self.holdout_classes, &pool.class_names).map_err(data_error)?;
        let is_held_out = |i: &usize| labels.get(*i).is_some_and(|label| held_classes.contains(label));
        let part = |for_newcomers: bool| Parts {
            train: parts.train.iter().copied().filter(|i| is_held_out(i) == for_newcomers).collect(),
            test: parts.test.iter().copied().filter(|i| is_held_out(i) == for_newcomers).collect(),
        };
        let is_missing = |class: &&u8| !labels.contains(class);
        if let Some(absent) = held_classes.iter().find(is_missing) {
            return Err(data_error(format!("split.holdout_classes: there is no sample of class {absent}")));
        }
        let client_count = self.partition.clients();
        let newcomer_count = self.holdout.clients;
        let stay = client_count.saturating_sub(newcomer_count);
        if stay == 0 && client_count > 0 {
            return Err(data_error(format!(
                "split.{} = {newcomer_count} of {client_count} clients: at least one client must stay to train",
                self.holdout.key
            )));
        }
        let classes = held_classes.len();
        let (stay_partition, newcomer_partition) =
            (self.partition.resized(stay, 256), self.partition.resized(newcomer_count, classes));
        let numbers = |for_newcomers| {
            let class_numbers = (0..=u8::MAX).take(pool.classes);
            class_numbers.filter(|class| held_classes.contains(class) == for_newcomers).collect::<Vec<u8>>()
        };
        let (stay_classes, newcomer_classes) = (numbers(false), numbers(true));
        dataset.outputs = stay_classes.len().max(newcomer_classes.len());
        let (clients, dropped_users) =
            self.clients(pool, labels, &part(false), stay_partition, seed).map_err(data_error)?;
        dataset.clients.extend(clients.iter().map(|(_, client)| renumber_classes(client, &stay_classes)));
        let (newcomers, newcomers_dropped) =
            self.clients(pool, labels, &part(true), newcomer_partition, seed).map_err(data_error)?;
        dataset.dropped_users = dropped_users + newcomers_dropped;
        for (index, (name, client)) in (client_count as u64..).zip(newcomers) {
            let client = self.holdout.make_newcomer(client, &name, index, &pool.name, seed)?;
            dataset.newcomers.push(renumber_classes(&client, &newcomer_classes));
        }
        Ok(dataset)
    }

    /// Splits all samples into training and test samples. The test part is empty if the samples of each
    /// client are split later.
    fn parts(&self, pool: &Pool, labels: &[u8], seed: u64) -> Result<Parts, String> {
        let indices: Vec<usize> = (0..labels.len()).collect();
        let (train, test) = indices.split_at(pool.tests_from.min(indices.len()));
        match self.by {
            SplitBy::Clients => Ok(Parts { train: indices, test: Vec::new() }),
            SplitBy::Classes(0) => Ok(self.split.split_by_class(labels, &indices, seed)),
            SplitBy::Classes(count) => Ok(self.split.split_by_count(count, labels, &indices, seed)),
            SplitBy::Files if test.is_empty() => {
                Err("split.by = \"files\": found data without a test part; allowed here: a value that cuts a part off, \
                     such as \"random\""
                    .to_owned())
            }
            // Samples in the order of time must not be shuffled.
            SplitBy::Files if self.is_natural() && self.order == Order::Time => {
                Ok(Parts { train: train.to_vec(), test: test.to_vec() })
            }
            SplitBy::Files => Ok(self.split.with_test_part(labels, train.to_vec(), test.to_vec(), seed)),
        }
    }

    fn is_natural(&self) -> bool {
        matches!(self.partition, Partition::Natural { .. })
    }

    /// Creates the clients of a partition. Also returns the number of users that were dropped because they
    /// have too few samples or no training samples.
    fn clients(
        &self,
        pool: &Pool,
        labels: &[u8],
        parts: &Parts,
        method: Partition,
        seed: u64,
    ) -> Result<NamedClients, String> {
        let mut dropped_users = 0;
        let (owners, natural): (Vec<(String, Parts)>, bool) = match method {
            Partition::Natural { users, min_samples } => {
                let candidates = natural_users(pool, parts, min_samples)?;
                dropped_users = pool.users.len() - candidates.len();
                (draw_users(pool, candidates, (users, min_samples), seed)?, true)
            }
            _ => {
                let train_labels: Vec<u8> =
                    parts.train.iter().filter_map(|&i| labels.get(i).copied()).collect();
                let indices_by_client = partition(&train_labels, method, seed)?;
                let part = |indices: &Vec<usize>| {
                    indices.iter().filter_map(|&i| parts.train.get(i).copied()).collect()
                };
                let owner = |(number, indices): (usize, &Vec<usize>)| {
                    (number.to_string(), Parts { train: part(indices), test: Vec::new() })
                };
                ((0usize..).zip(&indices_by_client).map(owner).collect(), false)
            }
        };
        let d = pool.features;
        let mut tests = match (self.by, natural) {
            (SplitBy::Clients, _) | (_, true) => Vec::new(),
            _ => match self.tests {
                TestAssignment::UpdateWeight => deal_tests(labels, &owners, &parts.test),
                TestAssignment::All => all_tests_of_classes(pool, labels, &owners, &parts.test)?,
            },
        }
        .into_iter();
        let mut shared: BTreeMap<Vec<usize>, Arc<Set>> = BTreeMap::new();
        let client = |(number, (name, client_parts)): (u64, (String, Parts))| {
            let client_parts = match self.by {
                SplitBy::Clients => {
                    self.split.split_client(self.order, labels, &client_parts.train, number, seed)
                }
                SplitBy::Files if natural && self.order == Order::Time => {
                    self.split.split_off_validation(client_parts)
                }
                _ if natural => client_parts,
                _ => Parts { test: tests.next().unwrap_or_default(), ..client_parts },
            };
            let train = Arc::new(pool.set.select(d, &client_parts.train));
            // Clients with the same test samples share a single copy.
            let test =
                shared.entry(client_parts.test).or_insert_with_key(|test| Arc::new(pool.set.select(d, test)));
            let empty = Client::new(Set::empty(true), Set::empty(true));
            (name, Client { train: train.into(), test: Arc::clone(test).into(), ..empty })
        };
        let mut clients: Vec<(String, Client)> = (0..).zip(owners).map(client).collect();
        let count_before = clients.len();
        clients.retain(|(_, client)| !client.train.is_empty());
        let dropped_users = dropped_users + count_before - clients.len();
        Ok((clients, dropped_users))
    }
}

/// Numbers of the given classes, sorted. Each text is the name of a class, or the number of a class, from 0.
/// Numbers are allowed only if classes have no names, or no name of a class is a number.
fn held_classes(class_texts: &[String], names: &[String]) -> Result<Vec<u8>, String> {
    let allows_numbers = names.is_empty() || !names.iter().any(|name| is_number(name));
    let class = |text: &String| {
        let index_of_name = names.iter().position(|name| name == text || is_same_number(name, text));
        let number = || {
            text.parse::<usize>()
                .ok()
                .filter(|index| allows_numbers && (names.is_empty() || *index < names.len()))
        };
        let class = index_of_name.or_else(number).and_then(|class| u8::try_from(class).ok());
        class.ok_or_else(|| format!("split.holdout_classes: found {text:?}, allowed: {}", names.join(", ")))
    };
    let mut classes: Vec<u8> = class_texts.iter().map(class).collect::<Result<_, _>>()?;
    classes.sort_unstable();
    classes.dedup();
    Ok(classes)
}

/// Users named in the data that have at least `min_samples` samples, and at least one training sample.
fn natural_users(pool: &Pool, parts: &Parts, min_samples: usize) -> Result<Vec<(String, Parts)>, String> {
    if pool.users.is_empty() {
        return Err("data.partition.kind = \"natural\", but the data name no users; set data.partition.kind"
            .to_owned());
    }
    let mut roles = vec![None; pool.set.len()];
    for (trains, part) in [(true, &parts.train), (false, &parts.test)] {
        for &i in part {
            if let Some(role) = roles.get_mut(i) {
                *role = Some(trains);
            }
        }
    }
    let samples_with_role = |user: &User, trains: bool| {
        let has_role = |i: &usize| roles.get(*i).copied().flatten() == Some(trains);
        user.samples.iter().copied().filter(has_role).collect::<Vec<usize>>()
    };
    Ok(pool
        .users
        .iter()
        .filter(|user| user.samples.len() >= min_samples)
        .map(|user| {
            (
                user.name.clone(),
                Parts { train: samples_with_role(user, true), test: samples_with_role(user, false) },
            )
        })
        // All samples of a user may be test samples.
        .filter(|(_, parts)| !parts.train.is_empty())
        .collect())
}

/// Draws the given number of users at random; 0 selects all users.
fn draw_users(
    pool: &Pool,
    candidates: Vec<(String, Parts)>,
    (users, min_samples): (usize, usize),
    seed: u64,
) -> Result<Vec<(String, Parts)>, String> {
    if candidates.is_empty() || users > candidates.len() {
        return Err(format!(
            "data.partition.users = {users}, but of {} users only {} have min_samples = {min_samples} samples and some to train on",
            pool.users.len(),
            candidates.len()
        ));
    }
    if users == 0 {
        if candidates.len() > CLIENTS {
            let user_count = candidates.len();
            return Err(format!(
                "found {user_count} users, allowed: at most {CLIENTS} clients; set data.partition.users to draw some of them"
            ));
        }
        return Ok(candidates);
    }
    let numbers: Vec<usize> = (0..candidates.len()).collect();
    let mut chosen = stream(seed, Purpose::Partition, 4001).choose(&numbers, users);
    chosen.sort_unstable();
    Ok(chosen.into_iter().filter_map(|number| candidates.get(number).cloned()).collect())
}

/// Divides the test samples of each class among clients, in proportion to their training samples of the
/// class.
fn deal_tests(labels: &[u8], owners: &[(String, Parts)], test: &[usize]) -> Vec<Vec<usize>> {
    let mut tests = vec![Vec::new(); owners.len()];
    for class in 0..=u8::MAX {
        let of_class = |i: &usize| labels.get(*i) == Some(&class);
        let class_tests: Vec<usize> = test.iter().copied().filter(of_class).collect();
        if class_tests.is_empty() {
            continue;
        }
        let counts: Vec<usize> =
            owners.iter().map(|(_, parts)| parts.train.iter().filter(|i| of_class(i)).count()).collect();
        let total: usize = counts.iter().sum();
        let (mut sum, mut start) = (0, 0);
        for (tests, count) in tests.iter_mut().zip(counts) {
            sum += count;
            let end = (class_tests.len() * sum).checked_div(total).unwrap_or(0);
            tests.extend_from_slice(class_tests.get(start..end).unwrap_or_default());
            start = end;
        }
    }
    tests
}

/// Assigns to each client all test samples of the classes that the client trains on.
fn all_tests_of_classes(
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
        let is_of_client_class =
            |i: &usize| labels.get(*i).is_some_and(|label| classes.binary_search(label).is_ok());
        let client_tests: Vec<usize> = test.iter().copied().filter(is_of_client_class).collect();
        sizes.insert(classes, client_tests.len() as u64 * pool.features as u64);
        // Counts the list of indices of each client too; an index takes as much memory as two values.
        let values = sizes.values().sum::<u64>() + 2 * (tests.len() as u64 + 1) * client_tests.len() as u64;
        if values > LARGEST_VALUES {
            return Err(format!(
                "split.tests = \"all\" needs test sets of more than {LARGEST_VALUES} values; \"share\" takes no more than the \
                 data"
            ));
        }
        tests.push(client_tests);
    }
    Ok(tests)
}

/// Replaces each class number of a client by its position in `numbers`.
fn renumber_classes(client: &Client, numbers: &[u8]) -> Client {
    let set = |set: &Set| {
        let mut set = set.clone();
        if let Labels::Classes(labels) = &mut set.y {
            for label in labels {
                let code = numbers.iter().position(|number| number == label).unwrap_or(0);
                *label = u8::try_from(code).unwrap_or(0);
            }
        }
        SharedSet::from(set)
    };
    Client { train: set(&client.train), test: set(&client.test), ..client.clone() }
}
