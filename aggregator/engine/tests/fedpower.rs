//! Tests of the server side of FedPower: compared with a second implementation of Algorithms 1 to 3 in f64,
//! and with properties of the Procrustes alignment.

use crate::common::{bits, gaussian, random};
use fedspan_engine::aggregate::{Rule, UpdateWeight, procrustes};
use fedspan_engine::algorithm::{Algorithm, FedPower, FedPowerParameters, synchronisations};
use fedspan_engine::linalg::{
    Matrix, from_f32, orthonormal, principal_angle_distance, random_basis, to_f32, top_eigenspace,
};
use fedspan_engine::participation::WithReplacement;
use fedspan_engine::{DeviceId, Participation};
use fedspan_engine::{Tensor, Weighting};
use fedspan_protocol::message::{PowerRows, PowerUpload, Task};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

/// Parameters of Algorithm 2 without local steps, which the tests vary.
const ALGORITHM_2: FedPowerParameters = FedPowerParameters {
    iterations: 10,
    local_steps: 1,
    decay: false,
    procrustes: true,
    reference: None,
    rows: PowerRows::Features,
    download_encoding: Encoding::F32,
    upload_encoding: Encoding::F32,
    weighting: Weighting::Uniform,
    rule: Rule::MEAN,
};

/// Covariance matrices (d x d) of devices that share `k` directions approximately. `apart` is the size of the
/// differences.
fn covariances(devices: usize, d: usize, k: usize, apart: f64, seed: u64) -> Vec<Matrix> {
    let random = &mut random(seed);
    let common = random_basis(d, k, random);
    (0..devices)
        .map(|_| {
            let deviation = gaussian(d, d, random) * (apart / (d as f64).sqrt());
            let a = &common * common.transpose() + &deviation * deviation.transpose();
            &a / a.norm()
        })
        .collect()
}

/// Mean of matrices of equal size.
fn mean(all: &[Matrix]) -> Matrix {
    all.iter().fold(Matrix::zeros(all[0].nrows(), all[0].ncols()), |sum, a| sum + a) / all.len() as f64
}

/// Tensor of a basis or a product.
fn tensor(matrix: &Matrix) -> Tensor {
    let (rows, cols) = (matrix.nrows() as u16, matrix.ncols() as u16);
    Tensor { role: Role::Subspace, rows, cols, values: to_f32(matrix) }
}

/// Upload of a device with the covariance `a`, computed in f64 from the broadcast basis.
fn answer(a: &Matrix, request: &fedspan_engine::Request) -> Vec<Tensor> {
    let Task::FedPower { iterations, upload, .. } = request.task else { panic!("{:?}", request.task) };
    let sent = &request.tensors[0];
    let mut z = from_f32(sent.rows.into(), sent.cols.into(), &sent.values);
    let mut y = a * &z;
    for _ in 1..iterations {
        z = orthonormal(&y).unwrap();
        y = a * &z;
    }
    match upload {
        PowerUpload::Product => vec![tensor(&y)],
        PowerUpload::ProductAndBasis => vec![tensor(&y), tensor(&z)],
        _ => vec![tensor(&orthonormal(&y).unwrap())],
    }
}

/// Runs one exchange with all devices.
fn exchange(server: &mut FedPower, all: &[Matrix]) {
    let request = server.request();
    for (device, a) in all.iter().enumerate() {
        let tensors = answer(a, &request);
        assert_eq!(tensors.len(), request.expects.len());
        assert!(server.admits(1, &tensors));
        server.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &tensors);
    }
    server.finish().unwrap();
}

/// Runs all exchanges, and returns the server.
fn run(all: &[Matrix], start: &Matrix, parameters: FedPowerParameters) -> FedPower {
    let mut server = FedPower::new(start.clone(), parameters);
    for _ in 0..server.rounds_needed() {
        exchange(&mut server, all);
    }
    server
}

