//! Tests of downloads of representations: encodings, orthonormality, finiteness, and the readiness of `predict`.

use crate::common::*;
use fedspan_client::task::representation_hash;
use fedspan_client::{Linear, NotReady, Task};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{DeclineReason, Task as Wire, Upload};
use fedspan_protocol::orthonormal::{orthonormalise, orthonormality_error};
use fedspan_protocol::tensor::{Encoding, Role};

const ALL_ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::F16, Encoding::I8];

/// Returns the values after encoding and decoding.
fn transcode(encoding: Encoding, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; encoding.byte_len(values.len())];
    encoding.encode(values, &mut bytes).unwrap();
    let mut out = vec![0.0; values.len()];
    encoding.decode(&bytes, &mut out).unwrap();
    out
}

/// Sends a representation to a new device. Returns the device, and whether it accepts the representation.
fn download_basis(
    encoding: Encoding,
    b: &[f32],
    d: usize,
    k: usize,
) -> (Linear<Heap>, Result<(), DeclineReason>) {
    let mut model = Linear::new(Heap::new(d, k, 1));
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    let result = receive(&mut model, &open(1, task, Role::Representation, encoding, d, k), &[b]);
    (model, result)
}

/// The device's `B` equals that of the server bit for bit: the decoded values, for i8 after the QR that both
/// perform.
#[test]
fn every_encoding_gives_the_servers_representation() {
    let mut random = Random(1);
    let mut worst = Worst::default();
    for case in 0..200 {
        let k = 1 + case % 8;
        let d = k + random.below(100);
        let b = flat(&random.orthonormal(d, k));
        for encoding in ALL_ENCODINGS {
            let mut expected = transcode(encoding, &b);
            let error_as_sent = orthonormality_error(&expected, k);
            if error_as_sent > encoding.orthonormality_tolerance() {
                let (_, result) = download_basis(encoding, &b, d, k);
                assert_eq!(result, Err(DeclineReason::NotOrthonormal { error: error_as_sent }));
                continue;
            }
            if encoding == Encoding::I8 {
                orthonormalise(&mut expected, k).unwrap();
            }
            let (model, result) = download_basis(encoding, &b, d, k);
            assert_eq!(result, Ok(()), "{encoding:?}, {error_as_sent:e}");
            let device_basis = model.representation().unwrap();
            assert_eq!(bits(device_basis), bits(&expected));
            let error = f64::from(orthonormality_error(device_basis, k));
            if encoding != Encoding::F16 {
                assert!(error <= 1e-5, "{encoding:?}: {error:e}");
            }
            match encoding {
                Encoding::F32 => worst.record_largest("f32, |B^T B - I|", error),
                Encoding::F16 => worst.record_largest("f16, |B^T B - I|", error),
                _ => worst.record_largest("i8 as sent, |B^T B - I|", error_as_sent.into()),
            }
        }
    }
}

#[test]
fn representation_beyond_the_tolerance_is_declined() {
    let mut random = Random(2);
    let (d, k) = (40, 3);
    let b = flat(&random.orthonormal(d, k));
    for encoding in ALL_ENCODINGS {
        let tolerance = encoding.orthonormality_tolerance();
        for factor in [0.5, 0.9, 1.1, 2.0, 1000.0] {
            // The squared length of the first column becomes 1 + factor * tolerance.
            let stretch = (1.0 + factor * tolerance).sqrt();
            let mut stretched = b.clone();
            stretched.chunks_mut(k).for_each(|row| row[0] *= stretch);
            let error = orthonormality_error(&transcode(encoding, &stretched), k);
            let (model, result) = download_basis(encoding, &stretched, d, k);
            if error <= tolerance {
                assert_eq!(result, Ok(()), "{encoding:?} at {error:e}");
            } else {
                assert_eq!(result, Err(DeclineReason::NotOrthonormal { error }));
                assert!(model.representation().is_none());
            }
        }
        let mut equal_columns = b.clone();
        equal_columns.chunks_mut(k).for_each(|row| row[1] = row[0]);
        assert!(matches!(
            download_basis(encoding, &equal_columns, d, k).1,
            Err(DeclineReason::NotOrthonormal { .. })
        ));
        assert!(download_basis(encoding, &vec![0.0; d * k], d, k).1.is_err());
    }
}

#[test]
fn non_finite_value_is_declined_at_any_place() {
    let b = flat(&Random(3).orthonormal(10, 2));
    for index in 0..20 {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut model = Linear::new(Heap::new(10, 2, 1));
            let task = fed_rep(EXACT, Upload::Gradient, 0.0);
            model.open(&open(1, task, Role::Representation, Encoding::F32, 10, 2)).unwrap();
            model.tensor_mut(0).unwrap().copy_from_slice(&b);
            model.tensor_mut(0).unwrap()[index] = value;
            assert_eq!(model.verify(), Err(DeclineReason::NonFinite));
            assert_eq!(model.predict(&[0.0; 10], &mut [0.0]), Err(NotReady::NoRepresentation));
        }
    }
}

