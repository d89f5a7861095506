//! Tests of head fits for extreme features: at the limits of f32, many, few, repeated or constant columns, or
//! with a ridge. Either the prediction is within the bound of `common/linear.rs`, or the rank shows that
//! directions were cut.

use crate::common::head::*;
use crate::common::linear::Problem;
use crate::common::*;
use fedspan_protocol::message::HeadSolve;

/// Rounds features and targets to f32, the precision of a device.
fn round_to_f32(mut problem: Problem) -> Problem {
    problem.x.apply(|x| *x = f64::from(*x as f32));
    problem.y.apply(|y| *y = f64::from(*y as f32));
    problem
}

/// Results of many heads. `needlessly_cut` counts heads that were cut although the bound is small, `misses`
/// lists heads of full rank that exceed their bound.
#[derive(Default)]
struct Tally {
    total: usize,
    cut: usize,
    needlessly_cut: usize,
    misses: Vec<String>,
    worst: f64,
}

impl Tally {
    /// Checks both methods of fitting a problem's head against the bound.
    fn check(&mut self, problem: &Problem, case_name: &str) {
        let bounds = [true, false].map(|normal| problem.bound(normal));
        for (method, (w, fits)) in ["two passes", "streaming"].into_iter().zip(problem.fit_heads()) {
            let (bound, exact) = &bounds[usize::from(method == "streaming")];
            let error = (problem.predictions(&w) - exact).norm() / problem.y.norm();
            self.total += 1;
            let rank = usize::from(fits.last.rank);
            assert_eq!(fits.cut + fits.short, u32::from(rank < problem.k), "{case_name}");
            if rank < problem.k {
                self.cut += 1;
                self.needlessly_cut += usize::from(*bound < 0.02);
                if *bound < 0.02 && self.needlessly_cut < 4 {
                    println!("{method}: cut to {rank} at {bound:e}, {case_name}");
                }
            } else if error.is_nan() || error > *bound {
                self.misses.push(format!(
                    "{method}: {error:e} over {bound:e}, k={} m={}, {case_name}",
                    problem.k,
                    problem.m()
                ));
            } else {
                self.worst = self.worst.max(error / bound);
            }
        }
    }

    /// Prints the results, and checks that no head was cut without need or exceeds its bound silently.
    fn print_and_check(self, problems: &str) {
        let Self { total, cut, needlessly_cut, misses, worst } = self;
        println!(
            "{problems}: {total} heads, {cut} cut, {needlessly_cut} of them with a small bound, worst share {worst:.3}"
        );
        misses.iter().take(8).for_each(|line| println!("{line}"));
        assert_eq!((misses.len(), needlessly_cut), (0, 0), "{problems}");
    }
}

/// Multiplies each column by its unit.
fn in_units(problem: &mut Problem, unit: impl FnMut(usize) -> f64) {
    let units: Vec<f64> = (0..problem.k).map(unit).collect();
    for (mut column, unit) in problem.x.column_iter_mut().zip(units) {
        column *= unit;
    }
}

#[test]
fn columns_of_any_unit_are_fitted() {
    for (low, high) in [(-17.0, -10.0), (-10.0, 8.0), (5.0, 8.0), (-16.0, 8.0)] {
        let (mut random, mut tally) = (Random(61), Tally::default());
        for case in 0..400 {
            let k = 1 + case % 12;
            let m = k + 2 + random.below(60);
            let offset = [0.0, 10.0, 1e3][case % 3];
            let mut problem = Problem::random(&mut random, k, m, 1 + case % 3, offset, 0.0);
            in_units(&mut problem, |_| 10f64.powf(low + (high - low) * random.unit()));
            tally.check(&round_to_f32(problem), &format!("units 1e{low} to 1e{high}, offset {offset}"));
        }
        tally.print_and_check(&format!("units 1e{low} to 1e{high}"));
    }
}

#[test]
fn targets_of_any_unit_are_fitted() {
    let (mut random, mut tally) = (Random(62), Tally::default());
    for case in 0..600 {
        let k = 1 + case % 10;
        let m = k + 2 + random.below(60);
        let mut problem = Problem::random(&mut random, k, m, 1 + case % 3, [0.0, 1e3][case % 2], 3.0);
        problem.y *= 10f64.powf(26.0 * random.unit() - 15.0);
        tally.check(&round_to_f32(problem), "targets");
    }
    tally.print_and_check("targets");
}

