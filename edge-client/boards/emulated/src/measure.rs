//! Measurement of a FedRep update on this core. The output is a line of JSON for the well-conditioned
//! problem, one for the ill-conditioned problem, and in f32 one for the ridge of least leave-one-out error.
//! In f32 the two problems use different solvers of the head.
//!
//! * `instructions`: the update, from samples in flash to head and gradient factors.
//! * `verify`: the check of a received representation.
//! * `emit`: the computation of the dense gradient that is sent.
//! * `stack`: the stack that the update uses below its caller, in bytes.
//! * `singly`: the update from a source that returns one sample at a time; `gathered`: the same with memory in which
//!   single samples are collected.
//! * `predict`: one prediction.
//! * `stretch`: the most instructions of all three without a pause, see [`stretch`].
//!
//! Instruction counts need QEMU's `-icount shift=0`, which makes them reproducible.
//!
//! If the command line has the words `problem=well` (or `ill`, or `left`) and `times=N`, the update runs N
//! times and nothing is measured. An execution log of two runs minus one of a single run is the log of one
//! update.

use core::hint::black_box;

use fedspan_client::memory::Gathering;
use fedspan_client::pace::Paced;
use fedspan_client::{Linear, Memory, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Numeric};
use semihosting::println;

use crate::board::{Board, Meter};
use crate::problem::Problem;
use crate::shape::{C, D, K, M, REPEATS};
use crate::update::{EXACT, LEFT_OUT, PassCounter, ROUND, open, outcome, upload};
use crate::{stack, stretch};

static WELL: Problem<D, M, C> = Problem::well_conditioned();
static ILL: Problem<D, M, C> = Problem::ill_conditioned();

/// A problem and a method for its head.
type Measurement = (&'static Problem<D, M, C>, HeadSolve);

/// All measurements. In fixed point the last one would equal the first, and is left out.
const MEASUREMENTS: [Measurement; 3] = [(&WELL, EXACT), (&ILL, EXACT), (&WELL, LEFT_OUT)];

/// Measures all problems and prints the results, or runs the update that the command line requests.
///
/// # Errors
/// The client's reason for declining the round.
pub fn update<B: Board + Meter, A: Memory>(board: &B, memory: &mut A) -> Result<(), DeclineReason> {
    let client = &mut Linear::new(&mut *memory);
    if let Some(((problem, head), times)) = requested_measurement() {
        open(client, head)?;
        let mut source = PassCounter::new(problem, head);
        return (0..times).try_for_each(|_| client.run(ROUND, &mut source).map(drop));
    }
    let measurements = if client.capabilities().numeric == Numeric::F32 { 3 } else { 2 };
    for requested in MEASUREMENTS.into_iter().take(measurements) {
        measure_one(board, memory, requested)?;
    }
    Ok(())
}

/// Returns the requested problem and number of runs, if given on the command line.
fn requested_measurement() -> Option<(Measurement, u32)> {
    let [well, ill, left_out] = MEASUREMENTS;
    let requested = option_value("problem", |problem| match problem {
        "well" => Some(well),
        "ill" => Some(ill),
        "left" => Some(left_out),
        _ => None,
    })?;
    Some((requested, requested_times()?))
}

/// Returns the value of the word `key=value` on the command line, parsed by `parse`.
pub(crate) fn option_value<R>(key: &str, parse: impl FnOnce(&str) -> Option<R>) -> Option<R> {
    let arguments = semihosting::experimental::env::args::<256>().ok()?;
    let mut values =
        (&arguments).into_iter().filter_map(|word| word.ok()?.strip_prefix(key)?.strip_prefix('='));
    parse(values.next()?)
}

/// Returns the number of runs, if given on the command line.
pub(crate) fn requested_times() -> Option<u32> {
    option_value("times", |times| times.parse().ok())
}

/// Measures one problem and prints a line of JSON.
fn measure_one<B: Board + Meter, A: Memory>(
    board: &B,
    memory: &mut A,
    (problem, head): Measurement,
) -> Result<(), DeclineReason> {
    let client = &mut Linear::new(&mut *memory);
    open(client, head)?;
    let mut source = PassCounter::new(problem, head);
    let mut result = Ok(());
    let stack = stack::peak(&mut || result = client.run(ROUND, &mut source).map(drop));
    result?;
    let outcome = outcome(client, &source);

    let empty = count_instructions(board, || black_box(ROUND));
    let update = count_instructions(board, || client.run(black_box(ROUND), &mut source)) - empty;
    let verify = count_instructions(board, || client.verify()) - empty;
    let emit = count_instructions(board, || {
        upload(client, &mut |values| {
            black_box(values);
        })
    }) - empty;

    let x = problem.x.first().map_or(&[][..], |x| x);
    let mut prediction = [0.0; C];
    let predict = count_instructions(board, || client.predict(black_box(x), &mut prediction)) - empty;
    let single = &mut PassCounter::new(problem, head).singly();
    let singly = count_instructions(board, || client.run(black_box(ROUND), single)) - empty;
    let gathered = match client.capabilities().numeric {
        Numeric::F32 => count_gathered(board, memory, head, single, empty)?,
        // Fixed point takes one sample at a time in any case.
        _ => singly,
    };

    let (result, stretch) = stretch::longest(board, |pacer, measured| {
        let client = &mut Linear::new(Paced::new(memory, pacer));
        open(client, head)?;
        let mut result = Ok(());
        measured(&mut || {
            result = client.verify().and_then(|()| client.run(ROUND, &mut source).map(drop));
            upload(client, &mut |values| {
                black_box(values);
            });
        });
        result
    });
    result?;

    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"d\":{D},\"k\":{K},\"m\":{M},\"instructions\":{update},\
         \"verify\":{verify},\"emit\":{emit},\"singly\":{singly},\"gathered\":{gathered},\"predict\":{predict},\"stretch\":{stretch},\"stack\":{stack},\"workspace\":{},{outcome}}}",
        B::NAME,
        B::CORE,
        size_of::<A>(),
    );
    Ok(())
}

