//! Cutting data into clients, and clients' data into training and test parts.

use fedspan_aggregator::random::{Purpose, stream};

use super::sizes::Sizes;
use super::{Client, Labels, Set};

/// How data without natural users is cut into clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// `classes` shards per client, cut from all samples in order of their classes (McMahan et al. 2017): a
    /// client has about so many classes, fewer where two of its shards are of the same one.
    Shards {
        /// Clients.
        clients: usize,
        /// Shards per client.
        classes: usize,
    },
    /// At random.
    Iid {
        /// Clients.
        clients: usize,
    },
}

impl Partition {
    /// Whether `samples` samples of `classes` classes can be cut so that everyone has some.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub fn check(&self, samples: usize, classes: usize) -> Result<(), String> {
        match *self {
            Self::Shards { classes: own, .. } if own > classes => Err(format!(
                "data.partition.classes = {own}: there are {classes} classes, and a client has no more"
            )),
            Self::Shards { clients, classes: own } if clients * own > samples => {
                Err(format!("{clients} clients x {own} shards are more than {samples} samples"))
            }
            Self::Iid { clients } if clients > samples => {
                Err(format!("{clients} clients are more than {samples} samples"))
            }
            _ => Ok(()),
        }
    }
}

/// Cuts a set into clients of these sizes. Every sample goes to one client, everyone has some; where all are of
/// one size, a remainder that cannot be dealt evenly is dealt to the first clients.
#[must_use]
pub fn partition(set: &Set, d: usize, how: Partition, sizes: Sizes, seed: u64) -> Vec<Set> {
    let mut random = stream(seed, Purpose::Partition, 0);
    let all: Vec<usize> = (0..set.len()).collect();
    let shuffled = random.choose(&all, all.len());
    let parts: Vec<Vec<usize>> = match how {
        Partition::Iid { clients } => {
            let weights: Vec<f64> = (0..clients as u64).map(|client| sizes.weight(seed, client)).collect();
            split(&shuffled, &weights)
        }
        Partition::Shards { clients, classes } => {
            let mut sorted = shuffled;
            if let Labels::Classes(labels) = &set.y {
                sorted.sort_by_key(|&i| labels.get(i).copied());
            }
            let places: Vec<usize> = (0..clients * classes).collect();
            let order = random.choose(&places, places.len());
            let mut weights = vec![1.0; places.len()];
            for (client, own) in (0..).zip(order.chunks(classes.max(1))) {
                for &shard in own {
                    if let Some(weight) = weights.get_mut(shard) {
                        *weight = sizes.weight(seed, client);
                    }
                }
            }
            let shards = split(&sorted, &weights);
            order
                .chunks(classes.max(1))
                .map(|own| own.iter().filter_map(|&s| shards.get(s)).flatten().copied().collect())
                .collect()
        }
    };
    parts.iter().map(|indices| set.select(d, indices)).collect()
}

/// One run for each weight, in proportion; nobody's is empty while there are enough items. Equal weights give runs
/// of nearly the same length.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
fn split(items: &[usize], weights: &[f64]) -> Vec<Vec<usize>> {
    let parts = weights.len();
    let (total, equal) =
        (weights.iter().sum::<f64>(), weights.windows(2).all(|pair| pair.first() == pair.last()));
    let spare = items.len().saturating_sub(parts);
    let mut sum = 0.0;
    let mut start = 0;
    let mut runs = Vec::with_capacity(parts);
    for (number, weight) in (1..).zip(weights) {
        sum += weight;
        let end = if equal {
            number * items.len() / parts
        } else if number == parts {
            items.len()
        } else {
            number + (spare as f64 * (sum / total)) as usize
        };
        let end = end.clamp(start, items.len());
        runs.push(items.get(start..end).unwrap_or_default().to_vec());
        start = end;
    }
    runs
}

/// A split of each client's samples in their order.
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

impl OrderSplit {
    /// The first part trains, then `gap` samples are dropped, the rest tests.
    #[must_use]
    pub fn in_order(&self, set: &Set, d: usize) -> Client {
        let all: Vec<usize> = (0..set.len()).collect();
        let (train, test) = self.cut(&all);
        Client::new(set.select(d, train), set.select(d, test))
    }

    /// For samples without an order in time, such as images: each class is shuffled before it is split, so
    /// that training and test part have the same classes.
    #[must_use]
    pub fn shuffled(&self, set: &Set, d: usize, seed: u64) -> Client {
        let Labels::Classes(labels) = &set.y else { return self.in_order(set, d) };
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for class in 0..=u8::MAX {
            let own: Vec<usize> =
                labels.iter().enumerate().filter(|(_, y)| **y == class).map(|(i, _)| i).collect();
            let mut random = stream(seed, Purpose::Partition, 3000 + u64::from(class));
            let order = random.choose(&own, own.len());
            let (trains, tests) = self.cut(&order);
            train.extend_from_slice(trains);
            test.extend_from_slice(tests);
        }
        Client::new(set.select(d, &train), set.select(d, &test))
    }

    /// What trains and what is scored.
    fn cut<'a>(&self, all: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        let (train, test) = cut(all, self.test, self.gap);
        if self.validation > 0.0 { cut(train, self.validation, self.gap) } else { (train, test) }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(sizes: Sizes, how: Partition) -> Vec<usize> {
        let classes = (0..1000).map(|i| u8::try_from(i % 10).unwrap_or(0)).collect();
        let set = Set { x: vec![0.0; 1000], y: Labels::Classes(classes) };
        partition(&set, 1, how, sizes, 3).iter().map(Set::len).collect()
    }

    #[test]
    fn every_sample_goes_to_one_client_and_everyone_has_some() {
        let kinds = [Partition::Iid { clients: 40 }, Partition::Shards { clients: 40, classes: 2 }];
        for how in kinds {
            for sizes in [Sizes::Equal, Sizes::Uniform, Sizes::LogNormal { sigma: 3.0 }] {
                let lengths = lengths(sizes, how);
                assert_eq!((lengths.len(), lengths.iter().sum::<usize>()), (40, 1000), "{how:?} {sizes:?}");
                assert!(lengths.iter().all(|length| *length > 0), "{how:?} {sizes:?}: {lengths:?}");
            }
            let equal = lengths(Sizes::Equal, how);
            assert!(equal.iter().all(|length| (24..=26).contains(length)), "{how:?}: {equal:?}");
            let uniform = lengths(Sizes::Uniform, how);
            let (least, most) = (uniform.iter().min().copied(), uniform.iter().max().copied());
            // Weights from 1 to 1.5 with mean 1.25: 20 to 30 samples, up to rounding, and two rounded shards.
            assert!(least >= Some(18) && most <= Some(32) && most > Some(26), "{uniform:?}");
        }
    }
}
