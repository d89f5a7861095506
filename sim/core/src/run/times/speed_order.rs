//! Order of clients by their data, for speeds that correlate with data.

use crate::data::synthetic::alignments;
use crate::data::{Client, Dataset, Labels};
use crate::scenario::{Correlation, DataSection, Scenario};

/// Training clients from fastest to slowest; `None` if speeds are assigned at random. Clients with equal keys
/// keep the order of their numbers.
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
        // Clients whose heads align with one direction are fastest, and see little else of the
        // representation.
        (Correlation::Task, DataSection::Linear(linear)) => {
            alignments(linear, seed).into_iter().map(|alignment| -alignment).collect()
        }
        (Correlation::Task, _) => clients.iter().map(mean_class).collect(),
    };
    let mut order: Vec<usize> = (0..clients.len()).collect();
    order.sort_by(|a, b| match (keys.get(*a), keys.get(*b)) {
        (Some(a), Some(b)) => a.total_cmp(b),
        _ => std::cmp::Ordering::Equal,
    });
    Some(order)
}

/// Mean class number of a client's training samples.
fn mean_class(client: &Client) -> f64 {
    match &client.train.y {
        Labels::Classes(classes) if !classes.is_empty() => {
            classes.iter().map(|class| f64::from(*class)).sum::<f64>() / classes.len() as f64
        }
        _ => 0.0,
    }
}
