//! Tests of the least squares solver: comparison with an oracle that solves the normal equations in
//! double-double arithmetic.

use fedspan_engine::linalg::Matrix;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_sim_core::least_squares::{F32_ROUNDOFF, F64_ROUNDOFF, Fit, Problem, predict, solve};

/// Double-double number: the sum of two f64 with 106 bits of precision (Dekker 1971).
#[derive(Clone, Copy, Debug, Default)]
struct DoubleDouble(f64, f64);

impl DoubleDouble {
    /// Converts an f64.
    fn from_f64(value: f64) -> Self {
        Self(value, 0.0)
    }

    /// Exact sum of two f64.
    fn exact_sum(a: f64, b: f64) -> Self {
        let s = a + b;
        let bb = s - a;
        Self(s, (a - (s - bb)) + (b - bb))
    }

    /// Exact sum of two f64, where `a` has the larger magnitude.
    fn fast_exact_sum(a: f64, b: f64) -> Self {
        let s = a + b;
        Self(s, b - (s - a))
    }

    fn add(self, other: Self) -> Self {
        let Self(s, e) = Self::exact_sum(self.0, other.0);
        let Self(t, f) = Self::exact_sum(self.1, other.1);
        let Self(s, e) = Self::fast_exact_sum(s, e + t);
        Self::fast_exact_sum(s, e + f)
    }

    fn neg(self) -> Self {
        Self(-self.0, -self.1)
    }

    /// Product.
    fn times(self, other: Self) -> Self {
        let p = self.0 * other.0;
        let e = self.0.mul_add(other.0, -p) + (self.0 * other.1 + self.1 * other.0);
        Self::fast_exact_sum(p, e)
    }

    /// Quotient.
    fn divide(self, other: Self) -> Self {
        let first = self.0 / other.0;
        let remainder = self.add(other.times(Self::from_f64(first)).neg());
        let second = remainder.0 / other.0;
        let remainder = remainder.add(other.times(Self::from_f64(second)).neg());
        Self::fast_exact_sum(first, second).add(Self::from_f64(remainder.0 / other.0))
    }

