//! Tests that units and offsets of features do not affect predictions: heads against an f64 oracle, for
//! scales from 1e-6 to 1e6, and for offsets up to 1e5 deviations with a constant column.
//!
//! The bound is derived in `common/linear.rs`.

use crate::common::head::*;
use crate::common::linear::Problem;
use crate::common::*;
use fedspan_client::task::HeadFits;
use fedspan_client::{Linear, Recording};
use fedspan_protocol::message::HeadSolve;

/// If a prediction misses the bound, the rank is below k.
#[test]
fn predictions_are_within_the_bound_or_rank_is_below_k() {
    let mut random = Random(41);
    let mut worst = Worst::default();
    let [mut misses, mut rank_deficient, mut needlessly_cut, mut heads] = [0, 0, 0, 0];
    for case in 0..4000 {
        let k = 1 + case % 24;
        let m = k + 1 + (200 - k) * random.below(1000) * random.below(1000) / 1_000_000;
        let c = 1 + random.below(8);
        let offset = if case % 5 == 0 { 0.0 } else { 10f64.powf(5.0 * random.unit()) };
        let scale = [0.0, 6.0, 6.0][case % 3];
        let problem = Problem::random(&mut random, k, m, c, offset, scale);
        let bounds = [true, false].map(|normal| problem.bound(normal));
        let size = problem.y.norm();
        for (method, (w, fits)) in ["two passes", "streaming"].into_iter().zip(problem.fit_heads()) {
            let (bound, exact) = &bounds[usize::from(method == "streaming")];
            let error = (problem.predictions(&w) - exact).norm() / size;
            heads += 1;
            let rank = usize::from(fits.last.rank);
            assert_eq!(fits.cut, u32::from(rank < k));
            if rank < k {
                rank_deficient += 1;
                needlessly_cut += usize::from(*bound < 0.02);
            } else if error > *bound {
                misses += 1;
                println!("{method}: {error:e} over {bound:e} k={k} m={m} c={c} offset={offset:.1}");
            } else {
                let name = format!("{method}, offset 1e{}", (offset.max(1.0)).log10() as i32);
                worst.record_largest(Box::leak(name.into_boxed_str()), error / bound);
            }
        }
    }
    println!(
        "{heads} heads, {rank_deficient} with a rank below k ({needlessly_cut} of them with a small bound), \
         {misses} silent misses"
    );
    assert_eq!(misses, 0);
    assert!(needlessly_cut == 0, "{needlessly_cut} of {heads} were cut with a bound below 2 %");
}

/// At the limit of f32, deviations a million times smaller than the values of their column are rounding
/// errors, and the column is cut.
#[test]
fn deviations_below_the_rounding_of_f32_are_cut_and_counted() {
    let mut random = Random(42);
    let [mut kept, mut cut] = [0, 0];
    for case in 0..600 {
        let k = 2 + case % 8;
        let m = k + 2 + random.below(100);
        let offset = 10f64.powf(5.0 + 5.0 * random.unit());
        let problem = Problem::random(&mut random, k, m, 1, offset, 1.0);
        let (bound, exact) = problem.bound(false);
        for (w, fits) in problem.fit_heads() {
            let error = (problem.predictions(&w) - &exact).norm() / problem.y.norm();
            let full_rank = usize::from(fits.last.rank) == k;
            assert!(
                !full_rank || error <= bound,
                "{error:e} over {bound:e} at k={k} m={m} offset={offset:e}"
            );
            *(if full_rank { &mut kept } else { &mut cut }) += 1;
            assert_eq!((fits.cut, fits.short), (u32::from(!full_rank), 0));
            // The limit is at a ratio of about 2^20 between offset and deviation.
            let ratios = (0..k).filter(|j| problem.constant != Some(*j)).map(|j| {
                let column = problem.x.column(j);
                (column[0] / (column.variance().sqrt())).abs()
            });
            let largest_ratio = ratios.fold(0.0, f64::max);
            assert!(full_rank || largest_ratio > 0.9e6, "cut at a ratio of {largest_ratio:e}");
            assert!(!full_rank || largest_ratio < 1.2e6, "kept at a ratio of {largest_ratio:e}");
        }
    }
    println!("{kept} kept, {cut} cut");
    assert!(kept > 100 && cut > 100);
}

