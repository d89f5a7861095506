//! File helpers of the FedSpan servers: owner-only files, locks, durable directories, hexadecimal.
//!
//! [`private_file`] reads and replaces files that hold secrets, [`file_kind`] checks for regular files before
//! they are opened, [`hex`] prints and parses keys.

#![forbid(unsafe_code)]

pub mod file_kind;
pub mod hex;
pub mod private_file;

pub use file_kind::{non_file_kind, regular};
pub use private_file::{
    FileError, create_private, make_directories, parent, read_secret, sync_directory, user, with_suffix,
};
