//! Removal of clients without training samples from a data set.

use super::{Client, Dataset};

impl Dataset {
    /// Removes clients and newcomers without a training sample, and counts them as dropped users.
    #[must_use]
    pub fn without_idle(mut self) -> Self {
        let idle = remove_clients_without_samples(&mut self.clients, &mut self.client_names)
            + remove_clients_without_samples(&mut self.newcomers, &mut self.newcomer_names);
        self.dropped_users += idle;
        self
    }
}

/// Removes clients without training samples, and their names if clients have names. Returns the number of
/// removed clients.
fn remove_clients_without_samples(clients: &mut Vec<Client>, names: &mut Vec<String>) -> usize {
    let has_samples: Vec<bool> =
        clients.iter().map(|client| client.fresh.is_some() || !client.train.is_empty()).collect();
    let mut order = has_samples.iter();
    clients.retain(|_| *order.next().unwrap_or(&true));
    let mut order = has_samples.iter();
    names.retain(|_| *order.next().unwrap_or(&true));
    has_samples.iter().filter(|has_samples| !**has_samples).count()
}
