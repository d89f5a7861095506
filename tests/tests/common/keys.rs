//! Helpers of tests: device ids, and the keys that a device and its server share.

use fedspan_aggregator::keys::{ActiveKeys, KeyTable};
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;
use fedspan_engine::DeviceId;

pub const DEVICE: u64 = 0x0123_4567_89ab_cdef;
pub const OTHER: u64 = 77;
pub const SECRET: [u8; 32] = [0x42; 32];

/// Returns keys in which key 0 of [`DEVICE`] is [`SECRET`].
pub fn keys() -> ActiveKeys {
    ActiveKeys::new(table())
}

pub fn table() -> KeyTable {
    let mut table = KeyTable::new();
    table.insert(DeviceId(DEVICE), Key::new(0, SECRET), 0).unwrap();
    table
}

pub fn protected() -> Protection {
    Protection::Key(Key::new(0, SECRET))
}

/// Returns a table and the keys made from a clone of it. A revocation in the table also affects the keys.
pub fn withdrawable() -> (KeyTable, ActiveKeys) {
    let table = table();
    let keys = ActiveKeys::new(table.clone());
    (table, keys)
}
