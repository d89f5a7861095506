//! File helpers of the FedSpan servers: owner-only files, locks, durable directories, hexadecimal.
//!
//! [`private`] reads and replaces files that hold secrets, [`kind`] checks for regular files before they are opened,
//! [`hex`] prints and parses bytes.

#![forbid(unsafe_code)]

pub mod hex;
pub mod kind;
pub mod private;

pub use kind::{other_than_a_file, regular};
pub use private::{
    FileError, beside, create_private, make_directories, parent, read_secret, sync_directory, user,
};
