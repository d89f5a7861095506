//! Keys of an emulated fleet, which are made for one run and passed to the boards as provisioning records.

use std::path::{Path, PathBuf};

use fedspan_aggregator::config::Security;
use fedspan_aggregator::keys::{Argon2Cost, KeyStore, Unlock};
use fedspan_aggregator::server::Protection;
use fedspan_engine::DeviceId;
use fedspan_files::create_private;
use fedspan_protocol::secure::{PROVISION, Provision};
use getrandom::SysRng;
use rand_core::TryRng;

use super::{EmulateError, Plan};

/// Creates the security section of the server's configuration.
pub(super) fn security(plan: &Plan<'_>) -> Security {
    if plan.plaintext {
        return Security::Plaintext;
    }
    Security::Keys { store: plan.scratch.join("keys"), key_file: Some(plan.scratch.join("keys.key")) }
}

/// Creates the keys of all boards, writes their provisioning records, and returns the protection of the
/// server.
pub(super) fn protection(security: &Security, plan: &Plan<'_>) -> Result<Protection, EmulateError> {
    let Security::Keys { store, key_file: Some(key_file) } = security else {
        return Ok(Protection::Plaintext);
    };
    let key_error = |error: &dyn std::fmt::Display| EmulateError::Keys { reason: error.to_string() };
    let mut secret = [0; 32];
    SysRng.try_fill_bytes(&mut secret).map_err(|error| key_error(&error))?;
    create_private(key_file, &secret).map_err(|error| key_error(&error))?;
    let unlock = Unlock::from_key_file(key_file).map_err(|error| key_error(&error))?;
    let mut store = KeyStore::create(store, &unlock, Argon2Cost::RECOMMENDED, SysRng)
        .map_err(|error| key_error(&error))?;
    let devices: Vec<DeviceId> = (1..=plan.boards as u64).map(DeviceId).collect();
    // The creation time is irrelevant, since the keys are used for this run only.
    store.add(&devices, false, 0).map_err(|error| key_error(&error))?;
    for device in devices {
        let accepted = store.keys().lookup(device, 0).ok_or_else(|| key_error(&"no key was made"))?;
        let mut record = [0; PROVISION];
        let provision = Provision { device: device.0, key: accepted.key().clone(), noise: None };
        provision.write(&mut record).map_err(|error| key_error(&error))?;
        create_private(&file(plan.scratch, device.0), &record).map_err(|error| key_error(&error))?;
    }
    Ok(Protection::Keys(store, Box::new(SysRng)))
}

/// Path of a board's provisioning record.
pub(super) fn file(scratch: &Path, device: u64) -> PathBuf {
    scratch.join(format!("board{device}.provision"))
}
