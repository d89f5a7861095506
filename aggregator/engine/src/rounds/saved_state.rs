//! State of a campaign in the form in which it is stored.

use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use super::Phase;
use crate::types::{DeviceId, Millis};

/// State of a campaign at a moment when no update of the open round has counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the last opened round. If the round has several ids, this is the first.
    pub id: RoundId,
    /// Last finished phase: a round of the start or of training, or the round of ridge scores.
    /// [`Phase::FitHead`] if training is over and devices score no ridges.
    pub done: Phase,
    /// Number of training rounds; fewer than configured if training ended early.
    pub rounds: u32,
    /// State of the algorithm (or of the start), then of the participation policy, then the ridge scores if
    /// their round has closed. If a round is open, the state of the policy is from before the cohort was
    /// drawn, since a restart draws the cohort again.
    pub state: Vec<f64>,
    /// The open round, if any. Its id is [`Self::id`].
    pub open: Option<OpenRoundCheckpoint>,
}

/// Inputs from which an open round is rebuilt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRoundCheckpoint {
    /// Time at which the round opened.
    pub opened_at: Millis,
    /// Devices that were present when the round opened, ascending.
    pub fleet: Vec<DeviceId>,
}

/// Part of an open round's state that can change after its opening: the deadline, and whether every device is
/// invited. If no round is open, the deadline is the time at which the next round may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineState {
    /// Deadline of the round, if rounds have deadlines.
    pub deadline: Option<Millis>,
    /// Whether every device that joins is invited.
    pub asking_everyone: bool,
}

impl Checkpoint {
    /// Whether training has ended.
    #[must_use]
    pub fn ends_training(&self) -> bool {
        match self.done {
            Phase::Train(number) => number >= self.rounds,
            Phase::RidgeScores | Phase::FitHead => true,
            Phase::Waiting | Phase::Start(_) | Phase::Finished | Phase::Failed => false,
        }
    }
}
