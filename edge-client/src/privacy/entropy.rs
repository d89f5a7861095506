//! From a board's entropy source to a seed, or to an error.
//!
//! Every seed begins with the start-up test of NIST SP 800-90B, section 4.3: 1024 samples, each through the
//! [health tests](super::HealthTests). If all of them pass, the same samples are what the seed is made of (the section
//! allows it): 1024 bits of min-entropy or more, if what is claimed for the source is true, where a seed has 256. They
//! are conditioned by SHA-256, one of the functions that the recommendation has vetted for it (3.1.5.1.1).
//!
//! Nothing is kept from one seed to the next. A source that has failed can try again; it is tested from the start.

use core::fmt;

use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::health::{HealthFailure, HealthTests, MinEntropy};
use super::noise::Seed;

/// Samples that a seed takes.
pub const SAMPLES: usize = 1024;

/// Samples that are read at once.
const READ: usize = 64;
const READS: usize = SAMPLES / READ;

/// Names what the hash is for, and the version of all this.
const CONTEXT: &[u8] = b"fedspan entropy 1";

/// A source of entropy: hardware. Its samples should be as raw as it gives them, since tests see little behind a
/// conditioner; never a generator that is seeded from an identity, a clock, or a constant.
pub trait EntropySource {
    /// What can go wrong.
    type Error;

    /// Fills `samples` with fresh samples, all of them.
    ///
    /// # Errors
    /// Whatever keeps the source from that: an error that it reports itself (a clock or seed error), or samples that
    /// are not there in time. Samples that are in doubt are not to be handed out.
    fn read(&mut self, samples: &mut [u8]) -> Result<(), Self::Error>;
}

/// No seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntropyError<E> {
    /// The source could not be read.
    Source {
        /// What it said.
        error: E,
        /// Samples that it gave before.
        samples: u32,
    },
    /// The source failed a health test.
    Health {
        /// Which one.
        failure: HealthFailure,
        /// Samples until then.
        samples: u32,
        /// What the source was tested for.
        claim: MinEntropy,
    },
}

impl<E: fmt::Display> fmt::Display for EntropyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source { error, samples } => write!(f, "entropy source, after {samples} samples: {error}"),
            Self::Health { failure, samples, claim } => write!(
                f,
                "entropy source, after {samples} samples: {failure}, with {} bits a byte claimed \
                 (cutoffs {} in a row, {} in a window)",
                claim.bits(),
                claim.repetition_cutoff(),
                claim.proportion_cutoff()
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for EntropyError<E> {}

/// Draws a seed from [`SAMPLES`] samples of a source for which `claim` is claimed.
///
/// # Errors
/// [`EntropyError`]. There is no seed then, and there must be no release.
#[cfg_attr(target_os = "none", inline(never))]
pub fn draw_seed<S: EntropySource>(
    source: &mut S,
    claim: MinEntropy,
) -> Result<Seed, EntropyError<S::Error>> {
    let mut tests = HealthTests::new(claim);
    let mut hash = Sha256::new_with_prefix(CONTEXT);
    let mut samples = [0; READ];
    let drawn = (0..READS).try_for_each(|_| {
        // What a driver does not write is a run of zeros, and seen.
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
