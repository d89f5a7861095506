//! The keys of a fleet: who has which, what is accepted, and how that is kept.
//!
//! ```text
//!  connection -- lookup, is_accepted --> Keys --> KeyTable <-- KeyStore <--> file (encrypted, owner only)
//!                                                                 ^
//!                                              `keys add | revoke | rotate | ...`, rounds that close
//! ```
//!
//! [`KeyTable`] holds the rules, [`Keys`] shares it with connections. `KEYS.md` tells a key's life, and the formats.
//!
//! ```
//! use fedspan_aggregator::keys::{KeyTable, Keys};
//! use fedspan_protocol::secure::Key;
//!
//! let mut table = KeyTable::new();
//! table.insert(7, Key::new(0, [0x42; 32]), 1_700_000_000)?;
//! let keys = Keys::new(table);
//! let accepted = keys.lookup(7, 0).expect("it has just been added");
//! assert!(accepted.is_accepted());
//! assert!(keys.lookup(7, 1).is_none());
//! # Ok::<(), fedspan_aggregator::keys::KeyError>(())
//! ```

mod corruption;
mod entropy;
mod error;
mod binary_format;
mod text_format;
mod active_keys;
mod request;
mod store;
mod table;
mod unlock;

pub use corruption::Damage;
pub use entropy::Entropy;
pub use error::KeyError;
pub use text_format::{LinesError, Mistake, parse_keys, read_keys};
pub use active_keys::{AcceptedKey, Keys};
pub use request::{Answer, Range, Request, Which, ranges};
pub use store::{KeyDesk, KeyStore, KeyStoreError};
pub use table::{DEVICES_MAX, KeyTable, Listed, Refusal, State};
pub use unlock::{Cost, Derivation, PASSPHRASE_MIN, Unlock, UnlockError};
