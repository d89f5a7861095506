//! Simulation of Byzantine devices, whose updates are replaced by an attack.
//!
//! An attacker runs the same session as an honest device. Its update is replaced between its connection and
//! the engine, so otherwise the update is processed like an honest update. Attackers collude, and know the
//! honest updates that have been computed so far in the round.

mod drift;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use fedspan_aggregator::connection::PeerMessage;
use fedspan_engine::linalg::{
    Matrix, complement, from_f32, orthonormal, product_transposed, random_basis, to_f32, top_eigenspace,
};
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{Engine, RoundBroadcast, Update};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;

use super::arrivals::PendingAnswer;
use super::devices::Devices;
use crate::data::{Dataset, Labels, Set, SharedSet};
use crate::scenario::{Attack, AttackSection};
use drift::{drifting_head, rank_one_step, wrong_direction};
use search::Known;

/// Attackers of a run.
pub struct Attackers {
    attack: AttackSection,
    seed: u64,
    clients: usize,
    indices: BTreeSet<usize>,
    /// Round to which the steps in `honest` belong.
    round: RoundId,
    honest: BTreeMap<usize, Vec<f64>>,
    replaced: u64,
    /// True representation, if the data have one and the attackers know it.
    truth: Option<Matrix>,
}

impl Attackers {
    /// Selects the attackers at random: the given fraction of the clients, rounded. The selection depends
    /// only on the seed and the fraction, so all attacks have the same attackers.
    pub fn select(attack: AttackSection, clients: usize, seed: u64) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "under half of a number of clients"
        )]
        let count = (attack.fraction * clients as f64).round() as usize;
        let all_clients: Vec<usize> = (0..clients).collect();
        let indices = stream(seed, Purpose::Attackers, 0).choose(&all_clients, count);
        Self {
            attack,
            seed,
            clients,
            indices: indices.into_iter().collect(),
            round: RoundId::default(),
            honest: BTreeMap::new(),
            replaced: 0,
            truth: None,
        }
    }

    /// Gives the attackers the true representation.
    pub fn knowing(self, truth: Option<&Matrix>) -> Self {
        Self { truth: truth.cloned(), ..self }
    }

    /// Continues the count of replaced updates.
    pub fn continue_from(&mut self, replaced: u64) {
        self.replaced = replaced;
    }

    /// Number of updates replaced so far.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Data set without the attackers' clients, on which metrics are computed.
    pub fn honest(&self, dataset: &Dataset) -> Dataset {
        Dataset {
            clients: self.without_attackers(&dataset.clients),
            client_names: self.without_attackers(&dataset.client_names),
            ..dataset.clone()
        }
    }

    /// Numbers of the clients that do not attack, in ascending order.
    pub fn honest_numbers(&self) -> Vec<usize> {
        (0..self.clients).filter(|index| !self.indices.contains(index)).collect()
    }

    fn without_attackers<T: Clone>(&self, per_client: &[T]) -> Vec<T> {
        let honest = per_client.iter().enumerate().filter(|(index, _)| !self.indices.contains(index));
        honest.map(|(_, value)| value.clone()).collect()
    }

    /// Replaces the attackers' updates among the answers that the engine processes next.
    pub fn corrupt(&mut self, devices: &mut Devices, answers: &[(usize, PendingAnswer)], engine: &Engine) {
        let opening = engine.open_round().map(|round| &round.broadcast);
        let Some(opening) = opening.filter(|opening| !opening.request.expects.is_empty()) else { return };
        if opening.id != self.round {
            (self.round, self.honest) = (opening.id, BTreeMap::new());
        }
        let base = step_base(opening);
        let searches = matches!(self.attack.kind, Attack::Search(_));
        let mut attacker_steps = BTreeMap::new();
        let (mut own_updates, mut honest_updates) = (Vec::new(), Vec::new());
        for (index, _) in answers {
            let Some(device) = devices.get(*index) else { continue };
            for update in updates_of_round(&mut device.inbox, opening.id) {
                let step = step_of_update(update, &base);
                let is_attacker = self.indices.contains(index);
                if searches && is_attacker {
                    own_updates.push((*index, update.clone(), step.clone()));
                } else if searches {
                    honest_updates.push((*index, update.clone()));
                }
                let steps = if is_attacker { &mut attacker_steps } else { &mut self.honest };
                steps.insert(*index, step);
            }
        }
        // Before the first honest update, the updates that the attackers computed honestly are used (Baruch
        // et al. 2019).
        let known_steps: Vec<&Vec<f64>> = if self.honest.is_empty() {
            attacker_steps.values().collect()
        } else {
            self.honest.values().collect()
        };
        let found = match self.attack.kind {
            Attack::Search(count) if !own_updates.is_empty() => {
                let (honest, own, steps) = (&honest_updates, &own_updates, &known_steps);
                self.search(count, engine, Known { opening, base: &base, steps, honest, own })
            }
            _ => None,
        };
        for (index, honest_step) in &attacker_steps {
            let attacked = match found.as_ref().and_then(|found| found.get(index)) {
                Some(found) => found.clone(),
                None => self.attacked_step(self.attack.kind, *index, honest_step, &known_steps, opening),
            };
            let Some(device) = devices.get(*index) else { continue };
            for update in updates_of_round(&mut device.inbox, opening.id) {
                self.replaced += 1;
                replace_step(update, &attacked, &base);
                update.samples = self.attack.samples.unwrap_or(update.samples);
            }
        }
    }

    /// Computes the step of an attacker in an attack of this kind. `honest_step` is the step that it computed
    /// honestly, and `known_steps` are the honest steps.
    #[allow(clippy::cast_precision_loss, reason = "counts of devices and values")]
    fn attacked_step(
        &self,
        kind: Attack,
        index: usize,
        honest_step: &[f64],
        known_steps: &[&Vec<f64>],
        opening: &RoundBroadcast,
    ) -> Vec<f64> {
        let scaled = |values: &[f64], factor: f64| values.iter().map(|value| value * factor).collect();
        match kind {
            Attack::SignFlip(strength) => scaled(honest_step, -strength),
            Attack::InnerProduct(strength) => scaled(&mean_step(known_steps), -strength),
            Attack::LittleIsEnough(z) => {
                let z = z.unwrap_or_else(|| little_is_enough_z(self.clients, self.indices.len()));
                let mean = mean_step(known_steps);
                let deviation = step_deviation(known_steps, &mean);
                mean.iter().zip(deviation).map(|(mean, deviation)| mean - z * deviation).collect()
            }
            Attack::Gaussian(strength) => {
                let squares: f64 =
                    known_steps.iter().flat_map(|step| step.iter()).map(|value| value * value).sum();
                let root_mean_square =
                    (squares / (known_steps.len() * honest_step.len()).max(1) as f64).sqrt();
                let mut random = self.attacker_stream(index, opening);
                honest_step.iter().map(|_| strength * root_mean_square * random.normal()).collect()
            }
            Attack::Scale(strength) => scaled(honest_step, strength),
            Attack::Mimic => known_steps.first().map_or_else(|| honest_step.to_vec(), |step| (*step).clone()),
            Attack::Nan => with_first(honest_step, f64::NAN),
            Attack::Infinite => with_first(honest_step, f64::INFINITY),
            Attack::Samples => honest_step.to_vec(),
            Attack::OrthogonalPlane => self.orthogonal_plane(honest_step, opening),
            Attack::Opposing(cosine) => {
                let random = &mut self.attacker_stream(index, opening);
                let noise: Vec<f64> = honest_step.iter().map(|_| random.normal()).collect();
                opposing_step(&mean_step(known_steps), &noise, cosine, median_norm(known_steps))
            }
            Attack::OpposingRankOne(directions) => {
                let Some(k) = opening.request.expects.first().map(|asked| usize::from(asked.cols)) else {
                    return honest_step.to_vec();
                };
                let random = &mut self.attacker_stream(index, opening);
                let mean = mean_step(known_steps);
                let span = directions.map_or(k, |directions| usize::from(directions).min(k));
                let coefficients: Vec<f64> = (0..span).map(|_| random.normal()).collect();
                let head = weak_head(&mean, k, &coefficients);
                opposing_rank_one_step(&mean, &head, median_norm(known_steps))
            }
            Attack::Drift(strength) => {
                let Some(expected) = opening.request.expects.first() else { return honest_step.to_vec() };
                let (d, k) = (usize::from(expected.rows), usize::from(expected.cols));
                let direction = wrong_direction(d, self.truth.as_ref(), self.seed);
                let head = drifting_head(k, index, self.seed);
                rank_one_step(&direction, &head, strength * median_norm(known_steps), honest_step.len())
            }
            // The device computed the step on poisoned data, or the search found nothing to rehearse.
            Attack::PoisonedTargets(_) | Attack::Search(_) => honest_step.to_vec(),
        }
    }

    /// Random numbers of an attacker in a round.
    fn attacker_stream(&self, index: usize, opening: &RoundBroadcast) -> Stream {
        stream(self.seed, Purpose::Attack, u64::from(opening.id.round) << 32 | index as u64)
    }

    /// Poisons the targets of the attackers' training samples if the attack is one on data.
    pub fn poison(&self, dataset: &mut Dataset) {
        let Attack::PoisonedTargets(strength) = self.attack.kind else { return };
        let (d, outputs) = (dataset.features, dataset.outputs);
        let directions = random_basis(d, outputs.min(d), &mut stream(self.seed, Purpose::Attackers, 2));
        let last_class = dataset.clients.iter().filter_map(|client| largest_class(&client.train.y)).max();
        for (index, client) in dataset.clients.iter_mut().enumerate() {
            if self.indices.contains(&index) {
                client.train = SharedSet::from(poisoned(&client.train, d, &directions, strength, last_class));
                client.fresh = None;
            }
        }
    }

    /// Step from the downloaded representation to a plane orthogonal to it. In a start round (which computes
    /// the initial representation), whose upload is not a representation, the plane is scaled to the norm of
    /// the device's computed upload.
    fn orthogonal_plane(&self, honest_step: &[f64], opening: &RoundBroadcast) -> Vec<f64> {
        let Some(downloaded) = opening.request.tensors.first() else { return honest_step.to_vec() };
        let (d, k) = (usize::from(downloaded.rows), usize::from(downloaded.cols));
        if honest_step.len() != d * k {
            return honest_step.to_vec();
        }
        let current = from_f32(d, k, &downloaded.values);
        let plane = random_basis(d, k, &mut stream(self.seed, Purpose::Attackers, 1));
        let plane = orthonormal(&complement(&current, &plane)).unwrap_or(plane);
        let is_representation =
            opening.request.expects.first().is_some_and(|tensor| tensor.role == Role::Representation);
        let step = if is_representation { plane - current } else { plane * norm(honest_step) };
        to_f32(&step).into_iter().map(f64::from).collect()
    }
}

