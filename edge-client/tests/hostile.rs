//! Tests of head fits on hostile input: columns that repeat, vanish, underflow or overflow, and samples that
//! are not finite. The bounds are derived in `common/head.rs`.

use crate::common::head::*;
use crate::common::*;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Recording};
use fedspan_protocol::message::{DeclineReason, Task as Wire};

/// Limit beyond which a sample is skipped, as the documentation of the task states.
const MAGNITUDE_MAX: f32 = 1.1e12;

/// Returns a value from a small set, so that columns repeat, vanish, underflow or overflow.
fn hostile_value(random: &mut Random) -> f32 {
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

/// Returns true if all values are within the limit.
fn is_usable(values: &[f32]) -> bool {
    values.iter().all(|v| v.abs() <= MAGNITUDE_MAX)
}

/// Returns the oracle's head, the condition of the directions that it keeps, and the largest singular value
/// that it cuts. Returns `None` if a singular value lies between those that any solver cuts and those that
/// any solver keeps. Values below 1e-18 do not count, because their squares underflow in f32.
fn oracle_if_unambiguous(svd: &Svd, y: &M) -> Option<(M, f64, f64)> {
    let largest = svd.largest();
    if largest <= 1e-20 {
        return Some((M::zeros(svd.s.len(), y.ncols()), 1.0, 0.0));
    }
    let keep = (1e-3 * largest).max(1e-16);
    // A cut direction must be so small that it hardly matters: the head would change by the relative size of
    // the direction.
    if svd.s.iter().any(|&s| s > 2e-8 * largest && s < keep) || largest < keep {
        return None;
    }
    let smallest = svd.s.iter().copied().filter(|&s| s >= keep).fold(largest, f64::min);
    let dropped = svd.s.iter().copied().filter(|&s| s < keep).fold(0.0, f64::max);
    Some((svd.minimum_norm(y, keep / 2.0), largest / smallest, dropped))
}

/// Returns true if some columns are constant and others are not.
fn has_constant(z: &M) -> bool {
    let constant = |column: nalgebra::DVectorView<'_, f64>| column.iter().all(|v| *v == column[0]);
    z.column_iter().any(|column| constant(column) && column[0] != 0.0) && !z.column_iter().all(constant)
}

/// A hundred thousand hostile cases are fitted in every way, and compared with the oracle if the rank is
/// unambiguous.
#[test]
fn hostile_samples_keep_the_bounds() {
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
            // The values are hostile, mostly ordinary with some hostile ones, tiny, or ordinary.
            let kind = random.below(4);
            let value = |random: &mut Random| match kind {
                0 => hostile_value(random),
                1 if random.below(8) == 0 => hostile_value(random),
                2 => (random.normal() * 1e-20) as f32,
                _ => (random.below(5) as f32 - 2.0) * 0.5,
            };
            let mut z: Vec<f32> = (0..m * k).map(|_| value(&mut random)).collect();
            let y: Vec<f32> = (0..m * c).map(|_| value(&mut random)).collect();
            if random.below(4) == 0 {
                // In some cases a whole column has one value.
                let (column, filler) = (random.below(k), hostile_value(&mut random));
                z.iter_mut().skip(column).step_by(k).for_each(|v| *v = filler);
            }
            check_hostile(&mut model, &mut stream, (&z, &y), (k, c), &mut worst, &mut compared, cases);
        }
    }
    println!("{cases} cases, {compared} of them against the oracle");
    assert!(compared > 20_000);
}

