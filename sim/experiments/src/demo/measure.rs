//! What the demo measures: every method, on every fold, with every seed.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_protocol::message::HeadSolve;
use rayon::prelude::*;

use super::choose::{Choice, Features, RidgeChoice};
use super::{DemoError, Progress, scaled};
use fedspan_sim_core::data::{Client, Dataset};
use fedspan_sim_core::evaluate::{self, Scores, average};
use fedspan_sim_core::report::plot::{Point, curve};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Groups of two people that are held out in turn.
pub const FOLDS: usize = 5;
/// Seeds: which windows a new wearer labels, where the representation starts.
pub const SEEDS: usize = 3;

/// How often a new wearer's label may count in the weighted pooled model.
pub const WEIGHTS: [usize; 4] = [10, 30, 100, 300];

/// The rounds after which the curves have a point.
const EVALUATE_EVERY: u32 = 25;

/// The methods of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The scenario itself.
    FedRep,
    /// One shared model, federated.
    FedAvg,
    /// Each wearer alone.
    Local,
    /// All windows in one place.
    Pooled,
    /// The same, new labels weighted.
    PooledWeighted,
    /// FedRep on other features of the same windows: those of [`scaled`].
    FedRepLogarithmic,
    /// Each wearer alone on those.
    LocalLogarithmic,
}

/// One half of the demo: a built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The scenario's name.
    pub name: &'static str,
    /// Whether labels mean the same for everyone, so that one shared model can be asked for.
    pub shared_labels: bool,
}

/// Both halves.
pub const PARTS: [Part; 2] =
    [Part { name: "demo", shared_labels: true }, Part { name: "programmes", shared_labels: false }];

impl Part {
    /// Its scenario with one fold held out and some changes.
    ///
    /// # Errors
    /// [`DemoError::Scenario`].
    pub fn scenario(&self, fold: usize, changes: &[String]) -> Result<Scenario, DemoError> {
        let fold = format!("split.fold={fold}");
        let every = format!("evaluate_every={EVALUATE_EVERY}");
        let changes: Vec<String> = changes.iter().cloned().chain([fold, every]).collect();
        let text = Scenario::built_in(self.name).unwrap_or_default();
        Ok(Scenario::parse(self.name, text, &changes)?)
    }

    /// Rounds of one fold, all methods and seeds.
    fn rounds(&self) -> Result<u64, DemoError> {
        let fedrep = self.scenario(0, &[])?.algorithm.rounds;
        let fedavg = if self.shared_labels { self.scenario(0, &fedavg())?.algorithm.rounds } else { 0 };
        Ok(2 * u64::from(fedrep) * SEEDS as u64 + u64::from(fedavg))
    }
}

/// One shared linear model of seven outputs: a matrix of rank seven, as many rounds as FedRep. Of step sizes
/// from 1/32 to 1/4 with 1 or 5 local steps, the training wearers' loss on three folds was lowest here; 20 local
/// steps come lower still, at four times the computation.
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
    /// Whose.
    pub method: Method,
    /// Mean over training wearers, on their own test windows.
    pub trained: Option<f64>,
    /// Mean over new wearers, on their own test windows.
    pub new: Option<f64>,
    /// Bytes that a training wearer sends and receives in training.
    pub bytes: Option<(f64, f64)>,
    /// Bytes that a new wearer sends and receives to get its model.
    pub new_bytes: Option<(f64, f64)>,
}

impl Measured {
    fn of(method: Method) -> Self {
        Self { method, trained: None, new: None, bytes: None, new_bytes: None }
    }
}

/// One fold with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Which people are held out.
    pub fold: usize,
    /// Which seed, from 0.
    pub seed: usize,
    /// Every method.
    pub measured: Vec<Measured>,
    /// FedRep's rounds.
    pub curve: Vec<Point>,
}

/// All of one part.
pub struct Finished {
    /// Which one.
    pub part: Part,
    /// What was finished, in order of folds and seeds.
    pub cases: Vec<Case>,
    /// Not everything was finished.
    pub interrupted: bool,
}

/// Counts rounds for everyone, and asks whether to stop.
struct Counting<'a> {
    progress: &'a dyn Progress,
    of: u64,
    what: String,
    stop: &'a AtomicBool,
}

