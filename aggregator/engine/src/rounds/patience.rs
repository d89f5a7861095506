//! Patience with silent devices: counts the deadlines that each device misses in a row. Rounds do not wait for
//! a device that has missed as many as [`Settings::patience`](super::Settings::patience) allows, until it
//! answers.
//!
//! A device misses a deadline if the deadline passes while the round waits for it, and it is connected, or
//! has left without any answer since it joined. So a device that answers and then sleeps misses nothing, and
//! a device that joins and leaves without end cannot hold up rounds either. A device that reconnects in a
//! round that it was sent before, and has sent no answer since it joined, also misses a deadline.
//!
//! A device that is not waited for is still invited, and its update counts like any other. It is sent one
//! round at a time: the next one after it has answered, or after the deadline from the moment at which it was
//! sent the last one. Without this, fast rounds would interrupt a device whenever it computes. An answer
//! within this deadline, also to a round that has closed meanwhile, resets the number of missed deadlines. A message
//! about a round that the device was not sent is no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use fedspan_protocol::message::RoundId;

use super::{
    Action, Effects, Engine, Event, MissedDeadlines, NotCounted, OpenRound, Phase, Presence, Record,
    RoundBroadcast,
};
use crate::types::{DeviceId, Millis};

/// Round that a device was sent.
#[derive(Clone, Copy, Debug)]
struct SentRound {
    id: RoundId,
    at: Millis,
}

/// Missed deadlines of all devices. Empty if the campaign has no patience limit.
#[derive(Debug, Default)]
pub(super) struct Patience {
    limit: Option<NonZeroU32>,
    /// Number of deadlines in a row, at least one, that a device has missed.
    missed: BTreeMap<DeviceId, u32>,
    /// The last round that a device was sent on its connection, if it has not answered that round.
    sent: BTreeMap<DeviceId, SentRound>,
    /// Devices that have sent no answer since they joined.
    silent: BTreeSet<DeviceId>,
    /// Devices that rounds do not wait for.
    not_awaited: BTreeSet<DeviceId>,
}

impl Patience {
    /// Creates the state before any deadline has passed.
    pub(super) fn new(limit: Option<NonZeroU32>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether missed deadlines count in rounds of this phase.
    fn counts(&self, phase: Phase) -> bool {
        self.limit.is_some() && is_patient(phase)
    }

    /// Records that a device has joined, and has lost what it was sent before.
    fn joined(&mut self, device: DeviceId) {
        if self.limit.is_some() {
            self.silent.insert(device);
        }
        self.sent.remove(&device);
    }

    /// Sets the number of deadlines that a device has missed in a row. Returns whether rounds wait for the
    /// device, if this has changed.
    fn set_missed(&mut self, device: DeviceId, missed: u32) -> Option<bool> {
        if missed == 0 {
            self.missed.remove(&device);
        } else {
            self.missed.insert(device, missed);
        }
        if self.limit.is_some_and(|limit| missed >= limit.get()) {
            self.not_awaited.insert(device).then_some(false)
        } else {
            self.not_awaited.remove(&device).then_some(true)
        }
    }

    /// Whether the device may still answer the last round that it was sent in time.
    fn has_time(&self, now: Millis, device: DeviceId, deadline: Option<Millis>) -> bool {
        let sent = self.sent.get(&device);
        sent.zip(deadline).is_some_and(|(sent, deadline)| now - sent.at < deadline)
    }

    /// Number of deadlines that the device has missed in a row.
    fn missed(&self, device: DeviceId) -> u32 {
        self.missed.get(&device).copied().unwrap_or(0)
    }
}

/// Whether rounds of this phase do not wait for every device. Every device is waited for when it fits its
/// final head.
fn is_patient(phase: Phase) -> bool {
    match phase {
        Phase::Start(_) | Phase::Train(_) | Phase::RidgeScores => true,
        Phase::Waiting | Phase::FitHead | Phase::Finished | Phase::Failed => false,
    }
}

impl Engine {
    /// Devices that rounds do not wait for, because they have missed as many deadlines in a row as the
    /// campaign tolerates, ascending.
    pub fn not_awaited(&self) -> impl Iterator<Item = DeviceId> {
        self.patience.not_awaited.iter().copied()
    }

    /// Restores the number of deadlines that a device had missed in a row before a restart. Must be called
    /// before the checkpoint is resumed.
    pub fn restore_missed(&mut self, device: DeviceId, missed: u32) {
        if self.patience.limit.is_some() {
            self.patience.set_missed(device, missed);
        }
    }

