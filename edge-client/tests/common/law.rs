//! Test helpers for the discrete Gaussian: its exact probabilities, and statistical tests of samples
//! against them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::privacy::Variance;

/// Sigma from which on bins have several integers and probabilities are integrals. Below it every integer is
/// a bin and probabilities are sums. The integral over a bin differs from the sum by `1 / (24 sigma^2)` of
/// the probability, 10^-5, which even a bin of 10^7 samples cannot show.
const SUMS: f64 = 64.0;

/// Least expected number of samples per bin.
const FILLED: f64 = 20.0;

/// A discrete Gaussian distribution.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    pub sigma: f64,
    total: f64,
}

impl Law {
    /// Creates the distribution whose `sigma` is the root of this variance.
    pub fn new(variance: &Variance) -> Self {
        let (numerator, denominator) = variance.ratio();
        let sigma = (numerator as f64 / denominator as f64).sqrt();
        let mut law = Self { sigma, total: 1.0 };
        law.total = if sigma < SUMS {
            law.sum(-law.cutoff(), law.cutoff())
        } else {
            sigma * std::f64::consts::TAU.sqrt()
        };
        law
    }

    /// Returns the bound beyond which probabilities vanish in f64, 38 sigma.
    fn cutoff(&self) -> i64 {
        (38.0 * self.sigma).ceil() as i64
    }

    fn weight(&self, x: i64) -> f64 {
        let z = x as f64 / self.sigma;
        (-z * z / 2.0).exp()
    }

    /// Sums the weights of `from..=to`. In the positive tail the smallest terms are added first.
    fn sum(&self, from: i64, to: i64) -> f64 {
        let weights = (from..=to).map(|x| self.weight(x));
        if from > 0 { weights.rev().sum() } else { weights.sum() }
    }

    /// Returns the probability of `from..=to`.
    pub fn probability(&self, from: i64, to: i64) -> f64 {
        if self.sigma < SUMS {
            return self.sum(from.max(-self.cutoff()), to.min(self.cutoff())) / self.total;
        }
        let edge = |x: f64| x / (self.sigma * std::f64::consts::SQRT_2);
        let (low, high) = (edge(from as f64 - 0.5), edge(to as f64 + 0.5));
        match low > 0.0 {
            true => (libm::erfc(low) - libm::erfc(high)) / 2.0,
            false => (libm::erfc(-high) - libm::erfc(-low)) / 2.0,
        }
    }

    /// Returns the probability of a magnitude of at least `from`, which must be positive.
    pub fn tail_probability(&self, from: i64) -> f64 {
        2.0 * self.probability(from, i64::MAX / 2)
    }

    /// Returns `E[X^power]` for an even power up to 8.
    pub fn moment(&self, power: i32) -> f64 {
        if self.sigma < SUMS {
            let cutoff = self.cutoff();
            (-cutoff..=cutoff).map(|x| (x as f64).powi(power) * self.weight(x)).sum::<f64>() / self.total
        } else {
            (1..power).step_by(2).map(f64::from).product::<f64>() * self.sigma.powi(power)
        }
    }

    /// Returns the bins for `draws` samples, each given by its last integer; the last bin is unbounded and
    /// not listed. A bin starts as a single integer, or an eighth of sigma wide, and is widened until enough
    /// samples are expected in it.
    fn bin_ends(&self, draws: f64) -> Vec<i64> {
        let width = if self.sigma < SUMS { 1 } else { (self.sigma / 8.0) as i64 };
        let last = 10 * (self.sigma.ceil() as i64).max(8 * width) / width;
        let (mut ends, mut start) = (Vec::new(), i64::MIN / 2);
        for end in (-last..last).map(|bin| bin * width) {
            let remaining = self.probability(end + 1, i64::MAX / 2);
            if self.probability(start, end) * draws >= FILLED && remaining * draws >= FILLED {
                ends.push(end);
                start = end + 1;
            }
        }
        ends
    }

    fn tail_limits(&self) -> [i64; 3] {
        [4.0, 5.0, 6.0].map(|sigmas| (sigmas * self.sigma).ceil() as i64)
    }
}

/// A chi-square statistic, its degrees of freedom, and its p-value.
#[derive(Clone, Copy, Debug)]
pub struct ChiSquare {
    pub statistic: f64,
    pub degrees: usize,
    pub p: f64,
}

impl ChiSquare {
    /// Computes the statistic from pairs of observed and expected counts. `fixed_degrees` is the number of
    /// degrees of freedom that are fixed.
    pub fn from_cells(cells: impl Iterator<Item = (f64, f64)>, fixed_degrees: usize) -> Self {
        let (mut statistic, mut cells_seen) = (0.0, 0);
        for (count, expected) in cells {
            statistic += (count - expected) * (count - expected) / expected;
            cells_seen += 1;
        }
        let degrees = cells_seen - fixed_degrees;
        Self { statistic, degrees, p: upper_gamma(degrees as f64 / 2.0, statistic / 2.0) }
    }
}

/// Counts of samples for all tests, collected in one pass.
#[derive(Clone, Debug)]
pub struct Tally {
    law: Law,
    ends: Vec<i64>,
    bins: Vec<u64>,
    /// Numbers of positive and negative samples, by magnitude in quarters of sigma.
    signs: Vec<[u64; 2]>,
    /// Numbers of samples by their lowest four bits.
    low: [u64; 16],
    /// Numbers of samples with magnitudes of at least 4, 5 and 6 sigma.
    pub tails: [u64; 3],
    /// Number of samples.
    pub draws: u64,
    sums: [f64; 4],
    /// Largest magnitude of a sample.
    pub largest: u64,
}

