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

/// Covariance matrices (d x d) of devices that share `k` directions approximately.
/// `deviation_size` is the size of the differences.
fn random_covariances(devices: usize, d: usize, k: usize, deviation_size: f64, seed: u64) -> Vec<Matrix> {
    let random = &mut random(seed);
    let common = random_basis(d, k, random);
    (0..devices)
        .map(|_| {
            let deviation = gaussian(d, d, random) * (deviation_size / (d as f64).sqrt());
            let a = &common * common.transpose() + &deviation * deviation.transpose();
            &a / a.norm()
        })
        .collect()
}

/// Mean of matrices of equal size.
fn mean_matrix(matrices: &[Matrix]) -> Matrix {
    matrices.iter().fold(Matrix::zeros(matrices[0].nrows(), matrices[0].ncols()), |sum, a| sum + a)
        / matrices.len() as f64
}

/// Tensor of a basis or a product.
fn subspace_tensor(matrix: &Matrix) -> Tensor {
    let (rows, cols) = (matrix.nrows() as u16, matrix.ncols() as u16);
    Tensor { role: Role::Subspace, rows, cols, values: to_f32(matrix) }
}

/// Upload of a device with the covariance `a`, computed in f64 from the broadcast basis.
fn create_upload(a: &Matrix, request: &fedspan_engine::Request) -> Vec<Tensor> {
    let Task::FedPower { iterations, upload, .. } = request.task else { panic!("{:?}", request.task) };
    let broadcast_basis = &request.tensors[0];
    let mut z = from_f32(broadcast_basis.rows.into(), broadcast_basis.cols.into(), &broadcast_basis.values);
    let mut y = a * &z;
    for _ in 1..iterations {
        z = orthonormal(&y).unwrap();
        y = a * &z;
    }
    match upload {
        PowerUpload::Product => vec![subspace_tensor(&y)],
        PowerUpload::ProductAndBasis => vec![subspace_tensor(&y), subspace_tensor(&z)],
        _ => vec![subspace_tensor(&orthonormal(&y).unwrap())],
    }
}

/// Runs one exchange, that is one broadcast and the uploads of all devices.
fn run_exchange(server: &mut FedPower, covariances: &[Matrix]) {
    let request = server.request();
    for (device, a) in covariances.iter().enumerate() {
        let tensors = create_upload(a, &request);
        assert_eq!(tensors.len(), request.expects.len());
        assert!(server.admits(1, &tensors));
        server.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &tensors);
    }
    server.finish().unwrap();
}

/// Runs all exchanges, and returns the server.
fn run_algorithm(covariances: &[Matrix], start: &Matrix, parameters: FedPowerParameters) -> FedPower {
    let mut server = FedPower::new(start.clone(), parameters);
    for _ in 0..server.rounds_needed() {
        run_exchange(&mut server, covariances);
    }
    server
}

/// Second implementation of Algorithm 2 of the paper, in f64 and without noise. It computes the alignment by
/// Newton's iteration for the polar factor. `synchronises` returns whether the
/// devices synchronise after a step.
fn algorithm_2(
    covariances: &[Matrix],
    start: &Matrix,
    t: u16,
    synchronises: impl Fn(u16) -> bool,
    aligns: bool,
) -> Matrix {
    let m = covariances.len();
    let polar = |z: &Matrix, reference: &Matrix| {
        let mut x = z.transpose() * reference;
        for _ in 0..60 {
            x = (&x + x.clone().try_inverse().unwrap().transpose()) / 2.0;
        }
        x
    };
    let mut z = vec![start.clone(); m];
    for step in 1..=t {
        let y: Vec<Matrix> = covariances.iter().zip(&z).map(|(a, z)| a * z).collect();
        if synchronises(step) {
            let aligned_bases: Vec<Matrix> = y
                .iter()
                .zip(&z)
                .map(|(y, z_i)| if aligns { y * polar(z_i, &z[0]) } else { y.clone() })
                .collect();
            z = vec![orthonormal(&mean_matrix(&aligned_bases)).unwrap(); m];
        } else {
            z = y.iter().map(|y| orthonormal(y).unwrap()).collect();
        }
    }
    let aligned_bases: Vec<Matrix> =
        z.iter().map(|z_i| if aligns { z_i * polar(z_i, &z[0]) } else { z_i.clone() }).collect();
    orthonormal(&mean_matrix(&aligned_bases)).unwrap()
}

