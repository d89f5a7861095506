//! From the shared key and a handshake to the keys of the two directions; and from any secret to one for a purpose.

use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::{KEY, Key, NONCE};

/// Names what the keys are for, and the version of all this.
const CONTEXT: &[u8] = b"fedspan 1";

/// With these bytes a key's block begins the two hashes of HMAC.
const INNER: u8 = 0x36;
const OUTER: u8 = 0x5c;

/// The keys of a connection.
pub struct Keys {
    /// From the device to the server.
    pub up: [u8; KEY],
    /// From the server to the device.
    pub down: [u8; KEY],
}

impl Keys {
    /// `HKDF-Expand(HKDF-Extract(salt: transcript, key), "fedspan 1" | nonce, 64)`, up before down.
    #[cfg_attr(target_os = "none", inline(never))]
    pub fn derive(key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        // Block by block: a firmware has one copy of the authenticator, where the crate's extraction and expansion have three.
        let mut extracted = authenticate(transcript, &[key.expose()], &[]);
        let up = authenticate(&extracted, &[CONTEXT, nonce], &[1]);
        let down = authenticate(&extracted, &[&up, CONTEXT, nonce], &[2]);
        extracted.zeroize();
        Self { up, down }
    }
}

/// A secret for one purpose out of another: `HKDF-Expand(HKDF-Extract(no salt, secret), info, 32)`, with the parts of `info`
/// one after the other. Not for the key of a connection, which [`Channel`](super::Channel) makes keys of by itself: what
/// `info` begins with has to keep the purposes of one secret apart.
#[must_use]
#[cfg_attr(target_os = "none", inline(never))]
pub fn derive(secret: &[u8; KEY], info: &[&[u8]]) -> [u8; KEY] {
    // By hand, as one block: where the crate's expansion has two callers, a device's linker finds panics in it.
    let mut extracted = authenticate(&[0; KEY], &[secret], &[]);
    let derived = authenticate(&extracted, info, &[1]);
    extracted.zeroize();
    derived
}

/// HMAC-SHA256 (RFC 2104) of all parts, one after the other. Block by block from the hash that a device has anyway: the crate's
/// would be 0.7 kB of its flash. That crate is the oracle in the tests.
#[cfg_attr(target_os = "none", inline(never))]
fn authenticate(key: &[u8; KEY], parts: &[&[u8]], last: &[u8]) -> [u8; KEY] {
    // A key that is shorter than a block is filled up with zeros.
    let mut block = [0; 64];
    for (place, byte) in block.iter_mut().zip(key) {
        *place = *byte;
    }
    block.iter_mut().for_each(|place| *place ^= INNER);
    let mut inner = hash(&block, parts, last);
    block.iter_mut().for_each(|place| *place ^= INNER ^ OUTER);
    let tag = hash(&block, &[], &inner);
    block.zeroize();
    inner.zeroize();
    tag
}

/// SHA-256 of all parts, one after the other.
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