impl Tally {
    /// Creates an empty tally with bins for `draws` samples of this variance.
    pub fn new(variance: &Variance, draws: u64) -> Self {
        let law = Law::new(variance);
        let ends = law.bin_ends(draws as f64);
        let bins = vec![0; ends.len() + 1];
        let signs = vec![[0; 2]; 32];
        Self { law, ends, bins, signs, low: [0; 16], tails: [0; 3], draws: 0, sums: [0.0; 4], largest: 0 }
    }

    /// Counts a sample.
    pub fn add(&mut self, x: i64) {
        self.draws += 1;
        self.bins[self.ends.partition_point(|&end| end < x)] += 1;
        let magnitude = x.unsigned_abs();
        self.largest = self.largest.max(magnitude);
        if x != 0 {
            let class = ((magnitude as f64 * 4.0 / self.law.sigma) as usize).min(31);
            self.signs[class][usize::from(x < 0)] += 1;
        }
        self.low[(x & 15) as usize] += 1;
        for (tail, from) in self.tails.iter_mut().zip(self.law.tail_limits()) {
            *tail += u64::from(magnitude >= from as u64);
        }
        let z = x as f64 / self.law.sigma;
        let mut power = 1.0;
        for sum in &mut self.sums {
            power *= z;
            *sum += power;
        }
    }

    /// Tests the counts of all bins against their probabilities.
    pub fn fit(&self) -> ChiSquare {
        let starts = [i64::MIN / 2].into_iter().chain(self.ends.iter().map(|end| end + 1));
        let ends = self.ends.iter().copied().chain([i64::MAX / 2]);
        let expected = starts.zip(ends).map(|(from, to)| self.law.probability(from, to) * self.draws as f64);
        ChiSquare::from_cells(self.bins.iter().map(|&count| count as f64).zip(expected), 1)
    }

    /// Tests the numbers of positive samples against those of negative samples, by magnitude.
    pub fn test_symmetry(&self) -> ChiSquare {
        let filled: Vec<[f64; 2]> =
            self.signs.iter().map(|pair| pair.map(|n| n as f64)).filter(|[a, b]| a + b >= FILLED).collect();
        let cells = filled.iter().flat_map(|&[a, b]| [a, b].map(|count| (count, (a + b) / 2.0)));
        ChiSquare::from_cells(cells, filled.len())
    }

    /// Tests the lowest bits, which are uniform for a large sigma. The test detects a grid coarser than the
    /// integers.
    pub fn low_bits(&self) -> Option<ChiSquare> {
        let expected = self.draws as f64 / 16.0;
        // For a smaller sigma the bits are not uniform: the difference is of the order of exp(-2 (pi sigma /
        // 16)^2).
        (self.law.sigma >= SUMS)
            .then(|| ChiSquare::from_cells(self.low.iter().map(|&n| (n as f64, expected)), 1))
    }

    /// Returns the deviations of the mean, the variance, and the third and fourth moments, in standard
    /// errors.
    pub fn moment_deviations(&self) -> [f64; 4] {
        let n = self.draws as f64;
        let exact = |power: i32| match power % 2 {
            1 => 0.0,
            _ => self.law.moment(power) / self.law.sigma.powi(power),
        };
        let mut deviations = [0.0; 4];
        for ((power, sum), deviation) in (1..).zip(self.sums).zip(&mut deviations) {
            let error = ((exact(2 * power) - exact(power).powi(2)) / n).sqrt();
            *deviation = (sum / n - exact(power)) / error;
        }
        deviations
    }

    /// Returns the expected number of samples in each tail.
    pub fn expected_tails(&self) -> [f64; 3] {
        self.law.tail_limits().map(|from| self.law.tail_probability(from) * self.draws as f64)
    }

    /// Returns the first test that these samples fail, if any, at a level of one in a million for each test.
    pub fn first_failed_test(&self) -> Option<String> {
        const LEVEL: f64 = 1e-6;
        let tests = [
            ("fit", Some(self.fit())),
            ("symmetry", Some(self.test_symmetry())),
            ("low bits", self.low_bits()),
        ];
        for (name, result) in tests {
            if let Some(result) = result.filter(|result| result.p < LEVEL) {
                return Some(format!("{name}: {result:?}"));
            }
        }
        if let Some((power, deviation)) =
            (1..).zip(self.moment_deviations()).find(|(_, deviation)| deviation.abs() > 5.0)
        {
            return Some(format!("moment {power}: {deviation} standard errors"));
        }
        for (count, expected) in self.tails.into_iter().zip(self.expected_tails()) {
            // The allowed deviation is five standard deviations plus five samples, since few samples are
            // expected.
            if (count as f64 - expected).abs() > 5.0 * expected.sqrt() + 5.0 {
                return Some(format!("tail: {count} instead of {expected}"));
            }
        }
        None
    }
}

/// Returns `Q(a, x)`, the regularised upper incomplete gamma function, by its series or by its continued
/// fraction (Lentz).
pub fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - libm::lgamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - front * sum;
    }
    let (mut b, mut c, mut d) = (x + 1.0 - a, 1e300, 1.0 / (x + 1.0 - a));
    let mut h = d;
    for i in 1..100_000 {
        let i = f64::from(i);
        let an = -i * (i - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * h
}
