//! Choice of the ridge for the baseline of newcomers that train alone on a few labelled samples. A fleet
//! chooses the ridge of its final heads in the same way ([`RidgeScores`]), but on a representation in place
//! of all features, and with the arithmetic of devices in place of f64.

use fedspan_engine::Tensor;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{ChosenRidge, GRID, RidgeScores};
use fedspan_protocol::labelled::is_labelled;
use fedspan_protocol::limits::RIDGE_DRAWS;
use fedspan_protocol::message::HeadSolve;
use fedspan_protocol::tensor::Role;
use rayon::prelude::*;

use crate::data::{Client, Dataset, Labels};

/// Head solver for models on all features. If the ridge is chosen by leave-one-out for classification, the
/// training clients choose the ridge, which is also returned; otherwise `head` is returned unchanged.
#[must_use]
pub fn choose(
    dataset: &Dataset,
    head: HeadSolve,
    labels_per_class: Option<u16>,
) -> (HeadSolve, Option<ChosenRidge>) {
    let labels = labels_per_class.filter(|_| dataset.classification);
    let (HeadSolve::LeaveOneOut { fallback_ridge: otherwise }, Some(labels)) = (head, labels) else {
        return (head, None);
    };
    let scores = scores(&dataset.clients, dataset.features, dataset.outputs, labels);
    (scores.published(head), Some(scores.chosen(otherwise)))
}

/// Fraction of the mean square of the features below which a ridge has almost no effect on a head.
const NEGLIGIBLE: f64 = 0.01;

/// Formats a one-line warning if the chosen ridge may not be the best: no client compared ridges, or all
/// compared ridges are too small or too large relative to the mean square of the features.
#[must_use]
pub fn warning(chosen: &ChosenRidge, dataset: &Dataset) -> Option<String> {
    if chosen.devices == 0 {
        let (features, classes, count) = (dataset.features, dataset.outputs, GRID.count);
        return Some(format!(
            "no client compared ridges for final heads on a few samples, so the ridge is {}: a client needs two classes and more \
             samples than are labelled, and a device 3 features and {count} features times classes (found {features} features, \
             {classes} classes); set algorithm.final_ridge",
            chosen.ridge
        ));
    }
    let (smallest, largest) = chosen.ridges.first().zip(chosen.ridges.last())?;
    let size = mean_square(dataset);
    let relative_largest = f64::from(*largest) / size;
    // If no compared ridge has an effect, the choice between them is random.
    let is_small = chosen.ridge == *largest && relative_largest < 1.0 || relative_largest < NEGLIGIBLE;
    let is_large = chosen.ridge == *smallest && f64::from(*smallest) > size;
    (is_small || is_large).then(|| {
        format!(
            "clients chose {} as the ridge for final heads on a few samples, among {smallest} to {largest}; the features' mean square is \
             {size:.3e}, so a better ridge may lie outside that range: scale the features (data.scale), or set \
             algorithm.final_ridge",
            chosen.ridge
        )
    })
}

/// Mean square of all features of all training samples.
fn mean_square(dataset: &Dataset) -> f64 {
    let values = || dataset.clients.iter().flat_map(|client| client.train.x.iter());
    let count = values().count().max(1);
    #[allow(clippy::cast_precision_loss, reason = "a count of values in memory")]
    let mean = values().map(|value| f64::from(*value).powi(2)).sum::<f64>() / count as f64;
    mean
}

/// Ridge scores of all clients. The scores of a client are computed from its training samples.
#[must_use]
pub fn scores(clients: &[Client], features: usize, outputs: usize, labels_per_class: u16) -> RidgeScores {
    let counts: Vec<Option<(u32, Vec<u32>)>> = clients
        .par_iter()
        .map(|client| count_correct(client, features, outputs, labels_per_class.into()))
        .collect();
    let mut scores = RidgeScores::new(labels_per_class);
    for (samples, correct) in counts.into_iter().flatten() {
        #[allow(clippy::cast_precision_loss, reason = "as a device sends them")]
        let values = correct.iter().map(|correct| *correct as f32).collect();
        scores
            .absorb(samples, &[Tensor { role: Role::RidgeScores, rows: 1, cols: GRID.count.into(), values }]);
    }
    scores
}

