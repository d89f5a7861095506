//! Property tests of encodings and descriptors: f32 is exact, f16 is the nearest value, i8 is within half a
//! step, top-k keeps the largest quarter of each block; byte lengths are exact, chunks tile a tensor, and impossible descriptors are rejected.

use crate::common::{Random, strategies};
use fedspan_protocol::Error;
use fedspan_protocol::limits::{CHUNKS_MAX, FRAME_LIMIT_MAX};
use fedspan_protocol::tensor::{Encoding, I8_BLOCK, Role, TensorDescriptor};
use half::f16;
use proptest::prelude::*;

const ALL_ENCODINGS: [Encoding; 4] = [Encoding::F32, Encoding::F16, Encoding::I8, Encoding::I8TopK];

/// Encodes values.
fn encode_to_vec(encoding: Encoding, values: &[f32]) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0xAA; encoding.byte_len(values.len())];
    encoding.encode(values, &mut bytes).map(|()| bytes)
}

/// Encodes and decodes values.
fn round_trip(encoding: Encoding, values: &[f32]) -> Vec<f32> {
    let bytes = encode_to_vec(encoding, values).unwrap();
    let mut decoded = vec![f32::NAN; values.len()];
    encoding.decode(&bytes, &mut decoded).unwrap();
    decoded
}

/// Strategy for finite values, including subnormals.
fn finite_floats() -> impl Strategy<Value = f32> {
    strategies::float().prop_map(|v| if v.is_finite() { v } else { 1.0 })
}

