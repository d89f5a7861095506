//! Server side of heads with a learned prior: requests of the rounds, and the state between them.

use fedspan_protocol::message::{GeometricGrid, HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::evidence::{Best, Evidence, FLOORS, FLOORS_WITH_SPANS, NO_SPAN, SPANS, count, grid, length};
use super::moments::{GroupMoments, pack, packed_len};
use super::numbers::Numbers;
use super::plan::{Chain, MeanRule, Plan, Stage, Structure};
use super::prior::{HeadMoments, NewcomerGradient, Prior};
use super::{ChosenPrior, HeadPrior, LearnedPriorSettings};
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::tensor;
use crate::linalg::{Matrix, RankDeficient, orthonormal, to_f32};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// Draws of labelled samples for each number of labels with which devices score priors.
const DRAWS: u8 = 2;

/// Number of values of [`Role::HeadSums`].
const SUMS: usize = 3;

/// Number of values of [`Role::NewcomerError`].
const NEWCOMER_ERROR: usize = 2;

/// Labelled samples of each class of a simulated newcomer.
const NEWCOMER_LABELS: u16 = 1;

/// Draws over which a device averages the derivative of a newcomer's error.
const NEWCOMER_DRAWS: u8 = 8;

/// Representation and variances of a prior, without mean and metric.
#[derive(Clone, Debug, PartialEq)]
struct Variances {
    basis: Matrix,
    spans: Vec<f64>,
    floor: f64,
    noise: f64,
}

/// Mean and metric of the prior, with the best floor and noise without a representation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Chosen {
    structure: Structure,
    floor: f64,
    noise: f64,
    score: f64,
}

/// Factors of the learned variances, and the noise, in one of the metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Factors {
    score: f64,
    has_metric: bool,
    is_refined: bool,
    span: f64,
    floor: f64,
    noise: f64,
}

/// State of a campaign that learns a prior of heads.
#[derive(Clone, Debug)]
pub struct LearnedPrior {
    plan: Plan,
    rule: Rule,
    features: usize,
    width: usize,
    outputs: usize,
    /// Number of the first device, which is in the first group.
    first_device: u64,
    /// Representation from which learning starts, d x k.
    initial: Matrix,
    /// Number of finished rounds.
    number: u32,
    moments: GroupMoments,
    /// Evidence for each structure, without a representation.
    structures: Vec<Evidence>,
    chosen: Option<Chosen>,
    /// Variances that each chain has learned.
    chains: Vec<Variances>,
    /// The same after refinement.
    refined: Vec<Variances>,
    /// Evidence for factors of those variances: as learned for each metric, then as refined.
    evidence: Vec<Evidence>,
    /// Best factors, if a prior with representation has a better score than one without.
    factors: Option<Factors>,
    /// Variances that all devices have learned.
    last: Variances,
    /// Representation of the published prior, d x k.
    representation: Matrix,
    open: OpenRound,
}

/// Updates of the open round.
#[derive(Clone, Debug)]
struct OpenRound {
    /// One aggregate for each group in the first stage, otherwise one.
    aggregates: Vec<RoundAggregate>,
    /// Number of devices, and of their samples, for each aggregate.
    counts: Vec<(u64, u64)>,
}

impl LearnedPrior {
    /// Starts from the representation `basis`, of which training replaces all columns. `outputs` is the number of columns of a head.
    #[must_use]
    pub fn new(
        settings: LearnedPriorSettings,
        rule: Rule,
        basis: Matrix,
        outputs: usize,
        first_device: u64,
    ) -> Self {
        let plan = Plan::new(settings);
        let (features, width) = basis.shape();
        let variances = Variances { basis: basis.clone(), spans: vec![0.0; width], floor: 1.0, noise: 1.0 };
        let mut server = Self {
            plan,
            rule,
            features,
            width,
            outputs,
            first_device,
            initial: basis.clone(),
            number: 0,
            moments: GroupMoments::new(plan.groups(), features, outputs),
            structures: vec![Evidence::new(count(NO_SPAN, FLOORS)); plan.structures().len()],
            chosen: None,
            chains: vec![variances.clone(); plan.chains()],
            refined: vec![variances.clone(); plan.chains()],
            evidence: vec![Evidence::new(count(SPANS, FLOORS_WITH_SPANS)); 2 * plan.metrics()],
            factors: None,
            last: variances,
            representation: basis,
            open: OpenRound { aggregates: Vec::new(), counts: Vec::new() },
        };
        server.start_round();
        server
    }

