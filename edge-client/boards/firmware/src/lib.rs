//! What the boards of real hardware share. A board's own crate holds its memory map, its serial line, its
//! flash, its unique number and its source of entropy; everything else is here.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`sensor`] | the sensor: synthetic, **the file to replace by one's own**; shape of the model |
//! | [`identity`] | who the device is: the provisioning record in flash, with its key |
//! | [`client`] | takes part in campaigns over a line, connection after connection |
//! | [`line`](mod@line) | a serial line with noise on it |
//! | [`unique`] | a device number from a chip's unique number, a seed from raw noise |
//!
//! Nothing here knows a chip; it is tested on the host with `cargo test`.

#![cfg_attr(not(test), no_std)]

pub mod client;
pub mod identity;
pub mod line;
pub mod sensor;
pub mod unique;
