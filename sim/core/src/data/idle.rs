//! Clients that have nothing to train on: they count as nothing, whatever the kind of data.

use super::{Client, Dataset};

impl Dataset {
    /// The same without clients, and newcomers, that have no sample to train on. They are counted among those that are left
    /// out.
    #[must_use]
    pub fn without_idle(mut self) -> Self {
        let idle = without(&mut self.clients, &mut self.client_names)
            + without(&mut self.newcomers, &mut self.newcomer_names);
        self.left_out += idle;
        self
    }
}

/// Removes idle clients with their names, if they have any; how many these were.
fn without(clients: &mut Vec<Client>, names: &mut Vec<String>) -> usize {
    let busy: Vec<bool> =
        clients.iter().map(|client| client.fresh.is_some() || !client.train.is_empty()).collect();
    let mut order = busy.iter();
    clients.retain(|_| *order.next().unwrap_or(&true));
    let mut order = busy.iter();
    names.retain(|_| *order.next().unwrap_or(&true));
    busy.iter().filter(|busy| !**busy).count()
}