/// Checks the error bound of i8 for one block: half a step, plus the rounding of quotient and product
/// (largest at 127.5 steps), plus, for a subnormal scale, 127 times the rounding error of the scale.
fn check_i8_block(block: &[f32], decoded: &[f32]) {
    let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let step = f64::from(largest) / 127.0;
    let subnormal = 64.0 * f64::from(f32::from_bits(1));
    let bound = 0.5 * step * (1.0 + 256.0 * f64::from(f32::EPSILON)) + subnormal;
    for (value, decoded_value) in block.iter().zip(decoded) {
        let error = (f64::from(*value) - f64::from(*decoded_value)).abs();
        assert!(error <= bound, "{value:e} became {decoded_value:e}, largest {largest:e}");
        assert!(*value == 0.0 || *decoded_value == 0.0 || value.signum() == decoded_value.signum());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn f32_is_exact(values in prop::collection::vec(finite_floats(), 0..100)) {
        let decoded = round_trip(Encoding::F32, &values);
        prop_assert!(values.iter().zip(&decoded).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn f16_is_the_nearest(values in prop::collection::vec(-65519.0f32..65519.0, 1..50)) {
        for (value, decoded) in values.iter().zip(round_trip(Encoding::F16, &values)) {
            let error = (value - decoded).abs();
            let bits = f16::from_f32(decoded).to_bits();
            for neighbour in [bits.wrapping_sub(1), bits.wrapping_add(1)] {
                let neighbour_value = f16::from_bits(neighbour).to_f32();
                prop_assert!(!neighbour_value.is_finite() || error <= (value - neighbour_value).abs());
            }
        }
    }

    #[test]
    fn i8_is_within_half_a_step(
        exponent in -140..127i32,
        units in prop::collection::vec(-1.0f32..1.0, 1..100),
    ) {
        let values: Vec<f32> = units.iter().map(|u| u * 2.0f32.powi(exponent)).collect();
        let decoded = round_trip(Encoding::I8, &values);
        for (block, decoded_block) in values.chunks(I8_BLOCK).zip(decoded.chunks(I8_BLOCK)) {
            check_i8_block(block, decoded_block);
        }
    }

    #[test]
    fn i8_encodes_any_finite_block(values in prop::collection::vec(finite_floats(), 1..80)) {
        prop_assume!(values.iter().all(|v| v.abs() < 3.4e38));
        let decoded = round_trip(Encoding::I8, &values);
        for (block, decoded_block) in values.chunks(I8_BLOCK).zip(decoded.chunks(I8_BLOCK)) {
            check_i8_block(block, decoded_block);
        }
    }

    /// Tests that top-k keeps the largest quarter of each block, the lower index of equal ones, with the error of i8, and that the
    /// squared error is at most three quarters of the squared norm plus the rounding, which error feedback needs.
    #[test]
    fn top_k_keeps_the_largest_quarter(
        exponent in -100..100i32,
        units in prop::collection::vec(prop_oneof![-1.0f32..1.0, prop::sample::select(vec![0.0f32, -0.0, 0.5, -0.5, 1.0])], 1..100),
    ) {
        let values: Vec<f32> = units.iter().map(|u| u * 2.0f32.powi(exponent)).collect();
        let decoded = round_trip(Encoding::I8TopK, &values);
        for (block, decoded_block) in values.chunks(I8_BLOCK).zip(decoded.chunks(I8_BLOCK)) {
            let mut order: Vec<usize> = (0..block.len()).collect();
            order.sort_by(|&a, &b| block[b].abs().total_cmp(&block[a].abs()));
            let (kept, dropped) = order.split_at(block.len().div_ceil(4));
            prop_assert!(dropped.iter().all(|&index| decoded_block[index].to_bits() == 0));
            let pick = |values: &[f32]| kept.iter().map(|&index| values[index]).collect::<Vec<f32>>();
            prop_assert_eq!(pick(decoded_block), round_trip(Encoding::I8, &pick(block)));
            let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
            let error = square(&mut block.iter().zip(decoded_block).map(|(a, b)| f64::from(a - b)));
            let norm = square(&mut block.iter().map(|value| f64::from(*value)));
            prop_assert!(error <= (0.75 + 1e-4) * norm, "{error:e} of {norm:e}");
        }
    }

    /// Tests that every block of bytes is decoded or refused, that the mask decides, and that decoded values are those of the bytes.
    #[test]
    fn top_k_refuses_masks_of_another_size(elements in 1..=32usize, bytes in prop::collection::vec(any::<u8>(), 16)) {
        let bytes = &bytes[..Encoding::I8TopK.byte_len(elements)];
        let mask: Vec<usize> =
            (0..8 * elements.div_ceil(8)).filter(|&index| bytes[4 + index / 8] >> (index % 8) & 1 == 1).collect();
        let mut decoded = vec![f32::NAN; elements];
        let result = Encoding::I8TopK.decode(bytes, &mut decoded);
        if mask.len() == elements.div_ceil(4) && mask.iter().all(|&index| index < elements) {
            prop_assert_eq!(result, Ok(()));
            let scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let mut expected = vec![0.0f32; elements];
            for (&index, byte) in mask.iter().zip(&bytes[4 + elements.div_ceil(8)..]) {
                expected[index] = scale * f32::from(byte.cast_signed());
            }
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
            prop_assert!(scale.is_nan() || bits(&decoded) == bits(&expected));
        } else {
            prop_assert_eq!(result, Err(Error::Malformed));
        }
    }

    #[test]
    fn non_finite_value_is_reported_by_index(
        encoding in strategies::encoding(),
        mut values in prop::collection::vec(-1.0f32..1.0, 1..100),
        any_index in any::<prop::sample::Index>(),
        non_finite in prop::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let index = any_index.index(values.len());
        values[index] = non_finite;
        prop_assert_eq!(encode_to_vec(encoding, &values), Err(Error::NonFinite { index }));
    }

    #[test]
    fn lengths_must_match(encoding in strategies::encoding(), elements in 0..200usize, got in 0..900usize) {
        let expected = encoding.byte_len(elements);
        let mismatch = Err(Error::LengthMismatch { expected, got });
        let expected_result = if got == expected { Ok(()) } else { mismatch };
        prop_assert_eq!(encoding.encode(&vec![0.5; elements], &mut vec![0; got]), expected_result);
        // The empty mask of these bytes is refused.
        let no_mask = encoding == Encoding::I8TopK && elements > 0;
        let expected_result = if no_mask && got == expected { Err(Error::Malformed) } else { expected_result };
        prop_assert_eq!(encoding.decode(&vec![0; got], &mut vec![0.0; elements]), expected_result);
    }

    /// Tests that a chunk decodes to the same values as its part of the whole tensor, and that chunks tile
    /// the tensor.
    #[test]
    fn chunks_tile_a_tensor_and_decode_in_place(descriptors in strategies::chunked(), seed: u64) {
        for descriptor in &descriptors {
            let values = Random(seed).matrix(descriptor.rows.into(), descriptor.cols.into());
            let tensor_values = round_trip(descriptor.encoding, &values);
            let mut next = 0;
            for index in 0..descriptor.chunks() {
                let range = descriptor.chunk_range(index).unwrap();
                prop_assert_eq!(range.start, next);
                prop_assert!(range.len() <= usize::from(descriptor.chunk));
                prop_assert_eq!(range.start, index * usize::from(descriptor.chunk));
                let part = round_trip(descriptor.encoding, &values[range.clone()]);
                prop_assert_eq!(&part, &tensor_values[range.clone()]);
                next = range.end;
            }
            prop_assert_eq!(next, descriptor.elements());
            prop_assert_eq!(descriptor.chunk_range(descriptor.chunks()), None);
        }
    }

    #[test]
    fn no_descriptor_causes_a_panic(descriptors in strategies::descriptors(), index: usize) {
        for descriptor in &descriptors {
            let (_, _) = (descriptor.byte_len(), descriptor.chunks());
            for index in [index, index % 300, usize::MAX / usize::from(descriptor.chunk.max(1))] {
                if let Some(range) = descriptor.chunk_range(index) {
                    prop_assert!(range.start < range.end && range.end <= descriptor.elements());
                }
            }
            if descriptor.validate().is_ok() {
                prop_assert!(descriptor.elements() > 0 && descriptor.chunks() <= CHUNKS_MAX);
                let frame = if descriptor.chunk == 0 { descriptor.elements() } else {
                    descriptor.elements().min(descriptor.chunk.into())
                };
                prop_assert!(descriptor.encoding.byte_len(frame) <= FRAME_LIMIT_MAX);
            }
        }
    }
}

#[test]
fn byte_lengths_match_the_specification() {
    for n in 0..=200 {
        assert_eq!(Encoding::F32.byte_len(n), 4 * n);
        assert_eq!(Encoding::F16.byte_len(n), 2 * n);
        assert_eq!(Encoding::I8.byte_len(n), n + 4 * n.div_ceil(32));
        let block = |n: usize| if n == 0 { 0 } else { 4 + n.div_ceil(8) + n.div_ceil(4) };
        assert_eq!(Encoding::I8TopK.byte_len(n), n / 32 * 16 + block(n % 32));
    }
}

/// Tests that on a 32-bit device the byte length of an announced tensor does not wrap to a small number.
#[test]
fn byte_lengths_do_not_wrap() {
    for encoding in ALL_ENCODINGS {
        // The largest length of top-k is half of the number of elements.
        let least = if encoding == Encoding::I8TopK { usize::MAX / 2 } else { usize::MAX };
        assert!(encoding.byte_len(usize::MAX) >= least);
        assert!(encoding.byte_len(usize::MAX / 2) >= least / 2);
    }
}

#[test]
fn every_half_round_trips_and_midpoints_round_to_even() {
    for bits in 0..=u16::MAX {
        let half = f16::from_bits(bits);
        if !half.is_finite() {
            continue;
        }
        let value = half.to_f32();
        assert_eq!(encode_to_vec(Encoding::F16, &[value]).unwrap(), bits.to_le_bytes());
        let above = f16::from_bits(bits + 1);
        if above.is_finite() && bits != 0x7FFF && bits != u16::MAX {
            // Halves have 11 bits, so the midpoint between two halves is exact in f32.
            let middle = f32::midpoint(value, above.to_f32());
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(encode_to_vec(Encoding::F16, &[middle]).unwrap(), even.to_le_bytes(), "{middle}");
        }
    }
}

#[test]
fn f16_rejects_values_that_round_to_infinity() {
    assert_eq!(round_trip(Encoding::F16, &[65519.996]), [65504.0]);
    assert_eq!(encode_to_vec(Encoding::F16, &[0.0, 65520.0]), Err(Error::NonFinite { index: 1 }));
    assert_eq!(encode_to_vec(Encoding::F16, &[-65520.0]), Err(Error::NonFinite { index: 0 }));
}

#[test]
fn i8_rounds_extremes_as_specified() {
    for block in [vec![0.0; 32], vec![-0.0; 5]] {
        assert!(encode_to_vec(Encoding::I8, &block).unwrap().iter().all(|b| *b == 0));
    }
    // The largest magnitude is 127 steps, positive or negative; values halfway between two steps are rounded
    // to even.
    let bytes = encode_to_vec(Encoding::I8, &[127.0, -127.0, 0.5, 1.5, -0.5, -2.5]).unwrap();
    assert_eq!(bytes[..4], 1.0f32.to_le_bytes());
    assert_eq!(bytes[4..].iter().map(|b| *b as i8).collect::<Vec<_>>(), [127, -127, 0, 2, 0, -2]);
    // At the end of the range 127 steps may round to infinity; these few values are rejected.
    for ulps in 0..2000 {
        let largest = f32::from_bits(f32::MAX.to_bits() - ulps);
        match encode_to_vec(Encoding::I8, &[0.0, largest]) {
            Ok(_) => check_i8_block(&[0.0, largest], &round_trip(Encoding::I8, &[0.0, largest])),
            Err(error) => {
                assert_eq!(error, Error::NonFinite { index: 1 });
                assert!(largest > 3.402_822e38 && (largest / 127.0 * 127.0).is_infinite());
            }
        }
    }
    let mut second_block = vec![0.0; 40];
    second_block[37] = -f32::MAX;
    assert_eq!(encode_to_vec(Encoding::I8, &second_block), Err(Error::NonFinite { index: 37 }));
    for bits in 0..2000 {
        let smallest = f32::from_bits(bits);
        check_i8_block(&[smallest], &round_trip(Encoding::I8, &[smallest]));
    }
    let mut out = [0.0];
    Encoding::I8.decode(&[0, 0, 0x80, 0x3F, 0x80], &mut out).unwrap();
    assert_eq!(out, [-128.0], "byte -128 is never written, and decoded as -128");
}

#[test]
fn impossible_descriptors_are_rejected() {
    let valid = TensorDescriptor::inline(Role::Gradient, Encoding::F32, 20, 2);
    assert_eq!(valid.validate(), Ok(()));
    assert_eq!(TensorDescriptor { chunk: 22, ..valid }.validate(), Ok(()));
    let i8 = TensorDescriptor { encoding: Encoding::I8, ..valid };
    let invalid = [
        TensorDescriptor { rows: 0, ..valid },
        TensorDescriptor { cols: 0, ..valid },
        TensorDescriptor { rows: 0, cols: 0, chunk: 0, ..valid },
        TensorDescriptor { chunk: 33, ..i8 },
        TensorDescriptor { chunk: 31, ..i8 },
        TensorDescriptor { rows: 257, cols: 1, chunk: 1, ..valid },
        // No frame can hold these tensors. The first has 2^32 bytes, a number that is 0 in 32 bits.
        TensorDescriptor { rows: 32768, cols: 32768, ..valid },
        TensorDescriptor { rows: 4097, cols: 1, ..valid },
        TensorDescriptor { rows: 4000, cols: 2, chunk: 4097, ..valid },
    ];
    for descriptor in invalid {
        assert_eq!(descriptor.validate(), Err(Error::BadDescriptor), "{descriptor:?}");
    }
    assert_eq!(TensorDescriptor { rows: 256, cols: 1, chunk: 1, ..valid }.validate(), Ok(()));
    assert_eq!(TensorDescriptor { chunk: 64, ..i8 }.validate(), Ok(()));
}

#[test]
fn largest_chunk_index_is_out_of_range() {
    let tensor =
        TensorDescriptor { chunk: 16, ..TensorDescriptor::inline(Role::Gradient, Encoding::F32, 20, 2) };
    for index in [3, usize::MAX / 16, usize::MAX] {
        assert_eq!(tensor.chunk_range(index), None);
    }
}

#[test]
fn bits_of_a_set_are_distinct() {
    let mut roles = 0u32;
    for role in [
        Role::Representation,
        Role::Gradient,
        Role::Moment,
        Role::Subspace,
        Role::AdapterDown,
        Role::AdapterUp,
        Role::SharedHead,
        Role::FactoredHead,
        Role::FeatureSums,
        Role::RidgeScores,
        Role::Scale,
        Role::PriorMean,
        Role::PriorVariances,
        Role::SecondMoments,
        Role::CrossMoments,
        Role::HeadMoments,
        Role::HeadSums,
        Role::PriorEvidence,
        Role::NewcomerGradient,
        Role::NewcomerError,
        Role::HeadPrior,
    ] {
        assert_eq!(roles & role.bit(), 0);
        roles |= role.bit();
    }
    assert_eq!(roles, 0x3FF_07FF);
    assert_eq!(ALL_ENCODINGS.map(Encoding::bit), [1, 2, 4, 8]);
}
