//! Partition of labelled samples among clients: by shards, at random, or in Dirichlet proportions.

mod dirichlet;

use fedspan_engine::random::{Purpose, stream};

use super::sizes::Sizes;

/// Method of partitioning data among clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Partition {
    /// All samples are sorted by class and cut into shards, and each client receives `classes` shards
    /// (McMahan et al. 2017). A client has about `classes` classes, and fewer if two of its shards are of the
    /// same class.
    Shards {
        /// Number of clients.
        clients: usize,
        /// Number of shards per client.
        classes: usize,
        /// Sizes of the clients.
        shares: ClientSizes,
    },
    /// Samples are assigned at random, so they are independent and identically distributed.
    Iid {
        /// Number of clients.
        clients: usize,
        /// Sizes of the clients.
        shares: ClientSizes,
    },
    /// Samples of each class are divided in proportions from a symmetric Dirichlet distribution (Yurochkin et
    /// al. 2019; Hsu et al. 2019 draw each client's classes in the same way). Clients' sizes follow from the
    /// proportions.
    Dirichlet {
        /// Number of clients.
        clients: usize,
        /// Concentration: small values give few classes per client, large values give similar clients.
        alpha: f64,
        /// Smallest number of samples of a client. Draws that give a client fewer samples are rejected.
        min_samples: usize,
    },
    /// Clients are the users named in the data.
    Natural {
        /// Number of users, drawn at random; 0 for all.
        users: usize,
        /// Smallest number of samples of a user; users with fewer samples are dropped.
        min_samples: usize,
    },
}

/// Distribution of the clients' numbers of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClientSizes {
    /// Kind of distribution.
    pub sizes: Sizes,
    /// Base size in samples: the size of each client, the smallest size or the median size, depending on the
    /// distribution. 0 to divide all samples in proportion.
    pub samples: usize,
}

impl ClientSizes {
    /// Number of samples of each client; `None` if all samples are divided in proportion.
    fn counts(self, clients: usize, seed: u64) -> Option<Vec<usize>> {
        let count = |client| self.sizes.samples(self.samples, seed, client);
        (self.samples > 0).then(|| (0..clients as u64).map(count).collect())
    }

    fn weights(self, clients: usize, seed: u64) -> Vec<f64> {
        (0..clients as u64).map(|client| self.sizes.weight(seed, client)).collect()
    }
}