/// A power of two as a factor of a feature changes only the exponents of its weights.
#[test]
fn powers_of_two_change_only_exponents() {
    let mut random = Random(43);
    for case in 0..600 {
        let k = 1 + case % 24;
        let m = k + 1 + random.below(120);
        let c = 1 + random.below(8);
        let offset = [0.0, 3.0, 1e3][case % 3];
        let problem = Problem::random(&mut random, k, m, c, offset, 2.0);
        let powers: Vec<i32> = (0..k).map(|_| random.below(41) as i32 - 20).collect();
        let factors = powers.iter().map(|&p| 2f64.powi(p)).collect::<Vec<_>>();
        let scaled = Problem {
            x: M::from_fn(m, k, |i, j| f64::from(problem.x[(i, j)] as f32) * factors[j]),
            y: problem.y.clone(),
            ..problem
        };
        let methods = ["two passes", "streaming"].into_iter().zip(problem.fit_heads());
        for ((method, (before, fits)), (after, scaled_fits)) in methods.zip(scaled.fit_heads()) {
            assert_eq!((fits.last.rank, fits), (k as u16, scaled_fits));
            for (j, (before, after)) in before.chunks(c).zip(after.chunks(c)).enumerate() {
                for (before, after) in before.iter().zip(after) {
                    let expected = f64::from(*before) / factors[j];
                    assert_eq!(
                        f64::from(*after),
                        expected,
                        "{method}: column {j} of {k}, m={m}, case {case} {powers:?}"
                    );
                }
            }
        }
    }
}

/// Below full rank, with columns that repeat others, zero columns and a second constant, at several offsets
/// and scales, the rank is the true one, predictions are right, and equal columns share their weight.
#[test]
fn repeated_columns_are_cut_at_any_offset() {
    let mut random = Random(44);
    let mut worst = Worst::default();
    for case in 0..600 {
        let k = 3 + case % 6;
        let m = k + 10 + random.below(100);
        let offset = 10f64.powf(4.0 * random.unit());
        let mut problem = Problem::random(&mut random, k, m, 2, offset, [0.0, 3.0][case % 2]);
        let constant = problem.constant.unwrap();
        let neighbour = (constant + 1) % k;
        let (bound, exact) = problem.bound(false);
        let repeated = match case % 3 {
            0 => problem.x.column(neighbour).into_owned(),
            1 => problem.x.column(constant).into_owned(),
            _ => M::zeros(m, 1).column(0).into_owned(),
        };
        problem.x = problem.x.clone().insert_column(k, 0.0);
        problem.x.set_column(k, &repeated);
        problem.k = k + 1;
        for (method, (w, fits)) in ["two passes", "streaming"].into_iter().zip(problem.fit_heads()) {
            let case_name = format!("{method}: k={k} m={m} offset={offset:.1} case={case}");
            assert_eq!((usize::from(fits.last.rank), fits.last.cut(), fits.cut), (k, 1, 1), "{case_name}");
            let error = (problem.predictions(&w) - &exact).norm() / problem.y.norm();
            // The tolerance is higher, because centring rounds once more, and errors along short columns are
            // relative to the lifted columns.
            assert!(error <= 32.0 * bound, "{error:e} over {bound:e} {case_name}");
            worst.record_largest("repeated columns, share of the bound", error / bound);
            let (w, last) = w.split_at(2 * k);
            match case % 3 {
                0 => {
                    let repeated_weights = &w[2 * neighbour..2 * neighbour + 2];
                    for (repeated_weights, last) in repeated_weights.iter().zip(last) {
                        assert!(
                            (repeated_weights - last).abs() <= 1e-3 * repeated_weights.abs().max(1e-3),
                            "{repeated_weights} {last} {case_name}"
                        );
                    }
                }
                // Two equal constant columns share their weight equally.
                1 => {
                    let repeated_weights = &w[2 * constant..2 * constant + 2];
                    for (repeated_weights, last) in repeated_weights.iter().zip(last) {
                        assert!(
                            (repeated_weights - last).abs() <= 1e-5 * repeated_weights.abs(),
                            "{repeated_weights} {last} {case_name}"
                        );
                    }
                }
                _ => assert_eq!(last, [0.0, 0.0], "{case_name}"),
            }
        }
    }
}

