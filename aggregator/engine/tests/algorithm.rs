//! Tests of the server side of the algorithms on linear models, and of the starts, which compute the initial
//! representation: compared with their formulas in f64, and restored from their state.

use crate::common;
use crate::common::{bits, distance, gaussian, random, random_tensors};
use fedspan_engine::aggregate::{Rule, UpdateWeight};
use fedspan_engine::algorithm::{
    Algorithm, FedAvg, FedAvgParameters, FedRep, FedRepParameters, LinearAdapter, LinearAdapterParameters,
    MomentsStart, PowerStart, random_start,
};
use fedspan_engine::linalg::{Matrix, from_f32, orthonormal, principal_angle_distance, random_basis, to_f32};
use fedspan_engine::{DeviceId, Tensor, Weighting};
use fedspan_protocol::message::{HeadSolve, Task, Upload};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

/// Head solver in all requests.
const HEAD: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };
/// Step size of the representation.
const ETA: f32 = 0.25;

/// Parameters of FedRep with uploads of gradients, f32 encodings and equal weights.
fn fedrep_parameters() -> FedRepParameters {
    FedRepParameters {
        step_size: ETA,
        head: HEAD,
        upload: Upload::Gradient,
        download_encoding: Encoding::F32,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::MEAN,
    }
}

fn gradient_tensor(matrix: &Matrix) -> Tensor {
    Tensor {
        role: Role::Gradient,
        rows: matrix.nrows() as u16,
        cols: matrix.ncols() as u16,
        values: to_f32(matrix),
    }
}

/// Matrix rounded to f32.
fn round_to_f32(matrix: &Matrix) -> Matrix {
    from_f32(matrix.nrows(), matrix.ncols(), &to_f32(matrix))
}

/// Q factor with a positive diagonal of R, by nalgebra's Cholesky decomposition: `Q = B R^-1` with
/// `R^T R = B^T B`.
fn q_factor(b: &Matrix) -> Matrix {
    let r = (b.transpose() * b).cholesky().unwrap().l().transpose();
    b * r.try_inverse().unwrap()
}