/// Updates for round `id` in the inbox of a device.
fn updates_of_round(inbox: &mut [PeerMessage], id: RoundId) -> impl Iterator<Item = &mut Update> {
    inbox.iter_mut().filter_map(move |inbound| match inbound {
        PeerMessage::Update(update) if update.id == id => Some(update),
        _ => None,
    })
}

/// Values to which the step of an update is relative: the downloaded models, and zeros for other tensors.
fn step_base(opening: &RoundBroadcast) -> Vec<f64> {
    let mut base = Vec::new();
    for expected in &opening.request.expects {
        let is_model = matches!(expected.role, Role::Representation | Role::SharedHead);
        let tensor = opening.request.tensors.iter().find(|tensor| is_model && tensor.role == expected.role);
        match tensor {
            Some(tensor) => base.extend(tensor.values.iter().map(|value| f64::from(*value))),
            None => base.resize(base.len() + expected.elements(), 0.0),
        }
    }
    base
}

fn step_of_update(update: &Update, base: &[f64]) -> Vec<f64> {
    let values = update.tensors.iter().flat_map(|tensor| tensor.values.iter());
    values.zip(base).map(|(value, base)| f64::from(*value) - base).collect()
}

fn replace_step(update: &mut Update, step: &[f64], base: &[f64]) {
    let values = update.tensors.iter_mut().flat_map(|tensor| tensor.values.iter_mut());
    for (value, (step, base)) in values.zip(step.iter().zip(base)) {
        #[allow(clippy::cast_possible_truncation, reason = "what is sent is f32")]
        let uploaded = (step + base) as f32;
        *value = uploaded;
    }
}

