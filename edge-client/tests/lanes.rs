//! Tests of steps in lanes: they have the bits of the devices' own steps, for every shape, and a lane without a step does
//! not change the others.
#![cfg(feature = "wide")]

use crate::common::*;
use fedspan_client::source::{Samples, Targets};
use fedspan_client::task::lanes::{LANES_MAX, LaneStep, LaneSteps, VerifiedRepresentation, lanes};
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{HeadSolve, Task as Wire, Upload};
use fedspan_protocol::tensor::{Encoding, Role};

/// Round of a device: usage, upload, head and statistics of the fit.
type Round = (fedspan_client::task::Usage, Vec<u32>, Vec<u32>, String);

fn results<P: fedspan_client::Mechanism>(model: &Linear<Heap, P>) -> (Vec<u32>, Vec<u32>, String) {
    (bits(&collect_upload(model, 5)), bits(model.head()), format!("{:?}", model.head_fits()))
}

/// All samples of a source.
fn all_samples(source: &Sliced) -> Samples<'_> {
    let targets = match &source.labels {
        Labels::Values(values) => Targets::Values(values),
        Labels::Classes(classes) => Targets::Classes(classes),
    };
    Samples { x: &source.x, targets }
}

/// Samples of a device, with a defect for most numbers above 3.
fn device(random: &mut Random, [d, c, m]: [usize; 3], classes: bool, defect: usize) -> Sliced {
    let mut samples = if classes {
        let classes = (0..m).map(|_| random.below(c) as u8).collect();
        Sliced::classification(random.normals(m * d), classes, d, c)
    } else {
        Sliced::regression(random.normals(m * d), random.normals(m * c), d, c)
    };
    let place = random.below(m * d);
    match defect {
        4 => samples.x[place] = f32::NAN,
        5 => samples.x[place] = 1e30,
        // All samples are equal, so that the normal equations are not used for k > 1.
        6 => (0..m * d).for_each(|index| samples.x[index] = samples.x[index % d]),
        7 => samples.x.fill(0.0),
        8 => match &mut samples.labels {
            Labels::Values(y) => y[0] = f32::INFINITY,
            Labels::Classes(y) => y[0] = c as u8,
        },
        // Nearly equal features.
        9 => {
            samples.x.iter_mut().enumerate().for_each(|(index, x)| *x = 1.0 + *x * 1e-4 * (index % 7) as f32)
        }
        _ => {}
    }
    samples
}

#[test]
fn steps_in_lanes_have_the_bits_of_devices() {
    let mut random = Random(1);
    let (mut with_step, mut without, mut steps, mut step) = (0, 0, LaneSteps::default(), LaneStep::default());
    // Shapes of the tables, the widest representation that lanes have, and one that they leave to the devices.
    let large = [[128, 8, 1, 32], [57, 8, 7, 35], [784, 10, 1, 21], [70, 64, 2, 90], [70, 65, 1, 90]];
    for case in 0..600 {
        let k = 1 + random.below([2, 4, 9, 17][case % 4]);
        let (d, c) = (k + random.below(40), 1 + random.below([1, 1, 3, 10][case / 4 % 4]));
        let m = 1 + random.below([6, 20, 45][case % 3]);
        let [d, k, c, m] = large.get(case / 12).copied().unwrap_or([d, k, c, m]);
        let ridge = [0.0, 0.0, 0.3][case % 3];
        let classes = case % 5 == 0;
        let b = flat(&random.orthonormal(d, k));
        let task = fed_rep(HeadSolve::LeastSquares { ridge }, Upload::Gradient, 0.1);
        let count = 1 + random.below(lanes());
        let devices: Vec<Sliced> = (0..count)
            .map(|_| {
                let (defect, shorter) = (random.below(14), random.below(12) == 0);
                device(&mut random, [d, c, if shorter { 1 + m / 2 } else { m }], classes, defect)
            })
            .collect();
        let samples: Vec<_> = devices.iter().map(all_samples).collect();
        let solver = Linear::new(Heap::new(d, k, c)).lane_solver().unwrap();
        steps.compute(&b, Linear::new(Heap::new(d, k, c)).shape(), ridge, &solver, &samples);
        for (lane, samples) in devices.iter().enumerate() {
            let mut alone = Linear::new(Heap::new(d, k, c));
            let expected: Option<Round> = fed_rep_round(&mut alone, task, &b, &mut samples.clone())
                .ok()
                .map(|(usage, _)| (usage, results(&alone)))
                .map(|(usage, (upload, head, fits))| (usage, upload, head, fits));
            let mut model = Linear::new(Heap::new(d, k, c));
            let round = open(1, task, Role::Representation, Encoding::F32, d, k);
            receive(&mut model, &round, &[&b]).unwrap();
            steps.copy_step(lane, &mut step);
            match model.take_step(&step) {
                Some(usage) => {
                    let (upload, head, fits) = results(&model);
                    assert_eq!(Some((usage, upload, head, fits)), expected, "case {case}, lane {lane}");
                    with_step += 1;
                }
                None => without += 1,
            }
        }
    }
    if lanes() > 1 {
        assert!(with_step > 1_200 && without > 500, "{with_step} {without}");
    }
}

