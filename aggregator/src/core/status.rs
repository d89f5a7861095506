//! Status of a server: progress of the campaign and a counter for every kind of event. The command `status`
//! prints it as JSON.

use super::PacketStatus;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{DisconnectReason, PrivacyStatus};
use crate::connection::Traffic;
use fedspan_engine::{Counters, DeviceId};

/// Phase of a campaign whose rounds are finished.
pub const FINISHED_PHASE: &str = "finished";
/// Phase of a campaign that cannot continue.
pub const FAILED_PHASE: &str = "failed";
/// Largest number of devices that [`Status::missing`] lists.
pub const MISSING_LISTED: usize = 16;

/// Status of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Phase of the campaign: "waiting", "start", "training", "scoring ridges", "fitting heads", "finished"
    /// or "failed".
    pub phase: String,
    /// Number of committed training rounds.
    pub round: u32,
    /// Number of training rounds in the campaign.
    pub rounds: u32,
    /// Number of devices that have ever joined.
    pub devices: usize,
    /// Number of connected devices.
    pub connected: usize,
    /// Number of updates counted in the open round.
    pub answers: usize,
    /// Number of updates that complete the open round.
    pub target: usize,
    /// Devices that the open round still waits for, if there are at most 16; absent otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<DeviceId>,
    /// Update counters of the engine.
    pub updates: Counters,
    /// Whether the store cannot be written, for example because the disk is full. No update is acknowledged
    /// during such a write stall.
    pub stalled: bool,
    /// Number of write stalls.
    pub stalls: u64,
    /// Number of journal lines that could not be written.
    pub journal_lost: u64,
    /// Counters of connections.
    pub connections: ConnectionCounters,
    /// Counters of packets; absent if the server does not listen for packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketStatus>,
    /// Conditions of the space in which the aggregation rule was measured that the last training round does not
    /// meet; absent if it meets all, or if nothing is promised for the rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<String>,
    /// Devices that rounds do not wait for until they answer, because they have missed `[rounds] patience`
    /// deadlines in a row; absent if there are none.
    #[serde(skip_serializing_if = "is_empty", serialize_with = "serialize_devices")]
    pub not_awaited: Arc<Vec<DeviceId>>,
    /// Connected devices that wait for the end of training, because they are held out of it (`[devices] held_out`); absent if
    /// there are none.
    #[serde(skip_serializing_if = "is_empty", serialize_with = "serialize_devices")]
    pub held_out: Arc<Vec<DeviceId>>,
    /// Longest time in seconds for which a device regularly stays away; absent if no device has come back twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub away_s: Option<u64>,
    /// Privacy loss of the devices as of the last closed round; absent if no device adds noise.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_shared")]
    pub privacy: Option<Arc<PrivacyStatus>>,
}

impl Status {
    /// True if the campaign is finished or has failed. New devices may still fit their heads then.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.phase == FINISHED_PHASE || self.phase == FAILED_PHASE
    }

    /// Last line of `watch`: how the campaign has ended.
    #[must_use]
    pub fn end_line(&self) -> String {
        let Self { phase, round, rounds, updates, .. } = self;
        serde_json::json!({
            "phase": phase, "round": round, "of": rounds, "counted": updates.counted, "rejected": updates.rejected(),
        })
        .to_string()
    }
}

/// Returns true if there are no devices.
fn is_empty(devices: &Arc<Vec<DeviceId>>) -> bool {
    devices.is_empty()
}

/// Serialises shared devices.
fn serialize_devices<S: Serializer>(devices: &Arc<Vec<DeviceId>>, serializer: S) -> Result<S::Ok, S::Error> {
    devices.as_slice().serialize(serializer)
}

/// Serialises a shared privacy status.
fn serialize_shared<S: Serializer>(
    privacy: &Option<Arc<PrivacyStatus>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    privacy.as_deref().serialize(serializer)
}

/// Counters of connections and their traffic. The end of a connection increments exactly one counter, that of
/// the reason for the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionCounters {
    /// Devices that were welcomed.
    pub welcomed: u64,
    /// Hellos repeated on the same connection: the device had restarted, or its welcome was lost.
    pub welcomed_again: u64,
    /// Connections closed after a refused hello.
    pub refused: u64,
    /// Admissible devices that were turned away with a retry delay because no connection slot was free.
    pub turned_away: u64,
    /// Unauthenticated connections that were evicted to make room for newer ones.
    pub evicted: u64,
    /// Connections closed immediately after they were accepted, because too many evicted connections were
    /// still closing.
    pub dropped: u64,
    /// Failed accepts.
    pub accept_errors: u64,
    /// Connections closed by the remote end.
    pub closed: u64,
    /// Connections closed because no hello arrived in time.
    pub no_hello: u64,
    /// Connections closed by the idle timeout.
    pub idle: u64,
    /// Connections closed by the frame timeout.
    pub slow: u64,
    /// Connections closed for too many protocol errors or hellos.
    pub flood: u64,
    /// Connections closed because the device's key was revoked or replaced.
    pub revoked: u64,
    /// Connections ended by the server.
    pub ended: u64,
    /// Messages discarded because their key was revoked or replaced while they were in the core's inbox.
    pub revoked_messages: u64,
    /// Devices disconnected because they exceeded the update quota.
    pub over_quota: u64,
    /// Devices disconnected because their command queue was full.
    pub congested: u64,
    /// Messages that the protocol does not allow in the state of the connection.
    pub faults: u64,
    /// Messages that did not fit the device's frames.
    pub unsent: u64,
    /// Replies dropped because too many were waiting for the device to read them.
    pub unheeded: u64,
    /// Copies of an update that arrived during a write stall and got no acknowledgement of their own.
    pub answered_already: u64,
    /// Rounds sent again because they were not answered.
    pub reopened: u64,
    /// Final heads requested with a fixed ridge, from devices that cannot choose one.
    pub unchosen_ridges: u64,
    /// Repeated chunks, chunks of finished updates, and messages of replaced connections.
    pub stale: u64,
    /// Frames dropped: too long, invalid COBS, wrong checksum, or unknown header.
    pub dropped_frames: u64,
    /// Sealed frames received a second time.
    pub replayed_frames: u64,
    /// Sealed frames that failed authentication.
    pub forged_frames: u64,
    /// Unsealed frames received where sealing is required.
    pub unsealed_frames: u64,
    /// Bytes received from devices after their hello. The sum over all connections is updated with every peer
    /// event.
    pub bytes_up: u64,
    /// Bytes sent to devices after their hello.
    pub bytes_down: u64,
}

impl ConnectionCounters {
    /// Counts a connection that has ended.
    pub(super) fn count_end(&mut self, reason: DisconnectReason) {
        let counter = match reason {
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

    /// Adds the traffic of a peer event.
    pub(super) fn add_traffic(&mut self, traffic: &Traffic) {
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
