//! Tests of the measured update on the host: each problem is solved by its intended solver, in every shape.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::memory::FixedWorkspace;
use fedspan_client::{Linear, Memory, Task, Workspace};
use fedspan_emulated::problem::Problem;
use fedspan_emulated::update::{EXACT, LEFT_OUT, Outcome, PassCounter, ROUND, open, outcome};
use fedspan_protocol::message::HeadSolve;

/// Runs an update in this memory and returns its results.
fn run_update<const D: usize, const K: usize, const M: usize, const C: usize>(
    memory: impl Memory,
    problem: &Problem<D, M, C>,
    head: HeadSolve,
) -> Outcome {
    let mut client = Linear::new(memory);
    open(&mut client, head).unwrap();
    let mut source = PassCounter::new(problem, head);
    client.run(ROUND, &mut source).unwrap();
    let outcome = outcome(&client, &source);
    println!("\"d\":{D},\"k\":{K},\"m\":{M},{outcome}");
    outcome
}

/// Checks the solver names of all problems of this shape, in f32 and in fixed point.
fn check_solver_names<const D: usize, const K: usize, const M: usize, const C: usize>() {
    let float = || Workspace::<D, K, C>::new();
    assert_eq!(run_update::<D, K, M, C>(float(), &Problem::well_conditioned(), EXACT).path, "normal");
    assert_eq!(run_update::<D, K, M, C>(float(), &Problem::ill_conditioned(), EXACT).path, "triangular");
    assert_eq!(run_update::<D, K, M, C>(float(), &Problem::well_conditioned(), LEFT_OUT).path, "left-out");
    let fixed = || FixedWorkspace::<D, K, C>::new();
    assert_eq!(run_update::<D, K, M, C>(fixed(), &Problem::well_conditioned(), EXACT).path, "i16");
    assert_eq!(run_update::<D, K, M, C>(fixed(), &Problem::ill_conditioned(), EXACT).path, "i16-ill");
}

#[test]
fn each_problem_takes_its_way_to_the_head() {
    check_solver_names::<20, 2, 20, 1>();
    check_solver_names::<57, 8, 35, 7>();
    check_solver_names::<64, 4, 32, 1>();
    check_solver_names::<128, 8, 32, 1>();
}

#[test]
fn products_of_all_lengths_are_right() {
    assert_eq!(fedspan_emulated::lengths::check(), Ok(()));
}
