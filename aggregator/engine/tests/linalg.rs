//! Tests of the matrix operations: defining identities, matrices with known results, and errors.

use crate::common::{bits, distance, gaussian, random};
use fedspan_engine::linalg::{
    Matrix, from_f32, orthonormal, principal_angle_distance, product_transposed, random_basis, to_f32,
    top_eigenspace,
};
use proptest::prelude::*;

/// Largest deviation of `Q^T Q` from the identity.
fn identity_error(q: &Matrix) -> f64 {
    (q.transpose() * q - Matrix::identity(q.ncols(), q.ncols())).amax()
}

/// Random numbers of rows and columns (no more than rows), and a seed.
fn random_shape() -> impl Strategy<Value = (usize, usize, u64)> {
    (1usize..=6, 0usize..=20, any::<u64>()).prop_map(|(k, extra_rows, seed)| (k + extra_rows, k, seed))
}

/// Two random d x k bases (d >= 2k) whose principal angles have these sines.
fn bases_at(sines: &[f64], d: usize, seed: u64) -> (Matrix, Matrix) {
    let k = sines.len();
    let frame = random_basis(d, 2 * k, &mut random(seed));
    let first_basis = frame.columns(0, k).into_owned();
    let turned = Matrix::from_fn(d, k, |i, j| {
        (1.0 - sines[j] * sines[j]).sqrt() * frame[(i, j)] + sines[j] * frame[(i, k + j)]
    });
    (first_basis, turned)
}

