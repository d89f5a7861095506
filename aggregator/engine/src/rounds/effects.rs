//! Effects of events: actions to carry out, and records of what happened.
//!
//! The engine emits a record in every place in which its state changes. A server makes the records durable before it carries
//! out the actions of the same events; [`Engine::replay`](super::Engine::replay) restores an engine from them.
//! Callers that persist nothing pass a `Vec<Action>`, for which no record is made.

use fedspan_protocol::message::{Ack, Decline, RoundId};
use serde::{Deserialize, Serialize};

use super::{Action, Checkpoint, DeadlineState, Failure, Phase, RoundRecord};
use crate::privacy::Account;
use crate::types::{DeviceId, Millis, Update};

/// Record of one thing that happened in a campaign.
///
/// After a restart the state follows from the last checkpoint and the records after it of the kinds `Counted`,
/// `Excluded`, `Reinvited`, `Renumbered` and `Deadline`, and from the last `Account` of each device. The other
/// kinds are for logs.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A device has been sent an answer to its update.
    Answered(DeviceId, Ack),
    /// A device that the open round waited for has declined it.
    Declined(DeviceId, Decline),
    /// An update has counted in the open round, whose first id this is.
    Counted(RoundId, DeviceId, CountedUpdate),
    /// A device will not answer the open round: it declined, or its update was rejected.
    Excluded(DeviceId),
    /// A device that would not answer the open round has been invited to it again.
    Reinvited(DeviceId),
    /// The open round has continued under another id, for all excluded devices; counted updates stay counted.
    Renumbered(Box<RoundOpening>),
    /// The deadline of the open round has changed, or every device that joins is invited to it from now on.
    Deadline(DeadlineState),
    /// The privacy account of a device has changed.
    Account(DeviceId, Account),
    /// A round has closed and its updates are part of the model, which is the engine's when the event has been
    /// handled: an event commits at most one round.
    Committed(Box<RoundRecord>),
    /// A round has been opened.
    Opened(Box<RoundOpening>),
    /// State to restore after a restart. It replaces all earlier records of updates, exclusions, ids and
    /// deadlines.
    Checkpoint(Checkpoint),
    /// The campaign has failed. The other records of the same event, except accounts, must not be kept: a
    /// restart may try again from the state before.
    Failed(Failure),
}

/// Update that has counted in a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountedUpdate {
    /// Number of updates counted in the round before it.
    pub order: u32,
    /// Time of arrival.
    pub at: Millis,
    /// Update itself.
    pub update: Update,
}

/// Opening of a round, or its continuation under another id.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundOpening {
    /// Id of the round.
    pub id: RoundId,
    /// Previous id of a round that has continued under another id.
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

    /// Whether records are kept. The engine makes none otherwise.
    fn keeps_records(&self) -> bool {
        false
    }

    /// Takes the next record.
    fn record(&mut self, record: Record) {
        drop(record);
    }
}

/// Actions alone, for callers that persist nothing.
impl Effects for Vec<Action> {
    fn act(&mut self, action: Action) {
        self.push(action);
    }
}

/// Actions, and the records that must be durable before the actions are carried out.
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
