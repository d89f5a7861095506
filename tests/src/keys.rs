//! Test helpers: keys of a fleet, in a key store next to the server's state and for each device.

use std::collections::BTreeMap;
use std::path::Path;

use fedspan_aggregator::keys::{Argon2Cost, KeyStore, Unlock};
use fedspan_aggregator::server::Protection;
use fedspan_engine::DeviceId;
use fedspan_protocol::secure::Key;
use fedspan_sim_core::device::Identity;
use rand_chacha::{ChaCha8Rng, ChaCha20Rng};
use rand_core::SeedableRng;

/// Returns keys of the devices 0 to `devices - 1`: the server's key store and the key of each device. Opens
/// the store if it exists, so that a restarted server has the same keys.
///
/// # Errors
/// The message of the key store's error.
pub fn keys(state: &Path, devices: u64) -> Result<(Protection, BTreeMap<u64, Key>), String> {
    let path = state.join("keys");
    let random = ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::passphrase("for a test").map_err(|error| error.to_string())?;
    // Cheapest allowed key derivation, since tests need no resistance to guessing.
    let cost = Argon2Cost::new(8, 1, 1).unwrap_or(Argon2Cost::RECOMMENDED);
    let store = match path.exists() {
        true => KeyStore::open(&path, &unlock, random),
        false => KeyStore::create(&path, &unlock, cost, random).and_then(|mut store| {
            store.add(&(0..devices).map(DeviceId).collect::<Vec<_>>(), false, 0)?;
            Ok(store)
        }),
    };
    let store = store.map_err(|error| error.to_string())?;
    let table = store.keys();
    let key_of = |device| Some((device, table.lookup(DeviceId(device), 0)?.key().clone()));
    let device_keys = (0..devices).filter_map(key_of).collect();
    Ok((Protection::Keys(store, Box::new(ChaCha20Rng::seed_from_u64(2))), device_keys))
}

/// Returns the identity of a device that has its key. `life` counts the boots of the device; each boot uses
/// other random numbers.
#[must_use]
pub fn identity(device: u64, key: &Key, life: u64) -> Identity {
    Identity::with_key(device, key.clone(), ChaCha8Rng::seed_from_u64(device << 32 | life))
}
