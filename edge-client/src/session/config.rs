//! Settings of a session.

use fedspan_protocol::limits::{FRAME_LIMIT_DEFAULT, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, wire_capacity};

/// How a session behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The device's identity, unique in the fleet.
    pub device: u64,
    /// Largest decoded frame, 128 to 4096 bytes: the length of the receive buffer.
    pub frame_limit: u16,
    /// Where samples come from.
    pub sampling: Sampling,
    /// Closes the link once the final head is fitted and acknowledged: for devices that only come by.
    pub leave_when_fitted: bool,
}

impl Config {
    /// A device with a replayable source and the default frame limit.
    #[must_use]
    pub const fn new(device: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a constant of 256")]
        let frame_limit = FRAME_LIMIT_DEFAULT as u16;
        Self { device, frame_limit, sampling: Sampling::Replay, leave_when_fitted: false }
    }

    /// Bytes that the buffer for outgoing frames must have.
    #[must_use]
    pub const fn transmit_capacity(&self) -> usize {
        wire_capacity(self.limit())
    }

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

/// Where a round's samples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// From the source, which can be read twice.
    Replay,
    /// From [`Event::Sample`](super::Event::Sample): a round is computed after this many usable samples.
    Stream {
        /// How many.
        samples: u32,
    },
}
