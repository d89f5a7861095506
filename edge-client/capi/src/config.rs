//! Settings of a client, and the reasons why they are refused.

use ::fedspan_client::Shape;
#[cfg(feature = "encryption")]
use ::fedspan_client::secure::Key;
#[cfg(feature = "aes-ccm")]
use ::fedspan_client::secure::Suite;
#[cfg(not(feature = "aes-ccm"))]
use ::fedspan_client::session::DefaultAead;
use ::fedspan_client::session::{Config, Protection, Sleep, Timers};
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

/// Times in milliseconds after which a client repeats a message, connects again, or gives up a write; 0 for the default. A link on which a
/// message and its answer take longer than a second needs longer ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct fedspan_timers {
    /// Time without progress after which a hello is repeated, or missing parts of a message are requested: 0 for 2000.
    pub ask_again_ms: u32,
    /// Time without an acknowledgement after which an update is sent again: 0 for 10000.
    pub resend_ms: u32,
    /// First delay of a reconnect, which doubles with each attempt: 0 for 500.
    pub reconnect_ms: u32,
    /// Longest delay of a reconnect: 0 for 60000.
    pub reconnect_max_ms: u32,
    /// Longest time for which the link may accept no byte of a frame; the link then ends: 0 for 10000.
    pub write_ms: u32,
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
    /// Times of retries.
    pub timers: fedspan_timers,
    /// Largest number of multiply-accumulates between two calls of `platform.pause` during a computation: 0 for 1000. One takes about 350
    /// cycles on a Cortex-M0 and 5 on a Cortex-M4F. Results are the same bits for any number.
    pub pause_quota: u32,
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
    /// The settings have a key, a cipher or a function `pause`, and the library was built without the feature that it needs.
    FEDSPAN_NOT_BUILT = 4,
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
    /// The function `random` has failed. A later start may succeed.
    FEDSPAN_RANDOM = 12,
}

/// Returns a setting, or its default if it is 0.
fn or_default(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

impl fedspan_timers {
    /// Returns the timers of the session.
    fn session(&self) -> Timers {
        let default = Timers::DEFAULT;
        Timers {
            ask_again: or_default(self.ask_again_ms, default.ask_again),
            resend: or_default(self.resend_ms, default.resend),
            reconnect: or_default(self.reconnect_ms, default.reconnect),
            reconnect_max: or_default(self.reconnect_max_ms, default.reconnect_max),
            write: or_default(self.write_ms, default.write),
        }
    }
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
    #[inline(always)]
    pub(crate) fn session(&self) -> Config {
        let sleep = Sleep::once_in(self.sleep_ms);
        let sleep = Sleep { wait: or_default(self.sleep_wait_ms, sleep.wait), ..sleep };
        Config {
            frame_limit: self.frame_limit(),
            leave_when_fitted: self.leave_when_fitted != 0,
            sleep: (self.sleep_ms > 0).then_some(sleep),
            timers: self.timers.session(),
            #[cfg(feature = "key-rotation")]
            receives_keys: self.platform.save.is_some(),
            ..Config::new(self.device)
        }
    }

    /// Returns true if the library has the features that the settings need.
    pub(crate) fn is_built(&self) -> bool {
        let last = if cfg!(feature = "aes-ccm") {
            fedspan_cipher::FEDSPAN_AES_128_CCM
        } else {
            fedspan_cipher::FEDSPAN_CHACHA20_POLY1305
        };
        i32::from(self.cipher) <= last as i32
            && (cfg!(feature = "encryption") || self.key.is_null())
            && (cfg!(feature = "pauses") || self.platform.pause.is_none())
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