    /// Square root.
    fn square_root(self) -> Self {
        let first = Self::from_f64(self.0.sqrt());
        let remainder = self.add(first.times(first).neg());
        first.add(remainder.divide(first.add(first)))
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
    fn predictions(&self, weights: &[f64]) -> Vec<f64> {
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
            let sum = values
                .iter()
                .skip(j)
                .step_by(width)
                .fold(DoubleDouble::default(), |s, v| s.add(DoubleDouble::from_f64(*v)));
            sum.divide(DoubleDouble::from_f64(m as f64))
        };
        // Fraction of the means that is removed if the weight of the constant has a ridge.
        let share = DoubleDouble::from_f64(1.0)
            .divide(DoubleDouble::from_f64(1.0).add(DoubleDouble::from_f64(ridge)));
        let zero = DoubleDouble::default();
        let means: Vec<DoubleDouble> =
            (0..p).map(|j| if constant { mean(&self.x, d, j) } else { zero }).collect();
        let targets: Vec<DoubleDouble> =
            (0..c).map(|o| if constant { mean(&self.y, c, o) } else { zero }).collect();
        let scaled = |row: &[f64], j: usize| {
            DoubleDouble::from_f64(row[j]).add(means[j].neg()).times(DoubleDouble::from_f64(scales[j]))
        };
        let (mut gram, mut rhs) =
            (vec![vec![DoubleDouble::default(); p]; p], vec![vec![DoubleDouble::default(); c]; p]);
        for (row, y) in self.x.chunks_exact(d).zip(self.y.chunks_exact(c)) {
            let z: Vec<DoubleDouble> = (0..p).map(|j| scaled(row, j)).collect();
            for j in 0..p {
                for l in 0..p {
                    gram[j][l] = gram[j][l].add(z[j].times(z[l]));
                }
                for o in 0..c {
                    rhs[j][o] = rhs[j][o].add(z[j].times(DoubleDouble::from_f64(y[o]).add(targets[o].neg())));
                }
            }
        }
        let count = DoubleDouble::from_f64(m as f64);
        for j in 0..p {
            let scale = DoubleDouble::from_f64(scales[j]);
            gram[j][j] = gram[j][j].add(count.times(DoubleDouble::from_f64(ridge)).times(scale).times(scale));
            if constant {
                // With a ridge on the constant, m (1 - share) times the product of the means remains.
                let remaining_count = count.times(DoubleDouble::from_f64(1.0).add(share.neg()));
                for l in 0..p {
                    let (a, b) = (means[j].times(scale), means[l].times(DoubleDouble::from_f64(scales[l])));
                    gram[j][l] = gram[j][l].add(remaining_count.times(a).times(b));
                }
                for o in 0..c {
                    rhs[j][o] = rhs[j][o].add(remaining_count.times(means[j].times(scale)).times(targets[o]));
                }
            }
        }
        let mut l = vec![vec![DoubleDouble::default(); p]; p];
        for j in 0..p {
            for i in 0..=j {
                let remainder = (0..i).fold(gram[j][i], |s, t| s.add(l[j][t].times(l[i][t]).neg()));
                l[j][i] = if i == j { remainder.square_root() } else { remainder.divide(l[i][i]) };
            }
        }
        #[allow(clippy::needless_range_loop, reason = "columns of the right-hand side")]
        for o in 0..c {
            for j in 0..p {
                let remainder = (0..j).fold(rhs[j][o], |s, t| s.add(l[j][t].times(rhs[t][o]).neg()));
                rhs[j][o] = remainder.divide(l[j][j]);
            }
            for j in (0..p).rev() {
                let remainder = (j + 1..p).fold(rhs[j][o], |s, t| s.add(l[t][j].times(rhs[t][o]).neg()));
                rhs[j][o] = remainder.divide(l[j][j]);
            }
        }
        let offset: Vec<DoubleDouble> = (0..c)
            .map(|o| {
                let explained = (0..p).fold(zero, |s, j| {
                    s.add(means[j].times(DoubleDouble::from_f64(scales[j])).times(rhs[j][o]))
                });
                targets[o].add(explained.neg()).times(share)
            })
            .collect();
        let rows = self.x.chunks_exact(d).chain(self.new.chunks_exact(d));
        let answer = |row: &[f64], o: usize| {
            let sum = (0..p).fold(offset[o], |s, j| {
                s.add(
                    DoubleDouble::from_f64(row[j]).times(DoubleDouble::from_f64(scales[j])).times(rhs[j][o]),
                )
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
fn uniform_between(random: &mut Stream, low: f64, high: f64) -> f64 {
    low + (high - low) * random.uniform()
}

/// Random problem whose columns have deviations from 1e-6 to 1e6, means of up to 1e5 deviations, and become
/// more similar as `collinearity` grows.
fn random_case(random: &mut Stream, constant: bool, as_f32: bool, collinearity: f64) -> Case {
    let integer = |random: &mut Stream, low: usize, high: usize| {
        low + (random.uniform() * (high - low) as f64) as usize
    };
    let (p, c) = (integer(random, 1, 8), integer(random, 1, 4));
    let d = p + usize::from(constant);
    let m = d + integer(random, 2, 50);
    let scales: Vec<f64> = (0..p).map(|_| 10f64.powf(uniform_between(random, -6.0, 6.0))).collect();
    let offsets: Vec<f64> = (0..p)
        .map(|_| {
            let size =
                if random.uniform() < 0.2 { 0.0 } else { 10f64.powf(uniform_between(random, -1.0, 5.0)) };
            if random.uniform() < 0.5 { -size } else { size }
        })
        .collect();
    let mixing: Vec<f64> = (0..p).map(|_| 10f64.powf(uniform_between(random, -collinearity, 0.0))).collect();
    let slopes: Vec<f64> = (0..p * c).map(|_| random.normal()).collect();
    let noise = 10f64.powf(uniform_between(random, -4.0, 0.0));
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for _ in 0..2 * m {
        let common = random.normal();
        let plain: Vec<f64> = mixing.iter().map(|weight| common + weight * random.normal()).collect();
        for o in 0..c {
            let signal: f64 = plain.iter().zip(slopes.iter().skip(o).step_by(c)).map(|(x, w)| x * w).sum();
            y.push(0.5 + signal + noise * random.normal());
        }
        for ((value, scale), offset) in plain.iter().zip(&scales).zip(&offsets) {
            let value = scale * (value + offset);
            x.push(if as_f32 { f64::from(value as f32) } else { value });
        }
        if constant {
            x.push(1.0);
        }
    }
    let new = x.split_off(m * d);
    y.truncate(m * c);
    Case { d, c, x, y, new, ridge: 0.0 }
}

/// Distance of two lists of predictions, relative to the spread of `expected` or, without a constant, to the
/// norm of `expected`.
fn relative_distance(predicted: &[f64], expected: &[f64], c: usize, constant: bool) -> f64 {
    let count = (expected.len() / c) as f64;
    let (mut squared_error, mut squared_spread) = (0.0, 0.0);
    for o in 0..c {
        let output = |values: &[f64]| values.iter().skip(o).step_by(c).copied().collect::<Vec<_>>();
        let (predicted, expected) = (output(predicted), output(expected));
        let mean = if constant { expected.iter().sum::<f64>() / count } else { 0.0 };
        squared_error += predicted.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        squared_spread += expected.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    }
    (squared_error / squared_spread).sqrt()
}

/// On ten thousand random problems with a condition number of at most 100, every prediction has an error of
/// at most 1e-6, without a warning. For larger condition numbers the prediction is accurate or there is a
/// warning.
#[test]
fn answers_do_not_depend_on_units_and_offsets() {
    let mut random = stream(24, Purpose::Partition, 0);
    let mut well_conditioned = 0;
    let mut worst_error = 0.0f64;
    let mut warned = 0;
    let mut ill_conditioned = 0;
    for number in 0..10_000 {
        let (constant, narrow) = (number % 5 > 0, number % 3 == 0);
        let collinearity = [0.0, 1.0, 2.0, 5.0, 9.0][number % 7 % 5];
        let case = random_case(&mut random, constant, narrow, collinearity);
        let fit = case.fit(if narrow { F32_ROUNDOFF } else { F64_ROUNDOFF });
        let (condition, expected) = (case.condition(constant), case.oracle(constant));
        let distance = relative_distance(&case.predictions(&fit.weights), &expected, case.c, constant);
        let details =
            format!("problem {number}: condition {condition:e}, error {distance:e}, {:?}", fit.dropped);
        if condition <= 100.0 {
            assert!(distance <= 1e-6 && !fit.dropped.is_loss() && fit.dropped.directions == 0, "{details}");
            (well_conditioned, worst_error) = (well_conditioned + 1, worst_error.max(distance));
        } else {
            assert!(distance <= 1e-6 || fit.dropped.is_loss(), "no warning for an inaccurate fit: {details}");
            (ill_conditioned, warned) = (ill_conditioned + 1, warned + usize::from(fit.dropped.is_loss()));
        }
    }
    println!(
        "{well_conditioned} of condition 100 at most, worst error {worst_error:e}; \
         {ill_conditioned} beyond, {warned} of these warned"
    );
    assert!(well_conditioned > 3_000 && ill_conditioned > 3_000);
}

/// The ridge applies to the weights in the units of the given features, and to the weight of the constant.
#[test]
fn ridge_applies_to_unscaled_features() {
    let mut random = stream(24, Purpose::Partition, 1);
    for number in 0..2_000 {
        let constant = number % 4 > 0;
        let mut case = random_case(&mut random, constant, false, 1.0);
        case.ridge = 10f64.powf(uniform_between(&mut random, -8.0, 3.0));
        let fit = case.fit(F64_ROUNDOFF);
        let expected = case.oracle(constant);
        // With a large ridge the predictions have almost no spread, so the error is relative to their norm.
        let distance = relative_distance(&case.predictions(&fit.weights), &expected, case.c, false);
        let details =
            format!("problem {number}: ridge {:e}, error {distance:e}, {:?}", case.ridge, fit.dropped);
        assert!(distance <= 1e-6 || case.condition(constant) > 100.0 && fit.dropped.is_loss(), "{details}");
    }
}

/// Function that computes an additional column from the features of a row.
type Column<'a> = &'a dyn Fn(&[f64]) -> f64;

/// Prepends columns to the features of a case.
fn widened(case: &Case, extra: &[Column]) -> Case {
    let widen = |values: &[f64]| {
        let row = |row: &[f64]| {
            extra.iter().map(|column| column(row)).chain(row.iter().copied()).collect::<Vec<f64>>()
        };
        values.chunks_exact(case.d).flat_map(row).collect::<Vec<f64>>()
    };
    Case { d: case.d + extra.len(), x: widen(&case.x), new: widen(&case.new), y: case.y.clone(), ..*case }
}

/// If there are several constants or scaled copies of a column, a ridge distributes the weight over them
/// according to the sizes of the columns.
#[test]
fn ridge_is_shared_by_constants_and_copies() {
    let mut random = stream(24, Purpose::Partition, 5);
    for number in 0..600 {
        let constant = number % 3 > 0;
        let mut plain = random_case(&mut random, constant, false, 0.5);
        // With a single sample, every column is constant.
        if number % 10 == 0 {
            (plain.x, plain.y) = (plain.x[..plain.d].to_vec(), plain.y[..plain.c].to_vec());
        }
        plain.ridge = 10f64.powf(uniform_between(&mut random, -4.0, 2.0));
        let [first, second, factor] = [0; 3].map(|_| 10f64.powf(uniform_between(&mut random, -3.0, 4.0)));
        for extra in [
            &[&(|_: &[f64]| first) as &dyn Fn(&[f64]) -> f64, &|_| -second][..],
            &[&|row| factor * row[0]],
            &[&|_| first, &|row| -row[0], &|_| 0.0],
        ] {
            let case = widened(&plain, extra);
            let (fit, expected) = (case.fit(F64_ROUNDOFF), case.oracle(false));
            let distance = relative_distance(&case.predictions(&fit.weights), &expected, case.c, false);
            let details =
                format!("problem {number}: ridge {:e}, error {distance:e}, {:?}", case.ridge, fit.dropped);
            assert!(distance <= 1e-6, "{details}");
            // A warning is allowed only for copies, whose weights a ridge below the rounding level cannot
            // separate.
            assert!(extra.len() != 2 || !fit.dropped.is_loss(), "{details}");
        }
    }
}

/// Without a ridge, copies of columns and additional constants change no prediction and cause no warning.
#[test]
fn copies_and_further_constants_change_no_answer() {
    let mut random = stream(24, Purpose::Partition, 6);
    for number in 0..1_000 {
        let constant = number % 3 > 0;
        let (plain, factor) = (random_case(&mut random, constant, false, 0.5), 2f64.powi(number % 41 - 20));
        let size = uniform_between(&mut random, 1e-6, 1e6);
        let expected = plain.oracle(constant);
        let copies: &[Column] = match constant {
            true => &[&|row| factor * row[0], &|_| size, &|row| -row[0]],
            false => &[&|row| factor * row[0], &|_| 0.0, &|row| -row[0]],
        };
        let fit = widened(&plain, copies).fit(F64_ROUNDOFF);
        let distance = relative_distance(
            &widened(&plain, copies).predictions(&fit.weights),
            &expected,
            plain.c,
            constant,
        );
        let condition = plain.condition(constant);
        let details =
            format!("problem {number}: condition {condition:e}, error {distance:e}, {:?}", fit.dropped);
        assert!(distance <= 1e-6 && !fit.dropped.is_loss() || condition > 100.0, "{details}");
    }
}

/// Another unit of a feature changes its weight but no prediction. With a constant, the same holds for
/// another origin.
#[test]
fn unit_and_origin_changes_keep_the_answers() {
    let mut random = stream(24, Purpose::Partition, 2);
    for _ in 0..500 {
        let case = random_case(&mut random, true, false, 0.5);
        let factors: Vec<f64> =
            (0..case.d).map(|_| 10f64.powf(uniform_between(&mut random, -6.0, 6.0))).collect();
        let original = case.predictions(&case.fit(F64_ROUNDOFF).weights);
        let m = case.x.len() / case.d;
        let deviation = |j: usize| {
            let column: Vec<f64> = case.x.iter().skip(j).step_by(case.d).copied().collect();
            let mean = column.iter().sum::<f64>() / m as f64;
            (column.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / m as f64).sqrt()
        };
        let shifts: Vec<f64> =
            (0..case.d).map(|j| deviation(j) * 10f64.powf(uniform_between(&mut random, 0.0, 5.0))).collect();
        let changed = |values: &[f64]| -> Vec<f64> {
            let change = |(index, value): (usize, &f64)| match index % case.d {
                constant if constant + 1 == case.d => *value,
                j => factors[j] * (value + shifts[j]),
            };
            values.iter().enumerate().map(change).collect()
        };
        let changed_case = Case { x: changed(&case.x), new: changed(&case.new), y: case.y.clone(), ..case };
        let fit = changed_case.fit(F64_ROUNDOFF);
        let distance = relative_distance(&changed_case.predictions(&fit.weights), &original, case.c, true);
        // Sums of numbers at 1e5 deviations from zero lose five of sixteen digits. A large condition number
        // loses further digits.
        let condition = changed_case.condition(true);
        assert!(distance <= 1e-8 || condition > 100.0, "{distance:e} {condition:e} {:?}", fit.dropped);
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
        let x: Vec<f64> =
            (0..m * d)
                .map(|index| {
                    if index % d + 1 == d { 1.0 } else { random.normal() + 3.0 * f64::from(index as u32 % 2) }
                })
                .collect();
        let y: Vec<f64> = (0..m).map(|_| random.normal()).collect();
        let case = Case { d, c: 1, x, y, new: Vec::new(), ridge: 0.0 };
        let fit = case.fit(F64_ROUNDOFF);
        assert!(fit.dropped.few_samples && !fit.dropped.is_loss(), "{:?}", fit.dropped);
        assert_eq!(fit.dropped.directions, d - m);
        let squared_error: f64 =
            case.predictions(&fit.weights).iter().zip(&case.y).map(|(a, b)| (a - b).powi(2)).sum();
        assert!(squared_error.sqrt() < 1e-9, "{squared_error:e}");
        // Component of the weights outside the span of the samples, by Gram-Schmidt.
        let mut basis: Vec<Vec<f64>> = Vec::new();
        for row in case.x.chunks_exact(d) {
            let mut row = row.to_vec();
            for _ in 0..2 {
                remove_components(&mut row, &basis);
            }
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            basis.push(row.iter().map(|v| v / norm).collect());
        }
        let mut outside_span = fit.weights.clone();
        remove_components(&mut outside_span, &basis);
        assert!(outside_span.iter().map(|v| v * v).sum::<f64>().sqrt() < 1e-9, "{outside_span:?}");
    }
}

/// Removes the components of a row along orthonormal vectors.
fn remove_components(row: &mut [f64], basis: &[Vec<f64>]) {
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
    let fit_with_copy = |second_column: &dyn Fn(f64) -> f64, roundoff: f64| {
        let x: Vec<f64> = plain.iter().flat_map(|v| [*v, 0.0, second_column(*v), 1.0]).collect();
        let case = Case { d: 4, c: 1, x, y: y.clone(), new: Vec::new(), ridge: 0.0 };
        case.fit(roundoff)
    };
    let doubled = fit_with_copy(&|v| 2.0 * v, F64_ROUNDOFF);
    assert_eq!((doubled.dropped.directions, doubled.dropped.is_loss()), (1, false));
    // If one column is twice another column, the least-norm weights have the same ratio.
    assert!((doubled.weights[2] - 2.0 * doubled.weights[0]).abs() < 1e-9, "{:?}", doubled.weights);
    let fahrenheit = fit_with_copy(&|v| f64::from((32.0 + 1.8 * v) as f32), F32_ROUNDOFF);
    assert_eq!((fahrenheit.dropped.directions, fahrenheit.dropped.columns.as_slice()), (1, &[0, 2][..]));
    assert!(fahrenheit.dropped.is_loss());
    let shifted = fit_with_copy(&|v| 1e12 + v, F64_ROUNDOFF);
    assert_eq!(
        (shifted.dropped.is_loss(), shifted.dropped.columns.as_slice()),
        (true, &[2][..]),
        "{:?}",
        shifted.dropped
    );
    let constant = fit_with_copy(&|_| 5.0, F64_ROUNDOFF);
    assert_eq!(
        (constant.dropped.directions, constant.dropped.is_loss()),
        (0, false),
        "dropped a direction for a second constant"
    );
}
