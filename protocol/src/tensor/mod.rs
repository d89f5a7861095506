//! Tensors on the wire: the role of a matrix, the encoding of its elements, its descriptor and its chunks.
//!
//! All matrices are row-major. A tensor that fits one frame is sent in the body of `RoundOpen` or `Update`. A
//! larger tensor is sent in `Chunk`s of a fixed number of elements. Each chunk is a whole number of encoding
//! blocks, so that a receiver can decode every chunk directly to its final position, in any order.

#[cfg(feature = "top-k")]
mod top_k;

use half::f16;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::limits::{CHUNK_OVERHEAD, CHUNKS_MAX, FRAME_LIMIT_MAX};

/// Role of a tensor in an algorithm. Firmware is compiled with the set of roles that the device may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Role {
    /// Shared representation `B`, d x k: the server's `B`, or a device's updated `B_i`.
    Representation,
    /// Gradient of a device's loss with respect to `B`, d x k.
    Gradient,
    /// Rows of the upper half of the symmetric moment matrix `mean of y^2 x x^T`.
    Moment,
    /// Basis of a subspace, d x r, for power methods.
    Subspace,
    /// LoRA's down-projection `A`.
    AdapterDown,
    /// LoRA's up-projection `B`.
    AdapterUp,
    /// Head of a model that all devices share, k x C.
    SharedHead,
    /// Factors of a gradient, one of which is a personal head.
    FactoredHead,
    /// Sums and sums of squares of features, as integers in limbs, one row per feature.
    FeatureSums,
    /// Number of correct predictions for each ridge of a grid, 1 x ridges.
    RidgeScores,
    /// Scale of the fleet, 2 x d: the shift subtracted from each feature, then the factor by which the result
    /// is multiplied. A scale is sent only to devices; its bit in the capabilities means that the device
    /// applies a scale.
    Scale,
    /// Mean of the prior of heads, d x C. Sent only to devices.
    PriorMean,
    /// Variances of the prior of heads in units of the noise's, 1 x (k + 1): one for each column of the representation, then that of
    /// all other directions. Sent only to devices.
    PriorVariances,
    /// Lower triangle of the symmetric matrix `mean of x x^T` with its diagonal, row by row, 1 x d (d + 1) / 2: of one device's
    /// samples, or of the fleet's.
    SecondMoments,
    /// Matrix `mean of x y^T` of one device's samples, d x C.
    CrossMoments,
    /// Second moment of a device's head about the prior mean, times the representation, d x k.
    HeadMoments,
    /// Sums that belong to [`Self::HeadMoments`], 1 x 3: the head's squared distance from the mean in the metric of the prior, the
    /// sum of squared residuals, and the number of samples.
    HeadSums,
    /// Evidence of a device's samples for several priors, 1 x (3 r + 2): for each of r priors the squared residuals, the log
    /// determinant, and the fraction of correct predictions of heads on few samples; then the number of samples, and of predictions.
    PriorEvidence,
    /// Derivative of a newcomer's error by the covariance of the prior, times the representation, d x k.
    NewcomerGradient,
    /// Error that belongs to [`Self::NewcomerGradient`], 1 x 2: the mean squared residual of a target, and the number of samples over
    /// which it is the mean.
    NewcomerError,
    /// Prior of the last layer of a network, 1 x n: the values of a representation, of a prior mean and of the prior variances, and
    /// those of second moments in rounds that send a metric. Sent only to devices.
    HeadPrior,
}

/// Number of columns of [`Role::FeatureSums`]: the exponent of the feature's grid, three limbs of its sum,
/// four limbs of its sum of squares.
pub const SUMS_COLUMNS: u16 = 8;

/// Number of bits in a set of roles that mean abilities: 11 to 15.
const ABILITIES: u32 = 5;

impl Role {
    /// Returns this role's bit in a set of roles. The bits 11 to 15 mean abilities, so the bits of later roles follow after them.
    #[must_use]
    pub const fn bit(self) -> u32 {
        let tag = self as u32;
        1 << if tag <= Self::Scale as u32 { tag } else { tag + ABILITIES }
    }
}

