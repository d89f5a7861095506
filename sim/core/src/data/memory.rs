//! Source of a scenario's data in memory: a data set that the calling program has made.

use std::sync::Arc;

use super::{Dataset, DatasetError};

/// Validated data set in memory, which all copies of a scenario share.
#[derive(Clone, Debug)]
pub struct MemoryData(Arc<Dataset>);

impl MemoryData {
    /// Validates a data set and makes it shareable.
    ///
    /// # Errors
    /// [`DatasetError`] for the first client, sample or value that cannot be used.
    pub fn new(dataset: Dataset) -> Result<Self, DatasetError> {
        dataset.check()?;
        Ok(Self(Arc::new(dataset)))
    }

    /// The data set.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.0
    }
}

/// Compares identity: two values are equal if they share the same data set in memory.
impl PartialEq for MemoryData {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
