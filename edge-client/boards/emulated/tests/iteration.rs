//! Tests of the measured FedPower iterations on the host: rows are clipped, noise is added, and a repeated
//! seed repeats the noise.
#![cfg(feature = "power")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::memory::PowerWorkspace;
use fedspan_client::{Linear, Mechanism, Task};
use fedspan_emulated::iteration::{Outcome, mechanism, open, outcome, run, samples};
use fedspan_emulated::problem::Problem;

/// Runs an iteration of this client, and returns its result and the product.
fn iteration<const D: usize, const K: usize, const M: usize, P: Mechanism>(
    mut client: Linear<&mut PowerWorkspace<D, K>, P>,
) -> (Outcome, Vec<f32>) {
    open(&mut client).unwrap();
    let problem = Problem::<D, M>::well_conditioned();
    run(&mut client, &mut samples(&problem)).unwrap();
    let mut product = vec![0.0; D * K];
    client.emit(0, 0, &mut product);
    let outcome = outcome(&client);
    println!("\"d\":{D},\"k\":{K},\"m\":{M},{outcome}");
    (outcome, product)
}

/// Checks an iteration of this shape without and with noise.
fn check_plain_and_private<const D: usize, const K: usize, const M: usize>() {
    let memory = &mut PowerWorkspace::<D, K>::new();
    let (plain, product) = iteration::<D, K, M, _>(Linear::new(&mut *memory));
    let mut private = || {
        let mechanism = mechanism(M as u32).unwrap();
        iteration::<D, K, M, _>(Linear::private(&mut *memory, mechanism).unwrap())
    };
    let (hidden, noisy) = private();
    assert_eq!((plain.path, hidden.path), ("plain", "private"));
    assert_eq!((plain.clipped, hidden.clipped), (M as u32, M as u32));
    // The noise multiplier is 4 and the sensitivity about sqrt(2) / M, so the standard deviation of the noise
    // times M is about 5.7.
    let squared_difference: f32 = product.iter().zip(&noisy).map(|(p, q)| (p - q).powi(2)).sum();
    let sigma = (squared_difference / (D * K) as f32).sqrt() * M as f32;
    assert!((4.5..7.0).contains(&sigma), "{sigma}");
    assert_eq!(private().0, hidden);
}

#[test]
fn products_are_hidden_where_they_should_be() {
    check_plain_and_private::<20, 2, 20>();
    check_plain_and_private::<32, 4, 32>();
    check_plain_and_private::<64, 4, 32>();
    check_plain_and_private::<128, 8, 32>();
}
