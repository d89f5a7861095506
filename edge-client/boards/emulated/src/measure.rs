//! What one FedRep update costs on this core: one line of JSON for each of two problems:
//! in f32 one for each way to the head, and a third with the ridge of least leave-one-out error.
//!
//! `instructions` is the update itself, from samples in flash to head and gradient factors; `verify` the check
//! of a received representation, `emit` the dense gradient that is sent. Counts need `-icount shift=0`, with
//! which they are the same in every run. `stack` is what the update takes beyond its caller.
//!
//! With the words `problem=well` (or `ill`, or `left`) and `times=N` the update runs N times and nothing is measured: two logs of
//! what has been executed, once and twice, differ by one update.

use core::hint::black_box;

use fedspan_client::{Linear, Memory, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Numeric};
use semihosting::println;

use crate::board::{Board, Meter};
use crate::fault;
use crate::problem::Problem;
use crate::shape::{D, K, M, REPEATS};
use crate::stack;
use crate::update::{Counted, EXACT, LEFT_OUT, ROUND, open, outcome};

static WELL: Problem<D, M> = Problem::well_conditioned();
static ILL: Problem<D, M> = Problem::ill_conditioned();

/// A problem, and the head that is asked for.
type Asked = (&'static Problem<D, M>, HeadSolve);

/// In fixed point the last one is no other than the first.
const ALL: [Asked; 3] = [(&WELL, EXACT), (&ILL, EXACT), (&WELL, LEFT_OUT)];

/// Measures all ways and prints them.
///
/// # Errors
/// The reason for which the client declined the round.
pub fn update<B: Board + Meter, A: Memory>(
    board: &B,
    client: &mut Linear<A>,
    upload: &mut [f32; D * K],
) -> Result<(), DeclineReason> {
    if let Some(((problem, head), times)) = asked() {
        open(client, head)?;
        let mut source = Counted::new(problem, head);
        return (0..times).try_for_each(|_| client.run(ROUND, &mut source).map(drop));
    }
    let count = if client.capabilities().numeric == Numeric::F32 { 3 } else { 2 };
    for asked in ALL.into_iter().take(count) {
        one(board, client, upload, asked)?;
    }
    Ok(())
}

/// Which problem to run how often, if the command line says so.
fn asked() -> Option<(Asked, u32)> {
    let [well, ill, left] = ALL;
    let asked = word("problem", |problem| match problem {
        "well" => Some(well),
        "ill" => Some(ill),
        "left" => Some(left),
        _ => None,
    })?;
    Some((asked, times()?))
}

/// What `read` makes of a word of the command line.
pub(crate) fn word<R>(key: &str, read: impl FnOnce(&str) -> Option<R>) -> Option<R> {
    let words = semihosting::experimental::env::args::<256>().ok()?;
    let mut found = (&words).into_iter().filter_map(|word| word.ok()?.strip_prefix(key)?.strip_prefix('='));
    read(found.next()?)
}

/// How often, if the command line says so.
pub(crate) fn times() -> Option<u32> {
    word("times", |times| times.parse().ok())
}

fn one<B: Board + Meter, A: Memory>(
    board: &B,
    client: &mut Linear<A>,
    upload: &mut [f32; D * K],
    (problem, head): Asked,
) -> Result<(), DeclineReason> {
    open(client, head)?;
    let mut source = Counted::new(problem, head);
    let mut ended = Ok(());
    let stack = stack::peak(B::stack_limit(), &mut || ended = client.run(ROUND, &mut source).map(drop));
    ended?;
    let outcome = outcome(client, &source, upload);

    let empty = count(board, || black_box(ROUND));
    let update = count(board, || client.run(black_box(ROUND), &mut source)) - empty;
    let verify = count(board, || client.verify()) - empty;
    let emit = count(board, || client.emit(0, 0, black_box(upload))) - empty;

    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"d\":{D},\"k\":{K},\"m\":{M},\"instructions\":{update},\
         \"verify\":{verify},\"emit\":{emit},\"stack\":{stack},\"workspace\":{},{outcome}}}",
        B::NAME,
        B::CORE,
        size_of::<A>(),
    );
    Ok(())
}

/// Instructions of one call, the mean of [`REPEATS`].
#[inline(never)]
pub(crate) fn count<M: Meter, R>(meter: &M, work: impl FnMut() -> R) -> u64 {
    count_times(meter, REPEATS, work)
}

/// The same of so many calls.
#[inline(always)]
pub(crate) fn count_times<M: Meter, R>(meter: &M, times: u32, mut work: impl FnMut() -> R) -> u64 {
    let began = meter.ticks();
    for _ in 0..times {
        black_box(work());
    }
    let ticks = u64::from(meter.ticks().wrapping_sub(began) & M::MASK);
    let (instructions, per) = M::INSTRUCTIONS_PER_TICK;
    ticks * instructions / (per * u64::from(times))
}

/// Says why nothing could be measured, and exits.
pub fn failed(reason: DeclineReason) -> ! {
    fault::exit(fault::WRONG, &format_args!("the update was declined: {reason:?}"))
}