/// Tolerance for the rounding to f32 on the wire, which is magnified if bases nearly cancel in the mean.
const CLOSE: f64 = 1e-4;

#[test]
fn synchronisation_sets_match_paper() {
    let cumulate = |(steps, ends): (Vec<u16>, bool)| {
        let sums: Vec<u16> =
            steps.iter().scan(0, |sum, step| Some(std::mem::replace(sum, *sum + step) + step)).collect();
        (sums, ends)
    };
    let synchronisation_steps = |p, decay| cumulate(synchronisations(10, p, decay));
    assert_eq!(synchronisation_steps(1, false), ((1..=10).collect(), true));
    assert_eq!(synchronisation_steps(1, true), ((1..=10).collect(), true));
    assert_eq!(synchronisation_steps(2, false), (vec![2, 4, 6, 8, 10], true));
    assert_eq!(synchronisation_steps(2, true), ((2..=10).collect(), true));
    assert_eq!(synchronisation_steps(4, true), (vec![4, 7, 9, 10], true));
    assert_eq!(synchronisation_steps(4, false), (vec![4, 8, 10], false));
    assert_eq!(synchronisation_steps(10, false), (vec![10], true));
    assert_eq!(
        synchronisation_steps(11, false),
        (vec![10], false),
        "there is more than the single exchange for the output"
    );
    assert_eq!(synchronisation_steps(9, true), (vec![9, 10], false));
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
        let expected = |index: usize| if decay { p.saturating_sub(index as u16).max(1) } else { p };
        prop_assert!(steps.iter().take(regular).enumerate().all(|(index, step)| *step == expected(index)));
    }

    #[test]
    fn fedpower_matches_algorithm_2(
        seed in any::<u64>(), m in 1usize..6, p in 1u16..5, decay in any::<bool>(), aligned in any::<bool>()
    ) {
        let covariances = random_covariances(m, 9, 3, 0.2, seed);
        let start = random_basis(9, 3, &mut random(seed ^ 1));
        let t = 7;
        let (steps, ends) = synchronisations(t, p, decay);
        let mut synchronised_steps: Vec<u16> = steps
            .iter()
            .scan(0, |sum, step| {
                *sum += step;
                Some(*sum)
            })
            .collect();
        if !ends {
            synchronised_steps.pop();
        }
        let expected =
            algorithm_2(&covariances, &start, t, |step| synchronised_steps.contains(&step), aligned);
        let parameters =
            FedPowerParameters { iterations: t, local_steps: p, decay, procrustes: aligned, ..ALGORITHM_2 };
        let server = run_algorithm(&covariances, &start, parameters);
        let distance = principal_angle_distance(server.representation(), &expected);
        prop_assert!(distance < CLOSE, "{distance:e}");
    }

    #[test]
    fn procrustes_is_optimal_rotation(seed in any::<u64>(), r in 1usize..6) {
        let random = &mut random(seed);
        let (basis, reference) = (gaussian(8, r, random), gaussian(8, r, random));
        let alignment = procrustes(&basis, &reference);
        prop_assert!((alignment.transpose() * &alignment - Matrix::identity(r, r)).norm() < 1e-12);
        let min_distance = (&basis * &alignment - &reference).norm();
        for _ in 0..20 {
            let rotation = random_basis(r, r, random);
            prop_assert!(min_distance <= (&basis * rotation - &reference).norm() + 1e-12);
        }
        // Two bases of the same subspace are equal after the alignment.
        let rotated_basis = &basis * random_basis(r, r, random);
        prop_assert!(
            (&rotated_basis * procrustes(&rotated_basis, &basis) - &basis).norm() < 1e-9 * basis.norm()
        );
    }

    /// The mean does not depend on signs and rotations of the bases of devices other than the reference.
    #[test]
    fn device_rotations_change_nothing(seed in any::<u64>()) {
        let random = &mut random(seed);
        let covariances = random_covariances(4, 9, 3, 0.2, seed);
        let start = random_basis(9, 3, random);
        let parameters = FedPowerParameters { local_steps: 3, ..ALGORITHM_2 };
        let mut server = FedPower::new(start.clone(), parameters);
        let mut rotated_server = FedPower::new(start, parameters);
        let request = server.request();
        for (device, a) in covariances.iter().enumerate() {
            let tensors = create_upload(a, &request);
            server.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &tensors);
            let rotation = random_basis(3, 3, random);
            // Device 0 is the reference, which determines the basis of the result.
            let rotation = if device == 0 { Matrix::identity(3, 3) } else { rotation };
            let rotated_upload: Vec<Tensor> =
                tensors.iter().map(|t| subspace_tensor(&(from_f32(9, 3, &t.values) * &rotation))).collect();
            rotated_server.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &rotated_upload);
        }
        server.finish().unwrap();
        rotated_server.finish().unwrap();
        let difference = (server.representation() - rotated_server.representation()).norm();
        prop_assert!(difference < CLOSE, "{difference:e}");
    }

    /// The result is bit-identical for any order of arrival, and after restarts between exchanges.
    #[test]
    fn order_and_restarts_keep_every_bit(seed in any::<u64>(), p in 1u16..5, rule in 0usize..3) {
        let rule = [Rule::MEAN, Rule::GEOMETRIC_MEDIAN, Rule::PROJECTOR_MEAN][rule];
        let covariances = random_covariances(5, 8, 2, 0.2, seed);
        let start = random_basis(8, 2, &mut random(seed));
        let parameters = FedPowerParameters { iterations: 6, local_steps: p, rule, ..ALGORITHM_2 };
        let (mut server, mut restarted_server) =
            (FedPower::new(start.clone(), parameters), FedPower::new(start.clone(), parameters));
        for round in 0..server.rounds_needed() {
            let request = server.request();
            prop_assert_eq!(&request, &restarted_server.request());
            let answers: Vec<_> = covariances.iter().map(|a| create_upload(a, &request)).collect();
            for device in 0..5 {
                let reversed = (4 - device + round as usize) % 5;
                server.absorb(DeviceId(device as u64), UpdateWeight::from_samples(1), &answers[device]);
                restarted_server.absorb(
                    DeviceId(reversed as u64),
                    UpdateWeight::from_samples(1),
                    &answers[reversed],
                );
            }
            server.finish().unwrap();
            restarted_server.finish().unwrap();
            prop_assert_eq!(bits(server.representation()), bits(restarted_server.representation()));
            let mut resumed = FedPower::new(start.clone(), parameters);
            prop_assert!(resumed.restore(&restarted_server.state()));
            prop_assert!(!resumed.restore(&restarted_server.state()[1..]));
            restarted_server = resumed;
        }
    }
}

