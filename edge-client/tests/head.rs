//! The head solve against an f64 singular value decomposition: at full rank, at any rank, and on input
//! that is out to break it.
//!
//! What "relative residual at most 1e-5 where the rank is full and the condition at most 1e4" means in
//! f32. Let `r = Z^T (Z W - Y)`, the residual of the normal equations, evaluated in f64.
//!
//! * For *any* `Y`: `|r| <= 1e-5 |Z| (|Z| |W| + |Y|)`. This is the normwise measure: it says that `W` solves
//!   the normal equations of data that differ by 1e-5 at most. `|r| / |Z^T Y|` cannot be bounded for any
//!   `Y`: the part of `Y` that is orthogonal to `Z` makes `|Z^T Y|` as small as one likes, and merely
//!   rounding the exact `W` to f32 leaves `|r|` near `eps |Z|^2 |W|`.
//! * For *consistent* `Y = Z W0` with a `W0` that does not hide in the small singular directions
//!   (`|Z^T Y| >= |Z|^2 |W0| / 8`), in addition `|r| <= 1e-5 |Z^T Y|`. (For `W0` along the smallest direction
//!   `|Z^T Y|` is smaller by the condition squared, and rounding `W` alone breaks any such bound.)
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::*;
use fedspan_client::kernel::least_squares::{add_normal, gradient_steps, rotate_in, solve_normal};
use fedspan_client::kernel::rank::{RANK_CUT, minimum_norm as cut_solve};
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Recording, Workspace};
use fedspan_protocol::message::{DeclineReason, HeadSolve};
use proptest::prelude::*;

/// The limit beyond which a sample is skipped, as the task's documentation states it.
const MAGNITUDE_MAX: f32 = 1.1e12;

/// The head of `[Z | Y]` by the triangular kernels; also the rank.
fn by_rotations(z: &[f32], y: &[f32], k: usize, c: usize) -> (Vec<f32>, usize) {
    let (mut r, mut q) = (vec![0.0; k * k], vec![0.0; k * c]);
    for (z, y) in z.chunks(k).zip(y.chunks(c)) {
        rotate_in(&mut r, &mut q, &mut z.to_vec(), &mut y.to_vec());
    }
    let rank = cut_solve(&mut r, &mut q, &mut vec![0; k], &mut vec![0.0; k]);
    (q, rank)
}

/// The head by the normal equations, if their pivots can be trusted.
fn by_normal_equations(z: &[f32], y: &[f32], k: usize, c: usize) -> Option<Vec<f32>> {
    let (mut gram, mut rhs) = (vec![0.0; k * k], vec![0.0; k * c]);
    for (z, y) in z.chunks(k).zip(y.chunks(c)) {
        add_normal(&mut gram, &mut rhs, z, y);
    }
    solve_normal(&mut gram, &mut rhs, k, c).then_some(rhs)
}

/// The head by the whole client: `B` is the identity, so `Z` is `X` to the bit.
fn by_client(z: &[f32], y: &[f32], k: usize, c: usize, head: HeadSolve) -> Vec<f32> {
    let mut model = Linear::new(Heap::new(k, k, c));
    model.set_representation(&identity(k)).unwrap();
    model.fit_head(head, &mut Recording::regression(z, y, k, c)).unwrap();
    head_of(&model)
}

fn by_stream(z: &[f32], y: &[f32], k: usize, c: usize, head: HeadSolve) -> Vec<f32> {
    let mut model = Linear::new(Heap::streaming(k, k, c));
    let task = fedspan_protocol::message::Task::FitHead { head };
    let samples = Sliced::regression(z.to_vec(), y.to_vec(), k, c);
    fed_rep_stream(&mut model, task, &identity(k), &samples).unwrap();
    head_of(&model)
}

fn head_of(model: &Linear<Heap>) -> Vec<f32> {
    use fedspan_client::Task;
    model.head().to_vec()
}

