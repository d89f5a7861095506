//! The number of handshakes as it lies in flash: a copy says by itself what it is and whether it is whole, so that it
//! is found wherever it is, though everything around it be spoilt.

use fedspan_protocol::frame::crc32c;

const MAGIC: [u8; 4] = *b"FSPH";

/// No device comes so far, and what the storage puts around a record that a server has chosen, read as a number, is
/// beyond it: its sixth byte is the record's version.
pub const MOST: u64 = 1 << 40;

/// Bytes of a copy: magic, number (little endian), CRC-32C of both.
pub const COPY: usize = 4 + 8 + 4;

/// A copy of the number.
pub fn copy(number: u64) -> [u8; COPY] {
    let mut bytes = [0; COPY];
    let all = MAGIC.into_iter().chain(number.to_le_bytes());
    bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
    if let Some((checked, check)) = bytes.split_last_chunk_mut() {
        *check = crc32c(checked).to_le_bytes();
    }
    bytes
}

/// Whether something in these bytes could begin a copy.
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes.windows(MAGIC.len()).any(|window| window == MAGIC)
}

/// Reads flash from one end to the other, byte by byte.
#[derive(Debug, Default)]
pub struct Search {
    /// The bytes that were read last, the newest at the end.
    window: [u8; COPY],
    read: u32,
    /// The largest number of all copies so far, and how many bytes were read when the last copy of it ended.
    pub largest: Option<(u64, u32)>,
}

impl Search {
    /// The next byte.
    pub fn take(&mut self, byte: u8) {
        self.window.rotate_left(1);
        if let Some(last) = self.window.last_mut() {
            *last = byte;
        }
        self.read = self.read.saturating_add(1);
        if !self.window.starts_with(&MAGIC) {
            return;
        }
        let number =
            self.window.split_at(MAGIC.len()).1.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if let Some(number) = number
            && number < MOST
            && copy(number) == self.window
        {
            self.largest = self.largest.max(Some((number, self.read)));
        }
    }
}