#[test]
fn single_steps_equal_power_method_on_mean() {
    let covariances = random_covariances(6, 12, 3, 0.3, 1);
    let pooled = mean_matrix(&covariances);
    let start = random_basis(12, 5, &mut random(2));
    let server = run_algorithm(&covariances, &start, FedPowerParameters { iterations: 60, ..ALGORITHM_2 });
    let truth = top_eigenspace(&pooled, 3);
    // The basis has 5 columns, so its span contains the 3 leading directions.
    let distance = principal_angle_distance(server.representation(), &truth);
    assert!(distance < CLOSE, "{distance:e}");
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
    let covariances = random_covariances(8, 12, 3, 0.15, 3);
    let truth = top_eigenspace(&mean_matrix(&covariances), 3);
    let start = random_basis(12, 3, &mut random(4));
    let distance_to_truth = |procrustes| {
        let parameters = FedPowerParameters { iterations: 40, local_steps: 20, procrustes, ..ALGORITHM_2 };
        principal_angle_distance(run_algorithm(&covariances, &start, parameters).representation(), &truth)
    };
    assert!(distance_to_truth(true) < 0.05, "{}", distance_to_truth(true));
    assert!(
        distance_to_truth(false) > 2.0 * distance_to_truth(true),
        "{} and {}",
        distance_to_truth(false),
        distance_to_truth(true)
    );
}

