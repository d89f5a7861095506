#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod byzantine;
pub mod demo;
pub mod dropout;
#[cfg(feature = "encoder")]
pub mod encoder;
pub mod grid;
pub mod power;
pub mod reproduce;
pub mod speedup;
pub mod survey;
pub mod theory;