/// If a column is constant only in the first samples, the fit is as exact as for any other column.
#[test]
fn column_that_stops_being_constant_is_fitted() {
    let mut random = Random(45);
    let mut worst = Worst::default();
    for case in 0..600 {
        let k = 2 + case % 8;
        let m = 20 + random.below(100);
        // Two almost equal columns rule out the normal equations.
        let mut x = random.gaussian(m, k);
        let changing_column = random.below(k);
        let change = 1 + random.below(m - 10);
        let pair = [(changing_column + 1) % k, (changing_column + 2) % k];
        for i in 0..m {
            x[(i, changing_column)] = if i < change { 3.0 } else { random.normal() * [1.0, 1e3][case % 2] };
            if k > 2 {
                x[(i, pair[1])] = x[(i, pair[0])] + 0.01 * x[(i, pair[1])];
            }
        }
        let (x, y) = (flat(&x), random.normals(m));
        let (z, y64) = (matrix(m, k, &x), matrix(m, 1, &y));
        let largest = norm2(&z);
        for (method, w) in [
            ("two passes", fit_by_client(&x, &y, k, 1, EXACT)),
            ("streaming", fit_by_stream(&x, &y, k, 1, EXACT)),
        ] {
            let residual = Residual::new(&z, largest, &y64, &matrix(k, 1, &w)).normwise_residual();
            let bound = 2.0 * rounding(m, k);
            assert!(residual <= bound, "{method}: {residual:e} over {bound:e} k={k} m={m} until={change}");
            worst.record_largest("no constant, normwise residual, share of the bound", residual / bound);
        }
    }
}

/// With fewer samples than directions and a constant column, an offset changes no prediction.
#[test]
fn offsets_do_not_change_predictions_from_few_samples() {
    let mut random = Random(46);
    for case in 0..300 {
        let k = 4 + case % 8;
        let m = 2 + random.below(k - 2);
        let mut x = random.gaussian(m, k);
        x.column_mut(k - 1).fill(1.0);
        let y = random.gaussian(m, 1);
        let mut moved = x.clone();
        for j in 0..k - 1 {
            moved.column_mut(j).add_scalar_mut(1e3 * random.normal());
        }
        let problems = [x, moved].map(|x| Problem { k, c: 1, x, y: y.clone(), constant: Some(k - 1) });
        let [before, after] = problems.map(|problem| {
            problem.fit_heads().map(|(w, fits)| {
                assert_eq!((fits.last.rank, fits.short, fits.cut), (m as u16, 1, 0));
                (problem.predictions(&w), w)
            })
        });
        for ((before, w), (after, moved)) in before.into_iter().zip(after) {
            let difference = (before - after).norm() / y.norm();
            assert!(difference <= 2e-2, "{difference:e} at k={k} m={m}");
            for (w, moved) in w.iter().zip(&moved).take(k - 1) {
                assert!((w - moved).abs() <= 2e-2 * y.norm() as f32, "{w} {moved}");
            }
        }
    }
}

/// A ridge is in the units of the original features, for any internal scaling.
#[test]
fn ridge_keeps_its_units_with_a_constant() {
    let mut random = Random(47);
    let mut worst = Worst::default();
    for case in 0..600 {
        let k = 2 + case % 8;
        let m = 3 + random.below(60);
        let offset = 10f64.powf(3.0 * random.unit());
        let problem = Problem::random(&mut random, k, m, 1, offset, 1.0);
        let ridge = 10f32.powf((6.0 * random.unit() - 4.0) as f32);
        let (x, y) = (flat(&problem.x), flat(&problem.y));
        let weight = (f64::from(ridge) * m as f64).sqrt();
        let z = matrix(m, k, &x).resize(m + k, k, 0.0);
        let z = M::from_fn(m + k, k, |i, j| if i == m + j { weight } else { z[(i, j)] });
        let y64 = matrix(m, 1, &y).resize(m + k, 1, 0.0);
        let largest = norm2(&z);
        let head = HeadSolve::LeastSquares { ridge };
        for (method, w) in
            [("client", fit_by_client(&x, &y, k, 1, head)), ("stream", fit_by_stream(&x, &y, k, 1, head))]
        {
            let residual = Residual::new(&z, largest, &y64, &matrix(k, 1, &w)).normwise_residual();
            let bound = 4.0 * rounding(m + k, k);
            assert!(residual <= bound, "{method}: {residual:e} over {bound:e} k={k} m={m} ridge={ridge:e}");
            worst.record_largest("ridge with a constant, share of the bound", residual / bound);
        }
    }
}

