//! Opening of rounds: determines the next round and its cohort, and sends later invitations.

use std::sync::Arc;

use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;

use super::{Action, Effects, Engine, Failure, OpenRound, Phase, Presence, Record, RoundBroadcast};
use crate::participation::Cohort;
use crate::random::spread;
use crate::types::{DeviceId, Millis};

/// Deadline of the round of ridge scores if rounds have no deadline: 10 minutes. The slowest boards take
/// minutes, and the scores of a single device are not essential.
const RIDGE_DEADLINE: Millis = Millis::new(600_000);

impl Engine {
    /// Handles a device that has joined: invites it to the open round if necessary, or opens the next round
    /// if enough devices are connected.
    pub(super) fn device_joined(&mut self, now: Millis, device: DeviceId, effects: &mut dyn Effects) {
        let misses_deadline = self.has_left_silently(device);
        self.mark_connected(device);
        if misses_deadline {
            let id = self.last_id;
            self.count_reconnection(now, device, effects);
            // If another round has opened, then the device has been invited to it.
            if self.open.as_ref().is_none_or(|round| round.broadcast.id != id) {
                return;
            }
        }
        self.invite_connected(now, device, effects);
    }

    /// Handles a device that has greeted again on its connection: invites it to the open round again.
    pub(super) fn device_greeted(&mut self, now: Millis, device: DeviceId, effects: &mut dyn Effects) {
        self.mark_connected(device);
        self.invite_connected(now, device, effects);
    }

    /// Marks a device as connected. It may have restarted and lost the tensors of earlier rounds.
    fn mark_connected(&mut self, device: DeviceId) {
        self.last_answered.remove(&device);
        self.record_joined(device);
        if self.fleet.insert(device, Presence::Connected) != Some(Presence::Connected) {
            self.connected += 1;
        }
    }

    /// Invites a connected device to the open round if necessary, or opens the next round if enough devices
    /// are connected.
    fn invite_connected(&mut self, now: Millis, device: DeviceId, effects: &mut dyn Effects) {
        match (&mut self.open, self.phase) {
            // Devices that have already answered are invited again, since their acknowledgement may have been
            // lost with the connection. They repeat their update, or decline the round as finished.
            (Some(round), Phase::FitHead | Phase::Finished) => {
                round.cohort.insert(device);
                round.absent.remove(&device);
                let broadcast = Arc::clone(&round.broadcast);
                self.send_round(now, device, broadcast, effects);
            }
            (Some(round), _) => {
                let is_invited = round.cohort.contains(&device) && !round.excluded.contains(&device);
                if is_invited || round.asking_everyone {
                    round.cohort.insert(device);
                    round.absent.remove(&device);
                    if round.excluded.contains(&device) {
                        // A device that sleeps is rarely connected when the deadline is extended.
                        self.renumber_if_needed(effects);
                    }
                    let Some(round) = &mut self.open else { return };
                    let broadcast = if round.excluded.contains(&device) {
                        self.counters.asked_again += 1;
                        round.ask_again(device, effects)
                    } else {
                        round.full_broadcast_for(device)
                    };
                    self.send_round(now, device, broadcast, effects);
                    self.apply_patience();
                } else {
                    self.tell_next_round(now, device, effects);
                }
            }
            (None, Phase::Failed) => {}
            // A round that had no updates is retried at `retry_at`, not when a device joins.
            (None, _) if self.has_opened && self.retry_at.is_some() => {}
            (None, _) => {
                self.open_if_possible(now, effects);
                if self.open.is_none() {
                    self.tell_next_round(now, device, effects);
                }
            }
        }
    }

    /// Opens the next round if enough devices are present and the shortest interval between rounds has passed.
    /// Otherwise the round opens at the end of the interval, or when another device joins.
    pub(super) fn open_if_possible(&mut self, now: Millis, effects: &mut dyn Effects) {
        let is_too_early = self.opens_at.is_some_and(|opens_at| now < opens_at);
        if (is_too_early && !self.training_is_over()) || !self.has_enough_devices(now) {
            return;
        }
        self.next_round(now, effects);
    }

    /// Whether the next round is none of the start or of training.
    fn training_is_over(&self) -> bool {
        match self.phase {
            Phase::Train(number) => number >= self.settings.rounds,
            Phase::RidgeScores | Phase::FitHead | Phase::Finished | Phase::Failed => true,
            Phase::Waiting | Phase::Start(_) => false,
        }
    }

