//! Preparation of a run: makes or reads the data, checks them, and builds the engine. Also runs the baselines
//! that have no training rounds.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use fedspan_engine::CustomParts;
use fedspan_engine::admission::least_frame_limit;
use fedspan_engine::algorithm::LinearMethod;
use fedspan_engine::algorithm::network::{NetworkParameters, SharedLayers};
use fedspan_engine::algorithm::scale::{FeatureSums, Scale, ScaleSource};
use fedspan_engine::config::{
    AlgorithmSection, Init, MeasuredSteps, Method, check_frames, check_scaled_tensors,
};
use fedspan_engine::linalg::{Matrix, orthonormal};
use fedspan_engine::random::{Purpose, stream};
use fedspan_engine::{Counters, DeviceId};
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::{Descriptors, HeadSolve};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::attack::Attackers;
use super::column_scale::column_scale_warning;
use super::devices::{AWAKE_MAX, least_memory};
use super::engine::{custom_engine, engine};
use super::fit_stats::FitStats;
use super::replay::Replay;
use super::simulation::Simulation;
use super::step_size;
use super::times::{Availability, Dropouts, Times};
use super::{DataNames, NoProgress, Outcome, RoundRow, RunError, SavedRun, Watcher};
use crate::available_memory::check_memory;
use crate::data::eigenspace::pooled_truth;
use crate::data::{Client, Dataset, LARGEST_VALUES, npz};
use crate::evaluate::{self, ClientScore, MetricSet, Scores};
use crate::fleet::DeviceFactory;
use crate::least_squares::DroppedDirections;
use crate::network::NetworkConfig;
use crate::noise::SeedSource;
use crate::scenario::{Attack, Scenario};

/// Scenario with its data, ready to run. Errors in files are reported when the job is prepared.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    scenario: Cow<'a, Scenario>,
    seed: u64,
    /// Data of the run.
    pub dataset: Dataset,
    given: Option<Matrix>,
    metrics: MetricSet,
    awake_devices: usize,
    times: Times,
}

impl<'a> Job<'a> {
    /// Generates or reads the data of a scenario for a seed, and checks that data and scenario are
    /// compatible.
    ///
    /// # Errors
    /// [`RunError::Data`] if a file cannot be used, [`RunError::Mismatch`] if data and scenario are not
    /// compatible, [`RunError::Build`] if a device cannot be built.
    pub fn prepare(scenario: &'a Scenario, seed: u64) -> Result<Self, RunError> {
        let mut dataset = scenario.dataset(seed)?;
        if dataset.clients.is_empty() {
            let message = format!(
                "no client is left to train: {} have no sample to train on; add samples or change [split]",
                dataset.dropped_users
            );
            return Err(RunError::Mismatch(message));
        }
        let clients = dataset.clients.len();
        scenario.participation.fits(clients, clients).map_err(|(key, message)| {
            RunError::Mismatch(format!("participation.{key}: {message} clients"))
        })?;
        Dropouts::check(&scenario.fleet, clients)
            .and_then(|()| Availability::check(&scenario.fleet, clients, seed))
            .map_err(|(key, message)| RunError::Mismatch(format!("fleet.{key}: {message}")))?;
        if scenario.algorithm.power().is_some() && dataset.truth.is_none() {
            let truth = pooled_truth(&dataset, scenario.model.target)
                .map_err(|error| RunError::Mismatch(error.to_string()))?;
            dataset.truth = Some(truth);
        }
        if let Some(attack) = scenario.attack {
            if matches!(attack.kind, Attack::PoisonedTargets(_)) && !dataset.has_targets() {
                let message = "attack.kind is \"poisoned-targets\", but the samples have no targets; allowed: data with targets";
                return Err(RunError::Mismatch(message.to_owned()));
            }
            Attackers::select(attack, dataset.clients.len(), seed).poison(&mut dataset);
        }
        let build = DeviceFactory::new(scenario, &dataset, seed, SeedSource::Deterministic(seed))?;
        if scenario.is_federated() {
            let devices = format!("the devices of {clients} clients");
            let all_fit_heads = scenario.metrics == MetricSet::All;
            check_memory(&devices, least_memory(&build, &dataset, AWAKE_MAX, all_fit_heads)).map_err(
                |message| RunError::Mismatch(format!("{message}; take fewer clients or a smaller model")),
            )?;
        }
        check_targets(scenario, &dataset)?;
        check_models(scenario, &build, &dataset)?;
        let mut given = None;
        if let Some(network) = &build.network {
            check_network(network, &dataset)?;
        } else if scenario.is_federated() {
            let (k, d) = (scenario.model.k, dataset.features);
            if k > d {
                return Err(RunError::Mismatch(format!(
                    "model.k is {k}, allowed: at most {d}, the number of features"
                )));
            }
            if dataset.classification && scenario.model.init == Init::Moments {
                let message = "model.init is \"moments\", which needs real-valued targets, but the targets are classes; allowed: \
                               \"random\", \"power\", \"npy:FILE\"";
                return Err(RunError::Mismatch(message.to_owned()));
            }
            let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            let tensor = TensorDescriptor::inline(Role::Representation, Encoding::F32, side(d), side(k));
            if least_frame_limit(&Descriptors::from_iter([tensor])) > FRAME_LIMIT_MAX {
                let message = format!(
                    "a representation of {d} x {k} does not fit 256 chunks of the largest frame; reduce model.k"
                );
                return Err(RunError::Mismatch(message));
            }
            given = given_start(scenario, &dataset, seed)?;
        }
        if scenario.is_federated() {
            let engine = engine(scenario, &dataset, seed, given.clone());
            check_scaled_tensors(&scenario.scale, &engine)
                .map_err(|message| RunError::Mismatch(format!("data.scale: {message}")))?;
            check_frames(&engine).map_err(RunError::Mismatch)?;
        }
        if scenario.metrics == MetricSet::Distance && dataset.truth.is_none() {
            let message = "evaluate is \"distance\", but the data have no true representation to measure it to; allowed: \"all\"";
            return Err(RunError::Mismatch(message.to_owned()));
        }
        let times = Times::new(scenario, &dataset, seed)?;
        let scenario = with_measured_steps(scenario, &dataset, seed, given.clone())?;
        let metrics = scenario.metrics;
        Ok(Self { scenario, seed, dataset, given, metrics, awake_devices: AWAKE_MAX, times })
    }

