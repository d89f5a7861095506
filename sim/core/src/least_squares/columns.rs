//! Preparation of the columns: the constant's part is removed from each, and each is scaled to norm 1.

use super::{F64_ROUNDOFF, Problem};

/// Deviation of a column, in unit roundoffs of its size, up to which it counts as constant: fewer than four
/// bits of the deviation are left.
const MIN_DEVIATION_ROUNDOFFS: f64 = 16.0;

/// Ratio of size to deviation in f64 above which a column counts as constant: predictions would be off by
/// more than 1e-6 of their variation.
const MAX_AMPLIFICATION: f64 = 1e9;

/// Relative error of a prediction from which directions count as noise.
const MAX_RELATIVE_ERROR: f64 = 1e-6;

/// Columns of a problem that vary, prepared for the solvers.
#[derive(Debug)]
pub struct Columns {
    /// Number of samples.
    pub m: usize,
    /// Number of all columns, `d`.
    pub d: usize,
    /// Number of outputs, `C`.
    pub c: usize,
    /// Indices of the varying columns.
    pub varying: Vec<usize>,
    /// Indices of the columns whose variation is below their rounding errors, which are treated as constant.
    pub near_constant: Vec<usize>,
    /// Varying columns, row-major, m x p, followed by the constant's row of the ridge. The ridge's other p
    /// rows have one entry each and are stored in `ridge`.
    pub z: Vec<f64>,
    /// Targets without the constant's part, with as many rows as `z`.
    pub y: Vec<f64>,
    /// Entry of each varying column in its own row of the ridge.
    pub ridge: Vec<f64>,
    /// Factor from a weight in `z` to the weight of the varying column.
    pub unit: Vec<f64>,
    /// Root of the sum of squares of each column's norm over the norm of its remainder.
    pub amplification: f64,
    /// Unit roundoff of the features, as in [`Problem`].
    pub roundoff: f64,
    /// Constant that was removed; `None` if no column is constant.
    pub constant: Option<Constant>,
}

