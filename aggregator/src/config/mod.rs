//! Configuration files: the reader with its messages, the sections that all files share, and how they
//! become an engine.

mod aggregation;
mod build;
mod depth;
mod either;
mod file;
mod fingerprint;
mod fleet;
mod limits;
mod names;
mod network;
mod participation;
mod power;
mod privacy;
mod reader;
mod said;
mod scale;
mod sections;
mod security;
mod source;
mod stop;
mod words;

pub use aggregation::{advice, check_aggregation, read_aggregation, read_bounds};
pub use build::{Shape, build_engine, network_parameters, network_shape};
pub use either::read_either;
pub use file::read_file;
pub use fingerprint::{Mismatch, Resumed, difference};
pub use fleet::Fleet;
pub use limits::{Limits, RoundsSection};
pub use names::{ALGORITHMS, AlgorithmName};
pub use network::{FrontModel, NetworkModel, NetworkSection, check_schedule};
pub use participation::{ParticipationSection, read_participation};
pub use power::PowerSection;
pub use privacy::{PrivacySection, check_hidden, read_minimum, read_privacy};
pub use reader::Section;
pub use said::Said;
pub use scale::{check_scale, check_scaled_tensors};
pub use sections::{AlgorithmSection, Init, MeasuredSteps, ModelSection, read_algorithm, read_model};
pub use security::Security;
pub use source::{Problem, Source};
pub use stop::{StopSection, check_change, read_server_stop, read_stop};
pub use words::{nearest, shortened};