    /// Stage of the next round.
    fn stage(&self) -> Stage {
        self.plan.stage(self.number)
    }

    /// Whether the steps of a stage are against the errors of newcomers: devices have said that their targets are classes.
    fn is_about_newcomers(&self, stage: Stage) -> bool {
        let are_classes = || self.structures.iter().any(|evidence| evidence.counts_predictions(self.outputs));
        let refines = match stage {
            Stage::Refine(_) => true,
            Stage::Final => self.factors.is_some_and(|factors| factors.is_refined),
            _ => false,
        };
        refines && are_classes()
    }

    /// Group of a device.
    fn group(&self, device: DeviceId) -> usize {
        let groups = self.plan.groups() as u64;
        // With `groups` added, the difference is not negative.
        let number = device.0 % groups + groups - self.first_device % groups;
        usize::try_from(number % groups).unwrap_or(0)
    }

    /// Structure of this index.
    fn structure(&self, index: usize) -> Structure {
        self.plan.structures().get(index).copied().unwrap_or(super::plan::STRUCTURES[0])
    }

    /// Mean and metric of a chain.
    fn structure_of(&self, chain: Chain) -> Structure {
        let mean = self.chosen.map_or(MeanRule::Zero, |chosen| chosen.structure.mean);
        Structure { mean, has_metric: chain.has_metric }
    }

    /// Index of a chain.
    fn index(&self, chain: Chain) -> usize {
        usize::from(chain.has_metric) * self.plan.groups() + chain.group
    }

    /// Prior with these variances, whose mean and metric are those of all groups but `without`.
    fn prior(&self, structure: Structure, variances: &Variances, without: Option<usize>) -> Prior {
        let Structure { mean, has_metric } = structure;
        let Variances { basis, spans, floor, noise } = variances.clone();
        Prior {
            mean: self.moments.mean(mean, without),
            metric: if has_metric { self.moments.metric(without) } else { None },
            basis,
            spans,
            floor,
            noise,
        }
    }

    /// Variances without a representation.
    fn without_spans(&self, basis: &Matrix, floor: f64, noise: f64) -> Variances {
        Variances { basis: basis.clone(), spans: vec![0.0; self.width], floor, noise }
    }

    /// Prior that devices use for their heads now.
    fn published(&self) -> Prior {
        let Some(chosen) = self.chosen else {
            return self.prior(self.structure(0), &self.without_spans(&self.initial, 1.0, 1.0), None);
        };
        match self.factors {
            Some(Factors { has_metric, span, floor, noise, .. }) => {
                let scaled = Variances {
                    basis: self.last.basis.clone(),
                    spans: self.last.spans.iter().map(|value| span * value).collect(),
                    floor: floor * self.last.floor,
                    noise,
                };
                self.prior(Structure { has_metric, ..chosen.structure }, &scaled, None)
            }
            None => {
                let variances = self.without_spans(&self.last.basis, chosen.floor, chosen.noise);
                self.prior(chosen.structure, &variances, None)
            }
        }
    }

