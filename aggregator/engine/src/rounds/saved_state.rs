//! State of a campaign in a form that can be stored.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use super::Phase;
use crate::types::{DeviceId, Millis};

/// State of a campaign at a moment at which no update of the open round has counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the last opened round, the first one if the round was renamed.
    pub id: RoundId,
    /// Last finished phase: a round of the start or of training, or the scores of ridges. [`Phase::FitHead`]
    /// if training is over and devices score no ridges.
    pub done: Phase,
    /// Number of training rounds; fewer than configured if training ended early.
    pub rounds: u32,
    /// State of the algorithm (or of the start), followed by that of the participation policy, followed by
    /// the ridge scores once they are in. With an open round, the policy's state is the one from before the
    /// cohort was drawn, since restoring draws it again.
    pub state: Vec<f64>,
    /// The open round, if one is open; its id is [`Self::id`].
    pub open: Option<OpenRoundCheckpoint>,
}

/// Inputs from which an open round is rebuilt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRoundCheckpoint {
    /// Time at which the round opened.
    pub opened_at: Millis,
    /// Devices present at that time, ascending.
    pub fleet: Vec<DeviceId>,
}

/// Deadline of an open round and whether it invites every device, as both can change after the round has
/// opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineState {
    /// Time at which the round closes, if rounds have deadlines.
    pub deadline: Option<Millis>,
    /// Whether every device that joins is invited.
    pub asking_everyone: bool,
}

impl Checkpoint {
    /// Whether training has ended.
    #[must_use]
    pub fn ends_training(&self) -> bool {
        match self.done {
            Phase::Train(done) => done >= self.rounds,
            Phase::RidgeScores | Phase::FitHead => true,
            Phase::Waiting | Phase::Start(_) | Phase::Finished | Phase::Failed => false,
        }
    }
}