fn normwise(z: &M, y: &M, w: &M) -> f64 {
    let largest = norm2(z);
    let size = largest * (largest * w.norm() + y.norm());
    let residual = (z.transpose() * (z * w - y)).norm();
    if residual == 0.0 { 0.0 } else { residual / size }
}

/// Every way to the head that there is, by name.
fn every_way(z: &[f32], y: &[f32], k: usize, c: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut ways = vec![
        ("rotations", by_rotations(z, y, k, c).0),
        ("client", by_client(z, y, k, c, EXACT)),
        ("stream", by_stream(z, y, k, c, EXACT)),
    ];
    ways.extend(by_normal_equations(z, y, k, c).map(|w| ("normal equations", w)));
    ways
}

#[test]
fn full_rank_residuals_up_to_condition_1e4() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    let mut consistent_cases = 0;
    for case in 0..1500 {
        let k = 1 + case % 16;
        let m = k + random.below(65 - k);
        let c = 1 + random.below(7);
        let condition = 10f64.powf(4.0 * random.unit());
        let scale = 10f64.powf(6.0 * random.unit() - 3.0);
        let values: Vec<f64> = geometric(k, condition).iter().map(|s| s * scale).collect();
        let z = flat(&random.with_singular_values(m, &values));
        let z64 = matrix(m, k, &z);
        let w0 = random.gaussian(k, c);
        let consistent = flat(&(&z64 * &w0));
        let noisy = flat(&(&z64 * &w0 + random.gaussian(m, c) * (scale * random.unit())));
        for (what, y) in [("consistent", consistent), ("any", noisy)] {
            let y64 = matrix(m, c, &y);
            for (way, w) in every_way(&z, &y, k, c) {
                let w64 = matrix(k, c, &w);
                let residual = normwise(&z64, &y64, &w64);
                assert!(residual <= 1e-5, "{way}, {what}: {residual:e} at k={k} m={m} cond={condition:e}");
                worst.saw("normwise residual", residual);
                if what == "consistent" {
                    let zy = z64.transpose() * &y64;
                    if zy.norm() < norm2(&z64).powi(2) * w0.norm() / 8.0 {
                        continue;
                    }
                    consistent_cases += 1;
                    let relative = (z64.transpose() * (&z64 * &w64 - &y64)).norm() / zy.norm();
                    assert!(relative <= 1e-5, "{way}: {relative:e} of Z^T Y at k={k} m={m} c={c}");
                    worst.saw("residual over |Z^T Y|, consistent", relative);
                }
            }
        }
    }
    assert!(consistent_cases > 3000);
}

/// The least pivot of a Cholesky factor can be far above the least singular value (Kahan's matrix): the
/// pivots' ratio must still keep the normal equations honest.
#[test]
fn kahan_matrices_do_not_fool_the_pivots() {
    let mut worst = Worst::default();
    for k in 2..=16usize {
        for angle in [0.3f64, 0.6, 0.9, 1.2, 1.4] {
            let (s, c) = angle.sin_cos();
            let kahan = M::from_fn(k, k, |i, j| {
                let row = s.powi(i as i32);
                if i == j {
                    row
                } else if j > i {
                    -c * row
                } else {
                    0.0
                }
            });
            let z = flat(&kahan);
            let z64 = matrix(k, k, &z);
            let y = Random(k as u64).normals(k);
            let y64 = matrix(k, 1, &y);
            let condition = Svd::new(&z64).condition();
            for (way, w) in every_way(&z, &y, k, 1) {
                let residual = normwise(&z64, &y64, &matrix(k, 1, &w));
                let bound = if condition <= 1e4 { 1e-5 } else { 2e-5 * k as f64 };
                assert!(residual <= bound, "{way}: {residual:e} at k={k}, condition {condition:e}");
                worst.saw("Kahan, normwise residual", residual);
            }
        }
    }
}

