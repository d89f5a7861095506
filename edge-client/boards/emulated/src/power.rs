//! Measurement of a FedPower iteration on this core. The output is one line of JSON without noise and one
//! with noise.
//!
//! * `instructions`: the iteration, from samples in flash to the product.
//! * `verify`: the check of a received basis.
//! * `noise`, with noise only: the part of `instructions` that draws all d x k numbers.
//! * `seed`, with noise only: the part of `instructions` that draws their seed from an entropy source. The
//!   rest is the product in integers.
//! * `stretch`: the most instructions of the check and the iteration without a pause, see [`stretch`].
//! * `stack`: the stack that the iteration uses below its caller, in bytes.
//!
//! Instruction counts need QEMU's `-icount shift=0`. If the command line has the words `problem=plain` (or
//! `private`) and `times=N`, the iteration runs N times and nothing is measured, see [`crate::measure`].

use core::fmt::Display;
use core::hint::black_box;

use fedspan_client::memory::PowerWorkspace;
use fedspan_client::pace::Paced;
use fedspan_client::privacy::{Gaussian, noise};
use fedspan_client::{Linear, Mechanism, Memory, Release, Task};
use fedspan_protocol::message::DeclineReason;
use semihosting::println;

use crate::board::{Board, Meter};
use crate::iteration::{self, KnownSeed, RELEASE, ROUND, open, outcome, run, samples, seed_and_variance};
use crate::measure::{count_instructions, option_value, requested_times};
use crate::problem::Problem;
use crate::shape::{D, K, M};
use crate::{stack, stretch};

static PROBLEM: Problem<D, M> = Problem::well_conditioned();

/// Measures the iteration without and with noise and prints the results, or runs the one that the command
/// line requests.
///
/// # Errors
/// The client's reason for declining the round.
pub fn power<B: Board + Meter, A: Memory>(board: &B, memory: &mut A) -> Result<(), DeclineReason> {
    let mechanism = iteration::mechanism(M as u32)?;
    match option_value("problem", |problem| Some(problem == "plain")).zip(requested_times()) {
        Some((true, times)) => return run_times(&mut Linear::new(memory), times),
        Some((false, times)) => return run_times(&mut private_client(memory, mechanism)?, times),
        None => {}
    }
    let (stretched, stretch) = stretch::longest(board, |pacer, measured| {
        check_and_run(&mut Linear::new(Paced::new(&mut *memory, pacer)), measured)
    });
    stretched?;
    measure_one(board, &mut Linear::new(&mut *memory), &format_args!("\"stretch\":{stretch},"))?;
    let (seed, variance) = seed_and_variance(&mechanism, D as u16, K as u16)?;
    let add_noise = |sum: i64, coordinate| sum ^ noise(&seed, coordinate, &variance);
    let noise_instructions = count_instructions(board, || (0..(D * K) as u64).fold(0, add_noise));
    // The seed is measured with a separate source, so that the first source stays in the same state as on the
    // host.
    let mut seed_source = iteration::mechanism(M as u32)?;
    let seed_instructions = count_instructions(board, || seed_source.prepare(&Release::default()).is_ok());
    let paced_mechanism = iteration::mechanism(M as u32)?;
    let (stretched, stretch) = stretch::longest(board, |pacer, measured| {
        check_and_run(&mut private_client(Paced::new(&mut *memory, pacer), paced_mechanism)?, measured)
    });
    stretched?;
    let extra_members =
        format_args!("\"noise\":{noise_instructions},\"seed\":{seed_instructions},\"stretch\":{stretch},");
    measure_one(board, &mut private_client(memory, mechanism)?, &extra_members)
}

/// Opens a round and draws the seed, then passes the check of the basis and the iteration to `measured`. Between the draws of
/// its samples, an entropy source can pause by itself.
fn check_and_run<A: Memory, P: Mechanism>(
    client: &mut Linear<A, P>,
    measured: &dyn Fn(&mut dyn FnMut()),
) -> Result<(), DeclineReason> {
    open(client)?;
    client.prepare(&RELEASE)?;
    let mut result = Ok(());
    measured(&mut || {
        result = client.verify().and_then(|()| client.run(ROUND, &mut samples(&PROBLEM)).map(drop));
    });
    result
}

/// Returns a client with noise.
fn private_client<A: Memory>(
    memory: A,
    mechanism: Gaussian<KnownSeed>,
) -> Result<Linear<A, Gaussian<KnownSeed>>, DeclineReason> {
    Linear::private(memory, mechanism).map_err(|_| DeclineReason::Parameter)
}

/// Runs the iteration `times` times without measuring it.
fn run_times<A: Memory, P: Mechanism>(client: &mut Linear<A, P>, times: u32) -> Result<(), DeclineReason> {
    open(client)?;
    let mut source = samples(&PROBLEM);
    (0..times).try_for_each(|_| run(client, &mut source))
}

/// Measures one client and prints a line of JSON. `extra_members` is a list of additional members.
#[inline(never)]
fn measure_one<B: Board + Meter, A: Memory, P: Mechanism>(
    board: &B,
    client: &mut Linear<A, P>,
    extra_members: &dyn Display,
) -> Result<(), DeclineReason> {
    open(client)?;
    let mut source = samples(&PROBLEM);
    let mut result = Ok(());
    let stack = stack::peak(&mut || result = run(client, &mut source));
    result?;
    let outcome = outcome(client);

    let empty = count_instructions(board, || black_box(ROUND));
    let instructions = count_instructions(board, || run(client, black_box(&mut source))) - empty;
    let verify = count_instructions(board, || client.verify()) - empty;

    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"d\":{D},\"k\":{K},\"m\":{M},\
         \"instructions\":{instructions},\"verify\":{verify},{extra_members}\"stack\":{stack},\"client\":{},{outcome}}}",
        B::NAME,
        B::CORE,
        size_of::<PowerWorkspace<D, K>>() + size_of::<Linear<A, P>>(),
    );
    Ok(())
}
