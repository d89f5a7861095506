//! Main functions of the programs for emulated boards, generic over the board. Each board's `src/bin` has an
//! entry point per program, which calls one of these functions.
//!
//! The programs that measure need QEMU's `-icount shift=0`.

use fedspan_client::Workspace;
use fedspan_client::features::FEATURES;
use fedspan_client::memory::FixedWorkspace;
#[cfg(feature = "power")]
use fedspan_client::memory::PowerWorkspace;
use fedspan_protocol::message::DeclineReason;
use semihosting::process;

use crate::board::{Board, Meter};
#[cfg(feature = "network")]
use crate::network;
#[cfg(feature = "every-network")]
use crate::network_client::{self, ARENA};
use crate::once::Once;
#[cfg(feature = "power")]
use crate::power;
use crate::shape::{C, D, K};
use crate::{client, fault, lengths, measure, sealing, stack};

/// Number of windows whose features fit in RAM: a quarter of a megabyte.
const CACHED_WINDOWS: usize = 1024;

// Memory of the programs below. The linker drops each item from the programs that do not use it.
static CACHE: Once<[[f32; FEATURES]; CACHED_WINDOWS]> = Once::new([[0.0; FEATURES]; CACHED_WINDOWS]);
static MEMORY: Once<Workspace<D, K, C>> = Once::new(Workspace::new());
static FIXED_MEMORY: Once<FixedWorkspace<D, K, C>> = Once::new(FixedWorkspace::new());
#[cfg(feature = "power")]
static POWER: Once<PowerWorkspace<D, K>> = Once::new(PowerWorkspace::new());
#[cfg(feature = "network")]
static NETWORK: Once<network::Workspace> = Once::new(network::Workspace::new());
#[cfg(feature = "every-network")]
static NETWORK_ARENA: Once<[f32; ARENA / size_of::<f32>()]> = Once::new([0.0; ARENA / size_of::<f32>()]);

/// Program `null`: minimal firmware that links, starts and stops.
pub fn null() -> ! {
    process::exit(0)
}

/// Program `client`: client of a smartwatch wearer in a campaign, with the settings of [`crate::settings`].
pub fn client<B: Board>() -> ! {
    let stack = stack::paint();
    match (B::with_serial(), CACHE.take()) {
        (Some(board), Some(cache)) => client::run_with_recording(&board, stack, cache),
        _ => started_twice(),
    }
}

/// Program `client` of the board with the least memory: a client whose samples are a table in flash, with 20
/// features and a representation of width 2.
pub fn client_with_table<B: Board>() -> ! {
    let stack = stack::paint();
    match B::with_serial() {
        Some(board) => client::run_with_table(&board, stack),
        None => started_twice(),
    }
}

/// Program `prior_client`: as [`client`], with heads that have a prior which the fleet learns.
#[cfg(feature = "learned-prior")]
pub fn prior_client<B: Board>() -> ! {
    let stack = stack::paint();
    match (B::with_serial(), CACHE.take()) {
        (Some(board), Some(cache)) => crate::prior_client::run_with_recording(&board, stack, cache),
        _ => started_twice(),
    }
}

/// Program `prior_client` of the board with the least memory: as [`client_with_table`].
#[cfg(feature = "learned-prior")]
pub fn prior_client_with_table<B: Board>() -> ! {
    let stack = stack::paint();
    match B::with_serial() {
        Some(board) => crate::prior_client::run_with_table(&board, stack),
        None => started_twice(),
    }
}

/// Program `network_client`: client of a device whose network and samples are in flash.
#[cfg(feature = "every-network")]
pub fn network_client<B: Board>() -> ! {
    let stack = stack::paint();
    match (B::with_serial(), NETWORK_ARENA.take()) {
        (Some(board), Some(arena)) => network_client::run(&board, stack, arena),
        _ => started_twice(),
    }
}

/// Program `c_client`: a client in C with a table of samples, as in [`client_with_table`].
#[cfg(feature = "c")]
pub fn c_client<B: Board>() -> ! {
    let stack = stack::paint();
    match B::with_serial() {
        Some(board) => crate::c_client::run(board, stack),
        None => started_twice(),
    }
}

/// Program `update`: prints the cost of an update, see [`measure`].
pub fn update<B: Board + Meter>() -> ! {
    let (Some(board), Some(memory)) = (B::with_counter(), MEMORY.take()) else { started_twice() };
    exit_with_result(measure::update(&board, memory))
}

/// Program `update_i16`: checks the products of 16-bit integers, then prints the cost of an update in 16-bit
/// fixed point, see [`measure`].
pub fn update_i16<B: Board + Meter>() -> ! {
    let (Some(board), Some(memory)) = (B::with_counter(), FIXED_MEMORY.take()) else { started_twice() };
    if let Err(n) = lengths::check() {
        fault::exit(fault::WRONG, &format_args!("products of {n} integers are wrong"))
    }
    exit_with_result(measure::update(&board, memory))
}

/// Program `seal`: prints the cost of encryption, see [`sealing`].
pub fn seal<B: Board + Meter>() -> ! {
    let Some(board) = B::with_counter() else { started_twice() };
    sealing::sealing(&board);
    process::exit(0)
}

/// Program `power`: prints the cost of a FedPower iteration, see [`power`].
#[cfg(feature = "power")]
pub fn power<B: Board + Meter>() -> ! {
    let (Some(board), Some(memory)) = (B::with_counter(), POWER.take()) else { started_twice() };
    exit_with_result(power::power(&board, memory))
}

/// Program `network`: prints the cost of training a network, see [`network`].
#[cfg(feature = "network")]
pub fn network<B: Board + Meter>() -> ! {
    let (Some(board), Some(memory)) = (B::with_counter(), NETWORK.take()) else { started_twice() };
    exit_with_result(network::network(&board, memory))
}

/// Exits with code 0, or with the reason for which the client declined the measured update.
fn exit_with_result(measured: Result<(), DeclineReason>) -> ! {
    match measured {
        Ok(()) => process::exit(0),
        Err(reason) => fault::exit(fault::WRONG, &format_args!("the update was declined: {reason:?}")),
    }
}

fn started_twice() -> ! {
    fault::exit(fault::FAULT, &"started twice")
}
