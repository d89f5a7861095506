//! Builder of scenarios in code, without a scenario file.

use fedspan_engine::config::{Problem, SettingValue, Values};

use super::Scenario;
use crate::data::{Dataset, DatasetError, MemoryData};

/// Default name of the scenario, which replaces the file name in error messages.
const NAME: &str = "Scenario::builder()";

/// Reason why a scenario cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// A setting is missing, unknown or not allowed.
    #[error(transparent)]
    Setting(#[from] Problem),
    /// The data set cannot be used.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

/// Builder of a [`Scenario`]. Settings that are not given have the same defaults as in a scenario file, and
/// [`Self::build`] performs the same checks.
///
/// Required settings are the data (a data set, or `data.kind` with the keys of this kind), the model, the
/// algorithm, and the required keys of the algorithm, which are the rounds and the step size for `"fedrep"`.
///
/// ```
/// use fedspan_sim_core::scenario::Scenario;
///
/// let scenario = Scenario::builder()
///     .set("data.kind", "linear-regression") // any key of `SCENARIOS.md`
///     .set("data.clients", 12)
///     .set("data.d", 6)
///     .set("data.k", 2)
///     .set("data.samples", 20)
///     .width(2)
///     .algorithm("fedrep")
///     .rounds(30)
///     .step_size(0.25)
///     .build()?;
/// assert_eq!(scenario.algorithm.rounds, 30);
/// # Ok::<(), fedspan_sim_core::scenario::ScenarioError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ScenarioBuilder {
    name: String,
    values: Values,
    dataset: Option<Dataset>,
}

impl Default for ScenarioBuilder {
    fn default() -> Self {
        Self { name: NAME.to_owned(), values: Values::default(), dataset: None }
    }
}

impl ScenarioBuilder {
    /// Sets the name of the scenario, which replaces the file name in results and error messages.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets any key of a scenario file by its dotted name, such as `"participation.policy"`.
    pub fn set(mut self, key: &str, value: impl Into<SettingValue>) -> Self {
        self.values.set(key, value);
        self
    }

    /// Uses data that the program has made. They replace the sections `[data]` and `[split]`; only the key
    /// `data.scale` may still be set. The data are checked by [`Self::build`].
    pub fn with_dataset(self, dataset: Dataset) -> Self {
        Self { dataset: Some(dataset), ..self }
    }

    /// Sets the seed of all random choices, which is used unless a run sets another seed.
    pub fn seed(self, seed: u64) -> Self {
        self.set("seed", seed)
    }

    /// Sets the width of the shared representation of a linear model.
    pub fn width(self, k: usize) -> Self {
        self.set("model.k", k)
    }

    /// Sets the algorithm by its name in scenario files. If a custom algorithm is set in the builder of the
    /// simulation, the algorithm set here determines the devices and the settings that apply.
    pub fn algorithm(self, name: &str) -> Self {
        self.set("algorithm.name", name)
    }

    /// Sets the number of training rounds.
    pub fn rounds(self, rounds: u32) -> Self {
        self.set("algorithm.rounds", rounds)
    }

    /// Sets the step size of the algorithm.
    pub fn step_size(self, step_size: f64) -> Self {
        self.set("algorithm.step_size", step_size)
    }

    /// Requests that the step size is measured on the data before a run starts.
    pub fn measured_step_size(self) -> Self {
        self.set("algorithm.step_size", "auto")
    }

    /// Checks the data and all settings and makes the scenario.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first error.
    pub fn build(self) -> Result<Scenario, ScenarioError> {
        let Self { name, values, dataset } = self;
        let memory_data = dataset.map(MemoryData::new).transpose()?;
        Ok(Scenario::read(&values.source(&name)?, memory_data)?)
    }
}