    /// Prior of a stage; `None` for stages without one.
    fn prior_of(&self, stage: Stage) -> Option<Prior> {
        match stage {
            Stage::Moments => None,
            Stage::Structures { structure, group } => {
                let variances = self.without_spans(&self.initial, 1.0, 1.0);
                Some(self.prior(self.structure(structure), &variances, Some(group)))
            }
            Stage::Start(chain) => {
                let Variances { basis, floor, noise, .. } = self.chains.get(self.index(chain))?;
                let variances = self.without_spans(basis, *floor, *noise);
                Some(self.prior(self.structure_of(chain), &variances, Some(chain.group)))
            }
            Stage::Learn(chain) | Stage::Variances { chain, is_refined: false } => {
                let variances = self.chains.get(self.index(chain))?;
                Some(self.prior(self.structure_of(chain), variances, Some(chain.group)))
            }
            Stage::Refine(chain) | Stage::Variances { chain, is_refined: true } => {
                let variances = self.refined.get(self.index(chain))?;
                Some(self.prior(self.structure_of(chain), variances, Some(chain.group)))
            }
            Stage::Final => Some(self.prior(self.last_structure(), &self.last, None)),
            Stage::Done => Some(self.published()),
        }
    }

    /// Tensors of a prior.
    fn tensors(prior: &Prior) -> Vec<Tensor> {
        let basis = prior.sent_basis();
        let row = |role, values: Vec<f32>| Tensor {
            role,
            rows: 1,
            cols: u16::try_from(values.len()).unwrap_or(u16::MAX),
            values,
        };
        #[allow(clippy::cast_possible_truncation, reason = "rounding to the wire's precision is the purpose")]
        let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<f32>>();
        let mut tensors = vec![tensor(Role::Representation, &basis, to_f32(&basis))];
        tensors.extend(prior.mean.as_ref().map(|mean| tensor(Role::PriorMean, mean, to_f32(mean))));
        let metric = prior.metric.as_ref().map(|metric| narrow(pack(metric.matrix())));
        tensors.extend(metric.map(|metric| row(Role::SecondMoments, metric)));
        let variances = prior.spans.iter().copied().chain([prior.floor]).collect();
        tensors.push(row(Role::PriorVariances, narrow(variances)));
        tensors
    }

    /// Request of a stage.
    fn request_of(&self, stage: Stage) -> Request {
        self.request_for(stage, self.is_about_newcomers(stage))
    }

    /// Request like this one, of a prior that has a mean and a metric; `None` if no prior has a metric.
    fn with_metric(&self, request: &Request) -> Option<Request> {
        let (variances, representation) = request.tensors.split_last()?;
        if self.plan.metrics() < 2 {
            return None;
        }
        let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let zeros = |role, rows: usize, cols: usize| Tensor {
            role,
            rows: side(rows),
            cols: side(cols),
            values: vec![0.0; rows * cols],
        };
        let mut tensors: Vec<Tensor> = representation.iter().take(1).cloned().collect();
        tensors.push(zeros(Role::PriorMean, self.features, self.outputs));
        tensors.push(zeros(Role::SecondMoments, 1, packed_len(self.features)));
        tensors.push(variances.clone());
        Some(Request { tensors, ..request.clone() })
    }

    /// Request of a stage, about the errors of newcomers or not.
    fn request_for(&self, stage: Stage, is_about_newcomers: bool) -> Request {
        let prior = self.prior_of(stage);
        let tensors = prior.as_ref().map_or_else(Vec::new, Self::tensors);
        let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let (d, k, c) = (self.features, self.width, self.outputs);
        let descriptor = |role, rows: usize, cols: usize| {
            TensorDescriptor::inline(role, Encoding::F32, side(rows), side(cols))
        };
        #[allow(clippy::cast_possible_truncation, reason = "rounding to the wire's precision is the purpose")]
        let noise = prior.as_ref().map_or(1.0, |prior| prior.noise as f32);
        let head_moments = || vec![descriptor(Role::HeadMoments, d, k), descriptor(Role::HeadSums, 1, SUMS)];
        let scored = |spans: GeometricGrid, floors: GeometricGrid| {
            let values = length(count(spans, floors));
            (
                Task::PriorEvidence { spans, floors, draws: DRAWS },
                vec![descriptor(Role::PriorEvidence, 1, values)],
            )
        };
        let (task, expects) = match stage {
            Stage::Moments => {
                let squares = descriptor(Role::SecondMoments, 1, packed_len(d));
                (Task::PooledMoments, vec![squares, descriptor(Role::CrossMoments, d, c)])
            }
            Stage::Structures { .. } => scored(NO_SPAN, FLOORS),
            // Without noise, devices send second moments of their posterior means only.
            Stage::Start(_) => (Task::HeadMoments { noise: 0.0 }, head_moments()),
            Stage::Refine(_) | Stage::Final if is_about_newcomers => (
                Task::NewcomerGradient {
                    labels: NEWCOMER_LABELS,
                    draws: NEWCOMER_DRAWS,
                    first: self.number.wrapping_mul(NEWCOMER_DRAWS.into()),
                },
                vec![
                    descriptor(Role::NewcomerGradient, d, k),
                    descriptor(Role::NewcomerError, 1, NEWCOMER_ERROR),
                ],
            ),
            Stage::Learn(_) | Stage::Refine(_) | Stage::Final => {
                (Task::HeadMoments { noise }, head_moments())
            }
            Stage::Variances { .. } => scored(SPANS, FLOORS_WITH_SPANS),
            Stage::Done => (Task::FitHead { head: HeadSolve::Prior { noise } }, Vec::new()),
        };
        Request { task, tensors, encoding: Encoding::F32, expects }
    }

