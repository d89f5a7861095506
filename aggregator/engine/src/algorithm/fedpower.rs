//! FedPower on the server (Guo et al. 2024, Algorithms 1 to 3): between two exchanges devices take power iterations of
//! their own; the server turns what they send into one basis each, averages, and orthonormalises.
//!
//! Where devices are alone for more than one iteration their bases drift apart, in rotations that mean nothing. The
//! orthogonal Procrustes transformation takes these out: `Y_i D_i`, with the `D_i` that brings the `Z_i` of device i
//! nearest to that of one device, the *reference* (eq. 3.2). Any device will do, since another one turns the mean as a
//! whole (nearly), and the span is all that is wanted: the device that was named, or if it has not answered the one
//! with the lowest number.

use std::collections::BTreeMap;

use fedspan_protocol::message::{HeadSolve, PowerRows, PowerUpload, Task};
use fedspan_protocol::tensor::{Encoding, Role};

use super::Algorithm;
use super::fedrep::tensor;
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight, procrustes};
use crate::linalg::{Matrix, RankDeficient, from_f32, orthonormal, product, product_transposed, to_f32};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// How far from orthonormal the basis may be by which a device is aligned: what encodings do to it, and a little more.
const ORTHONORMAL: f64 = 0.05;

/// FedPower's choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedPowerParameters {
    /// T, all power iterations.
    pub iterations: u16,
    /// p, iterations from one exchange to the next.
    pub local_steps: u16,
    /// Whether p is one less after every exchange, down to 1 (eq. 3.11).
    pub decay: bool,
    /// Whether devices are aligned before they are averaged.
    pub procrustes: bool,
    /// With which device, as long as it answers.
    pub reference: Option<DeviceId>,
    /// What a row of a device's matrix is.
    pub rows: PowerRows,
    /// How the basis is sent to devices.
    pub download_encoding: Encoding,
    /// How devices encode what they send.
    pub upload_encoding: Encoding,
    /// Weights of the updates.
    pub weighting: Weighting,
    /// How they become one. A rule for subspaces needs no alignment.
    pub rule: Rule,
}

impl FedPowerParameters {
    /// Iterations before each exchange, and what devices send then. Where the exchanges do not end with T, the last
    /// one averages the devices' bases for output.
    #[must_use]
    pub fn exchanges(&self) -> Vec<(u16, PowerUpload)> {
        let (steps, ends) = synchronisations(self.iterations, self.local_steps, self.decay);
        let last = steps.len() - usize::from(!ends);
        let upload = |(place, steps)| if place < last { self.upload(steps) } else { PowerUpload::Basis };
        steps.iter().enumerate().map(|(place, steps)| (*steps, upload((place, *steps)))).collect()
    }

    fn upload(&self, steps: u16) -> PowerUpload {
        if self.rule.is_for_subspaces() {
            PowerUpload::Basis
        } else if self.procrustes && steps > 1 {
            // With one step all devices have the server's own basis.
            PowerUpload::ProductAndBasis
        } else {
            PowerUpload::Product
        }
    }
}

/// Iterations from each exchange to the next, all T together, and whether the last exchange is one of the
/// synchronisation set: every p iterations (eq. 3.1), or with `decay` p, then one less each time, down to 1 (eq. 3.11).
#[must_use]
pub fn synchronisations(iterations: u16, local_steps: u16, decay: bool) -> (Vec<u16>, bool) {
    let mut all = Vec::new();
    let (mut left, mut steps) = (iterations, local_steps.max(1));
    while left >= steps {
        all.push(steps);
        left -= steps;
        if decay {
            steps = (steps - 1).max(1);
        }
    }
    let ends = left == 0;
    if !ends {
        all.push(left);
    }
    (all, ends)
}

/// FedPower's state: the basis, and what the open round has brought.
#[derive(Clone, Debug)]
pub struct FedPower {
    basis: Matrix,
    parameters: FedPowerParameters,
    exchanges: Vec<(u16, PowerUpload)>,
    /// How many of them are done.
    done: usize,
    round: RoundAggregate,
    /// Updates that are to be aligned, in order of devices.
    pending: BTreeMap<DeviceId, (UpdateWeight, Vec<Tensor>)>,
}

impl FedPower {
    /// Starts from `basis` (d x r, orthonormal columns).
    #[must_use]
    pub fn new(basis: Matrix, parameters: FedPowerParameters) -> Self {
        let FedPowerParameters { rule, weighting, .. } = parameters;
        let round = RoundAggregate::new(rule, weighting, basis.len());
        Self {
            exchanges: parameters.exchanges(),
            basis,
            parameters,
            done: 0,
            round,
            pending: BTreeMap::new(),
        }
    }

    /// The next exchange; after the last one, the last again.
    fn exchange(&self) -> (u16, PowerUpload) {
        let next = self.exchanges.get(self.done).or(self.exchanges.last());
        next.copied().unwrap_or((1, PowerUpload::Product))
    }

