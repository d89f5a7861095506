//! Keys of the load generator's devices, and configuration of the server.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use fedspan_aggregator::keys::{Argon2Cost, Entropy, KeyError, KeyStore, Unlock};
use fedspan_aggregator::server::Protection;
use fedspan_engine::DeviceId;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_files::create_private;

use super::device::{Identity, Shape};

/// Size and settings of the load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of devices that answer rounds.
    pub devices: usize,
    /// Number of hostile peers that have keys.
    pub insiders: usize,
    /// Longest frame that a device accepts, in bytes.
    pub frame_limit: u16,
    /// Shape of the model.
    pub shape: Shape,
    /// Seed of keys and garbage.
    pub seed: u64,
    /// `[limits]` section of the server's configuration.
    pub limits: String,
}

/// Predictable random numbers for test keys.
struct Seeded(Stream);

impl Entropy for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) -> std::result::Result<(), KeyError> {
        for part in bytes.chunks_mut(8) {
            let bits = self.0.bits().to_le_bytes();
            for (target, byte) in part.iter_mut().zip(bits) {
                *target = byte;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Creates a key store and its key file in a directory. Returns the text of the `fleet.toml` that serves
    /// the keys, and the identities, first of the devices, then of the insiders.
    ///
    /// # Errors
    /// An error of the file system or the key store.
    pub fn prepare(&self, directory: &Path) -> Result<(String, Vec<Identity>)> {
        let state = directory.join("state");
        let (store, key_file) = (directory.join("keys"), directory.join("key"));
        let mut entropy = Seeded(stream(self.seed, Purpose::Device, 0));
        let mut secret = [0; 32];
        entropy.fill(&mut secret).map_err(Error::other)?;
        create_private(&key_file, &secret).map_err(Error::other)?;
        let unlock = Unlock::from_key_file(&key_file).map_err(Error::other)?;
        let mut keys =
            KeyStore::create(&store, &unlock, Argon2Cost::RECOMMENDED, entropy).map_err(Error::other)?;
        let ids: Vec<u64> = (1..).take(self.devices + self.insiders).collect();
        keys.add(&ids.iter().copied().map(DeviceId).collect::<Vec<_>>(), false, 0).map_err(Error::other)?;
        let identity = |device: u64| {
            let active_key = keys
                .keys()
                .lookup(DeviceId(device), 0)
                .ok_or_else(|| Error::other("the key store lacks a key that was just added"))?;
            let key = active_key.key().clone();
            Ok(Identity { device, key, frame_limit: self.frame_limit, shape: self.shape })
        };
        let identities = ids.into_iter().map(identity).collect::<Result<_>>()?;
        Ok((self.fleet(&state, &store, &key_file), identities))
    }

    /// Opens the key store for a server in this process.
    ///
    /// # Errors
    /// An error of the key store.
    pub fn protection(&self, directory: &Path) -> Result<Protection> {
        let unlock = Unlock::from_key_file(&directory.join("key")).map_err(Error::other)?;
        let entropy = |index| Seeded(stream(self.seed, Purpose::Device, index));
        let keys = KeyStore::open(&directory.join("keys"), &unlock, entropy(1)).map_err(Error::other)?;
        Ok(Protection::Keys(keys, Box::new(entropy(2))))
    }

    /// Returns the configuration of the server. A round waits only for the first `devices` answers, because
    /// insiders join but never answer.
    fn fleet(&self, state: &Path, store: &Path, key_file: &Path) -> String {
        let name = |path: &Path| -> String { format!("{:?}", PathBuf::from(path).display().to_string()) };
        format!(
            "seed = {}\nstate = {}\n[listen]\ntcp = \"127.0.0.1:0\"\n[devices]\nexpected = {devices}\nkeys = {}\n\
             key_file = {}\n[data]\nd = {d}\n[model]\nk = {k}\n[algorithm]\nname = \"fedrep\"\n\
             rounds = 1000000\nstep_size = 0.25\n[participation]\npolicy = \"first-arrivals\"\nn = {devices}\n\
             [rounds]\ndeadline = 0\n[limits]\n{}",
            self.seed,
            name(state),
            name(store),
            name(key_file),
            self.limits,
            devices = self.devices,
            d = self.shape.features,
            k = self.shape.width,
        )
    }
}
