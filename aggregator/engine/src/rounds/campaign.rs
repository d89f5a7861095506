//! Public types of a campaign: settings, events, actions, failures, phases, records of rounds, and counters.

use std::num::NonZeroU32;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, HeadSolve, Rejection, RoundId};
use serde::{Deserialize, Serialize};

use super::broadcast::RoundBroadcast;
use crate::aggregate::SampleCap;
use crate::linalg::RankDeficient;
use crate::types::{DeviceId, Millis, Update};

/// Settings of a campaign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Number of devices that must be present before the first round opens, if it is more than
    /// [`Self::min_count`]. A device is present if it is connected, or has been disconnected for less than
    /// [`Self::absence`], so that a fleet whose devices are never awake together is complete as well.
    pub fleet_size: usize,
    /// Number of the fleet's first device, for algorithms that form groups of devices by their numbers: 0 in simulations, 1 on servers, so
    /// that both form the same groups.
    pub first_device: u64,
    /// Number of training rounds.
    pub rounds: u32,
    /// Head solver of the final heads.
    pub final_head: HeadSolve,
    /// Time after which a round closes even if updates are missing.
    pub deadline: Option<Millis>,
    /// Shortest time between the openings of two rounds of the start or of training; `None` to open a round
    /// as soon as the one before is closed.
    pub every: Option<Millis>,
    /// Minimum number of updates with which a round of the start or of training closes. Such a round opens
    /// only if as many devices are present. If the participation policy waits for fewer, the round invites
    /// every present device and waits for this number. If every invited device has answered, or the deadline
    /// has passed, and fewer updates have counted, the engine first invites every other present device, and
    /// then invites the devices again that declined or were rejected. Counted updates stay counted.
    pub min_count: usize,
    /// Largest Frobenius norm of an update.
    pub norm_bound: f32,
    /// Bounds on the sample counts that devices declare, for weights and for participation.
    pub samples: SampleCap,
    /// Time after which a disconnected device counts as absent: it is neither invited nor waited for until it
    /// reconnects.
    pub absence: Millis,
    /// Delay before a round with too few updates is retried. If no update has counted, the round is repeated
    /// under a new id; otherwise the devices that declined or were rejected are invited again. With `None`
    /// the retry is immediate, and the campaign fails after three attempts in a row without a new update.
    pub retry_delay: Option<Millis>,
    /// Number of deadlines that a device may miss in a row. Rounds do not wait for a device that has missed as
    /// many, until it has answered in time. `None` to wait for every device until every deadline. Without
    /// effect if rounds have no deadline.
    pub patience: Option<NonZeroU32>,
    /// Change of the representation in a round below which training ends: the sine of the largest principal
    /// angle between the representations before and after the round.
    pub stop_change: Option<f64>,
}

/// Input of [`Engine::handle`](super::Engine::handle).
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The hello of a device was accepted, for the first time or after a reconnection.
    Joined(DeviceId),
    /// A connected device has greeted again on its connection: it has restarted, or has not received the
    /// answer to its hello.
    Greeted(DeviceId),
    /// The connection of a device has ended.
    Left(DeviceId),
    /// A device may not join any more, for example because its keys were revoked. No round waits for it.
    Removed(DeviceId),
    /// A device has sent an update.
    Update(DeviceId, Update),
    /// A device has sent an update for a round that was not open on its connection, so the connection
    /// discarded the tensors.
    Unread(DeviceId, RoundId),
    /// A device has declined a round.
    Declined(DeviceId, Decline),
    /// The time that [`Engine::wake`](super::Engine::wake) returned has come.
    Tick,
    /// All counted updates of the open round have been replayed after a restart.
    Resumed,
}

