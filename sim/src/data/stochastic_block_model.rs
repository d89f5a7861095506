//! FedPower's second model (Guo et al. 2024, section 5): every client has a graph on the same nodes, whose communities are
//! the same, and the rows of its adjacency matrix, each scaled to norm 1.

use fedspan_aggregator::random::{Purpose, stream};
use rayon::prelude::*;

use super::eigenspace::{self, NoEigenspace};
use super::{Client, Dataset, LARGEST_VALUES, Set};

/// Probability of an edge between two nodes of one community, before a client's density.
const WITHIN: f64 = 0.25;
/// Between nodes of two communities.
const BETWEEN: f64 = 0.1;
/// What multiplies them at the first half of the clients, and at the second.
const DENSITIES: [f64; 2] = [0.8, 0.6];

/// Settings of `kind = "stochastic-block-model"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StochasticBlockModel {
    /// Clients.
    pub clients: usize,
    /// Nodes: features, and rows of every client.
    pub d: usize,
    /// Communities.
    pub k: usize,
}

impl StochasticBlockModel {
    /// That this machine can hold it.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub fn check(&self) -> Result<(), String> {
        let Self { clients, d, .. } = *self;
        // A zero a row stands for its target.
        let rows = (clients as u64).saturating_mul(d as u64);
        let values = rows.saturating_mul(d as u64 + 1).saturating_add(eigenspace::values(d));
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        let bytes = values.saturating_mul(4);
        Err(format!(
            "{clients} clients x {d} rows x {d} nodes: {values} values ({bytes} bytes), allowed: at most \
             {LARGEST_VALUES} (2^31, 8 GiB)"
        ))
    }

    /// The community of a node: equal parts of the nodes in their order, up to one node.
    #[must_use]
    pub fn community(&self, node: usize) -> usize {
        (node * self.k).checked_div(self.d).unwrap_or(0)
    }

    /// Probability of an edge between two nodes at a client.
    #[must_use]
    pub fn probability(&self, client: usize, a: usize, b: usize) -> f64 {
        let [first, second] = DENSITIES;
        let density = if 2 * client < self.clients { first } else { second };
        density * if self.community(a) == self.community(b) { WITHIN } else { BETWEEN }
    }

    /// A client's rows. A node without neighbours is a row of zeros.
    #[must_use]
    pub fn set(&self, client: usize, seed: u64) -> Set {
        let d = self.d;
        let mut random = stream(seed, Purpose::Samples, (client as u64) << 32);
        let mut x = vec![0.0f32; d * d];
        for i in 0..d {
            for j in i + 1..d {
                if random.uniform() < self.probability(client, i, j) {
                    x[i * d + j] = 1.0;
                    x[j * d + i] = 1.0;
                }
            }
        }
        for row in x.chunks_exact_mut(d.max(1)) {
            let degree = row.iter().fold(0.0, |sum, &x| sum + f64::from(x));
            #[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
            let each = (1.0 / degree.max(1.0).sqrt()) as f32;
            row.iter_mut().for_each(|x| *x *= each);
        }
        Set::unlabelled(x, d)
    }

    /// All clients with their rows.
    ///
    /// # Errors
    /// [`NoEigenspace`].
    pub fn dataset(&self, seed: u64) -> Result<Dataset, NoEigenspace> {
        let numbers: Vec<usize> = (0..self.clients).collect();
        let nothing = || Set::unlabelled(Vec::new(), self.d);
        let clients = numbers.par_iter().map(|&client| Client::new(self.set(client, seed), nothing()));
        Dataset::unlabelled(self.d, clients.collect(), self.k)
    }
}
