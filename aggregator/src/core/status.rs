//! What `status` prints: where the campaign is, and a counter for everything that happened.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{DisconnectReason, PrivacyStatus};
use crate::connection::Traffic;
use fedspan_engine::Counters;

/// What `status` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// "waiting", "start", "training", "fitting heads", "finished" or "failed".
    pub phase: String,
    /// Rounds finished and to do.
    pub round: u32,
    /// Rounds to do.
    pub rounds: u32,
    /// Devices that ever joined.
    pub devices: usize,
    /// Devices connected now.
    pub connected: usize,
    /// Answers of the open round, and how many complete it.
    pub answers: usize,
    /// How many complete the open round.
    pub target: usize,
    /// Everything counted.
    pub updates: Counters,
    /// What has happened cannot be written just now, as when the disk is full: nothing is acknowledged meanwhile.
    pub stalled: bool,
    /// How often that has begun.
    pub stalls: u64,
    /// Lines of the journal that could not be written.
    pub journal_lost: u64,
    /// Everything that happened to connections.
    pub connections: ConnectionCounters,
    /// What devices have spent of their privacy budgets, as of the last round that closed; absent where no device adds
    /// noise.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shared")]
    pub privacy: Option<Arc<PrivacyStatus>>,
}

fn shared<S: Serializer>(privacy: &Option<Arc<PrivacyStatus>>, serializer: S) -> Result<S::Ok, S::Error> {
    privacy.as_deref().serialize(serializer)
}

/// Every connection that ended has a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionCounters {
    /// Devices that were welcomed.
    pub welcomed: u64,
    /// Hellos of devices that were known on their connection: they had restarted, or had missed their welcome.
    pub welcomed_again: u64,
    /// Hellos that were refused.
    pub refused: u64,
    /// Devices for which there was no place, told to come back later.
    pub turned_away: u64,
    /// Connections that had proved nothing yet, closed to make room for newer ones.
    pub evicted: u64,
    /// Connections closed as they came: too many that were making room were not closed yet.
    pub dropped: u64,
    /// Times that the system did not hand over a connection.
    pub accept_errors: u64,
    /// Closed by the peer.
    pub closed: u64,
    /// No hello in time.
    pub no_hello: u64,
    /// Silent for too long.
    pub idle: u64,
    /// A frame took too long.
    pub slow: u64,
    /// Nonsense without end.
    pub flood: u64,
    /// Devices whose key was revoked or replaced.
    pub revoked: u64,
    /// Ended by this side.
    pub ended: u64,
    /// Messages of devices whose key was revoked or replaced before the host took them from its inbox. Nothing of them
    /// counts.
    pub revoked_messages: u64,
    /// Devices that sent more updates in a round than are looked at.
    pub over_quota: u64,
    /// Devices that did not take what was sent to them.
    pub congested: u64,
    /// Messages that had no place.
    pub faults: u64,
    /// Messages that did not fit a device's frames.
    pub unsent: u64,
    /// Answers that devices did not get, as they did not take those that waited for them.
    pub unheeded: u64,
    /// Updates that came again before the first was answered, as the disk was waited for: they were answered with it.
    pub answered_already: u64,
    /// Rounds that were sent to a device again because nothing had come that answered them.
    pub reopened: u64,
    /// Heads that were asked of devices which choose no ridge, with the ridge that the fleet has chosen or that the campaign says.
    pub unchosen_ridges: u64,
    /// Chunks that had come before or were of updates that were over, and messages of connections that had been
    /// replaced.
    pub stale: u64,
    /// Frames dropped: too long, not COBS, wrong check, unknown header.
    pub dropped_frames: u64,
    /// Sealed frames that came a second time.
    pub replayed_frames: u64,
    /// Sealed frames that nobody with the right key has sealed.
    pub forged_frames: u64,
    /// Frames that were not sealed and should have been.
    pub unsealed_frames: u64,
    /// Bytes received from devices after their hello. These and the other sums over connections are brought
    /// up to date with every message of a device, and where it makes noise.
    pub bytes_up: u64,
    /// Bytes sent to them.
    pub bytes_down: u64,
}

impl ConnectionCounters {
    /// Counts a connection that has ended.
    pub(super) fn ended(&mut self, gone: DisconnectReason) {
        let counter = match gone {
            DisconnectReason::Closed => &mut self.closed,
            DisconnectReason::NoHello => &mut self.no_hello,
            DisconnectReason::Evicted => &mut self.evicted,
            DisconnectReason::Idle => &mut self.idle,
            DisconnectReason::Slow => &mut self.slow,
            DisconnectReason::Flood => &mut self.flood,
            DisconnectReason::Refused => &mut self.refused,
            DisconnectReason::Revoked => &mut self.revoked,
            DisconnectReason::Ended => &mut self.ended,
        };
        *counter += 1;
    }

    /// Adds what has passed over a connection since it was last added.
    pub(super) fn passed(&mut self, traffic: &Traffic) {
        self.faults += u64::from(traffic.faults);
        self.unsent += u64::from(traffic.unsent);
        self.unheeded += u64::from(traffic.unheeded);
        self.reopened += u64::from(traffic.reopened);
        self.unchosen_ridges += u64::from(traffic.unchosen);
        self.stale += u64::from(traffic.stale);
        self.dropped_frames += u64::from(traffic.dropped());
        self.replayed_frames += u64::from(traffic.replayed);
        self.forged_frames += u64::from(traffic.forged);
        self.unsealed_frames += u64::from(traffic.unsealed);
        self.bytes_up += traffic.up;
        self.bytes_down += traffic.down;
    }
}
