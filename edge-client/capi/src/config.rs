//! Settings of a client, and the reasons why they are refused.

use core::slice;

use ::fedspan_client::Shape;
#[cfg(feature = "encryption")]
use ::fedspan_client::secure::Key;
use ::fedspan_client::session::{Config, Protection, Sleep};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN};

use crate::platform::fedspan_platform;

/// Largest number of features, columns of the representation, or outputs.
const SIZE_MAX: usize = u16::MAX as usize;

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
    /// The library was built without encryption, and the settings have a key.
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
    /// Two arrays overlap.
    FEDSPAN_OVERLAP = 10,
}

impl fedspan_config {
    /// Returns the sizes of the model, if they are allowed.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let [features, width, outputs] = [self.features, self.width, self.outputs].map(usize::from);
        let is_allowed = (1..=SIZE_MAX).contains(&features)
            && (1..=features).contains(&width)
            && (1..=256).contains(&outputs);
        is_allowed.then_some(Shape { features, width, outputs })
    }

    /// Returns the settings of the session, if the frame limit is allowed.
    pub(crate) fn session(&self) -> Option<Config> {
        let default = Config::new(self.device);
        let frame_limit = if self.frame_limit == 0 { default.frame_limit } else { self.frame_limit };
        let mut sleep = Sleep::once_in(self.sleep_ms);
        if self.sleep_wait_ms > 0 {
            sleep.wait = self.sleep_wait_ms;
        }
        let sleep = (self.sleep_ms > 0).then_some(sleep);
        let config = Config { frame_limit, leave_when_fitted: self.leave_when_fitted != 0, sleep, ..default };
        (FRAME_LIMIT_MIN..=FRAME_LIMIT_MAX).contains(&usize::from(frame_limit)).then_some(config)
    }

    /// Returns the protection of frames; `None` if the library has no encryption and the settings have a key.
    ///
    /// # Safety
    /// `key` is NULL, or points to 32 bytes.
    pub(crate) unsafe fn protection(&self) -> Option<Protection> {
        if self.key.is_null() {
            return Some(Protection::Plaintext);
        }
        #[cfg(feature = "encryption")]
        {
            // SAFETY: the caller guarantees 32 bytes.
            let bytes = unsafe { slice::from_raw_parts(self.key, 32) };
            let mut key = [0; 32];
            key.iter_mut().zip(bytes).for_each(|(target, byte)| *target = *byte);
            Some(Protection::Key(Key::new(self.key_epoch, key)))
        }
        #[cfg(not(feature = "encryption"))]
        {
            let _ = slice::from_raw_parts::<u8>;
            None
        }
    }
}