    /// Whether updates are aligned. Bases that are averaged as numbers always are, as nothing can be said of signs.
    fn aligns(&self) -> bool {
        let (_, upload) = self.exchange();
        match upload {
            PowerUpload::ProductAndBasis => true,
            PowerUpload::Basis => self.parameters.procrustes && !self.parameters.rule.is_for_subspaces(),
            _ => false,
        }
    }

    fn matrix(&self, values: &[f32]) -> Matrix {
        from_f32(self.basis.nrows(), self.basis.ncols(), values)
    }

    /// Hands the updates that were kept to the rule, each turned towards the reference.
    fn align(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let named = self.parameters.reference.and_then(|device| pending.get(&device));
        let reference = named.or(pending.values().next()).and_then(|(_, tensors)| tensors.last());
        let Some(reference) = reference.map(|tensor| self.matrix(&tensor.values)) else { return };
        // Those who were only asked for others to be aligned with are better than nobody.
        let only_references = pending.values().all(|(weight, _)| weight.draws == 0);
        for (device, (weight, tensors)) in pending {
            let weight = if only_references { UpdateWeight::from_samples(weight.samples) } else { weight };
            let (Some(sent), Some(own), 1..) = (tensors.first(), tensors.last(), weight.draws) else {
                continue;
            };
            let turn = procrustes(&self.matrix(&own.values), &reference);
            let turned = product(&self.matrix(&sent.values), &turn);
            self.round.absorb(device, weight, &[tensor(Role::Subspace, &turned, to_f32(&turned))]);
        }
    }
}

impl Algorithm for FedPower {
    fn request(&self) -> Request {
        let FedPowerParameters { rows, download_encoding, upload_encoding, .. } = self.parameters;
        let (iterations, upload) = self.exchange();
        let sent = tensor(Role::Subspace, &self.basis, to_f32(&self.basis));
        let expects = vec![sent.descriptor(upload_encoding); upload.tensors().into()];
        let task = Task::FedPower { iterations, rows, upload, encoding: upload_encoding };
        Request { task, tensors: vec![sent], encoding: download_encoding, expects }
    }

    fn reference(&self, fleet: &[DeviceId]) -> Option<DeviceId> {
        let named = self.parameters.reference.filter(|device| fleet.contains(device));
        named.or(fleet.first().copied()).filter(|_| self.aligns())
    }

    fn admits(&self, _samples: u32, tensors: &[Tensor]) -> bool {
        let full = |tensor: &Tensor| orthonormal(&self.matrix(&tensor.values)).is_ok();
        match tensors {
            // A rule for subspaces needs full rank.
            [basis] if self.parameters.rule.is_for_subspaces() => full(basis),
            [_, basis] | [basis] if self.aligns() => is_orthonormal(&self.matrix(&basis.values)),
            _ => true,
        }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if tensors.len() != usize::from(self.exchange().1.tensors()) {
            return;
        }
        if self.aligns() {
            self.pending.insert(device, (weight, tensors.to_vec()));
        } else {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        self.align();
        let next = if self.round.rule().is_for_subspaces() {
            let basis = self.basis.clone();
            self.round.take_subspace(&basis)?
        } else {
            let numbers = self.round.take_vector(&[]);
            let (d, r) = self.basis.shape();
            numbers.map(|mean| orthonormal(&Matrix::from_row_iterator(d, r, mean))).transpose()?
        };
        let Some(next) = next else { return Ok(()) };
        self.basis = next;
        self.done += 1;
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.basis
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let sent = tensor(Role::Representation, &self.basis, to_f32(&self.basis));
        let encoding = self.parameters.download_encoding;
        Request { task: Task::FitHead { head }, tensors: vec![sent], encoding, expects: Vec::new() }
    }

    #[allow(clippy::cast_precision_loss, reason = "a number of rounds")]
    fn state(&self) -> Vec<f64> {
        self.basis.iter().copied().chain([self.done as f64]).collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((done, basis)) = state.split_last() else { return false };
        if basis.len() != self.basis.len() {
            return false;
        }
        self.basis.copy_from_slice(basis);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "written by `state`")]
        let done = *done as usize;
        self.done = done.min(self.exchanges.len());
        self.pending.clear();
        true
    }

    fn rounds_needed(&self) -> u32 {
        u32::try_from(self.exchanges.len()).unwrap_or(u32::MAX)
    }
}

fn is_orthonormal(basis: &Matrix) -> bool {
    let gram = product_transposed(basis, basis);
    let identity = Matrix::identity(gram.nrows(), gram.ncols());
    // False for a NaN.
    gram.iter().zip(identity.iter()).all(|(value, wanted)| (value - wanted).abs() <= ORTHONORMAL)
}
