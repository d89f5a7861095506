//! Key schedule: derives the keys of both directions from the pre-shared key and a handshake, and keys for
//! other purposes.

use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::{KEY, Key, NONCE, TAG};

/// Context string, with the purpose of the keys and the version of the schedule.
const CONTEXT: &[u8] = b"fedspan 1";

/// Padding byte of HMAC's inner hash.
const INNER: u8 = 0x36;
/// Padding byte of HMAC's outer hash.
const OUTER: u8 = 0x5c;

/// Keys of a connection.
pub struct Keys {
    /// Key from the device to the server.
    pub up: [u8; KEY],
    /// Key from the server to the device.
    pub down: [u8; KEY],
}

impl Keys {
    /// Computes `HKDF-Expand(HKDF-Extract(salt: transcript, key), "fedspan 1" | nonce, 64)`. The halves of
    /// the result are `up` and `down`.
    #[cfg_attr(target_os = "none", inline(never))]
    pub fn derive(key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        // This code needs one copy of HMAC in the firmware; the `hkdf` crate would need three.
        let mut extracted = compute_hmac(transcript, &[key.expose()], &[]);
        let up = compute_hmac(&extracted, &[CONTEXT, nonce], &[1]);
        let down = compute_hmac(&extracted, &[&up, CONTEXT, nonce], &[2]);
        extracted.zeroize();
        Self { up, down }
    }
}

/// Returns the tag of a refusal that is not sealed, because the device has another wire version: `HKDF-Expand(HKDF-Extract(salt:
/// transcript, key), "fedspan refusal 1" | message, 16)`. It proves to the device of this key, and for this hello only, that the
/// server has refused it.
#[must_use]
#[cfg_attr(target_os = "none", inline(never))]
pub fn refusal_tag(key: &Key, transcript: &[u8; 32], message: &[u8]) -> [u8; TAG] {
    let mut extracted = compute_hmac(transcript, &[key.expose()], &[]);
    let full = compute_hmac(&extracted, &[b"fedspan refusal 1", message], &[1]);
    extracted.zeroize();
    let mut tag = [0; TAG];
    tag.iter_mut().zip(full).for_each(|(target, byte)| *target = byte);
    tag
}

/// Returns the check value of a device's key, by which a device recognises that it was given another one: the first 4 bytes of
/// `HKDF-Extract(salt: SHA-256("fedspan provisioned 1" | device), key)`.
#[must_use]
#[cfg(feature = "key-rotation")]
pub fn check_value(key: &Key, device: u64) -> u32 {
    let salt = hash(b"fedspan provisioned 1", &[&device.to_le_bytes()], &[]);
    let mut extracted = compute_hmac(&salt, &[key.expose()], &[]);
    let value = extracted.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    extracted.zeroize();
    value
}

/// Derives a secret for one purpose: `HKDF-Expand(HKDF-Extract(no salt, secret), info, 32)`, with the parts
/// of `info` concatenated. The first part must be different for each purpose of a secret. Must not be used
/// with the pre-shared key of a connection, from which [`Channel`](super::Channel) derives keys in another
/// way.
#[must_use]
#[cfg_attr(target_os = "none", inline(never))]
pub fn derive(secret: &[u8; KEY], info: &[&[u8]]) -> [u8; KEY] {
    // Expands only one block. If the expansion of the `hkdf` crate were used in two places, the firmware
    // would link panics.
    let mut extracted = compute_hmac(&[0; KEY], &[secret], &[]);
    let derived = compute_hmac(&extracted, info, &[1]);
    extracted.zeroize();
    derived
}

/// Returns the HMAC-SHA256 (RFC 2104) of all parts, concatenated. Uses the hash function that a device
/// already contains; the `hmac` crate would add 0.7 kB of flash. The tests compare this function with that
/// crate.
#[cfg_attr(target_os = "none", inline(never))]
fn compute_hmac(key: &[u8; KEY], parts: &[&[u8]], last: &[u8]) -> [u8; KEY] {
    // A key shorter than a block is padded with zeros.
    let mut block = [0; 64];
    for (target, byte) in block.iter_mut().zip(key) {
        *target = *byte;
    }
    block.iter_mut().for_each(|byte| *byte ^= INNER);
    let mut inner = hash(&block, parts, last);
    block.iter_mut().for_each(|byte| *byte ^= INNER ^ OUTER);
    let tag = hash(&block, &[], &inner);
    block.zeroize();
    inner.zeroize();
    tag
}

/// Returns the SHA-256 of all parts, concatenated.
#[cfg_attr(target_os = "none", inline(never))]
pub(super) fn hash(first: &[u8], parts: &[&[u8]], last: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [first].iter().chain(parts).chain([&last]) {
        hash.update(part);
    }
    hash.finalize().into()
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.up.zeroize();
        self.down.zeroize();
    }
}