    /// Creates empty aggregates for the next round.
    fn start_round(&mut self) {
        let (d, k, c) = (self.features, self.width, self.outputs);
        let (aggregates, weighting, length) = match self.stage() {
            Stage::Moments => (self.plan.groups(), Weighting::Samples, packed_len(d) + d * c),
            Stage::Structures { .. } => (1, Weighting::Uniform, length(count(NO_SPAN, FLOORS))),
            stage if self.is_about_newcomers(stage) => (1, Weighting::Uniform, d * k + NEWCOMER_ERROR),
            Stage::Start(_) | Stage::Learn(_) | Stage::Refine(_) | Stage::Final => {
                (1, Weighting::Uniform, d * k + SUMS)
            }
            Stage::Variances { .. } => (1, Weighting::Uniform, length(count(SPANS, FLOORS_WITH_SPANS))),
            Stage::Done => (0, Weighting::Uniform, 0),
        };
        self.open = OpenRound {
            aggregates: vec![RoundAggregate::new(self.rule, weighting, length); aggregates],
            counts: vec![(0, 0); aggregates],
        };
        let published = self.published();
        // With the identity as the metric the representation is orthonormal; another QR would change its last bits.
        self.representation = match published.metric {
            Some(_) => orthonormal(&published.sent_basis()).unwrap_or(published.basis),
            None => published.basis,
        };
    }

    /// Mean of the updates of one aggregate, with the number of devices and of samples; `None` without updates.
    fn take(&mut self, index: usize) -> Option<(f64, f64, Vec<f64>)> {
        let means = self.open.aggregates.get_mut(index)?.take_vector(&[])?;
        let (devices, samples) = self.open.counts.get(index).copied()?;
        #[allow(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
        Some((devices as f64, samples as f64, means))
    }

    /// Second moments of heads of the open round.
    fn take_head_moments(&mut self) -> Option<HeadMoments> {
        let (d, k) = (self.features, self.width);
        let (devices, _, means) = self.take(0)?;
        let (products, sums) = means.split_at_checked(d * k)?;
        let &[distance, residuals, samples] = sums else { return None };
        let products = Matrix::from_row_slice(d, k, products);
        Some(HeadMoments { devices, products, distance, residuals, samples })
    }

    /// Derivative of newcomers' errors of the open round.
    fn take_newcomer_gradient(&mut self) -> Option<NewcomerGradient> {
        let (d, k) = (self.features, self.width);
        let (_, _, means) = self.take(0)?;
        let (products, &[error, _]) = means.split_at_checked(d * k)? else { return None };
        Some(NewcomerGradient { products: Matrix::from_row_slice(d, k, products), error })
    }