/// Second implementation of Algorithm 2 of the paper, in f64 and without noise. It computes the alignment by
/// Newton's iteration for the polar factor. `at` returns whether the devices synchronise after a step.
fn algorithm_2(all: &[Matrix], start: &Matrix, t: u16, at: impl Fn(u16) -> bool, aligned: bool) -> Matrix {
    let m = all.len();
    let polar = |z: &Matrix, reference: &Matrix| {
        let mut x = z.transpose() * reference;
        for _ in 0..60 {
            x = (&x + x.clone().try_inverse().unwrap().transpose()) / 2.0;
        }
        x
    };
    let mut z = vec![start.clone(); m];
    for step in 1..=t {
        let y: Vec<Matrix> = all.iter().zip(&z).map(|(a, z)| a * z).collect();
        if at(step) {
            let turned: Vec<Matrix> = y
                .iter()
                .zip(&z)
                .map(|(y, z_i)| if aligned { y * polar(z_i, &z[0]) } else { y.clone() })
                .collect();
            z = vec![orthonormal(&mean(&turned)).unwrap(); m];
        } else {
            z = y.iter().map(|y| orthonormal(y).unwrap()).collect();
        }
    }
    let turned: Vec<Matrix> =
        z.iter().map(|z_i| if aligned { z_i * polar(z_i, &z[0]) } else { z_i.clone() }).collect();
    orthonormal(&mean(&turned)).unwrap()
}

/// Tolerance for the rounding to f32 on the wire, which is magnified if bases nearly cancel in the mean.
const CLOSE: f64 = 1e-4;

