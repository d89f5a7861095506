//! Noise expanded from a seed: one sample per coordinate, in any order and repeatable, without a buffer.

use core::fmt;

use chacha20::cipher::{Block, KeyIvInit, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R20};
use zeroize::Zeroize;

use super::discrete_gaussian::{Variance, sample};
use crate::release::Release;
use crate::secure::derive;

/// Cost of one sample of noise, in multiply-accumulates of f32 on a core without floating point.
pub const NOISE_WORK: usize = 40;

/// Length of a seed, in bytes.
pub const SEED: usize = 32;

/// ChaCha20 block function of the cipher that the protocol crate contains already, so that the firmware needs
/// no second generator in flash and no check for the end of the stream.
type Cipher = ChaChaCore<R20, Ietf>;

/// Number of words in a block of the key stream.
const WORDS: usize = 16;

/// Start of every nonce: a label for the purpose of the key stream.
const PURPOSE: [u8; 4] = *b"nois";

/// Context string of the seed derivation, with its purpose and version.
const CONTEXT: &[u8] = b"fedspan noise 2";

/// Secret seed of the noise of one release. If two releases used the same seed, their difference would
/// contain no noise. A seed cannot be copied, is never printed, and is overwritten when it is dropped.
///
/// ```compile_fail
/// fn twice<T: Clone>() {}
/// twice::<fedspan_client::privacy::Seed>();
/// ```
pub struct Seed([u8; SEED]);

impl Seed {
    /// Creates a seed from 256 random bits.
    #[must_use]
    pub const fn new(bytes: [u8; SEED]) -> Self {
        Self(bytes)
    }

    /// Derives the seed of one release: HKDF-SHA256 (RFC 5869, no salt) of this seed. The `info` is "fedspan
    /// noise 2", the device, the campaign, the round, the stage, and the previously spent budget, in little
    /// endian (8, 8, 4, 2 and 8 bytes). The noise of two releases therefore differs even if an entropy source
    /// returns the same bits twice, or on two devices.
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

/// Returns the noise of one coordinate: a sample of the discrete Gaussian, in units of the grid.
///
/// Each coordinate has its own key stream: ChaCha20 (RFC 8439) with the seed as key. The nonce is "nois"
/// followed by the coordinate in little endian. Blocks are counted from 0, words are little endian, and the
/// bits of a word are used from the lowest to the highest.
#[must_use]
#[cfg_attr(target_os = "none", inline(never))]
pub fn noise(seed: &Seed, coordinate: u64, variance: &Variance) -> i64 {
    let mut stream = Stream::new(seed, coordinate);
    sample(variance, || stream.next_word())
}

/// Words of one coordinate's key stream. (Blocks are counted in 32 bits, which a sample does not exhaust.)
struct Stream {
    cipher: Cipher,
    block: Block<Cipher>,
    /// Index of the next word of the block.
    next: usize,
}

impl Stream {
    /// Starts the key stream of a coordinate.
    fn new(seed: &Seed, coordinate: u64) -> Self {
        let [p, q, r, s] = PURPOSE;
        let [a, b, c, d, e, f, g, h] = coordinate.to_le_bytes();
        let nonce = [p, q, r, s, a, b, c, d, e, f, g, h];
        let cipher = Cipher::new((&seed.0).into(), (&nonce).into());
        Self { cipher, block: Block::<Cipher>::default(), next: WORDS }
    }

    /// Returns the next word of the key stream.
    fn next_word(&mut self) -> u32 {
        if self.next >= WORDS {
            self.cipher.write_keystream_block(&mut self.block);
            self.next = 0;
        }
        // Cannot fail: the block has a word at every index below `WORDS`.
        let word = self.block.as_chunks().0.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        u32::from_le_bytes(word)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The cipher overwrites its state itself.
        self.block.zeroize();
    }
}
