//! Effects of events: actions that the caller must carry out, and records of the changes of state.
//!
//! The engine emits a record wherever its state changes. A server makes the records durable before it carries
//! out the actions of the same event; [`Engine::replay`](super::Engine::replay) restores an engine from the
//! records. Callers that persist nothing pass a `Vec<Action>`, for which no records are created.

use fedspan_protocol::message::{Ack, Decline, RoundId};
use serde::{Deserialize, Serialize};

use super::{Action, Checkpoint, DeadlineState, Failure, Phase, RoundRecord};
use crate::privacy::Account;
use crate::types::{DeviceId, Millis, Update};

/// Record of one change in a campaign.
///
/// After a restart the state is restored from the last checkpoint, from the records after it of the kinds
/// `Counted`, `Excluded`, `Reinvited`, `Renumbered` and `Deadline`, and from the last `Account` and the last
/// `Missed` of each device. The other kinds are for logs.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A device was sent the acknowledgement of its update.
    Answered(DeviceId, Ack),
    /// A device that the open round waited for has declined it.
    Declined(DeviceId, Decline),
    /// An update has counted in the open round. The id is the first id of the round.
    Counted(RoundId, DeviceId, CountedUpdate),
    /// A device was excluded from the open round, because it declined or its update was rejected.
    Excluded(DeviceId),
    /// An excluded device was invited to the open round again.
    Reinvited(DeviceId),
    /// The open round continues under another id for all excluded devices. Counted updates stay counted.
    Renumbered(Box<RoundOpening>),
    /// The deadline of the open round has changed, or the round invites every device that joins from now on.
    Deadline(DeadlineState),
    /// The privacy account of a device has changed.
    Account(DeviceId, Account),
    /// The number of deadlines that a device has missed in a row has changed.
    Missed(MissedDeadlines),
    /// The deadline of the open round has passed. Only if missed deadlines count
    /// ([`Settings::patience`](super::Settings::patience)).
    DeadlinePassed(RoundId),
    /// A round has closed, and its updates are part of the model. An event commits at most one round, so this
    /// model is the model of the engine after the event.
    Committed(Box<RoundRecord>),
    /// A round has been opened.
    Opened(Box<RoundOpening>),
    /// Checkpoint to restore after a restart. It replaces all earlier records of updates, exclusions, ids and
    /// deadlines.
    Checkpoint(Checkpoint),
    /// The campaign has failed. The other records of the same event, except accounts, must not be kept, so
    /// that a restart can retry from the state before the event.
    Failed(Failure),
}

/// Update that has counted in a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountedUpdate {
    /// Number of updates that counted in the round before this update.
    pub order: u32,
    /// Time of arrival.
    pub at: Millis,
    /// The update.
    pub update: Update,
}

/// Number of deadlines that a device has missed in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedDeadlines {
    /// Id of the round that was last opened.
    pub round: RoundId,
    /// The device.
    pub device: DeviceId,
    /// Number of deadlines; 0 after an answer.
    pub missed: u32,
    /// Whether rounds wait for the device from now on, if this has changed.
    pub awaited: Option<bool>,
}

/// Opening of a round, or its continuation under another id.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundOpening {
    /// Id of the round.
    pub id: RoundId,
    /// Previous id, if the round continues under another id.
    pub continues: Option<RoundId>,
    /// Phase of the round, with its number.
    pub phase: Phase,
    /// Time at which the round opened, under its first id.
    pub opened_at: Millis,
    /// Number of updates that completes the round.
    pub target: usize,
    /// Number of samples that completes the round with fewer updates, if the policy counts samples.
    pub sample_target: Option<u64>,
    /// Invited devices, ascending.
    pub cohort: Vec<DeviceId>,
}

/// Receiver of the effects of events.
pub trait Effects {
    /// Takes the next action.
    fn act(&mut self, action: Action);

    /// Whether records are kept. If not, the engine creates no records.
    fn keeps_records(&self) -> bool {
        false
    }

    /// Takes the next record.
    fn record(&mut self, record: Record) {
        drop(record);
    }

    /// Takes an update that the engine does not need any more, whose memory a later one may use.
    fn reuse(&mut self, update: Update) {
        drop(update);
    }
}

/// Keeps the actions alone, for callers that persist nothing.
impl Effects for Vec<Action> {
    fn act(&mut self, action: Action) {
        self.push(action);
    }
}

/// Actions of an event, and the records that must be durable before the actions are carried out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedEffects {
    /// Actions, in order.
    pub actions: Vec<Action>,
    /// Records, in order.
    pub records: Vec<Record>,
}

impl Effects for RecordedEffects {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn keeps_records(&self) -> bool {
        true
    }

    fn record(&mut self, record: Record) {
        self.records.push(record);
    }
}
