//! Tests of tensors with other dtypes than those of factors: integers, booleans, f64 and packed floats.

use fedspan_adapters::files::{AdapterError, AverageReport, Dtype, RoundKind, average, check};
use safetensors::{Dtype as FileDtype, SafeTensors};

use crate::common::{Adapter, Buffer, DOWN, Folder, UP};

const NAME: &str = "base_model.model.normalization.num_batches_tracked";

/// Creates a folder with a base and clients of an up round. Each adapter has an additional tensor, with the
/// bytes in `buffers`.
fn create_folder(dtype: FileDtype, shape: &[usize], buffers: &[Vec<u8>]) -> Folder {
    let base = Adapter::random(Dtype::F32, 1, 2, 9, 4);
    let clients: Vec<Adapter> =
        (1..buffers.len() as u64).map(|seed| base.trained(RoundKind::Up, seed)).collect();
    let folder = Folder::new(&base, &clients);
    let paths = [folder.file_path("base.safetensors")].into_iter().chain(folder.clients.iter().cloned());
    for ((path, adapter), bytes) in paths.zip([&base].into_iter().chain(&clients)).zip(buffers) {
        let buffer: Buffer = (NAME, dtype, shape.to_vec(), bytes.clone());
        std::fs::write(path, adapter.bytes_with(&[buffer])).unwrap();
    }
    folder
}

/// Bytes of the additional tensor after an average, and the report.
fn average_buffer(folder: &Folder, samples: Option<&[u64]>) -> (Vec<u8>, AverageReport) {
    let report = folder.average(RoundKind::Up, samples).unwrap();
    let read_file = |name: &str| std::fs::read(folder.file_path(name)).unwrap();
    let (mean_file, base_file) = (read_file("next.safetensors"), read_file("base.safetensors"));
    let length = 8 + usize::try_from(u64::from_le_bytes(base_file[..8].try_into().unwrap())).unwrap();
    assert_eq!(mean_file[..length], base_file[..length], "the mean does not have the base's header");
    // The result is the same with more threads.
    let inputs = folder.open_inputs(samples).unwrap();
    average(&inputs, folder.average_job(RoundKind::Up, 3), &|_, _| true).unwrap();
    assert_eq!(read_file("next.safetensors"), mean_file);
    (SafeTensors::deserialize(&mean_file).unwrap().tensor(NAME).unwrap().data().to_vec(), report)
}

/// Error text of an average that must fail.
fn average_error(folder: &Folder, samples: Option<&[u64]>) -> String {
    let error: AdapterError = folder.average(RoundKind::Up, samples).unwrap_err();
    let message = error.to_string();
    assert!(error.is_invalid_input() && !message.contains('\n') && message.contains(NAME), "{message}");
    assert!(!folder.file_path("next.safetensors").exists());
    message
}

/// Little-endian bytes of integers of a dtype.
fn integer_bytes(dtype: FileDtype, values: &[i128]) -> Vec<u8> {
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
    for (dtype, min, max) in INTEGERS {
        for (shape, values) in [(vec![], vec![max]), (vec![2, 2], vec![min, 0, 1, max])] {
            let bytes = integer_bytes(dtype, &values);
            let folder = create_folder(dtype, &shape, &vec![bytes.clone(); 3]);
            let (merged, report) = average_buffer(&folder, None);
            assert_eq!(merged, bytes, "{dtype:?}");
            assert_eq!((report.averaged, report.kept, report.largest.len()), (3, 3, 0));
        }
    }
}

