//! Scaling of a data set by the scale of a campaign, as devices apply it, so that models can be scored.

use fedspan_engine::algorithm::Scale;
use fedspan_engine::linalg::{Matrix, orthonormal};

use super::eigenspace::pooled_truth;
use super::{Client, Dataset, Set, SharedSet};

impl Dataset {
    /// Scales the samples, in f32 with the arithmetic of a device, and in f64 where values before rounding
    /// are kept. The true representation is adapted. For a model of the targets the true representation
    /// becomes an orthonormal basis of `diag(1 / factor) B*`. For FedPower, where `pooled` is the number of
    /// dimensions, the true representation becomes the top eigenspace of the scaled rows, or `None` if it is
    /// not unique.
    #[must_use]
    pub fn scaled(&self, scale: &Scale, pooled: Option<usize>) -> Self {
        let scale_all =
            |clients: &[Client]| clients.iter().map(|client| scaled_client(client, scale)).collect();
        let mut dataset = Self {
            clients: scale_all(&self.clients),
            newcomers: scale_all(&self.newcomers),
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

/// Scales the training and test samples of a client.
#[must_use]
pub fn scaled_client(client: &Client, scale: &Scale) -> Client {
    let scale_set = |set: &SharedSet| {
        let mut set = Set::clone(&set.load());
        scale.apply(&mut set.x);
        if let Some(wide) = &mut set.x_f64 {
            let rows = scale.shift().iter().zip(scale.factor()).cycle();
            for (value, (shift, factor)) in wide.iter_mut().zip(rows) {
                *value = (*value - f64::from(*shift)) * f64::from(*factor);
            }
        }
        SharedSet::from(set)
    };
    Client { train: scale_set(&client.train), test: scale_set(&client.test), ..client.clone() }
}
