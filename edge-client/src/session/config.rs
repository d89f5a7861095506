//! Settings of a session.

use fedspan_protocol::limits::{FRAME_LIMIT_DEFAULT, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, wire_capacity};

/// Settings of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Identity of the device, unique in the fleet.
    pub device: u64,
    /// Largest decoded frame in bytes, 128 to 16,384: the length of the receive buffer.
    pub frame_limit: u16,
    /// Source of the samples.
    pub sampling: Sampling,
    /// True if the session closes the link once the final head is fitted and acknowledged; for devices that
    /// connect only briefly.
    pub leave_when_fitted: bool,
}

impl Config {
    /// Returns the settings of a device with a replayable source and the default frame limit.
    #[must_use]
    pub const fn new(device: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a constant of 256")]
        let frame_limit = FRAME_LIMIT_DEFAULT as u16;
        Self { device, frame_limit, sampling: Sampling::Replay, leave_when_fitted: false }
    }

    /// Returns the number of bytes that the buffer for outgoing frames must hold.
    #[must_use]
    pub const fn transmit_capacity(&self) -> usize {
        wire_capacity(self.limit())
    }

    /// Returns the frame limit in bytes, clamped to the allowed range.
    pub(super) const fn limit(&self) -> usize {
        let limit = self.frame_limit as usize;
        if limit < FRAME_LIMIT_MIN {
            FRAME_LIMIT_MIN
        } else if limit > FRAME_LIMIT_MAX {
            FRAME_LIMIT_MAX
        } else {
            limit
        }
    }
}

/// Source of a round's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The session's [`SampleSource`](crate::SampleSource), which can be read more than once.
    Replay,
    /// The firmware passes each sample as [`Event::Sample`](super::Event::Sample), and the round is computed
    /// once enough usable samples have arrived.
    Stream {
        /// Number of usable samples per round.
        samples: u32,
    },
}