/// Sums over many samples round too; the solve must not lose its promise to them.
#[test]
fn ten_thousand_samples() {
    let (m, k) = (10_000, 4);
    let mut random = Random(2);
    let mut worst = Worst::default();
    for offset in [0.0, 1.0, 5.0] {
        // An offset makes all products of one sign, the worst case of a running sum.
        let z: Vec<f32> = (0..m * k).map(|_| (random.normal() + offset) as f32).collect();
        let z64 = matrix(m, k, &z);
        let y = flat(&(&z64 * random.gaussian(k, 1) + random.gaussian(m, 1)));
        let y64 = matrix(m, 1, &y);
        for (way, w) in every_way(&z, &y, k, 1) {
            let residual = normwise(&z64, &y64, &matrix(k, 1, &w));
            assert!(residual <= 1e-5, "{way}: {residual:e} with offset {offset}");
            worst.saw("10 000 samples, normwise residual", residual);
        }
    }
}

/// At any condition the cut solves data that differ by the cut at most: `E` with `|E| <= cut |Z|` per
/// column, so the normwise residual is within `2 |E| / |Z|`, and the head within the largest that the
/// remaining pivots allow.
#[test]
fn any_condition_up_to_1e8_is_finite_and_solves_nearby_data() {
    let mut random = Random(3);
    let mut worst = Worst::default();
    for case in 0..1200 {
        let k = 1 + case % 16;
        let m = 1 + random.below(64);
        let c = 1 + random.below(3);
        let n = k.min(m);
        let mut values = geometric(n, 10f64.powf(8.0 * random.unit()));
        values.resize(k, 0.0);
        let z = if m >= k {
            flat(&random.with_singular_values(m, &values))
        } else {
            let tall = random.with_singular_values(k, &values[..m]);
            flat(&tall.transpose())
        };
        let (z64, y) = (matrix(m, k, &z), random.normals(m * c));
        let y64 = matrix(m, c, &y);
        for (way, w) in every_way(&z, &y, k, c) {
            assert!(w.iter().all(|v| v.is_finite()), "{way}");
            let w64 = matrix(k, c, &w);
            let residual = normwise(&z64, &y64, &w64);
            assert!(
                residual <= 2.0 * f64::from(RANK_CUT) * (k as f64).sqrt(),
                "{way}: {residual:e} k={k} m={m}"
            );
            worst.saw("any condition, normwise residual", residual);
            let length = w64.norm() * norm2(&z64) / y64.norm();
            assert!(length <= 1e6 * (k as f64).sqrt(), "{way}: head {length:e} times |Y|/|Z|");
            worst.saw("any condition, |W| |Z| / |Y|", length);
        }
    }
}

/// Rank without doubt: singular values are within a factor of 30 or exactly (to rounding) zero.
#[test]
fn deficient_rank_gives_the_minimum_norm_head() {
    let mut random = Random(4);
    let mut worst = Worst::default();
    for case in 0..1500 {
        let k = 2 + case % 15;
        let rank = 1 + random.below(k);
        let m = rank + random.below(40);
        let c = 1 + random.below(4);
        let scale = 10f64.powf(12.0 * random.unit() - 6.0);
        let values: Vec<f64> =
            geometric(rank, 1.0 + 29.0 * random.unit()).iter().map(|s| s * scale).collect();
        let base = random.with_singular_values(m, &values);
        let z = match case % 3 {
            // The last columns repeat the first, bit for bit.
            0 => M::from_fn(m, k, |i, j| base[(i, j % rank)]),
            // The first columns are zero.
            1 => M::from_fn(m, k, |i, j| if j < k - rank { 0.0 } else { base[(i, j + rank - k)] }),
            // The columns are combinations: rank deficient to rounding only.
            _ => &base * random.orthonormal(k, rank).transpose(),
        };
        let z = flat(&z);
        let (z64, y) = (matrix(m, k, &z), random.normals(m * c));
        let y64 = matrix(m, c, &y);
        let svd = Svd::new(&z64);
        let oracle = svd.minimum_norm(&y64, 1e-5 * svd.largest());
        let condition = 30.0 * (k as f64).sqrt();
        let misfit = (&z64 * &oracle - &y64).norm() / (norm2(&z64) * oracle.norm());
        let bound = 16.0 * EPS * k as f64 * (condition + condition * condition * misfit);
        for (way, w) in every_way(&z, &y, k, c) {
            let error = (matrix(k, c, &w) - &oracle).norm() / oracle.norm();
            assert!(error <= bound, "{way}: {error:e} over {bound:e}, k={k} rank={rank} m={m} case={case}");
            worst.saw("minimum norm, relative error", error);
            worst.saw("minimum norm, share of the bound", error / bound);
        }
        assert_eq!(by_rotations(&z, &y, k, c).1, rank.min(m));
    }
}

