//! Configuration files: the sections that servers and scenarios share, and the construction of an engine from
//! them. Re-exports the reader with its error messages.

mod aggregation;
mod algorithm;
mod algorithm_names;
mod build;
mod frames;
mod linear_or_network;
mod model;
mod network;
mod privacy;
mod scale;
mod stop;

pub use crate::reader::{
    GivenKeys, Problem, SHOWN_MAX, Section, SettingValue, Source, Values, nearest, read_file, shortened,
};
pub use aggregation::{check_aggregation, check_private_rule, read_aggregation, read_bounds, rule_advice};
pub use algorithm::{
    AlgorithmSection, ENCODINGS, MeasuredSteps, Method, NUMERICS, SENDS, WEIGHTINGS, read_algorithm,
};
pub use algorithm_names::{TUNED, names_for_model, needs_network};
pub use build::{Shape, build_custom_engine, build_engine, network_parameters, network_shape};
pub use frames::check_frames;
pub use linear_or_network::read_linear_or_network;
pub use model::{Init, ModelSection, read_model};
pub use network::{FrontModel, NetworkModel, NetworkSection};
pub use privacy::{PrivacySection, check_private_algorithm, read_privacy, read_privacy_requirement};
pub use scale::{check_scale, check_scaled_tensors, read_scale};
pub use stop::{StopSection, check_change, check_stop_of_prior, read_server_stop, read_stop};