/// Fits the head from stored and from streamed samples, and checks counts, residuals and, where possible, the
/// head.
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
    let usable_samples: Vec<usize> = (0..total)
        .filter(|&i| is_usable(&z[i * k..(i + 1) * k]) && is_usable(&y[i * c..(i + 1) * c]))
        .collect();
    let m = usable_samples.len();
    let expected = Usage { samples: m as u32, skipped: (total - m) as u32 };
    let result = model.fit_head(EXACT, &mut Recording::regression(z, y, k, c));
    assert_eq!(result, if m == 0 { Err(DeclineReason::NoSamples) } else { Ok(expected) });
    let task = Wire::FitHead { head: EXACT };
    let samples = Sliced::regression(z.to_vec(), y.to_vec(), k, c);
    let streamed = fed_rep_stream(stream, task, &identity(k), &samples);
    if m == 0 {
        assert_eq!(streamed, Err(DeclineReason::NoSamples));
        return;
    }
    assert_eq!(streamed.unwrap().0, expected);
    let z64 = M::from_fn(m, k, |i, j| f64::from(z[usable_samples[i] * k + j]));
    let y64 = M::from_fn(m, c, |i, j| f64::from(y[usable_samples[i] * c + j]));
    let svd = Svd::new(&z64);
    // The smallest f32 takes the place of zero. It prevents a division by zero and does not weaken the
    // bounds.
    let largest = svd.largest().max(1e-45);
    let underflow_error = underflow_bound(largest, m, k, c);
    for (method, w) in [("client", head_of(model)), ("stream", head_of(stream))] {
        assert!(w.iter().all(|v| v.is_finite()), "{method}, case {case}: {z:?} {y:?} gave {w:?}");
        if z64.amax() < 1e-19 {
            assert!(
                w.iter().all(|v| *v == 0.0),
                "{method}, case {case}: features below 1e-18 are zero: {z:?} {w:?}"
            );
        }
        let r = Residual::new(&z64, largest, &y64, &matrix(k, c, &w));
        let rounded = residual_bound(&svd, m) * r.data;
        let (norm, bound) = (r.norm, rounded + underflow_error);
        assert!(norm <= bound, "{method}, case {case}: {norm:e} over {bound:e} for {z:?} {y:?} {w:?}");
        if bound > 0.0 {
            worst.record_largest("hostile, residual, share of the bound", norm / bound);
        }
        if rounded < underflow_error && bound > 0.0 {
            worst.record_largest("hostile, residual where underflow leads, share of the bound", norm / bound);
        }
    }
    // The oracle is slow, so only every other case uses it. Below full rank the head has minimum norm after
    // short columns are lifted; with a constant column it is a different head (`tests/units.rs`).
    let lengths = || z64.column_iter().map(|column| column.norm()).filter(|&length| length >= 1e-19);
    // Columns that are shorter by a larger factor are not lifted, and which directions are cut depends on the
    // other columns.
    let lengths_differ_widely =
        lengths().fold(0.0, f64::max) > 1e17 * lengths().fold(f64::INFINITY, f64::min);
    if !case.is_multiple_of(2) || lengths_differ_widely {
        return;
    }
    let lifts = M::from_diagonal(&column_lifts(&z64).into());
    let z64 = &z64 * &lifts;
    let svd = Svd::new(&z64);
    let largest = svd.largest().max(1e-45);
    if let Some((oracle, condition, dropped)) = oracle_if_unambiguous(&svd, &y64)
        && (svd.s.iter().all(|&s| s >= 1e-3 * largest) || !has_constant(&z64))
    {
        *compared += 1;
        // The data error is rounding plus the directions that the solver cuts: at most sqrt(k) times those
        // that the oracle cuts.
        let data_error = rounding(m, k) + (k as f64).sqrt() * dropped / largest;
        let [triangular, normal] = head_bound(&z64, &y64, &oracle, largest, condition, data_error);
        let underflow_error = underflow_error * (condition / largest).powi(2);
        for (method, w) in [("client", head_of(model)), ("stream", head_of(stream))] {
            let unlifted = lifts.map(|lift| if lift == 0.0 { 0.0 } else { 1.0 / lift });
            let error = (unlifted * matrix(k, c, &w) - &oracle).norm();
            let normal = if method == "client" && dropped == 0.0 { normal } else { 0.0 };
            let bound = triangular.max(normal) + underflow_error;
            assert!(
                error <= bound,
                "{method}, case {case}: {error:e} over {bound:e}: {z:?} {y:?} {w:?} {oracle}"
            );
            if bound > 0.0 {
                worst.record_largest("hostile, head, share of the bound", error / bound);
            }
        }
    }
}

/// Stored and streamed samples are fitted by different methods; both must treat the same features as zero.
#[test]
fn both_methods_agree_on_tiny_features() {
    for exponent in -45..=-10 {
        let size = 10f32.powi(exponent);
        let z: Vec<f32> = [1.0, 0.3, -0.2, 1.1, 0.7, -0.9].iter().map(|v| v * size).collect();
        let y = [1.0, 2.0, -1.0];
        let (client, stream) = (fit_by_client(&z, &y, 2, 1, EXACT), fit_by_stream(&z, &y, 2, 1, EXACT));
        for (a, b) in client.iter().zip(&stream) {
            assert!((a - b).abs() <= 1e-5 * (a.abs() + b.abs()), "at 1e{exponent}: {client:?} {stream:?}");
        }
    }
}