    /// Scenario of the job, in which step sizes that were to be measured have their numbers.
    #[must_use]
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Selects the metrics that are computed after rounds and at the end.
    #[must_use]
    pub fn with_metrics(self, metrics: MetricSet) -> Self {
        Self { metrics, ..self }
    }

    /// Sets the number of devices of linear models that compute together and stay in memory between rounds (8,192). Results are
    /// the same for any number: the state of the others is saved, and restored when a round is sent to them.
    #[must_use]
    pub fn with_awake_devices(self, awake_devices: usize) -> Self {
        Self { awake_devices, ..self }
    }

    /// Replaces the scenario's answer times.
    #[must_use]
    pub fn with_times(self, times: Times) -> Self {
        Self { times, ..self }
    }

    /// Runs the scenario with the answer times of a server's journal and compares the decisions; see
    /// [`Replay`].
    ///
    /// # Errors
    /// [`RunError`] if the campaign fails.
    pub fn replay(&self, replay: &mut Replay) -> Result<Outcome, RunError> {
        self.simulation()?.with_replay(replay.driver()).run(&mut NoProgress)
    }

    /// Warnings about the data that are known before the run, one line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.dataset
            .warnings
            .iter()
            .cloned()
            .chain(column_scale_warning(&self.scenario, &self.dataset))
            .collect()
    }

    /// Runs the scenario.
    ///
    /// # Errors
    /// [`RunError::Failed`] if the campaign cannot continue, [`RunError::NotFinite`] if a metric is not
    /// finite, [`RunError::Silent`] if the simulator has a bug.
    pub fn run(&self, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
        self.run_custom(CustomParts::default(), watcher)
    }

    /// Runs the scenario like [`Self::run`], with the algorithm and the participation policy of `custom` if
    /// given. The rule of `custom` is not applied; see [`Scenario::with_rule`].
    ///
    /// # Errors
    /// The errors of [`Self::run`], and [`RunError::Custom`] if a custom part does not fit the scenario.
    pub fn run_custom(
        &self,
        mut custom: CustomParts,
        watcher: &mut dyn Watcher,
    ) -> Result<Outcome, RunError> {
        let scenario = &self.scenario;
        let names = custom.names();
        if !scenario.is_federated() && (names.algorithm.is_some() || names.participation.is_some()) {
            let message = format!(
                "algorithm.name is {:?}, which has no rounds for a custom algorithm or policy; allowed: one with rounds",
                scenario.algorithm_name()
            );
            return Err(RunError::Mismatch(message));
        }
        let shape =
            || engine(scenario, &self.dataset, self.seed, self.given.clone()).representation().shape();
        custom.check(shape, scenario.scale != ScaleSource::None, scenario.privacy.is_some())?;
        let mut outcome = match scenario.is_federated() {
            true => self.custom_simulation(custom)?.run(watcher)?,
            false => run_baseline(scenario, &self.dataset, self.seed)?,
        };
        self.describe(&mut outcome);
        Ok(outcome)
    }

    /// Continues a saved run of this job to its end. The results have the same bits as those of an uninterrupted run,
    /// except for times of the machine.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if the saved run belongs to other data or another scenario, and the errors of [`Self::run`].
    pub fn resume(&self, saved: &SavedRun, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
        saved.check_data(self)?;
        let mut outcome = self.simulation()?.resume(saved, watcher)?;
        self.describe(&mut outcome);
        Ok(outcome)
    }

    /// Adds what is known of the data and the settings to the results.
    fn describe(&self, outcome: &mut Outcome) {
        if self.scenario.measured.step_size {
            outcome.step_size = Some(self.scenario.algorithm.step_size);
        }
        outcome.names = DataNames::new(&self.dataset, &outcome.numbers);
        outcome.warnings = self.warnings();
        outcome.warnings.extend(outcome.fits.as_ref().and_then(FitStats::warning));
        outcome.warnings.extend(uncounted_warning(&self.scenario, outcome));
        outcome.warnings.extend(undetermined_warning(&self.scenario, outcome));
        // With a fleet-wide scale features have a size of about 1, so the warning does not apply.
        if self.scenario.scale == ScaleSource::None {
            let of_ridge = |chosen| evaluate::ridge::warning(chosen, &self.dataset);
            outcome.warnings.extend(outcome.ridge.as_ref().and_then(of_ridge));
        }
    }

    fn simulation(&self) -> Result<Simulation<'_>, RunError> {
        self.custom_simulation(CustomParts::default())
    }

    fn custom_simulation(&self, custom: CustomParts) -> Result<Simulation<'_>, RunError> {
        let (given, times) = (self.given.clone(), self.times.clone());
        let engine = custom_engine(&self.scenario, &self.dataset, self.seed, given, custom);
        let simulation = Simulation::new(&self.scenario, &self.dataset, self.seed, engine, times)?;
        Ok(simulation.with_metrics(self.metrics).with_awake_devices(self.awake_devices))
    }
}

