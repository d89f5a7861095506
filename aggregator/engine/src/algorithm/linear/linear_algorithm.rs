//! Interface of algorithms on linear models: the trait [`LinearAlgorithm`] with name, keys and server, and
//! the types it uses.

use std::fmt;

use fedspan_protocol::message::{HeadSolve, Upload};
use fedspan_protocol::tensor::Encoding;
use toml_edit::Value;

use crate::aggregate::Rule;
use crate::algorithm::Algorithm;
use crate::linalg::Matrix;
use crate::reader::{Problem, Section};
use crate::types::Weighting;

/// Algorithm on a linear model. A value contains the settings of the algorithm.
pub trait LinearAlgorithm: Copy + fmt::Debug + PartialEq {
    /// Name of the algorithm in configuration files.
    const NAME: &'static str;
    /// Description of the algorithm in one line, for lists of algorithms.
    const SUMMARY: &'static str;
    /// Whether the model is a low-rank adapter, whose two factors are both shared.
    const IS_ADAPTER: bool = false;
    /// Whether devices and server exchange rounds.
    const IS_FEDERATED: bool = true;
    /// Whether devices take gradient steps of size `step_size`. If so, that key is required.
    const TAKES_STEPS: bool = true;
    /// Ratio of the step size that devices use to the key `step_size`.
    const STEP_FACTOR: f64 = 1.0;
    /// Default value of the key `head`: `"least-squares"` or `"gradient"`.
    const DEFAULT_HEAD: &'static str = "least-squares";
    /// Whether devices can compute updates in 16-bit integers.
    const SUPPORTS_I16: bool = false;
    /// Whether devices fit their final heads under a prior of the algorithm, so that no ridge is chosen.
    const HAS_PRIOR: bool = false;
    /// Noise that devices add under `[privacy]`.
    const NOISE: Noise = Noise::Unsupported;

    /// Reads the algorithm's own keys from `[algorithm]`.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(section: &Section<'_>) -> Result<Self, Problem>;

    /// Passes each key of this algorithm alone, with its value, to `set`, as a campaign stores them.
    fn write(&self, _settings: &LinearSettings, _set: &mut dyn FnMut(&str, Value)) {}

    /// Number of rounds, if it follows from the algorithm's own keys.
    fn rounds(&self) -> Option<u64> {
        None
    }

    /// Checks the settings common to all algorithms on linear models.
    ///
    /// # Errors
    /// Returns the invalid key, and a sentence with the value found and the values allowed.
    fn check(&self, _settings: &LinearSettings) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Contents of an upload, which determine the allowed aggregation rules.
    fn uploads(&self, settings: &LinearSettings) -> Uploads;

    /// Second tensor of a round, if there is one.
    fn second_tensor(&self) -> Option<SecondTensor> {
        None
    }

    /// Creates the server side of the algorithm.
    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm>;
}

/// Inputs of the server side of an algorithm.
#[derive(Clone, Debug)]
pub struct LinearStart<'a> {
    /// Settings common to the algorithms.
    pub settings: &'a LinearSettings,
    /// Rule that combines the updates.
    pub rule: Rule,
    /// Initial representation, d x k, with orthonormal columns.
    pub basis: Matrix,
    /// Number of outputs, C.
    pub outputs: usize,
    /// Number of the fleet's first device.
    pub first_device: u64,
}

/// Contents of a device's upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uploads {
    /// Nothing: the algorithm has no rounds.
    Nothing,
    /// Gradients of the representation.
    Gradients,
    /// Representations or bases, of which only the span matters.
    Bases,
    /// Other vectors, with the name used for them in error messages.
    Vectors(&'static str),
}

/// Second tensor of a round, next to the representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondTensor {
    /// Matrix of the shape of the head, k x C.
    Head,
    /// Matrix of the shape of the representation, d x k.
    Representation,
}

/// Noise that devices add under `[privacy]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// No noise: the algorithm is rejected under `[privacy]`.
    Unsupported,
    /// Noise on clipped gradients, in f32 only.
    Gradients,
    /// Noise on products with the samples' Gram matrix.
    Products,
}

/// Settings common to the algorithms on linear models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearSettings {
    /// Step size of the representation.
    pub step_size: f64,
    /// Head solver in training rounds.
    pub head: HeadSolve,
    /// Step size of a shared head.
    pub head_step_size: f64,
    /// Local steps of FedAvg.
    pub local_steps: u16,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Upload of FedRep's devices.
    pub send: Upload,
    /// Encoding of uploads.
    pub upload: Encoding,
    /// Encoding of downloads.
    pub download: Encoding,
}

impl LinearSettings {
    /// Step size of the representation, rounded to f32 as on the wire.
    #[must_use]
    pub fn narrow_step_size(&self) -> f32 {
        self.scaled_step_size(1.0)
    }

    /// Step size of the representation times `factor`, rounded to f32 as on the wire.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    pub fn scaled_step_size(&self, factor: f64) -> f32 {
        (factor * self.step_size) as f32
    }

    /// Step size of a shared head, rounded to f32 as on the wire.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
    pub fn narrow_head_step_size(&self) -> f32 {
        self.head_step_size as f32
    }
}
