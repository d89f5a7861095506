//! Health tests of an entropy source: those of NIST SP 800-90B, section 4.4, and one for what they do not see.
//!
//! A sample is a byte. Each test is for a source that gives what is claimed for it, H bits of min-entropy a sample,
//! independent of each other. Such a source fails
//!
//! * at a sample, with a probability of at most 2^-20, by the **repetition count** (4.4.1): a run of
//!   `1 + ceil(20 / H)` equal samples;
//! * in a window of 512 samples, with a probability of at most 3 2^-20, by the **adaptive proportion** (4.4.2): the
//!   first sample of the window is in it as often as the cutoff says (the section's cutoff for 2^-20 counts 512 trials
//!   where the first is given and 511 are left; hence the 3);
//! * in 1024 samples, with a probability of at most 2^-22, by the **recurrence** of the first 32: a source that repeats
//!   itself (a buffer that is handed out again, a generator with a short cycle) passes both tests above if its period
//!   is long, or if what is claimed is little.
//!
//! They find what is grossly wrong. Of sources that have a quarter of the entropy that is claimed for them, since one
//! value is so frequent, 1024 samples give away 97 in 100 or more; of those that have half of it, from 12 (8 bits
//! claimed) to 94 (1 bit). A repetition that does not begin with the first samples goes unnoticed.

use core::fmt;

/// Samples in a window of the adaptive proportion test.
pub const WINDOW: u16 = 512;

/// Samples whose recurrence is looked for: of 1 bit each, they recur at a given place once in 2^32.
const PATTERN: usize = 32;

/// What is claimed for a source: bits of min-entropy in each of its samples. A claim that is too low costs nothing but
/// sharpness of the tests; one that is too high costs the noise its secrecy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinEntropy {
    bits: u8,
    repetition: u16,
    proportion: u16,
}

impl MinEntropy {
    /// From 1 to 8 bits a sample, which is a byte.
    ///
    /// # Errors
    /// [`MinEntropyError`] for another number.
    pub const fn new(bits: u8) -> Result<Self, MinEntropyError> {
        // 1 + ceil(20 / bits); and 1 and the least count that `WINDOW` trials of probability 2^-bits exceed with a
        // probability of at most 2^-20.
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

    /// Bits a sample.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// The run of equal samples that is a failure.
    #[must_use]
    pub const fn repetition_cutoff(self) -> u16 {
        self.repetition
    }

    /// How often the first sample of a window has to be in it to be a failure.
    #[must_use]
    pub const fn proportion_cutoff(self) -> u16 {
        self.proportion
    }
}

/// No byte has so much min-entropy, or it is too little to make a seed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinEntropyError {
    /// What was claimed.
    pub bits: u8,
}

impl fmt::Display for MinEntropyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits of min-entropy a byte: it has to be 1 to 8", self.bits)
    }
}

impl core::error::Error for MinEntropyError {}

/// What a source did that it should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthFailure {
    /// So many equal samples, one after the other.
    Repetition {
        /// Length of the run.
        run: u16,
    },
    /// One sample too often.
    Proportion {
        /// How often it was there.
        count: u16,
        /// Among so many.
        of: u16,
    },
    /// The first samples again.
    Recurrence {
        /// So many samples later.
        period: u32,
    },
}

impl fmt::Display for HealthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Repetition { run } => write!(f, "{run} equal samples in a row"),
            Self::Proportion { count, of } => write!(f, "one sample {count} times among {of}"),
            Self::Recurrence { period } => write!(f, "the first samples again, {period} samples later"),
        }
    }
}

impl core::error::Error for HealthFailure {}

/// The tests, sample after sample.
#[derive(Clone, Debug)]
pub struct HealthTests {
    claim: MinEntropy,
    /// Samples so far.
    samples: u32,
    previous: u8,
    run: u16,
    /// The first sample of the window, how often it was there, and samples in the window.
    reference: u8,
    count: u16,
    seen: u16,
    pattern: [u8; PATTERN],
    /// Bit i: the latest samples are the first i + 1 of the pattern.
    matches: u32,
}

impl HealthTests {
    /// Before the first sample.
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

    /// Samples so far, those that failed included.
    #[must_use]
    pub const fn samples(&self) -> u32 {
        self.samples
    }

    /// Takes one sample more.
    ///
    /// # Errors
    /// [`HealthFailure`], of the first test that fails. The source is not to be used then; what the tests say after
    /// that means nothing.
    pub fn test(&mut self, sample: u8) -> Result<(), HealthFailure> {
        let place = self.samples;
        self.samples = place.saturating_add(1);
        self.repetition(sample)?;
        self.proportion(sample)?;
        self.recurrence(sample, place)
    }

    fn repetition(&mut self, sample: u8) -> Result<(), HealthFailure> {
        self.run = if self.run > 0 && sample == self.previous { self.run.saturating_add(1) } else { 1 };
        self.previous = sample;
        if self.run >= self.claim.repetition {
            return Err(HealthFailure::Repetition { run: self.run });
        }
        Ok(())
    }

    fn proportion(&mut self, sample: u8) -> Result<(), HealthFailure> {
        if self.seen == 0 {
            self.reference = sample;
            self.count = 0;
        }
        self.seen += 1;
        let of = self.seen;
        if of == WINDOW {
            self.seen = 0;
        }
        if sample == self.reference {
            self.count += 1;
            if self.count >= self.claim.proportion {
                return Err(HealthFailure::Proportion { count: self.count, of });
            }
        }
        Ok(())
    }

    fn recurrence(&mut self, sample: u8, place: u32) -> Result<(), HealthFailure> {
        let entry = usize::try_from(place).ok().and_then(|place| self.pattern.get_mut(place));
        if let Some(entry) = entry {
            *entry = sample;
        }
        let mut equal = 0;
        for (bit, &first) in self.pattern.iter().enumerate() {
            equal |= u32::from(first == sample) << bit;
        }
        // From the second sample on: at the first one the pattern is found where it is.
        self.matches = if place == 0 { 0 } else { (self.matches << 1 | 1) & equal };
        let period = place.saturating_sub(PATTERN as u32 - 1);
        if self.matches >> (PATTERN - 1) != 0 {
            return Err(HealthFailure::Recurrence { period });
        }
        Ok(())
    }
}
