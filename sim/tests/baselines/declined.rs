//! Tests that devices decline invalid rounds without a change of their state.

use fedspan_engine::algorithm::network::{FedAvg, NetworkMethod, Scaffold};
use fedspan_protocol::message::{Baseline, DeclineReason, Descent, RoundOpen, Task};
use fedspan_protocol::tensor::TensorDescriptor;

use crate::baselines::fleet::{Fleet, samples};
use crate::baselines::{ALL, GLOBAL, PERSONAL, PLAIN, SMALL};

/// Fleet of an algorithm, with a descent that the algorithm supports.
fn fleet_of(method: NetworkMethod) -> Fleet {
    Fleet::new(method, if method == NetworkMethod::Scaffold(Scaffold) { PLAIN } else { SMALL }, 1)
}

/// Answer of device 0 to a round opening that `change` modified.
fn answer_changed_opening(
    fleet: &mut Fleet,
    change: impl FnOnce(&mut RoundOpen),
) -> Result<(), DeclineReason> {
    let (mut open, tensors) = fleet.opening();
    change(&mut open);
    fleet.answer(0, &(open, tensors)).map(drop)
}

#[test]
fn numbers_out_of_range_are_declined() {
    let [infinite, nan] = [f32::INFINITY, f32::NAN];
    let invalid_cases: Vec<(NetworkMethod, Vec<Baseline>)> = vec![
        (GLOBAL[0], [-0.1, infinite, nan].map(|pull| Baseline::FedProx { proximal_weight: pull }).to_vec()),
        (GLOBAL[2], [-0.1, infinite, nan].map(|inner_step| Baseline::PerFedAvg { inner_step }).to_vec()),
        (GLOBAL[3], [-0.1, infinite, nan].map(|inner_step| Baseline::PerFedAvgHf { inner_step }).to_vec()),
        (PERSONAL[0], [-0.1, infinite, nan].map(|pull| Baseline::Ditto { proximal_weight: pull }).to_vec()),
        (
            PERSONAL[1],
            [-0.1, 1.1, nan]
                .map(|mixing_weight| Baseline::Apfl { mixing_weight, mixing_step_size: 0.0 })
                .to_vec(),
        ),
        (
            PERSONAL[1],
            [-0.1, infinite, nan]
                .map(|adaptation| Baseline::Apfl { mixing_weight: 0.5, mixing_step_size: adaptation })
                .to_vec(),
        ),
        (PERSONAL[2], [-0.1, 1.1, nan].map(|part| Baseline::L2gd { averaging_step: part }).to_vec()),
        (PERSONAL[3], [-0.1, infinite, nan].map(|pull| Baseline::FedMtl { proximal_weight: pull }).to_vec()),
    ];
    for (method, baselines) in invalid_cases {
        for invalid_baseline in baselines {
            let mut fleet = fleet_of(method);
            let change = |open: &mut RoundOpen| {
                if let Task::Baseline { baseline, .. } = &mut open.task {
                    *baseline = invalid_baseline;
                }
            };
            assert_eq!(
                answer_changed_opening(&mut fleet, change),
                Err(DeclineReason::Parameter),
                "{invalid_baseline:?}"
            );
            fleet.run_round(&ALL);
        }
    }
}

#[test]
fn invalid_step_sizes_are_declined() {
    let invalid_descents = [
        Descent { step_size: f32::NAN, ..SMALL },
        Descent { step_size: -0.1, ..SMALL },
        Descent { momentum: 1.0, ..SMALL },
        Descent { batch: 0, ..SMALL },
        Descent { batch: 3, ..SMALL },
    ];
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let mut fleet = fleet_of(method);
        for invalid_descent in invalid_descents {
            let change = |open: &mut RoundOpen| {
                if let Task::Baseline { descent, .. } = &mut open.task {
                    *descent = invalid_descent;
                }
            };
            assert_eq!(
                answer_changed_opening(&mut fleet, change),
                Err(DeclineReason::Parameter),
                "{method:?} {invalid_descent:?}"
            );
        }
        let change = |open: &mut RoundOpen| {
            if let Task::Baseline { epochs, .. } = &mut open.task {
                *epochs = 0;
            }
        };
        assert_eq!(answer_changed_opening(&mut fleet, change), Err(DeclineReason::Parameter));
    }
    // SCAFFOLD's control variates require gradient steps without momentum and a positive step size.
    let mut fleet = fleet_of(NetworkMethod::Scaffold(Scaffold));
    for invalid_descent in [SMALL, Descent { step_size: 0.0, ..PLAIN }] {
        let change = |open: &mut RoundOpen| {
            if let Task::Baseline { descent, .. } = &mut open.task {
                *descent = invalid_descent;
            }
        };
        assert_eq!(answer_changed_opening(&mut fleet, change), Err(DeclineReason::Parameter));
    }
}

