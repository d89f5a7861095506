//! Computation of the interference, the error of plain averaging: `|mean(B_i A_i) - mean(B) mean(A)|`. No
//! product `B_i A_i` is formed.
//!
//! The difference equals `mean((B_i - B) (A_i - A))`, where B and A are the means of the factors. The inner
//! product of two products reduces to an inner product of r x r matrices:
//! `<B_i A_i, B_j A_j> = <B_i^T B_j, A_i A_j^T>`. The Gram matrices of the clients' centred factors and of
//! the means are therefore sufficient. The factors of a stack of E experts are treated as E factors of rank
//! r, each with its own Gram matrix.

use super::exact_sum::{MeanBuffers, weighted_mean};
use super::{Dtype, Role};

/// Largest number of rows of a Gram matrix, (clients + 1) r; a matrix of that size has 128 MiB. The matrices
/// of all experts together may not be larger.
pub(super) const ROWS_MAX: usize = 4096;

/// Number of columns of the factors (along d) that are processed together.
const CHUNK: usize = 64;

/// Number of rows and columns of a tile, whose sums fit the registers. The order in which terms are added
/// does not depend on the size of the tile.
const TILE: usize = 4;

/// Squared Frobenius norms of `mean(B_i A_i)` (`product`) and of `mean(B_i A_i) - mean(B) mean(A)`
/// (`difference`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SquaredNorms {
    /// Squared norm of `mean(B_i A_i)`.
    pub(super) product: f64,
    /// Squared norm of `mean(B_i A_i) - mean(B) mean(A)`.
    pub(super) difference: f64,
}

impl SquaredNorms {
    /// Interference: the ratio of the norm of the difference to the norm of the product; 0 if the difference
    /// is 0.
    pub(super) fn interference(self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.product).sqrt() }
    }

    /// Sum of the squared norms of two modules.
    pub(super) fn plus(self, other: Self) -> Self {
        Self { product: self.product + other.product, difference: self.difference + other.difference }
    }

    /// Squared norms of the module after multiplication by `scale`.
    pub(super) fn scaled(self, scale: f64) -> Self {
        let square = scale * scale;
        Self { product: self.product * square, difference: self.difference * square }
    }
}

/// One factor of all clients, as bytes.
pub(super) struct FactorSet<'a> {
    /// Dtype of the factor.
    pub(super) dtype: Dtype,
    /// Role of the factor: down or up.
    pub(super) role: Role,
    /// Rank of one expert.
    pub(super) rank: usize,
    /// Number of experts; the rank of the tensor is `rank * experts`.
    pub(super) experts: usize,
    /// Weight and data of every client.
    pub(super) clients: &'a [(f64, &'a [u8])],
    /// Sum of the weights.
    pub(super) total: f64,
    /// True to include the clients' centred factors; false to use only the mean.
    pub(super) centred: bool,
}

/// Gram matrices of a factor, one for each expert. Rows and columns correspond to the r vectors of every
/// client's centred factor, followed by the r vectors of the mean.
#[derive(Debug)]
pub(super) struct GramMatrices {
    rank: usize,
    experts: usize,
    /// Number of rows of one matrix, including the padding of the last tile.
    rows: usize,
    values: Vec<f64>,
}

/// True if the Gram matrices of `parts` factors (clients and mean) would exceed [`ROWS_MAX`].
pub(super) fn is_too_large(parts: usize, rank: usize, experts: usize) -> bool {
    let rows = parts.saturating_mul(rank).saturating_add(TILE - 1);
    rows.saturating_mul(rows).saturating_mul(experts) > (ROWS_MAX + TILE - 1) * (ROWS_MAX + TILE - 1)
}

