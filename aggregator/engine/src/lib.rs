#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod admission;
pub mod aggregate;
pub mod algorithm;
pub mod config;
mod custom;
mod device_id;
pub mod linalg;
pub mod participation;
pub mod privacy;
pub mod random;
pub mod reader;
mod rounds;
mod types;

pub use custom::{CustomError, CustomNames, CustomParts};
pub use participation::{Cohort, Participation};
pub use rounds::*;
pub use types::{DeviceId, Millis, Request, Tensor, Update, Weighting};
