//! Tests of the header parser: accepted and refused files. The expected results are those of the
//! `safetensors` crate, which defines the format.

use fedspan_adapters::files::{Dtype, Fault, Header, Layout};
use proptest::prelude::*;
use safetensors::SafeTensors;

use crate::common::Adapter;

/// Bytes of a file with this header and `data` zero bytes of data.
fn file_bytes(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

/// Parses a header. Asserts that the `safetensors` crate accepts every header that this parser accepts, with
/// the same tensors.
fn parse_checked(bytes: &[u8]) -> Result<Header, (Option<String>, Fault)> {
    let header = Header::read(bytes, bytes.len() as u64)?;
    let reference = SafeTensors::deserialize(bytes)
        .expect("the safetensors crate refuses a header that our parser accepts");
    assert_eq!(reference.len(), header.tensors.len());
    for tensor in &header.tensors {
        let view = reference.tensor(&tensor.name).unwrap();
        let shape: Vec<u64> = view.shape().iter().map(|size| *size as u64).collect();
        assert_eq!((&shape, view.dtype().to_string()), (&tensor.shape, tensor.dtype.to_string()));
        assert_eq!(view.data().as_ptr_range().start, bytes[tensor.begin as usize..].as_ptr());
        assert_eq!(view.data().len() as u64, tensor.bytes());
    }
    Ok(header)
}

#[test]
fn files_of_the_library_are_accepted() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let bytes = Adapter::random(dtype, 1, 4, 9, 5).bytes();
        let header = parse_checked(&bytes).unwrap();
        let layout = Layout::from_header(&header).unwrap();
        assert_eq!((layout.tensors.len(), layout.pairs.len()), (5, 2));
        assert!(layout.pairs.iter().all(|pair| pair.rank == 4));
        assert_eq!(layout.bytes() + header.bytes.len() as u64, bytes.len() as u64);
    }
    let empty = parse_checked(&file_bytes(r#"{"__metadata__": {"a": "b \u00e9"}}  "#, 0)).unwrap();
    assert!(empty.tensors.is_empty());
    assert!(matches!(Layout::from_header(&empty), Err((None, Fault::NoFactors))));
    // The file has a scalar and an empty tensor.
    let unusual_shapes = r#"{"s": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]},
                  "n": {"dtype": "F32", "shape": [7, 0], "data_offsets": [2, 2]}}"#;
    assert_eq!(
        parse_checked(&file_bytes(unusual_shapes, 2))
            .unwrap()
            .tensors
            .iter()
            .map(|t| t.elements)
            .collect::<Vec<_>>(),
        [1, 0]
    );
}

