//! Interface of algorithms on networks: the trait [`NetworkAlgorithm`] with name, keys, task of the devices
//! and server, and the reader of the keys.

use std::fmt;
use std::ops::RangeInclusive;

use fedspan_protocol::message::Descent;
use toml_edit::Value;

use super::layers::NetworkShape;
use super::mean::LayerMean;
use super::parameters::{NetworkParameters, Plan};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};

/// Description of the model on which clients are evaluated if each client has a personal network.
pub(super) const OWN_NETWORK: &str =
    "the client's own network as last trained; the initial network if the client took part in no round";

/// Description of the model on which newcomers are evaluated if devices share a network.
pub(super) const SHARED_AND_HEAD: &str = "the shared network after the newcomer has trained its head";

/// Algorithm on a network. A value contains the settings of the algorithm.
pub trait NetworkAlgorithm: Copy + fmt::Debug + PartialEq {
    /// Name of the algorithm in configuration files.
    const NAME: &'static str;
    /// Description of the algorithm in one line, for lists of algorithms.
    const SUMMARY: &'static str;
    /// Whether the algorithm trains networks with an adapter and a frozen layer, and only these.
    const TRAINS_ADAPTER: bool = false;
    /// Whether the firmware supports the algorithm. Otherwise only simulated devices do.
    const RUNS_ON_FIRMWARE: bool = false;
    /// Whether devices and server exchange layers.
    const COMMUNICATES: bool = true;
    /// Whether all devices have the same network, so that its head may be fine-tuned for each client (`+ft`).
    const SHARES_WHOLE_NETWORK: bool = false;
    /// Whether devices share a body and keep personal heads.
    const HAS_OWN_HEAD: bool = false;
    /// Whether devices train their heads first, for a separate number of epochs.
    const HAS_HEAD_EPOCHS: bool = false;
    /// Whether a client that joins after training receives a body on which it can train a head.
    const HAS_BODY_FOR_NEWCOMERS: bool = true;
    /// Number of matrices of a layer's size in each tensor.
    const TENSORS_PER_LAYER: usize = 1;
    /// Default value of the key `momentum`.
    const MOMENTUM: f64 = 0.5;
    /// Whether results depend on the number of devices in the fleet.
    const USES_FLEET_SIZE: bool = false;
    /// Whether a round changes nothing but the shared layers on the server, so that their steps show all that the
    /// round has done.
    const STEPS_SHOW_ROUND: bool = true;
    /// Whether updates can only be combined by the mean, so that no robust rule is allowed.
    const NEEDS_MEAN: bool = false;

    /// Whether the server sends a prior of heads, from which a head follows without other settings.
    const HAS_PRIOR: bool = false;

    /// Reads the algorithm's own keys.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem>;

    /// Passes each of the algorithm's own keys, with its value, to `set`, as a campaign stores them.
    fn write(&self, _set: &mut dyn FnMut(&str, Value)) {}

    /// Checks the settings of the devices' gradient descent.
    ///
    /// # Errors
    /// Returns the invalid key, and a sentence with the value found and the values allowed.
    fn check_descent(&self, _descent: &Descent) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Checks the sizes of the network.
    ///
    /// # Errors
    /// A sentence with the sizes found and allowed.
    fn check_shape(&self, _shape: NetworkShape) -> Result<(), String> {
        Ok(())
    }

    /// Number of rounds after those in which the network is trained.
    fn rounds_after_training(&self) -> u32 {
        0
    }

    /// Shared layers and task of the devices.
    fn plan(&self, parameters: &NetworkParameters) -> Plan;

    /// Creates the server side of the algorithm. By default it combines the uploads of the shared layers by
    /// the aggregation rule.
    fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
        Box::new(LayerMean::new(parameters, self.plan(&parameters)))
    }

    /// Description of the model on which a client is evaluated, for reports.
    fn evaluated_model(&self) -> &'static str;

    /// Description of the model on which a client that joined after training is evaluated.
    fn evaluated_newcomer_model(&self) -> &'static str;
}

/// Reader of an algorithm's keys in `[algorithm]`. Keys in a table named like the algorithm take precedence
/// over the common keys, so that one file can compare several algorithms.
#[derive(Clone, Copy)]
pub struct MethodKeys<'r, 's> {
    /// Table named like the algorithm.
    pub own: &'r Section<'s>,
    /// Table with the common keys; `None` if the campaign uses a different algorithm.
    pub common: Option<&'r Section<'s>>,
    /// Number of layers in the front of the network, and number of hidden dense layers.
    pub layers: (usize, usize),
}

impl<'r, 's> MethodKeys<'r, 's> {
    /// Section from which a key is read.
    #[must_use]
    pub fn section_of(&self, key: &str) -> &'r Section<'s> {
        match self.common {
            Some(common) => {
                // Registers the key in both tables, so that neither table reports it as unknown.
                let (_, is_in_own) = (common.register(key), self.own.register(key));
                if is_in_own { self.own } else { common }
            }
            None => self.own,
        }
    }

    /// Reads a number and rounds it to f32.
    ///
    /// # Errors
    /// [`Problem`] if the value is no number or outside `range`.
    pub fn number(&self, key: &str, default: f64, range: RangeInclusive<f64>) -> Result<f32, Problem> {
        #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
        let narrow = |value: f64| value as f32;
        self.section_of(key).number(key, Some(default), range).map(narrow)
    }

    /// Reads a count.
    ///
    /// # Errors
    /// [`Problem`] if the value is no integer or outside `range`.
    pub fn count(&self, key: &str, default: u64, range: RangeInclusive<u64>) -> Result<u16, Problem> {
        let count = self.section_of(key).integer(key, Some(default), range)?;
        Ok(u16::try_from(count).unwrap_or(u16::MAX))
    }
}
