//! End of a round: closed and committed, abandoned to be tried again, or ended together with the campaign.

use super::{Action, Engine, Failure, OpenRound, Phase, RoundRecord};
use crate::linalg::{Matrix, orthonormal, principal_angle_distance};
use crate::participation::ClosedRound;
use crate::privacy::releases;
use crate::types::Millis;

/// Rank-deficient rounds in a row after which a campaign that retries without delay fails.
const RANK_DEFICIENT_ROUNDS_MAX: u32 = 3;

impl Engine {
    /// Ends training because a target was reached: closes the open round without using it, and opens the
    /// round of final heads.
    pub fn finish_training(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Phase::Train(number) = self.phase else { return };
        if let Some(round) = self.open.take() {
            self.close_on_devices(&round, actions);
        }
        self.settings.rounds = number;
        self.retry_at = None;
        self.next_absence_cache.set(None);
        self.next_round(now, actions);
    }

    fn close_on_devices(&self, round: &OpenRound, actions: &mut Vec<Action>) {
        let late = round.cohort.iter().filter(|device| round.awaits(**device) && self.is_connected(**device));
        actions.extend(late.map(|device| Action::Close(*device, round.id_for(*device))));
    }

    /// Abandons the open round, so that the next round to open is the same one again.
    pub(super) fn abandon_round(&mut self) {
        self.open = None;
        self.counters.repeated += 1;
        self.phase = match self.phase {
            Phase::Start(number) => Phase::Start(number - 1),
            Phase::Train(number) => Phase::Train(number - 1),
            Phase::Waiting | Phase::RidgeScores | Phase::FitHead | Phase::Finished | Phase::Failed => {
                self.phase
            }
        };
    }

    pub(super) fn close_round(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(round) = self.open.take() else { return };
        self.retry_at = None;
        let id = round.broadcast.id;
        let ids = round.previous_ids.iter().copied().chain([id]).collect();
        self.closed = Some((ids, releases(&round.broadcast.request.task)));
        let target = round.target.min(round.cohort.len());
        let is_of_ridges = self.phase == Phase::RidgeScores;
        let short_of =
            Some(target).filter(|n| !is_of_ridges && !round.is_reached() && round.participants.len() < *n);
        self.close_on_devices(&round, actions);
        let training = matches!(self.phase, Phase::Train(_));
        let before = training.then(|| (self.algorithm.model().clone(), self.representation().clone()));
        let finished = match (&mut self.start, self.phase) {
            (Some(start), Phase::Start(_)) => start.finish(),
            (_, Phase::RidgeScores) => Ok(()),
            _ => self.algorithm.finish(),
        };
        if let Err(error) = finished {
            return self.discard_rank_deficient(
                now,
                Failure::Representation { round: id.round, error },
                actions,
            );
        }
        self.rank_deficient_rounds = 0;
        self.counters.short += u64::from(short_of.is_some());
        self.counters.capped_to_others += round.capped_to_others() as u64;
        let phase = self.phase;
        // The commit after the last round of a start must hold the algorithm's state, even if the next
        // round opens later.
        if let (Some(start), Phase::Start(done)) = (&self.start, phase)
            && done >= start.rounds_needed()
        {
            self.hand_over_start();
        }
        if let Some((before, _)) = &before {
            self.participation.closed(&ClosedRound {
                elapsed: now.saturating_sub(round.opened_at),
                short_of,
                before,
                model: self.algorithm.model(),
            });
        }
        let stop = self.settings.stop_change.is_some();
        let change = before
            .filter(|_| stop)
            .and_then(|(_, before)| representation_change(&before, self.representation()));
        if let Phase::Train(number) = phase
            && let (Some(change), Some(stop)) = (change, self.settings.stop_change)
            && change < stop
        {
            self.settings.rounds = number;
        }
        actions.push(Action::Commit(Box::new(RoundRecord {
            id,
            phase,
            short_of,
            cohort: round.cohort.iter().copied().collect(),
            participants: round.participants,
            rejected: self.rejected_in_round,
            opened_at: round.opened_at,
            closed_at: now,
            change,
            interference: self.algorithm.interference().filter(|_| training),
            ends_training: phase == Phase::Train(self.settings.rounds),
        })));
        self.next_round(now, actions);
    }

    /// Discards the updates of a round that left no representation of full width, since other updates may do
    /// better. Fails the campaign if it has no retry delay, or a delay of 0 and too many such rounds in a
    /// row.
    fn discard_rank_deficient(&mut self, now: Millis, failure: Failure, actions: &mut Vec<Action>) {
        self.rank_deficient_rounds += 1;
        let patience = self
            .settings
            .patience
            .filter(|patience| *patience > 0 || self.rank_deficient_rounds < RANK_DEFICIENT_ROUNDS_MAX);
        let Some(patience) = patience else { return self.fail(failure, actions) };
        self.counters.ruined += 1;
        self.abandon_round();
        self.retry_at = Some(now.saturating_add(patience));
    }

    pub(super) fn fail(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        self.open = None;
        self.phase = Phase::Failed;
        actions.push(Action::Failed(failure));
    }
}

/// Sine of the largest principal angle between two representations, which need not be orthonormal (an
/// averaged model is not). `None` if one of them is rank deficient.
fn representation_change(before: &Matrix, after: &Matrix) -> Option<f64> {
    Some(principal_angle_distance(&orthonormal(before).ok()?, &orthonormal(after).ok()?))
}
