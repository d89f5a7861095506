//! Devices that are held out of training (`devices.held_out`): while the campaign trains they stay connected, and the engine
//! does not know them. They join when training has ended, and fit their heads.

use std::collections::BTreeSet;
use std::sync::Arc;

use fedspan_engine::DeviceId;

/// Held-out devices, and those of them that wait for the end of training.
#[derive(Debug, Default)]
pub struct HeldOut {
    listed: BTreeSet<DeviceId>,
    /// Ascending; shared with the status.
    waiting: Arc<Vec<DeviceId>>,
}

impl HeldOut {
    /// Creates the set of the devices in the configuration.
    pub fn new(listed: &[DeviceId]) -> Self {
        Self { listed: listed.iter().copied().collect(), waiting: Arc::default() }
    }

    /// Lets a device that has connected wait if it is held out. Returns false if it is not.
    pub fn wait(&mut self, device: DeviceId) -> bool {
        let is_listed = self.listed.contains(&device);
        if let (true, Err(index)) = (is_listed, self.waiting.binary_search(&device)) {
            Arc::make_mut(&mut self.waiting).insert(index, device);
        }
        is_listed
    }

    /// Forgets a device that has disconnected. Returns false if it was not waiting.
    pub fn leave(&mut self, device: DeviceId) -> bool {
        let found = self.waiting.binary_search(&device);
        found.map(|index| Arc::make_mut(&mut self.waiting).remove(index)).is_ok()
    }

    /// Devices that wait, in ascending order. They wait no longer.
    pub fn end_training(&mut self) -> Arc<Vec<DeviceId>> {
        std::mem::take(&mut self.waiting)
    }

    /// Devices that wait.
    pub fn waiting(&self) -> Arc<Vec<DeviceId>> {
        Arc::clone(&self.waiting)
    }
}