#[test]
fn tensors_of_another_shape_are_declined() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let mut fleet = fleet_of(method);
        let changes: [fn(&mut RoundOpen); 4] = [
            |open| {
                let _ = open.tensors.pop();
            },
            |open| open.tensors[1].cols += 1,
            // The tensors of SCAFFOLD have twice as many rows as the tensors of other algorithms.
            |open| open.tensors[0].rows = if open.tensors[0].rows == 8 { 4 } else { 8 },
            |open| {
                let [first, second]: [TensorDescriptor; 2] = open.tensors.as_slice().try_into().unwrap();
                open.tensors = [second, first].into_iter().collect();
            },
        ];
        for change in changes {
            assert_eq!(answer_changed_opening(&mut fleet, change), Err(DeclineReason::Tensors), "{method:?}");
        }
        fleet.run_round(&ALL);
    }
}

#[test]
fn rounds_of_another_algorithm_are_declined() {
    for method in PERSONAL.into_iter().chain(GLOBAL).chain([NetworkMethod::FedAvg(FedAvg)]) {
        let mut fleet = fleet_of(method);
        let other_baseline = if method == GLOBAL[0] {
            Baseline::Ditto { proximal_weight: 0.0 }
        } else {
            Baseline::FedProx { proximal_weight: 0.0 }
        };
        let change = |open: &mut RoundOpen| {
            let (Task::Baseline { descent, epochs, encoding, .. }
            | Task::Sgd { descent, epochs, encoding, .. }) = open.task
            else {
                panic!("{:?}", open.task)
            };
            open.task = Task::Baseline { baseline: other_baseline, descent, epochs, encoding };
        };
        assert_eq!(answer_changed_opening(&mut fleet, change), Err(DeclineReason::Task), "{method:?}");
    }
}

#[test]
fn non_finite_values_are_declined() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let mut fleet = fleet_of(method);
        let mut opening = fleet.opening();
        *opening.1[1].values.last_mut().unwrap() = f32::NAN;
        assert_eq!(fleet.answer(0, &opening).map(drop), Err(DeclineReason::NonFinite));
    }
}

/// After a declined round the state of the device is unchanged.
#[test]
fn diverged_device_declines_and_keeps_its_state() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let mut fleet = fleet_of(method);
        fleet.run_round(&ALL);
        let (scored, control) = (fleet.scored(0), fleet.devices[0].control().map(<[f32]>::to_vec));
        let set = fleet.sets[0].clone();
        fleet.sets[0].x.iter_mut().for_each(|value| *value *= 3e38);
        assert_eq!(
            answer_changed_opening(&mut fleet, |_| {}),
            Err(DeclineReason::UpdateNonFinite),
            "{method:?}"
        );
        fleet.sets[0] = set;
        assert_eq!(fleet.scored(0), scored);
        assert_eq!(fleet.devices[0].control().map(<[f32]>::to_vec), control);
        fleet.run_round(&ALL);
    }
}

#[test]
fn device_without_samples_declines_and_bad_samples_are_skipped() {
    for method in PERSONAL.into_iter().chain(GLOBAL) {
        let mut fleet = fleet_of(method);
        fleet.sets[0] = samples(0, 0);
        assert_eq!(answer_changed_opening(&mut fleet, |_| {}), Err(DeclineReason::NoSamples));
        // A sample that is not finite is skipped, and the results remain finite.
        let mut fleet_with_nan = fleet_of(method);
        fleet_with_nan.sets[1].x[4] = f32::NAN;
        fleet_with_nan.run_round(&ALL);
        assert!(fleet_with_nan.bits().iter().all(|value| f64::from_bits(*value).is_finite()));
        assert!(fleet_with_nan.scored(1).iter().all(|value| value.is_finite()), "{method:?}");
    }
}
