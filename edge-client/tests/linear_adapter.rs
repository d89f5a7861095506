//! Tests of RoLoRA on a linear model (Chen et al. 2025, Algorithm 2): both kinds of rounds against f64, and
//! the factors that a device keeps between rounds.
#![cfg(feature = "shared-head")]

use crate::common::*;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId, RoundOpen, Task as Wire, Upload};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

const EXACT: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };
const STEP: f32 = 0.3;
const UP: Wire = Wire::AdapterUp { head: EXACT, encoding: Encoding::F32 };
const DOWN: Wire = Wire::AdapterDown { step_size: STEP, encoding: Encoding::F32 };

/// Returns a round that sends these factors.
fn round_open(number: u32, task: Wire, factors: &[(Role, usize, usize)]) -> RoundOpen {
    let descriptor = |&(role, rows, cols): &(Role, usize, usize)| {
        TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16)
    };
    let id = RoundId { round: number, stage: 0 };
    RoundOpen { id, task, tensors: factors.iter().map(descriptor).collect() }
}

/// Shape, samples and down-projection (d x k) of a case.
struct Case {
    d: usize,
    k: usize,
    c: usize,
    samples: Sliced,
    down: Vec<f32>,
}

impl Case {
    /// Draws a case with more samples than columns.
    fn new(random: &mut Random, number: usize) -> Self {
        let k = 1 + number % 5;
        let (d, c) = (k + random.below(20), 1 + random.below(6));
        let m = k + 1 + random.below(40);
        let samples = Sliced::regression(random.normals(m * d), random.normals(m * c), d, c);
        let down = flat(&random.orthonormal(d, k));
        Self { d, k, c, samples, down }
    }

    fn device(&self) -> Linear<Heap> {
        Linear::new(Heap::new(self.d, self.k, self.c))
    }

    fn factors(&self) -> [(Role, usize, usize); 2] {
        [(Role::AdapterDown, self.d, self.k), (Role::AdapterUp, self.k, self.c)]
    }

    /// Runs a round that sends the down-projection and trains the up-projection. Returns the upload.
    fn train_up(&self, model: &mut Linear<Heap>, number: u32) -> Vec<f32> {
        receive(model, &round_open(number, UP, &self.factors()[..1]), &[&self.down]).unwrap();
        let usage = model.run(RoundId { round: number, stage: 0 }, &mut self.samples.clone()).unwrap();
        assert_eq!(usage, Usage { samples: self.samples.len() as u32, skipped: 0 });
        let [sent] = model.upload()[..] else { panic!("one factor leaves") };
        assert_eq!((sent.role, sent.rows, sent.cols), (Role::AdapterUp, self.k as u16, self.c as u16));
        collect_upload(model, 7)
    }

    /// Runs a round that sends these factors and trains the down-projection. Returns the upload.
    fn train_down(&self, model: &mut Linear<Heap>, number: u32, factors: &[&[f32]]) -> Vec<f32> {
        let sent_factors = &self.factors()[2 - factors.len()..];
        receive(model, &round_open(number, DOWN, sent_factors), factors).unwrap();
        model.run(RoundId { round: number, stage: 0 }, &mut self.samples.clone()).unwrap();
        let [sent] = model.upload()[..] else { panic!("one factor leaves") };
        assert_eq!((sent.role, sent.rows, sent.cols), (Role::AdapterDown, self.d as u16, self.k as u16));
        collect_upload(model, 5)
    }
}

/// Calls `check_case` for 120 drawn cases.
fn each_case(mut check_case: impl FnMut(Case, &mut Random)) {
    let mut random = Random(21);
    for number in 0..120 {
        let case = Case::new(&mut random, number);
        check_case(case, &mut random);
    }
}