#[test]
fn wide_representations_with_few_samples_are_fitted() {
    let (mut random, mut tally) = (Random(63), Tally::default());
    for case in 0..240 {
        let k = [1, 2, 7, 8, 9, 16, 31, 64, 96, 128][case % 10];
        let m = k + [0, 1, 2, 8][case / 10 % 4];
        let offset = [0.0, 100.0, 1e4][case % 3];
        if k == 1 && offset > 0.0 {
            continue;
        }
        let problem = Problem::random(&mut random, k, m, 1 + 6 * (case % 2), offset, [0.0, 6.0][case % 2]);
        tally.check(&round_to_f32(problem), &format!("offset {offset}"));
    }
    tally.print_and_check("wide");
}

/// One column has a large offset, next to a constant column of any value and sign.
#[test]
fn distant_column_is_fitted() {
    let (mut random, mut tally) = (Random(64), Tally::default());
    for case in 0..800 {
        let k = 2 + case % 14;
        let m = k + 2 + random.below(100);
        let mut problem = Problem::random(&mut random, k, m, 1 + case % 2, 1.0, 2.0);
        let constant = problem.constant.unwrap();
        let distant = (constant + 1 + random.below(k - 1)) % k;
        let deviation = problem.x.column(distant).variance().sqrt();
        problem.x.column_mut(distant).add_scalar_mut(1e5 * deviation * [1.0, -1.0][case / 2 % 2]);
        let value = [1.0, -7.25, 1e-3, 1e4, -3e-6, 4e8][case % 6];
        problem.x.column_mut(constant).fill(value);
        tally.check(&round_to_f32(problem), &format!("constant {value}"));
    }
    tally.print_and_check("far");
}

/// Several constant columns act as one: all but one are cut, and no prediction changes.
#[test]
fn several_constants_act_as_one() {
    let (mut random, mut worst) = (Random(65), Worst::default());
    for case in 0..400 {
        let k = 2 + case % 6;
        let m = k + 10 + random.below(60);
        let offset = 10f64.powf(4.0 * random.unit());
        let mut problem = round_to_f32(Problem::random(&mut random, k, m, 2, offset, 2.0));
        let (bound, exact) = problem.bound(false);
        let extra_constants = 1 + case % 3;
        for _ in 0..extra_constants {
            let value = 10f64.powf(6.0 * random.unit() - 3.0) * [1.0, -1.0][random.below(2)];
            let position = random.below(problem.k + 1);
            problem.x = problem.x.clone().insert_column(position, f64::from(value as f32));
            problem.k += 1;
        }
        for (method, (w, fits)) in ["two passes", "streaming"].into_iter().zip(problem.fit_heads()) {
            let error = (problem.predictions(&w) - &exact).norm() / problem.y.norm();
            assert_eq!((usize::from(fits.last.rank), fits.cut), (k, 1), "{method}: k={k} m={m} case {case}");
            worst.record_largest("several constants, share of the bound", error / bound);
            assert!(error <= 32.0 * bound, "{method}: {error:e} over {bound:e}, k={k} m={m} case {case}");
        }
    }
}

/// With a single sample, its prediction is right and the rank is 1.
#[test]
fn single_sample_is_predicted() {
    let mut random = Random(66);
    for case in 0..400 {
        let k = 1 + case % 9;
        let unit = 10f64.powf(27.0 * random.unit() - 16.0);
        let mut x = random.gaussian(1, k) * unit;
        if case % 3 == 0 {
            x[(0, 0)] = 1.0;
        }
        let y = random.gaussian(1, 2);
        let problem = round_to_f32(Problem { k, c: 2, x, y, constant: None });
        for (w, fits) in problem.fit_heads() {
            assert_eq!((fits.last.rank, fits.short + fits.cut), (1, u32::from(k > 1)), "{:?}", problem.x);
            let error = (problem.predictions(&w) - &problem.y).norm() / problem.y.norm();
            assert!(error <= 20.0 * EPS * k as f64, "{error:e} k={k} {:?}", problem.x);
        }
    }
}