    /// Whether as many devices are present as the next round needs to open.
    fn has_enough_devices(&self, now: Millis) -> bool {
        let needed = match self.phase {
            // Devices fit their heads and score ridges independently of each other.
            _ if self.training_is_over() => 1,
            // After the first round, a campaign whose devices all disconnected continues as soon as enough
            // devices for a round have reconnected.
            _ if self.has_opened => self.settings.min_count,
            _ => self.settings.fleet_size.max(self.settings.min_count),
        };
        // Counting the present devices takes time in large fleets, so the cheap conditions come first.
        self.connected >= needed || (self.fleet.len() >= needed && self.present(now).len() >= needed)
    }

    /// Informs a device how long it may sleep, if no round can open before a known time. The times of the devices differ, so that they do
    /// not all connect, or send on one radio channel, at the same instant.
    pub(super) fn tell_next_round(&self, now: Millis, device: DeviceId, effects: &mut dyn Effects) {
        let is_known = match self.phase {
            Phase::Waiting | Phase::Start(_) | Phase::Train(_) => {
                self.open.is_some() || !self.training_is_over()
            }
            Phase::RidgeScores | Phase::FitHead | Phase::Finished | Phase::Failed => false,
        };
        let is_told = is_known && self.is_connected(device);
        if let Some(opens_at) = self.opens_at.filter(|opens_at| is_told && now < *opens_at) {
            effects.act(Action::NextRound(device, opens_at - now + self.wake_delay(device)));
        }
    }

    /// Time after the opening of a round at which a device wakes: at most a sixteenth of the interval between rounds, always the same for a
    /// device.
    fn wake_delay(&self, device: DeviceId) -> Millis {
        let longest = self.settings.every.unwrap_or(Millis::ZERO).as_u64() / 16;
        spread(device.0, u32::try_from(longest).unwrap_or(u32::MAX)).into()
    }

    /// Invites every device that joins from now on.
    pub(super) fn start_asking_everyone(&mut self, effects: &mut dyn Effects) {
        if let Some(round) = &mut self.open
            && !std::mem::replace(&mut round.asking_everyone, true)
        {
            self.record_deadline(effects);
        }
    }

    /// Invites every present device that was not invited, and every device that joins from now on. Returns
    /// false if the round waits for no device that was newly invited. If missed deadlines count, the
    /// deadline starts again: a device invited shortly before it would miss it although it answers in time.
    pub(super) fn ask_everyone(&mut self, now: Millis, effects: &mut dyn Effects) -> bool {
        let mut newly_invited = self.present(now);
        self.start_asking_everyone(effects);
        let Some(round) = &mut self.open else { return false };
        newly_invited.retain(|device| round.cohort.insert(*device));
        self.apply_patience();
        let Some(round) = &self.open else { return false };
        let waits = newly_invited.iter().any(|device| round.waits_for(*device));
        let broadcasts = self.broadcasts(round, newly_invited.into_iter());
        if waits && self.has_patience() {
            self.restart_deadline(now, effects);
        }
        self.send_broadcasts(now, broadcasts, effects);
        waits
    }

    /// Gives the open round the whole deadline again.
    fn restart_deadline(&mut self, now: Millis, effects: &mut dyn Effects) {
        let restarted = self.settings.deadline.map(|limit| now + limit);
        if let Some(round) = self.open.as_mut().filter(|round| round.deadline != restarted) {
            round.deadline = restarted;
            self.record_deadline(effects);
        }
    }

    /// Invites the connected devices again that declined the round or were rejected. Returns false if there
    /// are no such devices. A device that declined for lack of samples may have recorded samples since. A
    /// device that was rejected, or lost its update in a power cut, regards the round id as finished, so it
    /// is invited under a new id.
    pub(super) fn ask_again(&mut self, now: Millis, effects: &mut dyn Effects) -> bool {
        self.retry_at = None;
        let fleet = &self.fleet;
        let Some(round) = &mut self.open else { return false };
        let is_connected = |device: &DeviceId| fleet.get(device) == Some(&Presence::Connected);
        let excluded: Vec<DeviceId> = round.excluded.iter().copied().filter(is_connected).collect();
        if excluded.is_empty() {
            return false;
        }
        self.renumber_if_needed(effects);
        let Some(round) = &mut self.open else { return false };
        let broadcasts: Vec<_> =
            excluded.iter().map(|device| (*device, round.ask_again(*device, effects))).collect();
        self.counters.asked_again += excluded.len() as u64;
        self.apply_patience();
        self.send_broadcasts(now, broadcasts, effects);
        true
    }