/// A barometer (1013 +- 5) with a constant column of 1 is fitted without scaling.
#[test]
fn air_pressure_is_fitted_without_scaling() {
    let mut random = Random(48);
    let m = 20;
    let pressure: Vec<f64> =
        (0..m).map(|_| 1013.0 + 5.0 * random.normal()).map(|p| (p * 100.0).round() / 100.0).collect();
    let x = M::from_fn(m, 2, |i, j| if j == 0 { pressure[i] } else { 1.0 });
    let y = M::from_fn(m, 1, |i, _| 0.2 * (pressure[i] - 1013.0));
    let problem = Problem { k: 2, c: 1, x, y, constant: Some(1) };
    for (w, fits) in problem.fit_heads() {
        assert_eq!((fits.last.rank, fits.cut), (2, 0));
        let mse = (problem.predictions(&w) - &problem.y).norm_squared() / m as f64;
        assert!(mse < 1e-8, "{mse:e}");
    }
}

/// Every method of fitting a head reports the directions that it cut.
#[test]
fn fits_with_cut_directions_are_counted() {
    let (k, c) = (3, 1);
    let full_rank = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
    let rank_two = [1.0, 1.0, 0.5, 2.0, 2.0, 0.25, 3.0, 3.0, 1.0, -1.0, -1.0, 0.0];
    let y = [1.0, 2.0, 3.0, 4.0];
    let mut model = Linear::new(Heap::new(k, k, c));
    model.set_representation(&identity(k)).unwrap();
    assert_eq!(model.head_fits(), HeadFits::default());
    for (x, expected) in [
        (&full_rank[..], (3, 0, 0)),
        (&rank_two, (2, 1, 0)),
        (&rank_two[..6], (2, 1, 1)),
        (&full_rank, (3, 1, 1)),
    ] {
        model.fit_head(EXACT, &mut Recording::regression(x, &y[..x.len() / k], k, c)).unwrap();
        let fits = model.head_fits();
        assert_eq!((fits.last.rank, fits.cut, fits.short), expected);
        assert_eq!((fits.last.samples as usize, usize::from(fits.last.width)), (x.len() / k, k));
        assert_eq!(usize::from(fits.last.cut()), k - usize::from(fits.last.rank));
    }
    let task = fed_rep(EXACT, fedspan_protocol::message::Upload::Gradient, 0.0);
    let samples = Sliced::regression(rank_two.to_vec(), y.to_vec(), k, c);
    fed_rep_round(&mut model, task, &identity(k), &mut samples.clone()).unwrap();
    assert_eq!((model.head_fits().last.rank, model.head_fits().cut), (2, 2));
    let mut streaming = Linear::new(Heap::streaming(k, k, c));
    fed_rep_stream(&mut streaming, task, &identity(k), &samples).unwrap();
    assert_eq!((streaming.head_fits().last.rank, streaming.head_fits().cut), (2, 1));
}

/// In fixed point all columns of a projection share one scale. Columns that are cut because of their units
/// are counted.
#[cfg(feature = "i16")]
#[test]
fn fixed_point_counts_cut_columns() {
    use fedspan_client::memory::FixedWorkspace;
    let mut model = Linear::new(FixedWorkspace::<2, 2>::new());
    model.set_representation(&identity(2)).unwrap();
    let mut random = Random(49);
    let pressure: Vec<f32> = (0..20).map(|_| 1013.0 + 5.0 * random.normal() as f32).collect();
    let x: Vec<f32> = pressure.iter().flat_map(|&p| [p, 1.0]).collect();
    let y: Vec<f32> = pressure.iter().map(|p| 0.2 * (p - 1013.0)).collect();
    model.fit_head(EXACT, &mut Recording::regression(&x, &y, 2, 1)).unwrap();
    assert_eq!((model.head_fits().last.rank, model.head_fits().cut), (1, 1));
    let x = random.normals(40);
    model.fit_head(EXACT, &mut Recording::regression(&x, &y, 2, 1)).unwrap();
    assert_eq!((model.head_fits().last.rank, model.head_fits().cut), (2, 1));
}
