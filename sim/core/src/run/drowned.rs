//! Columns that drown in a representation: what gradient steps do not learn of them no head that sees products alone can bring
//! back.
//!
//! Steps learn a direction in about as many rounds as the largest second moment is times its own. A column that is R times
//! smaller than others takes R^2 rounds. Columns that are larger than the rest do no harm as long as each can have a dimension of
//! the representation to itself. An offset is no such thing: it is in every dimension in which its column is, and only the
//! constant can take it out, by steps that the offset makes small.

use fedspan_engine::algorithm::ScaleSource;

use super::fits::{list, name};
use crate::data::{Client, Dataset};
use crate::scenario::Scenario;

/// Mean over deviation from which an offset drowns its column. Where one of four columns is moved by 8 deviations FedRep learns the
/// targets, where it is moved by 20 it learns nothing of them (`tests/warnings.rs`).
const OFFSET: f64 = 10.0;

/// The ratio of sizes at which a column has been learnt in T rounds, over the root of T.
const LEARNT: f64 = 2.0;

/// Least ratio of sizes of which anything is said, however few the rounds are.
const SMALL: f64 = 10.0;

/// Bits of f32 beyond which a column has few of its own left in a sum with another, whatever the rounds are: 24 less 10.
const END_OF_F32: f64 = 16_384.0;

/// A column over all training samples.
struct Column {
    number: usize,
    mean: f64,
    deviation: f64,
    size: f64,
    /// Most of its values are the same: a rare feature, of which deviations say little.
    is_rare: bool,
}

/// What to say of columns that drown, in one line; nothing of models that see features as they are, and of images and series,
/// whose values have one unit.
pub fn drowned(scenario: &Scenario, dataset: &Dataset) -> Option<String> {
    let linear = scenario.model.network.is_none() && scenario.algorithm.power.is_none();
    if !scenario.is_federated() || !linear || dataset.layout.shape.is_some() || !dataset.has_targets() {
        return None;
    }
    let columns: Vec<Column> =
        (0..dataset.features).filter_map(|j| column(&dataset.clients, dataset.features, j)).collect();
    if scenario.scale != ScaleSource::None {
        return faint(&columns, dataset);
    }
    let mut sizes: Vec<f64> = columns.iter().map(|column| column.size).collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    let others = sizes.get(scenario.model.k.saturating_sub(1)).or(sizes.last()).copied().unwrap_or(0.0);
    let learnt = (LEARNT * f64::from(scenario.algorithm.rounds).sqrt()).clamp(SMALL, END_OF_F32);
    let varies = || columns.iter().filter(|column| column.deviation > 0.0 && !column.is_rare);
    let offset: Vec<&Column> =
        varies().filter(|column| column.mean.abs() > OFFSET * column.deviation).collect();
    let small: Vec<&Column> = varies().filter(|column| others > learnt * column.deviation).collect();
    let least = varies().map(|column| column.deviation).fold(f64::INFINITY, f64::min);
    let large: Vec<&Column> = varies().filter(|column| column.size > END_OF_F32 * least).collect();
    let named = |columns: &[&Column]| {
        list(&columns.iter().map(|column| name(column.number, dataset)).collect::<Vec<_>>())
    };
    let worst = |columns: &[&Column], of: &dyn Fn(&Column) -> f64| {
        columns.iter().fold(0.0f64, |most, column| most.max(of(column)))
    };
    let mut said = Vec::new();
    if !offset.is_empty() {
        let most = worst(&offset, &|column| column.mean.abs() / column.deviation);
        said.push(format!("up to {most:.3e} deviations from zero (at most {OFFSET}): {}", named(&offset)));
    }
    if !small.is_empty() {
        let most = worst(&small, &|column| others / column.deviation);
        said.push(format!(
            "up to {most:.3e} times smaller than others (at most {learnt:.0}): {}",
            named(&small)
        ));
    }
    if !large.is_empty() {
        let most = worst(&large, &|column| column.size / least);
        said.push(format!(
            "up to {most:.3e} times larger than others (at most {END_OF_F32}, in f32): {}",
            named(&large)
        ));
    }
    (!said.is_empty()).then(|| {
        format!(
            "columns drown in a representation of raw features, and are learnt slowly or not at all; {}; set data.scale = \
             \"standard\", or scale the file's columns",
            said.join("; ")
        )
    })
}

/// What to say of columns that are rounded to f32 before the fleet's scale is applied, on devices.
fn faint(columns: &[Column], dataset: &Dataset) -> Option<String> {
    let offset = |column: &Column| column.mean.abs() / column.deviation;
    let faint: Vec<&Column> = columns
        .iter()
        .filter(|column| column.deviation > 0.0 && !column.is_rare && offset(column) > END_OF_F32)
        .collect();
    let most = faint.iter().fold(0.0f64, |most, column| most.max(offset(column)));
    let names: Vec<String> = faint.iter().map(|column| name(column.number, dataset)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "columns have few digits in f32, in which devices scale them; up to {most:.3e} deviations from zero (at most \
             {END_OF_F32}): {}; subtract a constant on the device, or set data.scale = \"standard\" in a simulation",
            list(&names)
        )
    })
}

/// One column; nothing of none.
fn column(clients: &[Client], d: usize, number: usize) -> Option<Column> {
    let of = |client: &Client| -> Vec<f64> {
        let set = &client.train;
        match &set.wide {
            Some(wide) => wide.iter().skip(number).step_by(d).copied().collect(),
            None => set.x.iter().skip(number).step_by(d).map(|value| f64::from(*value)).collect(),
        }
    };
    let mut values: Vec<f64> = clients.iter().flat_map(of).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied()?;
    let same = values.iter().filter(|value| **value == middle).count();
    Some(Column { number, mean, deviation, size: mean.hypot(deviation), is_rare: 2 * same > values.len() })
}
