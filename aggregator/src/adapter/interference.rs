//! What plain averaging would have lost: `|mean(B_i A_i) - mean(B) mean(A)|`, without forming a product.
//!
//! The difference is `mean((B_i - B) (A_i - A))`, B and A being the means, and the inner product of two products is that of
//! two r x r matrices: `<B_i A_i, B_j A_j> = <B_i^T B_j, A_i A_j^T>`. So the Gram matrices of all clients' centred factors and
//! of the means are enough.

use super::sum::{Exact, mean};
use super::{Kind, Role};

/// Rows of a Gram matrix at most, which is (clients + 1) r: 128 MiB.
pub(super) const ROWS_MAX: usize = 4096;

/// Places along d that are taken together.
const ALONG: usize = 64;

/// Rows and columns of a tile whose sums stay in registers; the order of a sum's terms does not depend on it.
const TILE: usize = 4;

/// `mean(B_i A_i)` and how far from it `mean(B) mean(A)` is, as squared Frobenius norms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Squares {
    pub(super) product: f64,
    pub(super) difference: f64,
}

impl Squares {
    /// The interference: the norm of the difference over that of the mean of products; 0 if there is none, also of nothing.
    pub(super) fn ratio(self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.product).sqrt() }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { product: self.product + other.product, difference: self.difference + other.difference }
    }
}

/// One factor of every client, as bytes, with its shape along r.
pub(super) struct Factors<'a> {
    pub(super) kind: Kind,
    pub(super) role: Role,
    pub(super) rank: usize,
    /// Weights and numbers.
    pub(super) clients: &'a [(f64, &'a [u8])],
    pub(super) total: f64,
    /// Whether clients' own parts are wanted; without them the matrix is that of the mean.
    pub(super) centred: bool,
}

/// The Gram matrix of a factor's parts along r: first those of every client less the mean, then those of the mean.
#[derive(Debug)]
pub(super) struct Gram {
    rank: usize,
    /// With what it takes to fill the last tile.
    rows: usize,
    values: Vec<f64>,
}

impl Gram {
    /// Of factors; or the first client and element that is not finite.
    pub(super) fn of(factors: &Factors<'_>) -> Result<Self, (usize, usize)> {
        let Factors { kind, role, rank, clients, total, centred } = factors;
        let (rank, size) = (*rank, kind.size());
        let elements = clients.first().map_or(0, |(_, bytes)| bytes.len() / size);
        let along = elements / rank.max(1);
        let own = if *centred { clients.len() } else { 0 };
        let rows = ((own + 1) * rank).next_multiple_of(TILE);
        let mut gram = Self { rank, rows, values: vec![0.0; rows * rows] };
        let mut columns = vec![0.0; ALONG * rows];
        let (mut values, mut means, mut exact) = (Vec::new(), Vec::new(), Exact::default());
        for first in (0..along).step_by(ALONG) {
            let count = ALONG.min(along - first);
            // A down factor's parts are rows, an up factor's are columns.
            let (parts, length) = if *role == Role::Down { (rank, count) } else { (1, rank * count) };
            for part in 0..parts {
                let from = if *role == Role::Down { part * along + first } else { first * rank };
                let slices: Vec<(f64, &[u8])> = clients
                    .iter()
                    .map(|(weight, bytes)| (*weight, &bytes[from * size..(from + length) * size]))
                    .collect();
                means.resize(length, 0.0);
                values.resize(length, 0.0);
                mean(&slices, *kind, *total, &mut means, &mut exact)
                    .map_err(|(client, element)| (client, from + element))?;
                let mut put = |block: usize, element: usize, value: f64| {
                    let (place, r) = match *role {
                        Role::Down => (element, part),
                        _ => (element / rank, element % rank),
                    };
                    columns[place * rows + block * rank + r] = value;
                };
                for (client, (_, bytes)) in slices.iter().take(own).enumerate() {
                    kind.decode(bytes, &mut values);
                    for (element, (value, mean)) in values.iter().zip(&means).enumerate() {
                        put(client, element, f64::from(*value) - mean);
                    }
                }
                means.iter().enumerate().for_each(|(element, mean)| put(own, element, *mean));
            }
            gram.add(&columns[..count * rows]);
        }
        Ok(gram)
    }

    /// Adds the products of all pairs of rows; of what is twice in the matrix only the lower tiles.
    fn add(&mut self, columns: &[f64]) {
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
                    let place = (i + row) * rows + j;
                    for (value, sum) in self.values[place..place + TILE].iter_mut().zip(sums) {
                        *value += sum;
                    }
                }
            }
        }
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i.max(j) * self.rows + i.min(j)]
    }
}

/// From the Gram matrices of both factors, and the weights of the clients whose parts are in them.
pub(super) fn squares(down: &Gram, up: &Gram, weights: &[f64], total: f64) -> Squares {
    let rank = down.rank.min(up.rank);
    let inner = |i: usize, j: usize| {
        let mut sum = 0.0;
        for a in 0..rank {
            for b in 0..rank {
                sum += up.at(i * rank + a, j * rank + b) * down.at(i * rank + a, j * rank + b);
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
    Squares { product, difference }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Factors, Gram, squares};
    use crate::adapter::{Kind, Role};
    use crate::random::{Purpose, stream};

    /// Non-square factors, unequal weights: the same as from dense products.
    #[test]
    fn grams_say_what_dense_products_say() {
        for (seed, (n, rank, d_in, d_out)) in
            [(1, 1, 3, 2), (2, 1, 70, 5), (5, 3, 130, 64), (9, 4, 33, 201), (20, 8, 65, 40)]
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
            let (down, up) = (draw(rank * d_in), draw(d_out * rank));
            let bytes = |all: &[Vec<f32>]| -> Vec<Vec<u8>> {
                all.iter().map(|one| one.iter().flat_map(|value| value.to_le_bytes()).collect()).collect()
            };
            let gram = |role: Role, all: &[Vec<f32>]| {
                let all = bytes(all);
                let clients: Vec<(f64, &[u8])> =
                    weights.iter().copied().zip(all.iter().map(Vec::as_slice)).collect();
                Gram::of(&Factors { kind: Kind::F32, role, rank, clients: &clients, total, centred: true })
                    .unwrap()
            };
            let found = squares(&gram(Role::Down, &down), &gram(Role::Up, &up), &weights, total);

            let average = |all: &[Vec<f32>]| -> Vec<f64> {
                let sum = |place: usize| -> f64 {
                    all.iter().zip(&weights).map(|(one, weight)| weight * f64::from(one[place])).sum()
                };
                (0..all[0].len()).map(|place| sum(place) / total).collect()
            };
            let wide = |one: &[f32]| one.iter().copied().map(f64::from).collect::<Vec<f64>>();
            let product = |up: &[f64], down: &[f64]| -> Vec<f64> {
                let at = |row: usize, column: usize| -> f64 {
                    (0..rank).map(|r| up[row * rank + r] * down[r * d_in + column]).sum()
                };
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
