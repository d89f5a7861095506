//! What the emulated boards share. A board's own crate holds its memory map, its clock and its serial line;
//! everything else is here, so that all boards run the same firmware.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`board`] | what a board has to provide |
//! | [`settings`] | the words of the semihosting command line |
//! | [`link`], `pipes`, [`ring`] | the byte stream to the server: a serial line, or two named pipes |
//! | [`nor`], `flash`, `storage`, `kept` | the record in a flash that is a file of the host; what RAM keeps over a reset |
//! | `identity` | who the device is: its provisioning record, a file of the host |
//! | `campaign`, `client` | takes part in a campaign, then reports what the own model scores |
//! | [`problem`], [`shape`], [`update`], `measure`, `stack` | what one update costs: instructions, stack, bits |
//! | `iteration`, `power` | the same of one FedPower iteration, without noise and with it (feature `power`) |
//! | `descent`, `network` | the same of training networks (feature `network` and others) |
//! | `sealing` | what encryption costs: instructions, stack |
//! | [`lengths`] | that products of integers are right at any length |
//! | [`once`] | static memory that is handed out once |
//! | `register`, `systick`, `fault` | the few lines that touch hardware |
//!
//! What needs an emulator is only there on bare metal; the rest is tested on the host with `cargo test`.

#![cfg_attr(target_os = "none", no_std)]

pub mod board;
#[cfg(feature = "network")]
pub mod descent;
#[cfg(feature = "power")]
pub mod iteration;
pub mod lengths;
pub mod link;
pub mod nor;
pub mod once;
pub mod problem;
pub mod ring;
pub mod settings;
pub mod shape;
pub mod update;

#[cfg(target_os = "none")]
pub mod campaign;
#[cfg(target_os = "none")]
pub mod client;
#[cfg(target_os = "none")]
pub mod fault;
#[cfg(target_os = "none")]
pub mod flash;
#[cfg(target_os = "none")]
pub mod identity;
#[cfg(target_os = "none")]
pub mod kept;
#[cfg(target_os = "none")]
pub mod measure;
#[cfg(all(target_os = "none", feature = "network"))]
pub mod network;
#[cfg(target_os = "none")]
pub mod pipes;
#[cfg(all(target_os = "none", feature = "power"))]
pub mod power;
#[cfg(target_os = "none")]
pub mod register;
#[cfg(target_os = "none")]
pub mod sealing;
#[cfg(target_os = "none")]
pub mod stack;
#[cfg(target_os = "none")]
pub mod storage;
#[cfg(all(target_os = "none", target_arch = "arm"))]
pub mod systick;
