//! The numbers that only grow, as they lie in flash: a copy says by itself what it is and whether it is whole, so that it
//! is found wherever it is, though everything around it be spoilt.

use fedspan_protocol::frame::crc32c;

/// A number that only grows. The largest of its copies is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handshakes that are numbered for use.
    Handshakes,
    /// What all noisy updates have cost.
    Spent,
    /// Erasures, with the page that was erased last (`erasing.rs`). Not kept where everything is erased.
    Erasures,
}

/// Bytes of the number and of the check behind the magic.
const REST: usize = 8 + 4;

/// Bytes of a copy, at most.
pub const LONGEST: usize = 8 + REST;

/// Bytes with which every magic begins.
const BEGINNING: usize = 4;

impl Kind {
    /// What must not get lost.
    pub const ALL: [Self; 2] = [Self::Handshakes, Self::Spent];

    /// What is found.
    const FOUND: [Self; 3] = [Self::Handshakes, Self::Spent, Self::Erasures];

    /// What a copy begins with.
    ///
    /// A record has no such beginning in it (`encoded.rs`), so that a server could only forge a copy with what the storage
    /// puts around a record: a check that it can choose through the record, the record's length (3 modulo 4, since the
    /// head has whole floats), a check of the length, and the name, 0. The second magic fits nowhere there: each of its
    /// last letters but the `S` could only be a length if it were 3 modulo 4, and none is 0. The first fits where it is
    /// all of the record's check, or begins in a record that lies before it: then the number is over [`most`](Self::most).
    /// A test tries all lengths with all words (`tests/forged.rs`).
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
    pub const fn most(self) -> u64 {
        match self {
            Self::Handshakes | Self::Erasures => (1 << 40) - 1,
            Self::Spent => u64::MAX,
        }
    }

    /// Its names in the storage. It is there twice: should one copy spoil, the other does not fall behind it.
    pub const fn names(self) -> [u8; 2] {
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
        self.magic().len() + REST
    }
}

/// A copy of a number: magic, number (little endian), CRC-32C of both.
#[derive(Clone, Copy, Debug)]
pub struct NumberCopy {
    bytes: [u8; LONGEST],
    length: usize,
}

impl NumberCopy {
    pub fn new(kind: Kind, number: u64) -> Self {
        let mut copy = Self { bytes: [0; LONGEST], length: kind.length() };
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
    bytes.windows(BEGINNING).any(|window| Kind::FOUND.iter().any(|kind| kind.magic().starts_with(window)))
}

/// What is in a part of the flash.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The largest number of all copies of each kind, and how many bytes were read when the last copy of it ended.
    newest: [Option<(u64, u32)>; Kind::FOUND.len()],
    /// Nothing: all of it is erased.
    pub is_blank: bool,
}

impl Found {
    fn of(&self, kind: Kind) -> Option<(u64, u32)> {
        self.newest.get(kind.index()).copied().flatten()
    }

    /// The largest number.
    pub fn number(&self, kind: Kind) -> Option<u64> {
        self.of(kind).map(|(number, _)| number)
    }

    /// Where the last copy of it ends, in bytes from where reading began; 0 if there is none.
    pub fn end(&self, kind: Kind) -> u32 {
        self.of(kind).map_or(0, |(_, end)| end)
    }
}

/// Reads flash from one end to the other, byte by byte.
#[derive(Debug)]
pub struct Search {
    /// The bytes that were read last, the newest at the end.
    window: [u8; LONGEST],
    read: u32,
    pub found: Found,
}

impl Search {
    pub fn new() -> Self {
        let found = Found { newest: [None; Kind::FOUND.len()], is_blank: true };
        Self { window: [0; LONGEST], read: 0, found }
    }

    /// The next byte.
    pub fn take(&mut self, byte: u8) {
        self.window.rotate_left(1);
        if let Some(last) = self.window.last_mut() {
            *last = byte;
        }
        self.read = self.read.saturating_add(1);
        self.found.is_blank &= byte == 0xFF;
        for kind in Kind::FOUND {
            let bytes = self.window.get(LONGEST - kind.length()..).unwrap_or_default();
            let Some(rest) = bytes.strip_prefix(kind.magic()) else { continue };
            if let Some(number) = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
                && number <= kind.most()
                && NumberCopy::new(kind, number).bytes() == bytes
                && let Some(newest) = self.found.newest.get_mut(kind.index())
            {
                *newest = (*newest).max(Some((number, self.read)));
            }
        }
    }
}
