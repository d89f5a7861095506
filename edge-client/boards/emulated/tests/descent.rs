//! The measured rounds of a network on the host: they learn, and are the same whenever they run.
#![cfg(feature = "network")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::Network;
use fedspan_emulated::descent::{D, H, M, Workspace, rounds, samples};
use fedspan_emulated::problem::Problem;

#[test]
fn rounds_learn_and_repeat() {
    let problem = Problem::<D, M>::well_conditioned();
    let run = || {
        let mut memory = Workspace::new();
        let mut client = Network::new(&mut memory, 5);
        let outcome = rounds(&mut client, &mut samples(&problem)).unwrap();
        (outcome, client.parameters().to_vec())
    };
    let (outcome, parameters) = run();
    println!("\"d\":{D},\"k\":{H},\"m\":{M},{outcome}");
    assert_eq!(run(), (outcome, parameters.clone()));
    let (body, head) = parameters.split_at((D + 1) * H);
    assert!(body.iter().chain(head).all(|w| w.is_finite()));
    assert!(head.iter().any(|w| w.abs() > 0.01));
}
