//! Tests of the baseline algorithms on networks: each is compared with its formula in f64 and, for limiting
//! values of its parameters, with another algorithm.

mod coin;
mod declined;
mod fleet;
mod oracle;
mod runs;

use fedspan_engine::algorithm::network::{
    Apfl, Ditto, FedAvg, FedMtl, FedProx, L2gd, LgFedAvg, LocalOnly, NetworkMethod, PerFedAvg, Scaffold,
};
use fedspan_protocol::message::{DeclineReason, Descent};

use fleet::{Fleet, M};
use oracle::Oracle;

/// Descent with one batch of all samples.
const WHOLE: Descent = Descent { step_size: 0.3, momentum: 0.5, batch: 8 };
/// Descent with several batches, of which the last is smaller.
const SMALL: Descent = Descent { step_size: 0.1, momentum: 0.5, batch: 2 };
/// Descent with several batches and without momentum.
const PLAIN: Descent = Descent { momentum: 0.0, ..SMALL };

/// Indices of all devices.
const ALL: [usize; 3] = [0, 1, 2];

/// Per-FedAvg in its first-order or its Hessian-free variant.
fn per_fedavg(inner_step: f32, hessian_free: bool) -> NetworkMethod {
    match hessian_free {
        false => NetworkMethod::PerFedAvg(PerFedAvg { inner_step }),
        true => NetworkMethod::PerFedAvgHf(PerFedAvg { inner_step }),
    }
}

/// Algorithms with a personal network on each device.
const PERSONAL: [NetworkMethod; 4] = [
    NetworkMethod::Ditto(Ditto { proximal_weight: 0.7 }),
    NetworkMethod::Apfl(Apfl { mixing_weight: 0.3, mixing_step_size: 0.5 }),
    NetworkMethod::L2gd(L2gd { averaging_step: 0.4, averaging_probability: 0.0 }),
    NetworkMethod::FedMtl(FedMtl { proximal_weight: 0.5 }),
];
/// Algorithms with one shared network.
const GLOBAL: [NetworkMethod; 4] = [
    NetworkMethod::FedProx(FedProx { proximal_weight: 0.5 }),
    NetworkMethod::Scaffold(Scaffold),
    NetworkMethod::PerFedAvg(PerFedAvg { inner_step: 0.2 }),
    NetworkMethod::PerFedAvgHf(PerFedAvg { inner_step: 0.2 }),
];

/// Asserts that all values are within 2e-6 of the expected values.
fn assert_close(context: &str, computed: impl IntoIterator<Item = f64>, expected: &[f64]) {
    let computed: Vec<f64> = computed.into_iter().collect();
    assert_eq!(computed.len(), expected.len());
    let largest_error = computed.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(largest_error < 2e-6, "{context}: off by {largest_error}");
}

/// Converts values to f64.
fn to_f64(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().map(|value| f64::from(*value))
}

#[test]
fn each_algorithm_matches_its_formula() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let descent = if method == NetworkMethod::Scaffold(Scaffold) {
            Descent { momentum: 0.0, ..WHOLE }
        } else {
            WHOLE
        };
        let mut fleet = Fleet::new(method, descent, 2);
        let start = fleet.algorithm.representation().iter().copied().collect();
        let mut oracle = Oracle::new(method, descent, 2, start);
        // An error in SCAFFOLD's control variate c has an effect only under partial participation.
        for participants in [&[0, 1][..], &[1, 2], &ALL] {
            fleet.run_round(participants);
            oracle.run_round(participants, &fleet.sets);
            assert_close(
                &format!("{method:?}"),
                fleet.algorithm.representation().iter().copied(),
                &oracle.shared,
            );
            for device in ALL {
                let context = format!("{method:?}, device {device} after {participants:?}");
                assert_close(
                    &context,
                    to_f64(&fleet.scored(device)),
                    &oracle.scored(device, &fleet.sets[device]),
                );
            }
        }
    }
}

/// Values of the shared network after three rounds, as bits.
fn bits(method: NetworkMethod, descent: Descent) -> Vec<u64> {
    let mut fleet = Fleet::new(method, descent, 2);
    for participants in [&ALL[..], &[0, 2], &ALL] {
        fleet.run_round(participants);
    }
    fleet.bits()
}