    /// Prior after the step of the open round.
    fn stepped(&mut self, stage: Stage) -> Option<Prior> {
        let mut prior = self.prior_of(stage)?;
        if self.is_about_newcomers(stage) {
            prior.descend(&self.take_newcomer_gradient()?);
        } else {
            prior.update(&self.take_head_moments()?, self.outputs);
        }
        Some(prior)
    }

    /// Uses the updates of the round of `stage`.
    fn use_updates(&mut self, stage: Stage) {
        match stage {
            Stage::Moments => {
                for group in 0..self.plan.groups() {
                    if let Some((_, samples, means)) = self.take(group) {
                        self.moments.set(group, samples, &means);
                    }
                }
            }
            Stage::Structures { structure, .. } => {
                if let (Some((devices, _, means)), Some(prior)) = (self.take(0), self.prior_of(stage))
                    && let Some(evidence) = self.structures.get_mut(structure)
                {
                    let determinants =
                        grid(NO_SPAN, FLOORS).map(|(span, floor)| prior.log_determinant(span, floor));
                    evidence.add(devices, &means, determinants);
                }
            }
            Stage::Start(chain) => {
                if let (Some(moments), Some(mut prior)) = (self.take_head_moments(), self.prior_of(stage)) {
                    prior.iterate(&moments);
                    let index = self.index(chain);
                    set(&mut self.chains, index, prior);
                }
            }
            Stage::Learn(chain) => {
                if let Some(prior) = self.stepped(stage) {
                    let index = self.index(chain);
                    set(&mut self.chains, index, prior);
                }
            }
            Stage::Refine(chain) => {
                if let Some(prior) = self.stepped(stage) {
                    let index = self.index(chain);
                    set(&mut self.refined, index, prior);
                }
            }
            Stage::Variances { chain, is_refined } => {
                if let (Some((devices, _, means)), Some(prior)) = (self.take(0), self.prior_of(stage)) {
                    let determinants = grid(SPANS, FLOORS_WITH_SPANS)
                        .map(|(span, floor)| prior.log_determinant(span, floor));
                    let index = usize::from(is_refined) * self.plan.metrics() + usize::from(chain.has_metric);
                    if let Some(evidence) = self.evidence.get_mut(index) {
                        evidence.add(devices, &means, determinants);
                    }
                }
            }
            Stage::Final => {
                if let Some(prior) = self.stepped(stage) {
                    self.last = Variances::of(prior);
                }
            }
            Stage::Done => {}
        }
    }

    /// Draws the conclusions of a finished part of the plan, before the round of `next`.
    fn conclude(&mut self, before: Stage, next: Stage) {
        match (before, next) {
            (Stage::Structures { .. }, Stage::Start(_)) => self.choose_structure(),
            (Stage::Variances { .. }, Stage::Refine(_)) => self.refined.clone_from(&self.chains),
            (Stage::Variances { .. }, Stage::Final) => {
                self.choose_factors();
                self.average_chains();
            }
            _ => {}
        }
    }

    /// Chooses the mean and the metric with the best score, and starts the chains with the best floor of their metric.
    fn choose_structure(&mut self) {
        let size = self.mean_square();
        let bests: Vec<Option<Chosen>> = self
            .structures
            .iter()
            .enumerate()
            .map(|(index, evidence)| {
                let best = evidence.best(NO_SPAN, FLOORS, self.outputs, size)?;
                let Best { score, floor, noise, .. } = best;
                Some(Chosen { structure: self.structure(index), floor, noise, score })
            })
            .collect();
        let better = |best: Option<Chosen>, next: Chosen| match best {
            Some(best) if next.score <= best.score => Some(best),
            _ => Some(next),
        };
        self.chosen = bests.iter().flatten().copied().fold(None, better);
        let Some(chosen) = self.chosen else { return };
        for index in 0..self.chains.len() {
            let has_metric = index >= self.plan.groups();
            let structure = Structure { has_metric, ..chosen.structure };
            let of_metric =
                bests.iter().flatten().find(|best| best.structure == structure).unwrap_or(&chosen);
            let start = self.without_spans(&self.initial, of_metric.floor, of_metric.noise);
            if let Some(variances) = self.chains.get_mut(index) {
                *variances = start;
            }
        }
        self.last = self.without_spans(&self.initial, chosen.floor, chosen.noise);
    }

