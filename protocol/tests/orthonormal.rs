//! Tests of the QR factorisation against one in f64: it computes the same Q, R is upper triangular with a
//! positive diagonal, and Q is orthonormal up to rounding. Matrices without a Q are rejected.

use crate::common::{Random, golden::encode_values};
use fedspan_protocol::Error;
use fedspan_protocol::orthonormal::{orthonormalise, orthonormality_error};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

/// Converts values to f64.
fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Returns `A^T B`, both row-major with `cols` columns.
fn gram_matrix(a: &[f64], b: &[f64], cols: usize) -> Vec<f64> {
    let mut gram = vec![0.0; cols * cols];
    for (p, q) in a.chunks(cols).zip(b.chunks(cols)) {
        for i in 0..cols {
            for j in 0..cols {
                gram[i * cols + j] += p[i] * q[j];
            }
        }
    }
    gram
}

/// Computes the Q of `A = QR` with a positive diagonal of R by another method: `R^T R = A^T A` (Cholesky) and
/// `Q = A R^-1`. A second pass over the result removes rounding errors.
fn q_oracle(a: &[f32], cols: usize) -> Vec<f64> {
    let mut q = to_f64(a);
    for _ in 0..2 {
        let mut r = gram_matrix(&q, &q, cols);
        for i in 0..cols {
            for j in i..cols {
                let inner: f64 = (0..i).map(|p| r[p * cols + i] * r[p * cols + j]).sum();
                let remainder = r[i * cols + j] - inner;
                r[i * cols + j] = if i == j { remainder.sqrt() } else { remainder / r[i * cols + i] };
            }
        }
        for row in q.chunks_mut(cols) {
            for j in 0..cols {
                let inner: f64 = (0..j).map(|p| row[p] * r[p * cols + j]).sum();
                row[j] = (row[j] - inner) / r[j * cols + j];
            }
        }
    }
    q
}

/// Strategy for realistic sizes (rows, columns) and a seed.
fn any_shape() -> impl Strategy<Value = (usize, usize, u64)> {
    (1..=8usize).prop_flat_map(|cols| (cols..=100, Just(cols), any::<u64>()))
}

proptest! {
    #[test]
    fn q_equals_the_oracle((rows, cols, seed) in any_shape(), exponent in -30..30i32) {
        // A multiple of the identity in the top rows keeps the condition number low, so that only rounding
        // matters.
        let mut a = Random(seed).matrix(rows, cols);
        (0..cols).for_each(|i| a[i * cols + i] += 2.0 + (rows as f32).sqrt());
        a.iter_mut().for_each(|v| *v *= 2.0f32.powi(exponent));
        let mut q = a.clone();
        orthonormalise(&mut q, cols).unwrap();
        for (computed, expected) in q.iter().zip(q_oracle(&a, cols)) {
            prop_assert!((f64::from(*computed) - expected).abs() < 1e-5, "{computed} {expected}");
        }
    }

    #[test]
    fn q_is_orthonormal_and_r_has_a_positive_diagonal((rows, cols, seed) in any_shape()) {
        let a = Random(seed).matrix(rows, cols);
        let mut q = a.clone();
        // A random square matrix may be singular. If it is accepted, the properties must hold.
        if orthonormalise(&mut q, cols).is_ok() {
            prop_assert!(orthonormality_error(&q, cols) < 1e-5);
            let r = gram_matrix(&to_f64(&q), &to_f64(&a), cols);
            let norm = to_f64(&a).iter().map(|v| v * v).sum::<f64>().sqrt();
            for i in 0..cols {
                prop_assert!(r[i * cols + i] > 0.0);
                for j in 0..i {
                    prop_assert!(r[i * cols + j].abs() < 1e-5 * norm);
                }
            }
        }
    }

    /// Tests that an ill-conditioned matrix is rejected or its Q is orthonormal: two passes are enough.
    #[test]
    fn near_dependent_columns_are_rejected_or_orthonormal(
        (rows, cols, seed) in any_shape(),
        noise in -8..0i32,
    ) {
        let mut random = Random(seed);
        let mut a = random.matrix(rows, cols);
        for row in a.chunks_mut(cols) {
            for j in 1..cols {
                row[j] = row[0] + 10.0f32.powi(noise) * row[j];
            }
        }
        if orthonormalise(&mut a, cols).is_ok() {
            prop_assert!(orthonormality_error(&a, cols) < 1e-5, "{}", orthonormality_error(&a, cols));
        }
    }

    #[test]
    fn orthonormality_error_matches_its_definition((rows, cols, seed) in any_shape()) {
        let a = Random(seed).matrix(rows, cols);
        let expected = gram_matrix(&to_f64(&a), &to_f64(&a), cols)
            .iter()
            .enumerate()
            .map(|(position, v)| (v - if position / cols == position % cols { 1.0 } else { 0.0 }).abs())
            .fold(0.0, f64::max);
        let computed = f64::from(orthonormality_error(&a, cols));
        prop_assert!((computed - expected).abs() <= 1e-5 * (1.0 + expected));
    }

    #[test]
    fn non_finite_values_are_detected(
        (rows, cols, seed) in any_shape(),
        any_index in any::<prop::sample::Index>(),
        non_finite in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut a = Random(seed).matrix(rows, cols);
        let index = any_index.index(a.len());
        a[index] = non_finite;
        prop_assert!(!orthonormality_error(&a, cols).is_finite());
        let refused = matches!(orthonormalise(&mut a, cols), Err(Error::RankDeficient { .. }));
        prop_assert!(refused);
    }

    /// Tests that a server's representation passes the receiver's check in each encoding, and that a
    /// representation in i8 is orthonormal after the QR factorisation and close to the sent values.
    #[test]
    fn encoded_representations_pass_the_tolerance((rows, cols, seed) in any_shape(), spike in 0..3u8) {
        let mut b = Random(seed).matrix(rows, cols);
        if spike == 0 {
            (0..cols).for_each(|i| b[i * cols + i] += 20.0);
        }
        prop_assume!(orthonormalise(&mut b, cols).is_ok());
        for encoding in [Encoding::F32, Encoding::F16, Encoding::I8] {
            let mut decoded = vec![0.0; b.len()];
            encoding.decode(&encode_values(encoding, &b), &mut decoded).unwrap();
            let error = orthonormality_error(&decoded, cols);
            prop_assert!(error <= encoding.orthonormality_tolerance(), "{encoding:?}: {error}");
            orthonormalise(&mut decoded, cols).unwrap();
            prop_assert!(orthonormality_error(&decoded, cols) < 1e-5);
            prop_assert!(b.iter().zip(&decoded).all(|(p, q)| (p - q).abs() < 2e-2));
        }
    }
}

