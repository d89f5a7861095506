//! Progress of long work, as a trait that a progress bar or a log implements.

/// Receives the progress of an experiment.
pub trait Progress: Sync {
    /// Records that `parts` more of `of` parts are done; `what` names the part that ended last.
    fn advance(&self, parts: u64, of: u64, what: &str);
}