/// Random k x k matrix with a moderate condition number.
fn random_invertible(k: usize, seed: u64) -> Matrix {
    let random = &mut random(seed ^ 0x5a5a);
    let (left, right) = (random_basis(k, k, random), random_basis(k, k, random));
    let scales = Matrix::from_fn(k, k, |i, j| if i == j { 0.2 + 3.0 * random.uniform() } else { 0.0 });
    left * scales * right.transpose()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn qr_keeps_span_with_positive_diagonal((d, k, seed) in random_shape()) {
        let b = gaussian(d, k, &mut random(seed));
        let q = orthonormal(&b).unwrap();
        prop_assert!(identity_error(&q) < 1e-13);
        let r = q.transpose() * &b;
        prop_assert!((&q * &r - &b).amax() < 1e-12 * b.amax());
        for i in 0..k {
            prop_assert!(r[(i, i)] > 0.0);
            for j in 0..i {
                prop_assert!(r[(i, j)].abs() < 1e-12 * b.norm());
            }
        }
    }

    #[test]
    fn qr_is_unique_under_column_scaling((d, k, seed) in random_shape(), signs in any::<u8>()) {
        let b = gaussian(d, k, &mut random(seed));
        let q = orthonormal(&b).unwrap();
        let mut turned = b.clone();
        for j in 0..k {
            if signs >> j & 1 == 1 {
                turned.column_mut(j).neg_mut();
            }
        }
        let turned_basis = orthonormal(&turned).unwrap();
        for j in 0..k {
            let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
            prop_assert!((q.column(j) - turned_basis.column(j) * sign).amax() < 1e-12);
        }
        prop_assert!(distance(&orthonormal(&(&b * 1e-7)).unwrap(), &q) < 1e-12);
        // Orthonormal input with a positive diagonal is returned unchanged.
        prop_assert!(distance(&orthonormal(&q).unwrap(), &q) < 1e-13);
        prop_assert_eq!(bits(&orthonormal(&b).unwrap()), bits(&q));
    }

    #[test]
    fn dependent_columns_are_refused((d, k, seed) in random_shape(), column in any::<prop::sample::Index>()) {
        prop_assume!(k >= 2);
        let mut b = gaussian(d, k, &mut random(seed));
        let j = 1 + column.index(k - 1);
        let sum = b.column(0) * 2.0 + b.column(j - 1) * 0.5;
        b.set_column(j, &sum);
        let error = orthonormal(&b).unwrap_err();
        prop_assert_eq!(error.column, j);
        prop_assert!(error.pivot.abs() <= 1e-12);
    }

    #[test]
    fn non_finite_matrix_is_refused(
        (d, k, seed) in random_shape(), index in any::<prop::sample::Index>(), kind in 0..3usize
    ) {
        let mut b = gaussian(d, k, &mut random(seed));
        let index = index.index(d * k);
        b[index] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][kind];
        prop_assert!(orthonormal(&b).is_err());
    }

    #[test]
    fn distance_is_symmetric_and_within_unit_interval((d, k, seed) in random_shape()) {
        let random = &mut random(seed);
        let (a, b) = (random_basis(d, k, random), random_basis(d, k, random));
        let (forward, backward) = (principal_angle_distance(&a, &b), principal_angle_distance(&b, &a));
        prop_assert!((forward - backward).abs() < 1e-12, "{forward} {backward}");
        prop_assert!((0.0..=1.0 + 1e-12).contains(&forward));
        prop_assert!(principal_angle_distance(&a, &a) < 1e-14);
    }

    #[test]
    fn distance_is_independent_of_basis(k in 1usize..=4, more in 0usize..10, seed in any::<u64>()) {
        let d = 2 * k + more;
        let sines: Vec<f64> = (0..k).map(|j| 0.9 / (j + 1) as f64).collect();
        let (a, b) = bases_at(&sines, d, seed);
        let (first_change, second_change) =
            (random_invertible(k, seed), random_invertible(k, seed.wrapping_add(1)));
        let a = orthonormal(&(&a * first_change)).unwrap();
        let b = orthonormal(&(&b * second_change)).unwrap();
        prop_assert!((principal_angle_distance(&a, &b) - 0.9).abs() < 1e-12);
        let respanned = orthonormal(&(&a * random_invertible(k, seed))).unwrap();
        prop_assert!(principal_angle_distance(&a, &respanned) < 1e-13);
    }

    #[test]
    fn distance_is_largest_sine_down_to_1e_minus_10(
        k in 1usize..=4, more in 0usize..10, seed in any::<u64>(), exponent in 0.0f64..10.0
    ) {
        let sine = 10f64.powf(-exponent);
        let sines: Vec<f64> = (0..k).map(|j| sine / (j + 1) as f64).collect();
        let (a, b) = bases_at(&sines, 2 * k + more, seed);
        let distance = principal_angle_distance(&a, &b);
        prop_assert!((distance - sine).abs() < 1e-12 * sine + 2e-15, "{distance:e} {sine:e}");
    }

    #[test]
    fn random_basis_is_orthonormal_and_seeded((d, k, seed) in random_shape()) {
        let q = random_basis(d, k, &mut random(seed));
        prop_assert!(identity_error(&q) < 1e-13);
        prop_assert_eq!(bits(&q), bits(&random_basis(d, k, &mut random(seed))));
        // In one dimension only two bases exist, so they may coincide.
        prop_assert!(d == 1 || bits(&q) != bits(&random_basis(d, k, &mut random(seed.wrapping_add(1)))));
    }

    #[test]
    fn top_eigenspace_matches_constructed_spectrum((d, k, seed) in random_shape(), shift in -50.0f64..50.0) {
        let vectors = random_basis(d, d, &mut random(seed));
        // Distinct eigenvalues in a scrambled order, some of them negative.
        let eigenvalue = |j: usize| ((j * 7 + 3) % d) as f64 * 0.5 + (j % 7) as f64 * 1e-3 + shift;
        let spectrum = Matrix::from_fn(d, d, |i, j| if i == j { eigenvalue(j) } else { 0.0 });
        let product = &vectors * spectrum * vectors.transpose();
        let symmetric = (&product + product.transpose()) * 0.5;
        let mut order: Vec<usize> = (0..d).collect();
        order.sort_by(|&a, &b| eigenvalue(b).total_cmp(&eigenvalue(a)));
        let has_gap = k == d || eigenvalue(order[k - 1]) - eigenvalue(order[k]) > 0.1;
        prop_assume!(has_gap);
        let eigenspace = top_eigenspace(&symmetric, k);
        prop_assert!(identity_error(&eigenspace) < 1e-12);
        let columns: Vec<_> = order.iter().take(k).map(|&j| vectors.column(j).into_owned()).collect();
        prop_assert!(principal_angle_distance(&Matrix::from_columns(&columns), &eigenspace) < 1e-10);
        // The columns are in descending order of eigenvalues.
        let quotients: Vec<f64> =
            (0..k)
                .map(|j| (eigenspace.column(j).transpose() * &symmetric * eigenspace.column(j))[(0, 0)])
                .collect();
        prop_assert!(quotients.windows(2).all(|pair| pair[0] >= pair[1] - 1e-9));
    }

    #[test]
    fn products_and_conversions_match_nalgebra((d, k, seed) in random_shape()) {
        let random = &mut random(seed);
        let (a, b) = (gaussian(d, k, random), gaussian(d, k, random));
        prop_assert!((product_transposed(&a, &b) - a.transpose() * &b).amax() < 1e-12);
        let narrow = to_f32(&a);
        prop_assert_eq!(narrow[k.min(d * k - 1)], a[(k.min(d * k - 1) / k, k.min(d * k - 1) % k)] as f32);
        prop_assert_eq!(to_f32(&from_f32(d, k, &narrow)), narrow);
    }
}

