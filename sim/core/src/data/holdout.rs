//! Clients that come after training, and what they label.

use std::sync::Arc;

use super::{Client, DataError, Dataset, watch};

/// Clients that come after training: one of the groups of clients, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdout {
    /// How many; 0 for none.
    pub clients: usize,
    /// Which group of them, from 0.
    pub fold: usize,
    /// What each of them labels of its training part: so many samples of each class, drawn at random (0: all), or for
    /// regression so many of the first.
    pub samples: usize,
    /// The key that says how many.
    pub key: &'static str,
}

impl Holdout {
    /// Moves the group from `clients` to `newcomers`, and its names. `names` are those of the clients.
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
        let Self { clients: held, fold, key, .. } = *self;
        if held == 0 {
            dataset.client_names = names.to_vec();
            return Ok(dataset);
        }
        let clients = dataset.clients.len();
        if held >= clients || fold >= clients / held {
            let folds = clients.checked_div(held).unwrap_or(0);
            let message = format!(
                "split.{key} = {held}, split.fold = {fold}: there are {clients} clients, {folds} such groups, and \
                 someone has to stay"
            );
            return Err(DataError::new(path, message));
        }
        let group = fold * held..(fold + 1) * held;
        for (index, (client, name)) in dataset.clients.drain(..).zip(names).enumerate().collect::<Vec<_>>() {
            if group.contains(&index) {
                let newcomer = self.labelled(client, name, index as u64, path, seed)?;
                dataset.newcomers.push(newcomer);
                dataset.newcomer_names.push(name.clone());
            } else {
                dataset.clients.push(client);
                dataset.client_names.push(name.clone());
            }
        }
        Ok(dataset)
    }

    /// A newcomer, with what it labels in place of its training part. `index` is its number: no two draw alike.
    ///
    /// # Errors
    /// [`DataError`] if it has too few samples to label.
    pub fn labelled(
        &self,
        client: Client,
        name: &str,
        index: u64,
        path: &str,
        seed: u64,
    ) -> Result<Client, DataError> {
        let wrong = |message: String| Err(DataError::new(path, message));
        let (set, samples) = (&client.train, self.samples);
        let chosen = if set.is_classes() {
            if samples == 0 {
                return Ok(client);
            }
            if let Some((class, there)) = watch::scarce(set, samples) {
                return wrong(format!(
                    "client {name:?} has {there} samples of class {class} to label, split.labels_per_class is {samples}"
                ));
            }
            watch::draw_per_class(set, samples, seed, index)
        } else {
            let there = set.len();
            if there < samples {
                return wrong(format!(
                    "client {name:?} has {there} samples to label, split.new_samples is {samples}"
                ));
            }
            (0..samples).collect()
        };
        let train = Arc::new(set.select(set.width(), &chosen));
        Ok(Client { train, ..client })
    }
}