/// Encoding of the elements of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Encoding {
    /// IEEE 754 binary32, little endian.
    #[default]
    F32,
    /// IEEE 754 binary16, little endian, rounded to nearest, ties to even.
    F16,
    /// Blocks of 32 elements (the last may be shorter): a binary32 scale, then one signed byte per element. A
    /// value is `scale * byte`, and the scale is the largest magnitude divided by 127.
    I8,
    /// The largest quarter of each block of 32 elements as signed bytes; the other elements are zero. 16 bytes a block. Only for
    /// gradients, from devices that add what was not sent to their next gradient (error feedback).
    #[cfg(feature = "top-k")]
    I8TopK,
}

/// Number of elements that share one scale in [`Encoding::I8`].
pub const I8_BLOCK: usize = 32;

impl Encoding {
    /// Returns this encoding's bit in a set of encodings.
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Returns the number of bytes of `elements` elements. Saturates, because a peer can announce more
    /// elements than a 32-bit device can count.
    #[must_use]
    pub const fn byte_len(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements.saturating_mul(4),
            Self::F16 => elements.saturating_mul(2),
            Self::I8 => elements.saturating_add(elements.div_ceil(I8_BLOCK).saturating_mul(4)),
            #[cfg(feature = "top-k")]
            Self::I8TopK => top_k::byte_len(elements),
        }
    }

    /// Returns the number of which every chunk length must be a multiple.
    #[must_use]
    pub const fn granularity(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::I8 => I8_BLOCK,
            #[cfg(feature = "top-k")]
            Self::I8TopK => I8_BLOCK,
        }
    }

    /// Returns the number of elements of the longest chunk under a frame limit.
    #[must_use]
    pub const fn chunk_elements(self, frame_limit: usize) -> usize {
        let room = frame_limit.saturating_sub(CHUNK_OVERHEAD);
        match self {
            Self::F32 => room / 4,
            Self::F16 => room / 2,
            Self::I8 => room / (I8_BLOCK + 4) * I8_BLOCK,
            #[cfg(feature = "top-k")]
            Self::I8TopK => top_k::elements_within(room),
        }
    }

    /// Returns the largest accepted deviation from orthonormality of a received representation,
    /// `max |B^T B - I|`. The deviation is due to rounding for f32 and f16, and to quantisation for i8.
    #[must_use]
    pub const fn orthonormality_tolerance(self) -> f32 {
        match self {
            Self::F32 | Self::F16 => 1e-3,
            Self::I8 => 2e-2,
            // A representation is never sent in this encoding.
            #[cfg(feature = "top-k")]
            Self::I8TopK => 0.0,
        }
    }

    /// Returns the largest magnitude that is still finite after encoding and decoding.
    const fn largest(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            // Numbers from halfway between the largest f16 and the next power of two on are rounded up to
            // infinity.
            Self::F16 => 65520.0f32.next_down(),
            // A scale that was rounded up can overflow in decoding.
            Self::I8 => f32::MAX.next_down(),
            #[cfg(feature = "top-k")]
            Self::I8TopK => f32::MAX.next_down(),
        }
    }

    /// Encodes `values` into `out`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] unless `out` has [`Self::byte_len`] bytes; [`Error::NonFinite`] if a value
    /// is not finite or would not be finite after decoding (65520 and above in f16; the largest f32 in i8).
    pub fn encode(self, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
        let expected = self.byte_len(values.len());
        if out.len() != expected {
            return Err(Error::LengthMismatch { expected, got: out.len() });
        }
        let largest = self.largest();
        // The loop has no early exit, so that the compiler can vectorise it.
        let all_fit =
            cfg!(feature = "wide") && values.iter().fold(true, |all_fit, v| all_fit & (v.abs() <= largest));
        if !all_fit && let Some(index) = values.iter().position(|v| v.is_nan() || v.abs() > largest) {
            return Err(Error::NonFinite { index });
        }
        match self {
            Self::F32 => {
                for (target, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *target = value.to_le_bytes();
                }
            }
            Self::F16 => {
                for (target, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *target = f16::from_f32(*value).to_le_bytes();
                }
            }
            Self::I8 => {
                for (target, block) in out.chunks_mut(I8_BLOCK + 4).zip(values.chunks(I8_BLOCK)) {
                    encode_i8_block(block, target);
                }
            }
            #[cfg(feature = "top-k")]
            Self::I8TopK => top_k::encode(values, out),
        }
        Ok(())
    }

    /// Decodes `bytes` into `out`. Accepts every bit pattern, except for a mask of [`Self::I8TopK`] with another number of
    /// elements than a block keeps; the receiver must check that the values are finite.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] unless the length of `bytes` is [`Self::byte_len`] for the length of `out`; [`Error::Malformed`]
    /// for such a mask.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
        let expected = self.byte_len(out.len());
        if bytes.len() != expected {
            return Err(Error::LengthMismatch { expected, got: bytes.len() });
        }
        match self {
            Self::F32 => {
                for (target, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *target = f32::from_le_bytes(*raw);
                }
            }
            Self::F16 => {
                for (target, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *target = f16::from_le_bytes(*raw).to_f32();
                }
            }
            Self::I8 => {
                for (block, raw) in out.chunks_mut(I8_BLOCK).zip(bytes.chunks(I8_BLOCK + 4)) {
                    if let Some((scale, quanta)) = raw.split_first_chunk() {
                        let scale = f32::from_le_bytes(*scale);
                        for (target, quantum) in block.iter_mut().zip(quanta) {
                            *target = scale * f32::from(quantum.cast_signed());
                        }
                    }
                }
            }
            #[cfg(feature = "top-k")]
            Self::I8TopK => top_k::decode(bytes, out)?,
        }
        Ok(())
    }
}

