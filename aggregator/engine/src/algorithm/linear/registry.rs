//! Registry of the algorithms on linear models: the enum [`LinearMethod`], with one variant for each
//! algorithm, and its methods, which call those of the algorithm.

use toml_edit::Value;

use super::{
    FedAvgSettings, FedPowerSettings, FedRepSettings, FfaLoraSettings, GdGdSettings, LearnedPriorSettings,
    LinearAlgorithm, LinearSettings, LinearStart, LocalOnlySettings, Noise, PooledSettings, RoLoraSettings,
    SecondTensor, Uploads,
};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};

macro_rules! registry {
    ($($Name:ident($Settings:ident),)+) => {
        /// Algorithm on a linear model, with the settings of that algorithm.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum LinearMethod {
            $(#[doc = concat!("[`", stringify!($Settings), "`]")] $Name($Settings),)+
        }

        impl LinearMethod {
            /// Name of each algorithm, its description in one line, and whether its model is a low-rank
            /// adapter.
            pub(in super::super) const NAMES: &[(&str, &str, bool)] =
                &[$(($Settings::NAME, $Settings::SUMMARY, $Settings::IS_ADAPTER),)+];

            /// Reads the settings of the algorithm called `name`; `None` if no algorithm has that name.
            ///
            /// # Errors
            /// [`Problem`] for the first mistake.
            pub(crate) fn read(name: &str, section: &Section<'_>) -> Option<Result<Self, Problem>> {
                match name {
                    $($Settings::NAME => Some($Settings::read(section).map(Self::$Name)),)+
                    _ => None,
                }
            }

            /// Name of the algorithm in configuration files.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$Name(_) => $Settings::NAME,)+ }
            }

            /// Whether devices and server exchange rounds.
            #[must_use]
            pub const fn is_federated(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::IS_FEDERATED,)+ }
            }

            /// Whether devices take gradient steps of size `step_size`.
            #[must_use]
            pub const fn takes_steps(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::TAKES_STEPS,)+ }
            }

            /// Ratio of the step size that devices use to the key `step_size`.
            #[must_use]
            pub const fn step_factor(&self) -> f64 {
                match self { $(Self::$Name(_) => $Settings::STEP_FACTOR,)+ }
            }

            /// Default value of the key `head`.
            pub(crate) const fn default_head(&self) -> &'static str {
                match self { $(Self::$Name(_) => $Settings::DEFAULT_HEAD,)+ }
            }

            /// Whether devices can compute updates in 16-bit integers.
            #[must_use]
            pub const fn supports_i16(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::SUPPORTS_I16,)+ }
            }

            /// Whether devices fit their final heads under a prior of the algorithm.
            #[must_use]
            pub const fn has_prior(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::HAS_PRIOR,)+ }
            }

            /// Noise that devices add under `[privacy]`.
            #[must_use]
            pub const fn noise(&self) -> Noise {
                match self { $(Self::$Name(_) => $Settings::NOISE,)+ }
            }

            /// Passes each key of this algorithm alone, with its value, to `set`, as a campaign stores them.
            pub fn write(&self, settings: &LinearSettings, set: &mut dyn FnMut(&str, Value)) {
                match self { $(Self::$Name(method) => method.write(settings, set),)+ }
            }

            /// Number of rounds, if it follows from the algorithm's own keys.
            #[must_use]
            pub fn rounds(&self) -> Option<u64> {
                match self { $(Self::$Name(method) => method.rounds(),)+ }
            }

            /// Checks the settings common to all algorithms on linear models.
            ///
            /// # Errors
            /// Returns the invalid key, and a sentence with the value found and the values allowed.
            pub fn check(&self, settings: &LinearSettings) -> Result<(), (&'static str, String)> {
                match self { $(Self::$Name(method) => method.check(settings),)+ }
            }

            /// Contents of an upload, which determine the allowed aggregation rules.
            #[must_use]
            pub fn uploads(&self, settings: &LinearSettings) -> Uploads {
                match self { $(Self::$Name(method) => method.uploads(settings),)+ }
            }

            /// Second tensor of a round, if there is one.
            #[must_use]
            pub fn second_tensor(&self) -> Option<SecondTensor> {
                match self { $(Self::$Name(method) => method.second_tensor(),)+ }
            }

            /// Creates the server side of the algorithm.
            #[must_use]
            pub fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
                match self { $(Self::$Name(method) => method.server(start),)+ }
            }
        }
    };
}

registry! {
    FedRep(FedRepSettings),
    GdGd(GdGdSettings),
    FedAvg(FedAvgSettings),
    FedPower(FedPowerSettings),
    LearnedPrior(LearnedPriorSettings),
    RoLora(RoLoraSettings),
    FfaLora(FfaLoraSettings),
    LocalOnly(LocalOnlySettings),
    Pooled(PooledSettings),
}

impl LinearMethod {
    /// The algorithm FedRep.
    pub const FEDREP: Self = Self::FedRep(FedRepSettings);

    /// Names of the algorithms for linear models: those for low-rank adapters if `adapter` is set, otherwise
    /// those for one shared representation.
    pub fn names(adapter: bool) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(_, _, is_adapter)| *is_adapter == adapter).map(|(name, ..)| *name)
    }
}