    /// Repeats a decision of a journal: the deadline of the open round has passed.
    pub fn replay_deadline(&mut self, now: Millis, effects: &mut impl Effects) {
        if let Some(round) = &mut self.open {
            round.deadline = Some(now);
        }
        self.handle(now, Event::Tick, effects);
    }

    /// Repeats a decision of a journal: rounds wait for a device again, or not any more.
    pub fn replay_awaited(
        &mut self,
        now: Millis,
        device: DeviceId,
        awaited: bool,
        effects: &mut impl Effects,
    ) {
        if awaited {
            self.patience.not_awaited.remove(&device);
            self.wait_if_needed(device);
        } else {
            self.patience.not_awaited.insert(device);
            self.apply_patience();
            self.close_if_ended(now, device, NotCounted::Silent, effects);
        }
        self.next_absence_cache.set(None);
    }

    /// Sends the open round to a device.
    pub(super) fn send_round(
        &mut self,
        now: Millis,
        device: DeviceId,
        broadcast: Arc<RoundBroadcast>,
        effects: &mut dyn Effects,
    ) {
        if self.patience.limit.is_some() {
            self.patience.sent.insert(device, SentRound { id: broadcast.id, at: now });
        }
        effects.act(Action::Open(device, broadcast));
    }

    /// Whether rounds do not wait for the device, and the device may still answer the last round that it was
    /// sent in time.
    pub(super) fn is_occupied(&self, now: Millis, device: DeviceId) -> bool {
        self.patience.not_awaited.contains(&device)
            && self.patience.has_time(now, device, self.settings.deadline)
    }

    /// Whether a device may answer a round after several later rounds have closed.
    pub(super) fn has_patience(&self) -> bool {
        self.patience.limit.is_some()
    }

    /// Stops waiting in the open round for the devices that have missed too many deadlines.
    pub(super) fn apply_patience(&mut self) {
        if let Some(round) = self.open.as_mut().filter(|_| is_patient(self.phase)) {
            self.patience.not_awaited.iter().for_each(|device| round.stop_waiting(*device));
        }
    }

    /// Waits for every device again, because the final heads are fitted.
    pub(super) fn forget_missed(&mut self, effects: &mut dyn Effects) {
        let devices: Vec<DeviceId> = self.patience.missed.keys().copied().collect();
        for device in devices {
            self.reset_missed(device, effects);
        }
        self.patience.not_awaited.clear();
    }

    /// Forgets a device that may not join any more.
    pub(super) fn forget_removed(&mut self, device: DeviceId, effects: &mut dyn Effects) {
        self.patience.silent.remove(&device);
        self.patience.sent.remove(&device);
        self.set_missed(device, 0, effects);
    }

    /// Records that a device has joined, or greeted again, and has lost what it was sent before.
    pub(super) fn record_joined(&mut self, device: DeviceId) {
        self.patience.joined(device);
    }

    /// Whether a device that joins was connected before while the open round was open, and has sent no answer
    /// since it joined the last time. Must be called before the device counts as connected.
    pub(super) fn has_left_silently(&self, device: DeviceId) -> bool {
        let Some(round) = self.open.as_ref().filter(|_| self.patience.counts(self.phase)) else {
            return false;
        };
        let was_sent = match self.fleet.get(&device) {
            Some(Presence::Connected) => true,
            Some(Presence::Disconnected(since)) => *since > round.opened_at,
            Some(Presence::Removed) | None => false,
        };
        was_sent && round.may_answer(device) && self.patience.silent.contains(&device)
    }

    /// Counts a missed deadline of a device that has reconnected in a round that it was sent before, without
    /// an answer. Closes the round if it is complete without the device.
    pub(super) fn count_reconnection(&mut self, now: Millis, device: DeviceId, effects: &mut dyn Effects) {
        if self.count_missed(device, effects) {
            self.close_if_ended(now, device, NotCounted::Silent, effects);
        }
    }

    /// Counts the deadline of the open round for the devices that have missed it. Closes the round if it is
    /// complete without the devices that are not waited for any more.
    pub(super) fn count_deadline(&mut self, now: Millis, effects: &mut dyn Effects) {
        let Some(round) = self.open.as_ref().filter(|_| self.patience.counts(self.phase)) else { return };
        let is_available =
            |device: &DeviceId| self.is_connected(*device) || self.patience.silent.contains(device);
        let (first_id, id) = (round.first_id(), round.broadcast.id);
        let missing: Vec<DeviceId> =
            round.cohort.iter().copied().filter(|d| round.waits_for(*d) && is_available(d)).collect();
        let mut last = None;
        for device in missing {
            if self.count_missed(device, effects) {
                last = Some(device);
            }
        }
        if let Some(device) = last {
            self.close_if_ended(now, device, NotCounted::Silent, effects);
        }
        let is_open = self.open.as_ref().is_some_and(|round| round.first_id() == first_id);
        if is_open && effects.keeps_records() {
            effects.record(Record::DeadlinePassed(id));
        }
    }

