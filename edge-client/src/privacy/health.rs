//! Health tests of an entropy source: the tests of NIST SP 800-90B, section 4.4, and a third test for
//! repetitions.
//!
//! A sample is a byte. The tests assume that samples are independent and have the claimed min-entropy of H
//! bits each. Such a source fails
//!
//! * the **repetition count** test (4.4.1), a run of `1 + ceil(20 / H)` equal samples, with a probability of
//!   at most 2^-20 per sample;
//! * the **adaptive proportion** test (4.4.2), the first sample of a window occurring as often as the cutoff,
//!   with a probability of at most 3 2^-20 per window of 512 samples. (The cutoff of the section is for a
//!   probability of 2^-20 with 512 trials, but the first sample is given and 511 trials remain; hence the
//!   factor of 3.)
//! * the **recurrence** test, the first 32 samples occurring again, with a probability of at most 2^-22 in
//!   1024 samples. A source that repeats itself (a buffer returned twice, a generator with a short cycle)
//!   passes the two other tests if its period is long or if the claim is low.
//!
//! The tests detect gross failures. For sources with a quarter of the claimed entropy, because one value is
//! too frequent, 1024 samples detect at least 97 %; for sources with half of the claimed entropy, 12 % (8
//! bits claimed) to 94 % (1 bit). A repetition that does not begin with the first samples is not detected.

use core::fmt;

/// Number of samples in a window of the adaptive proportion test.
pub const WINDOW: u16 = 512;

/// Number of first samples whose recurrence is tested. With 1 bit each, they recur at a given position with
/// probability 2^-32.
const PATTERN: usize = 32;

/// Claimed min-entropy of a source, in bits per sample. A claim that is too low makes the tests less
/// sensitive; a claim that is too high makes the noise predictable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinEntropy {
    /// Claimed number of bits per sample.
    bits: u8,
    /// Cutoff of the repetition count test.
    repetition: u16,
    /// Cutoff of the adaptive proportion test.
    proportion: u16,
}

impl MinEntropy {
    /// Creates a claim of 1 to 8 bits per sample. A sample is a byte.
    ///
    /// # Errors
    /// [`MinEntropyError`] for any other number of bits.
    pub const fn new(bits: u8) -> Result<Self, MinEntropyError> {
        // The repetition cutoff is 1 + ceil(20 / bits). The proportion cutoff is 1 plus the least count that
        // `WINDOW` trials of probability 2^-bits exceed with a probability of at most 2^-20.
        let (repetition, proportion) = match bits {
            1 => (21, 311),
            2 => (11, 177),
            3 => (8, 103),
            4 => (6, 62),
            5 => (5, 39),
            6 => (5, 25),
            7 => (4, 18),
            8 => (4, 13),
            _ => return Err(MinEntropyError { bits }),
        };
        Ok(Self { bits, repetition, proportion })
    }

    /// Returns the number of bits per sample.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Returns the length of a run of equal samples at which the repetition count test fails.
    #[must_use]
    pub const fn repetition_cutoff(self) -> u16 {
        self.repetition
    }

    /// Returns the count of a window's first sample at which the adaptive proportion test fails.
    #[must_use]
    pub const fn proportion_cutoff(self) -> u16 {
        self.proportion
    }
}

/// Error of a claimed min-entropy that is zero or more than a byte can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinEntropyError {
    /// Number of bits that was claimed.
    pub bits: u8,
}

impl fmt::Display for MinEntropyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claimed min-entropy is {} bits a byte; allowed: 1 to 8", self.bits)
    }
}

impl core::error::Error for MinEntropyError {}

/// Failure of a health test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthFailure {
    /// Too many equal samples in a row.
    Repetition {
        /// Length of the run.
        run: u16,
    },
    /// One sample is too frequent.
    Proportion {
        /// Number of occurrences.
        count: u16,
        /// Number of samples in the window up to the failure.
        of: u16,
    },
    /// The first samples recur.
    Recurrence {
        /// Period of the recurrence, in samples.
        period: u32,
    },
}

impl fmt::Display for HealthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Repetition { run } => write!(f, "{run} equal samples in a row"),
            Self::Proportion { count, of } => write!(f, "one sample {count} times among {of}"),
            Self::Recurrence { period } => write!(f, "the first samples recur after {period} samples"),
        }
    }
}

impl core::error::Error for HealthFailure {}

/// State of the health tests of one source.
#[derive(Clone, Debug)]
pub struct HealthTests {
    /// Claim that the tests check.
    claim: MinEntropy,
    /// Number of samples tested.
    samples: u32,
    /// Previous sample, and the length of the current run of equal samples.
    previous: u8,
    run: u16,
    /// First sample of the window, its number of occurrences, and the number of samples read from the window.
    reference: u8,
    count: u16,
    seen: u16,
    /// First samples of the source, whose recurrence is tested.
    pattern: [u8; PATTERN],
    /// Bitmap: bit i is set if the latest i + 1 samples equal the first i + 1 of the pattern.
    matches: u32,
}

impl HealthTests {
    /// Creates the tests for a claim.
    #[must_use]
    pub const fn new(claim: MinEntropy) -> Self {
        Self {
            claim,
            samples: 0,
            previous: 0,
            run: 0,
            reference: 0,
            count: 0,
            seen: 0,
            pattern: [0; PATTERN],
            matches: 0,
        }
    }

    /// Returns the number of samples tested, including a sample that failed.
    #[must_use]
    pub const fn samples(&self) -> u32 {
        self.samples
    }

    /// Tests one more sample.
    ///
    /// # Errors
    /// Returns the [`HealthFailure`] of the first test that fails. The source must then not be used, and
    /// later results are meaningless.
    pub fn test(&mut self, sample: u8) -> Result<(), HealthFailure> {
        let index = self.samples;
        self.samples = index.saturating_add(1);
        self.check_repetition(sample)?;
        self.check_proportion(sample)?;
        self.check_recurrence(sample, index)
    }

    /// Runs the repetition count test.
    fn check_repetition(&mut self, sample: u8) -> Result<(), HealthFailure> {
        self.run = if self.run > 0 && sample == self.previous { self.run.saturating_add(1) } else { 1 };
        self.previous = sample;
        if self.run >= self.claim.repetition {
            return Err(HealthFailure::Repetition { run: self.run });
        }
        Ok(())
    }

    /// Runs the adaptive proportion test.
    fn check_proportion(&mut self, sample: u8) -> Result<(), HealthFailure> {
        if self.seen == 0 {
            self.reference = sample;
            self.count = 0;
        }
        self.seen += 1;
        let total = self.seen;
        if total == WINDOW {
            self.seen = 0;
        }
        if sample == self.reference {
            self.count += 1;
            if self.count >= self.claim.proportion {
                return Err(HealthFailure::Proportion { count: self.count, of: total });
            }
        }
        Ok(())
    }

    /// Runs the recurrence test.
    fn check_recurrence(&mut self, sample: u8, index: u32) -> Result<(), HealthFailure> {
        let entry = usize::try_from(index).ok().and_then(|index| self.pattern.get_mut(index));
        if let Some(entry) = entry {
            *entry = sample;
        }
        let mut equal = 0;
        for (bit, &first) in self.pattern.iter().enumerate() {
            equal |= u32::from(first == sample) << bit;
        }
        // Starts with the second sample: at the first one the pattern would match itself.
        self.matches = if index == 0 { 0 } else { (self.matches << 1 | 1) & equal };
        let period = index.saturating_sub(PATTERN as u32 - 1);
        if self.matches >> (PATTERN - 1) != 0 {
            return Err(HealthFailure::Recurrence { period });
        }
        Ok(())
    }
}
