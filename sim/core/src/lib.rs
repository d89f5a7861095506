#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod available_memory;
pub mod data;
pub mod device;
pub mod emulate;
pub mod energy;
pub mod evaluate;
pub mod figures;
pub mod fleet;
mod in_order;
pub mod least_squares;
pub mod live;
pub mod network;
pub mod noise;
pub mod parallel;
pub mod progress;
pub mod propose;
pub mod radio;
pub mod report;
pub mod run;
pub mod scenario;
pub mod udp_link;
