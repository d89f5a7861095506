//! Generator of data from FedPower's Model II (Guo et al. 2024, section 5). Each client has a random graph on
//! the same nodes with the same communities. The rows of a client are the rows of the adjacency matrix, each
//! scaled to norm 1.

use fedspan_engine::random::{Purpose, stream};
use rayon::prelude::*;

use super::eigenspace::{self, NoEigenspace};
use super::{Client, Dataset, LARGEST_VALUES, Set};

/// Probability of an edge within a community, before multiplication by the density of a client.
const WITHIN: f64 = 0.25;
/// Probability of an edge between communities, before multiplication by the density of a client.
const BETWEEN: f64 = 0.1;
/// Densities of the first and of the second half of the clients, which multiply the probabilities of edges.
const DENSITIES: [f64; 2] = [0.8, 0.6];

/// Settings of `kind = "stochastic-block-model"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StochasticBlockModel {
    /// Number of clients.
    pub clients: usize,
    /// Number of nodes, which is also the number of features and the number of rows of each client.
    pub d: usize,
    /// Number of communities.
    pub k: usize,
}

impl StochasticBlockModel {
    /// Memory of the data in units of an f32.
    #[must_use]
    pub fn values(&self) -> u64 {
        let Self { clients, d, .. } = *self;
        // Each row has d features and a zero in place of a target.
        let rows = (clients as u64).saturating_mul(d as u64);
        rows.saturating_mul(d as u64 + 1).saturating_add(eigenspace::values(d))
    }

    /// Checks that the data have at most [`LARGEST_VALUES`] values.
    ///
    /// # Errors
    /// A one-line message with the sizes if they have more.
    pub fn check(&self) -> Result<(), String> {
        let Self { clients, d, .. } = *self;
        let values = self.values();
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        let bytes = values.saturating_mul(4);
        Err(format!(
            "{clients} clients x {d} rows x {d} nodes: {values} values ({bytes} bytes), allowed: at most \
             {LARGEST_VALUES} (2^31, 8 GiB)"
        ))
    }

    /// Community of a node. Communities consist of consecutive nodes, and their sizes differ by at most one.
    #[must_use]
    pub fn community(&self, node: usize) -> usize {
        (node * self.k).checked_div(self.d).unwrap_or(0)
    }

    /// Probability of an edge between two nodes in the graph of a client.
    #[must_use]
    pub fn probability(&self, client: usize, a: usize, b: usize) -> f64 {
        let [first, second] = DENSITIES;
        let density = if 2 * client < self.clients { first } else { second };
        density * if self.community(a) == self.community(b) { WITHIN } else { BETWEEN }
    }

