//! What plain averaging would have lost: `|weighted_mean(B_i A_i) - weighted_mean(B) weighted_mean(A)|`, without forming a product.
//!
//! The difference is `weighted_mean((B_i - B) (A_i - A))`, B and A being the means, and the inner product of two products is that of
//! two r x r matrices: `<B_i A_i, B_j A_j> = <B_i^T B_j, A_i A_j^T>`. So the Gram matrices of all clients' centred factors and
//! of the means are enough. Factors of a stack of experts are as many factors of rank r, one beside the other, with a Gram
//! matrix each.

use super::exact_sum::{MeanBuffers, weighted_mean};
use super::{Dtype, Role};

/// Rows of a Gram matrix at most, which is (clients + 1) r: 128 MiB. Several have no more numbers together.
pub(super) const ROWS_MAX: usize = 4096;

/// Places along d that are taken together.
const ALONG: usize = 64;

/// Rows and columns of a tile whose sums stay in registers; the order of a sum's terms does not depend on it.
const TILE: usize = 4;

/// `weighted_mean(B_i A_i)` and how far from it `weighted_mean(B) weighted_mean(A)` is, as squared Frobenius norms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SquaredNorms {
    pub(super) product: f64,
    pub(super) difference: f64,
}

impl SquaredNorms {
    /// The interference: the norm of the difference over that of the mean of products; 0 if there is none, also of nothing.
    pub(super) fn ratio(self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.product).sqrt() }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { product: self.product + other.product, difference: self.difference + other.difference }
    }

    /// The squares of a module that is multiplied with this.
    pub(super) fn scaled(self, scale: f64) -> Self {
        let square = scale * scale;
        Self { product: self.product * square, difference: self.difference * square }
    }
}

/// One factor of every client, as bytes, with its shape along r.
pub(super) struct FactorSet<'a> {
    pub(super) dtype: Dtype,
    pub(super) role: Role,
    /// The rank of one expert, and how many there are; the tensor has the product of both.
    pub(super) rank: usize,
    pub(super) experts: usize,
    /// Weights and numbers.
    pub(super) clients: &'a [(f64, &'a [u8])],
    pub(super) total: f64,
    /// Whether clients' own parts are wanted; without them the matrix is that of the mean.
    pub(super) centred: bool,
}

/// The Gram matrices of a factor's parts along r, one for each expert: first the parts of every client less the mean, then
/// those of the mean.
#[derive(Debug)]
pub(super) struct GramMatrices {
    rank: usize,
    experts: usize,
    /// Rows of one matrix, and those that fill the last tile.
    rows: usize,
    values: Vec<f64>,
}

/// Whether Gram matrices of `parts` clients and means are too large to be held.
pub(super) fn is_too_large(parts: usize, rank: usize, experts: usize) -> bool {
    let rows = parts.saturating_mul(rank).saturating_add(TILE - 1);
    rows.saturating_mul(rows).saturating_mul(experts) > (ROWS_MAX + TILE - 1) * (ROWS_MAX + TILE - 1)
}

impl GramMatrices {
    /// Of factors; or the first client and element that is not finite.
    pub(super) fn from_factors(factors: &FactorSet<'_>) -> Result<Self, (usize, usize)> {
        let FactorSet { dtype, role, rank, experts, clients, total, centred } = factors;
        let (rank, experts, size) = (*rank, *experts, dtype.size());
        let width = rank * experts;
        let elements = clients.first().map_or(0, |(_, bytes)| bytes.len() / size);
        let along = elements / width.max(1);
        let own = if *centred { clients.len() } else { 0 };
        let rows = ((own + 1) * rank).next_multiple_of(TILE);
        let mut gram = Self { rank, experts, rows, values: vec![0.0; experts * rows * rows] };
        let mut columns = vec![0.0; experts * ALONG * rows];
        let (mut values, mut means, mut exact) = (Vec::new(), Vec::new(), MeanBuffers::default());
        for first in (0..along).step_by(ALONG) {
            let count = ALONG.min(along - first);
            // A down factor's parts are rows, an up factor's are columns.
            let (parts, length) = if *role == Role::Down { (width, count) } else { (1, width * count) };
            for part in 0..parts {
                let from = if *role == Role::Down { part * along + first } else { first * width };
                let slices: Vec<(f64, &[u8])> = clients
                    .iter()
                    .map(|(weight, bytes)| (*weight, &bytes[from * size..(from + length) * size]))
                    .collect();
                means.resize(length, 0.0);
                values.resize(length, 0.0);
                weighted_mean(&slices, *dtype, *total, &mut means, &mut exact)
                    .map_err(|(client, element)| (client, from + element))?;
                let mut put = |block: usize, element: usize, value: f64| {
                    // Rows of an expert lie together, and its columns are as far apart as there are experts.
                    let (place, expert, r) = match *role {
                        Role::Down => (element, part / rank, part % rank),
                        _ => (element / width, element % width % experts, element % width / experts),
                    };
                    columns[(expert * ALONG + place) * rows + block * rank + r] = value;
                };
                for (client, (_, bytes)) in slices.iter().take(own).enumerate() {
                    dtype.decode(bytes, &mut values);
                    for (element, (value, mean)) in values.iter().zip(&means).enumerate() {
                        put(client, element, f64::from(*value) - mean);
                    }
                }
                means.iter().enumerate().for_each(|(element, mean)| put(own, element, *mean));
            }
            for expert in 0..experts {
                let begin = expert * ALONG * rows;
                gram.add(expert, &columns[begin..begin + count * rows]);
            }
        }
        Ok(gram)
    }

