//! Interface of an algorithm on networks: its name, its keys, the task of its devices, and its server.

use std::fmt;
use std::ops::RangeInclusive;

use fedspan_protocol::message::Descent;
use toml_edit::Value;

use super::mean::LayerMean;
use super::parameters::{NetworkParameters, Plan};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};

/// Description of the model on which clients with networks of their own are evaluated.
pub(super) const OWN_NETWORK: &str =
    "the client's own network as last trained; the initial network if the client took part in no round";

/// Description of the model on which newcomers are evaluated if devices share a network.
pub(super) const SHARED_AND_HEAD: &str = "the shared network after the newcomer has trained its head";

/// Algorithm on a network, with its own settings.
pub trait NetworkAlgorithm: Copy + fmt::Debug + PartialEq {
    /// Name in files.
    const NAME: &'static str;
    /// Description in one line.
    const SUMMARY: &'static str;
    /// Whether the algorithm trains the adapter of a network with a frozen layer, and no other network.
    const TRAINS_ADAPTER: bool = false;
    /// Whether the firmware supports the algorithm, rather than simulated devices alone.
    const RUNS_ON_FIRMWARE: bool = false;
    /// Whether devices and server exchange layers.
    const COMMUNICATES: bool = true;
    /// Whether all devices have the same network, so that its heads may be fine-tuned for each client (`+ft`).
    const SHARES_WHOLE_NETWORK: bool = false;
    /// Whether devices share a body and keep personal heads.
    const HAS_OWN_HEAD: bool = false;
    /// Whether devices train their heads first, for epochs of their own.
    const HAS_HEAD_EPOCHS: bool = false;
    /// Whether a client that joins after training receives a body on which it can train a head.
    const HAS_BODY_FOR_NEWCOMERS: bool = true;
    /// Number of matrices of a layer's size in each tensor.
    const TENSORS_PER_LAYER: usize = 1;
    /// Default momentum.
    const MOMENTUM: f64 = 0.5;
    /// Whether results depend on the number of devices in the fleet.
    const USES_FLEET_SIZE: bool = false;
    /// Whether the updates can only be averaged, so that no robust rule applies.
    const NEEDS_MEAN: bool = false;

    /// Reads the algorithm's own keys.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem>;

    /// Writes the algorithm's own keys with their values, as a campaign stores them.
    fn write(&self, _set: &mut dyn FnMut(&str, Value)) {}

    /// Checks the steps of the devices.
    ///
    /// # Errors
    /// The key, and a sentence with the value found and the values allowed.
    fn check_descent(&self, _descent: &Descent) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Shared layers and task of the devices.
    fn plan(&self, parameters: &NetworkParameters) -> Plan;

    /// Server side of the algorithm; a mean of the shared layers unless the algorithm needs another.
    fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
        Box::new(LayerMean::new(parameters, self.plan(&parameters)))
    }

    /// Description of the model on which a client is evaluated, for reports.
    fn evaluated_model(&self) -> &'static str;

    /// Description of the model on which a client that joined after training is evaluated.
    fn evaluated_newcomer_model(&self) -> &'static str;
}

/// Keys of an algorithm in `[algorithm]`. Keys in a table with the algorithm's own name take precedence over
/// the common ones, so that one file can compare several algorithms.
#[derive(Clone, Copy)]
pub struct MethodKeys<'r, 's> {
    /// Table with the algorithm's own name.
    pub own: &'r Section<'s>,
    /// Table with the common keys; `None` if the algorithm of the campaign is another one.
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
                // The key becomes known in both tables, whichever takes precedence.
                let (_, own_has) = (common.register(key), self.own.register(key));
                if own_has { self.own } else { common }
            }
            None => self.own,
        }
    }

    /// Reads a number.
    ///
    /// # Errors
    /// [`Problem`] if it is outside `range`.
    pub fn number(&self, key: &str, default: f64, range: RangeInclusive<f64>) -> Result<f32, Problem> {
        #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
        let narrow = |value: f64| value as f32;
        self.section_of(key).number(key, Some(default), range).map(narrow)
    }

    /// Reads a count.
    ///
    /// # Errors
    /// [`Problem`] if it is outside `range`.
    pub fn count(&self, key: &str, default: u64, range: RangeInclusive<u64>) -> Result<u16, Problem> {
        let count = self.section_of(key).integer(key, Some(default), range)?;
        Ok(u16::try_from(count).unwrap_or(u16::MAX))
    }
}
