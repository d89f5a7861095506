//! Cutting data without natural users into clients.

mod dirichlet;

use fedspan_engine::random::{Purpose, stream};

use super::sizes::Sizes;

/// How data is cut into clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Partition {
    /// `classes` shards per client, cut from all samples in order of their classes (McMahan et al. 2017): a
    /// client has about so many classes, fewer where two of its shards are of the same one.
    Shards {
        /// Clients.
        clients: usize,
        /// Shards per client.
        classes: usize,
        /// How large clients are.
        shares: Shares,
    },
    /// At random.
    Iid {
        /// Clients.
        clients: usize,
        /// How large clients are.
        shares: Shares,
    },
    /// The samples of each class are shared out in proportions from a symmetric Dirichlet law (Yurochkin et al.
    /// 2019; Hsu et al. 2019 draw the classes of each client in the same way): sizes follow from them.
    Dirichlet {
        /// Clients.
        clients: usize,
        /// Concentration: small for few classes a client, large for all alike.
        alpha: f64,
        /// Everyone has as many samples; draws without are thrown away.
        least: usize,
    },
    /// The data's own users.
    Natural {
        /// So many of them, drawn at random; 0 for all.
        users: usize,
        /// Users with fewer samples are left out.
        least: usize,
    },
}

/// How many samples clients have of data that are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// The law.
    pub sizes: Sizes,
    /// Everybody's number, the smallest, or the median, as the law says; 0 where all samples are shared out in
    /// proportion.
    pub samples: usize,
}

impl Shares {
    /// Each client's number of samples, where that is not a proportion.
    fn counts(self, clients: usize, seed: u64) -> Option<Vec<usize>> {
        let count = |client| self.sizes.samples(self.samples, seed, client);
        (self.samples > 0).then(|| (0..clients as u64).map(count).collect())
    }

    fn weights(self, clients: usize, seed: u64) -> Vec<f64> {
        (0..clients as u64).map(|client| self.sizes.weight(seed, client)).collect()
    }
}

impl Partition {
    /// Whether `samples` samples of `classes` classes can be cut so that everyone has some.
    fn check(&self, samples: usize, classes: usize) -> Result<(), String> {
        match *self {
            Self::Shards { classes: own, .. } if own > classes => Err(format!(
                "data.partition.classes = {own}: there are {classes} classes, and a client has no more"
            )),
            Self::Shards { clients, classes: own, .. } if clients * own > samples => {
                Err(format!("{clients} clients x {own} shards are more than {samples} samples"))
            }
            Self::Iid { clients, .. } if clients > samples => {
                Err(format!("{clients} clients are more than {samples} samples"))
            }
            Self::Dirichlet { clients, least, .. } if clients * least > samples => {
                Err(format!("{clients} clients with {least} samples each are more than {samples} samples"))
            }
            _ => Ok(()),
        }
    }

    /// The same for `clients` others, who have `classes` classes between them.
    #[must_use]
    pub fn resized(self, clients: usize, classes: usize) -> Self {
        match self {
            Self::Shards { classes: own, shares, .. } => {
                Self::Shards { clients, classes: own.min(classes), shares }
            }
            Self::Iid { shares, .. } => Self::Iid { clients, shares },
            Self::Dirichlet { alpha, least, .. } => Self::Dirichlet { clients, alpha, least },
            Self::Natural { least, .. } => Self::Natural { users: clients, least },
        }
    }

