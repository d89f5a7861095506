//! Keys for a fleet of a test: a store beside the server's state, and what each device is given.

use std::collections::BTreeMap;
use std::path::Path;

use fedspan_aggregator::keys::{Argon2Cost, KeyStore, Unlock};
use fedspan_aggregator::server::Protection;
use fedspan_protocol::secure::Key;
use fedspan_sim_core::device::Identity;
use rand_chacha::{ChaCha8Rng, ChaCha20Rng};
use rand_core::SeedableRng;

/// The keys of the devices 0 to `devices - 1`, as the server has them and as the devices have them; the same again for
/// a server that is started again.
///
/// # Errors
/// What the key store says.
pub fn keys(state: &Path, devices: u64) -> Result<(Protection, BTreeMap<u64, Key>), String> {
    let path = state.join("keys");
    let random = ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::passphrase("for a test").map_err(|error| error.to_string())?;
    // As cheap as a passphrase can be: nobody guesses here.
    let cost = Argon2Cost::new(8, 1, 1).unwrap_or(Argon2Cost::RECOMMENDED);
    let store = match path.exists() {
        true => KeyStore::open(&path, &unlock, random),
        false => KeyStore::create(&path, &unlock, cost, random).and_then(|mut store| {
            store.add(&(0..devices).collect::<Vec<_>>(), false, 0)?;
            Ok(store)
        }),
    };
    let store = store.map_err(|error| error.to_string())?;
    let table = store.keys();
    let known = |device| Some((device, table.lookup(device, 0)?.key().clone()));
    let given = (0..devices).filter_map(known).collect();
    Ok((Protection::Keys(store, Box::new(ChaCha20Rng::seed_from_u64(2))), given))
}

/// A device that has its key. `life`: which time since its making it is started; its randomness is another each time.
#[must_use]
pub fn identity(device: u64, key: &Key, life: u64) -> Identity {
    Identity::with_key(device, key.clone(), ChaCha8Rng::seed_from_u64(device << 32 | life))
}
