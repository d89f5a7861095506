//! Tests of tensors with other dtypes than those of factors: integers, booleans, f64 and packed floats.

use fedspan_adapters::files::{AdapterError, AverageReport, Dtype, RoundKind, average, check};
use safetensors::{Dtype as FileDtype, SafeTensors};

use crate::common::{Adapter, Buffer, DOWN, Folder, UP};

const NAME: &str = "base_model.model.normalization.num_batches_tracked";

/// Folder with a base and clients of an up round. Each adapter has an additional tensor, with the bytes in
/// `all`.
fn folder(dtype: FileDtype, shape: &[usize], all: &[Vec<u8>]) -> Folder {
    let base = Adapter::random(Dtype::F32, 1, 2, 9, 4);
    let clients: Vec<Adapter> = (1..all.len() as u64).map(|seed| base.trained(RoundKind::Up, seed)).collect();
    let folder = Folder::new(&base, &clients);
    let paths = [folder.at("base.safetensors")].into_iter().chain(folder.clients.iter().cloned());
    for ((path, adapter), bytes) in paths.zip([&base].into_iter().chain(&clients)).zip(all) {
        let buffer: Buffer = (NAME, dtype, shape.to_vec(), bytes.clone());
        std::fs::write(path, adapter.bytes_with(&[buffer])).unwrap();
    }
    folder
}

/// Bytes of the additional tensor after an average, and the report.
fn averaged(folder: &Folder, samples: Option<&[u64]>) -> (Vec<u8>, AverageReport) {
    let done = folder.average(RoundKind::Up, samples).unwrap();
    let read = |name: &str| std::fs::read(folder.at(name)).unwrap();
    let (next, base) = (read("next.safetensors"), read("base.safetensors"));
    let length = 8 + usize::try_from(u64::from_le_bytes(base[..8].try_into().unwrap())).unwrap();
    assert_eq!(next[..length], base[..length], "the base's header");
    // The result is the same with more threads.
    let inputs = folder.inputs(samples).unwrap();
    average(&inputs, folder.job(RoundKind::Up, 3), &|_, _| true).unwrap();
    assert_eq!(read("next.safetensors"), next);
    (SafeTensors::deserialize(&next).unwrap().tensor(NAME).unwrap().data().to_vec(), done)
}

/// Error text of an average that must fail.
fn refused(folder: &Folder, samples: Option<&[u64]>) -> String {
    let error: AdapterError = folder.average(RoundKind::Up, samples).unwrap_err();
    let text = error.to_string();
    assert!(error.is_invalid_input() && !text.contains('\n') && text.contains(NAME), "{text}");
    assert!(!folder.at("next.safetensors").exists());
    text
}

/// Little-endian bytes of integers of a dtype.
fn integers(dtype: FileDtype, values: &[i128]) -> Vec<u8> {
    let size = dtype.bitsize() / 8;
    values.iter().flat_map(|value| value.to_le_bytes()[..size].to_vec()).collect()
}

const INTEGERS: [(FileDtype, i128, i128); 8] = [
    (FileDtype::I8, i8::MIN as i128, i8::MAX as i128),
    (FileDtype::U8, 0, u8::MAX as i128),
    (FileDtype::I16, i16::MIN as i128, i16::MAX as i128),
    (FileDtype::U16, 0, u16::MAX as i128),
    (FileDtype::I32, i32::MIN as i128, i32::MAX as i128),
    (FileDtype::U32, 0, u32::MAX as i128),
    (FileDtype::I64, i64::MIN as i128, i64::MAX as i128),
    (FileDtype::U64, 0, u64::MAX as i128),
];

#[test]
fn equal_integers_are_kept() {
    for (dtype, least, most) in INTEGERS {
        for (shape, values) in [(vec![], vec![most]), (vec![2, 2], vec![least, 0, 1, most])] {
            let bytes = integers(dtype, &values);
            let folder = folder(dtype, &shape, &vec![bytes.clone(); 3]);
            let (found, done) = averaged(&folder, None);
            assert_eq!(found, bytes, "{dtype:?}");
            assert_eq!((done.averaged, done.kept, done.largest.len()), (3, 3, 0));
        }
    }
}

