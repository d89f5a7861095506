//! Halves of the demo: built-in scenarios.

use fedspan_sim_core::scenario::Scenario;

use super::DemoError;

/// Number of rounds between two points of a curve.
const EVALUATE_EVERY: u32 = 25;

/// One half of the demo: a built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Name of the scenario.
    pub name: &'static str,
    /// True if a label means the same exercise for all wearers, so that one shared model makes sense.
    pub shared_labels: bool,
}

/// The two halves of the demo.
pub const PARTS: [Part; 2] =
    [Part { name: "demo", shared_labels: true }, Part { name: "programmes", shared_labels: false }];

impl Part {
    /// The scenario with one fold held out and with `changes`.
    ///
    /// # Errors
    /// [`DemoError::Scenario`] if the scenario rejects a change.
    pub fn scenario(&self, fold: usize, changes: &[String]) -> Result<Scenario, DemoError> {
        let fold = format!("split.fold={fold}");
        let every = format!("evaluate_every={EVALUATE_EVERY}");
        let changes: Vec<String> = changes.iter().cloned().chain([fold, every]).collect();
        let text = Scenario::built_in(self.name).unwrap_or_default();
        Ok(Scenario::parse(self.name, text, &changes)?)
    }
}
