//! Counters of the packets of all devices that send packets.

use std::sync::atomic::{AtomicU64, Ordering};

use fedspan_protocol::datagram::PacketCounters;
use serde::{Deserialize, Serialize};

/// Counters that the streams of packets share.
#[derive(Debug, Default)]
pub struct PacketTotals {
    frames: AtomicU64,
    repeated_fragments: AtomicU64,
    malformed: AtomicU64,
    incomplete: AtomicU64,
    dropped: AtomicU64,
}

impl PacketTotals {
    /// Adds what a stream has counted between two times.
    pub fn add(&self, before: PacketCounters, after: PacketCounters) {
        for (total, before, after) in [
            (&self.frames, before.frames, after.frames),
            (&self.repeated_fragments, before.repeated_fragments, after.repeated_fragments),
            (&self.malformed, before.malformed, after.malformed),
            (&self.incomplete, before.incomplete, after.incomplete),
        ] {
            let more = after.saturating_sub(before);
            if more > 0 {
                total.fetch_add(more.into(), Ordering::Relaxed);
            }
        }
    }

    /// Counts a packet that was dropped because too many packets or addresses were waiting.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current values.
    #[must_use]
    pub fn to_status(&self) -> PacketStatus {
        let value = |total: &AtomicU64| total.load(Ordering::Relaxed);
        PacketStatus {
            frames: value(&self.frames),
            repeated_fragments: value(&self.repeated_fragments),
            malformed: value(&self.malformed),
            incomplete: value(&self.incomplete),
            dropped: value(&self.dropped),
        }
    }
}

/// Values of [`PacketTotals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketStatus {
    /// Number of times that a frame was complete. A frame that the network repeats counts each time; under encryption
    /// the repetitions are counted as `replayed`, too.
    pub frames: u64,
    /// Fragments that had arrived before, of a frame that was incomplete.
    pub repeated_fragments: u64,
    /// Packets that are neither a frame nor a fragment.
    pub malformed: u64,
    /// Frames of which a part was missing when the next frame of the device began.
    pub incomplete: u64,
    /// Packets dropped because too many packets of their device, or too many new addresses, were waiting.
    pub dropped: u64,
}
