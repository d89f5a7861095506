//! Scenario without a file.

use fedspan_engine::config::{Problem, SettingValue, Values};

use super::Scenario;
use crate::data::{Dataset, DatasetError, MemoryData};

/// Name that stands for the file in error messages.
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

/// Builder of a [`Scenario`]. Settings that are not given have the defaults of a scenario file, and
/// [`Self::build`] checks all of them as it would check the file.
///
/// Required are the data (a data set, or `data.kind` with its own keys), the model, the algorithm, and the
/// algorithm's own required keys: for `"fedrep"` the rounds and the step size.
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
    /// Sets the name that results and error messages have in place of a file name.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets any key of a scenario file by its dotted name, such as `"participation.policy"`.
    pub fn set(mut self, key: &str, value: impl Into<SettingValue>) -> Self {
        self.values.set(key, value);
        self
    }

    /// Uses data that the program has made. They replace `[data]` and `[split]`, of which only `data.scale`
    /// may be set. [`Self::build`] checks them.
    pub fn with_dataset(self, dataset: Dataset) -> Self {
        Self { dataset: Some(dataset), ..self }
    }

    /// Sets the seed of all random choices, for runs that are given none.
    pub fn seed(self, seed: u64) -> Self {
        self.set("seed", seed)
    }

    /// Sets the width of the shared representation of a linear model.
    pub fn width(self, k: usize) -> Self {
        self.set("model.k", k)
    }

    /// Sets the algorithm, as a scenario file names it. A custom algorithm is given to the simulation's
    /// builder; this one then determines the devices and which other settings apply.
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

    /// Leaves the step size to be measured on the data before a run starts.
    pub fn measured_step_size(self) -> Self {
        self.set("algorithm.step_size", "auto")
    }

    /// Checks the data and all settings and makes the scenario.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first mistake.
    pub fn build(self) -> Result<Scenario, ScenarioError> {
        let Self { name, values, dataset } = self;
        let own = dataset.map(MemoryData::new).transpose()?;
        Ok(Scenario::read(&values.source(&name)?, own)?)
    }
}
