//! Settings of a session.

#[cfg(feature = "reports")]
pub use fedspan_protocol::message::{Firmware, ResetReason};

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
    /// Times of a device that sleeps between rounds; `None` to stay connected.
    pub sleep: Option<Sleep>,
    /// Times after which the session repeats a message, reconnects, or gives up a write.
    pub timers: Timers,
    /// Facts that the device reports on each connection and after every 64 rounds on it, with its counters; `None` to report nothing. A device with noise
    /// in its updates never reports, because its counters could reveal something about records.
    #[cfg(feature = "reports")]
    pub about: Option<About>,
    /// True if the link also delivers the server's beacons: frames for all devices, by which rounds open. The receive buffer must hold
    /// them. A lost beacon costs time only, because the server then opens the round on this device alone.
    #[cfg(feature = "beacons")]
    pub receives_beacons: bool,
    /// True if the device stores a key that its server sends ([`Store::save_key`](crate::store::Store::save_key)), and uses it from
    /// then on. Ignored without a key. A key that is stored is used whether this is true or not.
    #[cfg(feature = "key-rotation")]
    pub receives_keys: bool,
}

/// Facts about a device that only its firmware knows.
#[cfg(feature = "reports")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Version and build of the firmware.
    pub firmware: Firmware,
    /// Reason of the last reset, from the registers of the chip.
    pub reset: ResetReason,
}

/// Times in milliseconds after which a session repeats a message, reconnects, or gives up a write. A link on which a message
/// and its answer take longer than a second needs longer ones. 0 counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Time without progress after which a hello is repeated, or missing chunks are requested: 2,000.
    pub ask_again: u32,
    /// Time without an acknowledgement after which an update is sent again: 10,000.
    pub resend: u32,
    /// First delay of a reconnect, which doubles with each attempt: 500.
    pub reconnect: u32,
    /// Longest delay of a reconnect: 60,000.
    pub reconnect_max: u32,
    /// Longest time for which the link may accept no byte of a frame; the driver then ends the link: 10,000.
    pub write: u32,
}

impl Timers {
    /// Times for a serial line, or for TCP.
    pub const DEFAULT: Self =
        Self { ask_again: 2_000, resend: 10_000, reconnect: 500, reconnect_max: 60_000, write: 10_000 };
}

impl Default for Timers {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Times of a device that sleeps between rounds.
///
/// The session closes the link once the server has named a later time for the next round, after
/// [`rounds`](Self::rounds) rounds, if no round opens within [`wait`](Self::wait), or if the server has not answered a message
/// that was repeated three times ([`Timers::ask_again`], [`Timers::resend`]). The driver's
/// [`Closed::retry_at`](crate::link::Closed::retry_at) is then the time at which to wake: the time that the server has
/// named or, if it has named none, after [`time`](Self::time), as after a round that the device declines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// Number of rounds on one link, answered or declined, after which the session leaves; 0 counts as 1.
    pub rounds: u32,
    /// Longest time in milliseconds on a link, since the Welcome or since the last round, without a round. It must be longer than the
    /// server needs to open a round on this device, including the way there: a device that leaves earlier never trains
    /// ([`Counters::unasked`](super::Counters::unasked)).
    pub wait: u32,
    /// Time in milliseconds until the next connection if the server has named none. It does not apply to a server that
    /// cannot be reached or does not answer: [`Timers::reconnect_max`] is then the longest time between two attempts, a minute by default.
    pub time: u32,
}

impl Sleep {
    /// Returns the times of a device that wakes once in `time` milliseconds, takes part in one round, and waits two seconds
    /// for it.
    #[must_use]
    pub const fn once_in(time: u32) -> Self {
        Self { rounds: 1, wait: 2_000, time }
    }
}

impl Config {
    /// Returns the settings of a device with a replayable source and the default frame limit.
    #[must_use]
    pub const fn new(device: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a constant of 256")]
        let frame_limit = FRAME_LIMIT_DEFAULT as u16;
        Self {
            device,
            frame_limit,
            sampling: Sampling::Replay,
            leave_when_fitted: false,
            sleep: None,
            timers: Timers::DEFAULT,
            #[cfg(feature = "reports")]
            about: None,
            #[cfg(feature = "beacons")]
            receives_beacons: false,
            #[cfg(feature = "key-rotation")]
            receives_keys: false,
        }
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
    #[cfg(feature = "streaming")]
    Stream {
        /// Number of usable samples per round.
        samples: u32,
    },
}

impl Sampling {
    /// Returns the number of usable samples of a round if samples are streamed.
    pub(super) const fn streamed_samples(self) -> Option<u32> {
        match self {
            Self::Replay => None,
            #[cfg(feature = "streaming")]
            Self::Stream { samples } => Some(samples),
        }
    }
}
