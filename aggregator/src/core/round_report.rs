//! Reports of the server core: a log line and a JSON line for every committed round, and the status.

use std::sync::Arc;

use super::status::{FAILED_PHASE, FINISHED_PHASE, MISSING_LISTED};
use super::{PrivacyStatus, ServerCore, Status};
use crate::journal::Journal;
use crate::keys::SharedKeyStore;
use fedspan_engine::algorithm::ChosenPrior;
use fedspan_engine::{ChosenRidge, Phase, RoundRecord};

impl ServerCore {
    /// Logs and publishes a committed round.
    pub(super) fn report_committed(&mut self, record: &RoundRecord) {
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
        self.expire_replaced_keys(SharedKeyStore::round_closed);
        let (label, number) = match record.phase {
            Phase::Start(number) => ("start", number),
            Phase::Train(number) => {
                self.done = number;
                if record.ends_training {
                    self.log_prior();
                }
                ("training", number)
            }
            Phase::RidgeScores => {
                self.log_ridge();
                ("ridge", 1)
            }
            _ => ("other", 0),
        };
        tracing::info!(
            phase = label,
            round = number,
            participants = record.participants.len(),
            "round committed"
        );
        if let Some(wanted) = record.short_of {
            let answers = record.participants.len();
            tracing::warn!(answers, wanted, "round closed with fewer updates than its target");
        }
        if let (Some(change), true) = (record.change, record.ends_training && self.done < self.rounds) {
            tracing::info!(
                round = self.done,
                change,
                "training ends: the representation moved less than stop.change"
            );
        }
        let mut line = serde_json::json!({
            "phase": label,
            "round": number,
            "of": self.rounds,
            "cohort": record.cohort,
            "participants": record.participants,
            "rejected": record.rejected,
            "milliseconds": record.closed_at - record.opened_at,
        });
        if let (Some(change), Some(line)) = (record.change, line.as_object_mut()) {
            line.insert("change".to_owned(), change.into());
        }
        if let (Some(robustness), Some(sizes)) = (&mut self.robustness, self.durable.engine().last_sizes())
            && robustness.update(sizes)
        {
            robustness.log();
        }
        self.update_privacy();
        if let (Some(privacy), Some(line)) = (&self.privacy, line.as_object_mut()) {
            line.insert("epsilon".to_owned(), privacy.epsilon.into());
        }
        // Sending fails only if the feed has no subscriber.
        let _ = self.round_feed_sender.send(line.to_string());
    }

    /// Logs the prior of heads that the fleet has chosen.
    fn log_prior(&self) {
        let Some(chosen) = self.engine().chosen_prior() else { return };
        let ChosenPrior { mean, metric, columns, floor, noise, scored_by, score, .. } = chosen;
        let without_representation = chosen.score_without_representation;
        tracing::info!(
            mean,
            metric,
            columns,
            floor,
            noise,
            scored_by,
            score,
            without_representation,
            "prior of heads chosen"
        );
        if columns == 0 && mean == "zero" {
            tracing::warn!("devices have little in common: each learns almost alone, with the fleet's ridge");
        }
    }

    /// Logs the ridge that the fleet has chosen for final heads.
    fn log_ridge(&self) {
        let Some(chosen) = self.engine().chosen_ridge() else { return };
        let ChosenRidge { ridge, devices, labels_per_class, .. } = chosen;
        if devices == 0 {
            tracing::warn!(
                ridge,
                "no device has scored ridges, which needs the client feature ridge-choice; final heads use the default"
            );
        } else {
            tracing::info!(ridge, devices, labels_per_class, "ridge of final heads chosen");
        }
        if chosen.is_at_end() {
            let (smallest, largest) = (chosen.ridges.first(), chosen.ridges.last());
            tracing::warn!(
                ridge,
                least = smallest,
                most = largest,
                "the chosen ridge is at an end of the grid, a better one may lie beyond it; scale the features, or set final_ridge"
            );
        }
    }

    /// Recomputes the published privacy loss. Called once per round and not for every event, because the
    /// computation visits every device.
    pub(super) fn update_privacy(&mut self) {
        self.privacy = PrivacyStatus::of(self.engine().ledger(), self.delta).map(Arc::new);
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Updates the list of devices that rounds do not wait for.
    pub(super) fn update_not_awaited(&mut self) {
        self.not_awaited = Arc::new(self.durable.engine().not_awaited().collect());
    }

    /// Publishes the current status to the subscribers.
    pub(super) fn publish_status(&mut self) {
        let engine = self.durable.engine();
        let phase = match engine.phase() {
            Phase::Waiting => "waiting",
            Phase::Start(_) => "start",
            Phase::Train(_) => "training",
            Phase::RidgeScores => "scoring ridges",
            Phase::FitHead => "fitting heads",
            Phase::Finished => FINISHED_PHASE,
            Phase::Failed => FAILED_PHASE,
        };
        let (devices, connected) = engine.fleet();
        let (answers, target) = engine
            .open_round()
            .map_or((0, 0), |round| (round.participants.len(), round.target.min(round.cohort.len())));
        let missing = engine.open_round().map_or_else(Vec::new, |round| match round.outstanding() {
            1..=MISSING_LISTED => round.awaited().collect(),
            // The status is published after every event, so a long list is not made.
            _ => Vec::new(),
        });
        self.status.send_replace(Status {
            phase: phase.to_owned(),
            round: self.done,
            rounds: self.rounds,
            devices,
            connected,
            answers,
            target,
            missing,
            updates: engine.counters(),
            stalled: self.is_stalled(),
            stalls: self.stalls,
            journal_lost: self.journal.as_ref().map_or(0, Journal::lost),
            connections: self.connections,
            packets: self.packets.as_ref().map(|totals| totals.to_status()),
            unmeasured: self.robustness.as_ref().map_or(Vec::new(), |robustness| robustness.unmet().to_vec()),
            not_awaited: Arc::clone(&self.not_awaited),
            held_out: self.held_out.waiting(),
            away_s: self.sleepers.longest().map(|away| away.as_u64() / 1_000),
            privacy: self.privacy.clone(),
        });
    }
}
