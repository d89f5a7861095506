//! Preparation of the columns of a least-squares problem: removes the part of each column that the constant
//! columns explain, and scales the remainder to norm 1.

use super::{F64_ROUNDOFF, Problem};

/// Largest deviation of a column that is treated as constant, in unit roundoffs of the column's size. The
/// deviation then has fewer than four significant bits.
const MIN_DEVIATION_ROUNDOFFS: f64 = 16.0;

/// Ratio of size to deviation above which a column is treated as constant even in f64: the error of
/// predictions would exceed 1e-6 of their variation.
const MAX_AMPLIFICATION: f64 = 1e9;

/// Relative error of a prediction above which directions are treated as noise.
const MAX_RELATIVE_ERROR: f64 = 1e-6;

/// Varying columns of a problem, prepared for the solvers.
#[derive(Debug)]
pub struct Columns {
    /// Number of samples.
    pub m: usize,
    /// Number of columns including constant columns, `d`.
    pub d: usize,
    /// Number of outputs, `C`.
    pub c: usize,
    /// Indices of the varying columns.
    pub varying: Vec<usize>,
    /// Indices of the columns that are treated as constant because their variation is within rounding errors.
    pub near_constant: Vec<usize>,
    /// Varying columns, row-major, m x p. If there is a ridge and a constant, one further row has the terms
    /// by which the ridge on the constant's weight affects the columns. The other p rows of the ridge have
    /// one entry each, stored in `ridge`.
    pub z: Vec<f64>,
    /// Targets without the part that the constant explains, with as many rows as `z`.
    pub y: Vec<f64>,
    /// Entry of the ridge row of each varying column.
    pub ridge: Vec<f64>,
    /// Factor by which a weight of a column of `z` is multiplied to obtain the weight of the varying column.
    pub unit: Vec<f64>,
    /// Root of the sum over varying columns of the squared ratio of the column's norm to the norm of its
    /// remainder.
    pub amplification: f64,
    /// Unit roundoff of the features, as in [`Problem`].
    pub roundoff: f64,
    /// Constant that was removed; `None` if no column is constant.
    pub constant: Option<Constant>,
}

/// Combination of all constant columns into a single column. The combination preserves the norm of the
/// weights, and so the effect of the ridge.
#[derive(Debug)]
pub struct Constant {
    /// Index of the column in which the combined constant is represented: the last constant column.
    pub column: usize,
    /// Indices of all constant columns, with the share of each in the combined column. The squares of the
    /// shares sum to 1.
    pub parts: Vec<(usize, f64)>,
    /// Value of the combined constant: the norm of the values of all constant columns.
    pub value: f64,
    /// Divisor `(value^2 + ridge) / value`, which converts the mean of the residual targets to the weight of
    /// the combined constant.
    pub weighted_value: f64,
    /// Mean of each column; 0 for constant columns.
    pub means: Vec<f64>,
    /// Means of the targets.
    pub targets: Vec<f64>,
}

impl Columns {
    /// Prepares the columns of a problem of `m` samples.
    pub fn new(problem: &Problem<'_>, m: usize) -> Self {
        let Problem { x, y, features: d, outputs: c, ridge, roundoff } = *problem;
        let column = |j: usize| x.iter().skip(j).step_by(d.max(1)).copied();
        let value = |j: usize| {
            let first = column(j).next().unwrap_or(0.0);
            column(j).all(|value| value == first).then_some(first)
        };
        let values: Vec<Option<f64>> = (0..d).map(value).collect();
        let valued = |j: usize| values.get(j).copied().flatten().filter(|value| *value != 0.0);
        let constants: Vec<(usize, f64)> = (0..d).filter_map(|j| Some((j, valued(j)?))).collect();
        let constant = constants.last().map(|&(column, _)| {
            let value = constants.iter().fold(0.0f64, |norm, (_, value)| norm.hypot(*value));
            Constant {
                column,
                parts: constants.iter().map(|(j, column_value)| (*j, column_value / value)).collect(),
                value,
                weighted_value: value + ridge / value,
                means: (0..d).map(|j| if valued(j).is_some() { 0.0 } else { mean(x, d, j, m) }).collect(),
                targets: (0..c).map(|output| mean(y, c, output, m)).collect(),
            }
        });
        let samples = m as f64;
        let root = (samples * ridge).sqrt();
        // For a column with this mean: the part that the constant explains, and the entry of the column in
        // the ridge row of the constant.
        let share = |mean: f64| match &constant {
            Some(constant) => {
                (mean * constant.value / constant.weighted_value, -root * mean / constant.weighted_value)
            }
            None => (0.0, 0.0),
        };
        let mut prepared = Self {
            m,
            d,
            c,
            varying: Vec::new(),
            near_constant: Vec::new(),
            z: Vec::new(),
            y: Vec::new(),
            ridge: Vec::new(),
            unit: Vec::new(),
            amplification: 0.0,
            roundoff,
            constant: None,
        };
        let mut shares = Vec::new();
        for (j, value) in values.iter().enumerate() {
            if value.is_some() {
                continue;
            }
            let (part, ridge_entry) = share(
                constant.as_ref().map_or(0.0, |constant| constant.means.get(j).copied().unwrap_or(0.0)),
            );
            let largest = column(j).fold(0.0f64, |largest, value| largest.max(value.abs()));
            // Values are divided by the largest value, so that squares do not overflow.
            let (mut size, mut remainder) = (0.0, 0.0);
            for value in column(j) {
                size += (value / largest).powi(2);
                remainder += ((value - part) / largest).powi(2);
            }
            let amplification = (size / remainder).sqrt();
            let max_amplification = (1.0 / (MIN_DEVIATION_ROUNDOFFS * roundoff)).min(MAX_AMPLIFICATION);
            // NaN is treated as constant.
            if amplification.is_nan() || amplification > max_amplification {
                prepared.near_constant.push(j);
                continue;
            }
            prepared.amplification = prepared.amplification.hypot(amplification);
            let norm =
                largest * (remainder + ((ridge_entry / largest).powi(2) + (root / largest).powi(2))).sqrt();
            prepared.varying.push(j);
            prepared.unit.push(1.0 / norm);
            prepared.ridge.push(root / norm);
            shares.push((part, ridge_entry / norm));
        }
        prepared.fill(problem, &shares);
        if ridge > 0.0 && constant.is_some() {
            prepared.z.extend(shares.iter().map(|(_, ridge_entry)| ridge_entry));
        }
        for targets in y.chunks_exact(c.max(1)) {
            for (output, target) in targets.iter().enumerate() {
                let mean = constant
                    .as_ref()
                    .map_or(0.0, |constant| constant.targets.get(output).copied().unwrap_or(0.0));
                prepared.y.push(target - share(mean).0);
            }
        }
        if let (true, Some(constant)) = (ridge > 0.0, &constant) {
            prepared.y.extend(constant.targets.iter().map(|mean| share(*mean).1));
        }
        prepared.constant = constant;
        prepared
    }

