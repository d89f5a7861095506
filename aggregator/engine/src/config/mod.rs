//! Configuration files: the reader with its error messages, the sections that servers and scenarios share,
//! and the engine built from them.

mod aggregation;
mod algorithm_name;
mod build;
mod linear_or_network;
mod network;
mod power;
mod privacy;
mod scale;
mod sections;
mod stop;

pub use crate::reader::{
    GivenKeys, Problem, SHOWN_MAX, Section, SettingValue, Source, Values, nearest, read_file, shortened,
};
pub use aggregation::{check_aggregation, read_aggregation, read_bounds, rule_advice};
pub use algorithm_name::{ALGORITHMS, AlgorithmName, TUNED};
pub use build::{Shape, build_custom_engine, build_engine, network_parameters, network_shape};
pub use linear_or_network::read_linear_or_network;
pub use network::{FrontModel, NetworkModel, NetworkSection};
pub use power::{PowerSection, ROWS};
pub use privacy::{PrivacySection, check_private_algorithm, read_privacy, read_privacy_requirement};
pub use scale::{check_scale, check_scaled_tensors, read_scale};
pub use sections::{
    AlgorithmSection, ENCODINGS, Init, MeasuredSteps, ModelSection, NUMERICS, SENDS, WEIGHTINGS,
    read_algorithm, read_model,
};
pub use stop::{StopSection, check_change, read_server_stop, read_stop};