/// Random numbers of features d, directions k and devices n, and a seed.
fn random_shape() -> impl Strategy<Value = (usize, usize, usize, u64)> {
    (1usize..=5, 1usize..=15, 1usize..=8, any::<u64>())
        .prop_map(|(k, extra_features, n, seed)| (k + extra_features, k, n, seed))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fedrep_takes_mean_step_and_its_q(
        (d, k, n, seed) in random_shape(), by_samples in any::<bool>(),
        counts in proptest::collection::vec(1u32..50, 8)
    ) {
        let random = &mut random(seed);
        let start = random_basis(d, k, random);
        let weighting = if by_samples { Weighting::Samples } else { Weighting::Uniform };
        let mut server = FedRep::new(start.clone(), FedRepParameters { weighting, ..fedrep_parameters() });
        let broadcast_basis = round_to_f32(&start);
        prop_assert_eq!(&server.request().tensors[0].values, &to_f32(&start));
        let mut sum = Matrix::zeros(d, k);
        let mut weight = 0.0;
        for samples in counts.iter().take(n) {
            let gradient = gaussian(d, k, random) * 0.3;
            server.absorb(DeviceId(0), UpdateWeight::from_samples(*samples), &[gradient_tensor(&gradient)]);
            let w = if by_samples { f64::from(*samples) } else { 1.0 };
            sum += round_to_f32(&gradient) * w;
            weight += w;
        }
        server.finish().unwrap();
        let expected = q_factor(&(broadcast_basis - sum * (f64::from(ETA) / weight)));
        prop_assert!(distance(server.representation(), &expected) < 1e-10);
    }

    /// Uploads of gradients and uploads of representations after the step give the same mean, up to the
    /// rounding of f32.
    #[test]
    fn gradient_and_representation_uploads_agree((d, k, n, seed) in random_shape()) {
        let random = &mut random(seed);
        let start = random_basis(d, k, random);
        let mut by_gradient = FedRep::new(start.clone(), fedrep_parameters());
        let upload = Upload::Representation;
        let mut by_step = FedRep::new(start.clone(), FedRepParameters { upload, ..fedrep_parameters() });
        prop_assert_eq!(by_step.request().expects[0].role, Role::Representation);
        for _ in 0..n {
            let gradient = round_to_f32(&(gaussian(d, k, random) * 0.3));
            by_gradient.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[gradient_tensor(&gradient)]);
            by_step.absorb(
                DeviceId(0),
                UpdateWeight::from_samples(1),
                &[gradient_tensor(&(round_to_f32(&start) - &gradient * f64::from(ETA)))],
            );
        }
        by_gradient.finish().unwrap();
        by_step.finish().unwrap();
        prop_assert!(distance(by_gradient.representation(), by_step.representation()) < 1e-5);
    }

    /// If gradients G are orthogonal to B, then R^T R = I + eta^2 G^T G, so that Q differs from the step
    /// before QR only in second order.
    #[test]
    fn orthogonal_gradients_match_closed_form((d, k, n, seed) in random_shape(), size in 0.001f64..1.0) {
        let random = &mut random(seed);
        let start = random_basis(d, k, random);
        let mut server = FedRep::new(start.clone(), fedrep_parameters());
        let decoded_basis = round_to_f32(&start);
        let mut mean = Matrix::zeros(d, k);
        for _ in 0..n {
            let direction = gaussian(d, k, random) * size;
            let orthogonal = round_to_f32(&(&direction - &start * (start.transpose() * &direction)));
            server.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[gradient_tensor(&orthogonal)]);
            mean += orthogonal / n as f64;
        }
        server.finish().unwrap();
        let eta = f64::from(ETA);
        let stepped_basis = decoded_basis - &mean * eta;
        let r = server.representation().transpose() * &stepped_basis;
        let second = mean.transpose() * &mean * (eta * eta);
        let identity = Matrix::identity(k, k);
        let error = (r.transpose() * &r - &identity - &second).amax();
        prop_assert!(error < 2e-6 * (1.0 + mean.norm()), "{error:e}");
        prop_assert!((server.representation() - &stepped_basis).norm() <= second.norm() + 1e-5);
    }

    /// The server steps from the model that devices decode, not from the value before encoding.
    #[test]
    fn quantised_download_steps_from_decoded_model(
        (d, k, n, seed) in random_shape(), encoding in prop::sample::select(vec![Encoding::F16, Encoding::I8])
    ) {
        let random = &mut random(seed);
        let start = random_basis(d, k, random);
        let download_encoding = encoding;
        let mut server =
            FedRep::new(start.clone(), FedRepParameters { download_encoding, ..fedrep_parameters() });
        let request = server.request();
        prop_assert_eq!(request.encoding, encoding);
        // Decoding on the device, as in section 7 of SPEC.md.
        let values = &request.tensors[0].values;
        let mut decoded_basis = vec![0.0; values.len()];
        encoding.decode(&common::encode_values(encoding, values), &mut decoded_basis).unwrap();
        if encoding == Encoding::I8 {
            prop_assume!(orthonormalise(&mut decoded_basis, k).is_ok());
        }
        let decoded_basis = from_f32(d, k, &decoded_basis);
        let mut mean = Matrix::zeros(d, k);
        for _ in 0..n {
            let gradient = round_to_f32(&(gaussian(d, k, random) * 0.3));
            server.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[gradient_tensor(&gradient)]);
            mean += gradient / n as f64;
        }
        server.finish().unwrap();
        let expected = q_factor(&(decoded_basis - mean * f64::from(ETA)));
        prop_assert!(distance(server.representation(), &expected) < 1e-10);
    }

    #[test]
    fn fedavg_averages_both_tensors((d, k, n, seed) in random_shape(), outputs in 1usize..4) {
        let random = &mut random(seed);
        let mut server = create_fedavg(random_basis(d, k, random), outputs);
        let request = server.request();
        prop_assert_eq!(request.expects.len(), 2);
        let mut b = Matrix::zeros(d, k);
        let mut w = Matrix::zeros(k, outputs);
        for samples in 1..=n as u32 {
            let update = random_tensors(&request.expects, random, 1.0);
            b += from_f32(d, k, &update[0].values) / n as f64;
            w += from_f32(k, outputs, &update[1].values) / n as f64;
            server.absorb(DeviceId(0), UpdateWeight::from_samples(samples), &update);
        }
        server.finish().unwrap();
        prop_assert!(distance(server.representation(), &b) < 1e-10);
        prop_assert!(distance(server.shared_head().unwrap(), &w) < 1e-10);
        // Heads are fitted on an orthonormal basis of the same span.
        prop_assume!(k <= d);
        let fit = server.fit_request(HEAD);
        let fit_basis = from_f32(d, k, &fit.tensors[0].values);
        prop_assert!((fit_basis.transpose() * &fit_basis - Matrix::identity(k, k)).amax() < 1e-5);
        prop_assert!(
            principal_angle_distance(&orthonormal(&b).unwrap(), &orthonormal(&fit_basis).unwrap()) < 1e-4
        );
    }

    /// Rounds of B and of A alternate. The server averages the trained factor; after a round of A it takes
    /// the Q factor and leaves the product A B unchanged.
    #[test]
    fn rolora_averages_one_factor_per_round((d, k, n, seed) in random_shape()) {
        let random = &mut random(seed);
        let start = random_basis(d, k, random);
        let mut server = create_adapter(start.clone(), Some(ETA), Encoding::F32);
        let mean_of = |server: &mut LinearAdapter, random: &mut _| {
            let request = server.request();
            let [expected] = request.expects[..] else { panic!("one factor") };
            let (rows, cols) = (expected.rows.into(), expected.cols.into());
            let mut sum = Matrix::zeros(rows, cols);
            let mut weight = 0.0;
            for samples in 1..=n as u32 {
                let upload = random_tensors(&request.expects, random, 1.0);
                sum += from_f32(rows, cols, &upload[0].values) * f64::from(samples);
                weight += f64::from(samples);
                server.absorb(DeviceId(samples.into()), UpdateWeight::from_samples(samples), &upload);
            }
            (expected.role, sum / weight)
        };
        for _ in 0..3 {
            prop_assert_eq!(server.request().tensors.len(), 1);
            let (role, trained_up) = mean_of(&mut server, random);
            let down_factor = server.representation().clone();
            server.finish().unwrap();
            prop_assert_eq!(role, Role::AdapterUp);
            prop_assert!(distance(server.shared_head().unwrap(), &trained_up) < 1e-10);
            prop_assert_eq!(bits(server.representation()), bits(&down_factor));
            prop_assert_eq!(server.unchanged(), &[Role::AdapterDown]);

            prop_assert_eq!(server.request().tensors.len(), 2);
            let (role, down_factor) = mean_of(&mut server, random);
            let previous_state = server.state();
            prop_assert_eq!(role, Role::AdapterDown);
            if server.finish().is_err() {
                prop_assert_eq!(server.state(), previous_state, "a failed round changed the state");
                return Ok(());
            }
            let basis = server.representation();
            prop_assert!((basis.transpose() * basis - Matrix::identity(k, k)).amax() < 1e-10);
            let product = basis * server.shared_head().unwrap();
            prop_assert!(
                (product - &down_factor * &trained_up).amax()
                    < 1e-9 * (1.0 + down_factor.norm() * trained_up.norm())
            );
            prop_assert_eq!((server.unchanged(), server.interference()), (&[][..], Some(0.0)));
        }
    }

    /// FFA-LoRA never changes A, and does not send it again to devices that have it.
    #[test]
    fn ffa_lora_requests_b_alone((d, k, n, seed) in random_shape()) {
        let random = &mut random(seed);
        let start = random_basis(d, k, random);
        let mut server = create_adapter(start.clone(), None, Encoding::F32);
        for _ in 0..3 {
            let request = server.request();
            prop_assert_eq!(
                request.task.bit(),
                Task::AdapterUp { head: HEAD, encoding: Encoding::F32 }.bit()
            );
            prop_assert_eq!(server.unchanged(), &[Role::AdapterDown]);
            for device in 0..n as u64 {
                server.absorb(
                    DeviceId(device),
                    UpdateWeight::from_samples(1),
                    &random_tensors(&request.expects, random, 1.0),
                );
            }
            server.finish().unwrap();
            prop_assert_eq!(bits(server.representation()), bits(&start));
        }
    }

    /// A robust rule measures steps from the decoded model. If honest devices take tiny steps, attackers with
    /// large steps cannot change the model by more than the size of the honest steps.
    #[test]
    fn quantised_model_leaves_no_room_for_attackers((d, k, n, seed) in random_shape(), f16 in any::<bool>()) {
        let random = &mut random(seed);
        let encoding = if f16 { Encoding::F16 } else { Encoding::I8 };
        let representation = random_basis(d, k, random);
        let mut server = FedAvg::new(representation, Matrix::zeros(k, 1), FedAvgParameters {
            encoding, rule: Rule::GEOMETRIC_MEDIAN, ..fedavg_parameters()
        });
        let broadcast_tensors = server.request().tensors;
        let decode_as_device = |values: &[f32]| {
            let mut bytes = vec![0; encoding.byte_len(values.len())];
            let mut values = values.to_vec();
            encoding.encode(&values, &mut bytes).unwrap();
            encoding.decode(&bytes, &mut values).unwrap();
            values
        };
        let shifted_tensors = |shift: f32| broadcast_tensors.iter().map(|tensor| {
            let values = decode_as_device(&tensor.values).into_iter().map(|value| value + shift).collect();
            Tensor { values, ..tensor.clone() }
        }).collect::<Vec<_>>();
        let attackers = n as u64 / 5;
        for device in 0..n as u64 {
            server.absorb(
                DeviceId(device),
                UpdateWeight::from_samples(1),
                &shifted_tensors(if device < attackers { 10.0 } else { 1e-6 }),
            );
        }
        server.finish().unwrap();
        let decoded_basis = from_f32(d, k, &decode_as_device(&broadcast_tensors[0].values));
        // Each value may have been rounded once more by the encoding.
        prop_assert!((server.representation() - decoded_basis).amax() < 2e-6);
    }

    /// Power iterations and the method of moments find the leading eigenspace of the mean of the devices'
    /// matrices.
    #[test]
    fn both_starts_find_top_eigenspace(k in 1usize..=3, extra_features in 1usize..=9, seed in any::<u64>()) {
        let d = k + extra_features;
        let random = &mut random(seed);
        let vectors = random_basis(d, d, random);
        let eigenvalue = |j: usize| if j < k { 5.0 + j as f64 } else { 1.0 / (1.0 + j as f64) };
        let spectrum = Matrix::from_fn(d, d, |i, j| if i == j { eigenvalue(i) } else { 0.0 });
        let product = &vectors * spectrum * vectors.transpose();
        let mean_matrix = (&product + product.transpose()) * 0.5;
        let top_basis = vectors.columns(0, k).into_owned();

        // The mean of the two devices' matrices is `mean_matrix`; their difference must not matter.
        let noise = gaussian(d, d, random);
        let noise = (&noise + noise.transpose()) * 0.1;
        let devices = [&mean_matrix + &noise, &mean_matrix - &noise];

        let mut power = PowerStart::new(random_start(d, k, seed), 40, Weighting::Uniform, Rule::MEAN);
        for _ in 0..power.rounds_needed() {
            let basis = from_f32(d, k, &power.request().tensors[0].values);
            for matrix in &devices {
                power.absorb(
                    DeviceId(0),
                    UpdateWeight::from_samples(1),
                    &[gradient_tensor(&(matrix * &basis))],
                );
            }
            power.finish().unwrap();
        }
        prop_assert!(principal_angle_distance(&top_basis, power.representation()) < 1e-5);

        let mut moments = MomentsStart::new(d, k, Weighting::Uniform, Rule::MEAN);
        let mut rows_seen = 0;
        for _ in 0..moments.rounds_needed() {
            for matrix in &devices {
                moments.absorb(
                    DeviceId(0),
                    UpdateWeight::from_samples(1),
                    &[moment_rows(&moments.request().task, matrix)],
                );
            }
            let Task::MomentRows { first, count } = moments.request().task else { panic!("another task") };
            prop_assert_eq!(usize::from(first), rows_seen);
            rows_seen += usize::from(count);
            let elements = moments.request().expects[0].elements();
            prop_assert!(elements <= d * k, "a block exceeds a device's buffer");
            moments.finish().unwrap();
        }
        prop_assert_eq!(rows_seen, d);
        prop_assert!(principal_angle_distance(&top_basis, moments.representation()) < 1e-5);
    }

    /// A copy that is restored from the state after any round continues exactly like the original.
    #[test]
    fn restore_inverts_state((d, k, n, seed) in random_shape(), kind in 0usize..6, rounds_before in 0usize..4) {
        let stream = &mut random(seed);
        let mut original = build_algorithm(kind, d, k, seed);
        let step = |algorithm: &mut Box<dyn Algorithm>, stream: &mut _| {
            let request = algorithm.request();
            for samples in 1..=n as u32 {
                algorithm.absorb(
                    DeviceId(0),
                    UpdateWeight::from_samples(samples),
                    &random_tensors(&request.expects, stream, 1.0),
                );
            }
            algorithm.finish()
        };
        for _ in 0..rounds_before.min(original.rounds_needed() as usize - 1) {
            prop_assume!(step(&mut original, stream).is_ok());
        }
        let state = original.state();
        let mut copy = build_algorithm(kind, d, k, seed.wrapping_add(1));
        for invalid_state in [&state[1..], &[&state[..], &[0.0]].concat(), &[]] {
            let untouched = copy.state();
            prop_assert!(!copy.restore(invalid_state));
            prop_assert_eq!(copy.state(), untouched, "a refused state changed the algorithm");
        }
        prop_assert!(copy.restore(&state));
        prop_assert_eq!(copy.state(), state);
        prop_assert_eq!(bits(copy.representation()), bits(original.representation()));
        prop_assert_eq!(copy.request(), original.request());
        let mut cloned_stream = stream.clone();
        let results = (step(&mut original, stream), step(&mut copy, &mut cloned_stream));
        prop_assert_eq!(results.0, results.1);
        prop_assert_eq!(original.state(), copy.state());
    }

    #[test]
    fn round_without_updates_changes_nothing((d, k, _, seed) in random_shape(), kind in 0usize..6) {
        let mut algorithm = build_algorithm(kind, d, k, seed);
        let initial_state = algorithm.state();
        prop_assert!(algorithm.finish().is_ok());
        prop_assert_eq!(algorithm.state(), initial_state);
    }
}

