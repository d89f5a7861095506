//! Tests of the least squares solver: comparison with an oracle that solves the normal equations in
//! double-double arithmetic.

use fedspan_engine::linalg::Matrix;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_sim_core::least_squares::{F32_ROUNDOFF, F64_ROUNDOFF, Fit, Problem, predict, solve};

/// Double-double number: the sum of two f64 with 106 bits of precision (Dekker 1971).
#[derive(Clone, Copy, Debug, Default)]
struct Twice(f64, f64);

impl Twice {
    /// Converts an f64.
    fn of(value: f64) -> Self {
        Self(value, 0.0)
    }

    /// Exact sum of two f64.
    fn sum(a: f64, b: f64) -> Self {
        let s = a + b;
        let bb = s - a;
        Self(s, (a - (s - bb)) + (b - bb))
    }

    /// Exact sum of two f64, where `a` has the larger magnitude.
    fn quick(a: f64, b: f64) -> Self {
        let s = a + b;
        Self(s, b - (s - a))
    }

    fn add(self, other: Self) -> Self {
        let Self(s, e) = Self::sum(self.0, other.0);
        let Self(t, f) = Self::sum(self.1, other.1);
        let Self(s, e) = Self::quick(s, e + t);
        Self::quick(s, e + f)
    }

    fn neg(self) -> Self {
        Self(-self.0, -self.1)
    }

    /// Product.
    fn times(self, other: Self) -> Self {
        let p = self.0 * other.0;
        let e = self.0.mul_add(other.0, -p) + (self.0 * other.1 + self.1 * other.0);
        Self::quick(p, e)
    }

    /// Quotient.
    fn over(self, other: Self) -> Self {
        let first = self.0 / other.0;
        let rest = self.add(other.times(Self::of(first)).neg());
        let second = rest.0 / other.0;
        let rest = rest.add(other.times(Self::of(second)).neg());
        Self::quick(first, second).add(Self::of(rest.0 / other.0))
    }

    /// Square root.
    fn root(self) -> Self {
        let first = Self::of(self.0.sqrt());
        let rest = self.add(first.times(first).neg());
        first.add(rest.over(first.add(first)))
    }
}

/// Least squares problem: training samples, new samples to predict, and ridge parameter.
struct Case {
    d: usize,
    c: usize,
    x: Vec<f64>,
    y: Vec<f64>,
    new: Vec<f64>,
    ridge: f64,
}

impl Case {
    /// Solution of the tested solver.
    fn fit(&self, roundoff: f64) -> Fit {
        let Self { d, c, ref x, ref y, ridge, .. } = *self;
        solve(&Problem { x, y, features: d, outputs: c, ridge, roundoff })
    }