#[test]
fn no_samples_no_head() {
    for k in 1..=16 {
        let (w, rank) = by_rotations(&[], &[], k, 2);
        assert_eq!((w, rank), (vec![0.0; 2 * k], 0));
        let mut model = Linear::new(Heap::new(k, k, 2));
        model.set_representation(&identity(k)).unwrap();
        let nothing = &mut Recording::regression(&[], &[], k, 2);
        assert_eq!(model.fit_head(EXACT, nothing), Err(DeclineReason::NoSamples));
        assert!(head_of(&model).iter().all(|w| *w == 0.0));
    }
}

/// One case of `hostile`: values of a few kinds, so that columns repeat, vanish, underflow or overflow.
fn nasty(random: &mut Random) -> f32 {
    const POOL: [f32; 24] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        3.0,
        1e-3,
        1e3,
        1e-8,
        1e8,
        1e-12,
        1e12,
        -1e12,
        1e-17,
        1e-20,
        1e-30,
        -1e-30,
        1e-40,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    POOL[random.below(POOL.len())]
}

fn usable(values: &[f32]) -> bool {
    values.iter().all(|v| v.abs() <= MAGNITUDE_MAX)
}

/// The rank is without doubt if no singular value lies between what is certainly cut and what is
/// certainly kept. Nothing below 1e-18 counts: its square has no place in f32.
fn oracle_if_unambiguous(z: &M, y: &M) -> Option<(M, f64)> {
    let svd = Svd::new(z);
    let largest = svd.largest();
    if largest <= 1e-20 {
        return Some((M::zeros(z.ncols(), y.ncols()), 1.0));
    }
    let keep = (1e-3 * largest).max(1e-16);
    // What is cut must also be too small to matter: it would shift the head by its own relative size.
    if svd.s.iter().any(|&s| s > 2e-8 * largest && s < keep) || largest < keep {
        return None;
    }
    let least = svd.s.iter().copied().filter(|&s| s >= keep).fold(largest, f64::min);
    Some((svd.minimum_norm(y, keep / 2.0), largest / least))
}

/// A hundred thousand cases that are out to break it, by every way, against the oracle where that is fair.
#[test]
fn hostile_samples() {
    let mut random = Random(5);
    let mut worst = Worst::default();
    let mut compared = 0;
    let mut cases = 0;
    while cases < 120_000 {
        let (k, c) = (1 + random.below(6), 1 + random.below(2));
        let (mut model, mut stream) =
            (Linear::new(Heap::new(k, k, c)), Linear::new(Heap::streaming(k, k, c)));
        model.set_representation(&identity(k)).unwrap();
        for _ in 0..100 {
            cases += 1;
            let m = random.below(9);
            // Mostly ordinary with something nasty in it, or all of it nasty, or tiny throughout.
            let kind = random.below(4);
            let value = |random: &mut Random| match kind {
                0 => nasty(random),
                1 if random.below(8) == 0 => nasty(random),
                2 => (random.normal() * 1e-20) as f32,
                _ => (random.below(5) as f32 - 2.0) * 0.5,
            };
            let mut z: Vec<f32> = (0..m * k).map(|_| value(&mut random)).collect();
            let y: Vec<f32> = (0..m * c).map(|_| value(&mut random)).collect();
            if random.below(4) == 0 {
                // A whole column of one kind.
                let (column, filler) = (random.below(k), nasty(&mut random));
                z.iter_mut().skip(column).step_by(k).for_each(|v| *v = filler);
            }
            check_hostile(&mut model, &mut stream, (&z, &y), (k, c), &mut worst, &mut compared, cases);
        }
    }
    println!("{cases} cases, {compared} of them against the oracle");
    assert!(compared > 20_000);
}