/// Returns the instructions of an update whose single samples are collected. The memory for them is on the stack.
#[inline(never)]
fn count_gathered<B: Board + Meter, A: Memory>(
    board: &B,
    memory: &mut A,
    head: HeadSolve,
    source: &mut PassCounter<'_>,
    empty: u64,
) -> Result<u64, DeclineReason> {
    let client = &mut Linear::new(Gathering::<_, D>::new(memory));
    open(client, head)?;
    Ok(count_instructions(board, || client.run(black_box(ROUND), source)) - empty)
}

/// Returns the mean number of instructions of [`REPEATS`] calls of `work`.
#[inline(never)]
pub(crate) fn count_instructions<M: Meter, R>(meter: &M, work: impl FnMut() -> R) -> u64 {
    count_times(meter, REPEATS, work)
}

/// Returns the mean number of instructions of `times` calls of `work`.
#[inline(always)]
pub(crate) fn count_times<M: Meter, R>(meter: &M, times: u32, mut work: impl FnMut() -> R) -> u64 {
    let ticks = count_ticks(meter, || {
        for _ in 0..times {
            black_box(work());
        }
    });
    to_instructions::<M>(ticks) / u64::from(times)
}

/// Returns the ticks of `work`, modulo the range of the counter.
#[inline(always)]
pub(crate) fn count_ticks<M: Meter>(meter: &M, work: impl FnOnce()) -> u32 {
    let start = meter.ticks();
    work();
    meter.ticks().wrapping_sub(start) & M::MASK
}

/// Returns the instructions of a number of ticks.
pub(crate) fn to_instructions<M: Meter>(ticks: u32) -> u64 {
    let (instructions, per) = M::INSTRUCTIONS_PER_TICK;
    u64::from(ticks) * instructions / per
}