    /// Predictions for the training samples and the new samples.
    fn answers(&self, weights: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.c];
        let rows = self.x.chunks_exact(self.d).chain(self.new.chunks_exact(self.d));
        rows.flat_map(|row| {
            predict(weights, row, &mut out);
            out.clone()
        })
        .collect()
    }

    /// Predictions of the oracle. If `constant` is set, the last column is the constant 1. The other columns
    /// are scaled to similar sizes, and their means are removed.
    fn oracle(&self, constant: bool) -> Vec<f64> {
        let Self { d, c, ridge, .. } = *self;
        let p = d - usize::from(constant);
        let m = self.x.len() / d;
        let scales: Vec<f64> = (0..p)
            .map(|j| {
                let largest = self.x.iter().skip(j).step_by(d).fold(0.0f64, |l, v| l.max(v.abs()));
                if largest == 0.0 { 1.0 } else { 2f64.powi(-(largest.log2().ceil() as i32)) }
            })
            .collect();
        let mean = |values: &[f64], width: usize, j: usize| {
            let sum =
                values.iter().skip(j).step_by(width).fold(Twice::default(), |s, v| s.add(Twice::of(*v)));
            sum.over(Twice::of(m as f64))
        };
        // Fraction of the means that is removed if the weight of the constant has a ridge.
        let share = Twice::of(1.0).over(Twice::of(1.0).add(Twice::of(ridge)));
        let none = Twice::default();
        let means: Vec<Twice> = (0..p).map(|j| if constant { mean(&self.x, d, j) } else { none }).collect();
        let targets: Vec<Twice> = (0..c).map(|o| if constant { mean(&self.y, c, o) } else { none }).collect();
        let scaled =
            |row: &[f64], j: usize| Twice::of(row[j]).add(means[j].neg()).times(Twice::of(scales[j]));
        let (mut gram, mut rhs) = (vec![vec![Twice::default(); p]; p], vec![vec![Twice::default(); c]; p]);
        for (row, y) in self.x.chunks_exact(d).zip(self.y.chunks_exact(c)) {
            let z: Vec<Twice> = (0..p).map(|j| scaled(row, j)).collect();
            for j in 0..p {
                for l in 0..p {
                    gram[j][l] = gram[j][l].add(z[j].times(z[l]));
                }
                for o in 0..c {
                    rhs[j][o] = rhs[j][o].add(z[j].times(Twice::of(y[o]).add(targets[o].neg())));
                }
            }
        }
        let count = Twice::of(m as f64);
        for j in 0..p {
            let scale = Twice::of(scales[j]);
            gram[j][j] = gram[j][j].add(count.times(Twice::of(ridge)).times(scale).times(scale));
            if constant {
                // With a ridge on the constant, m (1 - share) times the product of the means remains.
                let left = count.times(Twice::of(1.0).add(share.neg()));
                for l in 0..p {
                    let (a, b) = (means[j].times(scale), means[l].times(Twice::of(scales[l])));
                    gram[j][l] = gram[j][l].add(left.times(a).times(b));
                }
                for o in 0..c {
                    rhs[j][o] = rhs[j][o].add(left.times(means[j].times(scale)).times(targets[o]));
                }
            }
        }
        let mut l = vec![vec![Twice::default(); p]; p];
        for j in 0..p {
            for i in 0..=j {
                let done = (0..i).fold(gram[j][i], |s, t| s.add(l[j][t].times(l[i][t]).neg()));
                l[j][i] = if i == j { done.root() } else { done.over(l[i][i]) };
            }
        }
        #[allow(clippy::needless_range_loop, reason = "columns of the right-hand side")]
        for o in 0..c {
            for j in 0..p {
                let done = (0..j).fold(rhs[j][o], |s, t| s.add(l[j][t].times(rhs[t][o]).neg()));
                rhs[j][o] = done.over(l[j][j]);
            }
            for j in (0..p).rev() {
                let done = (j + 1..p).fold(rhs[j][o], |s, t| s.add(l[t][j].times(rhs[t][o]).neg()));
                rhs[j][o] = done.over(l[j][j]);
            }
        }
        let offset: Vec<Twice> = (0..c)
            .map(|o| {
                let others =
                    (0..p).fold(none, |s, j| s.add(means[j].times(Twice::of(scales[j])).times(rhs[j][o])));
                targets[o].add(others.neg()).times(share)
            })
            .collect();
        let rows = self.x.chunks_exact(d).chain(self.new.chunks_exact(d));
        let answer = |row: &[f64], o: usize| {
            let sum = (0..p).fold(offset[o], |s, j| {
                s.add(Twice::of(row[j]).times(Twice::of(scales[j])).times(rhs[j][o]))
            });
            sum.0
        };
        rows.flat_map(|row| (0..c).map(|o| answer(row, o)).collect::<Vec<_>>()).collect()
    }

    /// Condition number of the columns after their means are removed and each column is scaled to norm 1.
    fn condition(&self, constant: bool) -> f64 {
        let p = self.d - usize::from(constant);
        let m = self.x.len() / self.d;
        let mut z = Matrix::from_fn(m, p, |i, j| self.x[i * self.d + j]);
        for mut column in z.column_iter_mut() {
            let largest = column.amax();
            column /= largest;
            if constant {
                for _ in 0..2 {
                    let mean = column.sum() / m as f64;
                    column.add_scalar_mut(-mean);
                }
            }
            let norm = column.norm();
            column /= norm;
        }
        let values = z.svd(false, false).singular_values;
        values.max() / values.min()
    }
}

/// Uniform random number.
fn between(random: &mut Stream, low: f64, high: f64) -> f64 {
    low + (high - low) * random.uniform()
}

