//! Measurement of the training of a network on this core. The output is one line of JSON.
//!
//! * `instructions`: instructions per sample in an epoch over all trained layers: forward and backward pass,
//!   and a sample's share of the parameter step and of drawing the order of samples.
//! * `last`: the same for an epoch of the last layer alone, for which the earlier layers only run forward.
//! * `stack`: the stack that a round uses below its caller, in bytes.
//! * `stretch`: the most instructions of a round without a pause, see [`stretch`].
//! * `workspace`: the memory of the model, in bytes.
//!
//! Instruction counts need QEMU's `-icount shift=0`. If the command line has the words `problem=sgd` and
//! `times=N`, a round of N epochs runs and nothing is measured, see [`crate::measure`].

use core::hint::black_box;

use fedspan_client::pace::Paced;
use fedspan_client::{Network, Task};
use fedspan_protocol::message::{DeclineReason, Task as Wire};
use semihosting::println;

use crate::board::{Board, Meter};
use crate::descent::{Chosen, D, M, Model, ROUND, open, rounds, samples};
use crate::measure::{count_ticks, requested_times, to_instructions};
use crate::problem::Problem;
use crate::{stack, stretch};

/// Memory of the model for which the program is built.
pub type Workspace = <Chosen as Model>::Memory;

static PROBLEM: Problem<D, M> = Problem::well_conditioned();

/// Measures the training of the model and prints the results, or runs the epochs that the command line
/// requests.
///
/// # Errors
/// The client's reason for declining a round.
pub fn network<B: Board + Meter>(board: &B, memory: &mut Workspace) -> Result<(), DeclineReason> {
    let client = &mut Network::new(&mut *memory, 5);
    let mut source = samples(&PROBLEM);
    if let Some(times) = requested_times() {
        open::<Chosen>(client, Chosen::whole(u16::try_from(times).unwrap_or(u16::MAX)))?;
        return client.run(ROUND, &mut source).map(drop);
    }
    let mut result = rounds::<Chosen>(client, &mut source);
    // The second run starts from the state after the first one; the stack depth does not depend on that
    // state.
    let outcome = result?;
    let stack = stack::peak(&mut || result = rounds::<Chosen>(client, &mut source));
    result?;

    let mut round = |task: Wire| {
        open::<Chosen>(client, task)?;
        let mut run_result = Ok(());
        let ticks = count_ticks(board, || {
            run_result = client.run(black_box(ROUND), &mut source).map(drop);
        });
        run_result.map(|()| ticks)
    };
    // The difference between two epochs and one excludes the fixed cost of a round. It is right if the counter wraps in one of
    // them, as long as an epoch is shorter than the counter's range.
    let mut epoch = |of: fn(u16) -> Wire| {
        let two_epochs = round(of(2))?;
        Ok(to_instructions::<B>(two_epochs.wrapping_sub(round(of(1))?) & B::MASK))
    };
    let instructions = epoch(Chosen::whole)?;
    let last = epoch(Chosen::last)?;
    let (result, stretch) = stretch::longest(board, |pacer, measured| {
        let client = &mut Network::new(Paced::new(memory, pacer), 5);
        Chosen::prepare(client);
        Chosen::rounds().into_iter().try_for_each(|task| {
            open::<Chosen>(client, task)?;
            let mut result = Ok(());
            measured(&mut || {
                result = client.verify().and_then(|()| client.run(ROUND, &mut source).map(drop));
            });
            result
        })
    });
    result?;
    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"model\":\"{}\",\"d\":{D},\"m\":{M},\"instructions\":{},\"last\":{},\
         \"stretch\":{stretch},\"stack\":{stack},\"workspace\":{},{outcome}}}",
        B::NAME,
        B::CORE,
        Chosen::NAME,
        instructions / M as u64,
        last / M as u64,
        size_of::<Workspace>(),
    );
    Ok(())
}