/// A single exchange under [`Rule::PROJECTOR_MEAN`] equals the one-shot divide and conquer of Fan et al.
/// 2019: the mean of the projectors onto the devices' leading eigenspaces.
#[test]
fn single_exchange_equals_divide_and_conquer() {
    let covariances = random_covariances(8, 12, 3, 0.1, 5);
    let projectors: Vec<Matrix> =
        covariances.iter().map(|a| top_eigenspace(a, 3)).map(|basis| &basis * basis.transpose()).collect();
    let expected = top_eigenspace(&mean_matrix(&projectors), 3);
    let parameters =
        FedPowerParameters { iterations: 200, local_steps: 200, rule: Rule::PROJECTOR_MEAN, ..ALGORITHM_2 };
    let server = run_algorithm(&covariances, &random_basis(12, 3, &mut random(6)), parameters);
    assert_eq!(server.rounds_needed(), 1);
    let distance = principal_angle_distance(server.representation(), &expected);
    assert!(distance < CLOSE, "{distance:e}");
}

/// The reference is missing in one round, and the first two devices in the next. Another device becomes the
/// reference, and the span hardly changes.
#[test]
fn lost_reference_is_replaced_and_span_is_kept() {
    let covariances = random_covariances(6, 12, 3, 0.1, 7);
    let truth = top_eigenspace(&mean_matrix(&covariances), 3);
    let start = random_basis(12, 3, &mut random(8));
    let parameters =
        FedPowerParameters { iterations: 30, local_steps: 3, reference: Some(DeviceId(4)), ..ALGORITHM_2 };
    let fleet = [0, 1, 2, 3, 4, 5].map(DeviceId);
    let worst_distance = |is_lost: fn(usize, DeviceId) -> bool| {
        let mut server = FedPower::new(start.clone(), parameters);
        let mut worst: f64 = 0.0;
        for round in 0..server.rounds_needed() as usize {
            let present: Vec<DeviceId> = fleet.iter().copied().filter(|id| !is_lost(round, *id)).collect();
            let reference = if present.contains(&DeviceId(4)) { DeviceId(4) } else { present[0] };
            assert_eq!(server.reference(&present), Some(reference));
            let request = server.request();
            for device in present {
                server.absorb(
                    device,
                    UpdateWeight::from_samples(1),
                    &create_upload(&covariances[device.0 as usize], &request),
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
    let representation_with = |reference| {
        let mut server = FedPower::new(start.clone(), FedPowerParameters { reference, ..parameters });
        run_exchange(&mut server, &covariances);
        server.representation().clone()
    };
    let (first, second) = (representation_with(Some(DeviceId(0))), representation_with(Some(DeviceId(5))));
    assert!(principal_angle_distance(&first, &second) < 0.02);
}

/// Algorithm 3: each device is weighted by its number of draws. A reference that was not drawn has no weight.
#[test]
fn draws_act_as_weights() {
    let covariances = random_covariances(4, 9, 2, 0.3, 9);
    let start = random_basis(9, 2, &mut random(10));
    let parameters = FedPowerParameters { iterations: 4, local_steps: 2, ..ALGORITHM_2 };
    let mut drawn = FedPower::new(start.clone(), parameters);
    let mut repeated =
        FedPower::new(start, FedPowerParameters { reference: Some(DeviceId(10)), ..parameters });
    let request = drawn.request();
    let mut absorb_with_draws = |device: usize, draws: u32| {
        drawn.absorb(
            DeviceId(device as u64),
            UpdateWeight { samples: 1, draws },
            &create_upload(&covariances[device], &request),
        );
    };
    // Device 0 was not drawn and is invited as the reference only.
    absorb_with_draws(0, 0);
    absorb_with_draws(1, 1);
    absorb_with_draws(3, 3);
    // The expected result: uploads aligned with device 0 by hand, and repeated as often as they were drawn.
    let aligned_upload = |device: usize| {
        let (upload, reference) =
            (create_upload(&covariances[device], &request), create_upload(&covariances[0], &request));
        let matrix = |t: &Tensor| from_f32(9, 2, &t.values);
        let rotation = procrustes(&matrix(&upload[1]), &matrix(&reference[1]));
        vec![subspace_tensor(&(matrix(&upload[0]) * rotation)), reference[1].clone()]
    };
    for (index, device) in [1, 3, 3, 3].into_iter().enumerate() {
        repeated.absorb(DeviceId(10 + index as u64), UpdateWeight::from_samples(1), &aligned_upload(device));
    }
    drawn.finish().unwrap();
    repeated.finish().unwrap();
    assert!((drawn.representation() - repeated.representation()).norm() < CLOSE);
    // If only a reference without draws has answered, its update is used.
    let representation_before = drawn.representation().clone();
    let request = drawn.request();
    drawn.absorb(
        DeviceId(2),
        UpdateWeight { samples: 1, draws: 0 },
        &create_upload(&covariances[2], &request),
    );
    drawn.finish().unwrap();
    assert_ne!(bits(&representation_before), bits(drawn.representation()));
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
        let mut with_reference = cohort.clone();
        with_reference.add_reference(DeviceId(1));
        assert!(
            with_reference.devices.is_sorted()
                && with_reference.devices.contains(&DeviceId(1))
                && with_reference.target == with_reference.devices.len()
        );
        assert_eq!(with_reference.draws.values().sum::<u32>(), 6);
    }
    let expected = f64::from(rounds) * 0.6;
    let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
    // With nine degrees of freedom, chi squared exceeds 43 with a probability of about one in a million.
    assert!(chi < 43.0, "{chi}: {counts:?}");
}

#[test]
fn basis_unfit_for_alignment_is_not_admitted() {
    let covariances = random_covariances(2, 9, 2, 0.3, 11);
    let start = random_basis(9, 2, &mut random(12));
    let aligning_server = FedPower::new(start.clone(), FedPowerParameters { local_steps: 2, ..ALGORITHM_2 });
    let valid_upload = create_upload(&covariances[0], &aligning_server.request());
    assert!(aligning_server.admits(1, &valid_upload));
    let scaled = subspace_tensor(&(from_f32(9, 2, &valid_upload[1].values) * 1.1));
    assert!(!aligning_server.admits(1, &[valid_upload[0].clone(), scaled]));
    let zero = subspace_tensor(&Matrix::zeros(9, 2));
    assert!(!aligning_server.admits(1, &[valid_upload[0].clone(), zero.clone()]));
    let one_shot = FedPowerParameters { local_steps: 10, rule: Rule::PROJECTOR_MEAN, ..ALGORITHM_2 };
    assert!(!FedPower::new(start.clone(), one_shot).admits(1, std::slice::from_ref(&zero)));
    // A product may be rank deficient; only the mean must have full rank.
    let mut server = FedPower::new(start, ALGORITHM_2);
    assert!(server.admits(1, std::slice::from_ref(&zero)));
    let state = server.state();
    server.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[zero]);
    assert!(server.finish().is_err());
    assert_eq!(server.state(), state);
}
