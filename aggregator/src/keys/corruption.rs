//! Error type for corrupt key store files.

/// Reason why the bytes of a key store cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// The magic bytes are missing.
    #[error("not a FedSpan key store")]
    NotKeys,
    /// Another version wrote the file.
    #[error("key store of version {found}, this program reads version {known}")]
    Version {
        /// Version of the file.
        found: u16,
        /// Version that is supported.
        known: u16,
    },
    /// The file is shorter than the length in its header.
    #[error("truncated: {got} bytes of {needed}")]
    Truncated {
        /// Length according to the header; at least the length of a header.
        needed: usize,
        /// Length of the file.
        got: usize,
    },
    /// The file is longer than the length in its header.
    #[error("{extra} bytes after the end")]
    Trailing {
        /// Number of bytes too many.
        extra: usize,
    },
    /// The checksum does not match.
    #[error("corrupted: CRC-32C {computed:08x}, stored {stored:08x}; restore it from a backup")]
    Corrupted {
        /// CRC-32C stored in the file.
        stored: u32,
        /// CRC-32C of the content.
        computed: u32,
    },
    /// The header names an unknown key derivation, or one that needs more memory or time than is allowed.
    #[error(
        "the header asks for key derivation {kind} with {memory} KiB, {passes} passes, {lanes} lanes: refused"
    )]
    Derivation {
        /// Number of the derivation.
        kind: u16,
        /// Memory in KiB.
        memory: u32,
        /// Number of passes over the memory.
        passes: u32,
        /// Number of lanes.
        lanes: u32,
    },
    /// The length of the rows is not a multiple of the length of one row.
    #[error("contents of {length} bytes, which is not a number of rows")]
    Length {
        /// Length in bytes.
        length: usize,
    },
    /// The authentication tag does not verify although the checksum matches.
    #[error("wrong {}, or the file was tampered with", if *.passphrase { "passphrase" } else { "key file" })]
    Secret {
        /// Whether a passphrase opens the store; otherwise a key file does.
        passphrase: bool,
    },
    /// The content is authentic but not valid in this version.
    #[error("row {row} is invalid in this version")]
    Row {
        /// Number of the row, from 0.
        row: usize,
    },
}
