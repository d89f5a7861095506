//! State of one open round: its broadcasts, invited devices and counted updates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;

use super::{Effects, Phase, Record, RoundBroadcast, RoundOpening, Settings};
use crate::aggregate::{SampleCap, UpdateWeight};
use crate::participation::{Cohort, SampleTarget};
use crate::types::{DeviceId, Millis};

/// Broadcast without the tensors that some devices already have.
#[derive(Debug)]
struct ReducedBroadcast {
    broadcast: Arc<RoundBroadcast>,
    /// Number of the round that a device must have answered last in order to receive this broadcast.
    answered: u32,
}

/// Sizes of a round, on which the promise of a robust rule depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundSizes {
    /// Number of counted updates.
    pub devices: u32,
    /// Declared number of samples of the median device.
    pub samples: u32,
}

/// State of the open round.
#[derive(Debug)]
pub struct OpenRound {
    /// Broadcast under the round's current id.
    pub broadcast: Arc<RoundBroadcast>,
    /// Earlier ids of the round, oldest first; see [`Self::rename`].
    pub previous_ids: Vec<RoundId>,
    /// Broadcasts under earlier ids, for the devices that keep the id under which they were invited.
    earlier_broadcasts: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    /// Whether an invited device has declined the current id as finished, so that it can answer only under a
    /// new id.
    pub needs_new_id: bool,
    /// Reduced broadcast for devices that already have the unchanged tensors.
    reduced: Option<ReducedBroadcast>,
    /// Time at which the round opened.
    pub opened_at: Millis,
    /// Devices that were present when the round opened, ascending.
    pub fleet: Vec<DeviceId>,
    /// State of the participation policy before it drew the cohort.
    pub policy_state: Vec<f64>,
    /// Time at which the round closes with the updates that have counted, if rounds have deadlines.
    pub deadline: Option<Millis>,
    /// Invited devices.
    pub cohort: BTreeSet<DeviceId>,
    /// Number of times each device was drawn. A device that is not in the map was drawn once.
    draws: BTreeMap<DeviceId, u32>,
    /// Number of updates that completes the round.
    pub target: usize,
    /// Number of samples that completes the round with fewer updates.
    pub sample_target: Option<SampleTarget>,
    /// Sum of the declared sample counts of the counted updates, after capping.
    pub counted_samples: u64,
    /// Declared sample counts of the counted updates, capped at the maximum for one device, ascending.
    pub(super) declared_samples: Vec<u32>,
    /// Bounds on the declared sample counts.
    pub(super) sample_cap: SampleCap,
    /// Minimum number of updates with which the round closes, at least 1; the target is no smaller.
    pub min_updates: usize,
    /// Whether every device that joins is invited, because too few devices of the cohort can answer.
    pub asking_everyone: bool,
    /// Devices whose updates counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Digest of the counted update of each device, to recognise repeated updates.
    pub(super) digests: BTreeMap<DeviceId, u32>,
    /// Devices that declined the round or whose update was rejected.
    pub excluded: BTreeSet<DeviceId>,
    /// Devices that the round no longer waits for, because they have been disconnected too long. They are
    /// invited again when they reconnect.
    pub absent: BTreeSet<DeviceId>,
    /// Devices that may still answer, and that the round does not wait for because they have missed too many
    /// deadlines.
    not_awaited: BTreeSet<DeviceId>,
}

impl OpenRound {
    /// Creates a round without updates.
    #[must_use]
    pub fn new(
        broadcast: Arc<RoundBroadcast>,
        fleet: Vec<DeviceId>,
        cohort: Cohort,
        now: Millis,
        settings: &Settings,
    ) -> Self {
        Self {
            broadcast,
            previous_ids: Vec::new(),
            earlier_broadcasts: BTreeMap::new(),
            needs_new_id: false,
            reduced: None,
            opened_at: now,
            fleet,
            policy_state: Vec::new(),
            deadline: settings.deadline.map(|limit| now + limit),
            cohort: cohort.devices.into_iter().collect(),
            draws: cohort.draws,
            target: cohort.target.max(settings.min_count),
            sample_target: cohort.sample_target,
            counted_samples: 0,
            declared_samples: Vec::new(),
            sample_cap: settings.samples,
            min_updates: settings.min_count.max(1),
            asking_everyone: false,
            participants: Vec::new(),
            digests: BTreeMap::new(),
            excluded: BTreeSet::new(),
            absent: BTreeSet::new(),
            not_awaited: BTreeSet::new(),
        }
    }