#[test]
fn synchronisation_sets_match_paper() {
    let sums = |(steps, ends): (Vec<u16>, bool)| {
        let sums: Vec<u16> =
            steps.iter().scan(0, |sum, step| Some(std::mem::replace(sum, *sum + step) + step)).collect();
        (sums, ends)
    };
    let set = |p, decay| sums(synchronisations(10, p, decay));
    assert_eq!(set(1, false), ((1..=10).collect(), true));
    assert_eq!(set(1, true), ((1..=10).collect(), true));
    assert_eq!(set(2, false), (vec![2, 4, 6, 8, 10], true));
    assert_eq!(set(2, true), ((2..=10).collect(), true));
    assert_eq!(set(4, true), (vec![4, 7, 9, 10], true));
    assert_eq!(set(4, false), (vec![4, 8, 10], false));
    assert_eq!(set(10, false), (vec![10], true));
    assert_eq!(set(11, false), (vec![10], false), "a single exchange, for output only");
    assert_eq!(set(9, true), (vec![9, 10], false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn steps_sum_to_t(t in 1u16..500, p in 1u16..500, decay in any::<bool>()) {
        let (steps, ends) = synchronisations(t, p, decay);
        prop_assert_eq!(steps.iter().sum::<u16>(), t);
        prop_assert!(steps.iter().all(|step| (1..=p).contains(step)));
        prop_assert!(steps.windows(2).all(|pair| pair[1] <= pair[0]));
        let regular = steps.len() - usize::from(!ends);
        let expected = |place: usize| if decay { p.saturating_sub(place as u16).max(1) } else { p };
        prop_assert!(steps.iter().take(regular).enumerate().all(|(place, step)| *step == expected(place)));
    }

    #[test]
    fn fedpower_matches_algorithm_2(
        seed in any::<u64>(), m in 1usize..6, p in 1u16..5, decay in any::<bool>(), aligned in any::<bool>()
    ) {
        let all = covariances(m, 9, 3, 0.2, seed);
        let start = random_basis(9, 3, &mut random(seed ^ 1));
        let t = 7;
        let (steps, ends) = synchronisations(t, p, decay);
        let mut at: Vec<u16> = steps.iter().scan(0, |sum, step| { *sum += step; Some(*sum) }).collect();
        if !ends {
            at.pop();
        }
        let expected = algorithm_2(&all, &start, t, |step| at.contains(&step), aligned);
        let parameters = FedPowerParameters { iterations: t, local_steps: p, decay, procrustes: aligned, ..ALGORITHM_2 };
        let server = run(&all, &start, parameters);
        let off = principal_angle_distance(server.representation(), &expected);
        prop_assert!(off < CLOSE, "{off:e}");
    }

    #[test]
    fn procrustes_is_optimal_rotation(seed in any::<u64>(), r in 1usize..6) {
        let random = &mut random(seed);
        let (basis, reference) = (gaussian(8, r, random), gaussian(8, r, random));
        let best = procrustes(&basis, &reference);
        prop_assert!((best.transpose() * &best - Matrix::identity(r, r)).norm() < 1e-12);
        let least = (&basis * &best - &reference).norm();
        for _ in 0..20 {
            let other = random_basis(r, r, random);
            prop_assert!(least <= (&basis * other - &reference).norm() + 1e-12);
        }
        // Two bases of the same subspace are equal after the alignment.
        let turned = &basis * random_basis(r, r, random);
        prop_assert!((&turned * procrustes(&turned, &basis) - &basis).norm() < 1e-9 * basis.norm());
    }

    /// The mean does not depend on signs and rotations of the bases of devices other than the reference.
    #[test]
    fn device_rotations_change_nothing(seed in any::<u64>()) {
        let random = &mut random(seed);
        let all = covariances(4, 9, 3, 0.2, seed);
        let start = random_basis(9, 3, random);
        let parameters = FedPowerParameters { local_steps: 3, ..ALGORITHM_2 };
        let (mut one, mut other) = (FedPower::new(start.clone(), parameters), FedPower::new(start, parameters));
        let request = one.request();
        for (device, a) in all.iter().enumerate() {
            let tensors = answer(a, &request);
            one.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &tensors);
            let turn = random_basis(3, 3, random);
            // Device 0 is the reference, which determines the basis of the result.
            let turn = if device == 0 { Matrix::identity(3, 3) } else { turn };
            let turned: Vec<Tensor> =
                tensors.iter().map(|t| tensor(&(from_f32(9, 3, &t.values) * &turn))).collect();
            other.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &turned);
        }
        one.finish().unwrap();
        other.finish().unwrap();
        let off = (one.representation() - other.representation()).norm();
        prop_assert!(off < CLOSE, "{off:e}");
    }

    /// The result is bit-identical for any order of arrival, and after restarts between exchanges.
    #[test]
    fn order_and_restarts_keep_every_bit(seed in any::<u64>(), p in 1u16..5, rule in 0usize..3) {
        let rule = [Rule::MEAN, Rule::GEOMETRIC_MEDIAN, Rule::PROJECTOR_MEAN][rule];
        let all = covariances(5, 8, 2, 0.2, seed);
        let start = random_basis(8, 2, &mut random(seed));
        let parameters = FedPowerParameters { iterations: 6, local_steps: p, rule, ..ALGORITHM_2 };
        let (mut one, mut other) =
            (FedPower::new(start.clone(), parameters), FedPower::new(start.clone(), parameters));
        for round in 0..one.rounds_needed() {
            let request = one.request();
            prop_assert_eq!(&request, &other.request());
            let answers: Vec<_> = all.iter().map(|a| answer(a, &request)).collect();
            for device in 0..5 {
                let reversed = (4 - device + round as usize) % 5;
                one.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &answers[device]);
                other.absorb(DeviceId(reversed as u64), UpdateWeight::from_samples(1), &answers[reversed]);
            }
            one.finish().unwrap();
            other.finish().unwrap();
            prop_assert_eq!(bits(one.representation()), bits(other.representation()));
            let mut again = FedPower::new(start.clone(), parameters);
            prop_assert!(again.restore(&other.state()));
            prop_assert!(!again.restore(&other.state()[1..]));
            other = again;
        }
    }
}

#[test]
fn single_steps_equal_power_method_on_mean() {
    let all = covariances(6, 12, 3, 0.3, 1);
    let pooled = mean(&all);
    let start = random_basis(12, 5, &mut random(2));
    let server = run(&all, &start, FedPowerParameters { iterations: 60, ..ALGORITHM_2 });
    let truth = top_eigenspace(&pooled, 3);
    // The basis has 5 columns, so its span contains the 3 leading directions.
    let off = principal_angle_distance(server.representation(), &truth);
    assert!(off < CLOSE, "{off:e}");
    let mut centralised = start;
    for _ in 0..60 {
        centralised = orthonormal(&(&pooled * centralised)).unwrap();
    }
    assert!(principal_angle_distance(server.representation(), &centralised) < CLOSE);
}