/// RoLoRA with three outputs, or FFA-LoRA if `step_size` is `None`.
fn create_adapter(down_factor: Matrix, step_size: Option<f32>, download_encoding: Encoding) -> LinearAdapter {
    let up_factor = Matrix::zeros(down_factor.ncols(), 3);
    let (head, upload_encoding) = (HEAD, Encoding::F32);
    let (weighting, rule) = (Weighting::Samples, Rule::MEAN);
    LinearAdapter::new(
        down_factor,
        up_factor,
        LinearAdapterParameters { step_size, head, download_encoding, upload_encoding, weighting, rule },
    )
}

fn create_fedavg(representation: Matrix, outputs: usize) -> FedAvg {
    let head = Matrix::zeros(representation.ncols(), outputs);
    FedAvg::new(representation, head, fedavg_parameters())
}

fn fedavg_parameters() -> FedAvgParameters {
    FedAvgParameters {
        step_size: ETA,
        head_step_size: 0.5,
        local_steps: 2,
        encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::MEAN,
    }
}

/// Algorithm or start number `kind`, from 0 to 5.
fn build_algorithm(kind: usize, d: usize, k: usize, seed: u64) -> Box<dyn Algorithm> {
    let basis = random_start(d, k, seed);
    match kind {
        0 => Box::new(FedRep::new(basis, fedrep_parameters())),
        1 => Box::new(create_fedavg(basis, 2)),
        2 => Box::new(PowerStart::new(basis, 5, Weighting::Samples, Rule::MEAN)),
        3 => Box::new(create_adapter(basis, Some(ETA), Encoding::F32)),
        4 => Box::new(create_adapter(basis, None, Encoding::F32)),
        _ => Box::new(MomentsStart::new(d, k, Weighting::Samples, Rule::MEAN)),
    }
}

