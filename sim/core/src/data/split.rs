//! Split of samples into a training part and a test or validation part.

use fedspan_engine::random::{Purpose, stream};

/// First index of the random streams that shuffle samples regardless of class. Lower indices are used by the
/// streams that shuffle the samples of a class.
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
    /// Fraction of the training part that is scored in place of the test part, for choosing settings. If 0,
    /// the test part is scored.
    pub validation: f64,
    /// Number of samples dropped between the training part and the part after it.
    pub gap: usize,
}

/// Indices of the samples in each part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Training samples.
    pub train: Vec<usize>,
    /// Scored samples: test samples, or validation samples if there are any.
    pub test: Vec<usize>,
}

impl OrderSplit {
    /// Splits the samples of client number `client`.
    #[must_use]
    pub fn split_client(
        &self,
        order: Order,
        labels: &[u8],
        samples: &[usize],
        client: u64,
        seed: u64,
    ) -> Parts {
        let parts = |ordered: &[usize]| {
            let (train, test) = self.split_ordered(ordered);
            Parts { train: train.to_vec(), test: test.to_vec() }
        };
        match order {
            Order::Time => {
                // A partition may have reordered the rows, for example by class.
                let mut rows = samples.to_vec();
                rows.sort_unstable();
                parts(&rows)
            }
            Order::Random => parts(
                &stream(seed, Purpose::Partition, RANDOM_STREAMS + client).choose(samples, samples.len()),
            ),
            Order::Stratified => self.split_by_class(labels, samples, seed),
        }
    }

    /// Splits the validation part off the training part without shuffling. The validation part replaces the
    /// test part; if the fraction of validation samples is 0, the test part is kept.
    #[must_use]
    pub fn split_off_validation(&self, parts: Parts) -> Parts {
        let (train, test) = self.scored_parts(&parts.train, &parts.test);
        Parts { train: train.to_vec(), test: test.to_vec() }
    }

    /// Splits the samples `samples`, which have no order in time, such as images. Each class is shuffled and
    /// split separately, so that both parts have the same classes.
    #[must_use]
    pub fn split_by_class(&self, labels: &[u8], samples: &[usize], seed: u64) -> Parts {
        by_class(labels, samples, seed, |order| self.split_ordered(order))
    }

    /// Like [`Self::split_by_class`], with `count` training samples of each class in place of a fraction.
    #[must_use]
    pub fn split_by_count(&self, count: usize, labels: &[u8], samples: &[usize], seed: u64) -> Parts {
        by_class(labels, samples, seed, |order| {
            let (train, test) = order.split_at(count.min(order.len()));
            self.scored_parts(train, test)
        })
    }

    /// Creates the parts for given training and test samples. If the fraction of validation samples is above
    /// 0, validation samples are split off the training part and replace the test part.
    #[must_use]
    pub fn with_test_part(&self, labels: &[u8], train: Vec<usize>, test: Vec<usize>, seed: u64) -> Parts {
        if self.validation > 0.0 {
            by_class(labels, &train, seed, |order| self.scored_parts(order, &[]))
        } else {
            Parts { train, test }
        }
    }

    fn split_ordered<'a>(&self, ordered: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        let (train, test) = split_off_end(ordered, self.test, self.gap);
        self.scored_parts(train, test)
    }

    fn scored_parts<'a>(&self, train: &'a [usize], test: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        if self.validation > 0.0 { split_off_end(train, self.validation, self.gap) } else { (train, test) }
    }
}

/// Shuffles the samples of each class and splits them with the given function.
fn by_class(
    labels: &[u8],
    of_class: &[usize],
    seed: u64,
    split: impl for<'a> Fn(&'a [usize]) -> (&'a [usize], &'a [usize]),
) -> Parts {
    let mut classes: Vec<Vec<usize>> = vec![Vec::new(); 256];
    for &i in of_class {
        let class = labels.get(i).and_then(|label| classes.get_mut(usize::from(*label)));
        if let Some(class) = class {
            class.push(i);
        }
    }
    let mut parts = Parts::default();
    for (class, of_class) in (0..).zip(&classes) {
        let order = stream(seed, Purpose::Partition, 3000 + class).choose(of_class, of_class.len());
        let (train, test) = split(&order);
        parts.train.extend_from_slice(train);
        parts.test.extend_from_slice(test);
    }
    parts
}

/// Splits off the last `fraction` of the samples, and drops the `gap` samples before them.
fn split_off_end(ordered: &[usize], fraction: f64, gap: usize) -> (&[usize], &[usize]) {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a fraction of a count"
    )]
    let second = ((ordered.len() as f64 * fraction).round() as usize).min(ordered.len());
    let (first, second) = ordered.split_at(ordered.len() - second);
    (first.get(..first.len().saturating_sub(gap)).unwrap_or_default(), second)
}