/// Replaces "auto" step sizes of a scenario by step sizes that are measured at the initial representation.
fn with_measured_steps<'a>(
    scenario: &'a Scenario,
    dataset: &Dataset,
    seed: u64,
    given: Option<Matrix>,
) -> Result<Cow<'a, Scenario>, RunError> {
    let MeasuredSteps { step_size, head_step_size } = scenario.measured;
    if !(step_size || head_step_size) {
        return Ok(Cow::Borrowed(scenario));
    }
    let start = engine(scenario, dataset, seed, given).representation().clone();
    // Devices train on standardised samples, so the curvature is also measured on standardised samples.
    let scale = fleet_scale(scenario, dataset, seed)?;
    let scaled = scale.as_ref().map(|scale| dataset.scaled(scale, None));
    let dataset = scaled.as_ref().unwrap_or(dataset);
    let AlgorithmSection { method, head, final_head, .. } = scenario.algorithm;
    let (head, exact) = match head {
        HeadSolve::LeastSquares { ridge } if method == Method::Linear(LinearMethod::FEDREP) => {
            (head, Some(f64::from(ridge)))
        }
        _ => (final_head, None),
    };
    let Some(steps) = step_size::measure(dataset, &start, head, exact) else {
        let message = "algorithm.step_size is \"auto\", but the loss has no curvature at the start: the samples are zero, or \
                       not finite in f32; allowed: a number";
        return Err(RunError::Mismatch(message.to_owned()));
    };
    let mut scenario = scenario.clone();
    let algorithm = &mut scenario.algorithm;
    if step_size {
        // The loss of RoLoRA, and so its curvature, is twice the loss of the other algorithms.
        let factor = algorithm.linear().map_or(1.0, |method| method.step_factor());
        algorithm.step_size = steps.step_size / factor;
    }
    if head_step_size {
        algorithm.head_step_size = steps.head_step_size;
        if let HeadSolve::Gradient { step_size, .. } = &mut algorithm.head {
            #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
            let rounded_step_size = steps.head_step_size as f32;
            *step_size = rounded_step_size;
        }
    }
    Ok(Cow::Owned(scenario))
}