    /// Mean square of a target, about.
    fn mean_square(&self) -> f64 {
        self.structures.first().map_or(0.0, |evidence| evidence.mean_square(self.outputs))
    }

    /// Chooses the metric and the factors of the learned or refined variances, if they have a better score than a prior without
    /// representation.
    fn choose_factors(&mut self) {
        let size = self.mean_square();
        let mut least = self.chosen.map_or(f64::NEG_INFINITY, |chosen| chosen.score);
        let metrics = self.plan.metrics();
        for (index, evidence) in self.evidence.iter().enumerate() {
            let (is_refined, has_metric) = (index >= metrics, index % metrics > 0);
            let best = evidence.best(SPANS, FLOORS_WITH_SPANS, self.outputs, size);
            // More steps of expectation-maximisation fit small fleets too closely, and their evidence changes little.
            let margin = if is_refined { evidence.margin(self.outputs) } else { 0.0 };
            if let Some(Best { score, span, floor, noise }) = best.filter(|best| best.score > least + margin)
            {
                least = score;
                self.factors = Some(Factors { score, has_metric, is_refined, span, floor, noise });
            }
        }
    }

    /// Mean and metric of the last rounds.
    fn last_structure(&self) -> Structure {
        let structure = self.chosen.map_or(self.structure(0), |chosen| chosen.structure);
        let has_metric = self.factors.map_or(structure.has_metric, |factors| factors.has_metric);
        Structure { has_metric, ..structure }
    }

    /// Sets the variances of all devices to the average of the covariances of the chains in the chosen metric.
    fn average_chains(&mut self) {
        let structure = self.last_structure();
        let is_refined = self.factors.is_some_and(|factors| factors.is_refined);
        let variances = if is_refined { &self.refined } else { &self.chains };
        let chains = (0..self.plan.groups()).map(|group| Chain { has_metric: structure.has_metric, group });
        let priors: Vec<Prior> = chains
            .filter_map(|chain| {
                Some(self.prior(structure, variances.get(self.index(chain))?, Some(chain.group)))
            })
            .collect();
        #[allow(clippy::cast_precision_loss, reason = "a number of groups")]
        let share = 1.0 / priors.len().max(1) as f64;
        let mut covariance = Matrix::zeros(self.features, self.features);
        let mut noise = 0.0;
        for prior in &priors {
            covariance += prior.covariance() * share;
            noise += prior.noise * share;
        }
        let mut last = self.prior(structure, &self.last, None);
        last.noise = noise;
        last.set_covariance(&covariance);
        self.last = Variances::of(last);
    }
}

/// Replaces the variances of one chain by those of a prior.
fn set(chains: &mut [Variances], index: usize, prior: Prior) {
    if let Some(variances) = chains.get_mut(index) {
        *variances = Variances::of(prior);
    }
}

impl Variances {
    fn of(prior: Prior) -> Self {
        let Prior { basis, spans, floor, noise, .. } = prior;
        Self { basis, spans, floor, noise }
    }

    fn state(&self) -> impl Iterator<Item = f64> + '_ {
        self.basis.iter().chain(&self.spans).copied().chain([self.floor, self.noise])
    }

    fn restored(d: usize, k: usize, numbers: &mut Numbers<'_>) -> Option<Self> {
        Some(Self {
            basis: Matrix::from_column_slice(d, k, numbers.take(d * k)?),
            spans: numbers.take(k)?.to_vec(),
            floor: numbers.one()?,
            noise: numbers.one()?,
        })
    }
}

impl Algorithm for LearnedPrior {
    fn request(&self) -> Request {
        self.request_of(self.stage())
    }

