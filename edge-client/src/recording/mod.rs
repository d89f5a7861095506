//! A wearer's raw inertial samples in a partition of flash, as a device trains on them: windows are cut and
//! features computed as they are needed, nothing of length m is kept.
//!
//! This file is the format: its reader and its writer. [`WearerSource`] makes samples of a recording, [`draw`]
//! chooses windows as the simulator does. [`table`] is for samples that are no motion.
//!
//! Little endian throughout; offsets in bytes. The format may change; its version then does.
//!
//! | offset | type | what |
//! | --- | --- | --- |
//! | 0 | 4 bytes | `FSRC` |
//! | 4 | u16 | version, 1 |
//! | 6 | u16 | number of series, S |
//! | 8 | u32 | length of all that is checked, L: 64 + 16 S + 12 bytes a sample |
//! | 12 | u16 | classes, 1 to 16 |
//! | 14 | u16 | samples between the starts of two windows |
//! | 16 | u64 | seed of the draws below |
//! | 24 | u64 | number of the wearer in these draws |
//! | 32 | u16 | windows per class that a training round's head is fitted on, drawn anew each round; 0: all |
//! | 34 | u16 | windows per class that the wearer has labelled, drawn once; 0: all |
//! | 36 | u32 | 0 |
//! | 40 | 6 x f32 | scale of each channel: sample times scale is g, then rad/s |
//! | 64 | S x 16 bytes | the series |
//! | 64 + 16 S | i16 | samples, series after series, six channels each |
//! | L | u32 | CRC-32C of the first L bytes |
//!
//! | offset in a series | type | what |
//! | --- | --- | --- |
//! | 0 | u8 | class of all its windows |
//! | 1 | 3 bytes | 0 |
//! | 4 | u32 | samples |
//! | 8 | u16 | windows `0..` this train |
//! | 10, 12 | u16, u16 | windows from this one to before that one test |
//! | 14 | u16 | 0 |
//!
//! Which windows train and test is written down instead of computed from a fraction, so that nothing can be
//! rounded one way on the host and another way on the board.

mod bytes;
pub mod draw;
pub mod table;
mod wearer;

use core::fmt;
use core::ops::Range;

use bytes::{leading_bytes, u16_at, u32_at, u64_at, verify_envelope};

pub use wearer::WearerSource;

use crate::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};

/// First bytes of a recording.
pub const MAGIC: [u8; 4] = *b"FSRC";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Most classes.
pub const CLASSES_MAX: usize = 16;
/// Most windows per class in a draw.
pub const DRAW_MAX: usize = 8;

/// Bytes of the header.
pub const HEADER: usize = 64;
/// Bytes of a series' description.
pub const SERIES: usize = 16;
const SAMPLE: usize = 2 * CHANNELS;

/// Why a partition holds no recording that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// Nothing was ever written.
    Blank,
    /// Something else is there.
    Magic,
    /// Another version.
    Version(u16),
    /// Longer than the partition.
    Length {
        /// What the header says, check included.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// The check does not match.
    Check,
    /// A field of the header is out of range.
    Header(&'static str),
    /// A field of a series is out of range.
    Series {
        /// Which one, from 0.
        index: usize,
        /// Which field.
        field: &'static str,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Blank => f.write_str("it is blank"),
            Self::Magic => f.write_str("something else is there"),
            Self::Version(version) => write!(f, "version {version}; this firmware reads version {VERSION}"),
            Self::Length { needed, got } => write!(f, "{needed} bytes long, the partition has {got}"),
            Self::Check => f.write_str("damaged: its check does not match"),
            Self::Header(field) => write!(f, "{field} in the header is out of range"),
            Self::Series { index, field } => write!(f, "{field} of series {index} is out of range"),
        }
    }
}

impl core::error::Error for FormatError {}

/// What the header says beside lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Classes.
    pub classes: u16,
    /// Samples between the starts of two windows.
    pub hop: u16,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of the wearer in the draws.
    pub wearer: u64,
    /// Windows per class for a training round's head; 0: all.
    pub head_per_class: u16,
    /// Windows per class that are labelled; 0: all.
    pub labelled_per_class: u16,
    /// Scale of each channel.
    pub scale: [f32; CHANNELS],
}

