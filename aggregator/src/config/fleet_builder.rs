//! Builder of a device server's configuration, for programs that have no `fleet.toml`.

use std::path::PathBuf;

use fedspan_engine::config::{Problem, SettingValue, Values};

use super::fleet::Fleet;

/// Name that stands for the file in error messages.
const NAME: &str = "Fleet::builder()";

/// Builder of a [`Fleet`]. Settings that are not given have the defaults of `fleet.toml`. [`Self::build`]
/// performs the same checks as the parser of the file.
///
/// The number of devices, the number of features, the width of the model and the algorithm are required, and
/// so are the required keys of the algorithm: for `"fedrep"` the rounds and the step size.
///
/// ```
/// use fedspan_aggregator::config::Fleet;
///
/// let fleet = Fleet::builder()
///     .plaintext()
///     .devices(2)
///     .features(20)
///     .width(3)
///     .algorithm("fedrep")
///     .rounds(10)
///     .step_size(0.25)
///     .set("aggregation.rule", "spectral-filter") // any key of `fleet.toml`
///     .build()?;
/// assert_eq!(fleet.algorithm.rounds, 10);
///
/// let error = Fleet::builder().devices(0).build().unwrap_err();
/// assert_eq!(error.to_string(), "devices.expected: found 0, allowed: an integer from 1 to 1000000");
/// # Ok::<(), fedspan_aggregator::config::Problem>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct FleetBuilder {
    values: Values,
    /// State directory. [`Self::build`] rejects a path that is not Unicode.
    state: Option<PathBuf>,
}

impl Fleet {
    /// Returns a builder of a configuration, for programs without a configuration file.
    pub fn builder() -> FleetBuilder {
        FleetBuilder::default()
    }
}

impl FleetBuilder {
    /// Sets any key of `fleet.toml` by its dotted name, such as `"rounds.deadline"`.
    pub fn set(mut self, key: &str, value: impl Into<SettingValue>) -> Self {
        self.values.set(key, value);
        self
    }

    /// Sets the seed of the initial model and of cohorts.
    pub fn seed(self, seed: u64) -> Self {
        self.set("seed", seed)
    }

    /// Sets the state directory.
    pub fn state(self, directory: impl Into<PathBuf>) -> Self {
        Self { state: Some(directory.into()), ..self }
    }

    /// Sets the address of the TCP listener; with port 0 the system chooses a free one.
    pub fn tcp(self, address: &str) -> Self {
        self.set("listen.tcp", address)
    }

    /// Sets the address for packets over UDP, in addition to TCP; with port 0 the system chooses a free one.
    pub fn udp(self, address: &str) -> Self {
        self.set("listen.udp", address)
    }

    /// Admits devices without keys and sends frames without encryption, for test benches.
    pub fn plaintext(self) -> Self {
        self.set("listen.plaintext", true)
    }

    /// Sets the number of devices that must have joined before the first round opens.
    pub fn devices(self, expected: usize) -> Self {
        self.set("devices.expected", expected)
    }

    /// Sets the number of features of a sample.
    pub fn features(self, d: usize) -> Self {
        self.set("data.d", d)
    }

    /// Sets the number of outputs: classes, or values of a target.
    pub fn outputs(self, outputs: usize) -> Self {
        self.set("data.outputs", outputs)
    }

    /// Sets the width of the shared representation of a linear model.
    pub fn width(self, k: usize) -> Self {
        self.set("model.k", k)
    }

    /// Sets the algorithm, as `fleet.toml` names it. A custom algorithm is given to the server's builder
    /// instead; the algorithm set here then determines which other keys are allowed.
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

    /// Checks all settings and returns the configuration.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake: a required key that is missing, an unknown key, or a value that is
    /// not allowed.
    pub fn build(self) -> Result<Fleet, Problem> {
        let Self { mut values, state } = self;
        if let Some(state) = state {
            let Some(state) = state.to_str() else {
                return Err(Problem::new("state", format!("found {state:?}, allowed: a path in Unicode")));
            };
            values.set("state", state);
        }
        Fleet::read(&values.source(NAME)?)
    }
}