/// With many local steps the devices' bases are rotated against each other, and without alignment they partly
/// cancel in the mean.
#[test]
fn local_steps_need_alignment() {
    let all = covariances(8, 12, 3, 0.15, 3);
    let truth = top_eigenspace(&mean(&all), 3);
    let start = random_basis(12, 3, &mut random(4));
    let off = |procrustes| {
        let parameters = FedPowerParameters { iterations: 40, local_steps: 20, procrustes, ..ALGORITHM_2 };
        principal_angle_distance(run(&all, &start, parameters).representation(), &truth)
    };
    assert!(off(true) < 0.05, "{}", off(true));
    assert!(off(false) > 2.0 * off(true), "{} and {}", off(false), off(true));
}

/// A single exchange under [`Rule::PROJECTOR_MEAN`] equals the one-shot divide and conquer of Fan et al.
/// 2019: the mean of the projectors onto the devices' leading eigenspaces.
#[test]
fn single_exchange_equals_divide_and_conquer() {
    let all = covariances(8, 12, 3, 0.1, 5);
    let projectors: Vec<Matrix> =
        all.iter().map(|a| top_eigenspace(a, 3)).map(|basis| &basis * basis.transpose()).collect();
    let expected = top_eigenspace(&mean(&projectors), 3);
    let parameters =
        FedPowerParameters { iterations: 200, local_steps: 200, rule: Rule::PROJECTOR_MEAN, ..ALGORITHM_2 };
    let server = run(&all, &random_basis(12, 3, &mut random(6)), parameters);
    assert_eq!(server.rounds_needed(), 1);
    let off = principal_angle_distance(server.representation(), &expected);
    assert!(off < CLOSE, "{off:e}");
}

/// The reference is missing in one round, and the first two devices in the next. Another device becomes the
/// reference, and the span hardly changes.
#[test]
fn lost_reference_is_replaced_and_span_is_kept() {
    let all = covariances(6, 12, 3, 0.1, 7);
    let truth = top_eigenspace(&mean(&all), 3);
    let start = random_basis(12, 3, &mut random(8));
    let parameters =
        FedPowerParameters { iterations: 30, local_steps: 3, reference: Some(DeviceId(4)), ..ALGORITHM_2 };
    let fleet = [0, 1, 2, 3, 4, 5].map(DeviceId);
    let worst_distance = |lost: fn(usize, DeviceId) -> bool| {
        let mut server = FedPower::new(start.clone(), parameters);
        let mut worst: f64 = 0.0;
        for round in 0..server.rounds_needed() as usize {
            let present: Vec<DeviceId> = fleet.iter().copied().filter(|id| !lost(round, *id)).collect();
            let reference = if present.contains(&DeviceId(4)) { DeviceId(4) } else { present[0] };
            assert_eq!(server.reference(&present), Some(reference));
            let request = server.request();
            for device in present {
                server.absorb(
                    device,
                    UpdateWeight::from_samples(1),
                    &answer(&all[device.0 as usize], &request),
                );
            }
            server.finish().unwrap();
            if round >= 3 {
                worst = worst.max(principal_angle_distance(server.representation(), &truth));
            }
        }
        worst
    };
    let (all_present, some_lost) = (
        worst_distance(|_, _| false),
        worst_distance(|round, id| round == 5 && id == DeviceId(4) || round == 6 && id < DeviceId(2)),
    );
    assert!(all_present < 0.02, "{all_present}");
    // In these two rounds some updates are missing, so the span may change slightly.
    assert!(some_lost < 0.02 + all_present, "{some_lost}");
    // With another reference, the mean of the same devices has nearly the same span.
    let once = |reference| {
        let mut server = FedPower::new(start.clone(), FedPowerParameters { reference, ..parameters });
        exchange(&mut server, &all);
        server.representation().clone()
    };
    let (one, other) = (once(Some(DeviceId(0))), once(Some(DeviceId(5))));
    assert!(principal_angle_distance(&one, &other) < 0.02);
}