/// Different integers become the largest value of the clients with a weight. The value of the base is
/// ignored.
#[test]
fn different_integers_become_the_largest() {
    for (dtype, least, most) in INTEGERS {
        let all = [[99, most], [least, 3], [7, most - 1], [5, 4]].map(|values| integers(dtype, &values));
        let folder = folder(dtype, &[2], &all);
        let (found, done) = averaged(&folder, None);
        assert_eq!(found, integers(dtype, &[7, most - 1]), "{dtype:?}");
        assert_eq!((done.averaged, done.kept, done.largest), (3, 2, vec![NAME.to_owned()]));
        // A client with 0 samples is ignored.
        let (found, _) = averaged(&folder, Some(&[1, 0, 1]));
        assert_eq!(found, integers(dtype, &[5, 4]));
        let (found, done) = averaged(&folder, Some(&[1, 0, 0]));
        assert_eq!((found, done.largest.len()), (integers(dtype, &[least, 3]), 0));
    }
    // The tensors are longer than one block.
    let long: Vec<Vec<i128>> =
        (0..3).map(|client| (0..40_000).map(|place| (place * client) % 977).collect()).collect();
    let all: Vec<Vec<u8>> = long.iter().map(|values| integers(FileDtype::I64, values)).collect();
    let folder = folder(FileDtype::I64, &[200, 200], &[&all[..1], &all[..]].concat());
    let largest: Vec<i128> =
        (0..40_000).map(|place| (0..3).map(|client| long[client][place]).max().unwrap()).collect();
    assert_eq!(averaged(&folder, None).0, integers(FileDtype::I64, &largest));
}

#[test]
fn dtypes_without_mean_must_agree() {
    for (dtype, shape, bytes) in [
        (FileDtype::BOOL, vec![3], [vec![0, 1, 0], vec![0, 1, 1]]),
        (FileDtype::BOOL, vec![], [vec![0], vec![1]]),
        (FileDtype::F8_E4M3, vec![2], [vec![1, 2], vec![1, 3]]),
        (FileDtype::F8_E5M2, vec![1], [vec![0], vec![9]]),
        (FileDtype::C64, vec![1], [vec![0; 8], vec![7; 8]]),
    ] {
        let [one, other] = bytes;
        // The clients have equal values that differ from the base.
        let same = folder(dtype, &shape, &[one.clone(), other.clone(), other.clone()]);
        let (found, done) = averaged(&same, None);
        assert_eq!((&found, done.kept), (&other, 3), "{dtype:?}");
        let unlike = folder(dtype, &shape, &[one.clone(), one.clone(), other.clone(), one.clone()]);
        let text = refused(&unlike, None);
        assert!(text.contains("1.safetensors: tensor") && text.contains("0.safetensors"), "{text}");
        let (found, _) = averaged(&unlike, Some(&[1, 0, 5]));
        assert_eq!(found, one, "{dtype:?}: the client that differs has no weight");
    }
    let text = refused(&folder(FileDtype::BOOL, &[2], &[vec![0, 0], vec![0, 0], vec![0, 1]]), None);
    assert!(text.contains("element 1 of dtype BOOL is true, but false in"), "{text}");
}

#[test]
fn f64_values_are_averaged() {
    let bytes = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let tiny = f64::from_bits(3);
    let columns = [
        [1.0, f64::MAX, 1e300, tiny, 0.1, -0.0],
        [2.0, f64::MAX, -1e300, tiny, 0.1, -0.0],
        [6.0, f64::MAX, 3.0, tiny, 0.1, -0.0],
    ];
    let all: Vec<Vec<u8>> = [&columns[0]].into_iter().chain(&columns).map(|values| bytes(values)).collect();
    let mut folder = folder(FileDtype::F64, &[6], &all);
    for _ in 0..3 {
        assert_eq!(averaged(&folder, None).0, bytes(&[3.0, f64::MAX, 1.0, tiny, 0.1, -0.0]));
        folder.clients.rotate_left(1);
    }
    // The first mean is (1 + 2 * 2 + 3 * 6) / 6. Means are exact for values of different magnitude.
    let found = averaged(&folder, Some(&[1, 2, 3])).0;
    let value = |place: usize| f64::from_le_bytes(found[place * 8..][..8].try_into().unwrap());
    assert_eq!((value(0), value(1), value(4)), (23.0 / 6.0, f64::MAX, 0.1));
    assert_eq!(value(2), -1e300 / 6.0);
    for wrong in [f64::NAN, f64::INFINITY] {
        let folder = self::folder(
            FileDtype::F64,
            &[2],
            &[bytes(&[1.0, 1.0]), bytes(&[1.0, 1.0]), bytes(&[1.0, wrong])],
        );
        assert!(refused(&folder, Some(&[1, 0])).contains("element 1 is "));
    }
}