#[test]
fn predict_needs_the_head_of_its_representation() {
    let mut random = Random(4);
    let (d, k) = (6, 2);
    let (b1, b2) = (flat(&random.orthonormal(d, k)), flat(&random.orthonormal(d, k)));
    let samples = Sliced::regression(random.normals(d * 20), random.normals(20), d, 1);
    let mut model = Linear::new(Heap::new(d, k, 1));
    let x = &samples.x[..d];
    assert_eq!(model.predict(x, &mut [0.0]), Err(NotReady::NoRepresentation));
    model.set_representation(&b1).unwrap();
    assert_eq!(model.predict(x, &mut [0.0]), Err(NotReady::NoHead));
    model.fit_head(EXACT, &mut samples.clone()).unwrap();
    let mut prediction = [0.0];
    model.predict(x, &mut prediction).unwrap();
    let expected = matrix(1, d, x) * matrix(d, k, &b1) * matrix(k, 1, model.head());
    assert!((f64::from(prediction[0]) - expected[0]).abs() <= 1e-5 * (1.0 + expected[0].abs()));
    assert_eq!(model.predict(&x[1..], &mut [0.0]), Err(NotReady::Length { expected: 6, got: 5 }));
    assert_eq!(model.predict(x, &mut [0.0; 2]), Err(NotReady::Length { expected: 1, got: 2 }));
    assert_eq!(model.head_fitted_on(), Some(representation_hash(&b1)));
    model.set_representation(&b2).unwrap();
    assert_eq!(model.predict(x, &mut [0.0]), Err(NotReady::NoHead));
    model.restore_head(representation_hash(&b2));
    assert_eq!(model.predict(x, &mut [0.0]), Ok(()));
    // The first byte of a download invalidates the representation, before it is checked.
    let task = Wire::FitHead { head: EXACT };
    model.open(&open(1, task, Role::Representation, Encoding::F32, d, k)).unwrap();
    assert_eq!(model.predict(x, &mut [0.0]), Ok(()), "opening a round changed the model");
    model.tensor_mut(0).unwrap();
    assert_eq!(model.predict(x, &mut [0.0]), Err(NotReady::NoRepresentation));
}

/// f16 and i8 uploads are announced with their role and encoding; `session.rs` checks their values.
#[test]
fn uploads_announce_role_and_encoding() {
    for encoding in ALL_ENCODINGS {
        for upload in [Upload::Gradient, Upload::Representation] {
            let task = Wire::FedRep { step_size: 0.1, head: EXACT, upload, encoding };
            let mut model = Linear::new(Heap::new(5, 2, 1));
            model.open(&open(1, task, Role::Representation, Encoding::F16, 5, 2)).unwrap();
            let sent = model.upload();
            let tensor = sent.first().unwrap();
            assert_eq!((tensor.role, tensor.encoding), (upload.role(), encoding));
            assert_eq!((tensor.rows, tensor.cols, sent.len()), (5, 2, 1));
        }
    }
    let mut model = Linear::new(Heap::new(5, 2, 1));
    model.open(&open(1, Wire::FitHead { head: EXACT }, Role::Representation, Encoding::F32, 5, 2)).unwrap();
    assert!(model.upload().is_empty(), "fit-head uploads a tensor");
}

/// Records of earlier versions identify a representation by its CRC-32C. Their heads are used with it, before or after the
/// representation is loaded, and with no other.
#[test]
fn head_of_an_earlier_record_is_used() {
    let mut random = Random(5);
    let (d, k) = (6, 2);
    let (b1, b2) = (flat(&random.orthonormal(d, k)), flat(&random.orthonormal(d, k)));
    let (x, out) = (random.normals(d), &mut [0.0]);
    type Step<'a> = &'a dyn Fn(&mut Linear<Heap>);
    let with = |steps: &[Step]| {
        let mut model = Linear::new(Heap::new(d, k, 1));
        model.head_mut().copy_from_slice(&[0.5, 0.25]);
        steps.iter().for_each(|step| step(&mut model));
        model
    };
    let set = |b| move |model: &mut Linear<Heap>| model.set_representation(b).unwrap();
    let restore = |hash| move |model: &mut Linear<Heap>| model.restore_head(hash);
    let (set_1, set_2, old, other) = (set(&b1), set(&b2), restore(crc32c_f32(&b1)), restore(crc32c_f32(&b2)));
    for mut usable in [with(&[&old, &set_1]), with(&[&set_1, &old]), with(&[&old, &set_2, &set_1])] {
        usable.predict(&x, out).unwrap();
        // The next record has the new hash.
        assert_eq!(usable.head_fitted_on(), Some(representation_hash(&b1)));
    }
    for mut unusable in [with(&[&other, &set_1]), with(&[&set_1, &other]), with(&[&old, &set_2])] {
        assert_eq!(unusable.predict(&x, out), Err(NotReady::NoHead));
    }
}