/// Algorithm 3: each device is weighted by its number of draws. A reference that was not drawn has no weight.
#[test]
fn draws_act_as_weights() {
    let all = covariances(4, 9, 2, 0.3, 9);
    let start = random_basis(9, 2, &mut random(10));
    let parameters = FedPowerParameters { iterations: 4, local_steps: 2, ..ALGORITHM_2 };
    let mut drawn = FedPower::new(start.clone(), parameters);
    let mut repeated =
        FedPower::new(start, FedPowerParameters { reference: Some(DeviceId(10)), ..parameters });
    let request = drawn.request();
    let mut share = |device: usize, draws: u32| {
        drawn.absorb(
            DeviceId(device as u64),
            UpdateWeight { samples: 1, draws },
            &answer(&all[device], &request),
        );
    };
    // Device 0 was not drawn and is invited as the reference only.
    share(0, 0);
    share(1, 1);
    share(3, 3);
    // The expected result: uploads aligned with device 0 by hand, and repeated as often as they were drawn.
    let turned = |device: usize| {
        let (upload, reference) = (answer(&all[device], &request), answer(&all[0], &request));
        let matrix = |t: &Tensor| from_f32(9, 2, &t.values);
        let turn = procrustes(&matrix(&upload[1]), &matrix(&reference[1]));
        vec![tensor(&(matrix(&upload[0]) * turn)), reference[1].clone()]
    };
    for (place, device) in [1, 3, 3, 3].into_iter().enumerate() {
        repeated.absorb(DeviceId(10 + place as u64), UpdateWeight::from_samples(1), &turned(device));
    }
    drawn.finish().unwrap();
    repeated.finish().unwrap();
    assert!((drawn.representation() - repeated.representation()).norm() < CLOSE);
    // If only a reference without draws has answered, its update is used.
    let before = drawn.representation().clone();
    let request = drawn.request();
    drawn.absorb(DeviceId(2), UpdateWeight { samples: 1, draws: 0 }, &answer(&all[2], &request));
    drawn.finish().unwrap();
    assert_ne!(bits(&before), bits(drawn.representation()));
    // A round without updates does not change the state, so the exchange is repeated.
    let state = drawn.state();
    drawn.finish().unwrap();
    assert_eq!(state, drawn.state());
}

#[test]
fn sampling_with_replacement_is_uniform() {
    let fleet: Vec<DeviceId> = (0..10).map(|id| DeviceId(3 * id + 1)).collect();
    let mut policy = WithReplacement { draws: 6, seed: 5 };
    let mut counts = [0u32; 10];
    let rounds = 20_000;
    for round in 0..rounds {
        let cohort = policy.cohort(round, &fleet);
        assert_eq!(cohort.draws.values().sum::<u32>(), 6);
        assert_eq!(cohort.devices, cohort.draws.keys().copied().collect::<Vec<_>>());
        assert_eq!(cohort.target, cohort.devices.len());
        for (device, draws) in &cohort.draws {
            counts[fleet.binary_search(device).unwrap()] += draws;
        }
        assert_eq!(policy.cohort(round, &fleet), cohort);
        let mut with = cohort.clone();
        with.add_reference(DeviceId(1));
        assert!(
            with.devices.is_sorted()
                && with.devices.contains(&DeviceId(1))
                && with.target == with.devices.len()
        );
        assert_eq!(with.draws.values().sum::<u32>(), 6);
    }
    let expected = f64::from(rounds) * 0.6;
    let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
    // With nine degrees of freedom, chi squared exceeds 43 with a probability of about one in a million.
    assert!(chi < 43.0, "{chi}: {counts:?}");
}

#[test]
fn basis_unfit_for_alignment_is_not_admitted() {
    let all = covariances(2, 9, 2, 0.3, 11);
    let start = random_basis(9, 2, &mut random(12));
    let two = FedPower::new(start.clone(), FedPowerParameters { local_steps: 2, ..ALGORITHM_2 });
    let good = answer(&all[0], &two.request());
    assert!(two.admits(1, &good));
    let scaled = tensor(&(from_f32(9, 2, &good[1].values) * 1.1));
    assert!(!two.admits(1, &[good[0].clone(), scaled]));
    let zero = tensor(&Matrix::zeros(9, 2));
    assert!(!two.admits(1, &[good[0].clone(), zero.clone()]));
    let one_shot = FedPowerParameters { local_steps: 10, rule: Rule::PROJECTOR_MEAN, ..ALGORITHM_2 };
    assert!(!FedPower::new(start.clone(), one_shot).admits(1, std::slice::from_ref(&zero)));
    // A product may be rank deficient; only the mean must have full rank.
    let mut one = FedPower::new(start, ALGORITHM_2);
    assert!(one.admits(1, std::slice::from_ref(&zero)));
    let state = one.state();
    one.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[zero]);
    assert!(one.finish().is_err());
    assert_eq!(one.state(), state);
}