impl Watcher for Counting<'_> {
    fn round(&mut self, done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        if done > 0 {
            self.progress.advance(1, self.of, &self.what);
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Measures all parts, folds and seeds, several at once; the results do not depend on how many.
///
/// # Errors
/// [`DemoError::Run`].
pub fn all(stop: &AtomicBool, progress: &dyn Progress) -> Result<Vec<Finished>, DemoError> {
    let mut of = 0;
    for part in &PARTS {
        of += part.rounds()? * FOLDS as u64;
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
            case(part, fold, seed, &mut Counting { progress, of, what, stop })
        })
        .collect();
    let finished = |(part, cases): (&Part, &[Option<Case>])| {
        let cases: Vec<Case> = cases.iter().flatten().cloned().collect();
        Finished { part: *part, interrupted: cases.len() < FOLDS * SEEDS, cases }
    };
    Ok(PARTS.iter().zip(measured?.chunks(FOLDS * SEEDS)).map(finished).collect())
}

/// A scenario with its data in one of the two sets of features.
///
/// # Errors
/// [`DemoError::Run`].
pub fn prepare(scenario: &Scenario, seed: u64, features: Features) -> Result<Job<'_>, DemoError> {
    let mut job = Job::prepare(scenario, seed)?;
    if let (Features::Logarithmic, DataSection::Watch(settings)) = (features, &scenario.data) {
        job.dataset = scaled::dataset(settings, seed).map_err(RunError::from)?;
    }
    Ok(job)
}

/// `None` where the user ended it.
fn case(
    part: &Part,
    fold: usize,
    seed: usize,
    watcher: &mut Counting<'_>,
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
            bytes: Some(each(outcome.bytes, data.clients.len())),
            new_bytes: Some(each(outcome.newcomer_bytes, data.newcomers.len())),
            ..Measured::of(method)
        });
        if device {
            points = curve(&outcome);
            measured.extend(baselines(data, &choice));
        } else {
            let solve = ridge(choice.local_logarithmic.ridge);
            let new = average(&evaluate::local_only(data, &data.newcomers, solve));
            measured.push(Measured { new: new.accuracy, ..Measured::of(Method::LocalLogarithmic) });
        }
    }
    // With the first seed only: it takes longer than all others, and its spread over seeds is 0.002.
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
            bytes: Some(each(outcome.bytes, job.dataset.clients.len())),
            ..Measured::of(Method::FedAvg)
        });
    }
    Ok(Some(Case { fold, seed, measured, curve: points }))
}

/// Accuracy of the pooled model on newcomers, each of whom joins it alone with labels that count `weight`
/// times.
#[must_use]
pub fn pooled_newcomers(data: &Dataset, weight: usize, solve: HeadSolve) -> Option<f64> {
    let each = data.newcomers.iter().filter_map(|client| {
        let one = std::slice::from_ref(client);
        evaluate::pooled(data, one, weight, one, solve).accuracy
    });
    mean(&each.collect::<Vec<f64>>())
}

/// The methods without rounds, on the features that a device computes.
fn baselines(data: &Dataset, choice: &Choice) -> [Measured; 3] {
    let local = |clients: &[Client], chosen: RidgeChoice| {
        average(&evaluate::local_only(data, clients, ridge(chosen.ridge))).accuracy
    };
    let pooled = |chosen: RidgeChoice| pooled_newcomers(data, chosen.weight, ridge(chosen.ridge));
    let trained = ridge(choice.pooled_trained.ridge);
    // Up: 57 features in f32 and a label for each window; down: the model.
    let sent = |clients: &[Client]| {
        let windows: usize = clients.iter().map(|client| client.train.len()).sum();
        let up = windows * (4 * (data.features - 1) + 1);
        let down = clients.len() * 4 * data.features * data.outputs;
        each((up as u64, down as u64), clients.len())
    };
    let (sent, new_sent) = (sent(&data.clients), sent(&data.newcomers));
    [
        Measured {
            trained: local(&data.clients, choice.local_trained),
            new: local(&data.newcomers, choice.local),
            ..Measured::of(Method::Local)
        },
        Measured {
            trained: evaluate::pooled(data, &[], 0, &data.clients, trained).accuracy,
            new: pooled(choice.pooled),
            bytes: Some(sent),
            new_bytes: Some(new_sent),
            ..Measured::of(Method::Pooled)
        },
        Measured {
            new: pooled(choice.pooled_weighted),
            bytes: Some(sent),
            new_bytes: Some(new_sent),
            ..Measured::of(Method::PooledWeighted)
        },
    ]
}

/// Least squares with a ridge.
#[must_use]
pub fn ridge(ridge: f32) -> HeadSolve {
    HeadSolve::LeastSquares { ridge }
}

#[allow(clippy::cast_precision_loss, reason = "bytes per wearer")]
fn each((up, down): (u64, u64), wearers: usize) -> (f64, f64) {
    let wearers = wearers.max(1) as f64;
    (up as f64 / wearers, down as f64 / wearers)
}

/// `None` of nothing.
#[allow(clippy::cast_precision_loss, reason = "a count")]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