fn check_hostile(
    model: &mut Linear<Heap>,
    stream: &mut Linear<Heap>,
    (z, y): (&[f32], &[f32]),
    (k, c): (usize, usize),
    worst: &mut Worst,
    compared: &mut u32,
    case: u32,
) {
    let total = z.len() / k;
    let kept: Vec<usize> =
        (0..total).filter(|&i| usable(&z[i * k..(i + 1) * k]) && usable(&y[i * c..(i + 1) * c])).collect();
    let m = kept.len();
    let expected = Usage { samples: m as u32, skipped: (total - m) as u32 };
    let result = model.fit_head(EXACT, &mut Recording::regression(z, y, k, c));
    assert_eq!(result, if m == 0 { Err(DeclineReason::NoSamples) } else { Ok(expected) });
    let task = fedspan_protocol::message::Task::FitHead { head: EXACT };
    let samples = Sliced::regression(z.to_vec(), y.to_vec(), k, c);
    let streamed = fed_rep_stream(stream, task, &identity(k), &samples);
    if m == 0 {
        assert_eq!(streamed, Err(DeclineReason::NoSamples));
        return;
    }
    assert_eq!(streamed.unwrap().0, expected);
    let z64 = M::from_fn(m, k, |i, j| f64::from(z[kept[i] * k + j]));
    let y64 = M::from_fn(m, c, |i, j| f64::from(y[kept[i] * c + j]));
    let size = if z64.amax() > 0.0 { z64.amax() } else { 1e-45 };
    for (way, w) in [("client", head_of(model)), ("stream", head_of(stream))] {
        assert!(w.iter().all(|v| v.is_finite()), "{way}, case {case}: {z:?} {y:?} gave {w:?}");
        let w64 = matrix(k, c, &w);
        if size < 1e-19 {
            assert!(
                w.iter().all(|v| *v == 0.0),
                "{way}, case {case}: features below 1e-18 are zero: {z:?} {w:?}"
            );
        }
        let residual = normwise(&(&z64 / size), &(&y64 / size), &w64);
        let small = 1e-17 / size * ((k * m) as f64);
        // A head below 1e-38 has few digits, and a product below 1e-45 none, whatever the solver.
        let data = (size * (size * w64.norm() + y64.norm())).max(1e-300);
        let underflow = 1e-44 * (size * size + 1.0) * (k * m) as f64 / data;
        let bound = 2.0 * f64::from(RANK_CUT) * (k as f64).sqrt() + small + underflow;
        assert!(residual <= bound, "{way}, case {case}: {residual:e} over {bound:e} for {z:?} {y:?} {w:?}");
        if small + underflow < 1e-6 {
            worst.saw("hostile, normwise residual", residual);
        }
    }
    // The oracle is slow; every other case is enough.
    if case.is_multiple_of(2)
        && let Some((oracle, condition)) = oracle_if_unambiguous(&z64, &y64)
    {
        *compared += 1;
        let length = oracle.norm();
        // Where nothing but rounding is left of Z^T Y, the head is nothing but rounding.
        let attainable = y64.norm() / norm2(&z64).max(1e-300);
        let misfit = (&z64 * &oracle - &y64).norm() / norm2(&z64).max(1e-300);
        for (way, w) in [("client", head_of(model)), ("stream", head_of(stream))] {
            let error = (matrix(k, c, &w) - &oracle).norm();
            let relative = condition * (length + attainable) + condition.powi(2) * misfit;
            let underflow = 1e-42 + 1e-44 * (condition / norm2(&z64).max(1e-20)).powi(2);
            let bound = 64.0 * EPS * k as f64 * relative + underflow;
            assert!(
                error <= bound,
                "{way}, case {case}: {error:e} over {bound:e}: {z:?} {y:?} {w:?} {oracle}"
            );
            if bound > 0.0 {
                worst.saw("hostile, share of the oracle's bound", error / bound);
            }
        }
    }
}

