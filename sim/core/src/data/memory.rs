//! Data that the calling program has made, as the source of a scenario.

use std::sync::Arc;

use super::{Dataset, DatasetError};

/// Checked data set in memory, shared by all copies of a scenario.
#[derive(Clone, Debug)]
pub struct MemoryData(Arc<Dataset>);

impl MemoryData {
    /// Takes a data set.
    ///
    /// # Errors
    /// [`DatasetError`] for the first client, sample or value that cannot be used.
    pub fn new(dataset: Dataset) -> Result<Self, DatasetError> {
        dataset.check()?;
        Ok(Self(Arc::new(dataset)))
    }

    /// Data set.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.0
    }
}

/// Compares identity: two are equal if they share one data set.
impl PartialEq for MemoryData {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
