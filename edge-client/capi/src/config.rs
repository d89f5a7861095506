//! Settings of a client, and the reasons why they are refused.

use ::fedspan_client::Shape;
#[cfg(feature = "encryption")]
use ::fedspan_client::secure::Key;
#[cfg(feature = "aes-ccm")]
use ::fedspan_client::secure::Suite;
#[cfg(not(feature = "aes-ccm"))]
use ::fedspan_client::session::DefaultAead;
use ::fedspan_client::session::{Config, Protection, Sleep};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN};

use crate::platform::fedspan_platform;

/// Algorithm that seals frames: one, or the one of the settings.
#[cfg(not(feature = "aes-ccm"))]
pub type Cipher = DefaultAead;
/// Algorithm that seals frames: one, or the one of the settings.
#[cfg(feature = "aes-ccm")]
pub type Cipher = Suite;

/// Algorithm that seals the frames of a device with a key.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub enum fedspan_cipher {
    /// ChaCha20-Poly1305.
    FEDSPAN_CHACHA20_POLY1305 = 0,
    /// AES-128-CCM, in a library with the feature `aes-ccm`.
    FEDSPAN_AES_128_CCM = 1,
}

/// Settings of a client. Set all bytes to zero first, so that fields of later versions keep their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct fedspan_config {
    /// Identity of the device, unique in the fleet.
    pub device: u64,
    /// Key of the device, 32 bytes, which are copied; NULL for frames that are not encrypted, for tests only.
    pub key: *const u8,
    /// Epoch of the key, as `fedspan-aggregator keys` prints it; 0 for a first key.
    pub key_epoch: u16,
    /// Number d of features of a sample.
    pub features: u16,
    /// Number k of columns of the representation, at most d.
    pub width: u16,
    /// Number C of outputs: of the targets of a regression, or of classes; at most 256.
    pub outputs: u16,
    /// Largest frame that can be received, in bytes: 128 to 16384; 0 for 256.
    pub frame_limit: u16,
    /// 1 to close the link once the final head is fitted and acknowledged, 0 to stay connected.
    pub leave_when_fitted: u8,
    /// Algorithm that seals frames, a `fedspan_cipher`: 0 for ChaCha20-Poly1305.
    pub cipher: u8,
    /// Time in milliseconds between two wake-ups of a device that sleeps between rounds; 0 to stay connected. The device closes the
    /// link after one round, or after `sleep_wait_ms` without a round, and connects again at the time that the server has named for
    /// the next round, or after this time.
    pub sleep_ms: u32,
    /// Time in milliseconds for which a device that sleeps waits for a round: 0 for 2000. If the server takes longer to open a round,
    /// the device never trains, and `counters.unasked` grows.
    pub sleep_wait_ms: u32,
    /// Functions of the firmware. They are copied; what `context` points to must live as long as the client.
    pub platform: fedspan_platform,
}

/// Result of a function.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub enum fedspan_status {
    /// Done.
    FEDSPAN_OK = 0,
    /// A pointer is NULL, or not aligned to 8 bytes where memory is given.
    FEDSPAN_NULL = 1,
    /// The memory is shorter than `fedspan_memory_size`.
    FEDSPAN_MEMORY = 2,
    /// A size is 0, width is larger than features, there are more than 256 outputs, or the frame limit is out of range.
    FEDSPAN_SIZE = 3,
    /// The library was built without encryption, and the settings have a key; or without the cipher of the settings.
    FEDSPAN_NO_ENCRYPTION = 4,
    /// There is no representation: no round has brought one since the start, or a new one has arrived in part. It is not stored;
    /// `fedspan_set_representation` sets one that the firmware has kept.
    FEDSPAN_NO_REPRESENTATION = 5,
    /// There is no head for the present representation.
    FEDSPAN_NO_HEAD = 6,
    /// A length differs from the model's.
    FEDSPAN_LENGTH = 7,
    /// A value is not finite.
    FEDSPAN_NOT_FINITE = 8,
    /// The memory holds no client: it was never started, or has ended.
    FEDSPAN_NOT_STARTED = 9,
    /// Two arrays overlap, or settings or key are in the memory of the client.
    FEDSPAN_OVERLAP = 10,
    /// A prediction is not finite, because a sum overflows.
    FEDSPAN_OVERFLOW = 11,
}

impl fedspan_config {
    /// Returns true if the sizes and the frame limit are allowed.
    pub(crate) fn is_allowed(&self) -> bool {
        (1..=self.features).contains(&self.width)
            && (1..=256).contains(&self.outputs)
            && (FRAME_LIMIT_MIN..=FRAME_LIMIT_MAX).contains(&usize::from(self.frame_limit()))
    }

    fn frame_limit(&self) -> u16 {
        if self.frame_limit == 0 { Config::new(0).frame_limit } else { self.frame_limit }
    }

    /// Returns the sizes of the model.
    pub(crate) fn shape(&self) -> Shape {
        Shape { features: self.features.into(), width: self.width.into(), outputs: self.outputs.into() }
    }

    /// Returns the settings of the session.
    pub(crate) fn session(&self) -> Config {
        let mut sleep = Sleep::once_in(self.sleep_ms);
        if self.sleep_wait_ms > 0 {
            sleep.wait = self.sleep_wait_ms;
        }
        Config {
            frame_limit: self.frame_limit(),
            leave_when_fitted: self.leave_when_fitted != 0,
            sleep: (self.sleep_ms > 0).then_some(sleep),
            #[cfg(feature = "key-rotation")]
            receives_keys: self.platform.save.is_some(),
            ..Config::new(self.device)
        }
    }

    /// Returns true if the library has the algorithm that seals frames.
    pub(crate) fn has_cipher(&self) -> bool {
        let last = if cfg!(feature = "aes-ccm") {
            fedspan_cipher::FEDSPAN_AES_128_CCM
        } else {
            fedspan_cipher::FEDSPAN_CHACHA20_POLY1305
        };
        i32::from(self.cipher) <= last as i32 && (cfg!(feature = "encryption") || self.key.is_null())
    }

    /// Returns the algorithm that seals frames.
    pub(crate) fn cipher(&self) -> Cipher {
        #[cfg(not(feature = "aes-ccm"))]
        return DefaultAead;
        #[cfg(feature = "aes-ccm")]
        match self.cipher {
            0 => Suite::ChaCha20Poly1305,
            _ => Suite::Aes128Ccm,
        }
    }

    /// Returns the protection of frames: none if the library has no encryption.
    ///
    /// # Safety
    /// `key` is NULL, or points to 32 bytes.
    pub(crate) unsafe fn protection(&self) -> Protection {
        // SAFETY: the caller guarantees 32 bytes.
        #[cfg(feature = "encryption")]
        if let Some(key) = unsafe { self.key.cast::<[u8; 32]>().as_ref() } {
            return Protection::Key(Key::new(self.key_epoch, *key));
        }
        Protection::Plaintext
    }
}
