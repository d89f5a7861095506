//! Tests of single FedPower rounds without noise: capabilities and declined rounds, first and repeated
//! uploads, and the state of representation and head.
#![cfg(feature = "power")]

use crate::common::power::*;
use crate::common::*;
use fedspan_client::memory::{Memory, PowerWorkspace, StreamingWorkspace};
use fedspan_client::{Linear, Task, Workspace};
use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload, RoundId, Task as Wire};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

const FEATURES: PowerRows = PowerRows::Features;
const PRODUCT: PowerUpload = PowerUpload::Product;

#[test]
fn rounds_without_usable_rows_are_declined() {
    let task = fed_power(1, FEATURES, PRODUCT);
    let no_samples = Sliced::regression(Vec::new(), Vec::new(), 4, 1);
    assert_eq!(run_power_round(&no_samples, task, &identity(4), 4).unwrap_err(), DeclineReason::NoSamples);
    let unusable = Sliced::regression(vec![f32::NAN; 12], vec![1.0; 3], 4, 1);
    assert_eq!(run_power_round(&unusable, task, &identity(4), 4).unwrap_err(), DeclineReason::NoSamples);
    let samples = Sliced::regression(vec![0.5; 16], vec![1.0; 4], 4, 1);
    for failing in 1..=3 {
        let mut source = Sliced { failing_pass: Some(failing), ..samples.clone() };
        source.x = flat(&Random(8).gaussian(4, 4));
        let mut model = Linear::new(Heap::power(4, 1, 1));
        let task = fed_power(3, FEATURES, PRODUCT);
        let error = power_round(&mut model, task, &identity_columns(4, 1), &mut source).unwrap_err();
        assert_eq!((error, source.passes), (DeclineReason::Device, failing));
    }
}

#[test]
fn mismatched_rounds_are_declined() {
    let z = identity(3);
    let mut model = Linear::new(Heap::power(3, 3, 1));
    let round_of = |task, role, d, k| open(1, task, role, Encoding::F32, d, k);
    let task = fed_power(1, FEATURES, PRODUCT);
    assert_eq!(
        model.open(&round_of(fed_power(0, FEATURES, PRODUCT), Role::Subspace, 3, 3)),
        Err(DeclineReason::Parameter)
    );
    for (role, d, k) in [(Role::Representation, 3, 3), (Role::Subspace, 3, 2), (Role::Subspace, 4, 3)] {
        assert_eq!(model.open(&round_of(task, role, d, k)), Err(DeclineReason::Tensors));
    }
    let mut two_tensors = round_of(task, Role::Subspace, 3, 3);
    two_tensors.tensors.push(TensorDescriptor::inline(Role::Subspace, Encoding::F32, 3, 3)).unwrap();
    assert_eq!(model.open(&two_tensors), Err(DeclineReason::Tensors));
    let receiving = round_of(task, Role::Subspace, 3, 3);
    let skewed = [1.0, 0.002, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    assert!(matches!(
        receive(&mut model, &receiving, &[&skewed]),
        Err(DeclineReason::NotOrthonormal { error }) if (error - 0.002).abs() < 1e-6
    ));
    model.open(&receiving).unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        model.tensor_mut(0).unwrap().copy_from_slice(&[value; 9]);
        assert_eq!(model.verify(), Err(DeclineReason::NonFinite));
    }
    assert!(receive(&mut model, &receiving, &[&z]).is_ok());
}

/// An i8 basis is not orthonormal after decoding, so server and device orthonormalise it by the same QR, as
/// they do for a representation.
#[test]
fn i8_basis_is_orthonormalised() {
    let mut random = Random(9);
    let (d, k) = (20, 3);
    let samples = decaying_samples(&mut random, d, 1, 60, 0.5);
    let z = flat(&random.orthonormal(d, k));
    let mut decoded = z.clone();
    let mut bytes = vec![0; Encoding::I8.byte_len(d * k)];
    Encoding::I8.encode(&z, &mut bytes).unwrap();
    Encoding::I8.decode(&bytes, &mut decoded).unwrap();
    fedspan_protocol::orthonormal::orthonormalise(&mut decoded, k).unwrap();
    let task = fed_power(1, FEATURES, PowerUpload::ProductAndBasis);
    let mut model = Linear::new(Heap::power(d, k, 1));
    let round = open(1, task, Role::Subspace, Encoding::I8, d, k);
    receive(&mut model, &round, &[&z]).unwrap();
    model.run(round.id, &mut samples.clone()).unwrap();
    let sent = collect_upload(&model, 5);
    assert_eq!(bits(&sent[d * k..]), bits(&decoded));
    let mut model = Linear::new(Heap::power(d, k, 1));
    assert_eq!(bits(&power_round(&mut model, task, &decoded, &mut samples.clone()).unwrap().1), bits(&sent));
}

#[test]
fn repeated_upload_has_the_same_bytes() {
    let mut random = Random(10);
    let (d, k) = (9, 4);
    let samples = decaying_samples(&mut random, d, 1, 40, 0.5);
    let z = flat(&random.orthonormal(d, k));
    for upload in UPLOADS {
        for encoding in [Encoding::F32, Encoding::F16, Encoding::I8] {
            let task = Wire::FedPower { iterations: 2, rows: FEATURES, upload, encoding };
            let mut model = Linear::new(Heap::power(d, k, 1));
            let (_, sent) = power_round(&mut model, task, &z, &mut samples.clone()).unwrap();
            let expected = TensorDescriptor::inline(Role::Subspace, encoding, d as u16, k as u16);
            assert_eq!(model.upload().as_slice(), vec![expected; upload.tensors().into()]);
            for piece in [1, 4, 32, d * k] {
                assert_eq!(bits(&collect_upload(&model, piece)), bits(&sent));
            }
        }
    }
}

