//! Chunk bookkeeping of a receiver: the chunks of a set of tensors that have arrived, their positions, and
//! the chunks to request. Contains no tensor bytes; used by both devices and servers.

use core::ops::Range;

use heapless::Vec;

use crate::Error;
use crate::limits::{CHUNKS_MAX, DESCRIPTOR_MAX, HEADER, OPEN_HEAD_MAX, SEAL_MAX};
use crate::message::{Chunk, Descriptors, Missing, RoundId};
use crate::tensor::TensorDescriptor;

/// Number of words of the bitmap of received chunks.
const WORDS: usize = CHUNKS_MAX / 32;

/// Record of the received chunks of one direction of one round.
#[derive(Clone, Debug)]
pub struct Assembly {
    tensors: Descriptors,
    /// Bitmap of received chunks, tensor by tensor.
    received: [u32; WORDS],
    /// Number of chunks that have not arrived.
    outstanding: usize,
}

/// Range of elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRange {
    /// Index of the tensor.
    pub tensor: usize,
    /// Range of elements of this tensor.
    pub elements: Range<usize>,
}

impl Assembly {
    /// Creates a complete record without tensors.
    #[must_use]
    pub const fn empty() -> Self {
        Self { tensors: Descriptors::new(), received: [0; WORDS], outstanding: 0 }
    }

    /// Checks the descriptors, and creates a record without received chunks. Tensors in the message body have
    /// no chunks.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if a descriptor is impossible, if some tensors are in the body and others in
    /// chunks, or if the total number of chunks is above [`CHUNKS_MAX`].
    pub fn new(tensors: &Descriptors) -> Result<Self, Error> {
        let outstanding = Self::check(tensors)?;
        Ok(Self { tensors: tensors.clone(), received: [0; WORDS], outstanding })
    }

    /// Checks the descriptors like [`Self::new`], and returns the total number of chunks.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    #[inline(always)]
    pub fn check(tensors: &Descriptors) -> Result<usize, Error> {
        let mut outstanding = 0;
        for tensor in tensors {
            tensor.validate()?;
            outstanding += tensor.chunks();
        }
        let inline = tensors.iter().filter(|t| t.chunk == 0).count();
        if outstanding > CHUNKS_MAX || (inline != 0 && inline != tensors.len()) {
            return Err(Error::BadDescriptor);
        }
        Ok(outstanding)
    }

    /// Returns the descriptors.
    #[must_use]
    pub fn tensors(&self) -> &[TensorDescriptor] {
        &self.tensors
    }

    /// Returns true if every chunk has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.outstanding == 0
    }

    /// Records a chunk and returns the elements that its body contains. Returns `None` if the chunk has
    /// arrived before.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if no such chunk was announced, [`Error::LengthMismatch`] if the body has the
    /// wrong length.
    pub fn accept(&mut self, chunk: &Chunk, body: usize) -> Result<Option<TensorRange>, Error> {
        let tensor = usize::from(chunk.tensor);
        let descriptor = self.tensors.get(tensor).filter(|d| d.chunk > 0).ok_or(Error::BadDescriptor)?;
        let offset = usize::try_from(chunk.offset).map_err(|_| Error::BadDescriptor)?;
        if !offset.is_multiple_of(usize::from(descriptor.chunk)) {
            return Err(Error::BadDescriptor);
        }
        let index = offset / usize::from(descriptor.chunk);
        let elements = descriptor.chunk_range(index).ok_or(Error::BadDescriptor)?;
        let expected = descriptor.encoding.byte_len(elements.len());
        if body != expected {
            return Err(Error::LengthMismatch { expected, got: body });
        }
        let bit = self.first_bit(tensor) + index;
        let word = self.received.get_mut(bit / 32).ok_or(Error::BadDescriptor)?;
        let mask = 1u32 << (bit % 32);
        if *word & mask != 0 {
            return Ok(None);
        }
        *word |= mask;
        self.outstanding -= 1;
        Ok(Some(TensorRange { tensor, elements }))
    }

    /// Returns the next request for missing chunks, which concerns one tensor; `None` if all chunks have
    /// arrived.
    #[must_use]
    pub fn missing(&self, id: RoundId) -> Option<Missing> {
        for (tensor, descriptor) in self.tensors.iter().enumerate() {
            let first = self.first_bit(tensor);
            let mut chunks = Vec::new();
            for index in 0..descriptor.chunks() {
                let bit = first + index;
                let word = self.received.get(bit / 32).copied().unwrap_or(u32::MAX);
                if word & (1 << (bit % 32)) == 0
                    && let Ok(number) = u16::try_from(index)
                    && chunks.push(number).is_err()
                {
                    break;
                }
            }
            if !chunks.is_empty()
                && let Ok(tensor) = u8::try_from(tensor)
            {
                return Some(Missing { id, tensor, chunks });
            }
        }
        None
    }

    /// Returns the number of the first bit of a tensor in the bitmap.
    fn first_bit(&self, tensor: usize) -> usize {
        self.tensors.iter().take(tensor).map(TensorDescriptor::chunks).sum()
    }
}

/// Decides how tensors are sent under a frame limit: in the message body if all tensors fit together with the
/// longest head and the overhead of sealing, otherwise all in chunks of the greatest length that fits.
///
/// # Errors
/// [`Error::BadDescriptor`] if a descriptor is impossible or needs more than [`CHUNKS_MAX`] chunks, or if no
/// chunk fits the frame limit.
pub fn plan(tensors: &mut Descriptors, frame_limit: usize) -> Result<(), Error> {
    let head = HEADER + OPEN_HEAD_MAX + tensors.len() * DESCRIPTOR_MAX + SEAL_MAX;
    let fits = byte_len(tensors.iter()).saturating_add(head) <= frame_limit;
    for tensor in tensors.iter_mut() {
        let longest = tensor.encoding.chunk_elements(frame_limit);
        if !fits && longest == 0 {
            return Err(Error::BadDescriptor);
        }
        tensor.chunk = if fits { 0 } else { u16::try_from(longest).unwrap_or(u16::MAX) };
    }
    // A device has the code of `new` in any case.
    if cfg!(all(feature = "wide", not(target_os = "none"))) {
        Assembly::check(tensors).map(drop)
    } else {
        Assembly::new(tensors).map(drop)
    }
}

/// Splits a body that contains all tensors. Returns the index, the descriptor and the bytes of each tensor,
/// in order.
///
/// # Errors
/// [`Error::LengthMismatch`] if `body` does not have exactly the length of the tensors.
pub fn split_body<'a>(
    tensors: &'a [TensorDescriptor],
    body: &'a [u8],
) -> Result<impl Iterator<Item = (usize, &'a TensorDescriptor, &'a [u8])>, Error> {
    let expected = byte_len(tensors.iter().filter(|t| t.chunk == 0));
    if body.len() != expected {
        return Err(Error::LengthMismatch { expected, got: body.len() });
    }
    let mut remaining = body;
    Ok(tensors.iter().enumerate().filter(|(_, t)| t.chunk == 0).map(move |(index, tensor)| {
        let (bytes, after) = remaining.split_at_checked(tensor.byte_len()).unwrap_or((remaining, &[]));
        remaining = after;
        (index, tensor, bytes)
    }))
}

/// Returns the number of bytes of all tensors together.
fn byte_len<'a>(tensors: impl Iterator<Item = &'a TensorDescriptor>) -> usize {
    tensors.map(TensorDescriptor::byte_len).fold(0, usize::saturating_add)
}