/// Step against `mean` of norm `length`. Two such steps with independent noise have about this cosine: the noise
/// is made orthogonal to the mean and has the remaining part of the norm.
fn opposing_step(mean: &[f64], noise: &[f64], cosine: f64, length: f64) -> Vec<f64> {
    let mean_norm = norm(mean).max(f64::MIN_POSITIVE);
    let along = dot(noise, mean) / (mean_norm * mean_norm);
    let across: Vec<f64> = noise.iter().zip(mean).map(|(noise, mean)| noise - along * mean).collect();
    let across_norm = norm(&across).max(f64::MIN_POSITIVE);
    let (toward, aside) = (-cosine.sqrt() * length / mean_norm, (1.0 - cosine).sqrt() * length / across_norm);
    mean.iter().zip(&across).map(|(mean, across)| toward * mean + aside * across).collect()
}

/// Rank-one step `-u h^T` of norm `length` (d x k, row-major), where `u` is the mean step (d x k) times the head `h`
/// (k values).
fn opposing_rank_one_step(mean: &[f64], head: &[f64], length: f64) -> Vec<f64> {
    let columns: Vec<f64> = mean.chunks(head.len().max(1)).map(|row| dot(row, head)).collect();
    let factor = -length / (norm(&columns) * norm(head)).max(f64::MIN_POSITIVE);
    let mut step: Vec<f64> = columns.iter().flat_map(|u| head.iter().map(move |h| factor * u * h)).collect();
    step.resize(mean.len(), 0.0);
    step
}

