//! Selection of newcomers, the clients that are held out of training, and of their labelled samples.

use std::sync::Arc;

use super::set::{draw_per_class, first_scarce_class};
use super::{Client, DataError, Dataset};

/// Selection of the newcomers: one fold of the clients, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdout {
    /// Number of clients in a fold; 0 for no newcomers.
    pub clients: usize,
    /// Index of the fold, from 0.
    pub fold: usize,
    /// Number of labelled training samples of a newcomer: for classification, samples of each class, drawn at
    /// random; for regression, the first samples. 0 for all.
    pub samples: usize,
    /// Key of the scenario that sets the number of clients, for messages.
    pub key: &'static str,
}

impl Holdout {
    /// Moves the clients of the fold, with their `names`, from `clients` to `newcomers`.
    ///
    /// # Errors
    /// [`DataError`] if there are too few clients, or too few samples to label.
    pub fn apply(
        &self,
        mut dataset: Dataset,
        names: &[String],
        path: &str,
        seed: u64,
    ) -> Result<Dataset, DataError> {
        let Self { clients: newcomers, fold, key, .. } = *self;
        if newcomers == 0 {
            dataset.client_names = names.to_vec();
            return Ok(dataset);
        }
        let clients = dataset.clients.len();
        if newcomers >= clients || fold >= clients / newcomers {
            let folds = clients.checked_div(newcomers).unwrap_or(0);
            let message = format!(
                "split.{key} = {newcomers}, split.fold = {fold}, but there are {clients} clients in {folds} such folds, and at least \
                 one client must stay to train"
            );
            return Err(DataError::new(path, message));
        }
        let group = fold * newcomers..(fold + 1) * newcomers;
        for (index, (client, name)) in dataset.clients.drain(..).zip(names).enumerate().collect::<Vec<_>>() {
            if group.contains(&index) {
                let newcomer = self.make_newcomer(client, name, index as u64, path, seed)?;
                dataset.newcomers.push(newcomer);
                dataset.newcomer_names.push(name.clone());
            } else {
                dataset.clients.push(client);
                dataset.client_names.push(name.clone());
            }
        }
        Ok(dataset)
    }

    /// Creates a newcomer from a client: replaces the training samples by the labelled samples. `index`
    /// selects the random draw and is unique to the newcomer.
    ///
    /// # Errors
    /// [`DataError`] if the client has too few training samples.
    pub fn make_newcomer(
        &self,
        client: Client,
        name: &str,
        index: u64,
        path: &str,
        seed: u64,
    ) -> Result<Client, DataError> {
        let fail = |message: String| Err(DataError::new(path, message));
        let (set, samples) = (&client.train, self.samples);
        let chosen = if set.is_classes() {
            if samples == 0 {
                return Ok(client);
            }
            if let Some((class, available)) = first_scarce_class(set, samples) {
                return fail(format!(
                    "client {name:?} has {available} samples of class {class} to label, but split.labels_per_class is {samples}"
                ));
            }
            draw_per_class(set, samples, seed, index)
        } else {
            let available = set.len();
            if available < samples {
                return fail(format!(
                    "client {name:?} has {available} samples to label, but split.new_samples is {samples}"
                ));
            }
            (0..samples).collect()
        };
        let train = Arc::new(set.select(set.width(), &chosen));
        Ok(Client { train: train.into(), ..client })
    }
}
