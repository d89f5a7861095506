//! Measurements of the demo: accuracy and traffic of every method in every fold with every seed.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_protocol::message::HeadSolve;
use rayon::prelude::*;

use super::choice::{Choice, Features, RidgeChoice};
use super::part::{PARTS, Part};
use super::{DemoError, Progress, scaled};
use fedspan_sim_core::data::{Client, Dataset};
use fedspan_sim_core::evaluate::{self, Scores, average};
use fedspan_sim_core::report::plot::{Point, curve};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Number of folds; each holds out two people.
pub const FOLDS: usize = 5;
/// Number of seeds. A seed determines the windows that a new wearer labels and the initial representation.
pub const SEEDS: usize = 3;

/// Weights of a new wearer's labels that are tried for the weighted pooled model.
pub const WEIGHTS: [usize; 4] = [10, 30, 100, 300];

/// Method that the tables compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// FedRep on the features that a device computes.
    FedRep,
    /// FedAvg: one linear model that all wearers share.
    FedAvg,
    /// Local-only training: each wearer's model is fitted on that wearer's windows only.
    Local,
    /// Pooled training: one model is fitted on the windows of all wearers.
    Pooled,
    /// Pooled training with a higher weight for new wearers' labels.
    PooledWeighted,
    /// FedRep on the logarithmic features of [`scaled`].
    FedRepLogarithmic,
    /// Local-only training on the logarithmic features.
    LocalLogarithmic,
}

/// Number of training rounds in one fold, summed over all methods and seeds.
fn rounds_of_part(part: &Part) -> Result<u64, DemoError> {
    let fedrep = part.scenario(0, &[])?.algorithm.rounds;
    let fedavg = if part.shared_labels { part.scenario(0, &fedavg())?.algorithm.rounds } else { 0 };
    Ok(2 * u64::from(fedrep) * SEEDS as u64 + u64::from(fedavg))
}

/// Settings of FedAvg: one shared linear model of seven outputs, i.e. a matrix of rank seven, with as many
/// rounds as FedRep. Step sizes from 1/32 to 1/4 were tried with 1 and 5 local steps; these settings had the
/// lowest loss of the training wearers on three folds. 20 local steps lower the loss further, at four times
/// the computation.
fn fedavg() -> [String; 5] {
    [
        "algorithm.name=fedavg",
        "model.k=7",
        "data.head_samples_per_class=0",
        "algorithm.local_steps=5",
        "algorithm.step_size=0.1875",
    ]
    .map(str::to_owned)
}

/// Accuracies of one method in one fold with one seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Method that was measured.
    pub method: Method,
    /// Mean accuracy of the training wearers on their own test windows.
    pub trained: Option<f64>,
    /// Mean accuracy of the new wearers on their own test windows.
    pub new: Option<f64>,
    /// Bytes that a training wearer sends and receives during training, as a mean over wearers.
    pub bytes: Option<(f64, f64)>,
    /// Bytes that a new wearer sends and receives to obtain a model, as a mean over new wearers.
    pub new_bytes: Option<(f64, f64)>,
}

impl Measured {
    fn new(method: Method) -> Self {
        Self { method, trained: None, new: None, bytes: None, new_bytes: None }
    }
}

/// Results of one fold with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Number of the held-out fold, from 0.
    pub fold: usize,
    /// Index of the seed, from 0.
    pub seed: usize,
    /// Results of every method.
    pub measured: Vec<Measured>,
    /// Learning curve of FedRep on the features that a device computes.
    pub curve: Vec<Point>,
}

/// Results of one part of the demo.
pub struct PartResult {
    /// Measured part of the demo.
    pub part: Part,
    /// Finished cases, in the order of folds and seeds.
    pub cases: Vec<Case>,
    /// True if the user interrupted the demo before all cases of the part were finished.
    pub interrupted: bool,
}

/// Watcher that counts the rounds of all runs for the progress display and stops a run if the user requests
/// it.
struct RoundCounter<'a> {
    progress: &'a dyn Progress,
    total: u64,
    what: String,
    stop: &'a AtomicBool,
}

