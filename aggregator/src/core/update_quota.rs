//! Update quota: limits how many updates of one device are examined in one round. No other mechanism slows
//! down a device that sends updates without pause.

use std::collections::HashMap;

use fedspan_protocol::message::RoundId;

use fedspan_engine::{DeviceId, OpenRound};

/// Numbers of updates received from one device. Updates for the open round have a separate count, so that a
/// device that was disconnected for stale updates can reconnect and answer the open round.
#[derive(Clone, Copy, Debug, Default)]
struct SentUpdates {
    /// Number of updates for the open round.
    open: u32,
    /// Number of updates for other rounds and of updates that were not decoded.
    other: u32,
}

/// Update quota of all devices. The counts are reset when a round is opened.
#[derive(Debug)]
pub(super) struct UpdateQuota {
    /// Largest number of updates of each kind that are examined.
    pub max_updates: u32,
    sent: HashMap<DeviceId, SentUpdates>,
    /// Round that the counts belong to.
    counted_in: Option<RoundId>,
}

impl UpdateQuota {
    /// Creates a quota of `max_updates` updates of each kind.
    pub(super) fn new(max_updates: u32) -> Self {
        Self { max_updates, sent: HashMap::new(), counted_in: None }
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

    /// Counts an update of a device, over all of its connections, and returns true if the update exceeds the
    /// quota.
    pub(super) fn is_over(
        &mut self,
        device: DeviceId,
        id: RoundId,
        is_read: bool,
        open: Option<&OpenRound>,
    ) -> bool {
        let open = open.filter(|round| round.id_for(device) == id);
        let sent = self.sent.entry(device).or_default();
        let exceeds_others = match (is_read, open) {
            (true, Some(_)) => {
                sent.open = sent.open.saturating_add(1);
                false
            }
            // The update was sent before the round was opened on this connection, and the device will send it
            // again. Such updates are not counted, because a network that delays traffic may deliver many of
            // them at once.
            (false, Some(round)) if round.may_answer(device) => false,
            _ => {
                sent.other = sent.other.saturating_add(1);
                sent.other > self.max_updates
            }
        };
        exceeds_others || sent.open > self.max_updates
    }
}