/// After a round the memory holds no representation. The head stays, with the representation on which it was
/// fitted.
#[test]
fn round_invalidates_the_representation_and_keeps_the_head() {
    let mut random = Random(11);
    let (d, k) = (8, 3);
    let samples = decaying_samples(&mut random, d, 1, 50, 0.5);
    let b = flat(&random.orthonormal(d, k));
    let mut model = Linear::new(Heap::power(d, k, 1));
    fed_rep_round(&mut model, fed_rep(EXACT, Default::default(), 0.1), &b, &mut samples.clone()).unwrap();
    let (head, fitted_on) = (bits(model.head()), model.head_fitted_on());
    assert!(fitted_on.is_some());
    let task = fed_power(1, FEATURES, PRODUCT);
    let round = open(2, task, Role::Subspace, Encoding::F32, d, k);
    receive(&mut model, &round, &[&b]).unwrap();
    assert!(model.representation().is_none(), "a basis counts as a representation");
    model.run(round.id, &mut samples.clone()).unwrap();
    assert!(model.representation().is_none());
    assert_eq!((bits(model.head()), model.head_fitted_on()), (head, fitted_on));
    assert!(model.predict(&vec![0.0; d], &mut [0.0]).is_err());
    model.set_representation(&b).unwrap();
    assert!(model.predict(&vec![0.0; d], &mut [0.0]).is_ok());
}

#[test]
fn capabilities_depend_on_memory() {
    /// Checks one memory. `expected` is true if it has the buffer for power iterations.
    fn check_capabilities<A: Memory>(mut model: Linear<A>, expected: bool) {
        let shape = model.shape();
        let (d, k) = (shape.features, shape.width);
        let capabilities = model.capabilities();
        let task = fed_power(1, FEATURES, PRODUCT);
        assert_eq!(capabilities.tasks & task.bit() != 0, expected);
        if expected {
            assert!(capabilities.roles & Role::Subspace.bit() != 0);
            assert!(capabilities.tensors >= 2);
            assert!(capabilities.total_elements >= (2 * d * k) as u32);
        } else {
            assert_eq!(
                capabilities.total_elements as usize,
                d * k + if capabilities.tensors > 1 { k } else { 0 }
            );
        }
        // FedPower needs several passes, which streamed samples do not allow.
        assert_eq!(model.streamed_tasks() & task.bit(), 0);
        let round = open(1, task, Role::Subspace, Encoding::F32, d, k);
        assert_eq!(model.open(&round), if expected { Ok(()) } else { Err(DeclineReason::Task) });
        if expected {
            assert_eq!(model.begin(), Err(DeclineReason::Task));
        } else {
            assert!(model.run(RoundId::default(), &mut Sliced::regression(vec![], vec![], d, 1)).is_err());
        }
    }
    check_capabilities(Linear::new(Workspace::<5, 2>::new()), false);
    check_capabilities(Linear::new(Heap::new(5, 2, 1)), false);
    check_capabilities(Linear::new(&mut Heap::new(5, 2, 1)), false);
    check_capabilities(Linear::new(PowerWorkspace::<5, 2>::new()), true);
    check_capabilities(Linear::new(StreamingWorkspace::<5, 2>::new()), true);
    check_capabilities(Linear::new(&mut StreamingWorkspace::<5, 2>::new()), true);
    check_capabilities(Linear::new(Heap::power(5, 2, 1)), true);
    #[cfg(feature = "i16")]
    check_capabilities(Linear::new(fedspan_client::memory::FixedWorkspace::<5, 2>::new()), false);
    assert_eq!(size_of::<PowerWorkspace<64, 4, 2>>(), size_of::<Workspace<64, 4, 2>>() + 4 * 64 * 4);
}

/// The memory types for boards and those of the tests give the same bits.
#[test]
fn memories_compute_the_same_bits() {
    let mut random = Random(12);
    let samples = decaying_samples(&mut random, 10, 2, 37, 0.9);
    let z = flat(&random.orthonormal(10, 4));
    for rows in ROWS {
        let task = fed_power(3, rows, PowerUpload::ProductAndBasis);
        let expected = run_power_round(&samples, task, &z, 4).unwrap();
        let mut model = Linear::new(PowerWorkspace::<10, 4, 2>::new());
        assert_eq!(power_round(&mut model, task, &z, &mut samples.clone()).unwrap(), expected);
        let mut model = Linear::new(StreamingWorkspace::<10, 4, 2>::new());
        assert_eq!(power_round(&mut model, task, &z, &mut samples.clone()).unwrap(), expected);
        let mut model = Linear::new(Heap::streaming(10, 4, 2));
        // A round after another one shows that no data of the first remains.
        power_round(&mut model, fed_power(1, rows, PRODUCT), &z, &mut samples.without(&[3])).unwrap();
        assert_eq!(power_round(&mut model, task, &z, &mut samples.clone()).unwrap(), expected);
    }
}
