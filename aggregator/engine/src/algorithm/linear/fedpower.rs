//! FedPower on the server (Guo et al. 2024, Algorithms 1 to 3). Between two exchanges with the server (one
//! exchange is one round), each device runs power iterations on its own samples. The server aligns the
//! uploads, averages them, and orthonormalises the mean.
//!
//! With more than one local iteration the devices' bases differ by rotations that do not change their spans.
//! The orthogonal Procrustes transformation removes these rotations: the server averages `Y_i D_i`, where
//! `Y_i = A_i Z_i` is the product that device i uploads, and `D_i` is the rotation that brings its basis
//! `Z_i` nearest to the basis of one device, the *reference* (eq. 3.2). Any device can be the reference:
//! another choice only rotates the mean (nearly), and the algorithm uses only the span of the mean. The
//! reference is the configured device, or the participant with the lowest number if the configured device has
//! not answered.

use std::collections::BTreeMap;

use fedspan_protocol::message::{HeadSolve, PowerRows, PowerUpload, Task};
use fedspan_protocol::tensor::{Encoding, Role};
use toml_edit::Value;

use super::{LinearAlgorithm, LinearSettings, LinearStart, Noise, SecondTensor, Uploads};
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight, procrustes};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::tensor;
use crate::linalg::{Matrix, RankDeficient, from_f32, orthonormal, product, product_transposed, to_f32};
use crate::reader::{Problem, Section};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// Largest deviation from orthonormality of the basis by which a device is aligned: the rounding error of the
/// encodings, with a margin.
const ORTHONORMAL: f64 = 0.05;

/// Values of the key `rows`.
const ROWS: [(&str, PowerRows); 2] = [("features", PowerRows::Features), ("weighted", PowerRows::Weighted)];

/// Settings of FedPower (Guo et al. 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedPowerSettings {
    /// Total number of power iterations (T), from which the number of rounds follows.
    pub iterations: u16,
    /// Iterations from one exchange to the next (p).
    pub local_steps: u16,
    /// Whether p decreases by one after every exchange, down to 1.
    pub decay: bool,
    /// Whether devices are aligned before they are averaged.
    pub procrustes: bool,
    /// Reference device for the alignment of the other devices. If it does not answer, the participant with
    /// the lowest number is the reference.
    pub reference: DeviceId,
    /// Contents of a row of a device's matrix.
    pub rows: PowerRows,
}

impl LinearAlgorithm for FedPowerSettings {
    const NAME: &'static str = "fedpower";
    const SUMMARY: &'static str = "principal directions of all samples, without labels (Guo et al. 2024)";
    const TAKES_STEPS: bool = false;
    const NOISE: Noise = Noise::Products;

    fn read(section: &Section<'_>) -> Result<Self, Problem> {
        let to_u16 = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
        let iterations = to_u16(section.integer("iterations", Some(10), 1..=65_535)?);
        let local_steps = to_u16(section.integer("local_steps", Some(1), 1..=65_535)?);
        if local_steps > iterations {
            let message = format!("found {local_steps}, allowed: at most the {iterations} of \"iterations\"");
            return Err(section.problem("local_steps", message));
        }
        Ok(Self {
            iterations,
            local_steps,
            decay: section.boolean("decay", false)?,
            procrustes: section.boolean("procrustes", true)?,
            reference: section.integer("reference", Some(0), 0..=i64::MAX as u64)?.into(),
            rows: section.choice("rows", Some("features"), &ROWS)?,
        })
    }

    fn write(&self, _settings: &LinearSettings, set: &mut dyn FnMut(&str, Value)) {
        let Self { iterations, local_steps, decay, procrustes, reference, rows } = *self;
        set("iterations", i64::from(iterations).into());
        set("local_steps", i64::from(local_steps).into());
        set("decay", decay.into());
        set("procrustes", procrustes.into());
        set("reference", i64::try_from(reference.0).unwrap_or(i64::MAX).into());
        let name = ROWS.iter().find(|(_, value)| *value == rows).map_or("?", |(name, _)| *name);
        set("rows", name.into());
    }

    fn rounds(&self) -> Option<u64> {
        Some(synchronisations(self.iterations, self.local_steps, self.decay).0.len() as u64)
    }

