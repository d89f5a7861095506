//! Trait for reporting the progress of long computations, for example to a progress bar or a log.

/// Receives the progress of an experiment.
pub trait Progress: Sync {
    /// Records that `parts` further parts of `of` parts in total have finished. `what` is the name of the
    /// part that finished last.
    fn advance(&self, parts: u64, of: u64, what: &str);
}