#[test]
fn step_of_another_round_is_not_taken() {
    let (d, k, m) = (6, 2, 9);
    let mut random = Random(2);
    let b = flat(&random.orthonormal(d, k));
    let samples = Sliced::regression(random.normals(m * d), random.normals(m), d, 1);
    let mut model = Linear::new(Heap::new(d, k, 1));
    let (mut steps, mut step) = (LaneSteps::default(), LaneStep::default());
    assert!(model.take_step(&step).is_none(), "no step and no round");
    steps.compute(&b, model.shape(), 0.5, &model.lane_solver().unwrap(), &[all_samples(&samples)]);
    steps.copy_step(0, &mut step);
    let with_ridge = |ridge| fed_rep(HeadSolve::LeastSquares { ridge }, Upload::Gradient, 0.1);
    for (task, is_same) in [
        (with_ridge(0.25), false),
        (fed_rep(HeadSolve::Gradient { steps: 1, step_size: 0.1 }, Upload::Gradient, 0.1), false),
        (with_ridge(0.5), lanes() > 1),
    ] {
        receive(&mut model, &open(1, task, Role::Representation, Encoding::F32, d, k), &[&b]).unwrap();
        assert_eq!(model.take_step(&step).is_some(), is_same);
    }
    let mut other_shape = Linear::new(Heap::new(d + 1, k, 1));
    let wider = flat(&random.orthonormal(d + 1, k));
    let round = open(1, with_ridge(0.5), Role::Representation, Encoding::F32, d + 1, k);
    receive(&mut other_shape, &round, &[&wider]).unwrap();
    assert!(other_shape.take_step(&step).is_none());
    assert!(
        !steps.copy_step(1, &mut step) && !steps.copy_step(LANES_MAX, &mut step),
        "no device in the lane"
    );
}

/// Tests that the shared verification accepts exactly what a device accepts that verifies for itself, and that a device takes it
/// only in a round of FedRep whose representation was received in f32 and has the same bits.
#[test]
fn shared_verification_is_that_of_a_device() {
    let mut random = Random(3);
    let head = HeadSolve::LeastSquares { ridge: 0.1 };
    let tasks = [fed_rep(head, Upload::Gradient, 0.1), Wire::FitHead { head }];
    let (mut taken, mut refused) = (0, 0);
    for case in 0..200 {
        let (k, m) = (1 + random.below(9), 12);
        let d = k + random.below(20);
        let mut b = flat(&random.orthonormal(d, k));
        let place = random.below(d * k);
        match case % 5 {
            1 => b[place] = f32::NAN,
            2 => b.iter_mut().for_each(|value| *value *= 1.01),
            // About as far from orthonormal as rounding leaves it.
            3 => b[place] += 3e-6 * random.normals(1)[0],
            _ => {}
        }
        let verified = VerifiedRepresentation::verify(b.as_slice().into(), k);
        let samples = Sliced::regression(random.normals(m * d), random.normals(m), d, 1);
        for (task, encoding) in
            [(tasks[0], Encoding::F32), (tasks[0], Encoding::F16), (tasks[1], Encoding::F32)]
        {
            let round = open(1, task, Role::Representation, encoding, d, k);
            let (mut own, mut shared) = (Linear::new(Heap::new(d, k, 1)), Linear::new(Heap::new(d, k, 1)));
            for model in [&mut own, &mut shared] {
                model.open(&round).unwrap();
                model.tensor_mut(0).unwrap().copy_from_slice(&b);
            }
            let result = own.verify();
            if encoding == Encoding::F32 {
                assert_eq!(verified.is_some(), result.is_ok(), "case {case}");
            }
            let Some(verified) = &verified else { continue };
            let is_taken = shared.take_verification(verified);
            assert_eq!(is_taken, matches!(task, Wire::FedRep { .. }) && encoding == Encoding::F32);
            if !is_taken {
                assert!(shared.representation().is_none());
                refused += 1;
                continue;
            }
            let ran = [&mut own, &mut shared].map(|model| {
                let usage = model.run(round.id, &mut samples.clone());
                (usage, results(model), model.representation().map(bits), model.head_fitted_on())
            });
            assert_eq!(ran[0], ran[1], "case {case}");
            taken += 1;
            let other = flat(&random.orthonormal(d, k));
            shared.open(&open(2, task, Role::Representation, encoding, d, k)).unwrap();
            shared.tensor_mut(0).unwrap().copy_from_slice(&other);
            assert_eq!(shared.take_verification(verified), bits(&other) == bits(&b));
        }
    }
    assert!(taken > 80 && refused > 160, "{taken} {refused}");
}
