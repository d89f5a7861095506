//! On-flash format of the monotonic counters. Each copy of a counter contains a magic and a checksum, so that
//! a scan finds the copy anywhere, even if everything around it is damaged.

use fedspan_protocol::frame::crc32c;

/// Monotonic counter. Its value is the largest value of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Handshake numbers reserved for use.
    Handshakes,
    /// Total cost of all updates with noise: the privacy ledger.
    Spent,
    /// Number of logged page erases, with the page erased last (`page_erase.rs`). This counter is lost when
    /// all pages are erased.
    Erasures,
}

/// Length of the value and the checksum that follow the magic, in bytes.
const PAYLOAD: usize = 8 + 4;

/// Largest length of a copy, in bytes.
pub const MAX_LEN: usize = 8 + PAYLOAD;

/// Length of the prefix that identifies a magic.
const PREFIX: usize = 4;

impl CounterKind {
    /// Counters that must never be lost or decrease.
    pub const PROTECTED: [Self; 2] = [Self::Handshakes, Self::Spent];

    /// Counters that a scan searches for.
    const SCANNED: [Self; 3] = [Self::Handshakes, Self::Spent, Self::Erasures];

    /// Returns the magic: the first bytes of a copy.
    ///
    /// No record contains the start of a magic (`record_codec.rs`). A malicious server, which chooses the
    /// record, could therefore forge a copy only from the bytes that the storage library puts around a
    /// record: the record's checksum (which the server can choose), its length (3 modulo 4, since the head
    /// consists of whole floats), the checksum of the length, and the key 0. The magic of `Spent` fits
    /// nowhere in these bytes: of the letters that would be the low byte of the length only `S` is 3 modulo
    /// 4, and no letter is 0. The magic of `Handshakes` fits if it is the whole checksum, or if it begins in
    /// the previous record; the value is then above [`max_value`](Self::max_value). A test tries all lengths
    /// with all words (`tests/counter_forgery.rs`).
    const fn magic(self) -> &'static [u8] {
        match self {
            Self::Handshakes => b"FSPH",
            Self::Spent => b"FSPLPAID",
            Self::Erasures => b"FSPE",
        }
    }

    /// Returns the largest valid value. No device makes this many handshakes, and a forged copy of
    /// `Handshakes` exceeds the bound, because the sixth byte of its value is the record's version. `Spent`
    /// needs no bound.
    pub const fn max_value(self) -> u64 {
        match self {
            Self::Handshakes | Self::Erasures => (1 << 40) - 1,
            Self::Spent => u64::MAX,
        }
    }

    /// Returns the keys of the counter in the map. The counter is stored twice: if one copy is damaged, the
    /// other is still current.
    pub const fn keys(self) -> [u8; 2] {
        match self {
            Self::Handshakes => [1, 2],
            Self::Spent => [3, 4],
            Self::Erasures => [5, 6],
        }
    }

    /// Returns the index of the counter in arrays.
    const fn index(self) -> usize {
        match self {
            Self::Handshakes => 0,
            Self::Spent => 1,
            Self::Erasures => 2,
        }
    }

    /// Returns the length of a copy in bytes.
    pub const fn length(self) -> usize {
        self.magic().len() + PAYLOAD
    }
}

/// Copy of a counter: magic, value (little endian), and the CRC-32C of both fields.
#[derive(Clone, Copy, Debug)]
pub struct CounterCopy {
    bytes: [u8; MAX_LEN],
    length: usize,
}

impl CounterCopy {
    /// Creates a copy with this value.
    pub fn new(kind: CounterKind, value: u64) -> Self {
        let mut copy = Self { bytes: [0; MAX_LEN], length: kind.length() };
        let content = kind.magic().iter().copied().chain(value.to_le_bytes());
        copy.bytes.iter_mut().zip(content).for_each(|(target, byte)| *target = byte);
        if let Some((checked, check)) =
            copy.bytes.get_mut(..copy.length).and_then(<[u8]>::split_last_chunk_mut)
        {
            *check = crc32c(checked).to_le_bytes();
        }
        copy
    }

    /// Returns the bytes of the copy.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Returns true if `bytes` contain the start of a magic.
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes
        .windows(PREFIX)
        .any(|window| CounterKind::SCANNED.iter().any(|kind| kind.magic().starts_with(window)))
}

/// Result of scanning a range of the flash.
#[derive(Clone, Copy, Debug)]
pub struct ScanResult {
    /// Largest value of each counter, with the number of bytes scanned at the end of the last copy with this
    /// value.
    newest: [Option<(u64, u32)>; CounterKind::SCANNED.len()],
    /// True if every scanned byte is erased.
    pub is_blank: bool,
}

impl ScanResult {
    /// Returns the largest value of a counter and the end of its last copy.
    fn get(&self, kind: CounterKind) -> Option<(u64, u32)> {
        self.newest.get(kind.index()).copied().flatten()
    }

    /// Returns the largest value of a counter.
    pub fn value(&self, kind: CounterKind) -> Option<u64> {
        self.get(kind).map(|(value, _)| value)
    }

    /// Returns the end of the last copy with the largest value, in bytes from the start of the scan; 0 if
    /// there is no copy.
    pub fn end(&self, kind: CounterKind) -> u32 {
        self.get(kind).map_or(0, |(_, end)| end)
    }
}

/// Scanner that searches consecutive bytes of flash for copies of counters.
#[derive(Debug)]
pub struct Scanner {
    /// Most recent bytes, the newest at the end.
    window: [u8; MAX_LEN],
    /// Number of bytes scanned.
    read: u32,
    /// Result of the scan so far.
    pub result: ScanResult,
}

impl Scanner {
    /// Creates a scanner at the start of a range.
    pub fn new() -> Self {
        let result = ScanResult { newest: [None; CounterKind::SCANNED.len()], is_blank: true };
        Self { window: [0; MAX_LEN], read: 0, result }
    }

    /// Processes the next byte.
    pub fn push(&mut self, byte: u8) {
        self.window.rotate_left(1);
        if let Some(last) = self.window.last_mut() {
            *last = byte;
        }
        self.read = self.read.saturating_add(1);
        self.result.is_blank &= byte == 0xFF;
        for kind in CounterKind::SCANNED {
            let bytes = self.window.get(MAX_LEN - kind.length()..).unwrap_or_default();
            let Some(after_magic) = bytes.strip_prefix(kind.magic()) else { continue };
            if let Some(value) = after_magic.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
                && value <= kind.max_value()
                && CounterCopy::new(kind, value).bytes() == bytes
                && let Some(newest) = self.result.newest.get_mut(kind.index())
            {
                *newest = (*newest).max(Some((value, self.read)));
            }
        }
    }
}