#[test]
fn both_rounds_equal_f64() {
    let mut worst = Worst::default();
    each_case(|case, random| {
        let Case { d, k, c, ref samples, ref down } = case;
        let (x, y, down64) = (samples.x64(), samples.y64(), matrix(d, k, down));
        let z = &x * &down64;
        let svd = Svd::new(&z);
        let exact = (z.transpose() * &z).cholesky().unwrap().solve(&(z.transpose() * &y));
        let sent = matrix(k, c, &case.train_up(&mut case.device(), 1));
        let error = (&sent - &exact).norm() / exact.norm() / svd.condition();
        assert!(error <= 1e-5, "{error:e}");
        worst.record_largest("up, relative error over the condition", error);

        let b = random.normals(k * c);
        let b64 = matrix(k, c, &b);
        let gradient = x.transpose() * (&z * &b64 - &y) * b64.transpose() / samples.len() as f64;
        let exact = &down64 - &gradient * f64::from(STEP);
        let sent = matrix(d, k, &case.train_down(&mut case.device(), 1, &[down, &b]));
        let error = (sent - &exact).norm() / (down64.norm() + gradient.norm());
        assert!(error <= 1e-5, "{error:e}");
        worst.record_largest("down, relative error", error);
    });
    println!("{worst:?}");
}

/// A device alone performs one FedRep round in two rounds: its best up-projection is its head.
#[test]
fn two_rounds_of_one_device_equal_a_fedrep_round() {
    each_case(|case, _| {
        let Case { d, k, ref down, ref samples, .. } = case;
        let mut device = case.device();
        let up = case.train_up(&mut device, 1);
        let trained_down = case.train_down(&mut device, 2, &[&up]);
        let upload = Upload::Representation;
        let task = Wire::FedRep { step_size: STEP, head: EXACT, upload, encoding: Encoding::F32 };
        let mut fedrep_device = case.device();
        let open = open(1, task, Role::Representation, Encoding::F32, d, k);
        receive(&mut fedrep_device, &open, &[down]).unwrap();
        fedrep_device.run(open.id, &mut samples.clone()).unwrap();
        assert_eq!(bits(&trained_down), bits(&collect_upload(&fedrep_device, 9)));
        assert_eq!(bits(&up), bits(fedrep_device.head()));
    });
}

/// The down-projection need not be sent if the device has it; otherwise it must be sent.
#[test]
fn down_projection_is_kept_until_replaced() {
    each_case(|case, random| {
        let b = random.normals(case.k * case.c);
        let mut device = case.device();
        let check_factors_are_missing = |device: &mut Linear<Heap>| {
            let [_, up] = case.factors();
            for (task, factors) in [(UP, &[][..]), (DOWN, &[up][..])] {
                assert_eq!(device.open(&round_open(1, task, factors)), Err(DeclineReason::Tensors));
            }
        };
        check_factors_are_missing(&mut device);
        let first_upload = case.train_up(&mut device, 1);
        // The device repeats the round without a tensor, then runs the other round twice with only the
        // up-projection.
        let open = round_open(2, UP, &[]);
        receive(&mut device, &open, &[]).unwrap();
        device.run(open.id, &mut case.samples.clone()).unwrap();
        assert_eq!(bits(&first_upload), bits(&collect_upload(&device, 3)));
        let with_both = case.train_down(&mut case.device(), 3, &[&case.down, &b]);
        assert_eq!(bits(&case.train_down(&mut device, 3, &[&b])), bits(&with_both));
        assert_eq!(
            bits(&case.train_down(&mut device, 4, &[&b])),
            bits(&with_both),
            "the step was taken in place"
        );
        // An interrupted download invalidates the factor.
        device.open(&round_open(5, UP, &case.factors()[..1])).unwrap();
        device.tensor_mut(0).unwrap()[0] = 0.5;
        check_factors_are_missing(&mut device);
    });
}

/// After a round that sent both factors, the device predicts with the shared model.
#[test]
fn device_predicts_with_the_shared_factors() {
    each_case(|case, random| {
        let Case { d, k, c, ref down, ref samples } = case;
        let b = random.normals(k * c);
        let mut device = case.device();
        case.train_down(&mut device, 1, &[down, &b]);
        let mut out = vec![0.0; c];
        device.predict(&samples.x[..d], &mut out).unwrap();
        let exact = samples.x64().rows(0, 1) * matrix(d, k, down) * matrix(k, c, &b);
        let error = (matrix(1, c, &out) - &exact).norm();
        assert!(error <= 1e-5 * (samples.x64().rows(0, 1).norm() * matrix(k, c, &b).norm()), "{error:e}");
    });
}

