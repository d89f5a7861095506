//! Recordings: the raw inertial samples of a wearer in a flash partition, on which a device trains. Windows
//! are cut and features computed on demand; no buffer grows with the number of windows.
//!
//! This file contains the format, its reader and its writer. [`WearerSource`] is the sample source over a
//! recording, [`draw`] draws windows like the simulator, [`table`] is a format for samples that are not
//! motion, and `network` (feature `network`) one for a network and its samples.
//!
//! All numbers are little endian, and all offsets are in bytes. A change of the format changes its version.
//!
//! | offset | type | content |
//! | --- | --- | --- |
//! | 0 | 4 bytes | `FSRC` |
//! | 4 | u16 | version, 1 |
//! | 6 | u16 | number of series, S |
//! | 8 | u32 | length of the checked bytes, L: 64 + 16 S + 12 per sample |
//! | 12 | u16 | classes, 1 to 16 |
//! | 14 | u16 | samples between the starts of two windows |
//! | 16 | u64 | seed of the draws below |
//! | 24 | u64 | number of the wearer in these draws |
//! | 32 | u16 | windows per class on which a round's head is fitted, drawn for each training round; 0: all |
//! | 34 | u16 | windows per class that the wearer has labelled, drawn once; 0: all |
//! | 36 | u32 | 0 |
//! | 40 | 6 x f32 | scale of each channel: sample times scale is g, then rad/s |
//! | 64 | S x 16 bytes | the series |
//! | 64 + 16 S | i16 | samples, series after series, six channels each |
//! | L | u32 | CRC-32C of the first L bytes |
//!
//! | offset in a series | type | content |
//! | --- | --- | --- |
//! | 0 | u8 | class of all its windows |
//! | 1 | 3 bytes | 0 |
//! | 4 | u32 | samples |
//! | 8 | u16 | end of the training windows, which are `0..` this number |
//! | 10, 12 | u16, u16 | first test window, and the end of the test windows |
//! | 14 | u16 | 0 |
//!
//! The ranges of the training and test windows are stored, not computed from a fraction, so that different
//! rounding on host and board cannot give different ranges.

mod bytes;
pub mod draw;
#[cfg(feature = "network")]
pub mod network;
pub mod table;
mod wearer;

use core::fmt;
use core::ops::Range;

use bytes::{leading_bytes, u16_at, u32_at, u64_at, verify_envelope};

pub use wearer::WearerSource;

use crate::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};
#[cfg(feature = "network")]
use crate::memory::ShapeError;

/// First bytes of a recording.
pub const MAGIC: [u8; 4] = *b"FSRC";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Largest number of classes.
pub const CLASSES_MAX: usize = 16;
/// Largest number of windows per class in a draw.
pub const DRAW_MAX: usize = 8;

/// Length of the header in bytes.
pub const HEADER: usize = 64;
/// Length of a series' description in bytes.
pub const SERIES: usize = 16;
/// Length of a raw sample in bytes.
const SAMPLE: usize = 2 * CHANNELS;

/// Reason why a partition holds no usable recording, table or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// The partition was never written.
    Blank,
    /// The partition holds data of another kind.
    Magic,
    /// The format has another version.
    Version(u16),
    /// The content is longer than the partition.
    Length {
        /// Length according to the header, including the checksum.
        needed: usize,
        /// Length of the partition.
        got: usize,
    },
    /// The checksum does not match.
    Check,
    /// A field of the header is out of range.
    Header(&'static str),
    /// A field of a series is out of range.
    Series {
        /// Index of the series, from 0.
        index: usize,
        /// Name of the field that is out of range.
        field: &'static str,
    },
    /// No network has the shape in the header.
    #[cfg(feature = "network")]
    Shape(ShapeError),
}

#[cfg(feature = "network")]
impl From<ShapeError> for FormatError {
    fn from(error: ShapeError) -> Self {
        Self::Shape(error)
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Blank => f.write_str("the partition is blank; nothing was written to it"),
            Self::Magic => f.write_str(
                "the partition holds something else: its first bytes are not those of this format",
            ),
            Self::Version(version) => {
                write!(f, "format version {version}; this firmware reads version {VERSION}")
            }
            Self::Length { needed, got } => {
                write!(f, "the content takes {needed} bytes, the partition has {got}")
            }
            Self::Check => f.write_str("damaged: the checksum does not match; write it again"),
            Self::Header(field) => write!(f, "{field} in the header is out of range"),
            Self::Series { index, field } => write!(f, "{field} of series {index} is out of range"),
            #[cfg(feature = "network")]
            Self::Shape(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FormatError {}

/// Header of a recording, without its lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Number of classes.
    pub classes: u16,
    /// Number of samples between the starts of two windows.
    pub hop: u16,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of the wearer in the draws.
    pub wearer: u64,
    /// Number of windows per class for the head of a training round; 0 for all.
    pub head_per_class: u16,
    /// Number of labelled windows per class; 0 for all.
    pub labelled_per_class: u16,
    /// Factor of each channel that converts raw samples to g or rad/s.
    pub scale: [f32; CHANNELS],
}

/// Series of a recording: one movement, recorded without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series<'a> {
    /// Class of all windows of the series.
    pub class: u8,
    /// Number of training windows, which are the first windows of the series.
    pub train: u16,
    /// Range of the test windows.
    pub test: Range<u16>,
    /// Raw samples, 6 x i16 each.
    pub samples: &'a [u8],
}

impl Series<'_> {
    /// Returns the number of windows of the series.
    fn windows(&self, hop: u16) -> usize {
        let samples = self.samples.len() / SAMPLE;
        samples.checked_sub(WINDOW).map_or(0, |remaining| remaining / usize::from(hop.max(1)) + 1)
    }
}