/// Head (k) that combines the head directions in which a step (d x k) is smallest.
fn weak_head(step: &[f64], k: usize, coefficients: &[f64]) -> Vec<f64> {
    if coefficients.len() >= k {
        return coefficients.to_vec();
    }
    let step = Matrix::from_row_slice(
        step.len() / k.max(1),
        k,
        step.get(..step.len() / k.max(1) * k).unwrap_or_default(),
    );
    let weakest = top_eigenspace(&-product_transposed(&step, &step), coefficients.len());
    (0..k)
        .map(|row| coefficients.iter().enumerate().map(|(column, c)| weakest[(row, column)] * c).sum())
        .collect()
}

/// Largest class number of labels; `None` if they are not classes.
fn largest_class(labels: &Labels) -> Option<u8> {
    match labels {
        Labels::Classes(classes) => classes.iter().max().copied(),
        Labels::Values { .. } | Labels::Absent(_) => None,
    }
}

/// Samples with poisoned targets: `strength` times the products of the features with `directions` (d x C), or the
/// next class, where class 0 follows `last_class`.
fn poisoned(set: &Set, d: usize, directions: &Matrix, strength: f64, last_class: Option<u8>) -> Set {
    let y = match &set.y {
        Labels::Values { outputs, .. } => {
            let values = set.x.chunks(d.max(1)).flat_map(|row| {
                (0..*outputs).map(|output| {
                    let column = directions.column(output % directions.ncols().max(1));
                    let product: f64 = row.iter().zip(column.iter()).map(|(x, b)| f64::from(*x) * b).sum();
                    #[allow(clippy::cast_possible_truncation, reason = "targets are f32")]
                    let target = (strength * product) as f32;
                    target
                })
            });
            Labels::Values { values: values.collect(), outputs: *outputs }
        }
        Labels::Classes(classes) => Labels::Classes(
            classes.iter().map(|class| if Some(*class) == last_class { 0 } else { class + 1 }).collect(),
        ),
        Labels::Absent(zeros) => Labels::Absent(zeros.clone()),
    };
    Set { y, y_f64: None, ..set.clone() }
}

