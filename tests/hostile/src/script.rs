//! Reader of scripts: a fuzz target reads its next action from its input.

/// Script that reads numbers and slices from the front of an input. Past the end, numbers are zero and slices
/// are empty.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Reads the next byte; `None` at the end.
    pub fn next(&mut self) -> Option<u8> {
        let (&first, remaining) = self.0.split_first()?;
        self.0 = remaining;
        Some(first)
    }

    /// Reads the next byte.
    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Reads the next byte as an index or a count.
    pub fn index(&mut self) -> usize {
        self.byte().into()
    }

    /// Reads the next two bytes as a little-endian number.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Reads the next `length` bytes, or all remaining ones.
    pub fn take(&mut self, length: usize) -> &'a [u8] {
        let (slice, remaining) = self.0.split_at(length.min(self.0.len()));
        self.0 = remaining;
        slice
    }

    /// Reads all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Damages up to three bytes: reads their positions and the values to xor.
    pub fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte() % 4 {
            let (position, mask) = (usize::from(self.word()), self.byte());
            let length = bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(position % length) {
                *byte ^= mask;
            }
        }
    }
}