    fn requests(&self) -> Vec<Request> {
        let numbers = 0..=self.plan.rounds();
        let mut kinds: Vec<Request> = Vec::new();
        // All stages of one kind have tensors of the same sizes, except for a mean and a metric, which are not known before the first
        // round.
        let stages = numbers.map(|number| self.plan.stage(number));
        for (stage, is_about_newcomers) in
            stages.flat_map(|stage| [(stage, false), (stage, self.outputs > 1)])
        {
            let request = self.request_for(stage, is_about_newcomers && self.plan.refines());
            let is_known = |known: &Request| {
                known.task.kind() == request.task.kind() && known.tensors.len() == request.tensors.len()
            };
            if !kinds.iter().any(is_known) {
                kinds.push(request);
            }
        }
        let with_metric: Vec<Request> = kinds.iter().filter_map(|kind| self.with_metric(kind)).collect();
        kinds.extend(with_metric);
        kinds
    }

    fn asks(&self, device: DeviceId) -> bool {
        match self.stage() {
            Stage::Moments | Stage::Final | Stage::Done => true,
            Stage::Structures { group, .. } | Stage::Variances { chain: Chain { group, .. }, .. } => {
                self.group(device) == group
            }
            Stage::Start(chain) | Stage::Learn(chain) | Stage::Refine(chain) => {
                self.group(device) != chain.group
            }
        }
    }

    fn asks_all(&self) -> bool {
        matches!(self.stage(), Stage::Moments | Stage::Structures { .. } | Stage::Variances { .. })
    }

    fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        let is_size = |value: &f32| *value >= 0.0;
        match (self.stage(), tensors) {
            (Stage::Moments, [squares, _]) => {
                samples > 0
                    && (0..self.features)
                        .all(|i| squares.values.get(packed_len(i + 1) - 1).is_some_and(is_size))
            }
            (stage, [_, error]) if self.is_about_newcomers(stage) => {
                matches!(*error.values, [error, count] if error >= 0.0 && count >= 1.0)
            }
            (Stage::Start(_) | Stage::Learn(_) | Stage::Refine(_) | Stage::Final, [_, sums]) => {
                matches!(*sums.values, [_, residuals, count] if residuals >= 0.0 && count >= 1.0)
            }
            (Stage::Structures { .. } | Stage::Variances { .. }, [evidence]) => {
                let (of_priors, counts) = evidence.values.as_chunks::<3>();
                let is_possible =
                    |[squares, _, correct]: &[f32; 3]| is_size(squares) && (0.0..=1.0).contains(correct);
                of_priors.iter().all(is_possible)
                    && matches!(counts, [samples, tried] if *samples >= 1.0 && *tried >= 0.0)
            }
            // Devices that fit their heads send nothing.
            (_, []) => true,
            _ => false,
        }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if !self.asks(device) {
            return;
        }
        let index = if self.stage() == Stage::Moments { self.group(device) } else { 0 };
        if let (Some(aggregate), Some((devices, samples))) =
            (self.open.aggregates.get_mut(index), self.open.counts.get_mut(index))
        {
            aggregate.absorb(device, weight, tensors);
            *devices += u64::from(weight.weight(Weighting::Uniform));
            *samples += u64::from(weight.weight(Weighting::Samples));
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let stage = self.stage();
        self.use_updates(stage);
        self.number = self.number.saturating_add(1);
        self.conclude(stage, self.stage());
        self.start_round();
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.representation
    }

    fn fit_request(&self, _head: HeadSolve) -> Request {
        self.request_of(Stage::Done)
    }

    fn chosen_prior(&self) -> Option<ChosenPrior> {
        let chosen = self.chosen.filter(|_| matches!(self.stage(), Stage::Final | Stage::Done))?;
        let by_predictions = self.structures.iter().any(|evidence| evidence.counts_predictions(self.outputs));
        let prior = self.published();
        Some(ChosenPrior {
            columns: prior.spans.iter().filter(|span| **span > 0.0).count(),
            floor: prior.floor,
            noise: prior.noise,
            score: self.factors.map_or(chosen.score, |factors| factors.score),
            score_without_representation: chosen.score,
            ..ChosenPrior::new(self.last_structure(), by_predictions)
        })
    }