/// Rejects settings that do not fit the data, such as a stop condition on an accuracy for regression.
fn check_targets(scenario: &Scenario, dataset: &Dataset) -> Result<(), RunError> {
    if let (Some(settings), None) = (scenario.algorithm.learned_prior(), scenario.model.network) {
        settings.check_features(dataset.features).map_err(RunError::Mismatch)?;
    }
    if scenario.stop.distance.is_some() && dataset.truth.is_none() {
        let message = "stop.distance needs the truth: synthetic data, b_star in an npz file, or \"fedpower\"";
        return Err(RunError::Mismatch(message.to_owned()));
    }
    let tested = dataset.classification && dataset.clients.iter().any(|client| !client.test.is_empty());
    if scenario.stop.accuracy.is_some() && !tested {
        let message = "stop.accuracy needs classes and test samples: no client has any";
        return Err(RunError::Mismatch(message.to_owned()));
    }
    Ok(())
}

/// Checks that the targets are classes, and that the layers of the network fit in the frames of a round.
fn check_network(network: &NetworkConfig, dataset: &Dataset) -> Result<(), RunError> {
    if !dataset.classification {
        let message = "the model is a network, which needs classes, but the targets are real values; set model.kind = \"linear\"";
        return Err(RunError::Mismatch(message.to_owned()));
    }
    let (method, parameters) = (network.method, network.parameters);
    let NetworkParameters { shape, upload_encoding, download_encoding, .. } = parameters;
    for encoding in [upload_encoding, download_encoding] {
        let tensors = shape.descriptors(SharedLayers::All, method.tensors_per_layer(), encoding).into_iter();
        if least_frame_limit(&tensors.collect()) > FRAME_LIMIT_MAX {
            let count = shape.parameters() * method.tensors_per_layer();
            let message = format!(
                "a network's {count} values do not fit 256 chunks of the largest frame; use smaller layers"
            );
            return Err(RunError::Mismatch(message));
        }
    }
    Ok(())
}

/// Checks that all models together have at most [`LARGEST_VALUES`] values, the same limit as for the data.
fn check_models(scenario: &Scenario, build: &DeviceFactory, dataset: &Dataset) -> Result<(), RunError> {
    let (d, c) = (dataset.features as u64, dataset.outputs as u64);
    let (values, description) = if let Some(network) = &build.network {
        let clients = (dataset.clients.len() + dataset.newcomers.len()) as u64;
        // Memory per client: parameters, velocity, received layers, and a control variate or personal
        // network.
        let values_per_client = 6 * network.shape.parameters() as u64
            + network.shape.scratch() as u64
            + build.prior_values() as u64;
        let samples: usize =
            dataset.clients.iter().chain(&dataset.newcomers).map(|client| client.train.len()).sum();
        let cache_size = network.shape.body_cache_len(samples) as u64;
        (
            clients.saturating_mul(values_per_client).saturating_add(cache_size),
            format!("{clients} clients' networks"),
        )
    } else if scenario.is_federated() {
        let (k, clients) =
            (scenario.model.k as u64, (dataset.clients.len() + dataset.newcomers.len()) as u64);
        let values_per_client = match scenario.algorithm.learned_prior() {
            Some(_) => d * d + d * k + 2 * d * c,
            None => d * k + k * k + d * c + 2 * k * c,
        };
        (clients.saturating_mul(values_per_client), format!("{clients} clients' models of {d} x {k} x {c}"))
    } else {
        // Memory of the identity, which replaces the representation, and of the normal equations.
        (5 * d * d + 3 * d * c, format!("least squares on {d} features"))
    };
    if values > LARGEST_VALUES {
        let message =
            format!("{description} would take {values} values, allowed: at most {LARGEST_VALUES} (2^31)");
        return Err(RunError::Mismatch(message));
    }
    Ok(())
}