/// All constant columns combined into one, which preserves the norm of their weights and so the ridge.
#[derive(Debug)]
pub struct Constant {
    /// Index of the column that holds the combined constant: the last constant one.
    pub column: usize,
    /// Indices of all constant columns, with the share of each in the combined one; the squares of the shares
    /// sum to 1.
    pub parts: Vec<(usize, f64)>,
    /// Value of the combined constant: the norm of the columns' values.
    pub value: f64,
    /// `(value^2 + ridge) / value`.
    pub weighted_value: f64,
    /// Means of all columns.
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
                parts: constants.iter().map(|(j, own)| (*j, own / value)).collect(),
                value,
                weighted_value: value + ridge / value,
                means: (0..d).map(|j| if valued(j).is_some() { 0.0 } else { mean(x, d, j, m) }).collect(),
                targets: (0..c).map(|output| mean(y, c, output, m)).collect(),
            }
        });
        let samples = m as f64;
        let root = (samples * ridge).sqrt();
        // Part of a column of this mean that the constant explains, and its entry in the constant's row of
        // the ridge.
        let share = |mean: f64| match &constant {
            Some(constant) => {
                (mean * constant.value / constant.weighted_value, -root * mean / constant.weighted_value)
            }
            None => (0.0, 0.0),
        };
        let mut all = Self {
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
            let (part, below) = share(
                constant.as_ref().map_or(0.0, |constant| constant.means.get(j).copied().unwrap_or(0.0)),
            );
            let largest = column(j).fold(0.0f64, |largest, value| largest.max(value.abs()));
            // Scaled by the largest value, so that squares do not overflow.
            let (mut size, mut left) = (0.0, 0.0);
            for value in column(j) {
                size += (value / largest).powi(2);
                left += ((value - part) / largest).powi(2);
            }
            let amplification = (size / left).sqrt();
            let most = (1.0 / (MIN_DEVIATION_ROUNDOFFS * roundoff)).min(MAX_AMPLIFICATION);
            // Written so that NaN counts as constant.
            if amplification.is_nan() || amplification > most {
                all.near_constant.push(j);
                continue;
            }
            all.amplification = all.amplification.hypot(amplification);
            let norm = largest * (left + ((below / largest).powi(2) + (root / largest).powi(2))).sqrt();
            all.varying.push(j);
            all.unit.push(1.0 / norm);
            all.ridge.push(root / norm);
            shares.push((part, below / norm));
        }
        all.fill(problem, &shares);
        if ridge > 0.0 && constant.is_some() {
            all.z.extend(shares.iter().map(|(_, below)| below));
        }
        for targets in y.chunks_exact(c.max(1)) {
            for (output, target) in targets.iter().enumerate() {
                let mean = constant
                    .as_ref()
                    .map_or(0.0, |constant| constant.targets.get(output).copied().unwrap_or(0.0));
                all.y.push(target - share(mean).0);
            }
        }
        if let (true, Some(constant)) = (ridge > 0.0, &constant) {
            all.y.extend(constant.targets.iter().map(|mean| share(*mean).1));
        }
        all.constant = constant;
        all
    }

    /// Fills in the varying columns.
    fn fill(&mut self, problem: &Problem<'_>, shares: &[(f64, f64)]) {
        self.z.reserve(self.m * self.varying.len());
        for row in problem.x.chunks_exact(self.d.max(1)) {
            for ((&j, unit), (part, _)) in self.varying.iter().zip(&self.unit).zip(shares) {
                let value = row.get(j).copied().unwrap_or(0.0);
                self.z.push((value - part) * unit);
            }
        }
    }

    /// Number of columns that are solved for.
    pub fn p(&self) -> usize {
        self.varying.len()
    }

    /// True if there are fewer samples than columns and no ridge.
    pub fn is_short(&self) -> bool {
        self.m < self.d && self.ridge.iter().all(|entry| *entry == 0.0)
    }

    /// Number of constant columns beyond the first if samples are too few to tell whether these columns are
    /// constant in truth. With enough samples they are, and count as no lost direction.
    pub fn extra_constants(&self) -> usize {
        let constants = self.constant.as_ref().map_or(0, |constant| constant.parts.len());
        if self.is_short() { constants.saturating_sub(1) } else { 0 }
    }

    /// True if every column that is not exactly constant is solved for.
    pub fn is_complete(&self) -> bool {
        self.near_constant.is_empty()
    }

    /// Singular value up to which a direction is rounding error of the arithmetic, so that the columns are
    /// dependent.
    pub fn arithmetic_noise(&self) -> f64 {
        32.0 * F64_ROUNDOFF * (self.p() as f64 + 1.0)
    }

    /// Singular value up to which a direction may be rounding error of the features, or makes weights so
    /// large that rounding them to f64 changes a prediction by a millionth. At most 1/200: up to a condition
    /// number of 100 the features are taken as exact.
    pub fn data_noise(&self) -> f64 {
        let answers = F64_ROUNDOFF / MAX_RELATIVE_ERROR;
        (4.0 * self.roundoff.max(answers) * self.amplification).clamp(1e-9, 5e-3)
    }

    /// Weights of all columns (d x C) from the weights of the columns of `z` (p x C); weights of dropped
    /// columns are zero.
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

    /// Sets the weights of the constant columns to match the other weights.
    pub fn set_constant(&self, weights: &mut [f64]) {
        let Some(constant) = &self.constant else { return };
        let mut rest = constant.targets.clone();
        for (row, mean) in weights.chunks_exact(self.c).zip(&constant.means) {
            // The mean of a constant column is stored as 0.
            if *mean == 0.0 {
                continue;
            }
            for (rest, weight) in rest.iter_mut().zip(row) {
                *rest -= mean * weight;
            }
        }
        rest.iter_mut().for_each(|rest| *rest /= constant.weighted_value);
        constant.distribute(weights, &rest);
    }
}

impl Constant {
    /// Sets the weights of all constant columns from the weight of the combined one.
    pub fn distribute(&self, weights: &mut [f64], single: &[f64]) {
        for (column, part) in &self.parts {
            for (weight, single) in weights.iter_mut().skip(column * single.len()).zip(single) {
                *weight = part * single;
            }
        }
    }
}

/// Mean of a column, correct to the last digits: a second pass sums the remainders of the first.
fn mean(values: &[f64], width: usize, column: usize, m: usize) -> f64 {
    let all = || values.iter().skip(column).step_by(width.max(1));
    let largest = all().fold(0.0f64, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    let first = all().map(|value| value / largest).sum::<f64>() / m as f64;
    let rest = all().map(|value| value / largest - first).sum::<f64>() / m as f64;
    (first + rest) * largest
}
