//! Registry of the algorithms on linear models.

use toml_edit::Value;

use super::{
    FedAvgSettings, FedPowerSettings, FedRepSettings, FfaLoraSettings, GdGdSettings, LinearAlgorithm,
    LinearSettings, LinearStart, LocalOnlySettings, Noise, PooledSettings, RoLoraSettings, SecondTensor,
    Uploads,
};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};

macro_rules! registry {
    ($($Name:ident($Settings:ident),)+) => {
        /// Algorithm on a linear model, with its own settings.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum LinearMethod {
            $(#[doc = concat!("[`", stringify!($Settings), "`]")] $Name($Settings),)+
        }

        impl LinearMethod {
            /// Name of each algorithm, with a description in one line and whether it shares both factors of the
            /// model, as an adapter.
            pub(in super::super) const NAMES: &[(&str, &str, bool)] =
                &[$(($Settings::NAME, $Settings::SUMMARY, $Settings::IS_ADAPTER),)+];

            /// Reads the settings of the algorithm called `name`; `None` if there is none.
            ///
            /// # Errors
            /// [`Problem`] for the first mistake.
            pub(crate) fn read(name: &str, section: &Section<'_>) -> Option<Result<Self, Problem>> {
                match name {
                    $($Settings::NAME => Some($Settings::read(section).map(Self::$Name)),)+
                    _ => None,
                }
            }

            /// Name in files.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$Name(_) => $Settings::NAME,)+ }
            }

            /// Whether devices and server exchange rounds.
            #[must_use]
            pub const fn is_federated(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::IS_FEDERATED,)+ }
            }

            /// Whether devices step by `step_size`.
            #[must_use]
            pub const fn takes_steps(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::TAKES_STEPS,)+ }
            }

            /// Ratio of the step that devices take to `step_size`.
            #[must_use]
            pub const fn step_factor(&self) -> f64 {
                match self { $(Self::$Name(_) => $Settings::STEP_FACTOR,)+ }
            }

            /// Default of the key `head`.
            pub(crate) const fn default_head(&self) -> &'static str {
                match self { $(Self::$Name(_) => $Settings::DEFAULT_HEAD,)+ }
            }

            /// Whether devices can compute in 16-bit integers.
            #[must_use]
            pub const fn supports_i16(&self) -> bool {
                match self { $(Self::$Name(_) => $Settings::SUPPORTS_I16,)+ }
            }

            /// Noise that devices add under `[privacy]`.
            #[must_use]
            pub const fn noise(&self) -> Noise {
                match self { $(Self::$Name(_) => $Settings::NOISE,)+ }
            }

            /// Writes the keys that belong to this algorithm alone, as a campaign stores them.
            pub fn write(&self, settings: &LinearSettings, set: &mut dyn FnMut(&str, Value)) {
                match self { $(Self::$Name(method) => method.write(settings, set),)+ }
            }

            /// Number of rounds, if it follows from the algorithm's own keys.
            #[must_use]
            pub fn rounds(&self) -> Option<u64> {
                match self { $(Self::$Name(method) => method.rounds(),)+ }
            }

            /// Checks the common settings.
            ///
            /// # Errors
            /// The key, and a sentence with the value found and the values allowed.
            pub fn check(&self, settings: &LinearSettings) -> Result<(), (&'static str, String)> {
                match self { $(Self::$Name(method) => method.check(settings),)+ }
            }

            /// Contents of an upload, which decide the rules that fit.
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
    RoLora(RoLoraSettings),
    FfaLora(FfaLoraSettings),
    LocalOnly(LocalOnlySettings),
    Pooled(PooledSettings),
}

impl LinearMethod {
    /// FedRep.
    pub const FEDREP: Self = Self::FedRep(FedRepSettings);

    /// Names of the algorithms for linear models with one shared factor, or with both (`adapter`).
    pub fn names(adapter: bool) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(_, _, is_adapter)| *is_adapter == adapter).map(|(name, ..)| *name)
    }
}