/// Output of [`Engine::handle`](super::Engine::handle). The caller carries out actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sends the broadcast of a round to a device.
    Open(DeviceId, Arc<RoundBroadcast>),
    /// Sends an acknowledgement to a device.
    Acknowledge(DeviceId, Ack),
    /// Informs a device that a round is over.
    Close(DeviceId, RoundId),
    /// Informs a device that no further round opens before this time has passed, so that the device may
    /// disconnect and sleep.
    NextRound(DeviceId, Millis),
    /// Commits a finished round, which must be durable before any later action is carried out.
    Commit(Box<RoundRecord>),
    /// Reports that all rounds are finished and the known devices have fitted their heads.
    Finished,
    /// Reports that rounds do not wait for a device any more: it has missed [`Settings::patience`] deadlines in
    /// a row.
    NotAwaited(DeviceId),
    /// Reports that rounds wait for a device again.
    Awaited(DeviceId),
    /// Reports that the campaign has failed.
    Failed(Failure),
}

/// Reason for the failure of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// No update of a round counted, and every invited device has answered.
    #[error("no update counted in round {round}; device {device}: {reason}")]
    NoUpdates {
        /// Number of the round on the wire.
        round: u32,
        /// Last device that declined, was rejected or became absent.
        device: DeviceId,
        /// Reason for which the update of that device did not count.
        reason: NotCounted,
    },
    /// Some updates counted, but fewer than the minimum, and every invited device has answered.
    #[error(
        "round {round} has {counted} of the {min_count} updates that close it, and no other device can answer; \
         device {device}: {reason}"
    )]
    TooFew {
        /// Number of the round on the wire.
        round: u32,
        /// Number of updates that counted.
        counted: usize,
        /// Minimum number of updates that close the round.
        min_count: usize,
        /// Last device that declined, was rejected or became absent.
        device: DeviceId,
        /// Reason for which the update of that device did not count.
        reason: NotCounted,
    },
    /// The model cannot be encoded for the devices.
    #[error("round {round} cannot be sent to the devices: {error}")]
    Unsendable {
        /// Number of the round on the wire.
        round: u32,
        /// Error of the encoder.
        error: fedspan_protocol::Error,
    },
    /// The combined updates have no representation of full rank.
    #[error("round {round}: {error}")]
    Representation {
        /// Number of the round on the wire.
        round: u32,
        /// Error of the factorisation.
        error: RankDeficient,
    },
}

/// Reason for which an invited device has no counted update in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotCounted {
    /// The device declined the round.
    Declined(DeclineReason),
    /// The engine rejected the update.
    Rejected(Rejection),
    /// The device has been disconnected for longer than [`Settings::absence`].
    Absent,
    /// The device has missed [`Settings::patience`] deadlines in a row.
    Silent,
}

impl std::fmt::Display for NotCounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Declined(reason) => write!(f, "declined, {reason}"),
            Self::Rejected(reason) => write!(f, "rejected, {reason}"),
            Self::Absent => f.write_str("disconnected for too long"),
            Self::Silent => f.write_str("missed too many deadlines"),
        }
    }
}

/// Phase of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Devices are joining; no round has opened.
    Waiting,
    /// A round of the start, which computes the initial representation (or the scale of the samples) from
    /// data; counted from 1.
    Start(u32),
    /// A training round, counted from 1.
    Train(u32),
    /// All devices fit their heads on the final representation.
    FitHead,
    /// The campaign is finished; new devices may still fit their heads.
    Finished,
    /// The campaign has failed.
    Failed,
    /// The round between training and final heads, in which devices score candidate ridges for the final
    /// heads.
    RidgeScores,
}

