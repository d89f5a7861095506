//! Devices and the keys that both ends share.

use fedspan_aggregator::keys::{KeyTable, Keys};
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;

pub const DEVICE: u64 = 0x0123_4567_89ab_cdef;
pub const OTHER: u64 = 77;
pub const SECRET: [u8; 32] = [0x42; 32];

/// Key 0 of [`DEVICE`] is [`SECRET`].
pub fn keys() -> Keys {
    Keys::new(table())
}

pub fn table() -> KeyTable {
    let mut table = KeyTable::new();
    table.insert(DEVICE, Key::new(0, SECRET), 0).unwrap();
    table
}

pub fn protected() -> Protection {
    Protection::Key(Key::new(0, SECRET))
}

/// A table with the keys made from its clone: revocations in the table also affect the keys.
pub fn withdrawable() -> (KeyTable, Keys) {
    let table = table();
    let keys = Keys::new(table.clone());
    (table, keys)
}
