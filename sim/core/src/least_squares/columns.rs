//! Columns without a constant's part, each of norm 1.

use super::{EXACT, Problem};

/// Mean over deviation from which a column counts as a constant: of the deviation four bits are left.
const FEW_BITS: f64 = 16.0;

/// The same of numbers in f64: beyond it predictions are off by more than 1e-6 of what they vary by.
const END_OF_F64: f64 = 1e9;

/// Error of an answer, relative to what answers vary by, from which something is said.
const MILLIONTH: f64 = 1e-6;

/// The columns of a problem that vary, ready to be solved for.
#[derive(Debug)]
pub struct Columns {
    /// Samples.
    pub m: usize,
    /// `d`, all columns.
    pub d: usize,
    /// `C`.
    pub c: usize,
    /// The columns that vary, by number.
    pub kept: Vec<usize>,
    /// Those that vary by less than their roundings: they are taken for constant.
    pub faint: Vec<usize>,
    /// The kept columns, row-major, m x p, then the rows of the ridge: p of one entry each are left out, and one is here.
    pub z: Vec<f64>,
    /// What is left of the targets, as many rows as `z` has.
    pub y: Vec<f64>,
    /// Entry of each kept column in its own row of the ridge.
    pub ridge: Vec<f64>,
    /// Weight of each kept column for a weight of 1 of its column in `z`.
    pub unit: Vec<f64>,
    /// Root of the sum of squares of how much larger the columns were than what is left of them.
    pub amplification: f64,
    /// As in [`Problem`].
    pub roundoff: f64,
    /// The constant that is taken out.
    pub taken: Option<Constant>,
}

/// All columns of one value each, turned into a single one: the norm of their weights stays what it is, and so does a ridge.
#[derive(Debug)]
pub struct Constant {
    /// Number of the column in whose place the single one is: the last.
    pub column: usize,
    /// Numbers of all of them, with the part of each in the single one; squares sum up to 1.
    pub parts: Vec<(usize, f64)>,
    /// Its value: the norm of their values.
    pub value: f64,
    /// `(value^2 + ridge) / value`.
    pub weighed: f64,
    /// Means of all columns.
    pub means: Vec<f64>,
    /// Means of the targets.
    pub targets: Vec<f64>,
}

impl Columns {
    /// Prepares the columns of a problem of `m` samples.
    pub fn of(problem: &Problem<'_>, m: usize) -> Self {
        let Problem { x, y, features: d, outputs: c, ridge, roundoff } = *problem;
        let column = |j: usize| x.iter().skip(j).step_by(d.max(1)).copied();
        let value = |j: usize| {
            let first = column(j).next().unwrap_or(0.0);
            column(j).all(|value| value == first).then_some(first)
        };
        let values: Vec<Option<f64>> = (0..d).map(value).collect();
        let valued = |j: usize| values.get(j).copied().flatten().filter(|value| *value != 0.0);
        let constants: Vec<(usize, f64)> = (0..d).filter_map(|j| Some((j, valued(j)?))).collect();
        let taken = constants.last().map(|&(column, _)| {
            let value = constants.iter().fold(0.0f64, |norm, (_, value)| norm.hypot(*value));
            Constant {
                column,
                parts: constants.iter().map(|(j, own)| (*j, own / value)).collect(),
                value,
                weighed: value + ridge / value,
                means: (0..d).map(|j| if valued(j).is_some() { 0.0 } else { mean(x, d, j, m) }).collect(),
                targets: (0..c).map(|output| mean(y, c, output, m)).collect(),
            }
        });
        let samples = m as f64;
        let root = (samples * ridge).sqrt();
        // What the constant's column leaves of a column of this mean, and in the constant's own row of the ridge.
        let share = |mean: f64| match &taken {
            Some(taken) => (mean * taken.value / taken.weighed, -root * mean / taken.weighed),
            None => (0.0, 0.0),
        };
        let mut all = Self {
            m,
            d,
            c,
            kept: Vec::new(),
            faint: Vec::new(),
            z: Vec::new(),
            y: Vec::new(),
            ridge: Vec::new(),
            unit: Vec::new(),
            amplification: 0.0,
            roundoff,
            taken: None,
        };
        let mut shares = Vec::new();
        for (j, value) in values.iter().enumerate() {
            if value.is_some() {
                continue;
            }
            let (part, below) =
                share(taken.as_ref().map_or(0.0, |taken| taken.means.get(j).copied().unwrap_or(0.0)));
            let largest = column(j).fold(0.0f64, |largest, value| largest.max(value.abs()));
            // Squares stay within f64.
            let (mut size, mut left) = (0.0, 0.0);
            for value in column(j) {
                size += (value / largest).powi(2);
                left += ((value - part) / largest).powi(2);
            }
            let amplification = (size / left).sqrt();
            let most = (1.0 / (FEW_BITS * roundoff)).min(END_OF_F64);
            // Written so that a NaN is constant, too.
            if amplification.is_nan() || amplification > most {
                all.faint.push(j);
                continue;
            }
            all.amplification = all.amplification.hypot(amplification);
            let norm = largest * (left + ((below / largest).powi(2) + (root / largest).powi(2))).sqrt();
            all.kept.push(j);
            all.unit.push(1.0 / norm);
            all.ridge.push(root / norm);
            shares.push((part, below / norm));
        }
        all.fill(problem, &shares);
        if ridge > 0.0 && taken.is_some() {
            all.z.extend(shares.iter().map(|(_, below)| below));
        }
        for targets in y.chunks_exact(c.max(1)) {
            for (output, target) in targets.iter().enumerate() {
                let mean =
                    taken.as_ref().map_or(0.0, |taken| taken.targets.get(output).copied().unwrap_or(0.0));
                all.y.push(target - share(mean).0);
            }
        }
        if let (true, Some(taken)) = (ridge > 0.0, &taken) {
            all.y.extend(taken.targets.iter().map(|mean| share(*mean).1));
        }
        all.taken = taken;
        all
    }

