//! The numbers that only grow, as they lie in flash: a copy says by itself what it is and whether it is whole, so that it
//! is found wherever it is, though everything around it be spoilt.

use fedspan_protocol::frame::crc32c;

/// A number that only grows. The largest of its copies is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Handshakes that are numbered for use.
    Handshakes,
    /// What all noisy updates have cost.
    Spent,
    /// Erasures, with the page that was erased last (`erasing.rs`). Not kept where everything is erased.
    Erasures,
}

/// Bytes of the number and of the check behind the magic.
const PAYLOAD: usize = 8 + 4;

/// Bytes of a copy, at most.
pub const MAX_LEN: usize = 8 + PAYLOAD;

/// Bytes with which every magic begins.
const PREFIX: usize = 4;

impl CounterKind {
    /// What must not get lost.
    pub const PROTECTED: [Self; 2] = [Self::Handshakes, Self::Spent];

    /// What is found.
    const SCANNED: [Self; 3] = [Self::Handshakes, Self::Spent, Self::Erasures];

    /// What a copy begins with.
    ///
    /// A record has no such beginning in it (`encoded.rs`), so that a server could only forge a copy with what the storage
    /// puts around a record: a check that it can choose through the record, the record's length (3 modulo 4, since the
    /// head has whole floats), a check of the length, and the name, 0. The second magic fits nowhere there: each of its
    /// last letters but the `S` could only be a length if it were 3 modulo 4, and none is 0. The first fits where it is
    /// all of the record's check, or begins in a record that lies before it: then the number is over [`most`](Self::most).
    /// A test tries all lengths with all words (`tests/counter_forgery.rs`).
    const fn magic(self) -> &'static [u8] {
        match self {
            Self::Handshakes => b"FSPH",
            Self::Spent => b"FSPLPAID",
            Self::Erasures => b"FSPE",
        }
    }

    /// The largest number. No device has so many handshakes, and what the storage puts around a record that a server has
    /// chosen, read as a number of them, is beyond it: its sixth byte is the record's version. What is spent needs no such
    /// bound.
    pub const fn max_value(self) -> u64 {
        match self {
            Self::Handshakes | Self::Erasures => (1 << 40) - 1,
            Self::Spent => u64::MAX,
        }
    }

    /// Its names in the storage. It is there twice: should one copy spoil, the other does not fall behind it.
    pub const fn keys(self) -> [u8; 2] {
        match self {
            Self::Handshakes => [1, 2],
            Self::Spent => [3, 4],
            Self::Erasures => [5, 6],
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Handshakes => 0,
            Self::Spent => 1,
            Self::Erasures => 2,
        }
    }

    /// Bytes of a copy.
    pub const fn length(self) -> usize {
        self.magic().len() + PAYLOAD
    }
}

/// A copy of a number: magic, number (little endian), CRC-32C of both.
#[derive(Clone, Copy, Debug)]
pub struct CounterCopy {
    bytes: [u8; MAX_LEN],
    length: usize,
}

impl CounterCopy {
    pub fn new(kind: CounterKind, number: u64) -> Self {
        let mut copy = Self { bytes: [0; MAX_LEN], length: kind.length() };
        let all = kind.magic().iter().copied().chain(number.to_le_bytes());
        copy.bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        if let Some((checked, check)) =
            copy.bytes.get_mut(..copy.length).and_then(<[u8]>::split_last_chunk_mut)
        {
            *check = crc32c(checked).to_le_bytes();
        }
        copy
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Whether something in these bytes could begin a copy.
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes
        .windows(PREFIX)
        .any(|window| CounterKind::SCANNED.iter().any(|kind| kind.magic().starts_with(window)))
}

/// What is in a part of the flash.
#[derive(Clone, Copy, Debug)]
pub struct ScanResult {
    /// The largest number of all copies of each kind, and how many bytes were read when the last copy of it ended.
    newest: [Option<(u64, u32)>; CounterKind::SCANNED.len()],
    /// Nothing: all of it is erased.
    pub is_blank: bool,
}

impl ScanResult {
    fn get(&self, kind: CounterKind) -> Option<(u64, u32)> {
        self.newest.get(kind.index()).copied().flatten()
    }

    /// The largest number.
    pub fn value(&self, kind: CounterKind) -> Option<u64> {
        self.get(kind).map(|(number, _)| number)
    }

    /// Where the last copy of it ends, in bytes from where reading began; 0 if there is none.
    pub fn end(&self, kind: CounterKind) -> u32 {
        self.get(kind).map_or(0, |(_, end)| end)
    }
}

/// Reads flash from one end to the other, byte by byte.
#[derive(Debug)]
pub struct Scanner {
    /// The bytes that were read last, the newest at the end.
    window: [u8; MAX_LEN],
    read: u32,
    pub found: ScanResult,
}

impl Scanner {
    pub fn new() -> Self {
        let found = ScanResult { newest: [None; CounterKind::SCANNED.len()], is_blank: true };
        Self { window: [0; MAX_LEN], read: 0, found }
    }

    /// The next byte.
    pub fn push(&mut self, byte: u8) {
        self.window.rotate_left(1);
        if let Some(last) = self.window.last_mut() {
            *last = byte;
        }
        self.read = self.read.saturating_add(1);
        self.found.is_blank &= byte == 0xFF;
        for kind in CounterKind::SCANNED {
            let bytes = self.window.get(MAX_LEN - kind.length()..).unwrap_or_default();
            let Some(rest) = bytes.strip_prefix(kind.magic()) else { continue };
            if let Some(number) = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
                && number <= kind.max_value()
                && CounterCopy::new(kind, number).bytes() == bytes
                && let Some(newest) = self.found.newest.get_mut(kind.index())
            {
                *newest = (*newest).max(Some((number, self.read)));
            }
        }
    }
}