impl GramMatrices {
    /// Computes the Gram matrices. The error is the index of the first client with a value that is not
    /// finite, and the index of that value.
    pub(super) fn from_factors(factors: &FactorSet<'_>) -> Result<Self, (usize, usize)> {
        let FactorSet { dtype, role, rank, experts, clients, total, centred } = factors;
        let (rank, experts) = (*rank, *experts);
        let size = dtype.size();
        let width = rank * experts;
        let elements = clients.first().map_or(0, |(_, bytes)| bytes.len() / size);
        let vector_len = elements / width.max(1);
        let centred_clients = if *centred { clients.len() } else { 0 };
        let rows = ((centred_clients + 1) * rank).next_multiple_of(TILE);
        let mut gram = Self { rank, experts, rows, values: vec![0.0; experts * rows * rows] };
        let mut columns = vec![0.0; experts * CHUNK * rows];
        let mut values = Vec::new();
        let mut means = Vec::new();
        let mut exact = MeanBuffers::default();
        for first in (0..vector_len).step_by(CHUNK) {
            let count = CHUNK.min(vector_len - first);
            // The vectors of a down factor are rows of the tensor, those of an up factor are columns.
            let (parts, length) = if *role == Role::Down { (width, count) } else { (1, width * count) };
            for part in 0..parts {
                let from = if *role == Role::Down { part * vector_len + first } else { first * width };
                let slices: Vec<(f64, &[u8])> = clients
                    .iter()
                    .map(|(weight, bytes)| (*weight, &bytes[from * size..(from + length) * size]))
                    .collect();
                means.resize(length, 0.0);
                values.resize(length, 0.0);
                weighted_mean(&slices, *dtype, *total, &mut means, &mut exact)
                    .map_err(|(client, element)| (client, from + element))?;
                let mut store = |block: usize, element: usize, value: f64| {
                    // In a down factor the rows of an expert are adjacent; in an up factor the columns of an
                    // expert are `experts` apart.
                    let (column, expert, r) = match *role {
                        Role::Down => (element, part / rank, part % rank),
                        _ => (element / width, element % width % experts, element % width / experts),
                    };
                    columns[(expert * CHUNK + column) * rows + block * rank + r] = value;
                };
                for (client, (_, bytes)) in slices.iter().take(centred_clients).enumerate() {
                    dtype.decode(bytes, &mut values);
                    for (element, (value, mean)) in values.iter().zip(&means).enumerate() {
                        store(client, element, f64::from(*value) - mean);
                    }
                }
                means.iter().enumerate().for_each(|(element, mean)| store(centred_clients, element, *mean));
            }
            for expert in 0..experts {
                let begin = expert * CHUNK * rows;
                gram.add_products(expert, &columns[begin..begin + count * rows]);
            }
        }
        Ok(gram)
    }

