//! Test helpers: device ids, and the keys that a device and its server share.

use fedspan_aggregator::keys::{ActiveKeys, KeyTable};
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;
use fedspan_engine::DeviceId;

/// Id of the device with a key.
pub const DEVICE: u64 = 0x0123_4567_89ab_cdef;
/// Id of another device.
pub const OTHER: u64 = 77;
/// Secret of the key of [`DEVICE`].
pub const SECRET: [u8; 32] = [0x42; 32];

/// Returns keys in which key 0 of [`DEVICE`] is [`SECRET`].
pub fn active_keys() -> ActiveKeys {
    ActiveKeys::new(key_table())
}

/// Returns a table with the key of [`DEVICE`].
pub fn key_table() -> KeyTable {
    let mut table = KeyTable::new();
    table.insert(DeviceId(DEVICE), Key::new(0, SECRET), 0).unwrap();
    table
}

/// Returns the key of [`DEVICE`] as the protection of a session.
pub fn key_protection() -> Protection {
    Protection::Key(Key::new(0, SECRET))
}

/// Returns a table and the keys made from a clone of it. A revocation in the table also affects the keys.
pub fn revocable_keys() -> (KeyTable, ActiveKeys) {
    let table = key_table();
    let keys = ActiveKeys::new(table.clone());
    (table, keys)
}
