//! Device keys of a fleet: the rules by which keys are accepted, and the encrypted file in which they are
//! stored.
//!
//! ```text
//!  connection -- lookup, is_accepted --> ActiveKeys --> KeyTable <-- KeyStore <--> encrypted file
//!                                                                       ^
//!                                            `keys add | revoke | rotate | ...`, end of a round
//! ```
//!
//! [`KeyTable`] implements the rules, and [`ActiveKeys`] shares a table with connections. `KEYS.md` describes
//! the life cycle of a key and specifies the file formats.
//!
//! ```
//! use fedspan_aggregator::keys::{ActiveKeys, KeyTable};
//! use fedspan_engine::DeviceId;
//! use fedspan_protocol::secure::Key;
//!
//! let mut table = KeyTable::new();
//! table.insert(DeviceId(7), Key::new(0, [0x42; 32]), 1_700_000_000)?;
//! let keys = ActiveKeys::new(table);
//! let accepted = keys.lookup(DeviceId(7), 0).expect("it has just been added");
//! assert!(accepted.is_accepted());
//! assert!(keys.lookup(DeviceId(7), 1).is_none());
//! # Ok::<(), fedspan_aggregator::keys::KeyError>(())
//! ```

mod accepted_key;
mod active_keys;
mod binary_format;
mod corruption;
mod entropy;
mod error;
mod request;
mod store;
mod table;
mod text_format;
mod unlock;

pub use accepted_key::AcceptedKey;
pub use active_keys::ActiveKeys;
pub use corruption::Corruption;
pub use entropy::Entropy;
pub use error::KeyError;
pub use request::{Answer, DeviceRange, DeviceSelector, Request, ranges};
pub use store::{KeyStore, KeyStoreError, SharedKeyStore};
pub use table::{DEVICES_MAX, KeyState, KeyStatus, KeyTable, LookupError};
pub use text_format::{KeyTextError, LineMistake, parse_keys, read_keys};
pub use unlock::{Argon2Cost, Derivation, PASSPHRASE_MIN, Unlock, UnlockError};