/// Compares the ridges on the training samples of a client, over several draws of labelled samples. Returns
/// the number of classified samples, and for each ridge the number of correctly classified samples. Returns
/// `None` if the client has fewer than two classes or all samples are labelled.
fn count_correct(client: &Client, features: usize, outputs: usize, labels: u32) -> Option<(u32, Vec<u32>)> {
    let Labels::Classes(classes) = &client.train.y else { return None };
    let class = |index: usize| classes.get(index).map_or(0, |class| usize::from(*class));
    let row = |index: usize| client.train.x.get(index * features..(index + 1) * features).unwrap_or_default();
    let mut present = vec![0u32; outputs];
    for index in 0..classes.len() {
        *present.get_mut(class(index))? += 1;
    }
    if present.iter().filter(|count| **count > 0).count() < 2 {
        return None;
    }
    let mut correct = vec![0; GRID.count.into()];
    let mut classified = 0;
    for draw in 0..RIDGE_DRAWS {
        let (labelled, unlabelled) = split_draw(classes, &present, labels, draw);
        let y = Matrix::from_fn(labelled.len(), outputs, |i, output| {
            f64::from(u8::from(labelled.get(i).is_some_and(|index| class(*index) == output)))
        });
        let inner_product =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let products = |rows: &[usize]| {
            Matrix::from_fn(rows.len(), labelled.len(), |i, j| {
                rows.get(i).zip(labelled.get(j)).map_or(0.0, |(a, b)| inner_product(row(*a), row(*b)))
            })
        };
        // Solves the dual problem (X X^T + m a I)^-1 Y, whose number of unknowns is the number of labelled
        // samples and does not depend on the number of features.
        let eigen = products(&labelled).symmetric_eigen();
        let (unlabelled_products, label_coordinates) =
            (products(&unlabelled) * &eigen.eigenvectors, eigen.eigenvectors.transpose() * y);
        #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
        let m = labelled.len() as f64;
        for (correct, ridge) in correct.iter_mut().zip(GRID.ridges()) {
            let ridge_term = f64::from(ridge) * m;
            let scaled = Matrix::from_fn(label_coordinates.nrows(), outputs, |i, output| {
                label_coordinates[(i, output)] / (eigen.eigenvalues[i].max(0.0) + ridge_term)
            });
            let answers = &unlabelled_products * scaled;
            let is_right = |(row_index, index): (usize, &usize)| {
                let row = answers.row(row_index);
                let best = (0..outputs).rev().max_by(|a, b| row[*a].total_cmp(&row[*b]));
                best == Some(class(*index))
            };
            *correct += unlabelled.iter().enumerate().map(is_right).map(u32::from).sum::<u32>();
        }
        classified += u32::try_from(unlabelled.len()).ok()?;
    }
    (classified > 0).then_some((classified, correct))
}

/// Indices of the samples that are labelled in a draw, and indices of the other samples.
fn split_draw(classes: &[u8], present: &[u32], labels: u32, draw: u32) -> (Vec<usize>, Vec<usize>) {
    let mut remaining = present.to_vec();
    let mut needed: Vec<u32> = present.iter().map(|count| labels.min(*count)).collect();
    let is_drawn = |(index, class): (usize, &u8)| {
        let class = usize::from(*class);
        let (Some(remaining), Some(needed)) = (remaining.get_mut(class), needed.get_mut(class)) else {
            return false;
        };
        let labelled = is_labelled(draw, u32::try_from(index).unwrap_or(u32::MAX), *remaining, *needed);
        *remaining -= 1;
        *needed -= u32::from(labelled);
        labelled
    };
    let is_drawn: Vec<bool> = classes.iter().enumerate().map(is_drawn).collect();
    (0..classes.len()).partition(|index| is_drawn.get(*index) == Some(&true))
}
