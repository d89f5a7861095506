//! The baselines that need no rounds: least squares on all features, in f64, on the numbers before they were rounded to f32
//! where the data have them.

use std::borrow::Cow;

use fedspan_protocol::message::HeadSolve;
use rayon::prelude::*;

use super::{ClientScore, Scores, average};
use crate::data::{Client, Dataset, Labels, Set};
use crate::least_squares::{Cut, EXACT, Fit, Problem, ROUNDED, predict, solve, solve_left_out};

/// Each client alone. Nobody is scored where there are no targets.
#[must_use]
pub fn local_only(dataset: &Dataset, clients: &[Client], head: HeadSolve) -> Vec<ClientScore> {
    if !dataset.has_targets() {
        return Vec::new();
    }
    let one = |client: &Client| {
        let Fit { weights, cut } = fitted(&client.train, dataset, head);
        ClientScore { cut, ..scored(weights, client, dataset) }
    };
    clients.par_iter().map(one).collect()
}

/// One model of all clients' samples in one place, each sample of `extra` counting `weight` times; scored
/// on `scored`. There is none without targets.
#[must_use]
pub fn pooled(
    dataset: &Dataset,
    extra: &[Client],
    weight: usize,
    scored: &[Client],
    head: HeadSolve,
) -> Scores {
    pooled_each(dataset, extra, weight, scored, head).0
}

/// The same, with what the one fit has left out.
#[must_use]
pub fn pooled_each(
    dataset: &Dataset,
    extra: &[Client],
    weight: usize,
    on: &[Client],
    head: HeadSolve,
) -> (Scores, Cut) {
    if !dataset.has_targets() {
        return (Scores::default(), Cut::default());
    }
    let mut all = Set::empty(dataset.classification);
    for client in &dataset.clients {
        all.append(&client.train);
    }
    for client in extra {
        for _ in 0..weight {
            all.append(&client.train);
        }
    }
    let Fit { weights, cut } = fitted(&all, dataset, head);
    let one = |client: &Client| scored(weights.clone(), client, dataset);
    let each: Vec<ClientScore> = on.par_iter().map(one).collect();
    (average(&each), cut)
}

/// Least squares on a set.
fn fitted(set: &Set, dataset: &Dataset, head: HeadSolve) -> Fit {
    let (left_out, ridge) = match head {
        HeadSolve::LeastSquares { ridge } => (false, ridge),
        HeadSolve::LeaveOneOut { fallback_ridge: otherwise } => (can_leave_out(set), otherwise),
        // Of networks, and of heads that take steps: no baseline is asked for them.
        _ => (false, 0.0),
    };
    let y: Vec<f64> = targets(set, dataset.outputs);
    let problem = Problem {
        x: &features(set),
        y: &y,
        features: dataset.features,
        outputs: dataset.outputs,
        ridge: f64::from(ridge),
        roundoff: if set.wide.is_some() { EXACT } else { ROUNDED },
    };
    let fit = if left_out { solve_left_out(&problem) } else { None };
    fit.unwrap_or_else(|| solve(&problem))
}

/// Whether a sample can be left out and told from the others: of classes, each that is present has two.
fn can_leave_out(set: &Set) -> bool {
    let Labels::Classes(classes) = &set.y else { return set.len() >= 2 };
    let mut counts = [0usize; 256];
    for class in classes {
        if let Some(count) = counts.get_mut(usize::from(*class)) {
            *count += 1;
        }
    }
    set.len() >= 2 && !counts.contains(&1)
}

/// The features in f64.
fn features(set: &Set) -> Cow<'_, [f64]> {
    match &set.wide {
        Some(wide) => Cow::Borrowed(wide),
        None => Cow::Owned(set.x.iter().map(|value| f64::from(*value)).collect()),
    }
}

/// The targets in f64, row-major; of a class a 1 in its place.
fn targets(set: &Set, outputs: usize) -> Vec<f64> {
    match (&set.y, &set.wide_y) {
        (Labels::Classes(classes), _) => {
            let one = |&class: &u8| {
                (0..outputs).map(move |output| f64::from(u8::from(output == usize::from(class))))
            };
            classes.iter().flat_map(one).collect()
        }
        (_, Some(wide)) => wide.clone(),
        (Labels::Values { values, .. } | Labels::Absent(values), None) => {
            values.iter().map(|value| f64::from(*value)).collect()
        }
    }
}

/// Scores weights of all features (d x C) on one client.
fn scored(weights: Vec<f64>, client: &Client, dataset: &Dataset) -> ClientScore {
    let (train, test) = (errors(&weights, &client.train, dataset), errors(&weights, &client.test, dataset));
    let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
    let classes = client.test.is_classes();
    ClientScore {
        loss: mean(train.squares, client.train.len()).unwrap_or(0.0) / 2.0,
        accuracy: mean(test.right as f64, client.test.len()).filter(|_| classes),
        test_mse: mean(test.squares, client.test.len()).filter(|_| !classes),
        head: weights,
        cut: Cut::default(),
    }
}

struct Errors {
    squares: f64,
    right: usize,
}

fn errors(weights: &[f64], set: &Set, dataset: &Dataset) -> Errors {
    let c = dataset.outputs;
    let (mut total, mut out) = (Errors { squares: 0.0, right: 0 }, vec![0.0; c]);
    let (x, y) = (features(set), targets(set, c));
    for (at, (x, y)) in x.chunks_exact(dataset.features.max(1)).zip(y.chunks_exact(c.max(1))).enumerate() {
        predict(weights, x, &mut out);
        total.squares += out.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        if let Labels::Classes(classes) = &set.y {
            let class = classes.get(at).map_or(usize::MAX, |class| usize::from(*class));
            total.right += usize::from(largest(&out) == class);
        }
    }
    total
}

/// Index of the largest value, the first of equals.
fn largest(values: &[f64]) -> usize {
    let first = |best: (usize, f64), (index, value): (usize, &f64)| {
        if *value > best.1 { (index, *value) } else { best }
    };
    values.iter().enumerate().fold((0, f64::NEG_INFINITY), first).0
}
