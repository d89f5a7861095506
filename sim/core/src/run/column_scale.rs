//! Warning about badly scaled columns, which gradient steps learn too slowly. A head cannot compensate for
//! this, because it only receives the projections onto the representation.
//!
//! The number of rounds for learning a direction is proportional to the ratio of the largest second moment to
//! the second moment of the direction, so a column that is R times smaller than other columns takes about R^2
//! rounds. Columns that are larger than the other columns do no harm as long as the representation has a
//! dimension for each of them. An offset is different: it appears in every dimension to which its column
//! contributes, and only the constant feature can cancel it. Since a large offset requires a small step size,
//! this takes many rounds.

use fedspan_engine::algorithm::ScaleSource;

use super::fit_stats::{column_name, join_names};
use crate::data::{Client, Dataset};
use crate::scenario::Scenario;

/// Ratio of mean to standard deviation above which an offset prevents a column from being learnt. If one of
/// four columns has an offset of 8 deviations, FedRep learns the targets; with an offset of 20 deviations, it
/// does not (`tests/warnings.rs`).
const MAX_OFFSET: f64 = 10.0;

/// Largest ratio of column sizes at which a column is learnt in T rounds, divided by the square root of T.
const RATIO_PER_ROOT_ROUND: f64 = 2.0;

/// Smallest ratio of column sizes that causes a warning for any number of rounds.
const MIN_RATIO: f64 = 10.0;

/// Ratio of column sizes above which few bits of the smaller column remain in a sum in f32: 2^14, which
/// leaves 10 of 24 bits.
const F32_RATIO: f64 = 16_384.0;

/// Statistics of a column over all training samples.
struct Column {
    number: usize,
    mean: f64,
    deviation: f64,
    size: f64,
    /// True if most values are equal, so that the standard deviation is not meaningful.
    is_rare: bool,
}

/// Formats a one-line warning about badly scaled columns. Returns `None` for models without gradient steps on
/// a linear representation, for images and time series, whose values have the same unit, and without targets.
pub fn column_scale_warning(scenario: &Scenario, dataset: &Dataset) -> Option<String> {
    let linear = scenario.model.network.is_none() && scenario.algorithm.power().is_none();
    if !scenario.is_federated() || !linear || dataset.layout.shape.is_some() || !dataset.has_targets() {
        return None;
    }
    // Generated features have one scale and no offset.
    if dataset.clients.iter().all(|client| client.train.is_generated()) {
        return None;
    }
    let columns: Vec<Column> =
        (0..dataset.features).filter_map(|j| column(&dataset.clients, dataset.features, j)).collect();
    if scenario.scale != ScaleSource::None {
        return precision_warning(&columns, dataset);
    }
    let mut sizes: Vec<f64> = columns.iter().map(|column| column.size).collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    let kth_size = sizes.get(scenario.model.k.saturating_sub(1)).or(sizes.last()).copied().unwrap_or(0.0);
    let max_learnt_ratio =
        (RATIO_PER_ROOT_ROUND * f64::from(scenario.algorithm.rounds).sqrt()).clamp(MIN_RATIO, F32_RATIO);
    let varies = || columns.iter().filter(|column| column.deviation > 0.0 && !column.is_rare);
    let offset: Vec<&Column> =
        varies().filter(|column| column.mean.abs() > MAX_OFFSET * column.deviation).collect();
    let small: Vec<&Column> =
        varies().filter(|column| kth_size > max_learnt_ratio * column.deviation).collect();
    let smallest_deviation = varies().map(|column| column.deviation).fold(f64::INFINITY, f64::min);
    let large: Vec<&Column> =
        varies().filter(|column| column.size > F32_RATIO * smallest_deviation).collect();
    let list_names = |columns: &[&Column]| {
        join_names(&columns.iter().map(|column| column_name(column.number, dataset)).collect::<Vec<_>>())
    };
    let largest_ratio = |columns: &[&Column], ratio: &dyn Fn(&Column) -> f64| {
        columns.iter().fold(0.0f64, |max_ratio, column| max_ratio.max(ratio(column)))
    };
    let mut findings = Vec::new();
    if !offset.is_empty() {
        let max_ratio = largest_ratio(&offset, &|column| column.mean.abs() / column.deviation);
        findings.push(format!(
            "up to {max_ratio:.3e} deviations from zero (at most {MAX_OFFSET}): {}",
            list_names(&offset)
        ));
    }
    if !small.is_empty() {
        let max_ratio = largest_ratio(&small, &|column| kth_size / column.deviation);
        findings.push(format!(
            "up to {max_ratio:.3e} times smaller than others (at most {max_learnt_ratio:.0}): {}",
            list_names(&small)
        ));
    }
    if !large.is_empty() {
        let max_ratio = largest_ratio(&large, &|column| column.size / smallest_deviation);
        findings.push(format!(
            "up to {max_ratio:.3e} times larger than others (at most {F32_RATIO}, in f32): {}",
            list_names(&large)
        ));
    }
    (!findings.is_empty()).then(|| {
        format!(
            "columns are badly scaled for a representation of raw features and are learnt slowly or not at all: {}; set data.scale \
             = \"standard\", or scale the file's columns",
            findings.join("; ")
        )
    })
}

/// Formats a one-line warning about columns that lose precision because devices round them to f32 before the
/// fleet-wide scale is applied.
fn precision_warning(columns: &[Column], dataset: &Dataset) -> Option<String> {
    let offset = |column: &Column| column.mean.abs() / column.deviation;
    let imprecise: Vec<&Column> = columns
        .iter()
        .filter(|column| column.deviation > 0.0 && !column.is_rare && offset(column) > F32_RATIO)
        .collect();
    let max_offset = imprecise.iter().fold(0.0f64, |max_offset, column| max_offset.max(offset(column)));
    let names: Vec<String> = imprecise.iter().map(|column| column_name(column.number, dataset)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "columns have few digits in f32, in which devices scale them: up to {max_offset:.3e} deviations from zero (at most \
             {F32_RATIO}): {}; subtract a constant on the device, or set data.scale = \"standard\" in a simulation",
            join_names(&names)
        )
    })
}

/// Computes the statistics of a column. Returns `None` if there are no samples.
fn column(clients: &[Client], d: usize, number: usize) -> Option<Column> {
    let values_of = |client: &Client| -> Vec<f64> {
        let set = &client.train;
        match &set.x_f64 {
            Some(wide) => wide.iter().skip(number).step_by(d).copied().collect(),
            None => set.x.iter().skip(number).step_by(d).map(|value| f64::from(*value)).collect(),
        }
    };
    let mut values: Vec<f64> = clients.iter().flat_map(values_of).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    values.sort_by(f64::total_cmp);
    let median = values.get(values.len() / 2).copied()?;
    let modal_count = values.iter().filter(|value| **value == median).count();
    Some(Column {
        number,
        mean,
        deviation,
        size: mean.hypot(deviation),
        is_rare: 2 * modal_count > values.len(),
    })
}
