#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod connection_slots;
pub mod pending_pool;
pub mod per_owner;

pub use connection_slots::{ConnectionSlots, Slot, SlotError, SlotLimits};
pub use per_owner::network;
