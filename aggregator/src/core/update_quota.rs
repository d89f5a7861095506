//! Update quota: limits how many updates of one device are examined in one round. Nothing else slows down a
//! device that sends without pause.

use std::collections::BTreeMap;

use fedspan_protocol::message::RoundId;

use fedspan_engine::{DeviceId, OpenRound};

/// Updates received from one device. Those for the open round are counted apart: a device that was cut off for
/// stale ones reconnects and may still answer the round.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// Updates for the open round.
    open: u32,
    /// Updates for other rounds, and updates that were not decoded.
    other: u32,
}

/// Updates received since the last round was opened.
#[derive(Debug)]
pub(super) struct UpdateQuota {
    /// Updates of each kind that are examined.
    pub most: u32,
    sent: BTreeMap<DeviceId, Sent>,
    /// Round that the counts belong to.
    counted_in: Option<RoundId>,
}

impl UpdateQuota {
    pub(super) fn new(most: u32) -> Self {
        Self { most, sent: BTreeMap::new(), counted_in: None }
    }

    /// Resets the counts if another round is open.
    pub(super) fn reset_for_round(&mut self, open: Option<RoundId>) {
        if open.is_some() && open != self.counted_in {
            self.counted_in = open;
            self.sent.clear();
        }
    }

    /// Resets the count of a device.
    pub(super) fn reset_device(&mut self, device: DeviceId) {
        self.sent.remove(&device);
    }

    /// Counts an update of a device, on any of its connections, and returns true if it exceeds the quota.
    pub(super) fn is_over(
        &mut self,
        device: DeviceId,
        id: RoundId,
        is_read: bool,
        open: Option<&OpenRound>,
    ) -> bool {
        let open = open.filter(|round| round.id_for(device) == id);
        let sent = self.sent.entry(device).or_default();
        let others = match (is_read, open) {
            (true, Some(_)) => {
                sent.open = sent.open.saturating_add(1);
                false
            }
            // The update was sent before the round was opened on this connection, and will be sent again. A
            // network that delays traffic delivers many of these at once.
            (false, Some(round)) if round.awaits(device) => false,
            _ => {
                sent.other = sent.other.saturating_add(1);
                sent.other > self.most
            }
        };
        others || sent.open > self.most
    }
}