/// Computes the scale that a campaign with all devices finds, from the same feature sums. Used if there are
/// no rounds, or before the first round.
fn fleet_scale(scenario: &Scenario, dataset: &Dataset, seed: u64) -> Result<Option<Scale>, RunError> {
    let ScaleSource::Fleet = scenario.scale else { return Ok(None) };
    let build = DeviceFactory::new(scenario, dataset, seed, SeedSource::Deterministic(seed))?;
    let mut moments = Vec::new();
    let half = dataset.features.div_ceil(2).max(1);
    for first in (0..dataset.features).step_by(half) {
        let mut sums = FeatureSums::new(half.min(dataset.features - first));
        for client in &dataset.clients {
            let feature_sums = build.feature_sums(client, first..(first + half).min(dataset.features))?;
            if let Some((samples, feature_sums)) = feature_sums {
                sums.absorb(samples, &feature_sums);
            }
        }
        moments.extend(sums.moments().into_iter().flatten());
    }
    Ok((moments.len() == dataset.features).then(|| Scale::standard(&moments)))
}

/// Initial representation, if the scenario defines it by a file or by an angle to the true representation.
///
/// # Errors
/// [`RunError`] if the file cannot be used, or the data do not admit a basis at the angle.
pub fn given_start(scenario: &Scenario, dataset: &Dataset, seed: u64) -> Result<Option<Matrix>, RunError> {
    match &scenario.model.init {
        Init::Npy(path) => {
            let path = &scenario.locate(path);
            let b = npz::read_matrix(path, dataset.features)?;
            if b.ncols() != scenario.model.k {
                let message = format!(
                    "{path} has {} columns, allowed: {}, the value of model.k",
                    b.ncols(),
                    scenario.model.k
                );
                return Err(RunError::Mismatch(message));
            }
            Ok(Some(npz::basis(&b, path, "the array")?))
        }
        Init::TruthSine(sine) => match &dataset.truth {
            Some(truth) if truth.ncols() == scenario.model.k && 2 * truth.ncols() <= truth.nrows() => {
                Ok(Some(basis_at_angle(truth, *sine, seed)))
            }
            _ => Err(RunError::Mismatch("truth-sine needs model.k = data.k and d >= 2 k".to_owned())),
        },
        _ => Ok(None),
    }
}

/// Random basis whose principal angles to `truth` all have the given sine.
fn basis_at_angle(truth: &Matrix, sine: f64, seed: u64) -> Matrix {
    let (d, k) = truth.shape();
    let mut random = stream(seed, Purpose::Start, 1);
    let mut columns = Matrix::from_fn(d, 2 * k, |_, _| random.normal());
    columns.columns_mut(0, k).copy_from(truth);
    let basis = orthonormal(&columns).unwrap_or(columns);
    let cosine = (1.0 - sine * sine).max(0.0).sqrt();
    truth * cosine + basis.columns(k, k) * sine
}