/// Replayed and streamed samples take different ways to the head; what is too small to count must be too
/// small for both.
#[test]
fn tiny_features_count_or_not_whichever_way_is_taken() {
    for exponent in -45..=-10 {
        let size = 10f32.powi(exponent);
        let z: Vec<f32> = [1.0, 0.3, -0.2, 1.1, 0.7, -0.9].iter().map(|v| v * size).collect();
        let y = [1.0, 2.0, -1.0];
        let (client, stream) = (by_client(&z, &y, 2, 1, EXACT), by_stream(&z, &y, 2, 1, EXACT));
        for (a, b) in client.iter().zip(&stream) {
            assert!((a - b).abs() <= 1e-5 * (a.abs() + b.abs()), "at 1e{exponent}: {client:?} {stream:?}");
        }
    }
}

#[test]
fn ridge_is_the_oracles_ridge() {
    let mut random = Random(6);
    let mut worst = Worst::default();
    for case in 0..600 {
        let k = 1 + case % 12;
        let m = 1 + random.below(40);
        let c = 1 + random.below(3);
        let ridge = 10f32.powf((4.0 * random.unit() - 3.0) as f32);
        let z = random.normals(m * k);
        let y = random.normals(m * c);
        let (z64, y64) = (matrix(m, k, &z), matrix(m, c, &y));
        // 1/(2m) |Z W - Y|^2 + ridge/2 |W|^2: the stationary point.
        let regular = z64.transpose() * &z64 + M::identity(k, k) * (f64::from(ridge) * m as f64);
        let condition = Svd::new(&regular).condition();
        let oracle = regular.cholesky().unwrap().solve(&(z64.transpose() * &y64));
        let head = HeadSolve::LeastSquares { ridge };
        for (way, w) in [("client", by_client(&z, &y, k, c, head)), ("stream", by_stream(&z, &y, k, c, head))]
        {
            let error = (matrix(k, c, &w) - &oracle).norm() / oracle.norm();
            let cancelled = z64.norm() * y64.norm() / (z64.transpose() * &y64).norm();
            let bound = 8.0 * EPS * k as f64 * condition * cancelled.max(1.0);
            assert!(error <= bound, "{way}: {error:e} over {bound:e} at k={k} m={m} ridge={ridge}");
            worst.saw("ridge, share of the bound", error / bound);
            worst.saw("ridge, relative error", error);
        }
    }
}

/// A ridge beyond f32 is a head of zero, not a NaN.
#[test]
fn a_huge_ridge_gives_a_zero_head() {
    let (z, y) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, -1.0, 2.0]);
    for ridge in [1e30, 1e38, f32::MAX] {
        let head = HeadSolve::LeastSquares { ridge };
        for w in [by_client(&z, &y, 2, 1, head), by_stream(&z, &y, 2, 1, head)] {
            assert!(w.iter().all(|w| w.abs() < 1e-25), "{ridge}: {w:?}");
        }
    }
}