    /// Continues the open round under a new id for the excluded devices, if one of them has declined the present id
    /// as finished.
    fn renumber_if_needed(&mut self, effects: &mut dyn Effects) {
        let Some(round) = self.open.as_mut().filter(|round| round.needs_new_id) else { return };
        let id = RoundId { round: self.last_id.round.saturating_add(1), ..self.last_id };
        self.last_id = id;
        round.rename(id, |round, device| !round.excluded.contains(&device));
        self.counters.renamed += 1;
        if effects.keeps_records() {
            effects.record(Record::Renumbered(Box::new(round.opening(self.phase))));
        }
    }

    /// Opens the round that follows the last finished one, among the present devices.
    pub(super) fn next_round(&mut self, now: Millis, effects: &mut dyn Effects) {
        self.open_round_among(now, self.present(now), effects);
    }

    /// Opens the round that follows the last finished one, among the devices of `fleet` (ascending).
    pub(super) fn open_round_among(&mut self, now: Millis, fleet: Vec<DeviceId>, effects: &mut dyn Effects) {
        if fleet.is_empty() {
            // The round opens when the next device joins.
            return;
        }
        self.has_opened = true;
        self.retry_at = None;
        self.opens_at = self.settings.every.map(|every| now + every);
        let start_rounds = self.start.as_ref().map_or(0, |start| start.rounds_needed());
        let next = match self.phase {
            Phase::Waiting if start_rounds > 0 => Phase::Start(1),
            Phase::Start(number) if number < start_rounds => Phase::Start(number + 1),
            Phase::Train(number) if number < self.settings.rounds => Phase::Train(number + 1),
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
        // Devices decline ids of rounds that they have finished, so every opening needs a new id.
        let round = self.last_id.round.saturating_add(1);
        let (cohort, request) = match next {
            Phase::FitHead => {
                let cohort =
                    Cohort { target: usize::MAX, stage: self.last_id.stage, ..Cohort::new(fleet.clone()) };
                (cohort, self.algorithm.fit_request(self.final_head()))
            }
            // Every device is invited, independent of the policy. Devices that cannot compute scores decline.
            Phase::RidgeScores => {
                let cohort = Cohort { stage: self.last_id.stage, ..Cohort::new(fleet.clone()) };
                let fit = self.algorithm.fit_request(self.settings.final_head);
                let Some(ridge) = &self.ridge else { return };
                (cohort, ridge.request(fit))
            }
            // The start is computed once by all devices, independent of the policy.
            Phase::Start(_) => (Cohort::new(fleet.clone()), self.current().request()),
            Phase::Train(number) => {
                let asked = self.asked_devices(&fleet);
                let mut cohort = match self.algorithm.asks_all() {
                    true => Cohort { stage: self.last_id.stage, ..Cohort::new(asked) },
                    false => self.participation.cohort(number, &asked),
                };
                // A policy that draws devices fixes the participants when the round opens, so a reference
                // that was not drawn must be added.
                if let Some(reference) = self.algorithm.reference(&fleet)
                    && !cohort.draws.is_empty()
                {
                    cohort.add_reference(reference);
                }
                (cohort, self.current().request())
            }
            // The match above never selects these phases.
            Phase::Waiting | Phase::Finished | Phase::Failed => return,
        };
        let id = RoundId { round, stage: cohort.stage };
        let previous_round = std::mem::replace(&mut self.last_id, id).round;
        self.rejected_in_round = 0;
        let broadcast = match RoundBroadcast::new(id, request) {
            Ok(broadcast) => Arc::new(broadcast),
            Err(error) => return self.fail(Failure::Unsendable { round, error }, effects),
        };
        // A device has its own trained values of these tensors from the round before, even if that round was
        // abandoned, so they must be sent again.
        let trained = std::mem::replace(&mut self.trained_roles, expected_roles(&broadcast));
        let unchanged = if matches!(next, Phase::Train(_)) { self.current().unchanged() } else { &[] };
        let unchanged: Vec<Role> = unchanged.iter().copied().filter(|role| !trained.contains(role)).collect();
        self.trained_roles_before = trained;
        let open = OpenRound::new(broadcast, fleet, cohort, now, &self.settings)
            .with_reduced_broadcast(&unchanged, previous_round)
            .with_policy_state(policy);
        let open = match next {
            Phase::RidgeScores => open.with_default_deadline(now + RIDGE_DEADLINE),
            _ => open,
        };
        if next == Phase::FitHead {
            self.forget_missed(effects);
        }
        let broadcasts = self.broadcasts(&open, open.cohort.iter().copied());
        self.send_broadcasts(now, broadcasts, effects);
        if effects.keeps_records() {
            effects.record(Record::Opened(Box::new(open.opening(next))));
        }
        self.open = Some(open);
        self.record_checkpoint(effects);
        self.apply_patience();
        // The policy has drawn only devices that rounds do not wait for, or too few.
        let needs_minimum = matches!(next, Phase::Start(_) | Phase::Train(_));
        let needs_more = |round: &OpenRound| {
            let is_short = needs_minimum && round.cohort.len() < round.min_updates;
            is_short || round.not_awaited().len() > 0 && round.outstanding() == 0
        };
        if self.open.as_ref().is_some_and(needs_more) {
            self.ask_everyone(now, effects);
        }
        self.tell_uninvited(now, effects);
    }

    /// Devices of `fleet` that the algorithm asks in the present round; all of them if it asks none that is present.
    fn asked_devices(&self, fleet: &[DeviceId]) -> Vec<DeviceId> {
        let asked: Vec<DeviceId> =
            fleet.iter().copied().filter(|device| self.algorithm.asks(*device)).collect();
        if asked.is_empty() { fleet.to_vec() } else { asked }
    }

    /// Informs the connected devices that the open round has not invited how long they may sleep.
    fn tell_uninvited(&self, now: Millis, effects: &mut dyn Effects) {
        let Some(round) = self.open.as_ref().filter(|_| self.opens_at.is_some()) else { return };
        let uninvited = self
            .fleet
            .iter()
            .filter(|(device, presence)| **presence == Presence::Connected && !round.cohort.contains(device));
        for (device, _) in uninvited {
            self.tell_next_round(now, *device, effects);
        }
    }

    /// Broadcasts of a round for the connected ones of `devices`.
    pub(super) fn broadcasts(
        &self,
        round: &OpenRound,
        devices: impl Iterator<Item = DeviceId>,
    ) -> Vec<(DeviceId, Arc<RoundBroadcast>)> {
        let connected = devices.filter(|device| self.is_connected(*device));
        // Looked up only where it matters, since a round has many devices.
        let answered = |device| {
            let known = round.has_reduced_broadcast().then(|| self.last_answered.get(&device));
            known.flatten().copied()
        };
        connected.map(|device| (device, round.broadcast_for(answered(device)))).collect()
    }

    /// Sends broadcasts of the open round, except to devices that may still answer an earlier round.
    pub(super) fn send_broadcasts(
        &mut self,
        now: Millis,
        broadcasts: Vec<(DeviceId, Arc<RoundBroadcast>)>,
        effects: &mut dyn Effects,
    ) {
        for (device, broadcast) in broadcasts {
            if !self.is_occupied(now, device) {
                self.send_round(now, device, broadcast, effects);
            }
        }
    }

    /// Hands the representation and the scale of the finished start to the algorithm.
    pub(super) fn hand_over_start(&mut self) {
        if let Some(start) = self.start.take() {
            if let Some(basis) = start.basis() {
                let mut state = self.algorithm.state();
                for (target, value) in state.iter_mut().zip(basis.iter()) {
                    *target = *value;
                }
                self.algorithm.restore(&state);
            }
            if let Some(scale) = start.scale() {
                self.algorithm.set_scale(&scale);
            }
        }
    }
}

/// Roles of the tensors that devices send back.
fn expected_roles(broadcast: &RoundBroadcast) -> Vec<Role> {
    broadcast.request.expects.iter().map(|tensor| tensor.role).collect()
}