/// Different integers become the largest value of the clients with a weight. The value of the base is
/// ignored.
#[test]
fn different_integers_become_the_largest() {
    for (dtype, min, max) in INTEGERS {
        let buffers = [[99, max], [min, 3], [7, max - 1], [5, 4]].map(|values| integer_bytes(dtype, &values));
        let folder = create_folder(dtype, &[2], &buffers);
        let (merged, report) = average_buffer(&folder, None);
        assert_eq!(merged, integer_bytes(dtype, &[7, max - 1]), "{dtype:?}");
        assert_eq!((report.averaged, report.kept, report.largest), (3, 2, vec![NAME.to_owned()]));
        // A client with 0 samples is ignored.
        let (merged, _) = average_buffer(&folder, Some(&[1, 0, 1]));
        assert_eq!(merged, integer_bytes(dtype, &[5, 4]));
        let (merged, report) = average_buffer(&folder, Some(&[1, 0, 0]));
        assert_eq!((merged, report.largest.len()), (integer_bytes(dtype, &[min, 3]), 0));
    }
    // The tensors are longer than one block.
    let long_values: Vec<Vec<i128>> =
        (0..3).map(|client| (0..40_000).map(|index| (index * client) % 977).collect()).collect();
    let buffers: Vec<Vec<u8>> =
        long_values.iter().map(|values| integer_bytes(FileDtype::I64, values)).collect();
    let folder = create_folder(FileDtype::I64, &[200, 200], &[&buffers[..1], &buffers[..]].concat());
    let largest: Vec<i128> =
        (0..40_000).map(|index| (0..3).map(|client| long_values[client][index]).max().unwrap()).collect();
    assert_eq!(average_buffer(&folder, None).0, integer_bytes(FileDtype::I64, &largest));
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
        let [base_value, client_value] = bytes;
        // The clients have equal values that differ from the base.
        let equal_clients =
            create_folder(dtype, &shape, &[base_value.clone(), client_value.clone(), client_value.clone()]);
        let (merged, report) = average_buffer(&equal_clients, None);
        assert_eq!((&merged, report.kept), (&client_value, 3), "{dtype:?}");
        let differing_clients = create_folder(
            dtype,
            &shape,
            &[base_value.clone(), base_value.clone(), client_value.clone(), base_value.clone()],
        );
        let message = average_error(&differing_clients, None);
        assert!(message.contains("1.safetensors: tensor") && message.contains("0.safetensors"), "{message}");
        let (merged, _) = average_buffer(&differing_clients, Some(&[1, 0, 5]));
        assert_eq!(merged, base_value, "{dtype:?}: a client without weight changed the value");
    }
    let message =
        average_error(&create_folder(FileDtype::BOOL, &[2], &[vec![0, 0], vec![0, 0], vec![0, 1]]), None);
    assert!(message.contains("element 1 of dtype BOOL is true, but false in"), "{message}");
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
    let buffers: Vec<Vec<u8>> =
        [&columns[0]].into_iter().chain(&columns).map(|values| bytes(values)).collect();
    let mut folder = create_folder(FileDtype::F64, &[6], &buffers);
    for _ in 0..3 {
        assert_eq!(average_buffer(&folder, None).0, bytes(&[3.0, f64::MAX, 1.0, tiny, 0.1, -0.0]));
        folder.clients.rotate_left(1);
    }
    // The first mean is (1 + 2 * 2 + 3 * 6) / 6. Means are exact for values of different magnitude.
    let weighted_means = average_buffer(&folder, Some(&[1, 2, 3])).0;
    let value = |index: usize| f64::from_le_bytes(weighted_means[index * 8..][..8].try_into().unwrap());
    assert_eq!((value(0), value(1), value(4)), (23.0 / 6.0, f64::MAX, 0.1));
    assert_eq!(value(2), -1e300 / 6.0);
    for non_finite in [f64::NAN, f64::INFINITY] {
        let folder = create_folder(
            FileDtype::F64,
            &[2],
            &[bytes(&[1.0, 1.0]), bytes(&[1.0, 1.0]), bytes(&[1.0, non_finite])],
        );
        assert!(average_error(&folder, Some(&[1, 0])).contains("element 1 is "));
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
    let folder =
        create_folder(FileDtype::BF16, &[2], &[bytes(&[0.0, 0.0]), bytes(&[1.0, 3.0]), bytes(&[2.0, 5.0])]);
    assert_eq!(average_buffer(&folder, None).0, bytes(&[1.5, 4.0]));
}

#[test]
fn unsupported_factor_dtypes_are_refused() {
    let base = Adapter::random(Dtype::F32, 1, 2, 9, 4);
    let mut other_tensors = base.clone();
    let (shape, _) = other_tensors.tensors.remove(UP).unwrap();
    for (dtype, size) in [(FileDtype::I64, 8), (FileDtype::F64, 8), (FileDtype::BOOL, 1)] {
        let folder = Folder::new(&base, &[base.trained(RoundKind::Up, 1)]);
        let buffer: Buffer = (UP, dtype, shape.clone(), vec![0; shape.iter().product::<usize>() * size]);
        std::fs::write(folder.file_path("base.safetensors"), other_tensors.bytes_with(&[buffer])).unwrap();
        let message = folder.average(RoundKind::Up, None).unwrap_err().to_string();
        assert!(
            message.contains(UP) && message.contains("allowed for lora_A and lora_B: F32, F16, BF16"),
            "{message}"
        );
    }
}

#[test]
fn dtype_and_shape_must_match_base() {
    let folder = create_folder(
        FileDtype::I64,
        &[],
        &[integer_bytes(FileDtype::I64, &[0]), integer_bytes(FileDtype::I64, &[4])],
    );
    let client = Adapter::random(Dtype::F32, 1, 2, 9, 4).trained(RoundKind::Up, 1);
    let buffer: Buffer = (NAME, FileDtype::I32, vec![], integer_bytes(FileDtype::I32, &[4]));
    std::fs::write(&folder.clients[0], client.bytes_with(&[buffer])).unwrap();
    assert!(average_error(&folder, None).contains("found dtype I32, expected I64 as in"));
    let buffer: Buffer = (NAME, FileDtype::I64, vec![1], integer_bytes(FileDtype::I64, &[4]));
    std::fs::write(&folder.clients[0], client.bytes_with(&[buffer])).unwrap();
    assert!(average_error(&folder, None).contains("found shape [1], expected [] as in"));
}

/// A counter that changes from 0 to 1,000,000 must not add 1,000,000 to the norm.
#[test]
fn norms_ignore_integers() {
    let bytes = |value| integer_bytes(FileDtype::I64, &[value]);
    let folder = create_folder(FileDtype::I64, &[], &[bytes(0), bytes(1_000_000), bytes(0)]);
    let checked = check(&folder.open_inputs(None).unwrap(), &|_, _| true).unwrap();
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