#[test]
fn limit_cases_share_the_network_of_fedavg() {
    for method in [
        NetworkMethod::FedProx(FedProx { proximal_weight: 0.0 }),
        NetworkMethod::Ditto(Ditto { proximal_weight: 0.7 }),
        NetworkMethod::Apfl(Apfl { mixing_weight: 0.3, mixing_step_size: 0.5 }),
        // With an averaging step of 1, L2GD starts each round at the mean, like FedAvg.
        NetworkMethod::L2gd(L2gd { averaging_step: 1.0, averaging_probability: 0.0 }),
    ] {
        for descent in [SMALL, PLAIN] {
            assert_eq!(bits(method, descent), bits(NetworkMethod::FedAvg(FedAvg), descent), "{method:?}");
        }
    }
    assert_ne!(
        bits(NetworkMethod::FedProx(FedProx { proximal_weight: 0.01 }), SMALL),
        bits(NetworkMethod::FedAvg(FedAvg), SMALL)
    );
}

/// The test uses one batch per epoch, so that the inner and the outer gradient come from the same batch.
#[test]
fn perfedavg_without_inner_step_is_fedavg() {
    for hessian_free in [false, true] {
        let method = |inner_step| per_fedavg(inner_step, hessian_free);
        assert_eq!(bits(method(0.0), WHOLE), bits(NetworkMethod::FedAvg(FedAvg), WHOLE));
        assert_ne!(bits(method(0.1), WHOLE), bits(NetworkMethod::FedAvg(FedAvg), WHOLE));
    }
}

/// An epoch of seven samples consists of batches of 2, 2, 2 and 1 samples. A meta step uses separate batches
/// for the inner and the outer gradient, so both variants take two steps per epoch.
#[test]
fn perfedavg_meta_step_takes_separate_batches() {
    for hessian_free in [false, true] {
        // The steps are so small that the gradient is almost constant. The distance therefore shows the
        // number of steps.
        let descent = Descent { step_size: 1e-3, momentum: 0.0, batch: 2 };
        let method = per_fedavg(0.0, hessian_free);
        let mut fleet = Fleet::new(method, descent, 1);
        let start = fleet.algorithm.representation().clone();
        // All samples are equal, so all batches have the same gradient.
        let first = fleet.sets[0].clone();
        for set in &mut fleet.sets {
            *set = fleet::repeated(&first, M);
        }
        fleet.run_round(&[0]);
        let distance_moved = (fleet.algorithm.representation() - &start).norm();
        let mut fedavg = Fleet::new(NetworkMethod::FedAvg(FedAvg), Descent { batch: 8, ..descent }, 1);
        fedavg.sets = fleet.sets.clone();
        fedavg.run_round(&[0]);
        let fedavg_moved = (fedavg.algorithm.representation() - &start).norm();
        assert!((distance_moved / fedavg_moved - 2.0).abs() < 0.01, "{distance_moved} {fedavg_moved}");
    }
}

#[test]
fn first_scaffold_round_is_fedavg_without_momentum() {
    let [mut scaffold, mut fedavg] = [NetworkMethod::Scaffold(Scaffold), NetworkMethod::FedAvg(FedAvg)]
        .map(|method| Fleet::new(method, PLAIN, 2));
    scaffold.run_round(&ALL);
    fedavg.run_round(&ALL);
    assert_eq!(scaffold.bits(), fedavg.bits());
    scaffold.run_round(&ALL);
    fedavg.run_round(&ALL);
    assert_ne!(scaffold.bits(), fedavg.bits(), "steps were not corrected in the second round");
}

/// The server's control variate c is the mean of the control variates of all devices, which are zero before a
/// device's first round.
#[test]
fn scaffold_server_variate_is_the_mean_of_the_devices() {
    let mut fleet = Fleet::new(NetworkMethod::Scaffold(Scaffold), PLAIN, 2);
    for participants in [&ALL[..2], &ALL, &ALL, &[1]] {
        fleet.run_round(participants);
        let state = fleet.algorithm.state();
        // In each layer the rows of the model precede the rows of c.
        let first = (fleet::D + 1) * fleet::H;
        let extra_state = state.len() / 2 - first;
        let c = [&state[first..2 * first], &state[2 * first + extra_state..]].concat();
        assert!(c.iter().any(|value| value.abs() > 1e-3));
        let control = |device: usize| {
            fleet.devices[device].control().map(|control| to_f64(control).collect::<Vec<_>>())
        };
        let mut mean = vec![0.0; c.len()];
        for control in ALL.iter().filter_map(|device| control(*device)) {
            for (mean, control) in mean.iter_mut().zip(control) {
                *mean += control / 3.0;
            }
        }
        assert_close("c", c, &mean);
    }
}