    /// Adds the products of all pairs of an expert's rows; of what is twice in the matrix only the lower tiles.
    fn add(&mut self, expert: usize, columns: &[f64]) {
        let rows = self.rows;
        for i in (0..rows).step_by(TILE) {
            for j in (0..=i).step_by(TILE) {
                let mut sums = [[0.0; TILE]; TILE];
                for column in columns.chunks_exact(rows) {
                    let (own, others) = (&column[i..i + TILE], &column[j..j + TILE]);
                    for (sums, own) in sums.iter_mut().zip(own) {
                        for (sum, other) in sums.iter_mut().zip(others) {
                            *sum += own * other;
                        }
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    let place = (expert * rows + i + row) * rows + j;
                    for (value, sum) in self.values[place..place + TILE].iter_mut().zip(sums) {
                        *value += sum;
                    }
                }
            }
        }
    }

    fn at(&self, expert: usize, i: usize, j: usize) -> f64 {
        self.values[(expert * self.rows + i.max(j)) * self.rows + i.min(j)]
    }
}

/// The squares of every expert, from the Gram matrices of both factors and the weights of the clients whose parts are in them.
pub(super) fn squares(
    down: &GramMatrices,
    up: &GramMatrices,
    weights: &[f64],
    total: f64,
) -> Vec<SquaredNorms> {
    (0..down.experts.min(up.experts)).map(|expert| of_one(expert, down, up, weights, total)).collect()
}

fn of_one(
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
                sum += up.at(expert, i, j) * down.at(expert, i, j);
            }
        }
        sum
    };
    let mean = weights.len();
    let (mut difference, mut crossed) = (0.0, 0.0);
    for (i, weight) in weights.iter().enumerate() {
        let weight = weight / total;
        for (j, other) in weights.iter().enumerate().take(i + 1) {
            let twice = if i == j { 1.0 } else { 2.0 };
            difference += twice * weight * (other / total) * inner(i, j);
        }
        crossed += weight * inner(i, mean);
    }
    // Sums of rounded numbers may end below what they are sums of.
    let difference = f64::max(difference, 0.0);
    let product = f64::max(difference + 2.0 * crossed + inner(mean, mean), 0.0);
    SquaredNorms { product, difference }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{FactorSet, GramMatrices, squares};
    use crate::files::{Dtype, Role};
    use fedspan_engine::random::{Purpose, stream};

    /// Non-square factors, unequal weights, one expert or several: the same as from dense products.
    #[test]
    fn grams_say_what_dense_products_say() {
        for (seed, (n, rank, experts, d_in, d_out)) in [
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
            let weights: Vec<f64> = (0..n).map(|client| f64::from(client % 3 + 1)).collect();
            let total: f64 = weights.iter().sum();
            #[allow(clippy::cast_possible_truncation, reason = "numbers as any")]
            let mut draw = |count: usize| -> Vec<Vec<f32>> {
                (0..n).map(|_| (0..count).map(|_| random.normal() as f32).collect()).collect()
            };
            let width = rank * experts;
            let (down, up) = (draw(width * d_in), draw(d_out * width));
            let bytes = |all: &[Vec<f32>]| -> Vec<Vec<u8>> {
                all.iter().map(|one| one.iter().flat_map(|value| value.to_le_bytes()).collect()).collect()
            };
            let gram = |role: Role, all: &[Vec<f32>]| {
                let all = bytes(all);
                let clients: Vec<(f64, &[u8])> =
                    weights.iter().copied().zip(all.iter().map(Vec::as_slice)).collect();
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
            let found = squares(&gram(Role::Down, &down), &gram(Role::Up, &up), &weights, total);
            assert_eq!(found.len(), experts);

            let average = |all: &[Vec<f32>]| -> Vec<f64> {
                let sum = |place: usize| -> f64 {
                    all.iter().zip(&weights).map(|(one, weight)| weight * f64::from(one[place])).sum()
                };
                (0..all[0].len()).map(|place| sum(place) / total).collect()
            };
            let wide = |one: &[f32]| one.iter().copied().map(f64::from).collect::<Vec<f64>>();
            for (expert, found) in found.into_iter().enumerate() {
                // Rows e r + j of A, and columns j E + e of B.
                let product = |up: &[f64], down: &[f64]| -> Vec<f64> {
                    let term = |row: usize, column: usize, j: usize| {
                        up[row * width + j * experts + expert] * down[(expert * rank + j) * d_in + column]
                    };
                    let at =
                        |row: usize, column: usize| -> f64 { (0..rank).map(|j| term(row, column, j)).sum() };
                    (0..d_out * d_in).map(|place| at(place / d_in, place % d_in)).collect()
                };
                let mut dense = vec![0.0; d_out * d_in];
                for ((up, down), weight) in up.iter().zip(&down).zip(&weights) {
                    let one = product(&wide(up), &wide(down));
                    dense.iter_mut().zip(one).for_each(|(sum, value)| *sum += weight / total * value);
                }
                let plain = product(&average(&up), &average(&down));
                let square: f64 = dense.iter().map(|value| value * value).sum();
                let lost: f64 = dense.iter().zip(&plain).map(|(one, other)| (one - other).powi(2)).sum();
                assert!((found.product / square - 1.0).abs() < 1e-12, "{found:?} {square}");
                assert!((found.difference - lost).abs() <= 1e-12 * square, "{found:?} {lost}");
                assert!((found.ratio() - (lost / square).sqrt()).abs() < 1e-12, "{found:?}");
            }
        }
    }
}
