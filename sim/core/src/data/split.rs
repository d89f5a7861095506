//! Split of samples into training and test parts.

use fedspan_engine::random::{Purpose, stream};

/// First index of the streams that shuffle samples regardless of class; the streams of the classes have lower
/// indices.
const RANDOM_STREAMS: u64 = 10_000;

/// Order in which each client's samples are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Order of the data, which is an order in time.
    Time,
    /// Random order.
    Random,
    /// Random order within each class.
    Stratified,
}

/// Fractions of a split of ordered samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrderSplit {
    /// Fraction of test samples.
    pub test: f64,
    /// Fraction of the training part that is scored in place of the test part, to choose settings with. 0
    /// scores the test part.
    pub validation: f64,
    /// Number of samples dropped between the parts.
    pub gap: usize,
}

/// Indices of the samples in each part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Training samples.
    pub train: Vec<usize>,
    /// Scored samples.
    pub test: Vec<usize>,
}

impl OrderSplit {
    /// Splits the samples of client number `client`.
    #[must_use]
    pub fn split_client(&self, order: Order, labels: &[u8], own: &[usize], client: u64, seed: u64) -> Parts {
        let parts = |all: &[usize]| {
            let (train, test) = self.cut(all);
            Parts { train: train.to_vec(), test: test.to_vec() }
        };
        match order {
            Order::Time => {
                // A partition deals rows in another order, class by class for example.
                let mut rows = own.to_vec();
                rows.sort_unstable();
                parts(&rows)
            }
            Order::Random => {
                parts(&stream(seed, Purpose::Partition, RANDOM_STREAMS + client).choose(own, own.len()))
            }
            Order::Stratified => self.split_by_class(labels, own, seed),
        }
    }

    /// Splits the validation part off the training part, in its order. Without validation the test part is
    /// scored.
    #[must_use]
    pub fn split_off_validation(&self, parts: Parts) -> Parts {
        let (train, test) = self.scored_parts(&parts.train, &parts.test);
        Parts { train: train.to_vec(), test: test.to_vec() }
    }

    /// Splits samples without an order in time, such as images: each class of `own` is shuffled first, so
    /// that both parts have the same classes.
    #[must_use]
    pub fn split_by_class(&self, labels: &[u8], own: &[usize], seed: u64) -> Parts {
        by_class(labels, own, seed, |order| self.cut(order))
    }

    /// Like [`Self::split_by_class`], with `count` training samples of each class in place of a fraction.
    #[must_use]
    pub fn split_by_count(&self, count: usize, labels: &[u8], own: &[usize], seed: u64) -> Parts {
        by_class(labels, own, seed, |order| {
            let (train, test) = order.split_at(count.min(order.len()));
            self.scored_parts(train, test)
        })
    }

    /// Parts for a given test part: the validation part replaces it if there is one.
    #[must_use]
    pub fn with_test_part(&self, labels: &[u8], train: Vec<usize>, test: Vec<usize>, seed: u64) -> Parts {
        if self.validation > 0.0 {
            by_class(labels, &train, seed, |order| self.scored_parts(order, &[]))
        } else {
            Parts { train, test }
        }
    }

    fn cut<'a>(&self, all: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        let (train, test) = cut(all, self.test, self.gap);
        self.scored_parts(train, test)
    }

    fn scored_parts<'a>(&self, train: &'a [usize], test: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        if self.validation > 0.0 { cut(train, self.validation, self.gap) } else { (train, test) }
    }
}

/// Shuffles each class and splits it.
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

/// Splits off the last `fraction`, and drops `gap` samples before it.
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