impl Watcher for RoundCounter<'_> {
    fn round(&mut self, completed_rounds: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        if completed_rounds > 0 {
            self.progress.advance(1, self.total, &self.what);
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Measures all parts, folds and seeds in parallel; results do not depend on the number of threads.
///
/// # Errors
/// [`DemoError::Run`] if a run fails.
pub fn measure_all(stop: &AtomicBool, progress: &dyn Progress) -> Result<Vec<PartResult>, DemoError> {
    let mut total = 0;
    for part in &PARTS {
        total += rounds_of_part(part)? * FOLDS as u64;
    }
    let mut jobs = Vec::new();
    for part in &PARTS {
        for fold in 0..FOLDS {
            jobs.extend((0..SEEDS).map(|seed| (part, fold, seed)));
        }
    }
    let measured: Result<Vec<Option<Case>>, DemoError> = jobs
        .par_iter()
        .map(|&(part, fold, seed)| {
            let what = format!("{}: fold {}, seed {}", part.name, fold + 1, seed + 1);
            measure_case(part, fold, seed, &mut RoundCounter { progress, total, what, stop })
        })
        .collect();
    let finished = |(part, cases): (&Part, &[Option<Case>])| {
        let cases: Vec<Case> = cases.iter().flatten().cloned().collect();
        PartResult { part: *part, interrupted: cases.len() < FOLDS * SEEDS, cases }
    };
    Ok(PARTS.iter().zip(measured?.chunks(FOLDS * SEEDS)).map(finished).collect())
}

/// Prepares a scenario with its data in one of the two feature sets.
///
/// # Errors
/// [`DemoError::Run`] if the data cannot be prepared.
pub fn prepare(scenario: &Scenario, seed: u64, features: Features) -> Result<Job<'_>, DemoError> {
    let mut job = Job::prepare(scenario, seed)?;
    if let (Features::Logarithmic, DataSection::Watch(settings)) = (features, &scenario.data) {
        job.dataset = scaled::dataset(settings, seed).map_err(RunError::from)?;
    }
    Ok(job)
}

/// Measures one fold with one seed. Returns `None` if the user interrupted the measurement.
fn measure_case(
    part: &Part,
    fold: usize,
    seed: usize,
    watcher: &mut RoundCounter<'_>,
) -> Result<Option<Case>, DemoError> {
    let choice = Choice::recorded(part, fold)?;
    let (mut measured, mut points) = (Vec::new(), Vec::new());
    for features in [Features::Device, Features::Logarithmic] {
        let chosen = choice.fedrep(features);
        let scenario = part.scenario(fold, &chosen.changes())?;
        let job = prepare(&scenario, scenario.seed + seed as u64, features)?;
        let outcome = job.run(watcher)?;
        if outcome.interrupted {
            return Ok(None);
        }
        let data = &job.dataset;
        let device = features == Features::Device;
        let method = if device { Method::FedRep } else { Method::FedRepLogarithmic };
        measured.push(Measured {
            trained: outcome.scores.accuracy,
            new: average(&outcome.newcomers).accuracy,
            bytes: Some(per_wearer(outcome.bytes, data.clients.len())),
            new_bytes: Some(per_wearer(outcome.newcomer_bytes, data.newcomers.len())),
            ..Measured::new(method)
        });
        if device {
            points = curve(&outcome);
            measured.extend(baselines(data, &choice));
        } else {
            let solve = ridge(choice.local_logarithmic.ridge);
            let new = average(&evaluate::local_only(data, &data.newcomers, solve));
            measured.push(Measured { new: new.accuracy, ..Measured::new(Method::LocalLogarithmic) });
        }
    }
    // FedAvg runs with the first seed only: it takes longer than all other methods, and its accuracy varies
    // by only 0.002 over seeds.
    if part.shared_labels && seed == 0 {
        let scenario = part.scenario(fold, &fedavg())?;
        let job = prepare(&scenario, scenario.seed, Features::Device)?;
        let outcome = job.run(watcher)?;
        if outcome.interrupted {
            return Ok(None);
        }
        measured.push(Measured {
            trained: outcome.scores.accuracy_global,
            new: outcome.newcomers_global.accuracy,
            bytes: Some(per_wearer(outcome.bytes, job.dataset.clients.len())),
            ..Measured::new(Method::FedAvg)
        });
    }
    Ok(Some(Case { fold, seed, measured, curve: points }))
}

/// Mean accuracy of pooled models on newcomers. For each newcomer a model is fitted on the pooled data of the
/// training clients and that newcomer's labels, which count `weight` times.
#[must_use]
pub fn pooled_newcomers(data: &Dataset, weight: usize, solve: HeadSolve) -> Option<f64> {
    let bytes_per_newcomer = data.newcomers.iter().filter_map(|client| {
        let newcomer = std::slice::from_ref(client);
        evaluate::pooled(data, newcomer, weight, newcomer, solve).accuracy
    });
    mean(&bytes_per_newcomer.collect::<Vec<f64>>())
}

/// Results of the methods without rounds, on the features that a device computes.
fn baselines(data: &Dataset, choice: &Choice) -> [Measured; 3] {
    let local = |clients: &[Client], chosen: RidgeChoice| {
        average(&evaluate::local_only(data, clients, ridge(chosen.ridge))).accuracy
    };
    let pooled = |chosen: RidgeChoice| pooled_newcomers(data, chosen.weight, ridge(chosen.ridge));
    let trained = ridge(choice.pooled_trained.ridge);
    // A wearer uploads 57 features in f32 and a label of one byte per window, and downloads the model.
    let bytes_sent = |clients: &[Client]| {
        let windows: usize = clients.iter().map(|client| client.train.len()).sum();
        let up = windows * (4 * (data.features - 1) + 1);
        let down = clients.len() * 4 * data.features * data.outputs;
        per_wearer((up as u64, down as u64), clients.len())
    };
    let (bytes_sent, new_sent) = (bytes_sent(&data.clients), bytes_sent(&data.newcomers));
    [
        Measured {
            trained: local(&data.clients, choice.local_trained),
            new: local(&data.newcomers, choice.local),
            ..Measured::new(Method::Local)
        },
        Measured {
            trained: evaluate::pooled(data, &[], 0, &data.clients, trained).accuracy,
            new: pooled(choice.pooled),
            bytes: Some(bytes_sent),
            new_bytes: Some(new_sent),
            ..Measured::new(Method::Pooled)
        },
        Measured {
            new: pooled(choice.pooled_weighted),
            bytes: Some(bytes_sent),
            new_bytes: Some(new_sent),
            ..Measured::new(Method::PooledWeighted)
        },
    ]
}

/// Least squares fit with this ridge parameter.
#[must_use]
pub fn ridge(ridge: f32) -> HeadSolve {
    HeadSolve::LeastSquares { ridge }
}

/// Divides bytes that all wearers sent and received by the number of wearers.
#[allow(clippy::cast_precision_loss, reason = "bytes per wearer")]
fn per_wearer((up, down): (u64, u64), wearers: usize) -> (f64, f64) {
    let wearers = wearers.max(1) as f64;
    (up as f64 / wearers, down as f64 / wearers)
}

/// Arithmetic mean, or `None` for an empty slice.
#[allow(clippy::cast_precision_loss, reason = "a count")]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