#[test]
fn invalid_headers_are_refused_with_tensor() {
    let one_tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    let two_tensors = |first: &str, second: &str| {
        format!(
            r#"{{"t": {{"dtype": "F32", "shape": [1], "data_offsets": {first}}},
                 "u": {{"dtype": "F32", "shape": [1], "data_offsets": {second}}}}}"#
        )
    };
    let t = Some("t");
    for (header, data, tensor, expected) in [
        (one_tensor("F32", "[2]", "[0, 8]"), 7, None, "found 7 bytes of data, expected 8"),
        (one_tensor("F32", "[2]", "[0, 8]"), 9, None, "found 9 bytes of data, expected 8"),
        (one_tensor("F32", "[2]", "[0, 4]"), 4, t, "is 8 bytes"),
        (one_tensor("F32", "[2]", "[8, 0]"), 8, t, "is 8 bytes"),
        (one_tensor("F32", "[2]", "[4, 12]"), 12, t, "begins at byte 4 of the data, expected 0"),
        (two_tensors("[0, 4]", "[8, 12]"), 12, Some("u"), "begins at byte 8"),
        (two_tensors("[0, 4]", "[2, 6]"), 6, Some("u"), "begins at byte 2"),
        (two_tensors("[0, 4]", "[0, 4]"), 4, Some("u"), "begins at byte 0"),
        (one_tensor("F32", "[4294967296, 4294967296]", "[0, 8]"), 8, t, "overflows"),
        (one_tensor("F32", "[4611686018427387904]", "[0, 8]"), 8, t, "overflows"),
        (one_tensor("F32", "[4294967296, 4294967296, 0]", "[0, 0]"), 0, t, "overflows"),
        (one_tensor("F32", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", "[0, 4]"), 4, t, "a shape with 9 dimensions"),
        (one_tensor("F\\u001b[31m", "[1]", "[0, 4]"), 4, t, "dtype F\\u{1b}[31m, "),
        (one_tensor("F4", "[2]", "[0, 1]"), 1, t, "found dtype F4, allowed: F32, F16, BF16, F64"),
        (one_tensor("F32", "[-1]", "[0, 4]"), 4, t, "invalid value"),
        (one_tensor("F32", "[1.5]", "[0, 4]"), 4, t, "invalid type"),
        (one_tensor("F32", "[1]", "[0, 18446744073709551616]"), 4, t, "invalid type"),
        (one_tensor("F32", "[1]", "[0]"), 4, t, "invalid length"),
        (r#"{"t": {"dtype": "F32", "shape": [1]}}"#.to_owned(), 4, t, "missing field"),
        (r#"{"t": 1}"#.to_owned(), 4, t, "invalid type"),
        (r#"{"__metadata__": {"a": 1}}"#.to_owned(), 0, None, "invalid type"),
        (r#"{"__metadata__": {}, "__metadata__": {}}"#.to_owned(), 0, None, "twice"),
        (r"{} {}".to_owned(), 0, None, "trailing"),
        (r"[1]".to_owned(), 0, None, "invalid type"),
        (r"{".to_owned(), 0, None, "EOF"),
        (String::new(), 0, None, "EOF"),
    ] {
        let (named_tensor, fault) = parse_checked(&file_bytes(&header, data)).expect_err(&header);
        assert_eq!(named_tensor.as_deref(), tensor, "{header}: {fault}");
        assert!(fault.to_string().contains(expected), "{header}: {fault}");
    }
    let duplicate = r#"{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "t": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}"#;
    let (named_tensor, fault) = parse_checked(&file_bytes(duplicate, 8)).unwrap_err();
    assert_eq!((named_tensor.as_deref(), fault.to_string().as_str()), (t, "the file has this tensor twice"));
    for (bytes, expected) in [
        (&b""[..], "truncated: found 0 bytes, expected at least 8"),
        (b"1234567", "truncated: found 7 bytes"),
        (&9_u64.to_le_bytes(), "truncated: found 8 bytes, expected at least 17"),
        (&u64::MAX.to_le_bytes(), "a header of 18446744073709551615 bytes"),
        (b"PK\x03\x04 an archive of another kind", "is this a safetensors file?"),
    ] {
        let (named_tensor, fault) = parse_checked(bytes).unwrap_err();
        assert!(named_tensor.is_none() && fault.to_string().contains(expected), "{fault}");
    }
    let long_value = format!(r#"{{"t": {{"dtype": "F32", "shape": "{}"}}}}"#, "x".repeat(100_000));
    assert!(parse_checked(&file_bytes(&long_value, 4)).unwrap_err().1.to_string().len() < 300);
    // The nesting is deeper than the stack allows.
    assert!(parse_checked(&file_bytes(&"{\"a\":".repeat(100_000), 0)).is_err());
    assert!(parse_checked(&file_bytes(&format!("{{\"{}\":1}}", "n".repeat(1025)), 0)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_header_never_panics(
        seed in 0_u64..50, places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        new_len in any::<prop::sample::Index>(), truncates in any::<bool>(), padding in 0_usize..3,
    ) {
        let mut bytes = Adapter::random(Dtype::F16, seed, 2, 3, 2).bytes();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (index, value) in places {
            // Digits and punctuation reach more code of the parser than random bytes do.
            let index = index.index(header);
            bytes[index] = if value < 128 { b"0123456789[]{},:\"-"[usize::from(value) % 18] } else { value };
        }
        if truncates {
            bytes.truncate(new_len.index(bytes.len()));
        }
        bytes.resize(bytes.len() + padding, b' ');
        if let Ok(header) = parse_checked(&bytes) {
            let _ = Layout::from_header(&header);
        }
    }
}

/// The parser refuses invalid UTF-8 in an ignored value, like the `safetensors` crate. Fuzzing found this
/// case.
#[test]
fn invalid_utf8_in_ignored_values_is_refused() {
    let mut bytes =
        file_bytes(r#"{"t": {"dtype": "F32", "unread": "?", "shape": [1], "data_offsets": [0, 4]}}"#, 4);
    let question_mark = bytes.iter().position(|byte| *byte == b'?').expect("the header has a question mark");
    bytes[question_mark] = 0x9e;
    assert!(SafeTensors::deserialize(&bytes).is_err());
    let (_, fault) = parse_checked(&bytes).unwrap_err();
    assert!(fault.to_string().contains("utf-8"), "{fault}");
}