    /// Appends the rows of the varying columns to `z`.
    fn fill(&mut self, problem: &Problem<'_>, shares: &[(f64, f64)]) {
        self.z.reserve(self.m * self.varying.len());
        for row in problem.x.chunks_exact(self.d.max(1)) {
            for ((&j, unit), (part, _)) in self.varying.iter().zip(&self.unit).zip(shares) {
                let value = row.get(j).copied().unwrap_or(0.0);
                self.z.push((value - part) * unit);
            }
        }
    }

    /// Number of varying columns, `p`.
    pub fn p(&self) -> usize {
        self.varying.len()
    }

    /// True if there are fewer samples than columns and no ridge.
    pub fn is_short(&self) -> bool {
        self.m < self.d && self.ridge.iter().all(|entry| *entry == 0.0)
    }

    /// Number of constant columns beyond the first that count as lost directions. With fewer samples than
    /// columns, columns may be constant by chance. With enough samples constant columns are redundant, and
    /// the number is 0.
    pub fn extra_constants(&self) -> usize {
        let constants = self.constant.as_ref().map_or(0, |constant| constant.parts.len());
        if self.is_short() { constants.saturating_sub(1) } else { 0 }
    }

    /// True if no column is treated as constant because of rounding errors.
    pub fn is_complete(&self) -> bool {
        self.near_constant.is_empty()
    }

    /// Largest singular value of a direction that is explained by rounding errors of the arithmetic. The
    /// columns are then linearly dependent.
    pub fn arithmetic_noise(&self) -> f64 {
        32.0 * F64_ROUNDOFF * (self.p() as f64 + 1.0)
    }

    /// Largest singular value of a direction that may be explained by rounding errors of the features, or
    /// whose weights are so large that rounding them to f64 changes predictions by a millionth. At most
    /// 1/200, so that no direction is dropped up to a condition number of 100.
    pub fn data_noise(&self) -> f64 {
        let answers = F64_ROUNDOFF / MAX_RELATIVE_ERROR;
        (4.0 * self.roundoff.max(answers) * self.amplification).clamp(1e-9, 5e-3)
    }

    /// Converts the weights of the columns of `z` (p x C) to the weights of all columns (d x C). The weights
    /// of dropped columns are zero.
    pub fn weights(&self, solution: &[f64]) -> Vec<f64> {
        let mut weights = vec![0.0; self.d * self.c];
        for ((&j, unit), row) in self.varying.iter().zip(&self.unit).zip(solution.chunks_exact(self.c)) {
            for (weight, value) in weights.iter_mut().skip(j * self.c).zip(row) {
                *weight = unit * value;
            }
        }
        self.set_constant(&mut weights);
        weights
    }

    /// Sets the weights of the constant columns so that they are optimal for the other weights.
    pub fn set_constant(&self, weights: &mut [f64]) {
        let Some(constant) = &self.constant else { return };
        let mut residual = constant.targets.clone();
        for (row, mean) in weights.chunks_exact(self.c).zip(&constant.means) {
            // The mean of a constant column is stored as 0.
            if *mean == 0.0 {
                continue;
            }
            for (residual, weight) in residual.iter_mut().zip(row) {
                *residual -= mean * weight;
            }
        }
        residual.iter_mut().for_each(|residual| *residual /= constant.weighted_value);
        constant.distribute(weights, &residual);
    }
}

impl Constant {
    /// Sets the weights of all constant columns from the weights `single` of the combined column.
    pub fn distribute(&self, weights: &mut [f64], single: &[f64]) {
        for (column, part) in &self.parts {
            for (weight, single) in weights.iter_mut().skip(column * single.len()).zip(single) {
                *weight = part * single;
            }
        }
    }
}

/// Mean of a column. A second pass over the deviations from the mean corrects rounding errors of the first
/// pass.
fn mean(values: &[f64], width: usize, column: usize, m: usize) -> f64 {
    let scaled_column = || values.iter().skip(column).step_by(width.max(1));
    let largest = scaled_column().fold(0.0f64, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    let first_mean = scaled_column().map(|value| value / largest).sum::<f64>() / m as f64;
    let correction = scaled_column().map(|value| value / largest - first_mean).sum::<f64>() / m as f64;
    (first_mean + correction) * largest
}