/// Buffers in bf16, such as running means, are averaged although the factors are f32.
#[test]
fn bf16_buffers_are_averaged() {
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|value| (value.to_bits() >> 16).to_le_bytes()[..2].to_vec())
            .collect::<Vec<u8>>()
    };
    let folder = folder(FileDtype::BF16, &[2], &[bytes(&[0.0, 0.0]), bytes(&[1.0, 3.0]), bytes(&[2.0, 5.0])]);
    assert_eq!(averaged(&folder, None).0, bytes(&[1.5, 4.0]));
}

#[test]
fn unsupported_factor_dtypes_are_refused() {
    let base = Adapter::random(Dtype::F32, 1, 2, 9, 4);
    let mut rest = base.clone();
    let (shape, _) = rest.tensors.remove(UP).unwrap();
    for (dtype, size) in [(FileDtype::I64, 8), (FileDtype::F64, 8), (FileDtype::BOOL, 1)] {
        let folder = Folder::new(&base, &[base.trained(RoundKind::Up, 1)]);
        let buffer: Buffer = (UP, dtype, shape.clone(), vec![0; shape.iter().product::<usize>() * size]);
        std::fs::write(folder.at("base.safetensors"), rest.bytes_with(&[buffer])).unwrap();
        let text = folder.average(RoundKind::Up, None).unwrap_err().to_string();
        assert!(
            text.contains(UP) && text.contains("allowed for lora_A and lora_B: F32, F16, BF16"),
            "{text}"
        );
    }
}

#[test]
fn dtype_and_shape_must_match_base() {
    let folder =
        folder(FileDtype::I64, &[], &[integers(FileDtype::I64, &[0]), integers(FileDtype::I64, &[4])]);
    let client = Adapter::random(Dtype::F32, 1, 2, 9, 4).trained(RoundKind::Up, 1);
    let buffer: Buffer = (NAME, FileDtype::I32, vec![], integers(FileDtype::I32, &[4]));
    std::fs::write(&folder.clients[0], client.bytes_with(&[buffer])).unwrap();
    assert!(refused(&folder, None).contains("found dtype I32, expected I64 as in"));
    let buffer: Buffer = (NAME, FileDtype::I64, vec![1], integers(FileDtype::I64, &[4]));
    std::fs::write(&folder.clients[0], client.bytes_with(&[buffer])).unwrap();
    assert!(refused(&folder, None).contains("found shape [1], expected [] as in"));
}

/// A counter that changes from 0 to 1,000,000 must not add 1,000,000 to the norm.
#[test]
fn norms_ignore_integers() {
    let bytes = |value| integers(FileDtype::I64, &[value]);
    let folder = folder(FileDtype::I64, &[], &[bytes(0), bytes(1_000_000), bytes(0)]);
    let checked = check(&folder.inputs(None).unwrap(), &|_, _| true).unwrap();
    let saved: Vec<f64> = checked.clients.iter().map(|client| client.saved.unwrap().change).collect();
    assert!(
        saved.iter().all(|change| *change < 1000.0) && checked.clients[0].saved.unwrap().differs,
        "{saved:?}"
    );
    let (_, changed) = checked.clients[0].tensors.iter().find(|(name, _)| name == NAME).unwrap();
    assert_eq!((changed.change, changed.differs), (1e6, true));
    assert!(checked.clients[1].tensors.iter().any(|(name, changed)| name == NAME && !changed.differs));
    assert!(checked.clients[0].tensors.iter().any(|(name, changed)| name == DOWN && !changed.differs));
}
