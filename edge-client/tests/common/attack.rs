//! Test helpers for attacks on FedPower's noise: a device with numbered releases, an attacker's statistic
//! for a pair of neighbours, confidence bounds of probabilities, and the privacy that the mechanism claims.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::privacy::{PrivacySettings, Variance};
use fedspan_protocol::message::{PowerRows, PowerUpload, Task as Wire};

use crate::common::Sliced;
use crate::common::power::fed_power;
use crate::common::private::{Known, exact_sums, integer_basis, private_round};

/// Device with its records, its settings, and the basis of its rounds. The client's own code computes its
/// releases, each in new memory.
#[derive(Clone, Debug)]
pub struct Device {
    pub samples: Sliced,
    pub z: Vec<f32>,
    pub k: usize,
    pub settings: PrivacySettings,
}

impl Device {
    /// Returns the upload of a round with one iteration. The number of the release determines the noise seed.
    pub fn release(&self, number: u64) -> Vec<f32> {
        self.answer(fed_power(1, PowerRows::Features, PowerUpload::Product), number)
    }

    /// Returns the upload of a round of any FedPower task.
    pub fn answer(&self, task: Wire, number: u64) -> Vec<f32> {
        private_round(&self.samples, &Known::new(self.settings, number), task, &self.z, self.k).unwrap().1
    }

    /// Returns `s A Z` in units of the grid, without noise.
    pub fn sums(&self) -> Vec<i128> {
        self.sums_for(&integer_basis(&self.z, self.k).unwrap())
    }

    /// Returns `s A Z` in units of the grid, without noise, for a basis given as integers.
    pub fn sums_for(&self, zq: &[i128]) -> Vec<i128> {
        exact_sums(&self.samples, PowerRows::Features, zq, self.k, self.settings.grid())
    }

    /// Returns the public divisor that turns integers on the grid into the uploaded floats.
    pub fn unit(&self) -> f32 {
        (1u64 << self.settings.grid()) as f32 * self.samples.len() as f32
    }

    /// Returns the variance with which the noise is drawn.
    pub fn noise_law(&self) -> Variance {
        self.settings.variance(self.samples.features as u16, self.k as u16).unwrap()
    }

    /// Returns `sigma^2`, in squared units of the grid.
    pub fn variance(&self) -> f64 {
        let (numerator, denominator) = self.noise_law().ratio();
        numerator as f64 / denominator as f64
    }
}

/// Two devices that differ in one record, as seen by an attacker who knows all other data.
#[derive(Clone, Debug)]
pub struct Pair {
    pub first: Device,
    pub second: Device,
    /// Sums of the first device minus sums of the second, in units of the grid.
    difference: Vec<f64>,
    /// Distance of the two devices in standard deviations of the noise: `|difference| / sigma`.
    pub mu: f64,
    middle: f64,
    deviation: f64,
}

impl Pair {
    /// Creates a pair of devices, whose noise must have the same variance.
    pub fn new(first: Device, second: Device) -> Self {
        let floats = |sums: Vec<i128>| sums.into_iter().map(|sum| sum as f64).collect::<Vec<f64>>();
        let (a, b) = (floats(first.sums()), floats(second.sums()));
        let difference: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let norm = dot(&difference, &difference).sqrt();
        let deviation = norm * first.variance().sqrt();
        let middle = (dot(&a, &difference) + dot(&b, &difference)) / 2.0;
        let mu = norm / first.variance().sqrt();
        Self { first, second, difference, mu, middle, deviation }
    }

    /// Returns the first or the second device.
    pub fn device(&self, first: bool) -> &Device {
        if first { &self.first } else { &self.second }
    }

    /// Returns the statistic of a release that distinguishes the two devices best: the log-likelihood ratio
    /// divided by `mu`. It is normal with variance 1 around `mu / 2` for the first device and `-mu / 2` for
    /// the second.
    pub fn statistic(&self, sent: &[f32]) -> f64 {
        let unit = f64::from(self.first.unit());
        let component: f64 = sent
            .iter()
            .zip(&self.difference)
            .map(|(sent, component)| f64::from(*sent) * unit * component)
            .sum();
        (component - self.middle) / self.deviation
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the records of one device, one per row, with arbitrary targets.
pub fn samples_from_rows(rows: &[Vec<f32>]) -> Sliced {
    let d = rows.first().map_or(0, Vec::len);
    Sliced::regression(rows.concat(), vec![1.0; rows.len()], d, 1)
}

/// Returns a unit vector. Two different unit vectors are a pair of records that attains the sensitivity.
pub fn unit_vector(d: usize, axis: usize) -> Vec<f32> {
    (0..d).map(|i| if i == axis { 1.0 } else { 0.0 }).collect()
}

/// Returns `P(X >= count)` of a binomial distribution whose mean is at most `count`, so that the terms of the
/// sum decrease from the first one on.
fn binomial_tail(count: u64, draws: u64, p: f64) -> f64 {
    let (n, k) = (draws as f64, count as f64);
    let choose = libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0);
    let mut term = (choose + k * p.ln() + (n - k) * (-p).ln_1p()).exp();
    let (mut sum, mut i) = (term, k);
    while i < n && term > 1e-17 * sum {
        term *= (n - i) / (i + 1.0) * p / (1.0 - p);
        sum += term;
        i += 1.0;
    }
    sum
}

/// Returns the lower confidence bound of a probability at error level `level`, from `count` hits in `draws`
/// (Clopper and Pearson 1934).
pub fn at_least(count: u64, draws: u64, level: f64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, count as f64 / draws as f64);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        *(if binomial_tail(count, draws, middle) <= level { &mut low } else { &mut high }) = middle;
    }
    low
}

/// Returns the upper confidence bound of a probability at error level `level`.
pub fn at_most(count: u64, draws: u64, level: f64) -> f64 {
    1.0 - at_least(draws - count, draws, level)
}

/// Returns the distribution function of the standard normal.
pub fn normal_below(x: f64) -> f64 {
    libm::erfc(-x / std::f64::consts::SQRT_2) / 2.0
}

/// Returns the quantile of the standard normal.
pub fn normal_quantile(p: f64) -> f64 {
    bisect(-40.0, 40.0, |x| normal_below(x) < p)
}

/// Returns the delta of Gaussian noise at this epsilon (Balle and Wang 2018, Theorem 8).
pub fn claimed_delta(mu: f64, epsilon: f64) -> f64 {
    normal_below(mu / 2.0 - epsilon / mu) - epsilon.exp() * normal_below(-mu / 2.0 - epsilon / mu)
}

/// Returns the epsilon that is claimed for Gaussian noise at this delta.
pub fn claimed_epsilon(mu: f64, delta: f64) -> f64 {
    bisect(0.0, 40.0, |epsilon| claimed_delta(mu, epsilon) > delta)
}

/// Finds the point up to which `holds` is true, by bisection.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        *(if holds(middle) { &mut low } else { &mut high }) = middle;
    }
    low
}
