//! One FedPower iteration of a [`Problem`], without and with noise, with the calls that the session makes,
//! and a hash of its result. The iteration also runs on the host, for comparison with the result of a board.

use core::convert::Infallible;

use fedspan_client::Millis;
use fedspan_client::memory::Memory;
use fedspan_client::privacy::{
    EntropySource, Gaussian, MinEntropy, NoiseMultiplier, PrivacySettings, Seed, Variance,
};
use fedspan_client::{Linear, Mechanism, Recording, Release, Task};
use fedspan_protocol::message::{
    DeclineReason, Descriptors, PowerRows, PowerUpload, RoundId, RoundOpen, Task as Wire,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::problem::{Generator, Problem, pattern};
use crate::update::upload_checksum;

/// Number of the measured round.
pub const ROUND: RoundId = RoundId { round: 1, stage: 0 };

/// Release of the measured round.
pub const RELEASE: Release = Release { device: 0, campaign: 1, round: ROUND, spent: 0 };

/// Square of the noise multiplier 4, in units of 2^-16.
const SQUARE: u64 = 16 << 16;

/// Entropy source with a known seed, for reproducible runs. It provides no privacy.
#[derive(Clone, Debug)]
pub struct KnownSeed(Generator);

impl EntropySource for KnownSeed {
    type Error = Infallible;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        samples.iter_mut().for_each(|sample| *sample = self.0.bits().to_le_bytes()[7]);
        Ok(())
    }
}

impl Default for KnownSeed {
    fn default() -> Self {
        Self(Generator::new(5))
    }
}

/// Returns a noise mechanism for at most `rows` samples.
///
/// # Errors
/// [`DeclineReason::Parameter`] if these settings are invalid.
pub fn mechanism(rows: u32) -> Result<Gaussian<KnownSeed>, DeclineReason> {
    let parameter = DeclineReason::Parameter;
    let multiplier = NoiseMultiplier::from_square(SQUARE).map_err(|_| parameter)?;
    let settings =
        PrivacySettings::new(multiplier, u64::MAX, rows, Millis::new(1000)).map_err(|_| parameter)?;
    // Claimed min-entropy of the source: four bits per sample, the usual claim.
    let claim = MinEntropy::new(4).map_err(|_| parameter)?;
    Ok(Gaussian::new(settings, KnownSeed::default(), claim))
}

/// Returns an arbitrary seed and the variance of a d x k product's noise, to measure the drawing of noise
/// alone.
///
/// # Errors
/// [`DeclineReason::Parameter`] as for [`mechanism`].
pub fn seed_and_variance(
    mechanism: &Gaussian<KnownSeed>,
    d: u16,
    k: u16,
) -> Result<(Seed, Variance), DeclineReason> {
    let settings = mechanism.settings().ok_or(DeclineReason::Parameter)?;
    let variance = settings.variance(d, k).map_err(|_| DeclineReason::Parameter)?;
    Ok((Seed::new([9; 32]), variance))
}

/// Result of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the measurement: `plain` without noise, `private` with noise.
    pub path: &'static str,
    /// CRC-32C of the product.
    pub update: u32,
    /// Number of clipped rows.
    pub clipped: u32,
}

/// Returns the samples of a problem.
#[must_use]
pub fn samples<const D: usize, const M: usize>(problem: &Problem<D, M>) -> Recording<'_> {
    Recording::regression(problem.x.as_flattened(), problem.y.as_flattened(), D, 1)
}

/// Opens the round and loads its basis.
///
/// # Errors
/// The client's reason for declining.
pub fn open<M: Memory, P: Mechanism>(client: &mut Linear<M, P>) -> Result<(), DeclineReason> {
    let shape = client.shape();
    let dimension = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let (d, k) = (dimension(shape.features), dimension(shape.width));
    let tensor = TensorDescriptor::inline(Role::Subspace, Encoding::F32, d, k);
    let (rows, upload) = (PowerRows::Features, PowerUpload::Product);
    let task = Wire::FedPower { iterations: 1, rows, upload, encoding: Encoding::F32 };
    client.open(&RoundOpen { id: ROUND, task, tensors: Descriptors::from_iter([tensor]) })?;
    let basis = client.tensor_mut(0).ok_or(DeclineReason::Tensors)?;
    pattern(basis);
    orthonormalise(basis, shape.width).map_err(|_| DeclineReason::Tensors)?;
    client.verify()
}

/// Draws the seed and runs the iteration.
///
/// # Errors
/// The client's reason for declining.
pub fn run<M: Memory, P: Mechanism>(
    client: &mut Linear<M, P>,
    source: &mut Recording<'_>,
) -> Result<(), DeclineReason> {
    client.prepare(&RELEASE)?;
    client.run(ROUND, source).map(drop)
}

/// Returns the result of a finished iteration.
pub fn outcome<M: Memory, P: Mechanism>(client: &Linear<M, P>) -> Outcome {
    Outcome {
        path: if client.mechanism().settings().is_some() { "private" } else { "plain" },
        update: upload_checksum(client),
        clipped: client.power_counts().clipped,
    }
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { path, update, clipped } = self;
        write!(f, "\"path\":\"{path}\",\"update\":\"{update:08x}\",\"clipped\":{clipped}")
    }
}
