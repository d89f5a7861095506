//! Key table and key store, which sessions read while the operator withdraws keys.

pub(crate) mod checks;
pub(crate) mod store_checks;
// These files have items that only the aggregator uses.
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/damage.rs"]
mod damage;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/entropy.rs"]
mod entropy;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/file.rs"]
mod file;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/lines.rs"]
mod lines;
#[allow(dead_code)]
#[path = "../../../aggregator/src/keys/live.rs"]
mod live;
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
#[path = "../../../aggregator/src/keys/unlock.rs"]
mod unlock;

use entropy::Entropy;
use error::KeyError;
use live::{AcceptedKey, Keys};
use store::{KeyDesk, KeyStore};
use table::{KeyTable, Refusal, State};
use unlock::{Cost, Unlock};

/// Revokes a key, like the key store.
fn revoke(keys: &Keys, device: u64) {
    keys.revoke(&[device], 2).expect("the device has a key");
}
