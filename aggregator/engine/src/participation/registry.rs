//! Registry of the participation policies: the enum [`Policy`], with one variant for each policy, and the
//! reader of `[participation]`.

use toml_edit::Value;

use super::{
    DoublingSettings, Draws, FirstArrivalsSettings, FractionSettings, FullSettings, Participation,
    PolicySettings, WithReplacementSettings,
};
use crate::reader::{Problem, Section};

macro_rules! registry {
    ($($Name:ident($Settings:ident),)+) => {
        /// Participation policy with its settings.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Policy {
            $(#[doc = concat!("[`", stringify!($Settings), "`]")] $Name($Settings),)+
        }

        impl Policy {
            /// Names of the policies, each with a description in one line.
            pub const NAMES: &[(&str, &str)] = &[$(($Settings::NAME, $Settings::SUMMARY),)+];
            /// Names of the policies, each with whether rounds of adapter files support it.
            const FOR_ADAPTER_FILES: &[(&str, bool)] = &[$(($Settings::NAME, $Settings::FOR_ADAPTER_FILES),)+];

            /// Reads the settings of the policy called `name`.
            fn read_named(
                name: &str,
                section: &Section<'_>,
                communication: Option<f64>,
            ) -> Result<Self, Problem> {
                match name {
                    $($Settings::NAME => $Settings::read(section, communication).map(Self::$Name),)+
                    _ => Err(section.problem("policy", format!("found {name:?}, which is no policy"))),
                }
            }

            /// Name of the policy in configuration files.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$Name(_) => $Settings::NAME,)+
                }
            }

            /// Passes each of the policy's own keys, with its value, to `set`, as a campaign stores them.
            pub fn write(&self, set: &mut dyn FnMut(&str, Value)) {
                match self {
                    $(Self::$Name(settings) => settings.write(set),)+
                }
            }

            /// Checks the policy against an initial fleet of `devices` devices and a largest possible fleet
            /// of `fleet_max` devices.
            ///
            /// # Errors
            /// Returns the key whose value is too large, and a sentence with the numbers found and allowed.
            pub fn fits(&self, devices: usize, fleet_max: usize) -> Result<(), (&'static str, String)> {
                match self {
                    $(Self::$Name(settings) => settings.fits(devices, fleet_max),)+
                }
            }

            /// Checks the policy against a model that is a network or an adapter. `steps_show_round` is false if a
            /// round changes more on the server than the model.
            ///
            /// # Errors
            /// Returns the key whose value is not allowed for such a model, and a sentence with the values allowed.
            pub fn fits_network(&self, steps_show_round: bool) -> Result<(), (&'static str, String)> {
                match self {
                    $(Self::$Name(settings) => settings.fits_network(steps_show_round),)+
                }
            }

            /// Smallest number of updates that a round waits for when `devices` devices are present.
            #[must_use]
            pub fn least_updates(&self, devices: usize) -> usize {
                match self {
                    $(Self::$Name(settings) => settings.least_updates(devices),)+
                }
            }

            /// Creates the policy in its initial state.
            #[must_use]
            pub fn start(&self, draws: Draws) -> Box<dyn Participation> {
                match self {
                    $(Self::$Name(settings) => settings.start(draws),)+
                }
            }
        }
    };
}

registry! {
    Full(FullSettings),
    Fraction(FractionSettings),
    FirstArrivals(FirstArrivalsSettings),
    WithReplacement(WithReplacementSettings),
    Doubling(DoublingSettings),
}

impl Policy {
    /// Full participation.
    pub const FULL: Self = Self::Full(FullSettings);

    /// Reads the section `[participation]`. `communication` is the default communication time of a round, in
    /// mean computation times, if it is known.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    pub fn read(section: &Section<'_>, communication: Option<f64>) -> Result<Self, Problem> {
        let names: Vec<(&str, &str)> = Self::NAMES.iter().map(|(name, _)| (*name, *name)).collect();
        let name = section.choice("policy", Some(FullSettings::NAME), &names)?;
        let policy = Self::read_named(name, section, communication)?;
        section.finish()?;
        Ok(policy)
    }

    /// Reads the section `[participation]` for rounds of adapter files.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake, or for a policy that these rounds do not support.
    pub fn read_for_adapter_files(section: &Section<'_>) -> Result<Self, Problem> {
        let policy = Self::read(section, None)?;
        let supported = || Self::FOR_ADAPTER_FILES.iter().filter(|(_, supported)| *supported);
        if supported().any(|(name, _)| *name == policy.name()) {
            return Ok(policy);
        }
        let allowed: Vec<String> = supported().map(|(name, _)| format!("{name:?}")).collect();
        let message = format!(
            "found {:?}, which adapter files do not support; allowed: {}",
            policy.name(),
            allowed.join(", ")
        );
        Err(section.problem("policy", message))
    }
}
