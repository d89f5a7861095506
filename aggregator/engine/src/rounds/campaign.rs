//! The vocabulary of a campaign: its settings, what happens to it, what it asks for, what it counts.

use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, HeadSolve, Rejection, RoundId};
use serde::{Deserialize, Serialize};

use super::open_round::RoundBroadcast;
use crate::aggregate::SampleCap;
use crate::linalg::RankDeficient;
use crate::types::{DeviceId, Millis, Update};

/// How a campaign is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The first round opens when this many devices have joined.
    pub fleet_size: usize,
    /// Training rounds.
    pub rounds: u32,
    /// How devices fit their head at the end.
    pub final_head: HeadSolve,
    /// A round closes after this long even if answers are missing.
    pub deadline: Option<Millis>,
    /// Fewest answers that a round closes with when its deadline passes or nobody else can answer; never
    /// more than the participation rule waits for. With fewer, everybody else who is there is asked, then
    /// those again who declined; what has counted stays.
    pub min_count: usize,
    /// Largest Frobenius norm of an update.
    pub norm_bound: f32,
    /// What declared numbers of samples may count, as weights and for participation.
    pub samples: SampleCap,
    /// A device that has been gone for as long is neither asked nor waited for until it is back.
    pub absence: Millis,
    /// A round that too few can answer is tried again after this long, as often as it takes: repeated where
    /// nothing counted, otherwise by asking those again who declined. Without it at once, and when that
    /// has led to nothing three times in a row the campaign fails.
    pub patience: Option<Millis>,
    /// Training ends after a round in which the representation moved less than this: the sine of the
    /// largest principal angle between what it was and what it is.
    pub stop_change: Option<f64>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A device said hello (again).
    Joined(DeviceId),
    /// A device's connection is gone.
    Left(DeviceId),
    /// A device answered.
    Update(DeviceId, Update),
    /// A device sent an update for a round that was not open on its connection; nothing of it was read.
    Unread(DeviceId, RoundId),
    /// A device will not answer.
    Declined(DeviceId, Decline),
    /// The wake-up time has come.
    Tick,
    /// After a restart everything is counted again.
    Resumed,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a round on a device.
    Open(DeviceId, Arc<RoundBroadcast>),
    /// Acknowledge an update.
    Acknowledge(DeviceId, Ack),
    /// Tell a device that a round is over.
    Close(DeviceId, RoundId),
    /// Make a finished round durable before anything that follows is done.
    Commit(Box<RoundRecord>),
    /// All rounds are done and the known devices have fitted their heads.
    Finished,
    /// The campaign cannot go on.
    Failed(Failure),
}

/// Why a campaign cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// Nobody can answer a round.
    #[error("no update could be counted in round {round}; device {device}: {reason}")]
    NoUpdates {
        /// Which exchange.
        round: u32,
        /// The last device that declined, was rejected or is gone.
        device: DeviceId,
        /// Why that did not count.
        reason: NotCounted,
    },
    /// Some can answer a round, but fewer than make one.
    #[error(
        "round {round} has {counted} of the {min_count} updates that close it, and nobody else can answer; \
         device {device}: {reason}"
    )]
    TooFew {
        /// Which exchange.
        round: u32,
        /// Updates that counted.
        counted: usize,
        /// Fewest that close it.
        min_count: usize,
        /// The last device that declined, was rejected or is gone.
        device: DeviceId,
        /// Why that did not count.
        reason: NotCounted,
    },
    /// What is to be sent cannot be.
    #[error("round {round} cannot be sent to the devices: {error}")]
    Unsendable {
        /// Which exchange.
        round: u32,
        /// The encoding's own words.
        error: fedspan_protocol::Error,
    },
    /// No representation of full width is left.
    #[error("round {round}: {error}")]
    Representation {
        /// Which exchange.
        round: u32,
        /// The factorisation's own words.
        error: RankDeficient,
    },
}

/// Why a device's answer does not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotCounted {
    /// It declined.
    Declined(DeclineReason),
    /// Its update was rejected.
    Rejected(Rejection),
    /// It has been gone for too long.
    Absent,
}

impl std::fmt::Display for NotCounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Declined(reason) => write!(f, "declined, {reason}"),
            Self::Rejected(reason) => write!(f, "rejected, {reason}"),
            Self::Absent => f.write_str("gone for too long"),
        }
    }
}

/// What part of the campaign a round belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Devices are still joining.
    Waiting,
    /// The start learns from data; the exchange number within it, from 1.
    Start(u32),
    /// Training; the round number, from 1.
    Train(u32),
    /// All devices fit their heads on the final representation.
    FitHead,
    /// Done; new devices may still fit theirs.
    Finished,
    /// Stopped.
    Failed,
    /// After training and before the final heads: devices score ridges for these.
    RidgeScores,
}

/// A finished round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRecord {
    /// Its identity on the wire.
    pub id: RoundId,
    /// Start or training, and the number within that.
    pub phase: Phase,
    /// How many answers it waited for, if it closed with fewer: nobody else could answer, or the deadline passed.
    pub short_of: Option<usize>,
    /// Who was asked, ascending.
    pub cohort: Vec<DeviceId>,
    /// Who counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Updates rejected while it was open.
    pub rejected: u32,
    /// When it opened and closed.
    pub opened_at: Millis,
    /// When it closed.
    pub closed_at: Millis,
    /// How far the representation moved (sine of the largest principal angle), in training under
    /// [`Settings::stop_change`].
    pub change: Option<f64>,
    /// What averaging the factors of a product has cost ([`Algorithm::interference`](crate::algorithm::Algorithm::interference)).
    pub interference: Option<f64>,
    /// Training ends with it: it is the last of the campaign's rounds, or the representation moved little.
    pub ends_training: bool,
}

/// Every drop has a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Updates that counted.
    pub counted: u64,
    /// Updates sent again.
    pub duplicate: u64,
    /// Updates for rounds that were over.
    pub late: u64,
    /// From devices that were not asked.
    pub not_asked: u64,
    /// For rounds that do not exist.
    pub wrong_round: u64,
    /// Of other shapes, roles or encodings.
    pub wrong_tensors: u64,
    /// Not finite.
    pub non_finite: u64,
    /// Over the norm bound.
    pub norm_over_bound: u64,
    /// That came before the round was opened again on the device's new connection; it is sent again.
    pub unread: u64,
    /// Other content than what counted already.
    pub content_changed: u64,
    /// Without a sample.
    pub no_samples: u64,
    /// Rounds that devices declined.
    pub declined: u64,
    /// Deadlines that were extended for want of answers.
    pub extended: u64,
    /// Rounds that were repeated because nobody could answer them, or they were [ruined](Self::ruined).
    pub repeated: u64,
    /// Rounds whose updates together left no representation of full width.
    pub ruined: u64,
    /// Times that the open round went on under another number, since devices had lost their answers to it.
    pub renamed: u64,
    /// Devices that were asked again in a round that they had declined, or that had rejected them.
    pub asked_again: u64,
    /// Devices that were not waited for any more, having been gone for too long.
    pub absent: u64,
    /// Rounds that closed with fewer answers than they waited for, as nobody else could answer or the deadline passed.
    pub short: u64,
    /// Samples that devices skipped, as they say.
    pub skipped_samples: u64,
    /// Updates that count with fewer samples than the device declared, as it was more than any device may.
    pub capped_samples: u64,
    /// Updates that counted with less, as what the device declared was more than its share of the round may be.
    pub capped_to_others: u64,
}

impl Counters {
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

    /// Updates that were rejected, whatever the reason.
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