/// Median of the norms of steps; 0 without a step.
fn median_norm(steps: &[&Vec<f64>]) -> f64 {
    let mut norms: Vec<f64> = steps.iter().map(|step| norm(step)).collect();
    norms.sort_by(f64::total_cmp);
    norms.get(norms.len() / 2).copied().unwrap_or(0.0)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn with_first(honest_step: &[f64], value: f64) -> Vec<f64> {
    let mut step = honest_step.to_vec();
    if let Some(first) = step.first_mut() {
        *first = value;
    }
    step
}

#[allow(clippy::cast_precision_loss, reason = "a number of devices")]
fn mean_step(steps: &[&Vec<f64>]) -> Vec<f64> {
    let mut sum = vec![0.0; steps.first().map_or(0, |step| step.len())];
    for step in steps {
        for (sum, value) in sum.iter_mut().zip(step.iter()) {
            *sum += value;
        }
    }
    sum.iter().map(|sum| sum / steps.len() as f64).collect()
}

#[allow(clippy::cast_precision_loss, reason = "a number of devices")]
fn step_deviation(steps: &[&Vec<f64>], mean: &[f64]) -> Vec<f64> {
    let mut squares = vec![0.0; mean.len()];
    for step in steps {
        for (square, (value, mean)) in squares.iter_mut().zip(step.iter().zip(mean)) {
            *square += (value - mean) * (value - mean);
        }
    }
    squares.iter().map(|square| (square / steps.len() as f64).sqrt()).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Largest number z of standard deviations by which `f` of `n` devices can deviate such that, together with
/// the honest devices that deviate further, they form a majority (Baruch et al. 2019, Algorithm 3). z is the
/// normal quantile at `(n - f - s) / (n - f)` with `s = n / 2 + 1 - f`.
#[allow(clippy::cast_precision_loss, reason = "numbers of devices")]
fn little_is_enough_z(n: usize, f: usize) -> f64 {
    let honest = n.saturating_sub(f).max(1);
    let supporters = (n / 2 + 1).saturating_sub(f).min(honest);
    let target_quantile = (honest - supporters) as f64 / honest as f64;
    let normal_cdf = |z: f64| 0.5 * libm::erfc(-z / core::f64::consts::SQRT_2);
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal_cdf(middle) < target_quantile { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fedspan_engine::{Request, Tensor};
    use fedspan_protocol::message::{HeadSolve, Task, Upload};
    use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

    /// Compares with the example of the paper: 50 workers, 24 of which are corrupt, give s = 2, the quantile
    /// at 24 / 26, and z = 1.43.
    #[test]
    fn z_matches_the_paper() {
        assert!((little_is_enough_z(50, 24) - 1.426).abs() < 1e-3);
        // One attacker of 40 devices needs 20 honest devices that deviate further, so z is 0.
        assert_eq!(little_is_enough_z(40, 1), 0.0);
    }

    #[test]
    fn attackers_match_the_fraction_and_do_not_depend_on_the_attack() {
        let attack = |kind, fraction| AttackSection { kind, fraction, samples: None };
        for (fraction, count) in [(0.0, 0), (0.05, 2), (0.1, 4), (0.2, 8), (0.45, 18)] {
            let nan = Attackers::select(attack(Attack::Nan, fraction), 40, 3);
            let mimic = Attackers::select(attack(Attack::Mimic, fraction), 40, 3);
            assert_eq!((nan.indices.len(), &nan.indices), (count, &mimic.indices));
        }
        let seed = |seed| Attackers::select(attack(Attack::Nan, 0.2), 40, seed).indices;
        assert_ne!(seed(3), seed(4));
    }

    #[test]
    fn mean_and_deviation_are_taken_over_steps() {
        let (a, b) = (vec![1.0, -2.0], vec![3.0, 4.0]);
        let m = mean_step(&[&a, &b]);
        assert_eq!(m, [2.0, 1.0]);
        assert_eq!(step_deviation(&[&a, &b], &m), [1.0, 3.0]);
        assert_eq!(norm(&[3.0, 4.0]), 5.0);
    }

    /// Opposing steps have the given norm, point against the mean, and two of them have about the given cosine.
    #[test]
    fn opposing_steps_have_the_norm_and_the_cosine() {
        let random = &mut stream(5, Purpose::Attack, 0);
        let mut normals = |n: usize| (0..n).map(|_| random.normal()).collect::<Vec<f64>>();
        let mean = normals(2000);
        for cosine in [0.0, 0.1, 0.3, 1.0] {
            let a = opposing_step(&mean, &normals(2000), cosine, 3.0);
            let b = opposing_step(&mean, &normals(2000), cosine, 3.0);
            assert!((norm(&a) - 3.0).abs() < 1e-9, "norm {}", norm(&a));
            assert!((dot(&a, &mean) / norm(&mean) + 3.0 * cosine.sqrt()).abs() < 1e-9);
            assert!((dot(&a, &b) / 9.0 - cosine).abs() < 0.1, "{cosine}: {}", dot(&a, &b) / 9.0);
        }
    }

    /// A rank-one step has the given norm, opposes the mean, and its rows are multiples of the head.
    #[test]
    fn rank_one_step_is_a_multiple_of_the_head_in_every_row() {
        let mean = [1.0, 2.0, -1.0, 0.5, 3.0, 1.0];
        let head = [0.5, -2.0];
        let step = opposing_rank_one_step(&mean, &head, 4.0);
        assert!((norm(&step) - 4.0).abs() < 1e-12 && dot(&step, &mean) < 0.0);
        for row in step.chunks(2) {
            assert!((row[0] * head[1] - row[1] * head[0]).abs() < 1e-12);
        }
    }

    /// Broadcast of FedRep's round `round` with a representation of 6 x 3.
    fn opening(round: u32) -> RoundBroadcast {
        let sent = random_basis(6, 3, &mut stream(u64::from(round), Purpose::Start, 0));
        let sent = Tensor { role: Role::Representation, rows: 6, cols: 3, values: to_f32(&sent) };
        let (encoding, head) = (Encoding::F32, HeadSolve::LeastSquares { ridge: 0.0 });
        let task = Task::FedRep { step_size: 0.5, head, upload: Upload::Gradient, encoding };
        let expects = vec![TensorDescriptor::inline(Role::Gradient, encoding, 6, 3)];
        let request = Request { task, tensors: vec![sent], encoding, expects };
        RoundBroadcast::new(RoundId { round, stage: 0 }, request).unwrap()
    }

    /// Drifting steps have rank one and the given part of the median norm, in a direction that is orthogonal to the
    /// truth; attackers have heads of their own, and repeat their step in every round with the same honest steps.
    #[test]
    fn drift_is_small_of_rank_one_and_the_same_in_all_rounds() {
        let truth = random_basis(6, 3, &mut stream(2, Purpose::Truth, 0));
        let section = AttackSection { kind: Attack::Drift(0.3), fraction: 0.2, samples: None };
        let attackers = Attackers::select(section, 10, 4).knowing(Some(&truth));
        let steps: Vec<Vec<f64>> = (1..=5).map(|length| vec![f64::from(length); 18]).collect();
        let known: Vec<&Vec<f64>> = steps.iter().collect();
        let drift = |index, round| {
            let kind = Attack::Drift(0.3);
            attackers.attacked_step(kind, index, &[0.0; 18], &known, &opening(round))
        };
        let first = drift(3, 1);
        assert!((norm(&first) - 0.3 * 3.0 * 18.0f64.sqrt()).abs() < 1e-9, "{}", norm(&first));
        let matrix = Matrix::from_row_slice(6, 3, &first);
        let rank_two = top_eigenspace(&product_transposed(&matrix, &matrix), 3).columns(1, 2).into_owned();
        assert!((&matrix * rank_two).norm() < 1e-9);
        assert!(product_transposed(&truth, &matrix).norm() < 1e-9);
        assert_eq!(first, drift(3, 2));
        assert_ne!(first, drift(5, 1));
        let other_scale: Vec<Vec<f64>> = steps.iter().map(|step| vec![2.0 * step[0]; 18]).collect();
        let other_scale: Vec<&Vec<f64>> = other_scale.iter().collect();
        let doubled = attackers.attacked_step(Attack::Drift(0.3), 3, &[0.0; 18], &other_scale, &opening(9));
        assert!(first.iter().zip(&doubled).all(|(one, two)| (2.0 * one - two).abs() < 1e-9));
    }

    /// Poisoned values are one linear function of the features; a poisoned class is the next class.
    #[test]
    fn poisoned_targets_are_linear_or_the_next_class() {
        let directions = Matrix::from_column_slice(2, 1, &[0.6, -0.8]);
        let values = Set::new(vec![1.0, 0.0, 0.0, 2.0], Labels::values(vec![9.0, 9.0]));
        assert_eq!(poisoned(&values, 2, &directions, 10.0, None).y, Labels::values(vec![6.0, -16.0]));
        let classes = Set::new(vec![0.0; 6], Labels::Classes(vec![0, 1, 2]));
        assert_eq!(poisoned(&classes, 2, &directions, 1.0, Some(2)).y, Labels::Classes(vec![1, 2, 0]));
    }
}
