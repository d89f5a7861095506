//! Which round comes next, and who is asked: the cohort, who joins, and more where answers are wanting.

use std::sync::Arc;

use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;

use super::{Action, Engine, Failure, OpenRound, Phase, Presence, RoundBroadcast};
use crate::participation::Cohort;
use crate::types::{DeviceId, Millis};

/// Milliseconds for which the scores of ridges are waited for where rounds have no deadline: nothing hangs on any one device's,
/// and the slowest boards take minutes.
const RIDGE_DEADLINE: Millis = 600_000;

impl Engine {
    pub(super) fn device_joined(&mut self, now: Millis, device: DeviceId, actions: &mut Vec<Action>) {
        // It may have restarted.
        self.last_answered.remove(&device);
        if self.fleet.insert(device, Presence::Connected) != Some(Presence::Connected) {
            self.connected += 1;
        }
        match (&mut self.open, self.phase) {
            // Who has answered is asked again, too: its acknowledgement may have been lost with the
            // connection. It repeats its update, or declines the round as finished.
            (Some(round), Phase::FitHead | Phase::Finished) => {
                round.cohort.insert(device);
                round.absent.remove(&device);
                actions.push(Action::Open(device, Arc::clone(&round.broadcast)));
            }
            (Some(round), _) => {
                let asked = round.cohort.contains(&device) && !round.excluded.contains(&device);
                if asked || round.asking_everyone {
                    round.cohort.insert(device);
                    round.absent.remove(&device);
                    let broadcast = if round.excluded.contains(&device) {
                        self.counters.asked_again += 1;
                        round.ask_again(device)
                    } else {
                        round.full_broadcast_for(device)
                    };
                    actions.push(Action::Open(device, broadcast));
                }
            }
            (None, Phase::Failed) => {}
            // A round that nobody could answer waits for its time.
            (None, _) if self.has_opened && self.retry_at.is_some() => {}
            (None, _) => {
                if self.connected >= self.devices_needed() {
                    self.next_round(now, actions);
                }
            }
        }
    }

    /// Connected devices with which a round opens where none is open.
    fn devices_needed(&self) -> usize {
        match self.phase {
            // Everyone fits a head alone.
            Phase::Train(done) if done >= self.settings.rounds => 1,
            Phase::RidgeScores => 1,
            // Once it runs, a campaign that everybody left goes on with the fewest that make a round.
            _ if self.has_opened => self.settings.min_count.min(self.settings.fleet_size),
            _ => self.settings.fleet_size,
        }
    }

    /// Asks everybody who is there and was not asked, and from now on everybody who joins. False if nobody
    /// is there.
    pub(super) fn ask_everyone(&mut self, now: Millis, actions: &mut Vec<Action>) -> bool {
        let mut more = self.present(now);
        let Some(round) = &mut self.open else { return false };
        round.asking_everyone = true;
        more.retain(|device| round.cohort.insert(*device));
        let Some(round) = &self.open else { return false };
        for device in more.iter().filter(|device| self.is_connected(**device)) {
            actions.push(Action::Open(*device, round.broadcast_for(self.last_answered.get(device).copied())));
        }
        !more.is_empty()
    }

    /// Asks those again who declined the round or were rejected, as far as they are connected. False if
    /// nobody is. A device that declined for want of samples may have some by now. One that was rejected, or has lost its
    /// update with its power, is finished with the round, and has said so: it is asked under another number.
    pub(super) fn ask_again(&mut self, actions: &mut Vec<Action>) -> bool {
        self.retry_at = None;
        let fleet = &self.fleet;
        let Some(round) = &mut self.open else { return false };
        let here = |device: &DeviceId| fleet.get(device) == Some(&Presence::Connected);
        let again: Vec<DeviceId> = round.excluded.iter().copied().filter(here).collect();
        if again.is_empty() {
            return false;
        }
        if round.needs_new_id {
            let id = RoundId { round: self.last_id.round.saturating_add(1), ..self.last_id };
            self.last_id = id;
            round.rename(id, |round, device| !round.excluded.contains(&device));
            self.counters.renamed += 1;
        }
        for device in &again {
            actions.push(Action::Open(*device, round.ask_again(*device)));
        }
        self.counters.asked_again += again.len() as u64;
        true
    }

    /// Opens whatever comes after the last finished round.
    pub(super) fn next_round(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.open_round_among(now, self.present(now), actions);
    }