    /// Adds the products of all pairs of vectors of an expert. The matrix is symmetric, so only the lower
    /// tiles are computed.
    fn add_products(&mut self, expert: usize, columns: &[f64]) {
        let rows = self.rows;
        for i in (0..rows).step_by(TILE) {
            for j in (0..=i).step_by(TILE) {
                let mut sums = [[0.0; TILE]; TILE];
                for column in columns.chunks_exact(rows) {
                    let (left, right) = (&column[i..i + TILE], &column[j..j + TILE]);
                    for (sums, left) in sums.iter_mut().zip(left) {
                        for (sum, other) in sums.iter_mut().zip(right) {
                            *sum += left * other;
                        }
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    let start = (expert * rows + i + row) * rows + j;
                    for (value, sum) in self.values[start..start + TILE].iter_mut().zip(sums) {
                        *value += sum;
                    }
                }
            }
        }
    }

    /// Element (i, j) of the Gram matrix of an expert.
    fn element(&self, expert: usize, i: usize, j: usize) -> f64 {
        self.values[(expert * self.rows + i.max(j)) * self.rows + i.min(j)]
    }
}

/// Squared norms of every expert, from the Gram matrices of both factors and the weights of the clients that
/// the matrices include.
pub(super) fn expert_norms(
    down: &GramMatrices,
    up: &GramMatrices,
    weights: &[f64],
    total: f64,
) -> Vec<SquaredNorms> {
    (0..down.experts.min(up.experts))
        .map(|expert| norms_of_expert(expert, down, up, weights, total))
        .collect()
}

/// Squared norms of one expert.
fn norms_of_expert(
    expert: usize,
    down: &GramMatrices,
    up: &GramMatrices,
    weights: &[f64],
    total: f64,
) -> SquaredNorms {
    let rank = down.rank.min(up.rank);
    let inner = |i: usize, j: usize| {
        let mut sum = 0.0;
        for a in 0..rank {
            for b in 0..rank {
                let (i, j) = (i * rank + a, j * rank + b);
                sum += up.element(expert, i, j) * down.element(expert, i, j);
            }
        }
        sum
    };
    let mean = weights.len();
    let mut difference = 0.0;
    let mut cross = 0.0;
    for (i, weight) in weights.iter().enumerate() {
        let weight = weight / total;
        for (j, other_weight) in weights.iter().enumerate().take(i + 1) {
            let multiplicity = if i == j { 1.0 } else { 2.0 };
            difference += multiplicity * weight * (other_weight / total) * inner(i, j);
        }
        cross += weight * inner(i, mean);
    }
    // A difference of 0 may become slightly negative by rounding.
    let difference = f64::max(difference, 0.0);
    let product = f64::max(difference + 2.0 * cross + inner(mean, mean), 0.0);
    SquaredNorms { product, difference }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{FactorSet, GramMatrices, expert_norms};
    use crate::files::{Dtype, Role};
    use fedspan_engine::random::{Purpose, stream};

    /// The norms equal those of dense products, for factors of different sizes, unequal weights, and one or
    /// several experts.
    #[test]
    fn norms_match_dense_products() {
        for (seed, (clients, rank, experts, d_in, d_out)) in [
            (1, 1, 1, 3, 2),
            (2, 1, 1, 70, 5),
            (5, 3, 1, 130, 64),
            (9, 4, 1, 33, 201),
            (20, 8, 1, 65, 40),
            (3, 2, 3, 70, 66),
            (4, 1, 5, 7, 130),
            (6, 5, 2, 9, 4),
        ]
        .into_iter()
        .enumerate()
        {
            let random = &mut stream(seed as u64, Purpose::Start, 1);
            let weights: Vec<f64> = (0..clients).map(|client| f64::from(client % 3 + 1)).collect();
            let total: f64 = weights.iter().sum();
            #[allow(clippy::cast_possible_truncation, reason = "random test data")]
            let mut draw = |count: usize| -> Vec<Vec<f32>> {
                (0..clients).map(|_| (0..count).map(|_| random.normal() as f32).collect()).collect()
            };
            let width = rank * experts;
            let (down, up) = (draw(width * d_in), draw(d_out * width));
            let to_bytes = |factors: &[Vec<f32>]| -> Vec<Vec<u8>> {
                factors
                    .iter()
                    .map(|factor| factor.iter().flat_map(|value| value.to_le_bytes()).collect())
                    .collect()
            };
            let gram = |role: Role, factors: &[Vec<f32>]| {
                let data = to_bytes(factors);
                let clients: Vec<(f64, &[u8])> =
                    weights.iter().copied().zip(data.iter().map(Vec::as_slice)).collect();
                let clients = &clients;
                GramMatrices::from_factors(&FactorSet {
                    dtype: Dtype::F32,
                    role,
                    rank,
                    experts,
                    clients,
                    total,
                    centred: true,
                })
                .unwrap()
            };
            let norms = expert_norms(&gram(Role::Down, &down), &gram(Role::Up, &up), &weights, total);
            assert_eq!(norms.len(), experts);

            let average = |factors: &[Vec<f32>]| -> Vec<f64> {
                let sum = |index: usize| -> f64 {
                    let terms = factors.iter().zip(&weights);
                    terms.map(|(factor, weight)| weight * f64::from(factor[index])).sum()
                };
                (0..factors[0].len()).map(|index| sum(index) / total).collect()
            };
            let to_f64 = |factor: &[f32]| factor.iter().copied().map(f64::from).collect::<Vec<f64>>();
            for (expert, norms) in norms.into_iter().enumerate() {
                // Expert e has the rows e r + j of A and the columns j E + e of B.
                let product = |up: &[f64], down: &[f64]| -> Vec<f64> {
                    let term = |row: usize, column: usize, j: usize| {
                        up[row * width + j * experts + expert] * down[(expert * rank + j) * d_in + column]
                    };
                    let element =
                        |row: usize, column: usize| -> f64 { (0..rank).map(|j| term(row, column, j)).sum() };
                    (0..d_out * d_in).map(|index| element(index / d_in, index % d_in)).collect()
                };
                let mut dense = vec![0.0; d_out * d_in];
                for ((up, down), weight) in up.iter().zip(&down).zip(&weights) {
                    let client_product = product(&to_f64(up), &to_f64(down));
                    dense
                        .iter_mut()
                        .zip(client_product)
                        .for_each(|(sum, value)| *sum += weight / total * value);
                }
                let product_of_means = product(&average(&up), &average(&down));
                let square: f64 = dense.iter().map(|value| value * value).sum();
                let difference: f64 =
                    dense.iter().zip(&product_of_means).map(|(exact, plain)| (exact - plain).powi(2)).sum();
                assert!((norms.product / square - 1.0).abs() < 1e-12, "{norms:?} {square}");
                assert!((norms.difference - difference).abs() <= 1e-12 * square, "{norms:?} {difference}");
                assert!((norms.interference() - (difference / square).sqrt()).abs() < 1e-12, "{norms:?}");
            }
        }
    }
}
