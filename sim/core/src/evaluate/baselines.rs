//! Baselines without training rounds: least squares on all features in f64. Values before rounding to f32 are
//! used if the data set has them.

use std::borrow::Cow;

use fedspan_protocol::message::HeadSolve;
use rayon::prelude::*;

use super::{ClientScore, Predictions, Scores, average};
use crate::data::{Client, Dataset, Labels, Set};
use crate::least_squares::{
    DroppedDirections, F32_ROUNDOFF, F64_ROUNDOFF, Fit, Problem, predict, solve, solve_leave_one_out,
};

/// Fits and scores a separate model for each client. Returns no scores if the data set has no targets.
#[must_use]
pub fn local_only(dataset: &Dataset, clients: &[Client], head: HeadSolve) -> Vec<ClientScore> {
    if !dataset.has_targets() {
        return Vec::new();
    }
    let score_client = |client: &Client| {
        let Fit { weights, dropped } = fit_linear_model(&client.train, dataset, head);
        ClientScore { dropped, ..score_weights(weights, client, dataset) }
    };
    clients.par_iter().map(score_client).collect()
}

/// Fits one model to the pooled samples of all clients, in which each sample of `extra` counts `weight`
/// times, and computes its metrics on `scored`. The metrics are empty if the data set has no targets.
#[must_use]
pub fn pooled(
    dataset: &Dataset,
    extra: &[Client],
    weight: usize,
    scored: &[Client],
    head: HeadSolve,
) -> Scores {
    average(&pooled_with_dropped(dataset, extra, weight, scored, head).0)
}

/// Like [`pooled`], but returns the score of each client, and the directions that the fit dropped.
#[must_use]
pub fn pooled_with_dropped(
    dataset: &Dataset,
    extra: &[Client],
    weight: usize,
    scored_clients: &[Client],
    head: HeadSolve,
) -> (Vec<ClientScore>, DroppedDirections) {
    if !dataset.has_targets() {
        return (Vec::new(), DroppedDirections::default());
    }
    let mut pooled = Set::empty(dataset.classification);
    for client in &dataset.clients {
        pooled.append(&client.train);
    }
    for client in extra {
        for _ in 0..weight {
            pooled.append(&client.train);
        }
    }
    let Fit { weights, dropped } = fit_linear_model(&pooled, dataset, head);
    let score_client = |client: &Client| score_weights(weights.clone(), client, dataset);
    (scored_clients.par_iter().map(score_client).collect(), dropped)
}

/// Fits a linear model to a set by least squares, with the ridge or leave-one-out choice of `head`.
fn fit_linear_model(set: &Set, dataset: &Dataset, head: HeadSolve) -> Fit {
    let (leave_one_out, ridge) = match head {
        HeadSolve::LeastSquares { ridge } => (false, ridge),
        HeadSolve::LeaveOneOut { fallback_ridge: otherwise } => (can_leave_one_out(set), otherwise),
        // Other solvers, such as gradient steps, have no ridge.
        _ => (false, 0.0),
    };
    let y: Vec<f64> = targets(set, dataset.outputs);
    let problem = Problem {
        x: &features(set),
        y: &y,
        features: dataset.features,
        outputs: dataset.outputs,
        ridge: f64::from(ridge),
        roundoff: if set.x_f64.is_some() { F64_ROUNDOFF } else { F32_ROUNDOFF },
    };
    let fit = if leave_one_out { solve_leave_one_out(&problem) } else { None };
    fit.unwrap_or_else(|| solve(&problem))
}

/// True if the leave-one-out error is defined: the set has at least two samples, and at least two samples of
/// every class that occurs.
fn can_leave_one_out(set: &Set) -> bool {
    let Labels::Classes(classes) = &set.y else { return set.len() >= 2 };
    let mut counts = [0usize; 256];
    for class in classes {
        if let Some(count) = counts.get_mut(usize::from(*class)) {
            *count += 1;
        }
    }
    set.len() >= 2 && !counts.contains(&1)
}

/// Features of a set in f64, row-major.
fn features(set: &Set) -> Cow<'_, [f64]> {
    match &set.x_f64 {
        Some(wide) => Cow::Borrowed(wide),
        None => Cow::Owned(set.x.iter().map(|value| f64::from(*value)).collect()),
    }
}

/// Targets of a set in f64, row-major. Classes are one-hot encoded.
fn targets(set: &Set, outputs: usize) -> Vec<f64> {
    match (&set.y, &set.y_f64) {
        (Labels::Classes(classes), _) => {
            let one_hot = |&class: &u8| {
                (0..outputs).map(move |output| f64::from(u8::from(output == usize::from(class))))
            };
            classes.iter().flat_map(one_hot).collect()
        }
        (_, Some(wide)) => wide.clone(),
        (Labels::Values { values, .. } | Labels::Absent(values), None) => {
            values.iter().map(|value| f64::from(*value)).collect()
        }
    }
}

/// Scores the weights of all features (d x C, row-major) on a client.
fn score_weights(weights: Vec<f64>, client: &Client, dataset: &Dataset) -> ClientScore {
    let (train, test) = (errors(&weights, &client.train, dataset), errors(&weights, &client.test, dataset));
    let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
    let classes = client.test.is_classes();
    ClientScore {
        loss: mean(train.squares, client.train.len()).unwrap_or(0.0) / 2.0,
        accuracy: mean(test.correct as f64, client.test.len()).filter(|_| classes),
        test_mse: mean(test.squares, client.test.len()).filter(|_| !classes),
        head: weights,
        dropped: DroppedDirections::default(),
        undetermined: false,
        predictions: test.predictions.boxed(),
        parameters: None,
    }
}

/// Sum of the squared errors of all outputs on a set, and number of correct predictions.
struct Errors {
    squares: f64,
    correct: usize,
    predictions: Predictions,
}

/// Computes the errors of the weights of all features (d x C, row-major) on a set.
fn errors(weights: &[f64], set: &Set, dataset: &Dataset) -> Errors {
    let c = dataset.outputs;
    let (mut total, mut out) =
        (Errors { squares: 0.0, correct: 0, predictions: Predictions::of(set) }, vec![0.0; c]);
    let (x, y) = (features(set), targets(set, c));
    for (index, (x, y)) in x.chunks_exact(dataset.features.max(1)).zip(y.chunks_exact(c.max(1))).enumerate() {
        predict(weights, x, &mut out);
        total.squares += out.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        #[allow(clippy::cast_possible_truncation, reason = "result files have f32")]
        let narrow: Vec<f32> = out.iter().map(|value| *value as f32).collect();
        if let Labels::Classes(classes) = &set.y {
            let predicted = index_of_largest(&out);
            total.predictions.push_class(predicted, narrow.get(predicted).copied().unwrap_or(f32::NAN));
            let class = classes.get(index).map_or(usize::MAX, |class| usize::from(*class));
            total.correct += usize::from(predicted == class);
        } else {
            total.predictions.push(&set.y, &narrow);
        }
    }
    total
}

/// Index of the largest value; the first index if several values are equal.
fn index_of_largest(values: &[f64]) -> usize {
    let first = |best: (usize, f64), (index, value): (usize, &f64)| {
        if *value > best.1 { (index, *value) } else { best }
    };
    values.iter().enumerate().fold((0, f64::NEG_INFINITY), first).0
}