/// Record of a finished round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRecord {
    /// Round id on the wire.
    pub id: RoundId,
    /// Phase of the round, with its number.
    pub phase: Phase,
    /// Number of updates that the round waited for, if it closed with fewer, either at the deadline or
    /// because every invited device that it waited for had answered.
    pub short_of: Option<usize>,
    /// Invited devices, ascending.
    pub cohort: Vec<DeviceId>,
    /// Devices whose updates counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Number of updates rejected while the round was open.
    pub rejected: u32,
    /// Time at which the round opened.
    pub opened_at: Millis,
    /// Time at which the round closed.
    pub closed_at: Millis,
    /// Change of the representation (sine of the largest principal angle), for training rounds if
    /// [`Settings::stop_change`] is set.
    pub change: Option<f64>,
    /// Relative error of averaging the factors of a product instead of the product
    /// ([`Algorithm::interference`](crate::algorithm::Algorithm::interference)).
    pub interference: Option<f64>,
    /// Whether training ends with this round, because it is the last training round or changed the
    /// representation by less than [`Settings::stop_change`].
    pub ends_training: bool,
}

/// Counters of updates by outcome, and of rounds that were repeated, extended or closed short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Updates that counted.
    pub counted: u64,
    /// Updates that were sent again after they had counted.
    pub duplicate: u64,
    /// Updates for rounds that had closed.
    pub late: u64,
    /// Updates from devices that were not invited.
    pub not_asked: u64,
    /// Updates for rounds that have not opened yet.
    pub wrong_round: u64,
    /// Updates whose tensors differ from the request in shape, role or encoding, are rank
    /// deficient, or are gradients of a higher rank than the number of outputs.
    pub wrong_tensors: u64,
    /// Updates with a value that is not finite.
    pub non_finite: u64,
    /// Updates whose norm is above the bound.
    pub norm_over_bound: u64,
    /// Updates that arrived before the round was opened on the device's new connection. The device sends
    /// these updates again.
    pub unread: u64,
    /// Updates that differ from an update of the same device that has already counted in the same round.
    pub content_changed: u64,
    /// Updates computed from no sample.
    pub no_samples: u64,
    /// Rounds declined by devices.
    pub declined: u64,
    /// Deadlines extended because too few updates had counted.
    pub extended: u64,
    /// Rounds repeated because no update counted, or because they were [rank deficient](Self::ruined).
    pub repeated: u64,
    /// Rounds whose combined updates had no representation of full rank.
    pub ruined: u64,
    /// Times that the open round continued under a new id because devices had lost their cached updates.
    pub renamed: u64,
    /// Invitations sent again to devices that had declined the round or were rejected in it.
    pub asked_again: u64,
    /// Devices that a round stopped waiting for because they had been disconnected too long.
    pub absent: u64,
    /// Rounds that closed with fewer updates than their target.
    pub short: u64,
    /// Deadlines missed by devices, if the campaign counts them ([`Settings::patience`]).
    pub missed: u64,
    /// Samples that devices reported as skipped.
    pub skipped_samples: u64,
    /// Updates whose declared sample count was cut to the maximum that any device may declare.
    pub capped_samples: u64,
    /// Updates whose weight was cut because the declared sample count was too large compared with the other
    /// devices of the round.
    pub capped_to_others: u64,
}

impl Counters {
    /// Counts the outcome of an update.
    pub(super) fn count(&mut self, outcome: AckOutcome) {
        let counter = match outcome {
            AckOutcome::Counted => &mut self.counted,
            AckOutcome::Duplicate => &mut self.duplicate,
            AckOutcome::Late => &mut self.late,
            AckOutcome::Rejected(rejection) => match rejection {
                Rejection::NotAsked => &mut self.not_asked,
                Rejection::WrongRound => &mut self.wrong_round,
                Rejection::NonFinite => &mut self.non_finite,
                Rejection::NormOverBound { .. } => &mut self.norm_over_bound,
                Rejection::ContentChanged => &mut self.content_changed,
                Rejection::NoSamples => &mut self.no_samples,
                _ => &mut self.wrong_tensors,
            },
            _ => &mut self.wrong_tensors,
        };
        *counter += 1;
    }

    /// Number of rejected updates, for all reasons.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.not_asked
            + self.wrong_round
            + self.wrong_tensors
            + self.non_finite
            + self.norm_over_bound
            + self.content_changed
            + self.no_samples
    }
}