    fn head_prior(&self) -> Option<HeadPrior> {
        self.chosen_prior()?;
        let prior = self.published();
        let covariance = prior.covariance() / prior.noise;
        let mean = prior.mean.unwrap_or_else(|| Matrix::zeros(self.features, self.outputs));
        Some(HeadPrior { mean, covariance, noise: prior.noise })
    }

    fn state(&self) -> Vec<f64> {
        let flag = |is_set: bool| f64::from(u8::from(is_set));
        let none = Chosen { structure: self.structure(0), floor: 0.0, noise: 0.0, score: 0.0 };
        let chosen = self.chosen.unwrap_or(none);
        let none =
            Factors { score: 0.0, has_metric: false, is_refined: false, span: 0.0, floor: 0.0, noise: 0.0 };
        let factors = self.factors.unwrap_or(none);
        let structures = self.plan.structures();
        let structure = structures.iter().position(|structure| *structure == chosen.structure).unwrap_or(0);
        #[allow(clippy::cast_precision_loss, reason = "the index of a structure")]
        let structure = structure as f64;
        self.representation
            .iter()
            .copied()
            .chain([f64::from(self.number)])
            .chain(self.initial.iter().copied())
            .chain([flag(self.chosen.is_some()), structure, chosen.floor, chosen.noise, chosen.score])
            .chain([
                flag(self.factors.is_some()),
                factors.score,
                flag(factors.has_metric),
                flag(factors.is_refined),
                factors.span,
                factors.floor,
                factors.noise,
            ])
            .chain(self.moments.state())
            .chain(self.structures.iter().flat_map(Evidence::state))
            .chain(self.chains.iter().chain(&self.refined).flat_map(Variances::state))
            .chain(self.evidence.iter().flat_map(Evidence::state))
            .chain(self.last.state())
            .collect()
    }

    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        Some(Box::new(self.clone()))
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some(restored) = self.restored(state) else { return false };
        *self = restored;
        true
    }
}

impl LearnedPrior {
    /// Server with a stored state; `None` if the length differs.
    fn restored(&self, state: &[f64]) -> Option<Self> {
        let (d, k) = (self.features, self.width);
        let mut numbers = Numbers(state);
        let mut server = self.clone();
        let representation = Matrix::from_column_slice(d, k, numbers.take(d * k)?);
        let number = numbers.one()?;
        if !(0.0..=f64::from(u32::MAX)).contains(&number) {
            return None;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number, as checked"
        )]
        {
            server.number = number as u32;
        }
        server.initial = Matrix::from_column_slice(d, k, numbers.take(d * k)?);
        if server.number == 0 {
            // A start has computed another representation.
            server.initial = representation;
        }
        let &[is_chosen, structure, floor, noise, score] = numbers.take(5)? else { return None };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the index of a structure"
        )]
        let structure = self.structure(structure as usize);
        server.chosen = (is_chosen != 0.0).then_some(Chosen { structure, floor, noise, score });
        let &[is_scaled, score, has_metric, is_refined, span, floor, noise] = numbers.take(7)? else {
            return None;
        };
        let (has_metric, is_refined) = (has_metric != 0.0, is_refined != 0.0);
        let factors = Factors { score, has_metric, is_refined, span, floor, noise };
        server.factors = (is_scaled != 0.0).then_some(factors);
        server.moments.restore(numbers.take(server.moments.state_len())?);
        for evidence in &mut server.structures {
            evidence.restore(numbers.take(evidence.len())?);
        }
        for variances in server.chains.iter_mut().chain(&mut server.refined) {
            *variances = Variances::restored(d, k, &mut numbers)?;
        }
        for evidence in &mut server.evidence {
            evidence.restore(numbers.take(evidence.len())?);
        }
        server.last = Variances::restored(d, k, &mut numbers)?;
        if !numbers.0.is_empty() {
            return None;
        }
        server.start_round();
        Some(server)
    }
}
