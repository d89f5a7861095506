//! Splits of data into what trains and what tests.

use fedspan_engine::random::{Purpose, stream};

/// First number of the streams that samples are shuffled with where classes do not count; those of classes are below.
const RANDOM: u64 = 10_000;

/// The order in which each client's samples are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the data, which is one in time.
    Time,
    /// At random.
    Random,
    /// At random, each class for itself.
    Stratified,
}

/// A split of samples in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrderSplit {
    /// Fraction that tests.
    pub test: f64,
    /// Fraction of the training part that is scored in place of the test part, to choose settings with; 0:
    /// the test part is scored.
    pub validation: f64,
    /// Samples dropped in between.
    pub gap: usize,
}

/// What is split: samples with one fate each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// These train.
    pub train: Vec<usize>,
    /// These are scored.
    pub test: Vec<usize>,
}

impl OrderSplit {
    /// Cuts the samples of client number `client`.
    #[must_use]
    pub fn own(&self, order: Order, labels: &[u8], own: &[usize], client: u64, seed: u64) -> Parts {
        let parts = |all: &[usize]| {
            let (train, test) = self.cut(all);
            Parts { train: train.to_vec(), test: test.to_vec() }
        };
        match order {
            Order::Time => parts(own),
            Order::Random => parts(&stream(seed, Purpose::Partition, RANDOM + client).choose(own, own.len())),
            Order::Stratified => self.shuffled(labels, own, seed),
        }
    }

    /// Cuts what is validated off what trains, in its order; the test part is scored where nothing is.
    #[must_use]
    pub fn validate(&self, parts: Parts) -> Parts {
        let (train, test) = self.validated(&parts.train, &parts.test);
        Parts { train: train.to_vec(), test: test.to_vec() }
    }

    /// For samples without an order in time, such as images: each class of `own` samples is shuffled before it is
    /// split, so that training and test part have the same classes.
    #[must_use]
    pub fn shuffled(&self, labels: &[u8], own: &[usize], seed: u64) -> Parts {
        by_class(labels, own, seed, |order| self.cut(order))
    }

    /// As [`Self::shuffled`], with `count` samples of each class that train in place of a fraction.
    #[must_use]
    pub fn counted(&self, count: usize, labels: &[u8], own: &[usize], seed: u64) -> Parts {
        by_class(labels, own, seed, |order| {
            let (train, test) = order.split_at(count.min(order.len()));
            self.validated(train, test)
        })
    }

    /// What trains and what is scored, where the test part is known.
    #[must_use]
    pub fn given(&self, labels: &[u8], train: Vec<usize>, test: Vec<usize>, seed: u64) -> Parts {
        if self.validation > 0.0 {
            by_class(labels, &train, seed, |order| self.validated(order, &[]))
        } else {
            Parts { train, test }
        }
    }

    fn cut<'a>(&self, all: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        let (train, test) = cut(all, self.test, self.gap);
        self.validated(train, test)
    }

    fn validated<'a>(&self, train: &'a [usize], test: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        if self.validation > 0.0 { cut(train, self.validation, self.gap) } else { (train, test) }
    }
}

/// Each class in an order of its own, cut.
fn by_class(
    labels: &[u8],
    own: &[usize],
    seed: u64,
    cut: impl for<'a> Fn(&'a [usize]) -> (&'a [usize], &'a [usize]),
) -> Parts {
    let mut classes: Vec<Vec<usize>> = vec![Vec::new(); 256];
    for &i in own {
        let class = labels.get(i).and_then(|label| classes.get_mut(usize::from(*label)));
        if let Some(class) = class {
            class.push(i);
        }
    }
    let mut parts = Parts::default();
    for (class, own) in (0..).zip(&classes) {
        let order = stream(seed, Purpose::Partition, 3000 + class).choose(own, own.len());
        let (train, test) = cut(&order);
        parts.train.extend_from_slice(train);
        parts.test.extend_from_slice(test);
    }
    parts
}

/// The last `fraction` goes second; `gap` before it are dropped.
fn cut(all: &[usize], fraction: f64, gap: usize) -> (&[usize], &[usize]) {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a fraction of a count"
    )]
    let second = ((all.len() as f64 * fraction).round() as usize).min(all.len());
    let (first, second) = all.split_at(all.len() - second);
    (first.get(..first.len().saturating_sub(gap)).unwrap_or_default(), second)
}
