//! Test helpers for FedPower with noise: rounds with a known noise seed and without a session, and the
//! same rounds in wide integers.

use std::cell::RefCell;
use std::rc::Rc;

use fedspan_client::privacy::{NoEntropy, NoiseMultiplier, PrivacySettings, SEED, Seed, noise};
use fedspan_client::source::{SampleSource, Samples};
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Mechanism, Millis, SourceError};
use fedspan_protocol::message::{DeclineReason, PowerRows, RoundId, Task as Wire};
use fedspan_protocol::orthonormal::orthonormalise;

use super::power::power_round;
use super::{Heap, Sliced};

/// Slot of the devices: milliseconds from the start of a computation to the answer.
pub const SLOT: u64 = 5_000;

/// Square of the smallest noise multiplier, in units of 2^-16.
pub const LEAST: u64 = (1 << 14) + 1;

/// Returns privacy settings with this squared noise multiplier and at most `rows_max` rows.
pub fn settings(square: u64, rows_max: u32) -> PrivacySettings {
    let multiplier = NoiseMultiplier::from_square(square).unwrap();
    PrivacySettings::new(multiplier, 1 << 40, rows_max, Millis::new(SLOT)).unwrap().with_iterations(u16::MAX)
}

/// Names of events in their order, shared by a mechanism and a source.
pub type Log = Rc<RefCell<Vec<&'static str>>>;

/// Noise mechanism with a known seed, which logs when the seed is drawn.
#[derive(Clone, Debug)]
pub struct Known {
    pub settings: PrivacySettings,
    pub seed: [u8; SEED],
    /// True if drawing a seed fails.
    pub entropy_fails: bool,
    pub log: Log,
}

impl Known {
    /// Creates a mechanism whose seed depends only on `number`.
    pub fn new(settings: PrivacySettings, number: u64) -> Self {
        let mut seed = [7; SEED];
        seed[..8].copy_from_slice(&number.to_le_bytes());
        Self { settings, seed, entropy_fails: false, log: Log::default() }
    }
}

impl Mechanism for Known {
    fn settings(&self) -> Option<PrivacySettings> {
        Some(self.settings)
    }

    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        self.log.borrow_mut().push("seed");
        if self.entropy_fails { Err(NoEntropy) } else { Ok(Seed::new(self.seed)) }
    }
}

/// Sample source that logs when it is read.
#[derive(Clone, Debug)]
pub struct Watched {
    pub samples: Sliced,
    pub log: Log,
}

impl SampleSource for Watched {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.log.borrow_mut().push("rewind");
        self.samples.rewind(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        self.log.borrow_mut().push("next");
        self.samples.next()
    }
}

/// Runs a round on a new device. Returns the usage of samples and the upload.
pub fn private_round(
    samples: &Sliced,
    known: &Known,
    task: Wire,
    z: &[f32],
    k: usize,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let memory = Heap::power(samples.features, k, samples.outputs);
    let mut model = Linear::private(memory, known.clone()).unwrap();
    power_round(&mut model, task, z, &mut samples.clone())
}

/// Returns the noisy sums of an upload. They are exact, because their magnitude is below 2^22.
pub fn noisy_integers(sent: &[f32], grid: u32, rows: usize) -> Vec<i128> {
    let unit = f64::from(1u32 << grid) * rows as f64;
    sent.iter()
        .map(|&value| {
            let exact = f64::from(value) * unit;
            assert!(exact.abs() < f64::from(1 << 22));
            exact.round() as i128
        })
        .collect()
}

/// Returns a row as integers in units of 2^-15, clipped so that its squared norm is at most 2^30. Returns
/// `None` if the row is unusable.
fn integer_row(samples: &Sliced, rows: PowerRows, number: usize) -> Option<Vec<i128>> {
    use fedspan_client::source::Targets;
    let (x, target) = samples.get(number);
    let square = |values: &[f32]| values.iter().fold(0.0f32, |sum, v| sum + v * v);
    let weight = match (rows, target) {
        (PowerRows::Features, _) => 1.0,
        (_, Targets::Values(y)) => square(y),
        (_, Targets::Classes(classes)) => {
            if usize::from(classes[0]) >= samples.outputs {
                return None;
            }
            1.0
        }
    };
    let features = square(x);
    if !(features.is_finite() && weight.is_finite()) {
        return None;
    }
    let clip = weight * features > 1.0;
    let mut scale = if clip { 1.0 / features.sqrt() } else { weight.sqrt() };
    for step in 0..11 {
        let row: Vec<i128> = x.iter().map(|x| (f64::from(x * scale) * 32_768.0).round() as i128).collect();
        if row.iter().map(|q| q * q).sum::<i128>() <= 1 << 30 {
            return Some(row);
        }
        scale *= 1.0 - f32::powi(2.0, step - 17);
    }
    None
}

/// Returns the integers of a basis after it is orthonormalised. Returns `None` if its rank is deficient.
pub fn integer_basis(z: &[f32], k: usize) -> Option<Vec<i128>> {
    let mut z = z.to_vec();
    orthonormalise(&mut z, k).ok()?;
    let integers = z.iter().map(|&v| ((f64::from(v) * 32_768.0).round() as i128).clamp(-32_767, 32_767));
    Some(integers.collect())
}

/// Computes `s A Z` in units of `2^-grid`, without noise.
pub fn exact_sums(samples: &Sliced, rows: PowerRows, zq: &[i128], k: usize, grid: u32) -> Vec<i128> {
    let rounded = |v: i128, shift: u32| (v + (1 << (shift - 1))).div_euclid(1 << shift);
    let mut sums = vec![0; zq.len()];
    for number in 0..samples.len() {
        let Some(q) = integer_row(samples, rows, number) else { continue };
        let p: Vec<i128> =
            (0..k).map(|j| rounded(q.iter().zip(zq.chunks(k)).map(|(q, z)| q * z[j]).sum(), 15)).collect();
        for (i, q) in q.iter().enumerate() {
            for (j, p) in p.iter().enumerate() {
                sums[i * k + j] += rounded(q * p, 30 - grid);
            }
        }
    }
    sums
}

/// Computes the product that a whole round uploads, and the basis of its last iteration. Returns `None` if
/// the rank of a product is deficient, which noise on a coarse grid can cause.
pub fn noisy_oracle(
    samples: &Sliced,
    known: &Known,
    rows: PowerRows,
    iterations: u64,
    z: &[f32],
    k: usize,
) -> Option<(Vec<f32>, Vec<f32>)> {
    let grid = known.settings.grid();
    let variance = known.settings.variance(samples.features as u16, k as u16).unwrap();
    let unit = (1u32 << grid) as f32 * samples.len() as f32;
    let (mut z, mut zq) = (z.to_vec(), Vec::new());
    for iteration in 0..iterations {
        zq = integer_basis(&z, k)?;
        let sums = exact_sums(samples, rows, &zq, k, grid);
        let first = iteration * sums.len() as u64;
        z = sums
            .iter()
            .zip(first..)
            .map(|(&sum, coordinate)| {
                let noise = i128::from(noise(&Seed::new(known.seed), coordinate, &variance));
                (sum + noise) as f32 / unit
            })
            .collect();
    }
    Some((z, zq.iter().map(|&q| q as f32 / 32_768.0).collect()))
}
