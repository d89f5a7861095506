//! Seeds drawn from the entropy source of a board.
//!
//! Every seed starts with the start-up test of NIST SP 800-90B, section 4.3, on 1024 samples: each sample
//! passes through the [health tests](super::HealthTests). If no test fails, the seed is computed from the
//! same samples, as the section allows. The samples have at least 1024 bits of min-entropy if the claim for
//! the source is true, and a seed has 256 bits. SHA-256, one of the vetted conditioning functions of the
//! recommendation (3.1.5.1.1), conditions the samples.
//!
//! No state is kept between seeds. A source that has failed can be used again, and is then tested from the
//! start.

use core::fmt;

use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::health::{HealthFailure, HealthTests, MinEntropy};
use super::noise::Seed;

/// Number of samples for a seed.
pub const SAMPLES: usize = 1024;

/// Number of samples per read.
const READ: usize = 64;
/// Number of reads for a seed.
const READS: usize = SAMPLES / READ;

/// Context string: the purpose of the hash and its version.
const CONTEXT: &[u8] = b"fedspan entropy 1";

/// Hardware entropy source. Its samples should be as raw as possible, because health tests detect little
/// after conditioning. A generator seeded from an identity, a clock or a constant is not an entropy source.
pub trait EntropySource {
    /// Error of the source.
    type Error;

    /// Fills all of `samples` with fresh samples.
    ///
    /// # Errors
    /// Returns the source's error if the source reports a failure (for example of its clock or seed), or if
    /// samples are not available in time. The source must not return samples that may be faulty.
    fn read(&mut self, samples: &mut [u8]) -> Result<(), Self::Error>;
}

/// Reason why no seed was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntropyError<E> {
    /// The source could not be read.
    Source {
        /// Error of the source.
        error: E,
        /// Number of samples read before the error.
        samples: u32,
    },
    /// The source failed a health test.
    Health {
        /// Test that failed.
        failure: HealthFailure,
        /// Number of samples up to and including the failure.
        samples: u32,
        /// Claimed min-entropy that was tested.
        claim: MinEntropy,
    },
}

impl<E: fmt::Display> fmt::Display for EntropyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source { error, samples } => {
                write!(f, "entropy source failed after {samples} samples: {error}")
            }
            Self::Health { failure, samples, claim } => write!(
                f,
                "entropy source failed after {samples} samples: {failure}; claimed are {} bits a byte \
                 (cutoffs {} in a row, {} in a window)",
                claim.bits(),
                claim.repetition_cutoff(),
                claim.proportion_cutoff()
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for EntropyError<E> {}

/// Draws a seed from [`SAMPLES`] samples of a source with the claimed min-entropy `claim`.
///
/// # Errors
/// [`EntropyError`] if the source cannot be read or fails a health test. The device must then release
/// nothing.
#[cfg_attr(target_os = "none", inline(never))]
pub fn draw_seed<S: EntropySource>(
    source: &mut S,
    claim: MinEntropy,
) -> Result<Seed, EntropyError<S::Error>> {
    let mut tests = HealthTests::new(claim);
    let mut hash = Sha256::new_with_prefix(CONTEXT);
    let mut samples = [0; READ];
    let drawn = (0..READS).try_for_each(|_| {
        // Samples that the driver does not write stay zero, so the repetition test fails.
        samples.fill(0);
        let before = tests.samples();
        source.read(&mut samples).map_err(|error| EntropyError::Source { error, samples: before })?;
        for &sample in &samples {
            tests.test(sample).map_err(|failure| {
                let samples = tests.samples();
                EntropyError::Health { failure, samples, claim }
            })?;
        }
        hash.update(samples);
        Ok(())
    });
    samples.zeroize();
    drawn.map(|()| Seed::new(hash.finalize().into()))
}
