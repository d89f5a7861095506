//! Key table and key store of the aggregator, compiled for loom, with their model checks: sessions read keys
//! while the operator withdraws keys.

pub(crate) mod checks;
pub(crate) mod store_checks;
// These files contain items that only the aggregator uses.
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/accepted_key.rs"]
mod accepted_key;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/active_keys.rs"]
mod active_keys;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/binary_format.rs"]
mod binary_format;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/corruption.rs"]
mod corruption;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/entropy.rs"]
mod entropy;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/request.rs"]
mod request;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/store.rs"]
mod store;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/table.rs"]
mod table;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/text_format.rs"]
mod text_format;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/unlock.rs"]
mod unlock;

use crate::device_id::DeviceId;
use accepted_key::AcceptedKey;
use active_keys::ActiveKeys;
use entropy::Entropy;
use error::KeyError;
use store::{KeyStore, SharedKeyStore};
use table::{KeyState, KeyTable, LookupError};
use unlock::{Argon2Cost, Unlock};

/// Revokes a key in the table, like the key store does.
fn revoke(keys: &ActiveKeys, device: u64) {
    keys.revoke(&[DeviceId(device)], 2).expect("the device has a key");
}