    /// Weight of a device's update computed from `samples` samples.
    #[must_use]
    pub fn update_weight(&self, device: DeviceId, samples: u32) -> UpdateWeight {
        UpdateWeight { samples, draws: self.draws.get(&device).copied().unwrap_or(1) }
    }

    /// Adds a reduced broadcast, without the tensors of the roles `unchanged`, for devices whose last answer
    /// was for round `answered`.
    #[must_use]
    pub fn with_reduced_broadcast(mut self, unchanged: &[Role], answered: u32) -> Self {
        self.reduced = self
            .broadcast
            .without_roles(unchanged)
            .map(|broadcast| ReducedBroadcast { broadcast: Arc::new(broadcast), answered });
        self
    }

    /// Sets the deadline if the round has none.
    #[must_use]
    pub fn with_default_deadline(self, deadline: Millis) -> Self {
        Self { deadline: self.deadline.or(Some(deadline)), ..self }
    }

    /// Records the state that the participation policy had before it drew the cohort.
    #[must_use]
    pub fn with_policy_state(self, policy_state: Vec<f64>) -> Self {
        Self { policy_state, ..self }
    }

    /// Continues the round under another id. Counted updates stay counted under their id. Devices for which
    /// `keeps` returns true keep the id under which they were invited. All other devices are invited under
    /// the new id; a device that declined the old id can accept the new one.
    pub fn rename(&mut self, id: RoundId, keeps: impl Fn(&Self, DeviceId) -> bool) {
        let (keeping, invited): (Vec<DeviceId>, Vec<DeviceId>) =
            self.cohort.iter().partition(|device| keeps(self, **device));
        for device in keeping {
            self.earlier_broadcasts.entry(device).or_insert_with(|| Arc::clone(&self.broadcast));
        }
        for device in invited {
            self.earlier_broadcasts.remove(&device);
        }
        self.previous_ids.push(self.broadcast.id);
        self.broadcast = Arc::new(self.broadcast.with_id(id));
        (self.reduced, self.needs_new_id) = (None, false);
    }

    /// Restores the earlier id under which a device was invited.
    pub fn keep_earlier_id(&mut self, device: DeviceId, id: RoundId) {
        if self.previous_ids.contains(&id) {
            self.earlier_broadcasts.insert(device, Arc::new(self.broadcast.with_id(id)));
        }
    }

    /// Description of the round in `phase` under its current id, for records.
    pub(super) fn opening(&self, phase: Phase) -> RoundOpening {
        RoundOpening {
            id: self.broadcast.id,
            continues: self.previous_ids.last().copied(),
            phase,
            opened_at: self.opened_at,
            target: self.target.min(self.cohort.len()),
            sample_target: self.sample_target.map(|target| target.samples),
            cohort: self.cohort.iter().copied().collect(),
        }
    }

    /// First id of the round.
    #[must_use]
    pub fn first_id(&self) -> RoundId {
        self.previous_ids.first().copied().unwrap_or(self.broadcast.id)
    }

    /// Id of the round under which this device was invited.
    #[must_use]
    pub fn id_for(&self, device: DeviceId) -> RoundId {
        self.earlier_broadcasts.get(&device).map_or(self.broadcast.id, |broadcast| broadcast.id)
    }

    /// Whether an update of the device has counted.
    #[must_use]
    pub fn has_counted(&self, device: DeviceId) -> bool {
        self.digests.contains_key(&device)
    }

    /// Whether this is the current id or an earlier id of the round.
    #[must_use]
    pub fn has_id(&self, id: RoundId) -> bool {
        self.broadcast.id == id || self.previous_ids.contains(&id)
    }

    /// Complete broadcast for a device that may have lost all state.
    #[must_use]
    pub fn full_broadcast_for(&self, device: DeviceId) -> Arc<RoundBroadcast> {
        Arc::clone(self.earlier_broadcasts.get(&device).unwrap_or(&self.broadcast))
    }

    /// Removes the exclusion of a device, and returns the broadcast with which it is invited again.
    pub(super) fn ask_again(&mut self, device: DeviceId, effects: &mut dyn Effects) -> Arc<RoundBroadcast> {
        if self.excluded.remove(&device) && effects.keeps_records() {
            effects.record(Record::Reinvited(device));
        }
        self.earlier_broadcasts.remove(&device);
        Arc::clone(&self.broadcast)
    }

