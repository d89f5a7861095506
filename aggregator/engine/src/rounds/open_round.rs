//! One open round: who was asked, who answered, and whether an update may count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::message::{AckOutcome, Rejection, RoundId};
use fedspan_protocol::tensor::{Role, TensorDescriptor};

use super::Settings;
use crate::aggregate::{SampleCap, UpdateWeight};
use crate::participation::{Cohort, SampleTarget};
use crate::types::{DeviceId, Millis, Request, Tensor, Update};

/// What is sent to every device of a round.
#[derive(Debug, PartialEq)]
pub struct RoundBroadcast {
    /// Which round.
    pub id: RoundId,
    /// What it asks.
    pub request: Request,
    /// The request's tensors as they travel, encoded once for all devices.
    pub encoded: Vec<Vec<u8>>,
}

impl RoundBroadcast {
    /// Encodes a request.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for a value that the encoding cannot hold: of a shared model that has diverged.
    pub fn new(id: RoundId, request: Request) -> Result<Self, Error> {
        let encode = |tensor: &Tensor| {
            let encoding = tensor.descriptor(request.encoding).encoding;
            let mut bytes = vec![0; encoding.byte_len(tensor.values.len())];
            encoding.encode(&tensor.values, &mut bytes).map(|()| bytes)
        };
        let encoded = request.tensors.iter().map(encode).collect::<Result<_, _>>()?;
        Ok(Self { id, request, encoded })
    }

    /// The same under another number.
    fn with_id(&self, id: RoundId) -> Self {
        let Request { task, ref tensors, encoding, ref expects } = self.request;
        let request = Request { task, tensors: tensors.clone(), encoding, expects: expects.clone() };
        Self { id, request, encoded: self.encoded.clone() }
    }

    /// The same without the tensors of these roles; `None` if it has none of them.
    fn without_roles(&self, roles: &[Role]) -> Option<Self> {
        let sent = |tensor: &Tensor| !roles.contains(&tensor.role);
        if self.request.tensors.iter().all(sent) {
            return None;
        }
        let (tensors, encoded) = self
            .request
            .tensors
            .iter()
            .zip(&self.encoded)
            .filter(|(tensor, _)| sent(tensor))
            .map(|(tensor, bytes)| (tensor.clone(), bytes.clone()))
            .unzip();
        let Request { task, encoding, ref expects, .. } = self.request;
        let request = Request { task, tensors, encoding, expects: expects.clone() };
        Some(Self { id: self.id, request, encoded })
    }
}

/// An opening with fewer tensors.
#[derive(Debug)]
struct ReducedBroadcast {
    broadcast: Arc<RoundBroadcast>,
    /// For those who have answered this exchange.
    answered: u32,
}

/// What the engine knows of the round that is open.
#[derive(Debug)]
pub struct OpenRound {
    /// What was sent, under the number that the round has now.
    pub broadcast: Arc<RoundBroadcast>,
    /// The numbers that it had before, oldest first: [`Self::rename`].
    pub previous_ids: Vec<RoundId>,
    /// What was sent to those who were asked under one of them, and are not asked again.
    earlier_broadcasts: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    /// Somebody who is asked has done the round already, as far as it can know: under this number it never answers.
    pub needs_new_id: bool,
    /// What is enough for those who have the rest.
    reduced: Option<ReducedBroadcast>,
    /// When it opened.
    pub opened_at: Millis,
    /// Devices that were there then, ascending.
    pub fleet: Vec<DeviceId>,
    /// What the participation policy was before it said whom to ask.
    pub policy_state: Vec<f64>,
    /// When it closes whatever has come, if there are deadlines.
    pub deadline: Option<Millis>,
    /// Who was asked.
    pub cohort: BTreeSet<DeviceId>,
    /// How often each of them was drawn, where that is not once.
    draws: BTreeMap<DeviceId, u32>,
    /// How many answers complete it.
    pub target: usize,
    /// So do fewer, if they are enough.
    pub sample_target: Option<SampleTarget>,
    /// Samples of those who count, as they say and as far as they count.
    pub counted_samples: u64,
    /// What each of them says, at most what any device may, ascending.
    declared_samples: Vec<u32>,
    sample_cap: SampleCap,
    /// Fewest answers that close it at the deadline, or when nobody else can answer: the campaign's minimum
    /// count, but never more than the participation rule waits for.
    pub min_updates: usize,
    /// Too few of those who were asked first can answer: everybody who comes is asked.
    pub asking_everyone: bool,
    /// Who counts, in order of arrival, and the digest of what counted.
    pub participants: Vec<DeviceId>,
    digests: BTreeMap<DeviceId, u32>,
    /// Who will not answer: declined or rejected.
    pub excluded: BTreeSet<DeviceId>,
    /// Who is not waited for any more, having been gone for too long; asked again when it is back.
    pub absent: BTreeSet<DeviceId>,
}

