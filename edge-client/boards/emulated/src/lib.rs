//! Firmware shared by the emulated boards. The crate of each board has its memory map, its UART and its
//! names; this crate has everything else, so that all boards run the same firmware.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`board`], [`serial`] | interface of a board and of its UART |
//! | `cortex`, `systick` | boards with a Cortex-M core |
//! | `programs` | main functions of the programs |
//! | [`settings`] | settings from the semihosting command line |
//! | [`link`], `pipes`, [`ring`] | byte stream to the server: a serial line, or two named pipes |
//! | [`nor`], `flash`, `storage`, `reset_count` | the record in a flash that is a host file; state in RAM that survives a reset |
//! | `identity` | identity of the device: its provisioning record, a host file |
//! | `campaign`, `client`, `report` | takes part in a campaign, then reports the score of the personal model |
//! | `network_client` | the same for networks, whose sizes are known at run time only (feature `every-network`) |
//! | `prior_client` | the same for heads with a prior that the fleet learns (feature `learned-prior`) |
//! | `c_client`, [`slots`] | the same for a program in C (feature `c`), and its storage |
//! | [`problem`], [`shape`], [`update`], `measure`, `stack` | cost of one update: instructions, stack, and its exact bits |
//! | `iteration`, `power` | the same for a FedPower iteration, without and with noise (feature `power`) |
//! | `descent`, `network` | the same for the training of networks (feature `network` and others) |
//! | `sealing` | cost of encryption: instructions, stack |
//! | [`lengths`] | check of integer products of every length |
//! | [`once`] | static memory that is handed out once |
//! | `register`, `fault` | registers of peripherals; exits, also of a panic |
//!
//! Modules that need an emulator exist only on bare metal; the others are tested on the host with `cargo test`.

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
pub mod serial;
pub mod settings;
pub mod shape;
pub mod slots;
pub mod update;

#[cfg(all(target_os = "none", feature = "c"))]
mod c_client;
#[cfg(target_os = "none")]
pub mod campaign;
#[cfg(target_os = "none")]
pub mod client;
#[cfg(all(target_os = "none", target_arch = "arm"))]
pub mod cortex;
#[cfg(target_os = "none")]
pub mod fault;
#[cfg(target_os = "none")]
pub mod flash;
#[cfg(target_os = "none")]
pub mod identity;
#[cfg(target_os = "none")]
pub mod measure;
#[cfg(all(target_os = "none", feature = "network"))]
pub mod network;
#[cfg(all(target_os = "none", feature = "every-network"))]
pub mod network_client;
#[cfg(target_os = "none")]
pub mod pipes;
#[cfg(all(target_os = "none", feature = "power"))]
pub mod power;
#[cfg(all(target_os = "none", feature = "learned-prior"))]
mod prior_client;
#[cfg(target_os = "none")]
pub mod programs;
#[cfg(target_os = "none")]
pub mod register;
#[cfg(target_os = "none")]
pub mod report;
#[cfg(target_os = "none")]
pub mod reset_count;
#[cfg(target_os = "none")]
pub mod sealing;
#[cfg(target_os = "none")]
pub mod stack;
#[cfg(target_os = "none")]
pub mod storage;
#[cfg(target_os = "none")]
pub mod stretch;
#[cfg(all(target_os = "none", target_arch = "arm"))]
pub mod systick;