    /// Clients that are asked for; 0 for as many as there are users.
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

/// Cuts samples with these labels into clients: which samples each has. No sample goes to two, everyone has some;
/// where sizes are not given as numbers of samples, every sample goes to someone, and where all are of one size, a
/// remainder that cannot be dealt evenly is dealt to the first clients. Natural users are not made here: there are none.
///
/// # Errors
/// A sentence with the numbers, where there are too few samples or classes.
pub fn partition(labels: &[u8], how: Partition, seed: u64) -> Result<Vec<Vec<usize>>, String> {
    how.check(labels.len(), classes(labels))?;
    let mut random = stream(seed, Purpose::Partition, 0);
    let all: Vec<usize> = (0..labels.len()).collect();
    let shuffled = random.choose(&all, all.len());
    let label = |i: &usize| labels.get(*i).copied();
    match how {
        Partition::Natural { .. } => Ok(Vec::new()),
        Partition::Dirichlet { clients, alpha, least } => {
            let mut sorted = shuffled;
            sorted.sort_by_key(label);
            let classes: Vec<&[usize]> = sorted.chunk_by(|a, b| label(a) == label(b)).collect();
            dirichlet::deal(&classes, clients, alpha, least, seed)
        }
        Partition::Iid { clients, shares } => match shares.counts(clients, seed) {
            None => Ok(split(&shuffled, &shares.weights(clients, seed))),
            Some(counts) => {
                enough(&counts, shuffled.len())?;
                Ok(runs(&shuffled, &counts))
            }
        },
        Partition::Shards { clients, classes, shares } => {
            let mut sorted = shuffled;
            sorted.sort_by_key(label);
            let places: Vec<usize> = (0..clients * classes).collect();
            let order = random.choose(&places, places.len());
            let shards = match shares.counts(clients, seed) {
                None => {
                    let weights = shares.weights(clients, seed);
                    split(&sorted, &of_shards(&order, classes, |client, _| weights.get(client).copied()))
                }
                Some(counts) => {
                    enough(&counts, sorted.len())?;
                    if let Some(few) = counts.iter().find(|count| **count < classes) {
                        return Err(format!("{classes} shards of a client that has {few} samples"));
                    }
                    // As even as can be: the first shards are longer by one.
                    let length = |client: usize, shard: usize| {
                        counts.get(client).map(|count| (count + classes - 1 - shard) / classes)
                    };
                    let kept = thinned(&sorted, counts.iter().sum(), label);
                    runs(&kept, &of_shards(&order, classes, length))
                }
            };
            let own = |own: &[usize]| own.iter().filter_map(|&s| shards.get(s)).flatten().copied().collect();
            Ok(order.chunks(classes.max(1)).map(own).collect())
        }
    }
}

/// How many classes occur.
fn classes(labels: &[u8]) -> usize {
    let mut seen = [false; 256];
    for label in labels {
        if let Some(place) = seen.get_mut(usize::from(*label)) {
            *place = true;
        }
    }
    seen.iter().filter(|seen| **seen).count()
}

/// What every shard is to have, by its place: `order` deals `classes` shards to every client, and `value` is asked
/// with the client and which of its shards it is.
fn of_shards<T: Copy + Default>(
    order: &[usize],
    classes: usize,
    value: impl Fn(usize, usize) -> Option<T>,
) -> Vec<T> {
    let mut values = vec![T::default(); order.len()];
    for (client, own) in order.chunks(classes.max(1)).enumerate() {
        for (which, &shard) in own.iter().enumerate() {
            if let (Some(place), Some(value)) = (values.get_mut(shard), value(client, which)) {
                *place = value;
            }
        }
    }
    values
}

fn enough(counts: &[usize], samples: usize) -> Result<(), String> {
    let wanted: usize = counts.iter().sum();
    if wanted <= samples {
        return Ok(());
    }
    Err(format!(
        "data.partition.samples: {} clients are to have {wanted} samples, there are {samples}",
        counts.len()
    ))
}

/// `count` of the items, from every class in proportion: so whole classes give whole shards.
fn thinned(items: &[usize], count: usize, label: impl Fn(&usize) -> Option<u8>) -> Vec<usize> {
    let mut kept = Vec::with_capacity(count);
    let mut passed = 0;
    for class in items.chunk_by(|a, b| label(a) == label(b)) {
        passed += class.len();
        let wanted = (count * passed).checked_div(items.len()).unwrap_or(0);
        kept.extend(class.iter().take(wanted.saturating_sub(kept.len())));
    }
    kept
}

/// Runs of these lengths.
fn runs(items: &[usize], lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut rest = items.iter().copied();
    lengths.iter().map(|length| rest.by_ref().take(*length).collect()).collect()
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