/// Random problem whose columns have deviations from 1e-6 to 1e6, means of up to 1e5 deviations, and a
/// collinearity that grows with `alike`.
fn case(random: &mut Stream, constant: bool, narrow: bool, alike: f64) -> Case {
    let integer = |random: &mut Stream, low: usize, high: usize| {
        low + (random.uniform() * (high - low) as f64) as usize
    };
    let (p, c) = (integer(random, 1, 8), integer(random, 1, 4));
    let d = p + usize::from(constant);
    let m = d + integer(random, 2, 50);
    let scales: Vec<f64> = (0..p).map(|_| 10f64.powf(between(random, -6.0, 6.0))).collect();
    let offsets: Vec<f64> = (0..p)
        .map(|_| {
            let size = if random.uniform() < 0.2 { 0.0 } else { 10f64.powf(between(random, -1.0, 5.0)) };
            if random.uniform() < 0.5 { -size } else { size }
        })
        .collect();
    let mixing: Vec<f64> = (0..p).map(|_| 10f64.powf(between(random, -alike, 0.0))).collect();
    let slopes: Vec<f64> = (0..p * c).map(|_| random.normal()).collect();
    let noise = 10f64.powf(between(random, -4.0, 0.0));
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for _ in 0..2 * m {
        let common = random.normal();
        let plain: Vec<f64> = mixing.iter().map(|own| common + own * random.normal()).collect();
        for o in 0..c {
            let signal: f64 = plain.iter().zip(slopes.iter().skip(o).step_by(c)).map(|(x, w)| x * w).sum();
            y.push(0.5 + signal + noise * random.normal());
        }
        for ((value, scale), offset) in plain.iter().zip(&scales).zip(&offsets) {
            let value = scale * (value + offset);
            x.push(if narrow { f64::from(value as f32) } else { value });
        }
        if constant {
            x.push(1.0);
        }
    }
    let new = x.split_off(m * d);
    y.truncate(m * c);
    Case { d, c, x, y, new, ridge: 0.0 }
}

/// Distance of two lists of predictions, relative to the spread of `right` or, without a constant, to the
/// norm of `right`.
fn error(found: &[f64], right: &[f64], c: usize, constant: bool) -> f64 {
    let count = (right.len() / c) as f64;
    let (mut wrong, mut all) = (0.0, 0.0);
    for o in 0..c {
        let output = |values: &[f64]| values.iter().skip(o).step_by(c).copied().collect::<Vec<_>>();
        let (found, right) = (output(found), output(right));
        let mean = if constant { right.iter().sum::<f64>() / count } else { 0.0 };
        wrong += found.iter().zip(&right).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        all += right.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    }
    (wrong / all).sqrt()
}

/// On ten thousand random problems with a condition number of at most 100, every prediction has an error of
/// at most 1e-6, without a warning. For larger condition numbers the prediction is accurate or there is a
/// warning.
#[test]
fn answers_do_not_depend_on_units_and_offsets() {
    let mut random = stream(24, Purpose::Partition, 0);
    let (mut well, mut worst, mut warned, mut beyond) = (0, 0.0f64, 0, 0);
    for number in 0..10_000 {
        let (constant, narrow) = (number % 5 > 0, number % 3 == 0);
        let alike = [0.0, 1.0, 2.0, 5.0, 9.0][number % 7 % 5];
        let case = case(&mut random, constant, narrow, alike);
        let fit = case.fit(if narrow { F32_ROUNDOFF } else { F64_ROUNDOFF });
        let (condition, right) = (case.condition(constant), case.oracle(constant));
        let off = error(&case.answers(&fit.weights), &right, case.c, constant);
        let numbers = format!("problem {number}: condition {condition:e}, error {off:e}, {:?}", fit.dropped);
        if condition <= 100.0 {
            assert!(off <= 1e-6 && !fit.dropped.is_loss() && fit.dropped.directions == 0, "{numbers}");
            (well, worst) = (well + 1, worst.max(off));
        } else {
            assert!(off <= 1e-6 || fit.dropped.is_loss(), "a silent miss: {numbers}");
            (beyond, warned) = (beyond + 1, warned + usize::from(fit.dropped.is_loss()));
        }
    }
    println!(
        "{well} of condition 100 at most, worst error {worst:e}; {beyond} beyond, {warned} of these warned"
    );
    assert!(well > 3_000 && beyond > 3_000);
}

/// The ridge applies to the weights in the units of the given features, and to the weight of the constant.
#[test]
fn ridge_applies_to_unscaled_features() {
    let mut random = stream(24, Purpose::Partition, 1);
    for number in 0..2_000 {
        let constant = number % 4 > 0;
        let mut case = case(&mut random, constant, false, 1.0);
        case.ridge = 10f64.powf(between(&mut random, -8.0, 3.0));
        let fit = case.fit(F64_ROUNDOFF);
        let right = case.oracle(constant);
        // With a large ridge the predictions have almost no spread, so the error is relative to their norm.
        let off = error(&case.answers(&fit.weights), &right, case.c, false);
        let numbers = format!("problem {number}: ridge {:e}, error {off:e}, {:?}", case.ridge, fit.dropped);
        assert!(off <= 1e-6 || case.condition(constant) > 100.0 && fit.dropped.is_loss(), "{numbers}");
    }
}

/// Function that computes an additional column from the features of a row.
type Column<'a> = &'a dyn Fn(&[f64]) -> f64;

