//! Tests of the coin flips of L2GD: equality with the published algorithm for every flip, and the frequency
//! of both outcomes.

use fedspan_engine::algorithm::network::{L2gd, NetworkMethod};
use fedspan_protocol::message::{Baseline, Descent, Task};

use crate::baselines::fleet::{Fleet, parameters};
use crate::baselines::oracle::{gradient, minus, plus};
use crate::baselines::{ALL, SMALL, WHOLE, assert_close, to_f64};

/// Averaging step of the comparison with the published algorithm.
const PART: f32 = 0.3;
/// Averaging step that is so small that models remain far from the mean after many steps.
const SMALL_PART: f32 = 0.02;
/// Local descent without momentum on all samples.
const STEPS: Descent = Descent { momentum: 0.0, ..WHOLE };

/// Number of averaging steps of size `single`, and number of repetitions of `body_epochs` local epochs, that
/// a round requests.
fn requested_steps(task: Task, single: f32, body_epochs: u16) -> (i32, u16) {
    let Task::Baseline { baseline: Baseline::L2gd { averaging_step: part }, epochs, .. } = task else {
        panic!("{task:?}")
    };
    let steps = (1.0 - f64::from(part)).ln() / (1.0 - f64::from(single)).ln();
    assert!((steps - steps.round()).abs() < 1e-3, "{part} is no whole number of steps");
    assert_eq!(epochs % body_epochs, 0);
    (steps.round() as i32, epochs / body_epochs)
}

#[test]
fn l2gd_with_recorded_coin_is_the_published_algorithm() {
    const EPOCHS: u16 = 2;
    let mut fleet = Fleet::new(
        NetworkMethod::L2gd(L2gd { averaging_step: PART, averaging_probability: 0.4 }),
        STEPS,
        EPOCHS,
    );
    let start: Vec<f64> = fleet.algorithm.representation().iter().copied().collect();
    let mut models = vec![start; 3];
    let mut flips_seen = Vec::new();
    for round in 0..6 {
        let flips = requested_steps(fleet.opening().0.task, PART, EPOCHS);
        for _ in 0..flips.0 {
            let mut mean = vec![0.0; models[0].len()];
            models.iter().for_each(|model| mean = plus(&mean, 1.0 / 3.0, model));
            for model in &mut models {
                *model = plus(model, PART.into(), &minus(&mean, model));
            }
        }
        for (model, set) in models.iter_mut().zip(&fleet.sets) {
            for _ in 0..flips.1 * EPOCHS {
                *model = plus(model, -f64::from(STEPS.step_size), &gradient(set, model));
            }
        }
        fleet.run_round(&ALL);
        for device in ALL {
            let context = format!("round {round} after {flips:?} steps, device {device}");
            assert_close(&context, to_f64(&fleet.scored(device)), &models[device]);
        }
        flips_seen.push(flips);
    }
    assert!(
        flips_seen.iter().any(|flips| flips.0 > 1) && flips_seen.iter().any(|flips| flips.1 > 1),
        "{flips_seen:?}"
    );
}

/// The numbers of averaging steps and of local steps in a round are independent, geometrically distributed
/// and at least one. The test checks their means and the frequency of rounds in which both are one.
#[test]
fn coin_has_the_requested_probability() {
    const ROUNDS: u32 = 20_000;
    for coin in [0.1f32, 0.5, 0.8] {
        let mut algorithm =
            NetworkMethod::L2gd(L2gd { averaging_step: SMALL_PART, averaging_probability: coin })
                .server(parameters(SMALL, 1));
        let mut to_mean = 0.0;
        let mut local = 0.0;
        let mut epochs_with_both = 0.0;
        for _ in 0..ROUNDS {
            let (j, k) = requested_steps(algorithm.request().task, SMALL_PART, 1);
            (to_mean, local) = (to_mean + f64::from(j), local + f64::from(k));
            epochs_with_both += f64::from(u8::from((j, k) == (1, 1)));
            algorithm.finish().unwrap();
        }
        let p = f64::from(coin);
        // Tolerances are four standard errors of a mean of geometric variables, and of a frequency.
        for (sum, stop) in [(to_mean, 1.0 - p), (local, p)] {
            let (mean, error) = (sum / f64::from(ROUNDS), ((1.0 - stop) / f64::from(ROUNDS)).sqrt() / stop);
            assert!((mean - 1.0 / stop).abs() < 4.0 * error, "{coin}: {mean} of {}", 1.0 / stop);
        }
        let (observed, expected) = (epochs_with_both / f64::from(ROUNDS), p * (1.0 - p));
        let error = (expected * (1.0 - expected) / f64::from(ROUNDS)).sqrt();
        assert!((observed - expected).abs() < 4.0 * error, "{coin}: {observed} of {expected}");
    }
}

#[test]
fn restarted_server_continues_the_coin() {
    let method = NetworkMethod::L2gd(L2gd { averaging_step: PART, averaging_probability: 0.3 });
    let mut fleet = Fleet::new(method, SMALL, 1);
    for _ in 0..3 {
        fleet.run_round(&ALL);
    }
    let state = fleet.algorithm.state();
    let mut second_server = method.server(parameters(SMALL, 1));
    let first_request = second_server.request();
    for invalid_state in [&state[..state.len() - 1], &[state.as_slice(), &[0.0]].concat(), &[]] {
        assert!(!second_server.restore(invalid_state));
        assert_eq!(second_server.request(), first_request);
    }
    assert!(second_server.restore(&state));
    let mut tasks = Vec::new();
    for _ in 0..20 {
        assert_eq!(second_server.request(), fleet.algorithm.request());
        tasks.push(format!("{:?}", second_server.request().task));
        second_server.finish().unwrap();
        fleet.algorithm.finish().unwrap();
    }
    tasks.sort();
    tasks.dedup();
    assert!(tasks.len() > 5, "{tasks:?}");
}
