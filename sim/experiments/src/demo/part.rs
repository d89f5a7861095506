//! Parts of the demo; each runs one built-in scenario.

use fedspan_sim_core::scenario::Scenario;

use super::DemoError;

/// Number of rounds between two points of a learning curve.
const EVALUATE_EVERY: u32 = 25;

/// One part of the demo, which runs one built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Name of the scenario.
    pub name: &'static str,
    /// True if a label means the same exercise for all wearers, so that one shared model makes sense.
    pub shared_labels: bool,
}

/// The two parts of the demo.
pub const PARTS: [Part; 2] =
    [Part { name: "demo", shared_labels: true }, Part { name: "programmes", shared_labels: false }];

impl Part {
    /// Creates the scenario in which the people of one fold are held out, with further `changes`.
    ///
    /// # Errors
    /// [`DemoError::Scenario`] if the scenario rejects a change.
    pub fn scenario(&self, fold: usize, changes: &[String]) -> Result<Scenario, DemoError> {
        let fold = format!("split.fold={fold}");
        let evaluation = format!("evaluate_every={EVALUATE_EVERY}");
        let changes: Vec<String> = changes.iter().cloned().chain([fold, evaluation]).collect();
        let text = Scenario::built_in(self.name).unwrap_or_default();
        Ok(Scenario::parse(self.name, text, &changes)?)
    }
}