/// The number 1.5 * 2^23. Floats of this size are consecutive integers, so adding a small number rounds it to
/// an integer, ties to even, and the lowest byte of the sum is that integer in two's complement.
const TO_INTEGER: f32 = 12_582_912.0;

/// Encodes one block: its scale, then its bytes.
fn encode_i8_block(block: &[f32], target: &mut [u8]) {
    let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = largest / 127.0;
    let Some((head, quanta)) = target.split_first_chunk_mut() else { return };
    *head = scale.to_le_bytes();
    for (target, value) in quanta.iter_mut().zip(block) {
        *target = quantum(*value, scale);
    }
}

/// Returns a value in steps of the scale, as a signed byte.
fn quantum(value: f32, scale: f32) -> u8 {
    // The scale underflows to zero if all values of the block are very small.
    let steps = if scale > 0.0 { (value / scale).clamp(-127.0, 127.0) } else { 0.0 };
    let [byte, ..] = (steps + TO_INTEGER).to_le_bytes();
    byte
}

/// Description of one tensor of a round, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorDescriptor {
    /// Role of the tensor.
    pub role: Role,
    /// Encoding of the tensor's elements.
    pub encoding: Encoding,
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub cols: u16,
    /// Number of elements per chunk; 0 if the tensor is in the body of the message with this descriptor.
    pub chunk: u16,
}

impl TensorDescriptor {
    /// Creates a descriptor of a tensor in the message body.
    #[must_use]
    pub const fn inline(role: Role, encoding: Encoding, rows: u16, cols: u16) -> Self {
        Self { role, encoding, rows, cols, chunk: 0 }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        usize::from(self.rows) * usize::from(self.cols)
    }

    /// Returns the number of bytes of the whole tensor.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.encoding.byte_len(self.elements())
    }

    /// Returns the number of chunks; 0 if the tensor is in the message body.
    // Not inlined, because it contains a division and has many callers.
    #[must_use]
    #[inline(never)]
    pub fn chunks(&self) -> usize {
        if self.chunk == 0 { 0 } else { self.elements().div_ceil(usize::from(self.chunk)) }
    }

    /// Returns the range of elements of chunk `index`, or `None` beyond the last chunk.
    #[must_use]
    pub fn chunk_range(&self, index: usize) -> Option<core::ops::Range<usize>> {
        let first = index.checked_mul(usize::from(self.chunk))?;
        let end = self.elements().min(first.saturating_add(usize::from(self.chunk)));
        (first < end).then_some(first..end)
    }

    /// Checks the conditions that every descriptor must meet, independent of its sender.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] for a side of zero, a chunk that splits an encoding block, more than
    /// [`CHUNKS_MAX`] chunks, or more bytes in one frame than [`FRAME_LIMIT_MAX`].
    pub fn validate(&self) -> Result<(), Error> {
        let whole_blocks = usize::from(self.chunk).is_multiple_of(self.encoding.granularity());
        let together = match usize::from(self.chunk) {
            0 => self.elements(),
            chunk => chunk.min(self.elements()),
        };
        let fits = self.encoding.byte_len(together) <= FRAME_LIMIT_MAX;
        if self.elements() == 0 || !whole_blocks || !fits || self.chunks() > CHUNKS_MAX {
            return Err(Error::BadDescriptor);
        }
        Ok(())
    }
}
