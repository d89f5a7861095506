//! What can be wrong with the bytes of a key store.

/// The bytes are no key store that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// The bytes begin otherwise.
    #[error("not a FedSpan key store")]
    NotKeys,
    /// A key store of another version.
    #[error("key store of version {found}, this program reads version {known}")]
    Version {
        /// Which.
        found: u16,
        /// The one that is read.
        known: u16,
    },
    /// The file is shorter than it says.
    #[error("truncated: {got} bytes of {needed}")]
    Truncated {
        /// Bytes that it says it has, or at least the header.
        needed: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// The file is longer than it says.
    #[error("{extra} bytes after the end")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// The checksum does not match: bytes have changed since they were written.
    #[error("corrupted: CRC-32C {computed:08x}, the file says {stored:08x}; restore it from a backup")]
    Corrupted {
        /// CRC-32C that stands in the file.
        stored: u32,
        /// CRC-32C that it has.
        computed: u32,
    },
    /// The header asks for a derivation that is unknown, or for more memory or time than any key store needs.
    #[error(
        "the header asks for key derivation {kind} with {memory} KiB, {passes} passes, {lanes} lanes: refused"
    )]
    Derivation {
        /// Which derivation.
        kind: u16,
        /// KiB.
        memory: u32,
        /// Passes over it.
        passes: u32,
        /// Lanes.
        lanes: u32,
    },
    /// The contents have a length that rows cannot have.
    #[error("contents of {length} bytes, which is no number of rows")]
    Length {
        /// Bytes.
        length: usize,
    },
    /// The tag does not verify though the checksum matches.
    #[error("the {} is wrong, or somebody has changed the file on purpose", if *.passphrase { "passphrase" } else { "key file" })]
    Secret {
        /// Whether it is opened by a passphrase; by a key file otherwise.
        passphrase: bool,
    },
    /// The contents verify, and are not what this version writes.
    #[error("row {row} is not one of this version")]
    Row {
        /// Which, from 0.
        row: usize,
    },
}
