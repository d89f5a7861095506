//! Counters in flash. Each copy of a counter contains a magic and a checksum, so that a scan finds the copy anywhere, even if
//! everything around it is damaged.

use fedspan_protocol::frame::crc32c;

/// Counter that only grows. Its value is the largest value of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Handshake numbers reserved for use.
    Handshakes,
    /// Total cost of all updates with noise: the privacy ledger.
    Spent,
    /// Generation of a page: written when the page is complete. The page with the largest one is in use.
    Generation,
}

/// Length of the value and the checksum that follow the magic, in bytes.
const PAYLOAD: usize = 8 + 4;

/// Largest length of a copy, in bytes.
pub const MAX_LEN: usize = 8 + PAYLOAD;

/// Starts of all magics, also of those of other versions: of protected counters and the record, and of generations.
const FAMILIES: [&[u8; 3]; 2] = [b"FSP", b"FSG"];

/// Last letters of the magics of the first family that are no counters of another version: those of this version, of the record,
/// and of a mark that version 2 has written.
const KNOWN: &[u8] = b"HLRE";

impl CounterKind {
    /// Counters that must never be lost or decrease.
    pub const PROTECTED: [Self; 2] = [Self::Handshakes, Self::Spent];

    /// All counters.
    pub const ALL: [Self; 3] = [Self::Handshakes, Self::Spent, Self::Generation];

    /// Returns the magic: the first bytes of a copy. A malicious server, which chooses the record, cannot forge a copy, because
    /// the encoding of a record contains the start of a magic only at its own start (`record_codec.rs`).
    const fn magic(self) -> &'static [u8] {
        match self {
            Self::Handshakes => b"FSPH",
            Self::Spent => b"FSPLPAID",
            Self::Generation => b"FSGN",
        }
    }

    /// Returns the largest valid value. No device makes this many handshakes or erases this many pages.
    pub const fn max_value(self) -> u64 {
        match self {
            Self::Handshakes | Self::Generation => (1 << 40) - 1,
            Self::Spent => u64::MAX,
        }
    }

    /// Returns the index of the counter in arrays.
    pub const fn index(self) -> usize {
        match self {
            Self::Handshakes => 0,
            Self::Spent => 1,
            Self::Generation => 2,
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

/// Returns true if `bytes` contain the start of a magic, of a counter or of a [key](super::key_codec).
pub fn has_magic(bytes: &[u8]) -> bool {
    let is_key = |window: &[u8]| cfg!(feature = "key-rotation") && window == b"FSK";
    bytes.windows(3).any(|window| FAMILIES.iter().any(|family| window == family.as_slice()) || is_key(window))
}

/// Largest value of a counter in a range of the flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    /// Largest value.
    pub value: u64,
    /// Number of copies with this value.
    pub copies: u32,
}

/// Result of scanning a range of the flash.
#[derive(Clone, Copy, Debug)]
pub struct ScanResult {
    newest: [Option<Newest>; CounterKind::ALL.len()],
    /// True if there is a copy of a counter that this version does not know.
    pub has_unknown: bool,
    /// True if every scanned byte is erased.
    pub is_blank: bool,
    /// Number of bytes up to the last one that is not erased.
    pub used: u32,
}

impl ScanResult {
    /// Returns the largest value of a counter and the number of its copies.
    pub fn newest(&self, kind: CounterKind) -> Option<Newest> {
        self.newest.get(kind.index()).copied().flatten()
    }

    /// Returns the largest value of a counter.
    pub fn value(&self, kind: CounterKind) -> Option<u64> {
        self.newest(kind).map(|newest| newest.value)
    }
}

/// Scanner that searches consecutive bytes of flash for copies of counters.
#[derive(Debug)]
pub struct Scanner {
    /// Most recent bytes, the newest at the end, as big-endian words: a shift of words needs no `memmove`, which takes 1.6 kB.
    window: [u32; MAX_LEN / 4],
    /// Number of bytes scanned.
    read: u32,
    /// Result of the scan so far.
    pub result: ScanResult,
}

impl Scanner {
    /// Creates a scanner at the start of a range.
    pub const fn new() -> Self {
        let result = ScanResult {
            newest: [None; CounterKind::ALL.len()],
            has_unknown: false,
            is_blank: true,
            used: 0,
        };
        Self { window: [0; MAX_LEN / 4], read: 0, result }
    }

    /// Processes the next byte.
    pub fn push(&mut self, byte: u8) {
        let mut incoming = u32::from(byte);
        for word in self.window.iter_mut().rev() {
            let outgoing = *word >> 24;
            *word = *word << 8 | incoming;
            incoming = outgoing;
        }
        self.read = self.read.saturating_add(1);
        if byte != 0xFF {
            self.result.is_blank = false;
            self.result.used = self.read;
        }
        // All magics begin with one of the families, and in the first or the second word. Every byte of the flash comes here, so words are
        // compared, not bytes.
        let begins =
            |word: &u32| FAMILIES.iter().any(|&&[a, b, c]| *word >> 8 == u32::from_be_bytes([0, a, b, c]));
        if !self.window.iter().take(2).any(begins) {
            return;
        }
        let mut window = [0; MAX_LEN];
        for (bytes, word) in window.as_chunks_mut().0.iter_mut().zip(&self.window) {
            *bytes = word.to_be_bytes();
        }
        for kind in CounterKind::ALL {
            let bytes = window.get(MAX_LEN - kind.length()..).unwrap_or_default();
            let Some(after_magic) = bytes.strip_prefix(kind.magic()) else { continue };
            if let Some(value) = after_magic.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
                && value <= kind.max_value()
                && CounterCopy::new(kind, value).bytes() == bytes
                && let Some(newest) = self.result.newest.get_mut(kind.index())
            {
                // A copy may end with a byte that looks erased.
                self.result.used = self.read;
                let copies = match newest {
                    Some(newest) if newest.value > value => continue,
                    Some(newest) if newest.value == value => newest.copies.saturating_add(1),
                    _ => 1,
                };
                *newest = Some(Newest { value, copies });
            }
        }
        let bytes = window.get(MAX_LEN - CounterKind::Handshakes.length()..).unwrap_or_default();
        let [protected, _] = FAMILIES;
        if let Some([kind, ..]) = bytes.strip_prefix(protected)
            && !KNOWN.contains(kind)
            && let Some((checked, check)) = bytes.split_last_chunk()
            && crc32c(checked).to_le_bytes() == *check
        {
            self.result.has_unknown = true;
        }
    }
}

const _: () = {
    let mut index = 0;
    while index < CounterKind::ALL.len() {
        let start = MAX_LEN - CounterKind::ALL[index].length();
        assert!(start == 0 || start == 4, "the scanner looks for magics in the first two words");
        index += 1;
    }
};
