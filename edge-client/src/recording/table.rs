//! Tables: samples in a flash partition, one row per sample, for boards and data unrelated to motion. Only
//! the current row is in RAM. Targets are values ([`Rows`]) or class numbers (`ClassRows`, feature `network`).
//!
//! All numbers are little endian, and all offsets are in bytes. A change of the format changes its version.
//!
//! | offset | type | content |
//! | --- | --- | --- |
//! | 0 | 4 bytes | `FSTB` |
//! | 4 | u16 | version, 1 |
//! | 6 | u16 | features per sample, d |
//! | 8 | u32 | length of the checked bytes, L: 20 + 4 (d + 1) per row |
//! | 12 | u32 | training rows |
//! | 16 | u32 | test rows, after the training rows |
//! | 20 | f32 | rows: d features, then the target |
//! | L | u32 | CRC-32C of the first L bytes |

use fedspan_protocol::message::RoundId;

use super::FormatError;
use super::bytes::{leading_bytes, u16_at, u32_at, verify_envelope};
#[cfg(feature = "network")]
use crate::error::ShapeMismatch;
use crate::error::SourceError;
use crate::source::{SampleSource, Samples, Targets};

/// First bytes of a table.
pub const MAGIC: [u8; 4] = *b"FSTB";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER: usize = 20;

/// Part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Training rows.
    Training,
    /// Test rows.
    Test,
}

/// Table whose format has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    features: usize,
    training: &'a [u8],
    test: &'a [u8],
}

impl<'a> Table<'a> {
    /// Finds the table at the start of a partition and checks it completely, so that all later accesses are
    /// in bounds. Values may be infinite or NaN: the model skips such samples.
    ///
    /// # Errors
    /// Returns the first [`FormatError`] found.
    pub fn parse(partition: &'a [u8]) -> Result<Self, FormatError> {
        let checked = verify_envelope(partition, HEADER, &MAGIC, VERSION)?;
        let (head, rows) =
            checked.split_at_checked(HEADER).ok_or(FormatError::Header("the number of bytes"))?;
        let features = usize::from(u16_at(head, 6));
        if features == 0 {
            return Err(FormatError::Header("the number of features"));
        }
        let bytes = |count: u32| usize::try_from(count).ok()?.checked_mul(4 * (features + 1));
        let training = bytes(u32_at(head, 12)).and_then(|length| rows.split_at_checked(length));
        let (training, test) = training.ok_or(FormatError::Header("the number of training rows"))?;
        if bytes(u32_at(head, 16)) != Some(test.len()) {
            return Err(FormatError::Header("the number of test rows"));
        }
        Ok(Self { features, training, test })
    }

    /// Returns the number of features per sample, `d`.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Returns the number of rows of a part.
    #[must_use]
    pub fn rows(&self, part: Split) -> usize {
        self.bytes(part).len() / (4 * (self.features + 1))
    }

    /// Returns the bytes of a part.
    fn bytes(&self, part: Split) -> &'a [u8] {
        match part {
            Split::Training => self.training,
            Split::Test => self.test,
        }
    }
}

/// Sample source over one part of a table with `D` features, which returns one sample at a time.
#[derive(Clone, Debug)]
pub struct Rows<'a, const D: usize> {
    /// Bytes of all rows of the part.
    bytes: &'a [u8],
    /// Number of rows read in the current pass.
    next: usize,
    x: [f32; D],
    y: [f32; 1],
}

impl<'a, const D: usize> Rows<'a, D> {
    /// Creates a source over the rows of `part`. Returns `None` if the table does not have `D` features.
    #[must_use]
    pub fn new(table: &Table<'a>, part: Split) -> Option<Self> {
        let bytes = table.bytes(part);
        (table.features == D).then_some(Self { bytes, next: 0, x: [0.0; D], y: [0.0] })
    }
}

impl<const D: usize> SampleSource for Rows<'_, D> {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.next = 0;
        Ok(())
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let row = self.bytes.get(index.checked_mul(4 * (D + 1))?..)?.get(..4 * (D + 1))?;
        let values = row.chunks_exact(4).map(|bytes| f32::from_le_bytes(leading_bytes(bytes)));
        for (target, value) in self.x.iter_mut().chain(&mut self.y).zip(values) {
            *target = value;
        }
        Some(Samples { x: &self.x, targets: Targets::Values(&self.y) })
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let index = self.next;
        self.next = index.saturating_add(1);
        self.at(index)
    }
}

/// Sample source over one part of a table whose targets are class numbers. The number of features is known at
/// run time only.
#[cfg(feature = "network")]
#[derive(Debug)]
pub struct ClassRows<'a> {
    /// Bytes of all rows of the part.
    bytes: &'a [u8],
    /// Number of rows read in the current pass.
    next: usize,
    x: &'a mut [f32],
    class: [u8; 1],
}

#[cfg(feature = "network")]
impl<'a> ClassRows<'a> {
    /// Creates a source over the rows of `part`. The current row is in `x`.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if the length of `x` is not the number of features.
    pub fn new(table: &Table<'a>, part: Split, x: &'a mut [f32]) -> Result<Self, ShapeMismatch> {
        if x.len() != table.features {
            return Err(ShapeMismatch { expected: table.features, got: x.len() });
        }
        Ok(Self { bytes: table.bytes(part), next: 0, x, class: [0] })
    }
}

#[cfg(feature = "network")]
impl SampleSource for ClassRows<'_> {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.next = 0;
        Ok(())
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let length = 4 * (self.x.len() + 1);
        let row = self.bytes.get(index.checked_mul(length)?..)?.get(..length)?;
        let mut values = row.chunks_exact(4).map(|bytes| f32::from_le_bytes(leading_bytes(bytes)));
        for (target, value) in self.x.iter_mut().zip(&mut values) {
            *target = value;
        }
        let target = values.next().unwrap_or(f32::NAN);
        // A target that is no class number makes the sample unusable, as a target of another kind does.
        let targets = match (0..=u8::MAX).find(|class| f32::from(*class) == target) {
            Some(class) => {
                self.class = [class];
                Targets::Classes(&self.class)
            }
            None => Targets::Values(&[]),
        };
        Some(Samples { x: self.x, targets })
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let index = self.next;
        self.next = index.saturating_add(1);
        self.at(index)
    }
}

/// Writes a table in pieces through `write`. The caller appends the checksum: the CRC-32C of all written
/// bytes, 4 bytes, little endian. `x` is row-major, m x d; training rows come first.
pub fn write<'a>(
    features: u16,
    training: (&'a [f32], &'a [f32]),
    test: (&'a [f32], &'a [f32]),
    mut write: impl FnMut(&[u8]),
) {
    let d = usize::from(features);
    let rows = |(x, y): (&'a [f32], &'a [f32])| x.chunks_exact(d.max(1)).zip(y);
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let (trained, tested) = (rows(training).count(), rows(test).count());
    write(&MAGIC);
    write(&VERSION.to_le_bytes());
    write(&features.to_le_bytes());
    write(&small(HEADER + 4 * (d + 1) * (trained + tested)));
    write(&small(trained));
    write(&small(tested));
    for (x, y) in rows(training).chain(rows(test)) {
        for value in x.iter().chain([y]) {
            write(&value.to_le_bytes());
        }
    }
}