/// Upload of a device with the moment matrix `matrix`: the requested rows, from the diagonal on.
fn moment_rows(task: &Task, matrix: &Matrix) -> Tensor {
    let Task::MomentRows { first, count } = *task else { panic!("another task") };
    let rows = usize::from(first)..usize::from(first + count);
    let values: Vec<f32> =
        rows.flat_map(|i| (i..matrix.ncols()).map(move |j| matrix[(i, j)] as f32)).collect();
    Tensor { role: Role::Moment, rows: 1, cols: values.len() as u16, values }
}

#[test]
fn rank_deficient_step_fails_and_keeps_model() {
    let start = random_start(5, 2, 1);
    let upload = Upload::Representation;
    let mut server = FedRep::new(start.clone(), FedRepParameters { upload, ..fedrep_parameters() });
    server.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[gradient_tensor(&Matrix::zeros(5, 2))]);
    assert!(server.finish().is_err());
    assert_eq!(bits(server.representation()), bits(&start));
    // The next round contains no update of the failed round.
    server.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[gradient_tensor(&start)]);
    server.finish().unwrap();
    assert!(distance(server.representation(), &start) < 1e-6);
}

/// Descriptors have 16 bits for the number of columns, so each block of the moment matrix must fit 65535
/// columns.
#[test]
fn moment_blocks_fit_descriptor() {
    let (d, k) = (784, 100);
    let mut moments = MomentsStart::new(d, k, Weighting::Uniform, Rule::MEAN);
    let mut rows_seen = 0;
    for _ in 0..moments.rounds_needed() {
        let request = moments.request();
        let Task::MomentRows { first, count } = request.task else { panic!("another task") };
        assert_eq!(usize::from(first), rows_seen);
        let needed: usize = (rows_seen..rows_seen + usize::from(count)).map(|row| d - row).sum();
        assert_eq!(request.expects[0].elements(), needed);
        rows_seen += usize::from(count);
        if rows_seen < d {
            let zeros = vec![0.0; needed];
            let tensor = Tensor { role: Role::Moment, rows: 1, cols: needed as u16, values: zeros };
            moments.absorb(DeviceId(0), UpdateWeight::from_samples(1), &[tensor]);
            moments.finish().unwrap();
        }
    }
    assert_eq!(rows_seen, d);
}