/// Values below f32's normal numbers or below the solver's zero threshold are cut and counted, next to
/// ordinary values.
#[test]
fn negligible_values_are_cut_and_counted() {
    let mut random = Random(67);
    for case in 0..200 {
        let k = 2 + case % 6;
        let m = k + 3 + random.below(30);
        let mut problem = Problem::random(&mut random, k, m, 1, 0.0, 0.0);
        let tiny = random.below(k);
        let unit = [1e-45, 1e-41, 1e-38, 1e-30, 1e-22][case % 5];
        in_units(&mut problem, |j| if j == tiny { unit } else { 1.0 });
        let problem = round_to_f32(problem);
        let ordinary =
            Problem { k: k - 1, x: problem.x.clone().remove_column(tiny), y: problem.y.clone(), ..problem };
        let (bound, exact) = ordinary.bound(false);
        for (w, fits) in problem.fit_heads() {
            assert_eq!((usize::from(fits.last.rank), fits.cut), (k - 1, 1), "{unit:e}");
            let error = (problem.predictions(&w) - &exact).norm() / problem.y.norm();
            assert!(error <= 32.0 * bound, "{error:e} over {bound:e} at {unit:e}");
        }
    }
}

/// A ridge of any size is applied to the original features, with offsets, repeated columns and few samples.
/// The bound is that of the columns extended by the rows of the ridge.
#[test]
fn ridge_applies_to_the_original_features() {
    let mut random = Random(68);
    let mut worst = Worst::default();
    let mut misses = Vec::new();
    let mut beyond_f32 = 0;
    for case in 0..900 {
        let k = 2 + case % 8;
        let m = if case % 7 == 0 { 2 + random.below(k) } else { k + 2 + random.below(60) };
        let offset = [0.0, 10f64.powf(5.0 * random.unit())][case % 2];
        let mut problem = Problem::random(&mut random, k, m, 1, offset, [0.0, 1.0, 3.0][case % 3]);
        if case % 5 == 0 && k > 2 {
            let constant = problem.constant.unwrap_or(k);
            let (from, to) = match constant {
                0 => (1, 2),
                1 => (0, 2),
                _ => (0, 1),
            };
            if to != constant {
                let column = problem.x.column(from) * 2.0;
                problem.x.set_column(to, &column);
            }
        }
        let problem = round_to_f32(problem);
        let ridge = 10f32.powf((9.0 * random.unit() - 6.0) as f32);
        let root = (f64::from(ridge) * m as f64).sqrt();
        let (bound, exact) = ridge_bound(&problem, root);
        let (x, y) = (flat(&problem.x), flat(&problem.y));
        let head = HeadSolve::LeastSquares { ridge };
        for (method, w) in
            [("client", fit_by_client(&x, &y, k, 1, head)), ("stream", fit_by_stream(&x, &y, k, 1, head))]
        {
            let error = (problem.predictions(&w) - &exact).norm() / problem.y.norm();
            if bound > 0.05 {
                beyond_f32 += 1;
            } else if error > bound {
                misses.push(format!("{method}: {error:e} over {bound:e} k={k} m={m} ridge={ridge:e} offset={offset:.1} case {case}"));
            } else {
                worst.record_largest("ridge, share of the bound", error / bound);
            }
        }
    }
    println!("{} misses, {beyond_f32} beyond f32", misses.len());
    misses.iter().take(12).for_each(|line| println!("{line}"));
    assert!(misses.is_empty());
}

/// Returns the predictions under a ridge in f64, and the error bound of f32.
fn ridge_bound(problem: &Problem, root: f64) -> (f64, M) {
    let (m, k) = (problem.m(), problem.k);
    let folding_error = rounding(m + k, k);
    let mut centred = M::zeros(m + k, k);
    let mut plain = M::zeros(m + k, k);
    let mut squared_error = 0.0;
    for j in 0..k {
        let column = problem.x.column(j);
        let is_centred = problem.constant.is_some() && problem.constant != Some(j);
        let (mean, first) = if is_centred { (column.mean(), column[0]) } else { (0.0, 0.0) };
        centred.view_mut((0, j), (m, 1)).copy_from(&column.add_scalar(-mean));
        plain.view_mut((0, j), (m, 1)).copy_from(&column);
        centred[(m + j, j)] = root;
        plain[(m + j, j)] = root;
        let (length, size) = (centred.column(j).norm(), plain.column(j).norm());
        let folded = column.add_scalar(-first).norm().hypot(root);
        squared_error += (EPS * column.amax() * (m as f64).sqrt() / length).powi(2)
            + (folding_error * folded / length).powi(2);
        centred.column_mut(j).unscale_mut(length);
        plain.column_mut(j).unscale_mut(size);
    }
    let smallest = Svd::new(&centred).s.into_iter().fold(f64::INFINITY, f64::min);
    let svd = Svd::new(&plain);
    let y = problem.y.clone().resize(m + k, problem.c, 0.0);
    let exact = &plain * svd.minimum_norm(&y, 0.0);
    (4.0 * squared_error.sqrt() / smallest, exact.rows(0, m).into_owned())
}
