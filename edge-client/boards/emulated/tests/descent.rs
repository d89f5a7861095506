//! Tests of the measured network rounds on the host: they train every layer and are reproducible.
#![cfg(all(feature = "adapter", feature = "convolution", feature = "recurrent"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::Network;
use fedspan_client::memory::NetworkMemory;
use fedspan_emulated::descent::{Adapter, Cells, D, Dense, Filters, M, Model, open, rounds, samples};
use fedspan_emulated::problem::Problem;

/// Checks that the rounds of a model change all trained layers, and that a second run has the same results.
fn check_learning_and_repetition<T: Model>() {
    let problem = Problem::<D, M>::well_conditioned();
    let run = || {
        let mut memory = T::memory();
        let mut client = Network::new(&mut memory, 5);
        let outcome = rounds::<T>(&mut client, &mut samples(&problem)).unwrap();
        (outcome, client.parameters().to_vec())
    };
    let (outcome, parameters) = run();
    println!("\"d\":{D},\"m\":{M},{outcome}");
    assert_eq!(run(), (outcome, parameters.clone()));
    assert!(parameters.iter().all(|w| w.is_finite()), "{}", T::NAME);
    // The trained layers differ from the tensors that the last round received.
    let mut memory = T::memory();
    let mut fresh = Network::new(&mut memory, 5);
    T::prepare(&mut fresh);
    open::<T>(&mut fresh, T::rounds()[1]).unwrap();
    let shape = T::memory().shape();
    let trained_layers = if shape.is_adapted() { 1 } else { shape.layers() };
    for layer in 0..trained_layers {
        let range = shape.range(layer..layer + 1);
        let (before, after) = (&fresh.parameters()[range.clone()], &parameters[range]);
        assert!(before.iter().zip(after).any(|(a, b)| (a - b).abs() > 1e-4), "{}: layer {layer}", T::NAME);
    }
}

#[test]
fn rounds_learn_and_repeat() {
    check_learning_and_repetition::<Dense>();
    check_learning_and_repetition::<Adapter>();
    check_learning_and_repetition::<Filters>();
    check_learning_and_repetition::<Cells>();
}