    /// Fills in the kept columns.
    fn fill(&mut self, problem: &Problem<'_>, shares: &[(f64, f64)]) {
        self.z.reserve(self.m * self.kept.len());
        for row in problem.x.chunks_exact(self.d.max(1)) {
            for ((&j, unit), (part, _)) in self.kept.iter().zip(&self.unit).zip(shares) {
                let value = row.get(j).copied().unwrap_or(0.0);
                self.z.push((value - part) * unit);
            }
        }
    }

    /// Columns that are solved for.
    pub fn p(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are fewer samples than columns, without a ridge.
    pub fn is_short(&self) -> bool {
        self.m < self.d && self.ridge.iter().all(|entry| *entry == 0.0)
    }

    /// Constants beside the first that are no directions of their own for want of samples. Where there are enough they are
    /// constants by nature.
    pub fn further_constants(&self) -> usize {
        let constants = self.taken.as_ref().map_or(0, |taken| taken.parts.len());
        if self.is_short() { constants.saturating_sub(1) } else { 0 }
    }

    /// Whether all columns that are not constant are solved for.
    pub fn leaves_nothing_out(&self) -> bool {
        self.faint.is_empty()
    }

    /// Singular values of what is solved for up to this one are roundings of the arithmetic: the columns are dependent.
    pub fn arithmetic(&self) -> f64 {
        32.0 * EXACT * (self.p() as f64 + 1.0)
    }

    /// Singular values up to this one may be roundings of the numbers, or make weights so large that the roundings of an answer
    /// in f64 are a millionth of it. Never more than 1/200: up to a condition of 100 numbers are taken as exact.
    pub fn noise(&self) -> f64 {
        let answers = EXACT / MILLIONTH;
        (4.0 * self.roundoff.max(answers) * self.amplification).clamp(1e-9, 5e-3)
    }

    /// The weights of all columns (d x C), from those of the columns of `z` (p x C): where all that is left out is zero.
    pub fn weights(&self, solution: &[f64]) -> Vec<f64> {
        let mut weights = vec![0.0; self.d * self.c];
        for ((&j, unit), row) in self.kept.iter().zip(&self.unit).zip(solution.chunks_exact(self.c)) {
            for (weight, value) in weights.iter_mut().skip(j * self.c).zip(row) {
                *weight = unit * value;
            }
        }
        self.set_constant(&mut weights);
        weights
    }

    /// Sets the weights of constants for those of the others.
    pub fn set_constant(&self, weights: &mut [f64]) {
        let Some(taken) = &self.taken else { return };
        let mut rest = taken.targets.clone();
        for (row, mean) in weights.chunks_exact(self.c).zip(&taken.means) {
            // Constants have none.
            if *mean == 0.0 {
                continue;
            }
            for (rest, weight) in rest.iter_mut().zip(row) {
                *rest -= mean * weight;
            }
        }
        rest.iter_mut().for_each(|rest| *rest /= taken.weighed);
        taken.share_out(weights, &rest);
    }
}

impl Constant {
    /// Sets the weights of all constant columns from that of the single one.
    pub fn share_out(&self, weights: &mut [f64], single: &[f64]) {
        for (column, part) in &self.parts {
            for (weight, single) in weights.iter_mut().skip(column * single.len()).zip(single) {
                *weight = part * single;
            }
        }
    }
}

/// The mean of a column, correct to the last digits: what is left by the first sum is summed once more.
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
