//! Cutting data into clients, and clients' data into training and test parts.

use fedspan_aggregator::random::{Purpose, stream};

use super::{Client, Labels, Set};

/// How data without natural users is cut into clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// `classes` shards of one class each per client (McMahan et al. 2017).
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

/// Cuts a set into clients. Every sample goes to one client; a remainder that cannot be dealt evenly is
/// dealt to the first clients.
#[must_use]
pub fn partition(set: &Set, d: usize, how: Partition, seed: u64) -> Vec<Set> {
    let mut random = stream(seed, Purpose::Partition, 0);
    let all: Vec<usize> = (0..set.len()).collect();
    let shuffled = random.choose(&all, all.len());
    let parts: Vec<Vec<usize>> = match how {
        Partition::Iid { clients } => split(&shuffled, clients),
        Partition::Shards { clients, classes } => {
            let mut sorted = shuffled;
            if let Labels::Classes(labels) = &set.y {
                sorted.sort_by_key(|&i| labels.get(i).copied());
            }
            let shards = split(&sorted, clients * classes);
            let order = random.choose(&(0..shards.len()).collect::<Vec<_>>(), shards.len());
            order
                .chunks(classes.max(1))
                .map(|own| own.iter().filter_map(|&s| shards.get(s)).flatten().copied().collect())
                .collect()
        }
    };
    parts.iter().map(|indices| set.select(d, indices)).collect()
}

/// `parts` runs of nearly the same length.
fn split(items: &[usize], parts: usize) -> Vec<Vec<usize>> {
    let parts = parts.max(1);
    (0..parts)
        .map(|p| {
            let (start, end) = (p * items.len() / parts, (p + 1) * items.len() / parts);
            items.get(start..end).unwrap_or_default().to_vec()
        })
        .collect()
}

/// Splits a client's samples in their order: the first part trains, then `gap` samples are dropped, the
/// rest tests.
#[must_use]
pub fn split_by_order(set: &Set, d: usize, test: f64, gap: usize) -> Client {
    let n = set.len();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a fraction of a count"
    )]
    let tested = (n as f64 * test).round() as usize;
    let trained = n.saturating_sub(tested + gap);
    let train: Vec<usize> = (0..trained).collect();
    let rest: Vec<usize> = (n - tested.min(n)..n).collect();
    Client::new(set.select(d, &train), set.select(d, &rest))
}
