//! How many updates of a device are looked at in a round: nothing else would slow down one that sends without end.

use std::collections::BTreeMap;

use fedspan_protocol::message::RoundId;

use fedspan_engine::{DeviceId, OpenRound};

/// Updates of a device. Those for the open round count apart: who is cut off for the others comes back, and is to count.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// For the open round.
    open: u32,
    /// For others, and those that were not read.
    other: u32,
}

/// What devices have sent since the last round was opened.
#[derive(Debug)]
pub(super) struct UpdateQuota {
    /// How many of each kind are looked at.
    pub most: u32,
    sent: BTreeMap<DeviceId, Sent>,
    /// The number of the round that they are counted in.
    counted_in: Option<RoundId>,
}

impl UpdateQuota {
    pub(super) fn new(most: u32) -> Self {
        Self { most, sent: BTreeMap::new(), counted_in: None }
    }

    /// A round that is opened, again or not, has a quota of its own.
    pub(super) fn follow(&mut self, open: Option<RoundId>) {
        if open.is_some() && open != self.counted_in {
            self.counted_in = open;
            self.sent.clear();
        }
    }

    /// A device begins anew.
    pub(super) fn forget(&mut self, device: DeviceId) {
        self.sent.remove(&device);
    }

    /// Counts an update of a device, on whatever connection it comes. True: it is one too many.
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
            // It came before the round was opened on its connection, and will be sent again. A network that holds
            // everything back for a while delivers many of these at once.
            (false, Some(round)) if round.awaits(device) => false,
            _ => {
                sent.other = sent.other.saturating_add(1);
                sent.other > self.most
            }
        };
        others || sent.open > self.most
    }
}
