//! What it costs to train a network on this core: one line of JSON.
//!
//! `instructions` are those of a sample in an epoch of all layers: forward, backward, and its part of the step and of
//! drawing the order. `head` is the same in an epoch of the head alone, whose body is computed again. `stack` is what a round
//! takes beyond its caller, `workspace` the model's memory. Counts need `-icount shift=0`.
//!
//! With the words `problem=sgd` and `times=N` it runs N epochs and nothing is measured, see [`crate::measure`].

use core::hint::black_box;

use fedspan_client::{Network, Task};
use fedspan_protocol::message::{DeclineReason, Task as Wire, Trained};
use semihosting::println;

use crate::board::{Board, Meter};
use crate::descent::{D, H, M, ROUND, Workspace, open, rounds, samples, task};
use crate::measure::{count_times, times};
use crate::problem::Problem;
use crate::stack;

static PROBLEM: Problem<D, M> = Problem::well_conditioned();

/// Measures and prints.
///
/// # Errors
/// The reason for which the client declined a round.
pub fn network<B: Board + Meter>(board: &B, memory: &mut Workspace) -> Result<(), DeclineReason> {
    let client = &mut Network::new(memory, 5);
    let mut source = samples(&PROBLEM);
    if let Some(times) = times() {
        open(client, task(0, u16::try_from(times).unwrap_or(u16::MAX), Trained::All))?;
        return client.run(ROUND, &mut source).map(drop);
    }
    let mut ended = rounds(client, &mut source);
    // Again, from where that has come to: how deep it reaches does not depend on it.
    let outcome = ended?;
    let stack = stack::peak(B::stack_limit(), &mut || ended = rounds(client, &mut source));
    ended?;

    // An epoch more: what a round does once falls out.
    let mut round = |task: Wire| {
        open(client, task)?;
        let mut ran = Ok(());
        let instructions = count_times(board, 1, || {
            ran = client.run(black_box(ROUND), &mut source).map(drop);
        });
        ran.map(|()| instructions)
    };
    let instructions = round(task(0, 2, Trained::All))? - round(task(0, 1, Trained::All))?;
    let head = round(task(2, 0, Trained::All))? - round(task(1, 0, Trained::All))?;
    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"d\":{D},\"k\":{H},\"m\":{M},\"instructions\":{},\"head\":{},\
         \"stack\":{stack},\"workspace\":{},{outcome}}}",
        B::NAME,
        B::CORE,
        instructions / M as u64,
        head / M as u64,
        size_of::<Workspace>(),
    );
    Ok(())
}
