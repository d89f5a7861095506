//! Data under a campaign's scale, as devices see them: for scores.

use std::sync::Arc;

use fedspan_engine::algorithm::Scale;
use fedspan_engine::linalg::{Matrix, orthonormal};

use super::eigenspace::pooled_truth;
use super::{Client, Dataset, Set};

impl Dataset {
    /// The same samples scaled, in the device's arithmetic, and in f64 where they have not been rounded. The truth is that of the scaled samples: `diag(1 / factor) B*` for a
    /// model of the targets; where it is an eigenspace of all rows (`pooled`: of so many dimensions), theirs, or none.
    #[must_use]
    pub fn scaled(&self, scale: &Scale, pooled: Option<usize>) -> Self {
        let each = |clients: &[Client]| clients.iter().map(|client| scaled_client(client, scale)).collect();
        let mut dataset = Self {
            clients: each(&self.clients),
            newcomers: each(&self.newcomers),
            truth: None,
            ..self.clone()
        };
        dataset.truth = match (&self.truth, pooled) {
            (None, _) => None,
            (Some(_), Some(k)) => pooled_truth(&dataset, k).ok(),
            (Some(truth), None) => {
                let row = |i: usize| scale.factor().get(i).map_or(1.0, |factor| f64::from(*factor));
                orthonormal(&Matrix::from_fn(truth.nrows(), truth.ncols(), |i, j| truth[(i, j)] / row(i)))
                    .ok()
            }
        };
        dataset
    }
}

/// A client's samples scaled.
#[must_use]
pub fn scaled_client(client: &Client, scale: &Scale) -> Client {
    let one = |set: &Arc<Set>| {
        let mut set = Set::clone(set);
        scale.apply(&mut set.x);
        if let Some(wide) = &mut set.wide {
            let rows = scale.shift().iter().zip(scale.factor()).cycle();
            for (value, (shift, factor)) in wide.iter_mut().zip(rows) {
                *value = (*value - f64::from(*shift)) * f64::from(*factor);
            }
        }
        Arc::new(set)
    };
    Client { train: one(&client.train), test: one(&client.test), ..client.clone() }
}