    /// Excludes a device, so that the round no longer waits for its answer.
    pub(super) fn exclude(&mut self, device: DeviceId, effects: &mut dyn Effects) {
        self.not_awaited.remove(&device);
        if self.excluded.insert(device) && effects.keeps_records() {
            effects.record(Record::Excluded(device));
        }
    }

    /// Whether the broadcast of a device depends on the round that it has answered last.
    #[must_use]
    pub(super) fn has_reduced_broadcast(&self) -> bool {
        self.reduced.is_some()
    }

    /// Broadcast for a device whose last update was for round `answered`: reduced if possible.
    #[must_use]
    pub fn broadcast_for(&self, answered: Option<u32>) -> Arc<RoundBroadcast> {
        let reduced = self.reduced.as_ref().filter(|reduced| answered == Some(reduced.answered));
        Arc::clone(reduced.map_or(&self.broadcast, |reduced| &reduced.broadcast))
    }

    /// Whether the device is invited and may still answer the round.
    #[must_use]
    pub fn may_answer(&self, device: DeviceId) -> bool {
        self.cohort.contains(&device)
            && !self.has_counted(device)
            && !self.excluded.contains(&device)
            && !self.absent.contains(&device)
    }

    /// Whether the round still waits for the device.
    #[must_use]
    pub fn waits_for(&self, device: DeviceId) -> bool {
        self.may_answer(device) && !self.not_awaited.contains(&device)
    }

    /// Number of devices that the round still waits for.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let answered = self.participants.len() + self.excluded.len();
        self.cohort.len() - answered - self.absent.len() - self.not_awaited.len()
    }

    /// Devices that the round still waits for, ascending.
    pub fn awaited(&self) -> impl Iterator<Item = DeviceId> {
        self.cohort.iter().copied().filter(|device| self.waits_for(*device))
    }

    /// Devices that may still answer, and that the round does not wait for, ascending.
    pub fn not_awaited(&self) -> impl ExactSizeIterator<Item = DeviceId> {
        self.not_awaited.iter().copied()
    }

    /// Stops waiting for a device, which may still answer.
    pub(super) fn stop_waiting(&mut self, device: DeviceId) {
        if self.may_answer(device) {
            self.not_awaited.insert(device);
        }
    }

    /// Waits for a device again.
    pub(super) fn wait_again(&mut self, device: DeviceId) {
        self.not_awaited.remove(&device);
    }

    /// Stops waiting for devices that have been disconnected too long.
    pub(super) fn mark_absent(&mut self, devices: &[DeviceId]) {
        for device in devices {
            self.not_awaited.remove(device);
            self.absent.insert(*device);
        }
    }

    /// Whether the target of the round is met, in updates or in samples.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        let counted = self.participants.len();
        let sample_target = self.sample_target.is_some_and(|sample_target| {
            self.counted_samples >= sample_target.samples
                && counted >= sample_target.answers.max(self.min_updates)
        });
        counted >= self.target || sample_target
    }

    /// Whether the round can close: its target is met, or every device that it waits for has answered and the
    /// minimum is met.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_reached() || self.outstanding() == 0 && self.participants.len() >= self.min_updates
    }

    /// Number of counted updates, and the number of samples of the median device.
    pub(super) fn sizes(&self) -> RoundSizes {
        let count = self.declared_samples.len();
        RoundSizes {
            devices: u32::try_from(self.participants.len()).unwrap_or(u32::MAX),
            samples: self.declared_samples.get(count.saturating_sub(1) / 2).copied().unwrap_or(0),
        }
    }

    /// Number of counted updates whose sample count is reduced because it is too large compared with those of
    /// the other devices.
    #[must_use]
    pub fn capped_to_others(&self) -> usize {
        let bound = self.sample_cap.bound(&self.declared_samples);
        self.declared_samples.len() - self.declared_samples.partition_point(|count| *count <= bound)
    }

    /// Whether sample counts are capped by a fixed maximum alone, so that [`Self::counted_samples`] grows by
    /// at most the count that the next device declares.
    #[must_use]
    pub fn has_absolute_cap(&self) -> bool {
        !self.sample_cap.relative
    }
}