/// Prepends columns to the features of a case.
fn widened(case: &Case, extra: &[Column]) -> Case {
    let wide = |values: &[f64]| {
        let row =
            |row: &[f64]| extra.iter().map(|of| of(row)).chain(row.iter().copied()).collect::<Vec<f64>>();
        values.chunks_exact(case.d).flat_map(row).collect::<Vec<f64>>()
    };
    Case { d: case.d + extra.len(), x: wide(&case.x), new: wide(&case.new), y: case.y.clone(), ..*case }
}

/// If there are several constants or scaled copies of a column, a ridge distributes the weight over them
/// according to the sizes of the columns.
#[test]
fn ridge_is_shared_by_constants_and_copies() {
    let mut random = stream(24, Purpose::Partition, 5);
    for number in 0..600 {
        let constant = number % 3 > 0;
        let mut plain = case(&mut random, constant, false, 0.5);
        // With a single sample, every column is constant.
        if number % 10 == 0 {
            (plain.x, plain.y) = (plain.x[..plain.d].to_vec(), plain.y[..plain.c].to_vec());
        }
        plain.ridge = 10f64.powf(between(&mut random, -4.0, 2.0));
        let [first, second, factor] = [0; 3].map(|_| 10f64.powf(between(&mut random, -3.0, 4.0)));
        for extra in [
            &[&(|_: &[f64]| first) as &dyn Fn(&[f64]) -> f64, &|_| -second][..],
            &[&|row| factor * row[0]],
            &[&|_| first, &|row| -row[0], &|_| 0.0],
        ] {
            let case = widened(&plain, extra);
            let (fit, right) = (case.fit(F64_ROUNDOFF), case.oracle(false));
            let off = error(&case.answers(&fit.weights), &right, case.c, false);
            let numbers =
                format!("problem {number}: ridge {:e}, error {off:e}, {:?}", case.ridge, fit.dropped);
            assert!(off <= 1e-6, "{numbers}");
            // A warning is allowed only for copies, whose weights a ridge below the rounding level cannot
            // separate.
            assert!(extra.len() != 2 || !fit.dropped.is_loss(), "{numbers}");
        }
    }
}

/// Without a ridge, copies of columns and additional constants change no prediction and cause no warning.
#[test]
fn copies_and_further_constants_change_no_answer() {
    let mut random = stream(24, Purpose::Partition, 6);
    for number in 0..1_000 {
        let constant = number % 3 > 0;
        let (plain, factor) = (case(&mut random, constant, false, 0.5), 2f64.powi(number % 41 - 20));
        let size = between(&mut random, 1e-6, 1e6);
        let right = plain.oracle(constant);
        let copies: &[Column] = match constant {
            true => &[&|row| factor * row[0], &|_| size, &|row| -row[0]],
            false => &[&|row| factor * row[0], &|_| 0.0, &|row| -row[0]],
        };
        let fit = widened(&plain, copies).fit(F64_ROUNDOFF);
        let off = error(&widened(&plain, copies).answers(&fit.weights), &right, plain.c, constant);
        let condition = plain.condition(constant);
        let numbers = format!("problem {number}: condition {condition:e}, error {off:e}, {:?}", fit.dropped);
        assert!(off <= 1e-6 && !fit.dropped.is_loss() || condition > 100.0, "{numbers}");
    }
}

/// Another unit of a feature changes its weight but no prediction. With a constant, the same holds for
/// another origin.
#[test]
fn unit_and_origin_changes_keep_the_answers() {
    let mut random = stream(24, Purpose::Partition, 2);
    for _ in 0..500 {
        let case = case(&mut random, true, false, 0.5);
        let factors: Vec<f64> = (0..case.d).map(|_| 10f64.powf(between(&mut random, -6.0, 6.0))).collect();
        let before = case.answers(&case.fit(F64_ROUNDOFF).weights);
        let m = case.x.len() / case.d;
        let deviation = |j: usize| {
            let column: Vec<f64> = case.x.iter().skip(j).step_by(case.d).copied().collect();
            let mean = column.iter().sum::<f64>() / m as f64;
            (column.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / m as f64).sqrt()
        };
        let shifts: Vec<f64> =
            (0..case.d).map(|j| deviation(j) * 10f64.powf(between(&mut random, 0.0, 5.0))).collect();
        let changed = |values: &[f64]| -> Vec<f64> {
            let change = |(at, value): (usize, &f64)| match at % case.d {
                constant if constant + 1 == case.d => *value,
                j => factors[j] * (value + shifts[j]),
            };
            values.iter().enumerate().map(change).collect()
        };
        let other = Case { x: changed(&case.x), new: changed(&case.new), y: case.y.clone(), ..case };
        let fit = other.fit(F64_ROUNDOFF);
        let off = error(&other.answers(&fit.weights), &before, case.c, true);
        // Sums of numbers at 1e5 deviations from zero lose five of sixteen digits. A large condition number
        // loses further digits.
        let condition = other.condition(true);
        assert!(off <= 1e-8 || condition > 100.0, "{off:e} {condition:e} {:?}", fit.dropped);
        assert!(!fit.dropped.is_loss() || condition > 100.0);
    }
}