    /// Returns bases, which rules for subspaces can combine.
    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Bases
    }

    /// Returns the basis, which a device can upload together with the product.
    fn second_tensor(&self) -> Option<SecondTensor> {
        Some(SecondTensor::Representation)
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        let LinearStart { settings, rule, basis, .. } = start;
        let parameters = FedPowerParameters {
            iterations: self.iterations,
            local_steps: self.local_steps,
            decay: self.decay,
            procrustes: self.procrustes,
            reference: Some(self.reference),
            rows: self.rows,
            download_encoding: settings.download,
            upload_encoding: settings.upload,
            weighting: settings.weighting,
            rule,
        };
        Box::new(FedPower::new(basis, parameters))
    }
}

/// Parameters of FedPower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedPowerParameters {
    /// Total number of power iterations (T).
    pub iterations: u16,
    /// Iterations from one exchange to the next (p).
    pub local_steps: u16,
    /// Whether p decreases by one after every exchange, down to 1 (eq. 3.11).
    pub decay: bool,
    /// Whether devices are aligned before they are averaged.
    pub procrustes: bool,
    /// Reference device for the alignment of the other devices. If it does not answer, or with `None`, the
    /// participant with the lowest number is the reference.
    pub reference: Option<DeviceId>,
    /// Contents of a row of a device's matrix.
    pub rows: PowerRows,
    /// Encoding of the basis sent to devices.
    pub download_encoding: Encoding,
    /// Encoding of the devices' uploads.
    pub upload_encoding: Encoding,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Rule that combines the updates. A rule for subspaces needs no alignment of the devices' bases.
    pub rule: Rule,
}

impl FedPowerParameters {
    /// Number of iterations before each exchange, with the kind of upload at that exchange. If T is not in
    /// the synchronisation set, the last exchange averages the devices' bases for output.
    #[must_use]
    pub fn exchanges(&self) -> Vec<(u16, PowerUpload)> {
        let (steps, is_last_regular) = synchronisations(self.iterations, self.local_steps, self.decay);
        let last = steps.len() - usize::from(!is_last_regular);
        let upload = |(index, steps)| if index < last { self.upload(steps) } else { PowerUpload::Basis };
        steps.iter().enumerate().map(|(index, steps)| (*steps, upload((index, *steps)))).collect()
    }

    /// Kind of upload at an exchange after `steps` local iterations.
    fn upload(&self, steps: u16) -> PowerUpload {
        if self.rule.is_for_subspaces() {
            PowerUpload::Basis
        } else if self.procrustes && steps > 1 {
            // With one step all devices start from the broadcast basis, so they need no alignment.
            PowerUpload::ProductAndBasis
        } else {
            PowerUpload::Product
        }
    }
}

/// Numbers of iterations from each exchange to the next (their sum is T), and whether the last exchange
/// belongs to the synchronisation set. Exchanges occur every p iterations (eq. 3.1); with `decay`, p
/// decreases by one after each exchange, down to 1 (eq. 3.11).
#[must_use]
pub fn synchronisations(iterations: u16, local_steps: u16, decay: bool) -> (Vec<u16>, bool) {
    let mut intervals = Vec::new();
    let mut remaining = iterations;
    let mut steps = local_steps.max(1);
    while remaining >= steps {
        intervals.push(steps);
        remaining -= steps;
        if decay {
            steps = (steps - 1).max(1);
        }
    }
    let is_last_regular = remaining == 0;
    if !is_last_regular {
        intervals.push(remaining);
    }
    (intervals, is_last_regular)
}