impl OpenRound {
    /// A round that nobody has answered.
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
            deadline: settings.deadline.map(|limit| now.saturating_add(limit)),
            cohort: cohort.devices.into_iter().collect(),
            draws: cohort.draws,
            target: cohort.target,
            sample_target: cohort.sample_target,
            counted_samples: 0,
            declared_samples: Vec::new(),
            sample_cap: settings.samples,
            min_updates: settings.min_count.min(cohort.target).max(1),
            asking_everyone: false,
            participants: Vec::new(),
            digests: BTreeMap::new(),
            excluded: BTreeSet::new(),
            absent: BTreeSet::new(),
        }
    }

    /// What a device's update counts that was computed from so many samples.
    #[must_use]
    pub fn update_weight(&self, device: DeviceId, samples: u32) -> UpdateWeight {
        UpdateWeight { samples, draws: self.draws.get(&device).copied().unwrap_or(1) }
    }

    /// Who has answered exchange `before` is sent no tensors of the roles `unchanged`, in place of all.
    #[must_use]
    pub fn with_reduced_broadcast(mut self, unchanged: &[Role], before: u32) -> Self {
        self.reduced = self
            .broadcast
            .without_roles(unchanged)
            .map(|broadcast| ReducedBroadcast { broadcast: Arc::new(broadcast), answered: before });
        self
    }

    /// With a deadline, if it has none: then.
    #[must_use]
    pub fn with_default_deadline(self, deadline: Millis) -> Self {
        Self { deadline: self.deadline.or(Some(deadline)), ..self }
    }

    /// Whom to ask was said by a policy of this state.
    #[must_use]
    pub fn with_policy_state(self, policy_state: Vec<f64>) -> Self {
        Self { policy_state, ..self }
    }

    /// Goes on under another number: what has counted counts, under the number that it had. Who has declined can answer the
    /// new one, to which it is a round that it has never seen; everybody else of whom `keeps` is true is asked what
    /// it was asked before.
    pub fn rename(&mut self, id: RoundId, keeps: impl Fn(&Self, DeviceId) -> bool) {
        let (kept, asked): (Vec<DeviceId>, Vec<DeviceId>) =
            self.cohort.iter().partition(|device| keeps(self, **device));
        for device in kept {
            self.earlier_broadcasts.entry(device).or_insert_with(|| Arc::clone(&self.broadcast));
        }
        for device in asked {
            self.earlier_broadcasts.remove(&device);
        }
        self.previous_ids.push(self.broadcast.id);
        self.broadcast = Arc::new(self.broadcast.with_id(id));
        (self.reduced, self.needs_new_id) = (None, false);
    }

    /// A device was asked when the round had this number, and keeps it.
    pub fn keep_earlier_id(&mut self, device: DeviceId, id: RoundId) {
        if self.previous_ids.contains(&id) {
            self.earlier_broadcasts.insert(device, Arc::new(self.broadcast.with_id(id)));
        }
    }

    /// The number under which the round was opened first.
    #[must_use]
    pub fn first_id(&self) -> RoundId {
        self.previous_ids.first().copied().unwrap_or(self.broadcast.id)
    }

    /// What the round is called where this device is concerned.
    #[must_use]
    pub fn id_for(&self, device: DeviceId) -> RoundId {
        self.earlier_broadcasts.get(&device).map_or(self.broadcast.id, |broadcast| broadcast.id)
    }

    /// Whether the update of a device counts.
    #[must_use]
    pub fn has_counted(&self, device: DeviceId) -> bool {
        self.digests.contains_key(&device)
    }

    /// Whether the round has or had this number.
    #[must_use]
    pub fn has_id(&self, id: RoundId) -> bool {
        self.broadcast.id == id || self.previous_ids.contains(&id)
    }

    /// What is sent to a device that may have lost everything.
    #[must_use]
    pub fn full_broadcast_for(&self, device: DeviceId) -> Arc<RoundBroadcast> {
        Arc::clone(self.earlier_broadcasts.get(&device).unwrap_or(&self.broadcast))
    }

    /// Asks somebody who has declined, or whose update was rejected, again.
    pub fn ask_again(&mut self, device: DeviceId) -> Arc<RoundBroadcast> {
        self.excluded.remove(&device);
        self.earlier_broadcasts.remove(&device);
        Arc::clone(&self.broadcast)
    }

    /// What is sent to a device whose last answer was to exchange `answered`.
    #[must_use]
    pub fn broadcast_for(&self, answered: Option<u32>) -> Arc<RoundBroadcast> {
        let reduced = self.reduced.as_ref().filter(|reduced| answered == Some(reduced.answered));
        Arc::clone(reduced.map_or(&self.broadcast, |reduced| &reduced.broadcast))
    }

    /// Whether `device` is still expected to answer.
    #[must_use]
    pub fn awaits(&self, device: DeviceId) -> bool {
        self.cohort.contains(&device)
            && !self.has_counted(device)
            && !self.excluded.contains(&device)
            && !self.absent.contains(&device)
    }

    /// Devices that may still answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.cohort.len() - self.participants.len() - self.excluded.len() - self.absent.len()
    }

    /// As many have answered as it waits for.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        let counted = self.participants.len();
        let sample_target = self.sample_target.is_some_and(|sample_target| {
            self.counted_samples >= sample_target.samples
                && counted >= sample_target.answers.max(self.min_updates)
        });
        counted >= self.target || sample_target
    }

    /// As many have answered as it waits for, or nobody else can and the fewest that will do have.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_reached() || self.outstanding() == 0 && self.participants.len() >= self.min_updates
    }

    /// Who counts with fewer samples than it says, as others say so much less.
    #[must_use]
    pub fn capped_to_others(&self) -> usize {
        let bound = self.sample_cap.bound(&self.declared_samples);
        self.declared_samples.len() - self.declared_samples.partition_point(|count| *count <= bound)
    }

    /// Whether [`Self::counted_samples`] grows by no more than what the next device says.
    #[must_use]
    pub fn has_absolute_cap(&self) -> bool {
        !self.sample_cap.relative
    }

    /// Judges an update for this round, of which the algorithm says whether it admits its tensors.
    /// [`AckOutcome::Counted`] means that it must be absorbed now; it has been entered already.
    pub fn record_update(
        &mut self,
        device: DeviceId,
        update: &Update,
        norm_bound: f32,
        admits: impl FnOnce(&[Tensor]) -> bool,
    ) -> AckOutcome {
        if !self.cohort.contains(&device) {
            return AckOutcome::Rejected(Rejection::NotAsked);
        }
        let digest = update.digest();
        match self.digests.get(&device) {
            Some(known) if *known == digest => return AckOutcome::Duplicate,
            // Where nothing is uploaded there is nothing to contradict: the head was fitted again.
            Some(_) if self.broadcast.request.expects.is_empty() => return AckOutcome::Duplicate,
            Some(_) => return AckOutcome::Rejected(Rejection::ContentChanged),
            None => {}
        }
        // It is back, whatever it says.
        self.absent.remove(&device);
        let expects = &self.broadcast.request.expects;
        let admitted = |()| if admits(&update.tensors) { Ok(()) } else { Err(Rejection::Tensors) };
        if let Err(rejection) = check(update, expects, norm_bound).and_then(admitted) {
            self.excluded.insert(device);
            return AckOutcome::Rejected(rejection);
        }
        // One that was rejected and now sends something good is welcome.
        self.excluded.remove(&device);
        self.digests.insert(device, digest);
        self.participants.push(device);
        let samples = update.samples.min(self.sample_cap.max_samples);
        self.declared_samples
            .insert(self.declared_samples.partition_point(|other| *other <= samples), samples);
        self.counted_samples = if self.sample_cap.relative {
            self.sample_cap.total(&self.declared_samples)
        } else {
            self.counted_samples.saturating_add(samples.into())
        };
        AckOutcome::Counted
    }
}