#[test]
fn zero_matrix_has_no_basis() {
    assert_eq!(orthonormal(&Matrix::zeros(4, 2)).unwrap_err().column, 0);
}

#[test]
fn orthogonal_spans_have_distance_one() {
    let identity = Matrix::identity(6, 6);
    let (a, b) = (identity.columns(0, 2).into_owned(), identity.columns(3, 2).into_owned());
    assert_eq!(principal_angle_distance(&a, &b), 1.0);
}

/// The eigensolver iterates until convergence, so it must not receive values for which it never converges.
#[test]
fn non_finite_values_do_not_hang() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let identity = Matrix::identity(4, 2);
        let mut with_nan = identity.clone();
        with_nan[(1, 1)] = f64::NAN;
        let distances =
            [principal_angle_distance(&identity, &with_nan), principal_angle_distance(&with_nan, &identity)];
        let mut symmetric = Matrix::identity(3, 3);
        symmetric[(2, 1)] = f64::INFINITY;
        symmetric[(1, 2)] = f64::INFINITY;
        let _ = sender.send((distances, top_eigenspace(&symmetric, 2)));
    });
    let (distances, space) =
        receiver.recv_timeout(std::time::Duration::from_secs(20)).expect("no answer within 20 s");
    assert!(distances.iter().all(|d| d.is_nan()), "{distances:?}");
    assert!(orthonormal(&space).is_err());
}

/// The result is bit-identical to one sum per element in the order of rows, although several sums are
/// computed in parallel.
#[test]
fn product_is_summed_row_by_row_for_any_shape() {
    let mut random = random(4);
    for (rows, left_columns, right_columns) in
        [(0, 3, 2), (1, 1, 1), (5, 0, 2), (7, 8, 3), (40, 7, 9), (33, 17, 2), (100, 64, 64)]
    {
        let mut random_matrix = |columns| Matrix::from_fn(rows, columns, |_, _| random.normal());
        let (a, b) = (random_matrix(left_columns), random_matrix(right_columns));
        let expected = Matrix::from_fn(left_columns, right_columns, |i, j| {
            a.column(i).iter().zip(b.column(j).iter()).fold(0.0, |sum, (x, y)| sum + x * y)
        });
        assert_eq!(product_transposed(&a, &b), expected, "{rows} x {left_columns}, {rows} x {right_columns}");
    }
}

#[test]
fn empty_basis_is_orthonormal() {
    for (rows, columns) in [(5, 0), (0, 0)] {
        assert_eq!(orthonormal(&Matrix::zeros(rows, columns)).unwrap().shape(), (rows, columns));
    }
}
