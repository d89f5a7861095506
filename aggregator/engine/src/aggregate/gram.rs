//! Gram matrix of projectors: the inner products of all pairs, `<P_i, P_j> = |U_i^T U_j|^2`, computed from k
//! x k products of their bases.

use crate::linalg::Matrix;

/// Number of devices whose products with one device are summed in parallel, since a single sum is limited by
/// the latency of its additions.
const LANES: usize = 4;
/// Number of columns whose products are summed in parallel.
const COLUMNS: usize = 4;

/// Symmetric matrix. Only the lower half, with the diagonal, is stored, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    size: usize,
    values: Vec<f64>,
}

impl Gram {
    /// Gram matrix of the projectors of d x k bases. Elements of `U_i^T U_j` are summed in the order of rows,
    /// and their squares column by column, so the result does not depend on the number of sums computed in
    /// parallel.
    #[must_use]
    pub fn new(bases: &[(f64, Matrix)]) -> Self {
        let size = bases.len();
        let (d, k) = bases.first().map_or((0, 0), |(_, basis)| basis.shape());
        let mut gram = Self { size, values: vec![0.0; size * (size + 1) / 2] };
        if d == 0 {
            return gram;
        }
        let nothing = vec![0.0; d];
        let mut lanes = vec![[0.0; LANES]; d * k];
        for (group, several) in bases.chunks(LANES).enumerate() {
            for (lane, (_, basis)) in several.iter().enumerate() {
                for (place, value) in lanes.iter_mut().zip(basis.iter()) {
                    place[lane] = *value;
                }
            }
            let first = group * LANES;
            for (i, (_, basis)) in bases.iter().enumerate().skip(first) {
                let mut squares = [0.0; LANES];
                for others in lanes.chunks(d) {
                    for own in basis.as_slice().chunks(COLUMNS * d) {
                        // The last group is padded with columns of zeros, which add nothing.
                        let mut columns: [&[f64]; COLUMNS] = [&nothing; COLUMNS];
                        for (place, column) in columns.iter_mut().zip(own.chunks(d)) {
                            *place = column;
                        }
                        for products in products(columns, others) {
                            for (square, product) in squares.iter_mut().zip(products) {
                                *square += product * product;
                            }
                        }
                    }
                }
                // Only the lower half of the matrix is stored.
                let row = &mut gram.values[i * (i + 1) / 2..][..=i];
                for (place, square) in row.iter_mut().skip(first).zip(squares) {
                    *place = square;
                }
            }
        }
        gram
    }

    /// Number of rows.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Element of row `i` and column `j`.
    #[must_use]
    pub fn at(&self, i: usize, j: usize) -> f64 {
        let (row, column) = (i.max(j), i.min(j));
        self.values[row * (row + 1) / 2 + column]
    }

    /// Product with a vector. Every element is summed in the order of the vector.
    #[must_use]
    pub fn times(&self, vector: &[f64]) -> Vec<f64> {
        let mut product = vec![0.0; self.size];
        let mut rest = &self.values[..];
        for i in 0..self.size {
            let (row, tail) = rest.split_at(i + 1);
            rest = tail;
            // An element above the diagonal is added when its mirror image in a later row is read, and so
            // after all elements before it in its row.
            let (done, own) = product.split_at_mut(i);
            let mut sum = 0.0;
            for ((value, factor), above) in row.iter().zip(vector).zip(done) {
                sum += value * factor;
                *above += value * vector[i];
            }
            own[0] = sum + row[i] * vector[i];
        }
        product
    }
}

/// Inner products of [`COLUMNS`] columns of one basis with one column of each of [`LANES`] other bases. The
/// columns of the other bases are interleaved.
fn products(columns: [&[f64]; COLUMNS], others: &[[f64; LANES]]) -> [[f64; LANES]; COLUMNS] {
    let mut sums = [[0.0; LANES]; COLUMNS];
    let [a, b, c, d] = columns;
    for ((((others, a), b), c), d) in others.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, own) in sums.iter_mut().zip([a, b, c, d]) {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum += own * other;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::Gram;
    use crate::linalg::{Matrix, product_transposed, random_basis};
    use crate::random::{Purpose, stream};

    /// The Gram matrix has the same bits as products computed pair by pair.
    #[test]
    fn gram_equals_pairwise_products_bit_for_bit() {
        for (n, d, k) in [(1, 1, 1), (3, 7, 2), (9, 20, 3), (13, 64, 4), (8, 30, 5), (6, 33, 9)] {
            let random = &mut stream(1, Purpose::Start, (n * d * k) as u64);
            let bases: Vec<(f64, Matrix)> = (0..n).map(|_| (1.0, random_basis(d, k, random))).collect();
            let gram = Gram::new(&bases);
            let pair = |i: usize, j: usize| {
                let product = product_transposed(&bases[i.max(j)].1, &bases[i.min(j)].1);
                product.iter().fold(0.0, |sum, value| sum + value * value)
            };
            let vector: Vec<f64> = (0..n).map(|_| random.normal()).collect();
            let times = gram.times(&vector);
            assert_eq!((gram.size(), times.len()), (n, n));
            for (i, found) in times.iter().enumerate() {
                let row: Vec<f64> = (0..n).map(|j| pair(i, j)).collect();
                for (j, expected) in row.iter().enumerate() {
                    assert_eq!(gram.at(i, j).to_bits(), expected.to_bits(), "({n}, {d}, {k}) at {i}, {j}");
                }
                let sum = row.iter().zip(&vector).fold(0.0, |sum, (value, factor)| sum + value * factor);
                assert_eq!(found.to_bits(), sum.to_bits(), "({n}, {d}, {k}) row {i}");
            }
        }
        assert!(Gram::new(&[]).times(&[]).is_empty());
    }
}