#[test]
fn gradient_heads_follow_the_f64_recursion() {
    let mut random = Random(7);
    let mut worst = Worst::default();
    for case in 0..300 {
        let k = 1 + case % 10;
        let m = 1 + random.below(40);
        let c = 1 + random.below(3);
        let z = random.normals(m * k);
        let y = random.normals(m * c);
        let (z64, y64) = (matrix(m, k, &z), matrix(m, c, &y));
        let (gram, zy) = (z64.transpose() * &z64, z64.transpose() * &y64);
        let step_size = (0.9 * m as f64 / norm2(&gram)) as f32;
        for steps in [1u16, 3, 10] {
            let head = HeadSolve::Gradient { steps, step_size };
            let mut oracle = M::zeros(k, c);
            // Twice: the second round goes on from the head of the first.
            let mut model = Linear::new(Heap::new(k, k, c));
            model.set_representation(&identity(k)).unwrap();
            for round in 0..2 {
                for _ in 0..steps {
                    oracle -= (&gram * &oracle - &zy) * (f64::from(step_size) / m as f64);
                }
                model.fit_head(head, &mut Recording::regression(&z, &y, k, c)).unwrap();
                let w64 = matrix(k, c, &head_of(&model));
                let scale = oracle.norm().max(z64.norm() * y64.norm() / norm2(&gram));
                let error = (&w64 - &oracle).norm() / scale;
                assert!(error <= 1e-5, "{error:e} after {steps} steps of round {round}");
                worst.saw("gradient head, relative error", error);
            }
            let streamed = by_stream(&z, &y, k, c, head);
            let replayed = by_client(&z, &y, k, c, head);
            assert_eq!(bits(&streamed), bits(&replayed), "the same sums in the same order");
        }
    }
}

/// Heads by gradient steps can diverge; a device must not be stuck with the ruins.
#[test]
fn a_diverged_gradient_head_is_declined_and_the_old_one_stays() {
    let (z, y) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.5], [1.0, -1.0, 2.0]);
    let mut model = Linear::new(Workspace::<2, 2>::new());
    model.set_representation(&identity(2)).unwrap();
    model.fit_head(EXACT, &mut Recording::regression(&z, &y, 2, 1)).unwrap();
    let mut before = [0.0];
    model.predict(&[1.0, 1.0], &mut before).unwrap();
    // Diverged beyond f32, and so far that a prediction would be.
    for (steps, step_size) in [(2000, 100.0), (3, 1e12)] {
        let head = HeadSolve::Gradient { steps, step_size };
        let result = model.fit_head(head, &mut Recording::regression(&z, &y, 2, 1));
        assert_eq!(result, Err(DeclineReason::UpdateNonFinite));
    }
    let mut after = [0.0];
    model.predict(&[1.0, 1.0], &mut after).unwrap();
    assert_eq!(bits(&before), bits(&after));
}

#[test]
fn the_kernel_of_gradient_steps_reads_the_lower_triangle_only() {
    let (mut w, mut scratch) = (vec![0.5, -1.0], vec![0.0; 2]);
    gradient_steps(&[2.0, f32::NAN, 1.0, 3.0], &[1.0, 4.0], &mut w, &mut scratch, 1, 0.5);
    // G W - b = (2*0.5 - 1 - 1, 0.5 - 3 - 4) = (-1, -6.5).
    assert_eq!(w, [1.0, 2.25]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    /// Scaling targets by a power of two scales the head exactly; permuting outputs permutes it.
    #[test]
    fn heads_are_linear_in_the_targets(seed in any::<u64>(), k in 1usize..6, m in 1usize..20, p in -20i32..20) {
        let mut random = Random(seed);
        let z = random.normals(m * k);
        let y = random.normals(m * 2);
        let factor = 2f32.powi(p);
        let scaled: Vec<f32> = y.chunks(2).flat_map(|y| [y[1] * factor, y[0] * factor]).collect();
        let expected: Vec<f32> =
            by_client(&z, &y, k, 2, EXACT).chunks(2).flat_map(|w| [w[1] * factor, w[0] * factor]).collect();
        prop_assert_eq!(by_client(&z, &scaled, k, 2, EXACT), expected);
    }
}
