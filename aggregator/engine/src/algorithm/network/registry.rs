//! Registry of the algorithms on networks: the enum [`NetworkMethod`], with one variant for each algorithm,
//! and its methods, which call those of the algorithm.

use fedspan_protocol::message::Descent;
use toml_edit::Value;

use super::{
    Apfl, Ditto, FedAvg, FedMtl, FedPer, FedProx, FedRep, FfaLora, FlexLora, L2gd, LgFedAvg, LocalOnly, Lora,
    MethodKeys, NetworkAlgorithm, NetworkParameters, NetworkPrior, NetworkShape, PerFedAvg, Plan, RoLora,
    Scaffold,
};
use crate::algorithm::Algorithm;
use crate::reader::Problem;

macro_rules! registry {
    ($($Name:ident($Settings:ty),)+) => {
        /// Algorithm on a network, with the settings of that algorithm.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum NetworkMethod {
            $(#[doc = concat!("Settings of type `", stringify!($Settings), "`.")] $Name($Settings),)+
        }

        impl NetworkMethod {
            /// Name of each algorithm, its description in one line, and whether it trains networks with an
            /// adapter.
            pub(in super::super) const NAMES: &[(&str, &str, bool)] = &[$((
                <$Settings as NetworkAlgorithm>::NAME,
                <$Settings as NetworkAlgorithm>::SUMMARY,
                <$Settings as NetworkAlgorithm>::TRAINS_ADAPTER,
            ),)+];

            /// Reads the settings of the algorithm called `name`; `None` if no algorithm has that name.
            ///
            /// # Errors
            /// [`Problem`] for the first mistake.
            pub(crate) fn read(name: &str, keys: &MethodKeys<'_, '_>) -> Option<Result<Self, Problem>> {
                $(if name == <$Settings as NetworkAlgorithm>::NAME {
                    return Some(<$Settings as NetworkAlgorithm>::read(keys).map(Self::$Name));
                })+
                None
            }
        }

        delegate! { $($Name,)+ }
        properties! { $($Name($Settings),)+ }
    };
}

/// Defines the methods that call the method of the same name of the algorithm.
macro_rules! delegate {
    ($($Name:ident,)+) => {
        impl NetworkMethod {
            /// Passes each of the algorithm's own keys, with its value, to `set`, as a campaign stores them.
            pub fn write(&self, set: &mut dyn FnMut(&str, Value)) {
                match self { $(Self::$Name(method) => method.write(set),)+ }
            }

            /// Checks the settings of the devices' gradient descent.
            ///
            /// # Errors
            /// Returns the invalid key, and a sentence with the value found and the values allowed.
            pub fn check_descent(&self, descent: &Descent) -> Result<(), (&'static str, String)> {
                match self { $(Self::$Name(method) => method.check_descent(descent),)+ }
            }

            /// Checks the sizes of the network.
            ///
            /// # Errors
            /// A sentence with the sizes found and allowed.
            pub fn check_shape(&self, shape: NetworkShape) -> Result<(), String> {
                match self { $(Self::$Name(method) => method.check_shape(shape),)+ }
            }

            /// Number of rounds after those in which the network is trained.
            #[must_use]
            pub fn rounds_after_training(&self) -> u32 {
                match self { $(Self::$Name(method) => method.rounds_after_training(),)+ }
            }

            /// Shared layers and task of the devices.
            #[must_use]
            pub fn plan(&self, parameters: &NetworkParameters) -> Plan {
                match self { $(Self::$Name(method) => method.plan(parameters),)+ }
            }

            /// Creates the server side of the algorithm.
            #[must_use]
            pub fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
                match self { $(Self::$Name(method) => method.server(parameters),)+ }
            }

            /// Description of the model on which a client is evaluated, for reports.
            #[must_use]
            pub fn evaluated_model(&self) -> &'static str {
                match self { $(Self::$Name(method) => method.evaluated_model(),)+ }
            }

            /// Description of the model on which a client that joined after training is evaluated.
            #[must_use]
            pub fn evaluated_newcomer_model(&self) -> &'static str {
                match self { $(Self::$Name(method) => method.evaluated_newcomer_model(),)+ }
            }
        }
    };
}

/// Defines the methods that return a constant of the algorithm.
macro_rules! properties {
    ($($Name:ident($Settings:ty),)+) => {
        impl NetworkMethod {
            /// Name of the algorithm in configuration files.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::NAME,)+ }
            }

            /// Default value of the key `momentum`.
            #[must_use]
            pub const fn default_momentum(&self) -> f64 {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::MOMENTUM,)+ }
            }

            /// Whether the firmware supports the algorithm. Otherwise only simulated devices do.
            #[must_use]
            pub const fn is_supported_by_firmware(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::RUNS_ON_FIRMWARE,)+ }
            }

            /// Whether devices and server exchange layers.
            #[must_use]
            pub const fn communicates(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::COMMUNICATES,)+ }
            }

            /// Whether all devices have the same network.
            #[must_use]
            pub const fn shares_whole_network(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::SHARES_WHOLE_NETWORK,)+ }
            }

            /// Whether devices share a body and keep personal heads.
            #[must_use]
            pub const fn has_own_head(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::HAS_OWN_HEAD,)+ }
            }

            /// Whether devices train their heads first, for a separate number of epochs.
            #[must_use]
            pub const fn has_head_epochs(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::HAS_HEAD_EPOCHS,)+ }
            }

            /// Whether a client that joins after training receives a body on which it can train a head.
            #[must_use]
            pub const fn has_body_for_newcomers(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::HAS_BODY_FOR_NEWCOMERS,)+ }
            }

            /// Number of matrices of a layer's size in each tensor.
            #[must_use]
            pub const fn tensors_per_layer(&self) -> usize {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::TENSORS_PER_LAYER,)+ }
            }

            /// Whether results depend on the number of devices in the fleet.
            #[must_use]
            pub const fn uses_fleet_size(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::USES_FLEET_SIZE,)+ }
            }

            /// Whether a round changes nothing but the shared layers on the server.
            #[must_use]
            pub const fn steps_show_round(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::STEPS_SHOW_ROUND,)+ }
            }

            /// Whether the server sends a prior of heads, from which a head follows without other settings.
            #[must_use]
            pub const fn has_prior(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::HAS_PRIOR,)+ }
            }

            /// Whether updates can only be combined by the mean, so that no robust rule is allowed.
            #[must_use]
            pub const fn needs_mean(&self) -> bool {
                match self { $(Self::$Name(_) => <$Settings as NetworkAlgorithm>::NEEDS_MEAN,)+ }
            }
        }
    };
}

registry! {
    FedRep(FedRep),
    FedPer(FedPer),
    FedAvg(FedAvg),
    FedProx(FedProx),
    Scaffold(Scaffold),
    LgFedAvg(LgFedAvg),
    PerFedAvg(PerFedAvg<false>),
    PerFedAvgHf(PerFedAvg<true>),
    Ditto(Ditto),
    Apfl(Apfl),
    L2gd(L2gd),
    FedMtl(FedMtl),
    RoLora(RoLora),
    Lora(Lora),
    FfaLora(FfaLora),
    FlexLora(FlexLora),
    LearnedPrior(NetworkPrior),
    LocalOnly(LocalOnly),
}

impl NetworkMethod {
    /// Names of the algorithms for networks with an adapter, or without one if `adapter` is false.
    pub fn names(adapter: bool) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(_, _, trains)| *trains == adapter).map(|(name, ..)| *name)
    }
}