#[test]
fn zero_coupling_equals_local_training() {
    for method in [
        NetworkMethod::L2gd(L2gd { averaging_step: 0.0, averaging_probability: 0.0 }),
        NetworkMethod::FedMtl(FedMtl { proximal_weight: 0.0 }),
    ] {
        let [mut fleet, mut local] =
            [method, NetworkMethod::LocalOnly(LocalOnly)].map(|method| Fleet::new(method, SMALL, 2));
        for participants in [&ALL[..], &[1, 2], &ALL] {
            fleet.run_round(participants);
            local.run_round(participants);
            for device in ALL {
                assert_eq!(fleet.scored(device), local.scored(device), "{method:?}");
            }
        }
    }
}

#[test]
fn apfl_with_one_network_is_that_network() {
    let mut global =
        Fleet::new(NetworkMethod::Apfl(Apfl { mixing_weight: 0.0, mixing_step_size: 0.0 }), SMALL, 2);
    let mut personal =
        Fleet::new(NetworkMethod::Apfl(Apfl { mixing_weight: 1.0, mixing_step_size: 0.0 }), SMALL, 2);
    let [mut fedavg, mut local] =
        [NetworkMethod::FedAvg(FedAvg), NetworkMethod::LocalOnly(LocalOnly)].map(|m| Fleet::new(m, SMALL, 2));
    for _ in 0..2 {
        for fleet in [&mut global, &mut personal, &mut fedavg, &mut local] {
            fleet.run_round(&ALL);
        }
        for device in ALL {
            assert_eq!(global.scored(device), fedavg.scored(device));
            assert_eq!(personal.scored(device), local.scored(device));
        }
    }
}

#[test]
fn final_head_is_fitted_on_the_scored_network() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let descent = if method == NetworkMethod::Scaffold(Scaffold) { PLAIN } else { SMALL };
        let mut fleet = Fleet::new(method, descent, 1);
        let start = fleet.devices[2].own().to_vec();
        fleet.run_round(&[0, 1]);
        // Device 2 has not taken part in a round, so its own network is the common start.
        for device in ALL {
            let scored = fleet.scored(device);
            assert_eq!(fleet.fitted(device), scored, "{method:?}");
            // A repeated request, as after a reset, has the same result.
            assert_eq!(fleet.fitted(device), scored, "{method:?}");
        }
        if matches!(method, NetworkMethod::Ditto(_) | NetworkMethod::L2gd(_) | NetworkMethod::FedMtl(_)) {
            assert_eq!(fleet.devices[2].own(), start);
        }
    }
}

#[test]
fn newcomer_starts_from_the_shared_network() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let descent = if method == NetworkMethod::Scaffold(Scaffold) { PLAIN } else { SMALL };
        let mut fleet = Fleet::new(method, descent, 1);
        fleet.run_round(&[0, 1]);
        fleet.replace(2, 5);
        let shared: Vec<f32> = fleet.shared().into_iter().flat_map(|tensor| tensor.values).collect();
        let fitted = fleet.fitted(2);
        let largest_change = fitted.iter().zip(&shared).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // The scored network of Per-FedAvg is one step from the shared network.
        assert_eq!(
            largest_change > 1e-6,
            matches!(method, NetworkMethod::PerFedAvg(_) | NetworkMethod::PerFedAvgHf(_)),
            "{method:?}: {largest_change}"
        );
    }
}

/// Without shared lower layers, a newcomer trains all layers, with the same result as a round of the
/// algorithm with the same number of epochs.
#[test]
fn newcomer_without_a_body_trains_all_layers() {
    for method in [NetworkMethod::LocalOnly(LocalOnly), NetworkMethod::LgFedAvg(LgFedAvg { layers: 1 })] {
        for epochs in [1, 3] {
            let mut member = Fleet::new(method, SMALL, epochs);
            let mut newcomer = Fleet::new(method, SMALL, 1);
            newcomer.replace(1, epochs);
            let opening = member.opening();
            member.answer(1, &opening).unwrap();
            assert_eq!(newcomer.fitted(1), member.devices[1].own(), "{method:?}");
            // With 0 epochs the network of the newcomer is the initial network.
            newcomer.replace(1, 0);
            assert_eq!(newcomer.fitted(1), newcomer.devices[0].own(), "{method:?}");
        }
    }
}

/// If a step results in values that are not finite, the device declines the round and keeps its initial
/// network.
#[test]
fn diverged_newcomer_keeps_its_initial_network() {
    let diverging = Descent { step_size: 1e30, ..SMALL };
    let mut fleet = Fleet::new(NetworkMethod::LocalOnly(LocalOnly), diverging, 1);
    fleet.replace(1, 3);
    assert_eq!(fleet.try_fit(1), Err(DeclineReason::UpdateNonFinite));
    assert_eq!(fleet.devices[1].own(), fleet.devices[0].own());
}