/// Recording whose format has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    header: Header,
    series: &'a [u8],
    samples: &'a [u8],
}

/// Window of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'a> {
    /// Class of the window.
    pub class: u8,
    samples: &'a [u8],
}

impl<'a> Recording<'a> {
    /// Finds the recording at the start of a partition and checks it completely, so that all later accesses
    /// are in bounds.
    ///
    /// # Errors
    /// Returns the first [`FormatError`] found.
    pub fn parse(partition: &'a [u8]) -> Result<Self, FormatError> {
        let checked = verify_envelope(partition, HEADER, &MAGIC, VERSION)?;
        let head = partition.get(..HEADER).unwrap_or(checked);
        let mut scale = [0.0; CHANNELS];
        for (index, target) in scale.iter_mut().enumerate() {
            *target = f32::from_bits(u32_at(head, 40 + 4 * index));
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

    /// Checks the fields and lengths of all series.
    fn check_series(&self) -> Result<(), FormatError> {
        let mut remaining = self.samples.len();
        for (index, bytes) in self.series.chunks_exact(SERIES).enumerate() {
            let series_error = |field| FormatError::Series { index, field };
            let count = usize::try_from(u32_at(bytes, 4)).unwrap_or(usize::MAX);
            let length = count.checked_mul(SAMPLE).ok_or(series_error("the number of samples"))?;
            remaining = remaining.checked_sub(length).ok_or(series_error("the number of samples"))?;
        }
        if remaining > 0 {
            return Err(FormatError::Header("the length"));
        }
        for (index, series) in self.series().enumerate() {
            let series_error = |field| FormatError::Series { index, field };
            let windows = series.windows(self.header.hop);
            if u16::from(series.class) >= self.header.classes {
                return Err(series_error("the class"));
            }
            if usize::from(series.train) > windows {
                return Err(series_error("the training part"));
            }
            if series.test.start > series.test.end || usize::from(series.test.end) > windows {
                return Err(series_error("the test part"));
            }
        }
        // Window numbers are 16 bits wide.
        let windows: usize = self.series().map(|s| usize::from(s.train) + s.test.len()).sum();
        if windows > usize::from(u16::MAX) {
            Err(FormatError::Header("the number of windows"))
        } else {
            Ok(())
        }
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the series in order.
    pub fn series(&self) -> impl Iterator<Item = Series<'a>> + use<'a> {
        let mut remaining = self.samples;
        self.series.chunks_exact(SERIES).map(move |bytes| {
            let length = usize::try_from(u32_at(bytes, 4)).unwrap_or(usize::MAX).saturating_mul(SAMPLE);
            let (samples, after) = remaining.split_at_checked(length).unwrap_or_default();
            remaining = after;
            Series {
                class: bytes.first().copied().unwrap_or(0),
                train: u16_at(bytes, 8),
                test: u16_at(bytes, 10)..u16_at(bytes, 12),
                samples,
            }
        })
    }

    /// Returns the number of training windows.
    #[must_use]
    pub fn training_windows(&self) -> usize {
        self.series().map(|series| usize::from(series.train)).sum()
    }

    /// Returns the number of training windows of a class.
    #[must_use]
    pub fn windows_of(&self, class: u8) -> usize {
        self.series().filter(|series| series.class == class).map(|series| usize::from(series.train)).sum()
    }

    /// Returns the number of a class's `nth` training window among all training windows.
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

    /// Returns training window `number`, counted through the series in order.
    #[must_use]
    pub fn training(&self, number: usize) -> Option<Window<'a>> {
        self.locate(number, |series| 0..series.train)
    }

    /// Returns test window `number`, counted through the series in order.
    #[must_use]
    pub fn test(&self, number: usize) -> Option<Window<'a>> {
        self.locate(number, |series| series.test.clone())
    }

    /// Returns window `number` of the ranges that `part` selects from the series.
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

    /// Computes the features of a window.
    pub fn features(&self, window: &Window<'_>, out: &mut [f32; FEATURES]) {
        let mut extractor = WindowFeatures::new();
        for bytes in window.samples.chunks_exact(SAMPLE) {
            let mut sample = [0.0; CHANNELS];
            for ((target, raw), scale) in sample.iter_mut().zip(bytes.chunks_exact(2)).zip(&self.header.scale)
            {
                // Computed in f32, like in the simulator.
                *target = f32::from(i16::from_le_bytes(leading_bytes(raw))) * scale;
            }
            extractor.push(&sample, out);
        }
    }
}

/// Writes a recording in pieces through `write`, on the host. The caller appends the checksum: the CRC-32C of
/// all written bytes, 4 bytes, little endian.
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
    for entry in series {
        write(&[entry.class, 0, 0, 0]);
        write(&u32::try_from(entry.samples.len() / SAMPLE).unwrap_or(u32::MAX).to_le_bytes());
        write(&entry.train.to_le_bytes());
        write(&entry.test.start.to_le_bytes());
        write(&entry.test.end.to_le_bytes());
        write(&[0; 2]);
    }
    for entry in series {
        write(entry.samples);
    }
}
