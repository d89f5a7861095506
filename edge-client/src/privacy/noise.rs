//! Noise from a seed: one sample a coordinate, in any order, as often as one likes, and no buffer of it.

use core::fmt;

use chacha20::cipher::{Block, KeyIvInit, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R20};
use zeroize::Zeroize;

use super::discrete_gaussian::{Variance, sample};
use crate::mechanism::Release;
use crate::secure::derive;

/// Bytes of a seed.
pub const SEED: usize = 32;

/// The block function alone, which the protocol crate's cipher has in it: no other generator in flash, and no end of
/// the stream to check.
type Cipher = ChaChaCore<R20, Ietf>;

/// Words in a block of the key stream.
const WORDS: usize = 16;

/// Begins every nonce: what the key stream is for.
const PURPOSE: [u8; 4] = *b"nois";

/// Names what seeds are derived for, and the version of all this.
const CONTEXT: &[u8] = b"fedspan noise 2";

/// The secret that noise is made of. A seed is for one release: with the same seed for two, their difference has no
/// noise in it. It cannot be copied, is never printed, and is overwritten when it is dropped.
///
/// ```compile_fail
/// fn twice<T: Clone>() {}
/// twice::<fedspan_client::privacy::Seed>();
/// ```
pub struct Seed([u8; SEED]);

impl Seed {
    /// Takes over 256 random bits.
    #[must_use]
    pub const fn new(bytes: [u8; SEED]) -> Self {
        Self(bytes)
    }

    /// The seed of one release: HKDF-SHA256 (RFC 5869, no salt) of this one, with "fedspan noise 2", the device, the campaign,
    /// round and stage, and what was spent before as `info`, in little endian (8, 8, 4, 2 and 8 bytes). A source of entropy
    /// that gives the same bits twice, or to two devices, then does not give the same noise to two releases.
    #[must_use]
    pub fn of_release(&self, release: &Release) -> Self {
        let Release { device, campaign, round, spent } = release;
        Self(derive(
            &self.0,
            &[
                CONTEXT,
                &device.to_le_bytes(),
                &campaign.to_le_bytes(),
                &round.round.to_le_bytes(),
                &round.stage.to_le_bytes(),
                &spent.to_le_bytes(),
            ],
        ))
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed { secret }")
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The noise of one coordinate: a sample of the discrete Gaussian, in units of the grid.
///
/// Each coordinate has a key stream of its own, ChaCha20 (RFC 8439) with the seed as key and "nois", then the
/// coordinate in little endian, as nonce. Its blocks are counted from 0, its words are little endian, and bits are
/// taken from the lowest up.
#[must_use]
#[cfg_attr(target_os = "none", inline(never))]
pub fn noise(seed: &Seed, coordinate: u64, variance: &Variance) -> i64 {
    let mut stream = Stream::new(seed, coordinate);
    sample(variance, || stream.word())
}

/// The words of one coordinate's key stream. (Blocks are counted in 32 bits; that no sample takes so many follows
/// from what it takes on average.)
struct Stream {
    cipher: Cipher,
    block: Block<Cipher>,
    /// The next word of the block.
    next: usize,
}

impl Stream {
    fn new(seed: &Seed, coordinate: u64) -> Self {
        let [p, q, r, s] = PURPOSE;
        let [a, b, c, d, e, f, g, h] = coordinate.to_le_bytes();
        let nonce = [p, q, r, s, a, b, c, d, e, f, g, h];
        let cipher = Cipher::new((&seed.0).into(), (&nonce).into());
        Self { cipher, block: Block::<Cipher>::default(), next: WORDS }
    }

    fn word(&mut self) -> u32 {
        if self.next >= WORDS {
            self.cipher.write_keystream_block(&mut self.block);
            self.next = 0;
        }
        // There is a word at every number below `WORDS`.
        let word = self.block.as_chunks().0.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        u32::from_le_bytes(word)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The cipher overwrites its own state.
        self.block.zeroize();
    }
}