fn check(update: &Update, expects: &[TensorDescriptor], norm_bound: f32) -> Result<(), Rejection> {
    let same = |(a, b): (&TensorDescriptor, &TensorDescriptor)| {
        (a.role, a.encoding, a.rows, a.cols) == (b.role, b.encoding, b.rows, b.cols)
    };
    if update.descriptors.len() != expects.len() || !update.descriptors.iter().zip(expects).all(same) {
        return Err(Rejection::Tensors);
    }
    if update.samples == 0 {
        return Err(Rejection::NoSamples);
    }
    let values = update.tensors.iter().flat_map(|t| t.values.iter());
    let square: f64 = values.map(|&v| f64::from(v) * f64::from(v)).sum();
    // The sum of finite values is: their squares are below 2^256.
    if !square.is_finite() {
        return Err(Rejection::NonFinite);
    }
    // Limbs of integers have no norm that means anything; the algorithm checks them.
    if expects.iter().any(|tensor| tensor.role == Role::FeatureSums) {
        return Ok(());
    }
    #[allow(clippy::cast_possible_truncation, reason = "for a comparison with an f32 bound and a message")]
    let norm = square.sqrt() as f32;
    if norm > norm_bound {
        return Err(Rejection::NormOverBound { norm, bound: norm_bound });
    }
    Ok(())
}