impl Partition {
    /// Checks that `samples` samples of `classes` classes suffice for the configured clients.
    fn check(&self, samples: usize, classes: usize) -> Result<(), String> {
        match *self {
            Self::Shards { classes: per_client, .. } if per_client > classes => Err(format!(
                "data.partition.classes = {per_client}, allowed: at most {classes}, the number of classes"
            )),
            Self::Shards { clients, classes: per_client, .. } if clients * per_client > samples => {
                Err(format!(
                    "found {samples} samples, needed: {clients} clients x {per_client} shards; reduce data.partition.clients"
                ))
            }
            Self::Iid { clients, .. } if clients > samples => Err(format!(
                "found {samples} samples, needed: at least one for each of {clients} clients; reduce data.partition.clients"
            )),
            Self::Dirichlet { clients, min_samples, .. } if clients * min_samples > samples => Err(format!(
                "found {samples} samples, needed: {clients} clients with {min_samples} samples each; reduce data.partition.clients"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the same method for another number of clients, whose samples have `classes` classes.
    #[must_use]
    pub fn resized(self, clients: usize, classes: usize) -> Self {
        match self {
            Self::Shards { classes: per_client, shares, .. } => {
                Self::Shards { clients, classes: per_client.min(classes), shares }
            }
            Self::Iid { shares, .. } => Self::Iid { clients, shares },
            Self::Dirichlet { alpha, min_samples, .. } => Self::Dirichlet { clients, alpha, min_samples },
            Self::Natural { min_samples, .. } => Self::Natural { users: clients, min_samples },
        }
    }

    /// Number of clients; 0 if all users become clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        match *self {
            Self::Shards { clients, .. } | Self::Iid { clients, .. } | Self::Dirichlet { clients, .. } => {
                clients
            }
            Self::Natural { users, .. } => users,
        }
    }
}

/// Partitions samples with these labels, and returns the indices of each client's samples. A sample is
/// assigned to at most one client. Every client has a sample, except that a Dirichlet partition with
/// `min_samples` 0 may have empty clients. Unless sizes are given as numbers of samples, all samples are
/// assigned. For [`Partition::Natural`] the result is empty; users are handled by `super::pool`.
///
/// # Errors
/// A one-line message with the numbers if there are too few samples or classes.
pub fn partition(labels: &[u8], method: Partition, seed: u64) -> Result<Vec<Vec<usize>>, String> {
    method.check(labels.len(), count_classes(labels))?;
    let mut random = stream(seed, Purpose::Partition, 0);
    let indices: Vec<usize> = (0..labels.len()).collect();
    let shuffled = random.choose(&indices, indices.len());
    let label = |i: &usize| labels.get(*i).copied();
    match method {
        Partition::Natural { .. } => Ok(Vec::new()),
        Partition::Dirichlet { clients, alpha, min_samples } => {
            let mut sorted = shuffled;
            sorted.sort_by_key(label);
            let classes: Vec<&[usize]> = sorted.chunk_by(|a, b| label(a) == label(b)).collect();
            dirichlet::deal(&classes, clients, alpha, min_samples, seed)
        }
        Partition::Iid { clients, shares } => match shares.counts(clients, seed) {
            None => Ok(split_by_weight(&shuffled, &shares.weights(clients, seed))),
            Some(counts) => {
                check_counts(&counts, shuffled.len())?;
                Ok(cut_runs(&shuffled, &counts))
            }
        },
        Partition::Shards { clients, classes, shares } => {
            let mut sorted = shuffled;
            sorted.sort_by_key(label);
            let shard_places: Vec<usize> = (0..clients * classes).collect();
            let order = random.choose(&shard_places, shard_places.len());
            let shards = match shares.counts(clients, seed) {
                None => {
                    let weights = shares.weights(clients, seed);
                    split_by_weight(
                        &sorted,
                        &per_shard(&order, classes, |client, _| weights.get(client).copied()),
                    )
                }
                Some(counts) => {
                    check_counts(&counts, sorted.len())?;
                    if let Some(too_few) = counts.iter().find(|count| **count < classes) {
                        return Err(format!(
                            "found a client of {too_few} samples, allowed: at least {classes}, one for each shard"
                        ));
                    }
                    // The lengths of a client's shards differ by at most one sample.
                    let length = |client: usize, shard: usize| {
                        counts.get(client).map(|count| (count + classes - 1 - shard) / classes)
                    };
                    let kept = subsample(&sorted, counts.iter().sum(), label);
                    cut_runs(&kept, &per_shard(&order, classes, length))
                }
            };
            let samples_of = |shard_numbers: &[usize]| {
                shard_numbers.iter().filter_map(|&s| shards.get(s)).flatten().copied().collect()
            };
            Ok(order.chunks(classes.max(1)).map(samples_of).collect())
        }
    }
}

/// Number of distinct labels.
fn count_classes(labels: &[u8]) -> usize {
    let mut seen = [false; 256];
    for label in labels {
        if let Some(is_seen) = seen.get_mut(usize::from(*label)) {
            *is_seen = true;
        }
    }
    seen.iter().filter(|seen| **seen).count()
}

/// Computes a value for every shard. `order` lists the shards of all clients, `classes` shards for each
/// client. `value` receives the client and the index among the client's shards.
fn per_shard<T: Copy + Default>(
    order: &[usize],
    classes: usize,
    value: impl Fn(usize, usize) -> Option<T>,
) -> Vec<T> {
    let mut values = vec![T::default(); order.len()];
    for (client, client_shards) in order.chunks(classes.max(1)).enumerate() {
        for (index, &shard) in client_shards.iter().enumerate() {
            if let (Some(entry), Some(value)) = (values.get_mut(shard), value(client, index)) {
                *entry = value;
            }
        }
    }
    values
}

/// Checks that there are as many samples as all clients together need.
fn check_counts(counts: &[usize], samples: usize) -> Result<(), String> {
    let needed: usize = counts.iter().sum();
    if needed <= samples {
        return Ok(());
    }
    Err(format!(
        "data.partition.samples: found {samples} samples, needed: {needed} for {} clients",
        counts.len()
    ))
}

/// Selects `count` of the items and preserves the proportions of the classes, so that shards which divide a
/// class evenly still do so.
fn subsample(items: &[usize], count: usize, label: impl Fn(&usize) -> Option<u8>) -> Vec<usize> {
    let mut kept = Vec::with_capacity(count);
    let mut passed = 0;
    for class in items.chunk_by(|a, b| label(a) == label(b)) {
        passed += class.len();
        let target_count = (count * passed).checked_div(items.len()).unwrap_or(0);
        kept.extend(class.iter().take(target_count.saturating_sub(kept.len())));
    }
    kept
}

/// Cuts the items into runs of the given lengths.
fn cut_runs(items: &[usize], lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut remaining = items.iter().copied();
    lengths.iter().map(|length| remaining.by_ref().take(*length).collect()).collect()
}

/// Cuts the items into one run for each weight, with lengths in proportion to the weights. No run is empty if
/// there are enough items. For equal weights the lengths differ by at most one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
fn split_by_weight(items: &[usize], weights: &[f64]) -> Vec<Vec<usize>> {
    let parts = weights.len();
    let (total, equal) =
        (weights.iter().sum::<f64>(), weights.windows(2).all(|pair| pair.first() == pair.last()));
    let spare_items = items.len().saturating_sub(parts);
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
            number + (spare_items as f64 * (sum / total)) as usize
        };
        let end = end.clamp(start, items.len());
        runs.push(items.get(start..end).unwrap_or_default().to_vec());
        start = end;
    }
    runs
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
