//! Network images: a network whose sizes are known at run time only, and the samples of its device, in a
//! flash partition. One firmware can thus train any network that fits its memory.
//!
//! All numbers are little endian, and all offsets are in bytes. A change of the format changes its version.
//!
//! | offset | type | content |
//! | --- | --- | --- |
//! | 0 | 4 bytes | `FSNW` |
//! | 4 | u16 | version, 1 |
//! | 6 | u16 | most samples in a batch |
//! | 8 | u32 | length of the checked bytes, L: 56 + 4 (P + F) |
//! | 12 | 11 x u16 | model: [`Model::words`] |
//! | 34 | u16 | frame limit of the device |
//! | 36 | u32 | 1 with momentum, otherwise 0 |
//! | 40 | u64 | seed of the order of samples |
//! | 48 | u32 | parameters of all layers, P |
//! | 52 | u32 | values of the frozen layer, F; 0 without one |
//! | 56 | P x f32 | initial parameters of all layers |
//! | 56 + 4 P | F x f32 | frozen layer that an adapter belongs to |
//! | L | u32 | CRC-32C of the first L bytes |
//! | L + 4 | | [table](super::table) of the samples, whose targets are class numbers |

use fedspan_protocol::frame::Crc32c;
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN};
use fedspan_protocol::message::{MODEL_WORDS, Model, ModelSizes};

use super::FormatError;
use super::bytes::{u16_at, u32_at, u64_at, verify_envelope};
use super::table::Table;
use crate::memory::{NetworkShape, NetworkSlices};

/// First bytes of a network image.
pub const MAGIC: [u8; 4] = *b"FSNW";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER: usize = 56;

/// Returns the RAM in bytes that a device needs for the network of an image and for the rows of its training
/// and test samples, in whole values.
#[must_use]
pub const fn memory_size(shape: NetworkShape, momentum: bool) -> usize {
    let values = NetworkSlices::values(shape, momentum) + 2 * shape.features;
    size_of::<f32>() * (values + shape.bytes().div_ceil(size_of::<f32>()))
}

/// Settings of a network and of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkSettings {
    /// Model that the device's hello announces.
    pub model: Model,
    /// Largest number of samples in a batch.
    pub batch: u16,
    /// True if the device needs memory for momentum.
    pub momentum: bool,
    /// Seed of the order of samples.
    pub seed: u64,
    /// Frame limit of the device, in bytes.
    pub frame_limit: u16,
}

/// Network image whose format has been checked.
#[derive(Clone, Copy, Debug)]
pub struct NetworkImage<'a> {
    /// Settings of the network and of its device.
    pub settings: NetworkSettings,
    /// Sizes of the network.
    pub shape: NetworkShape,
    /// Initial parameters of all layers, 4 bytes each, little endian.
    pub start: &'a [u8],
    /// Frozen layer that the adapter belongs to, 4 bytes a value, little endian; empty without one.
    pub frozen: &'a [u8],
    /// Samples with their classes.
    pub samples: Table<'a>,
}

impl<'a> NetworkImage<'a> {
    /// Finds the image at the start of a partition and checks it completely: its checksums, the sizes of the
    /// network, and the lengths of all parts.
    ///
    /// # Errors
    /// Returns the first [`FormatError`] found.
    pub fn parse(partition: &'a [u8]) -> Result<Self, FormatError> {
        let checked = verify_envelope(partition, HEADER, &MAGIC, VERSION)?;
        let (head, values) =
            checked.split_at_checked(HEADER).ok_or(FormatError::Header("the number of bytes"))?;
        let mut words = [0; MODEL_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u16_at(head, 12 + 2 * index);
        }
        let settings = NetworkSettings {
            model: Model::from_words(words).ok_or(FormatError::Header("the model"))?,
            batch: u16_at(head, 6),
            momentum: match u32_at(head, 36) {
                0 => false,
                1 => true,
                _ => return Err(FormatError::Header("the momentum")),
            },
            seed: u64_at(head, 40),
            frame_limit: u16_at(head, 34),
        };
        if !(FRAME_LIMIT_MIN..=FRAME_LIMIT_MAX).contains(&usize::from(settings.frame_limit)) {
            return Err(FormatError::Header("the frame limit"));
        }
        let shape = NetworkShape::described(&settings.model, settings.batch.into())?;
        let length = |count: u32| usize::try_from(count).ok()?.checked_mul(4);
        let start = length(u32_at(head, 48)).filter(|length| *length == 4 * shape.parameters());
        let (start, frozen) = start
            .and_then(|length| values.split_at_checked(length))
            .ok_or(FormatError::Header("the number of parameters"))?;
        if length(u32_at(head, 52)) != Some(frozen.len()) || !is_frozen_layer(&settings.model, frozen) {
            return Err(FormatError::Header("the frozen layer"));
        }
        let rest = checked.len().checked_add(4).and_then(|end| partition.get(end..));
        let samples = Table::parse(rest.unwrap_or_default())?;
        if samples.features() != shape.features {
            return Err(FormatError::Header("the number of features"));
        }
        Ok(Self { settings, shape, start, frozen, samples })
    }
}

/// Returns true if the bytes have the length and the checksum of the model's frozen layer, or if there are
/// none and the model has no frozen layer.
fn is_frozen_layer(model: &Model, bytes: &[u8]) -> bool {
    let checksum = match model.sizes() {
        ModelSizes::Adapted { features, width, frozen, .. } if !bytes.is_empty() => {
            let values = (usize::from(features) + 1) * usize::from(width);
            Some(frozen).filter(|_| bytes.len() / 4 == values)
        }
        ModelSizes::Adapted { frozen: 0, .. } => return true,
        ModelSizes::Adapted { .. } => None,
        _ => return bytes.is_empty(),
    };
    let mut crc = Crc32c::new();
    crc.update(bytes);
    checksum == Some(crc.finish())
}

/// Writes the part of an image before its table in pieces through `write`. The caller appends the checksum
/// (the CRC-32C of all written bytes, 4 bytes, little endian) and the table.
pub fn write(settings: &NetworkSettings, start: &[f32], frozen: &[f32], mut write: impl FnMut(&[u8])) {
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let NetworkSettings { model, batch, momentum, seed, frame_limit } = settings;
    write(&MAGIC);
    write(&VERSION.to_le_bytes());
    write(&batch.to_le_bytes());
    write(&small(HEADER + 4 * (start.len() + frozen.len())));
    for word in model.words() {
        write(&word.to_le_bytes());
    }
    write(&frame_limit.to_le_bytes());
    write(&u32::from(*momentum).to_le_bytes());
    write(&seed.to_le_bytes());
    write(&small(start.len()));
    write(&small(frozen.len()));
    for value in start.iter().chain(frozen) {
        write(&value.to_le_bytes());
    }
}