    /// Draws a client's rows. A node without neighbours gives a row of zeros.
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
            let factor = (1.0 / degree.max(1.0).sqrt()) as f32;
            row.iter_mut().for_each(|x| *x *= factor);
        }
        Set::unlabelled(x, d)
    }

    /// Creates a data set with the rows of all clients.
    ///
    /// # Errors
    /// [`NoEigenspace`] if the top eigenspace of all rows is not unique.
    pub fn dataset(&self, seed: u64) -> Result<Dataset, NoEigenspace> {
        let numbers: Vec<usize> = (0..self.clients).collect();
        let nothing = || Set::unlabelled(Vec::new(), self.d);
        let clients = numbers.par_iter().map(|&client| Client::new(self.set(client, seed), nothing()));
        Dataset::unlabelled(self.d, clients.collect(), self.k)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fedspan_engine::linalg::{Matrix, principal_angle_distance};

    use super::*;

    const GRAPHS: StochasticBlockModel = StochasticBlockModel { clients: 5, d: 300, k: 3 };

    #[test]
    fn communities_have_equal_sizes() {
        let sizes = |d: usize, k: usize| {
            let model = StochasticBlockModel { clients: 1, d, k };
            let mut sizes = vec![0; k];
            (0..d).for_each(|node| sizes[model.community(node)] += 1);
            sizes
        };
        assert_eq!(sizes(300, 3), [100; 3]);
        assert_eq!(sizes(1000, 2), [500; 2]);
        assert_eq!(sizes(7, 7), [1; 7]);
        assert!(sizes(11, 4).iter().all(|size| (2..=3).contains(size)));
    }

    #[test]
    fn graphs_are_symmetric_without_loops_and_rows_are_normalised() {
        for client in 0..5 {
            let set = GRAPHS.set(client, 1);
            assert_eq!((set.len(), set.x.len()), (300, 300 * 300));
            for (i, row) in set.x.chunks(300).enumerate() {
                assert_eq!(row[i], 0.0);
                assert!((0..300).all(|j| (row[j] > 0.0) == (set.x[j * 300 + i] > 0.0)), "{i}");
                let degree = row.iter().filter(|x| **x > 0.0).count() as f64;
                let each = (1.0 / degree.sqrt()) as f32;
                assert!(degree > 0.0 && row.iter().all(|x| *x == 0.0 || *x == each), "{i}");
            }
        }
    }

    #[test]
    fn isolated_node_is_a_row_of_zeros() {
        let single = StochasticBlockModel { clients: 1, d: 1, k: 1 };
        assert_eq!(single.set(0, 1).x, [0.0]);
        let one_client = StochasticBlockModel { clients: 1, d: 4, k: 1 };
        let rows: Vec<f32> = (0..50).flat_map(|seed| one_client.set(0, seed).x).collect();
        let isolated = rows.chunks(4).filter(|row| row.iter().all(|x| *x == 0.0)).count();
        // Each of 200 nodes is isolated with probability 0.8^3. The wide range allows for dependence between
        // the nodes of one graph.
        assert!((70..135).contains(&isolated), "{isolated}");
        assert!(rows.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn edge_counts_match_community_and_density() {
        for client in 0..5 {
            let set = GRAPHS.set(client, 2);
            // Three of five clients are in the first half.
            let density = if client < 3 { 0.8 } else { 0.6 };
            for same_community in [true, false] {
                let (mut edges, mut pairs) = (0.0, 0.0);
                for i in 0..300 {
                    for j in i + 1..300 {
                        if (i / 100 == j / 100) == same_community {
                            pairs += 1.0;
                            edges += f64::from(u8::from(set.x[i * 300 + j] > 0.0));
                        }
                    }
                }
                let p: f64 = density * if same_community { 0.25 } else { 0.1 };
                let deviation = (edges - p * pairs) / (pairs * p * (1.0 - p)).sqrt();
                assert!(deviation.abs() < 5.0, "client {client}, {same_community}: {deviation} deviations");
            }
        }
    }

    #[test]
    fn graphs_depend_on_seed_and_client_but_not_on_threads() {
        let settings = StochasticBlockModel { clients: 5, d: 60, k: 2 };
        let data = |seed: u64, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let dataset = pool.install(|| settings.dataset(seed)).unwrap();
            let rows: Vec<Vec<f32>> = dataset.clients.iter().map(|client| client.train.x.clone()).collect();
            (rows, dataset.truth)
        };
        let seed_1 = data(1, 1);
        assert!(seed_1 == data(1, 2) && seed_1 == data(1, 3));
        let seed_2 = data(2, 1);
        assert!(seed_1.1 != seed_2.1);
        let mut all_rows: Vec<Vec<f32>> = seed_1.0.into_iter().chain(seed_2.0).collect();
        all_rows.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all_rows.dedup();
        assert_eq!(all_rows.len(), 10);
    }

    #[test]
    fn eigenspace_separates_communities() {
        let truth = GRAPHS.dataset(3).unwrap().truth.unwrap();
        let communities =
            Matrix::from_fn(300, 3, |node, community| if node / 100 == community { 0.1 } else { 0.0 });
        let distance = principal_angle_distance(&truth, &communities);
        assert!(distance < 0.35, "{distance}");
    }

    #[test]
    fn ambiguous_eigenspace_is_an_error() {
        // The two nodes are isolated or neighbours; in either case both eigenvalues are equal.
        let single = StochasticBlockModel { clients: 3, d: 2, k: 1 };
        for seed in 0..20 {
            let error = single.dataset(seed).unwrap_err();
            assert!(matches!(error, NoEigenspace::Undetermined { k: 1, .. }), "{error}");
        }
    }

    #[test]
    fn check_reports_excess_in_bytes() {
        assert_eq!(StochasticBlockModel { clients: 20, d: 1000, k: 2 }.check(), Ok(()));
        let message = StochasticBlockModel { clients: 3000, d: 1000, k: 2 }.check().unwrap_err();
        // 3000 x 1000 rows have 1001 values each; 20 matrices of 1000 x 1000 are in f64.
        assert!(message.contains("3043000000 values (12172000000 bytes)"), "{message}");
    }
}