/// State of FedPower: the basis, and the updates of the open round.
#[derive(Clone, Debug)]
pub struct FedPower {
    basis: Matrix,
    parameters: FedPowerParameters,
    exchanges: Vec<(u16, PowerUpload)>,
    /// Number of finished exchanges.
    finished: usize,
    round: RoundAggregate,
    /// Updates waiting for their alignment, in the order of devices.
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
            finished: 0,
            round,
            pending: BTreeMap::new(),
        }
    }

    /// The next exchange, or the last exchange after all are done.
    fn next_exchange(&self) -> (u16, PowerUpload) {
        let next = self.exchanges.get(self.finished).or(self.exchanges.last());
        next.copied().unwrap_or((1, PowerUpload::Product))
    }

    /// Whether updates are aligned in the next exchange. With `procrustes`, bases that are averaged entry by
    /// entry are always aligned, since their signs are arbitrary.
    fn aligns_updates(&self) -> bool {
        let (_, upload) = self.next_exchange();
        match upload {
            PowerUpload::ProductAndBasis => true,
            PowerUpload::Basis => self.parameters.procrustes && !self.parameters.rule.is_for_subspaces(),
            _ => false,
        }
    }

    /// Matrix of the shape of the basis (d x r) from row-major values.
    fn matrix(&self, values: &[f32]) -> Matrix {
        from_f32(self.basis.nrows(), self.basis.ncols(), values)
    }

    /// Passes the pending updates to the rule, each aligned with the reference.
    fn align_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let configured = self.parameters.reference.and_then(|device| pending.get(&device));
        let reference = configured.or(pending.values().next()).and_then(|(_, tensors)| tensors.last());
        let Some(reference) = reference.map(|tensor| self.matrix(&tensor.values)) else { return };
        // If no device of the drawn cohort has answered, the update of the reference device is used although
        // it has no weight.
        let only_references = pending.values().all(|(weight, _)| weight.draws == 0);
        for (device, (weight, tensors)) in pending {
            let weight = if only_references { UpdateWeight::from_samples(weight.samples) } else { weight };
            let (Some(sent), Some(basis), 1..) = (tensors.first(), tensors.last(), weight.draws) else {
                continue;
            };
            let rotation = procrustes(&self.matrix(&basis.values), &reference);
            let rotated = product(&self.matrix(&sent.values), &rotation);
            self.round.absorb(device, weight, &[tensor(Role::Subspace, &rotated, to_f32(&rotated))]);
        }
    }
}

impl Algorithm for FedPower {
    fn request(&self) -> Request {
        let FedPowerParameters { rows, download_encoding, upload_encoding, .. } = self.parameters;
        let (iterations, upload) = self.next_exchange();
        let sent = tensor(Role::Subspace, &self.basis, to_f32(&self.basis));
        let expects = vec![sent.descriptor(upload_encoding); upload.tensors().into()];
        let task = Task::FedPower { iterations, rows, upload, encoding: upload_encoding };
        Request { task, tensors: vec![sent], encoding: download_encoding, expects }
    }

    fn reference(&self, fleet: &[DeviceId]) -> Option<DeviceId> {
        let configured = self.parameters.reference.filter(|device| fleet.contains(device));
        configured.or(fleet.first().copied()).filter(|_| self.aligns_updates())
    }

    fn admits(&self, _samples: u32, tensors: &[Tensor]) -> bool {
        let has_full_rank = |tensor: &Tensor| orthonormal(&self.matrix(&tensor.values)).is_ok();
        match tensors {
            // A rule for subspaces needs full rank.
            [basis] if self.parameters.rule.is_for_subspaces() => has_full_rank(basis),
            [_, basis] | [basis] if self.aligns_updates() => is_orthonormal(&self.matrix(&basis.values)),
            _ => true,
        }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if tensors.len() != usize::from(self.next_exchange().1.tensors()) {
            return;
        }
        if self.aligns_updates() {
            self.pending.insert(device, (weight, tensors.to_vec()));
        } else {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        self.align_pending();
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
        self.finished += 1;
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
        self.basis.iter().copied().chain([self.finished as f64]).collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((finished, basis)) = state.split_last() else { return false };
        if basis.len() != self.basis.len() {
            return false;
        }
        self.basis.copy_from_slice(basis);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "written by `state`")]
        let finished = *finished as usize;
        self.finished = finished.min(self.exchanges.len());
        self.pending.clear();
        true
    }

    fn rounds_needed(&self) -> u32 {
        u32::try_from(self.exchanges.len()).unwrap_or(u32::MAX)
    }
}

/// Whether `Q^T Q` differs from the identity by at most [`ORTHONORMAL`] in every entry.
fn is_orthonormal(basis: &Matrix) -> bool {
    let gram = product_transposed(basis, basis);
    let identity = Matrix::identity(gram.nrows(), gram.ncols());
    // The comparison is false for NaN.
    gram.iter().zip(identity.iter()).all(|(value, expected)| (value - expected).abs() <= ORTHONORMAL)
}
