#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod connection_slots;
pub mod descriptors;
pub mod pending_pool;
pub mod per_owner;

pub use connection_slots::{ConnectionSlots, Slot, SlotError, SlotLimits};
pub use descriptors::{DescriptorShortage, reserve_descriptors, spare_descriptors};
pub use per_owner::network;