    /// The same among these devices, ascending.
    pub(super) fn open_round_among(&mut self, now: Millis, fleet: Vec<DeviceId>, actions: &mut Vec<Action>) {
        if fleet.is_empty() {
            // The next device to join opens the round.
            return;
        }
        self.has_opened = true;
        self.retry_at = None;
        let start_needs = self.start.as_ref().map_or(0, |start| start.rounds_needed());
        let next = match self.phase {
            Phase::Waiting if start_needs > 0 => Phase::Start(1),
            Phase::Start(done) if done < start_needs => Phase::Start(done + 1),
            Phase::Train(done) if done < self.settings.rounds => Phase::Train(done + 1),
            Phase::Waiting | Phase::Start(_) if self.settings.rounds > 0 => Phase::Train(1),
            Phase::Waiting | Phase::Start(_) | Phase::Train(_) if self.scores_ridges() => Phase::RidgeScores,
            Phase::Waiting
            | Phase::Start(_)
            | Phase::Train(_)
            | Phase::RidgeScores
            | Phase::FitHead
            | Phase::Finished
            | Phase::Failed => Phase::FitHead,
        };
        if !matches!(next, Phase::Start(_)) {
            self.hand_over_start();
        }
        self.phase = next;
        let policy = self.participation.state();
        // At the very end devices decline what they have had.
        let round = self.last_id.round.saturating_add(1);
        let (cohort, request) = match next {
            Phase::FitHead => {
                let cohort =
                    Cohort { target: usize::MAX, stage: self.last_id.stage, ..Cohort::new(fleet.clone()) };
                (cohort, self.algorithm.fit_request(self.final_head()))
            }
            // Everybody, whatever the policy; who cannot declines.
            Phase::RidgeScores => {
                let cohort = Cohort { stage: self.last_id.stage, ..Cohort::new(fleet.clone()) };
                let fit = self.algorithm.fit_request(self.settings.final_head);
                let Some(ridge) = &self.ridge else { return };
                (cohort, ridge.request(fit))
            }
            // A start is computed once, by everyone, whatever the policy.
            Phase::Start(_) => (Cohort::new(fleet.clone()), self.current().request()),
            Phase::Train(number) => {
                let mut cohort = self.participation.cohort(number, &fleet);
                // Where all who count are known by now.
                if let Some(reference) = self.algorithm.reference(&fleet)
                    && !cohort.draws.is_empty()
                {
                    cohort.add_reference(reference);
                }
                (cohort, self.current().request())
            }
            // Never a next phase.
            Phase::Waiting | Phase::Finished | Phase::Failed => return,
        };
        let id = RoundId { round, stage: cohort.stage };
        let before = std::mem::replace(&mut self.last_id, id).round;
        self.rejected_in_round = 0;
        let broadcast = match RoundBroadcast::new(id, request) {
            Ok(broadcast) => Arc::new(broadcast),
            Err(error) => return self.fail(Failure::Unsendable { round, error }, actions),
        };
        // What devices have trained in the exchange before is theirs alone, also where nothing came of it.
        let trained = std::mem::replace(&mut self.trained_roles, expected_roles(&broadcast));
        let unchanged = if matches!(next, Phase::Train(_)) { self.current().unchanged() } else { &[] };
        let unchanged: Vec<Role> = unchanged.iter().copied().filter(|role| !trained.contains(role)).collect();
        let open = OpenRound::new(broadcast, fleet, cohort, now, &self.settings)
            .with_reduced_broadcast(&unchanged, before)
            .with_policy_state(policy);
        let open = match next {
            Phase::RidgeScores => open.with_default_deadline(now.saturating_add(RIDGE_DEADLINE)),
            _ => open,
        };
        for device in open.cohort.iter().filter(|device| self.is_connected(**device)) {
            actions.push(Action::Open(*device, open.broadcast_for(self.last_answered.get(device).copied())));
        }
        self.open = Some(open);
    }

    /// The representation of a finished start becomes the algorithm's, and so does its scale.
    pub(super) fn hand_over_start(&mut self) {
        if let Some(start) = self.start.take() {
            if let Some(basis) = start.basis() {
                let mut state = self.algorithm.state();
                for (place, value) in state.iter_mut().zip(basis.iter()) {
                    *place = *value;
                }
                self.algorithm.restore(&state);
            }
            if let Some(scale) = start.scale() {
                self.algorithm.set_scale(&scale);
            }
        }
    }
}

/// What comes back from devices.
fn expected_roles(broadcast: &RoundBroadcast) -> Vec<Role> {
    broadcast.request.expects.iter().map(|tensor| tensor.role).collect()
}