/// One series: one movement, recorded without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series<'a> {
    /// Class of all its windows.
    pub class: u8,
    /// Windows before this one train.
    pub train: u16,
    /// These windows test.
    pub test: Range<u16>,
    /// Raw samples.
    pub samples: &'a [u8],
}

impl Series<'_> {
    fn windows(&self, hop: u16) -> usize {
        let samples = self.samples.len() / SAMPLE;
        samples.checked_sub(WINDOW).map_or(0, |rest| rest / usize::from(hop.max(1)) + 1)
    }
}

/// A checked recording.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    header: Header,
    series: &'a [u8],
    samples: &'a [u8],
}

/// Where one window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'a> {
    /// Its class.
    pub class: u8,
    samples: &'a [u8],
}

impl<'a> Recording<'a> {
    /// Finds the recording at the start of a partition and checks all of it: whatever the bytes are, what
    /// comes after is in bounds.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(partition: &'a [u8]) -> Result<Self, FormatError> {
        let checked = verify_envelope(partition, HEADER, &MAGIC, VERSION)?;
        let head = partition.get(..HEADER).unwrap_or(checked);
        let mut scale = [0.0; CHANNELS];
        for (index, place) in scale.iter_mut().enumerate() {
            *place = f32::from_bits(u32_at(head, 40 + 4 * index));
        }
        let header = Header {
            classes: u16_at(head, 12),
            hop: u16_at(head, 14),
            seed: u64_at(head, 16),
            wearer: u64_at(head, 24),
            head_per_class: u16_at(head, 32),
            labelled_per_class: u16_at(head, 34),
            scale,
        };
        for (field, good) in [
            ("the number of classes", (1..=CLASSES_MAX).contains(&usize::from(header.classes))),
            ("the distance of windows", (1..=WINDOW).contains(&usize::from(header.hop))),
            ("a number of windows per class", usize::from(header.head_per_class) <= DRAW_MAX),
            ("a number of windows per class", usize::from(header.labelled_per_class) <= DRAW_MAX),
            ("a scale", scale.iter().all(|s| s.is_finite() && *s > 0.0)),
            ("a reserved field", u32_at(head, 36) == 0),
        ] {
            if !good {
                return Err(FormatError::Header(field));
            }
        }
        let end = HEADER + usize::from(u16_at(head, 6)) * SERIES;
        let series = checked.get(HEADER..end).ok_or(FormatError::Header("the number of series"))?;
        let samples = checked.get(end..).unwrap_or_default();
        let recording = Self { header, series, samples };
        recording.check_series()?;
        Ok(recording)
    }

    fn check_series(&self) -> Result<(), FormatError> {
        let mut left = self.samples.len();
        for (index, bytes) in self.series.chunks_exact(SERIES).enumerate() {
            let wrong = |field| FormatError::Series { index, field };
            let count = usize::try_from(u32_at(bytes, 4)).unwrap_or(usize::MAX);
            let length = count.checked_mul(SAMPLE).ok_or(wrong("the number of samples"))?;
            left = left.checked_sub(length).ok_or(wrong("the number of samples"))?;
        }
        if left > 0 {
            return Err(FormatError::Header("the length"));
        }
        for (index, series) in self.series().enumerate() {
            let wrong = |field| FormatError::Series { index, field };
            let windows = series.windows(self.header.hop);
            if u16::from(series.class) >= self.header.classes {
                return Err(wrong("the class"));
            }
            if usize::from(series.train) > windows {
                return Err(wrong("the training part"));
            }
            if series.test.start > series.test.end || usize::from(series.test.end) > windows {
                return Err(wrong("the test part"));
            }
        }
        // Windows are counted in 16 bits.
        let windows: usize = self.series().map(|s| usize::from(s.train) + s.test.len()).sum();
        if windows > usize::from(u16::MAX) {
            Err(FormatError::Header("the number of windows"))
        } else {
            Ok(())
        }
    }

    /// What the header says.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// All series.
    pub fn series(&self) -> impl Iterator<Item = Series<'a>> + use<'a> {
        let mut rest = self.samples;
        self.series.chunks_exact(SERIES).map(move |bytes| {
            let length = usize::try_from(u32_at(bytes, 4)).unwrap_or(usize::MAX).saturating_mul(SAMPLE);
            let (samples, after) = rest.split_at_checked(length).unwrap_or_default();
            rest = after;
            Series {
                class: bytes.first().copied().unwrap_or(0),
                train: u16_at(bytes, 8),
                test: u16_at(bytes, 10)..u16_at(bytes, 12),
                samples,
            }
        })
    }

    /// Windows that train.
    #[must_use]
    pub fn training_windows(&self) -> usize {
        self.series().map(|series| usize::from(series.train)).sum()
    }

    /// Training windows of one class.
    #[must_use]
    pub fn windows_of(&self, class: u8) -> usize {
        self.series().filter(|series| series.class == class).map(|series| usize::from(series.train)).sum()
    }

    /// The number, among all training windows, of training window `nth` of one class.
    #[must_use]
    pub fn number_of(&self, class: u8, mut nth: usize) -> Option<usize> {
        let mut before = 0;
        for series in self.series() {
            let train = usize::from(series.train);
            if series.class == class {
                if nth < train {
                    return Some(before + nth);
                }
                nth -= train;
            }
            before += train;
        }
        None
    }

    /// Training window `number`: series after series, in time.
    #[must_use]
    pub fn training(&self, number: usize) -> Option<Window<'a>> {
        self.locate(number, |series| 0..series.train)
    }

    /// Test window `number`: series after series, in time.
    #[must_use]
    pub fn test(&self, number: usize) -> Option<Window<'a>> {
        self.locate(number, |series| series.test.clone())
    }

    fn locate(&self, mut number: usize, part: impl Fn(&Series<'a>) -> Range<u16>) -> Option<Window<'a>> {
        for series in self.series() {
            let range = part(&series);
            if number < range.len() {
                let start = (usize::from(range.start) + number) * usize::from(self.header.hop) * SAMPLE;
                let samples = series.samples.get(start..start + WINDOW * SAMPLE)?;
                return Some(Window { class: series.class, samples });
            }
            number -= range.len();
        }
        None
    }

    /// The features of a window.
    pub fn features(&self, window: &Window<'_>, out: &mut [f32; FEATURES]) {
        let mut extractor = WindowFeatures::new();
        for bytes in window.samples.chunks_exact(SAMPLE) {
            let mut sample = [0.0; CHANNELS];
            for ((place, raw), scale) in sample.iter_mut().zip(bytes.chunks_exact(2)).zip(&self.header.scale)
            {
                // In f32, as the simulator computes it.
                *place = f32::from(i16::from_le_bytes(leading_bytes(raw))) * scale;
            }
            extractor.push(&sample, out);
        }
    }
}

/// Writes a recording, piece by piece, through `write`; the check comes last and is the caller's to append:
/// four bytes, the CRC-32C of all that came before, little endian. For the host, which has a vector for that.
pub fn write(header: &Header, series: &[Series<'_>], mut write: impl FnMut(&[u8])) {
    let samples: usize = series.iter().map(|s| s.samples.len()).sum();
    let length = HEADER + SERIES * series.len() + samples;
    write(&MAGIC);
    write(&VERSION.to_le_bytes());
    write(&u16::try_from(series.len()).unwrap_or(u16::MAX).to_le_bytes());
    write(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    write(&header.classes.to_le_bytes());
    write(&header.hop.to_le_bytes());
    write(&header.seed.to_le_bytes());
    write(&header.wearer.to_le_bytes());
    write(&header.head_per_class.to_le_bytes());
    write(&header.labelled_per_class.to_le_bytes());
    write(&[0; 4]);
    for scale in header.scale {
        write(&scale.to_le_bytes());
    }
    for one in series {
        write(&[one.class, 0, 0, 0]);
        write(&u32::try_from(one.samples.len() / SAMPLE).unwrap_or(u32::MAX).to_le_bytes());
        write(&one.train.to_le_bytes());
        write(&one.test.start.to_le_bytes());
        write(&one.test.end.to_le_bytes());
        write(&[0; 2]);
    }
    for one in series {
        write(one.samples);
    }
}