#[test]
fn dependent_columns_are_reported_by_number() {
    for (rows, cols) in [(2, 2), (20, 2), (57, 8), (784, 64), (4096, 16)] {
        for dependent in 1..cols {
            let mut random = Random(rows as u64);
            let mut a = random.matrix(rows, cols);
            let weights = random.matrix(1, dependent);
            for row in a.chunks_mut(cols) {
                row[dependent] = (0..dependent).map(|j| weights[j] * row[j]).sum();
            }
            let refused = orthonormalise(&mut a, cols);
            assert_eq!(refused, Err(Error::RankDeficient { column: dependent }), "{rows} x {cols}");
        }
    }
}

#[test]
fn equal_and_zero_columns_are_rejected() {
    for (rows, cols) in [(3, 3), (20, 2), (784, 8)] {
        for column in 0..cols {
            let mut zero = Random(1).matrix(rows, cols);
            zero.chunks_mut(cols).for_each(|row| row[column] = 0.0);
            let refused = orthonormalise(&mut zero, cols);
            assert_eq!(refused, Err(Error::RankDeficient { column }));
        }
        let mut equal = Random(2).matrix(rows, cols);
        equal.chunks_mut(cols).for_each(|row| row[cols - 1] = row[0]);
        assert_eq!(orthonormalise(&mut equal, cols), Err(Error::RankDeficient { column: cols - 1 }));
    }
}

/// Tests that matrices with more columns than rows, whose columns are linearly dependent, are rejected.
#[test]
fn wide_matrices_are_rejected() {
    for seed in 0..200 {
        for cols in 2..=8 {
            let mut a = Random(seed).matrix(cols - 1, cols);
            let refused = orthonormalise(&mut a, cols);
            assert!(matches!(refused, Err(Error::RankDeficient { .. })), "{seed} {cols}");
        }
    }
}

#[test]
fn columns_with_overflowing_squares_are_rejected() {
    for value in [1e-25f32, 1e25] {
        let refused = orthonormalise(&mut [value; 4], 1);
        assert_eq!(refused, Err(Error::RankDeficient { column: 0 }));
    }
}

#[test]
fn matrix_without_columns_is_orthonormal() {
    assert_eq!(orthonormality_error(&[], 0), 0.0);
    assert_eq!(orthonormalise(&mut [], 0), Ok(()));
    assert_eq!(orthonormalise(&mut [], 2), Err(Error::RankDeficient { column: 0 }));
}

/// The error is that of one dot product after the other, to the bit, for any number of columns and with values that are not
/// finite.
#[test]
fn error_has_the_bits_of_single_dot_products() {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / 8_388_608.0 - 1.0) * 0.4
    };
    for cols in 0..14 {
        for rows in [0, 1, 3, 17, 64] {
            for spoiled in [None, Some(f32::NAN), Some(f32::INFINITY), Some(1e30)] {
                let mut b: Vec<f32> = (0..rows * cols).map(|_| next()).collect();
                if let (Some(value), false) = (spoiled, b.is_empty()) {
                    let index = (next().abs() * 2.4 * b.len() as f32) as usize % b.len();
                    b[index] = value;
                }
                let mut expected = 0.0_f32;
                'pairs: for i in 0..cols {
                    for j in 0..=i {
                        let mut dot = 0.0_f32;
                        for row in b.chunks_exact(cols) {
                            dot += row[i] * row[j];
                        }
                        let error = (dot - f32::from(u8::from(i == j))).abs();
                        if error.is_nan() {
                            expected = error;
                            break 'pairs;
                        }
                        expected = expected.max(error);
                    }
                }
                let found = orthonormality_error(&b, cols);
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{rows} x {cols}, {spoiled:?}: {found} {expected}");
            }
        }
    }
}
