//! The measured update on the host: both problems take the way they are made for, in every shape.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::{Linear, Task, Workspace};
use fedspan_emulated::problem::Problem;
use fedspan_emulated::update::{Counted, Outcome, ROUND, open, outcome};

fn update<const D: usize, const K: usize, const M: usize>(problem: &Problem<D, M>) -> Outcome {
    let mut client = Linear::new(Workspace::<D, K>::new());
    open(&mut client).unwrap();
    let mut source = Counted::new(problem);
    client.run(ROUND, &mut source).unwrap();
    let outcome = outcome(&client, &source, &mut vec![0.0; D * K]);
    println!("\"d\":{D},\"k\":{K},\"m\":{M},{outcome}");
    outcome
}

fn both_ways<const D: usize, const K: usize, const M: usize>() {
    assert_eq!(update::<D, K, M>(&Problem::well_conditioned()).path, "normal");
    assert_eq!(update::<D, K, M>(&Problem::ill_conditioned()).path, "triangular");
}

#[test]
fn each_problem_takes_its_way_to_the_head() {
    both_ways::<20, 2, 20>();
    both_ways::<64, 4, 32>();
    both_ways::<128, 8, 32>();
}