#[test]
fn mismatched_rounds_are_declined() {
    let mut random = Random(5);
    let case = Case::new(&mut random, 2);
    let Case { d, k, c, ref down, ref samples } = case;
    let [a, b] = case.factors();
    let up = random.normals(k * c);
    let mut device = case.device();
    let try_to_open =
        |device: &mut Linear<Heap>, task, factors: &[_]| device.open(&round_open(1, task, factors));
    for factors in [
        &[b, a][..],
        &[b],
        &[a, a],
        &[a, b],
        &[(Role::Representation, d, k)],
        &[(Role::AdapterDown, k, d)],
        &[(Role::AdapterDown, d, k + 1)],
    ] {
        assert_eq!(try_to_open(&mut device, UP, factors), Err(DeclineReason::Tensors), "{factors:?}");
    }
    for factors in [&[a][..], &[b, a], &[a, (Role::SharedHead, k, c)], &[a, (Role::AdapterUp, c + 1, k)]] {
        assert_eq!(try_to_open(&mut device, DOWN, factors), Err(DeclineReason::Tensors), "{factors:?}");
    }
    for step_size in [f32::NAN, f32::INFINITY, -0.1] {
        let task = Wire::AdapterDown { step_size, encoding: Encoding::F32 };
        assert_eq!(try_to_open(&mut device, task, &[a, b]), Err(DeclineReason::Parameter));
    }
    let task = Wire::AdapterUp { head: HeadSolve::LeastSquares { ridge: f32::NAN }, encoding: Encoding::F32 };
    assert_eq!(try_to_open(&mut device, task, &[a]), Err(DeclineReason::Parameter));

    // The down-projection is not orthonormal, then the up-projection is not finite.
    let scaled: Vec<f32> = down.iter().map(|v| v * 1.1).collect();
    let error = receive(&mut device, &round_open(1, UP, &[a]), &[&scaled]).unwrap_err();
    assert!(
        matches!(error, DeclineReason::NotOrthonormal { error } if (error - 0.21).abs() < 1e-3),
        "{error:?}"
    );
    let first_upload = case.train_up(&mut device, 1);
    for value in [f32::NAN, f32::INFINITY] {
        device.open(&round_open(2, DOWN, &[b])).unwrap();
        device.tensor_mut(0).unwrap().copy_from_slice(&up);
        device.tensor_mut(0).unwrap()[1] = value;
        assert_eq!(device.verify(), Err(DeclineReason::NonFinite));
        assert!(device.predict(&samples.x[..d], &mut vec![0.0; c]).is_err(), "predict works without a head");
    }
    // The down-projection is still the old one.
    let open = round_open(3, UP, &[]);
    receive(&mut device, &open, &[]).unwrap();
    device.run(open.id, &mut samples.clone()).unwrap();
    assert_eq!(bits(&first_upload), bits(&collect_upload(&device, 3)));

    let no_samples = Sliced::regression(Vec::new(), Vec::new(), d, c);
    for (task, factors, tensors) in [(UP, &[a][..], &[&down[..]][..]), (DOWN, &[a, b], &[down, &up])] {
        let open = round_open(4, task, factors);
        receive(&mut device, &open, tensors).unwrap();
        assert_eq!(device.run(open.id, &mut no_samples.clone()), Err(DeclineReason::NoSamples));
    }
    // Streamed samples are not supported.
    receive(&mut device, &round_open(5, UP, &[a]), &[down]).unwrap();
    assert_eq!(device.begin(), Err(DeclineReason::Task));
}

#[test]
fn both_rounds_are_in_the_capabilities() {
    let device = Linear::new(Heap::new(12, 3, 4));
    let capabilities = device.capabilities();
    for bit in [UP.bit(), DOWN.bit()] {
        assert_eq!(capabilities.tasks & bit, bit);
        assert_eq!(device.streamed_tasks() & bit, 0);
    }
    let roles = Role::AdapterDown.bit() | Role::AdapterUp.bit();
    assert_eq!(capabilities.roles & roles, roles);
    assert_eq!((capabilities.tensors, capabilities.total_elements), (2, 12 * 3 + 3 * 4));
}
