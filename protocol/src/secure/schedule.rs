//! From the shared key and a handshake to the keys of the two directions; and from any secret to one for a purpose.

use hkdf::Hkdf;
use hkdf::hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroize;

use super::{KEY, Key, NONCE};

/// Names what the keys are for, and the version of all this.
const CONTEXT: &[u8] = b"fedspan 1";

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
        let mut keys = Self { up: [0; KEY], down: [0; KEY] };
        let mut okm = [0; 2 * KEY];
        // Fails for more than 255 blocks, of which these are two.
        let _ = Hkdf::<Sha256>::new(Some(transcript), key.expose())
            .expand_multi_info(&[CONTEXT, nonce], &mut okm);
        let (up, down) = okm.split_at(KEY);
        keys.up.copy_from_slice(up);
        keys.down.copy_from_slice(down);
        okm.zeroize();
        keys
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

/// HMAC-SHA256 of all parts, one after the other.
fn authenticate(key: &[u8; KEY], parts: &[&[u8]], last: &[u8]) -> [u8; KEY] {
    // A key that is shorter than a block is filled up with zeros.
    let mut block = [0; 64];
    for (place, byte) in block.iter_mut().zip(key) {
        *place = *byte;
    }
    let mut mac = <Hmac<Sha256> as KeyInit>::new((&block).into());
    block.zeroize();
    for part in parts {
        mac.update(part);
    }
    mac.update(last);
    mac.finalize().into_bytes().into()
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.up.zeroize();
        self.down.zeroize();
    }
}