    /// Counts a missed deadline of a device. Returns true if rounds do not wait for the device any more.
    fn count_missed(&mut self, device: DeviceId, effects: &mut dyn Effects) -> bool {
        if self.patience.not_awaited.contains(&device) {
            return false;
        }
        let missed = self.patience.missed(device);
        self.counters.missed += 1;
        self.set_missed(device, missed.saturating_add(1), effects);
        let is_ended = self.patience.not_awaited.contains(&device);
        if is_ended {
            effects.act(Action::NotAwaited(device));
        }
        is_ended
    }

    /// Sets the number of deadlines that a device has missed in a row, and stops waiting for it if these are
    /// too many.
    fn set_missed(&mut self, device: DeviceId, missed: u32, effects: &mut dyn Effects) {
        let was_known = self.patience.missed.contains_key(&device);
        let awaited = self.patience.set_missed(device, missed);
        if !was_known && missed == 0 {
            return;
        }
        if let Some(round) = self.open.as_mut().filter(|_| awaited == Some(false)) {
            round.stop_waiting(device);
        }
        if effects.keeps_records() {
            let round = self.last_id;
            effects.record(Record::Missed(MissedDeadlines { round, device, missed, awaited }));
        }
    }

    /// Resets the number of deadlines that a device has missed in a row.
    fn reset_missed(&mut self, device: DeviceId, effects: &mut dyn Effects) {
        let was_awaited = !self.patience.not_awaited.contains(&device);
        self.set_missed(device, 0, effects);
        if !was_awaited {
            effects.act(Action::Awaited(device));
        }
    }

    /// Records an answer of a device to the round `id`. An answer in time resets the number of missed
    /// deadlines.
    pub(super) fn record_answer(
        &mut self,
        now: Millis,
        device: DeviceId,
        id: RoundId,
        effects: &mut dyn Effects,
    ) {
        let asks = |round: &OpenRound| round.cohort.contains(&device) && round.id_for(device) == id;
        let is_of_open_round = self.open.as_ref().is_some_and(asks);
        let sent = self.patience.sent.get(&device).copied().filter(|sent| sent.id == id);
        // A message about a round that the device was not sent is no answer.
        if !is_of_open_round && sent.is_none() {
            return;
        }
        self.patience.silent.remove(&device);
        self.patience.sent.remove(&device);
        if self.patience.missed(device) == 0 {
            return;
        }
        if is_of_open_round {
            return self.reset_missed(device, effects);
        }
        let Some(sent) = sent else { return };
        let is_in_time = self.settings.deadline.is_some_and(|deadline| now - sent.at < deadline);
        if is_in_time {
            self.reset_missed(device, effects);
        }
        let is_connected = self.is_connected(device);
        let is_needed = is_in_time && self.wait_if_needed(device);
        let Some(round) = self.open.as_ref().filter(|round| is_connected && round.may_answer(device)) else {
            return;
        };
        if is_needed || !is_in_time {
            let broadcast = round.full_broadcast_for(device);
            self.send_round(now, device, broadcast, effects);
        }
    }

    /// Waits in the open round for a device that rounds wait for again, if the round needs its update.
    /// Otherwise rounds wait for it from the next one on: it has missed the opening of this round, so it could
    /// miss the deadline as well. Returns true if the round waits.
    fn wait_if_needed(&mut self, device: DeviceId) -> bool {
        let needs = |round: &&mut OpenRound| round.outstanding() == 0 && round.may_answer(device);
        let Some(round) = self.open.as_mut().filter(needs) else { return false };
        round.wait_again(device);
        true
    }

    /// Sends the open round to the devices that it does not wait for, if they are free and were not sent it,
    /// after its deadline was extended.
    pub(super) fn send_to_not_awaited(&mut self, now: Millis, effects: &mut dyn Effects) {
        let Some(round) = &self.open else { return };
        let was_sent = |device: DeviceId| {
            self.patience.sent.get(&device).is_some_and(|sent| sent.id == round.id_for(device))
        };
        let free: Vec<_> = round
            .not_awaited()
            .filter(|device| self.is_connected(*device))
            .filter(|device| !was_sent(*device) && !self.is_occupied(now, *device))
            .map(|device| (device, round.full_broadcast_for(device)))
            .collect();
        for (device, broadcast) in free {
            self.send_round(now, device, broadcast, effects);
        }
    }
}