/// Runs a method without training rounds: one model on pooled data, or one model per client.
fn run_baseline(scenario: &Scenario, dataset: &Dataset, seed: u64) -> Result<Outcome, RunError> {
    let began = Instant::now();
    let scale = fleet_scale(scenario, dataset, seed)?;
    let scaled = scale.as_ref().map(|scale| dataset.scaled(scale, None));
    let dataset = scaled.as_ref().unwrap_or(dataset);
    let algorithm = &scenario.algorithm;
    let (head, ridge) = evaluate::ridge::choose(dataset, algorithm.final_head, algorithm.ridge_labels);
    let (scores, clients, newcomers, fits) = match scenario.algorithm.linear() {
        Some(LinearMethod::Pooled(_)) => {
            let (clients, dropped) = evaluate::pooled_with_dropped(dataset, &[], 0, &dataset.clients, head);
            let scores = evaluate::average(&clients);
            let score_client = |client: &Client| {
                let newcomer = std::slice::from_ref(client);
                let (scores, dropped) = evaluate::pooled_with_dropped(dataset, newcomer, 1, newcomer, head);
                let score = scores.into_iter().next().unwrap_or_default();
                ClientScore { dropped, ..score }
            };
            let newcomers: Vec<ClientScore> = dataset.newcomers.iter().map(score_client).collect();
            let fits =
                [dropped].into_iter().chain(newcomers.iter().map(|score| score.dropped.clone())).collect();
            // The one model of all clients is not kept once for each of them.
            let clients =
                clients.into_iter().map(|score| ClientScore { head: Vec::new(), ..score }).collect();
            (Scores { accuracy_global: scores.accuracy, ..scores }, clients, newcomers, fits)
        }
        _ => {
            let clients = evaluate::local_only(dataset, &dataset.clients, head);
            let newcomers = evaluate::local_only(dataset, &dataset.newcomers, head);
            let fits = clients.iter().chain(&newcomers).map(|score| score.dropped.clone()).collect();
            (evaluate::average(&clients), clients, newcomers, fits)
        }
    };
    let fits: Vec<DroppedDirections> = fits;
    let of_newcomers = evaluate::average(&newcomers);
    let row_scores = Scores {
        accuracy_new_clients: of_newcomers.accuracy,
        test_mse_new_clients: of_newcomers.test_mse,
        ..scores
    };
    let outcome = Outcome {
        prior: None,
        head_prior: None,
        names: DataNames::default(),
        rounds: vec![RoundRow {
            round: 0,
            stage: 0,
            cohort: Vec::new(),
            participants: Vec::new(),
            time: 0.0,
            scores: Some(row_scores),
            bytes_up: 0,
            bytes_down: 0,
            rejected: 0,
            interference: None,
        }],
        scores,
        clients,
        numbers: (0..dataset.clients.len() + dataset.newcomers.len()).collect(),
        tuned: Vec::new(),
        diverged: None,
        newcomers,
        newcomers_global: Scores::default(),
        dropped_users: dataset.dropped_users,
        fits: Some(FitStats::new(&fits, dataset)),
        warnings: Vec::new(),
        step_size: None,
        outputs: dataset.outputs,
        ridge,
        representation: None,
        layers: Vec::new(),
        scale,
        counters: Counters::default(),
        privacy: None,
        energy: Vec::new(),
        updates: 0,
        bytes: (0, 0),
        fit_bytes: (0, 0),
        newcomer_bytes: (0, 0),
        seconds: began.elapsed().as_secs_f64(),
        attacks: 0,
        interrupted: false,
    };
    outcome.check_figures()?;
    Ok(outcome)
}

/// Warning about clients whose samples determine no head, where clients solve the normal equations only.
fn undetermined_warning(scenario: &Scenario, outcome: &Outcome) -> Option<String> {
    let all = outcome.clients.iter().chain(&outcome.newcomers);
    let without: Vec<usize> =
        all.enumerate().filter(|(_, client)| client.undetermined).map(|(index, _)| index).collect();
    if without.is_empty() && scenario.fleet.normal_equations_only && outcome.counters.declined > 0 {
        return Some(format!(
            "{} rounds were declined by clients whose samples do not determine a head for training, since fleet.head_solver = \
             \"normal-equations\" solves nothing else. The representation is trained without them; a larger algorithm.ridge \
             determines every head",
            outcome.counters.declined
        ));
    }
    let first = outcome.numbers.get(*without.first()?).map_or(0, |number| number + 1);
    Some(format!(
        "{} clients have no head, the first is client {first}, and {} rounds were declined: the samples do not determine one, and \
         fleet.head_solver = \"normal-equations\" solves nothing else. Their predictions are scored as zero; a larger ridge determines \
         every head",
        without.len(),
        outcome.counters.declined
    ))
}

/// Warning about updates that were rejected though no client attacks. It names the client that counts in the fewest of the
/// rounds to which it was invited. Declined rounds alone are no reason: a client with few samples cannot score ridges.
fn uncounted_warning(scenario: &Scenario, outcome: &Outcome) -> Option<String> {
    let counters = &outcome.counters;
    if scenario.attack.is_some() || counters.rejected() == 0 {
        return None;
    }
    let mut rounds: BTreeMap<DeviceId, (usize, usize)> = BTreeMap::new();
    for row in &outcome.rounds {
        for device in &row.cohort {
            let (counted, invited) = rounds.entry(*device).or_default();
            *invited += 1;
            *counted += usize::from(row.participants.contains(device));
        }
    }
    let worst = rounds.into_iter().min_by_key(|(_, (counted, invited))| counted * 1_000 / (*invited).max(1));
    let client = worst.map_or(String::new(), |(device, (counted, invited))| {
        format!("; client {} counts in {counted} of {invited} rounds", device.0 + 1)
    });
    Some(format!(
        "{} updates were rejected ({} above limits.norm) and {} rounds were declined{client}: its training may diverge, and a \
         smaller step size may help",
        counters.rejected(),
        counters.norm_over_bound,
        counters.declined
    ))
}
