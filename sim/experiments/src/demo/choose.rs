//! Hyperparameter search of the demo by nested cross-validation.
//!
//! The search is repeated in every fold and uses no data of the two people who are held out of the fold. Each
//! inner fold holds out two of the other eight people: they label one window per exercise and are scored on
//! the last part of their training half.
//!
//! The demo runs with the result that is recorded in `chosen.json`; `fedspan-sim choose` repeats the search
//! and prints its result.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_protocol::message::HeadSolve;
use rayon::prelude::*;

use super::choice::{Choice, Choices, Features, FedRepChoice, RidgeChoice};
use super::measure::{FOLDS, WEIGHTS, mean, pooled_newcomers, prepare, ridge};
use super::part::{PARTS, Part};
use super::{DemoError, Progress, scaled};
use fedspan_sim_core::data::{Client, Dataset, shape_of, watch};
use fedspan_sim_core::evaluate::{self, average};
use fedspan_sim_core::fleet::FleetArithmetic;
use fedspan_sim_core::run::{NoProgress, RunError};
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Fraction of each training half that serves as validation data.
const VALIDATION: f64 = 0.4;
/// Number of inner folds; each holds out one pair of the eight remaining people.
const INNER_FOLDS: usize = 4;
/// Number of random draws of the windows that a held-out person labels and of that person's programme.
const DRAWS: u64 = 10;

/// Widths of the representation that are tried. If several settings have the same score, the first is chosen,
/// so each list of values begins with the smallest or simplest value.
const WIDTHS: [usize; 3] = [8, 16, 24];
/// Step sizes that are tried.
const STEPS: [f64; 2] = [0.5, 1.0];
/// Numbers of windows per class for the heads of training rounds that are tried.
const HEAD_SAMPLES: [usize; 2] = [1, 2];
/// Ridge parameters that are tried.
const RIDGES: [f32; 7] = [1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0];

/// Chooses hyperparameters for all parts and folds. Returns `None` if the user interrupted the search.
///
/// # Errors
/// [`DemoError::Run`] if a training run fails.
pub fn choose_all(stop: &AtomicBool, progress: &dyn Progress) -> Result<Option<Vec<Choices>>, DemoError> {
    let space = SearchSpace::all();
    let mut chosen = Vec::new();
    for part in &PARTS {
        let mut folds = Vec::new();
        for fold in 0..FOLDS {
            let Some(choice) = choose(&space, part, fold, PARTS.len() * FOLDS, stop, progress)? else {
                return Ok(None);
            };
            folds.push(choice);
        }
        chosen.push(Choices { scenario: part.name.to_owned(), folds });
    }
    Ok(Some(chosen))
}

/// Hyperparameters with which one representation is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Feature set of the training data.
    pub features: Features,
    /// Width of the representation.
    pub k: usize,
    /// Step size of the representation.
    pub step_size: f64,
    /// Number of windows per class on which a client fits its head in a training round.
    pub head_samples_per_class: usize,
}

impl Candidate {
    /// All combinations of the tried values.
    fn all() -> Vec<Self> {
        let mut candidates = Vec::new();
        for features in [Features::Device, Features::Logarithmic] {
            for k in WIDTHS {
                for step_size in STEPS {
                    let candidate =
                        |head_samples_per_class| Self { features, k, step_size, head_samples_per_class };
                    candidates.extend(HEAD_SAMPLES.map(candidate));
                }
            }
        }
        candidates
    }
}

/// Search space of the hyperparameters. The first of several candidates with equal scores is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchSpace {
    /// Candidates of FedRep; each is scored with every ridge parameter of the final heads.
    pub fedrep: Vec<Candidate>,
    /// Candidates of the baselines: weight of a newcomer's label (1 for baselines without weights) and ridge
    /// parameter.
    pub baselines: Vec<(usize, f32)>,
}

impl SearchSpace {
    /// Creates the complete search space.
    #[must_use]
    pub fn all() -> Self {
        let weights = [1].into_iter().chain(WEIGHTS);
        Self {
            fedrep: Candidate::all(),
            baselines: weights.flat_map(|weight| RIDGES.map(|ridge| (weight, ridge))).collect(),
        }
    }
}