/// With fewer samples than columns, the weights are the least-norm solution, i.e. a linear combination of the
/// samples. The samples are fitted exactly and without a warning.
#[test]
fn few_samples_give_the_least_norm_solution() {
    let mut random = stream(24, Purpose::Partition, 3);
    for number in 0..200 {
        let (d, m) = (12, 1 + number % 10);
        let x: Vec<f64> = (0..m * d)
            .map(|at| if at % d + 1 == d { 1.0 } else { random.normal() + 3.0 * f64::from(at as u32 % 2) })
            .collect();
        let y: Vec<f64> = (0..m).map(|_| random.normal()).collect();
        let case = Case { d, c: 1, x, y, new: Vec::new(), ridge: 0.0 };
        let fit = case.fit(F64_ROUNDOFF);
        assert!(fit.dropped.few_samples && !fit.dropped.is_loss(), "{:?}", fit.dropped);
        assert_eq!(fit.dropped.directions, d - m);
        let off: f64 = case.answers(&fit.weights).iter().zip(&case.y).map(|(a, b)| (a - b).powi(2)).sum();
        assert!(off.sqrt() < 1e-9, "{off:e}");
        // Component of the weights outside the span of the samples, by Gram-Schmidt.
        let mut basis: Vec<Vec<f64>> = Vec::new();
        for row in case.x.chunks_exact(d) {
            let mut row = row.to_vec();
            for _ in 0..2 {
                remove(&mut row, &basis);
            }
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            basis.push(row.iter().map(|v| v / norm).collect());
        }
        let mut rest = fit.weights.clone();
        remove(&mut rest, &basis);
        assert!(rest.iter().map(|v| v * v).sum::<f64>().sqrt() < 1e-9, "{rest:?}");
    }
}

/// Removes the components of a row along orthonormal vectors.
fn remove(row: &mut [f64], basis: &[Vec<f64>]) {
    for b in basis {
        let part: f64 = b.iter().zip(row.iter()).map(|(x, y)| x * y).sum();
        row.iter_mut().zip(b).for_each(|(value, b)| *value -= part * b);
    }
}

/// Exact linear combinations and zero columns are counted without a warning, because no information is lost.
/// If two columns differ only by rounding, their difference is lost, and the result names both columns.
#[test]
fn lossy_columns_are_named() {
    let mut random = stream(24, Purpose::Partition, 4);
    let plain: Vec<f64> = (0..40).map(|_| (random.normal() * 64.0).round() / 8.0).collect();
    let y: Vec<f64> = plain.iter().map(|v| v + random.normal()).collect();
    let with = |other: &dyn Fn(f64) -> f64, roundoff: f64| {
        let x: Vec<f64> = plain.iter().flat_map(|v| [*v, 0.0, other(*v), 1.0]).collect();
        let case = Case { d: 4, c: 1, x, y: y.clone(), new: Vec::new(), ridge: 0.0 };
        case.fit(roundoff)
    };
    let twice = with(&|v| 2.0 * v, F64_ROUNDOFF);
    assert_eq!((twice.dropped.directions, twice.dropped.is_loss()), (1, false));
    // If one column is twice another column, the least-norm weights have the same ratio.
    assert!((twice.weights[2] - 2.0 * twice.weights[0]).abs() < 1e-9, "{:?}", twice.weights);
    let fahrenheit = with(&|v| f64::from((32.0 + 1.8 * v) as f32), F32_ROUNDOFF);
    assert_eq!((fahrenheit.dropped.directions, fahrenheit.dropped.columns.as_slice()), (1, &[0, 2][..]));
    assert!(fahrenheit.dropped.is_loss());
    let clock = with(&|v| 1e12 + v, F64_ROUNDOFF);
    assert_eq!(
        (clock.dropped.is_loss(), clock.dropped.columns.as_slice()),
        (true, &[2][..]),
        "{:?}",
        clock.dropped
    );
    let nothing = with(&|_| 5.0, F64_ROUNDOFF);
    assert_eq!((nothing.dropped.directions, nothing.dropped.is_loss()), (0, false), "a second constant");
}
