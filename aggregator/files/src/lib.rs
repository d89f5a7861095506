#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "private")]
pub mod directory_lock;
pub mod file_kind;
pub mod file_lock;
pub mod hex;
#[cfg(feature = "private")]
pub mod private_directory;
#[cfg(feature = "private")]
pub mod private_file;

#[cfg(feature = "private")]
pub use directory_lock::{DirectoryLock, LockError};
pub use file_kind::{non_file_kind, regular};
pub use file_lock::FileLock;
#[cfg(feature = "private")]
pub use private_directory::{check_private_directory, open_private_directory};
#[cfg(feature = "private")]
pub use private_file::{
    FileError, create_partial, create_private, make_directories, parent, read_secret, sync_directory, user,
    with_suffix,
};
