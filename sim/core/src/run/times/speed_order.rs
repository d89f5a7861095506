//! Order of clients by speed, for computation times that are correlated with the clients' data.

use crate::data::synthetic::alignments;
use crate::data::{Client, Dataset, Labels};
use crate::scenario::{Correlation, DataSection, Scenario};

/// Training clients from fastest to slowest; `None` if speeds are assigned at random. Clients with equal sort
/// keys keep the order of their numbers.
pub fn speed_order(
    scenario: &Scenario,
    dataset: &Dataset,
    correlation: Correlation,
    seed: u64,
) -> Option<Vec<usize>> {
    let clients = &dataset.clients;
    let keys: Vec<f64> = match (correlation, &scenario.data) {
        (Correlation::None, _) => return None,
        (Correlation::Samples, _) => clients.iter().map(|client| client.train.len() as f64).collect(),
        // The fastest clients are those whose heads are most aligned with the first true direction, so
        // their data contain little information on the other directions.
        (Correlation::Task, DataSection::Linear(linear)) => {
            alignments(linear, seed).into_iter().map(|alignment| -alignment).collect()
        }
        (Correlation::Task, _) => clients.iter().map(mean_class).collect(),
        (Correlation::Features, _) => clients.iter().map(measured_features).collect(),
        (Correlation::Targets, _) => clients.iter().map(mean_square_target).collect(),
    };
    let mut order: Vec<usize> = (0..clients.len()).collect();
    order.sort_by(|a, b| match (keys.get(*a), keys.get(*b)) {
        (Some(a), Some(b)) => a.total_cmp(b),
        _ => std::cmp::Ordering::Equal,
    });
    Some(order)
}

/// Number of features of a client that are not 0 in all of its training samples.
fn measured_features(client: &Client) -> f64 {
    let (x, samples) = (&client.train.x, client.train.len().max(1));
    let d = x.len() / samples;
    (0..d).filter(|feature| x.iter().skip(*feature).step_by(d).any(|value| *value != 0.0)).count() as f64
}

/// Mean square of the target values of a client's training samples; 0 without such values.
fn mean_square_target(client: &Client) -> f64 {
    match &client.train.y {
        Labels::Values { values, .. } if !values.is_empty() => {
            values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64
        }
        Labels::Values { .. } | Labels::Classes(_) | Labels::Absent(_) => 0.0,
    }
}

/// Mean class number of a client's training samples; 0 for regression.
fn mean_class(client: &Client) -> f64 {
    match &client.train.y {
        Labels::Classes(classes) if !classes.is_empty() => {
            classes.iter().map(|class| f64::from(*class)).sum::<f64>() / classes.len() as f64
        }
        _ => 0.0,
    }
}