/// Chooses hyperparameters for one fold of one part. The progress display needs `fold_count`, the number of
/// folds over all parts. Returns `None` if the user interrupted the search.
///
/// # Errors
/// [`DemoError::Run`] if a training run fails, [`DemoError::Choice`] if the search space is empty.
pub fn choose(
    space: &SearchSpace,
    part: &Part,
    fold: usize,
    fold_count: usize,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Option<Choice>, DemoError> {
    let candidates = &space.fedrep;
    let inner: Vec<InnerFold> =
        (0..INNER_FOLDS).map(|i| InnerFold::new(part, fold, i)).collect::<Result<_, _>>()?;
    let total = (fold_count * candidates.len() * INNER_FOLDS) as u64;
    let label = format!("{}: fold {}", part.name, fold + 1);
    let jobs: Vec<(Candidate, &InnerFold)> =
        candidates.iter().flat_map(|candidate| inner.iter().map(move |inner| (*candidate, inner))).collect();
    // Accuracies by ridge parameter, for each candidate and inner fold.
    let scored: Result<Vec<Option<Vec<f64>>>, DemoError> = jobs
        .par_iter()
        .map(|(candidate, inner)| {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let accuracies = inner.fedrep(*candidate)?;
            progress.advance(1, total, &label);
            Ok(Some(accuracies))
        })
        .collect();
    let Some(scored) = scored?.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
    let fedrep = |features: Features| {
        let candidate_scores = candidates.iter().zip(scored.chunks(INNER_FOLDS));
        let choices = candidate_scores.filter(|(candidate, _)| candidate.features == features).flat_map(
            |(candidate, folds)| {
                RIDGES.iter().enumerate().map(move |(r, final_ridge)| {
                    let ridge_scores: Vec<f64> =
                        folds.iter().filter_map(|fold| fold.get(r).copied()).collect();
                    let Candidate { k, step_size, head_samples_per_class, .. } = *candidate;
                    let validation = mean(&ridge_scores).unwrap_or(0.0);
                    FedRepChoice {
                        k,
                        step_size,
                        head_samples_per_class,
                        final_ridge: *final_ridge,
                        validation,
                    }
                })
            },
        );
        first_best(choices, |choice| choice.validation)
    };
    // Baselines train without rounds, so each job scores one pair of weight and ridge on all inner folds.
    let baseline = |weighted: bool, score: &(dyn Fn(&InnerFold, usize, HeadSolve) -> Option<f64> + Sync)| {
        let candidates_of_kind = space.baselines.iter().filter(|(weight, _)| (*weight > 1) == weighted);
        let pairs: Vec<(usize, f32)> = candidates_of_kind.copied().collect();
        let scored: Vec<RidgeChoice> = pairs
            .par_iter()
            .map(|&(weight, r)| {
                let ridge_scores: Vec<f64> =
                    inner.iter().filter_map(|inner| score(inner, weight, ridge(r))).collect();
                RidgeChoice { weight, ridge: r, validation: mean(&ridge_scores).unwrap_or(0.0) }
            })
            .collect();
        first_best(scored.into_iter(), |choice| choice.validation)
    };
    let local = |data: fn(&Draw) -> &Dataset| {
        baseline(false, &move |inner, _, solve| {
            inner.over_draws(|draw| local_accuracy(data(draw), &data(draw).newcomers, solve))
        })
    };
    let pooled = |weighted: bool| {
        baseline(weighted, &|inner, weight, solve| {
            inner.over_draws(|draw| pooled_newcomers(&draw.device, weight, solve))
        })
    };
    let of_first = |inner: &InnerFold, score: &dyn Fn(&Dataset) -> Option<f64>| {
        inner.draws.first().and_then(|draw| score(&draw.device))
    };
    let chosen = (|| {
        Some(Choice {
            fold,
            fedrep: fedrep(Features::Device)?,
            fedrep_logarithmic: fedrep(Features::Logarithmic)?,
            local: local(|draw| &draw.device)?,
            local_logarithmic: local(|draw| &draw.logarithmic)?,
            local_trained: baseline(false, &|inner, _, solve| {
                of_first(inner, &|data| local_accuracy(data, &data.clients, solve))
            })?,
            pooled: pooled(false)?,
            pooled_weighted: pooled(true)?,
            pooled_trained: baseline(false, &|inner, _, solve| {
                of_first(inner, &|data| evaluate::pooled(data, &[], 0, &data.clients, solve).accuracy)
            })?,
        })
    })();
    chosen.map(Some).ok_or_else(|| DemoError::Choice("nothing was tried".to_owned()))
}

/// First item with the highest score, or `None` if there are no items.
fn first_best<T>(items: impl Iterator<Item = T>, score: fn(&T) -> f64) -> Option<T> {
    items.reduce(|best, next| if score(&next) > score(&best) { next } else { best })
}

/// Mean accuracy of local-only models of `clients`.
fn local_accuracy(data: &Dataset, clients: &[Client], solve: HeadSolve) -> Option<f64> {
    average(&evaluate::local_only(data, clients, solve)).accuracy
}

/// Data sets of an inner fold for one random draw of labels and programmes, in both feature sets.
struct Draw {
    device: Dataset,
    logarithmic: Dataset,
}

/// One inner fold of the nested cross-validation.
struct InnerFold {
    part: Part,
    fold: usize,
    inner: usize,
    draws: Vec<Draw>,
}

impl InnerFold {
    /// Prepares the data sets of all draws.
    fn new(part: &Part, fold: usize, inner: usize) -> Result<Self, DemoError> {
        let scenario = Self::scenario(part, fold, inner, &[])?;
        let DataSection::Watch(settings) = &scenario.data else {
            return Err(DemoError::Choice(format!("{} is not about the recordings", part.name)));
        };
        let draw = |index: u64| {
            let seed = scenario.seed + index;
            Ok(Draw {
                device: watch::dataset(settings, seed).map_err(RunError::from)?,
                logarithmic: scaled::dataset(settings, seed).map_err(RunError::from)?,
            })
        };
        let draws = (0..DRAWS).map(draw).collect::<Result<_, DemoError>>()?;
        Ok(Self { part: *part, fold, inner, draws })
    }

    /// Scenario in which the inner fold is held out, with the changes `further_changes`.
    fn scenario(
        part: &Part,
        fold: usize,
        inner: usize,
        further_changes: &[String],
    ) -> Result<Scenario, DemoError> {
        let mut changes = further_changes.to_vec();
        changes.push(format!("split.validation={VALIDATION:?}"));
        changes.push(format!("split.validation_fold={inner}"));
        part.scenario(fold, &changes)
    }

    /// Mean score over all draws, or `None` if no draw has a score.
    fn over_draws(&self, score: impl Fn(&Draw) -> Option<f64>) -> Option<f64> {
        mean(&self.draws.iter().filter_map(score).collect::<Vec<_>>())
    }

    /// Trains a representation and returns the accuracy of newcomers' heads on it for each ridge parameter.
    fn fedrep(&self, candidate: Candidate) -> Result<Vec<f64>, DemoError> {
        let Candidate { features, k, step_size, head_samples_per_class } = candidate;
        let settings =
            FedRepChoice { k, step_size, head_samples_per_class, final_ridge: 0.0, validation: 0.0 };
        let scenario = Self::scenario(&self.part, self.fold, self.inner, &settings.changes())?;
        let job = prepare(&scenario, scenario.seed, features)?;
        let outcome = job.run(&mut NoProgress)?;
        let basis = outcome.representation.map(|b| fedspan_engine::linalg::to_f32(&b)).unwrap_or_default();
        let shape = shape_of(&job.dataset, k);
        let accuracy = |r: f32| {
            self.over_draws(|draw| {
                let data = if features == Features::Device { &draw.device } else { &draw.logarithmic };
                average(&evaluate::personal(&data.newcomers, &basis, shape, ridge(r), FleetArithmetic::F32))
                    .accuracy
            })
        };
        Ok(RIDGES.iter().map(|r| accuracy(*r).unwrap_or(0.0)).collect())
    }
}
