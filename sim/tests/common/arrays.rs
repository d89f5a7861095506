//! Test helpers: writers of arrays in NumPy's formats npy and npz, with every type, memory order, version and
//! compression.

use std::io::Write;
use std::path::Path;

/// Content of an npy file with the given header fields and body.
pub fn npy_bytes(descr: &str, fortran: bool, shape: &[usize], body: &[u8], version: u8) -> Vec<u8> {
    let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let order = if fortran { "True" } else { "False" };
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}{comma}), }}", shape.join(", "));
    let head = if version == 1 { 10 } else { 12 };
    while !(head + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    let length = if version == 1 { &length[..2] } else { &length[..] };
    [b"\x93NUMPY", &[version, 0][..], length, text.as_bytes(), body].concat()
}

/// Bits of the half-precision number that equals `value`; panics if there is no such number.
fn half_bits(value: f64) -> u16 {
    let bits = (value as f32).to_bits();
    if value == 0.0 {
        return 0;
    }
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    assert!((1..31).contains(&exponent) && bits & 0x1fff == 0, "{value}");
    u16::try_from((bits >> 16 & 0x8000) | (exponent as u32) << 10 | (bits >> 13 & 0x3ff)).unwrap()
}

/// Bytes of numbers in a NumPy type such as `<f4`.
pub fn numbers_as(descr: &str, values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| {
            let integer = *value as i64;
            let mut bytes = match &descr[1..] {
                "f2" => half_bits(*value).to_le_bytes().to_vec(),
                "f4" => (*value as f32).to_le_bytes().to_vec(),
                "f8" => value.to_le_bytes().to_vec(),
                "b1" => vec![u8::from(*value != 0.0)],
                "i1" | "u1" => integer.to_le_bytes()[..1].to_vec(),
                "i2" | "u2" => integer.to_le_bytes()[..2].to_vec(),
                "i4" | "u4" => integer.to_le_bytes()[..4].to_vec(),
                "i8" | "u8" => integer.to_le_bytes().to_vec(),
                other => panic!("{other}"),
            };
            if descr.starts_with('>') {
                bytes.reverse();
            }
            bytes
        })
        .collect()
}

/// Bytes of texts in a NumPy type such as `<U5`.
pub fn texts_as(descr: &str, texts: &[String]) -> Vec<u8> {
    let width: usize = descr[2..].parse().unwrap();
    texts
        .iter()
        .flat_map(|text| {
            let mut bytes: Vec<u8> = if &descr[1..2] == "S" {
                text.as_bytes().to_vec()
            } else {
                let each = |c: char| {
                    if descr.starts_with('>') {
                        u32::from(c).to_be_bytes()
                    } else {
                        u32::from(c).to_le_bytes()
                    }
                };
                text.chars().flat_map(each).collect()
            };
            bytes.resize(if &descr[1..2] == "S" { width } else { 4 * width }, 0);
            bytes
        })
        .collect()
}

/// Converts row-major values into column-major order.
pub fn to_column_major<T: Clone>(values: &[T], shape: &[usize]) -> Vec<T> {
    let mut out = Vec::new();
    let strides: Vec<usize> =
        (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>()).collect();
    for index in 0..values.len() {
        let mut remaining = index;
        let mut source = 0;
        for (size, stride) in shape.iter().zip(&strides) {
            source += remaining % size * stride;
            remaining /= size;
        }
        out.push(values[source].clone());
    }
    out
}

/// Compression of the members of an npz file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Zipped {
    Stored,
    Deflated,
    /// Member with 64-bit sizes, which NumPy writes for all members.
    Large,
}

/// Writes an npz file with the given members.
pub fn archive(path: &Path, zipped: Zipped, files: &[(&str, Vec<u8>)]) {
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in files {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(match zipped {
                Zipped::Deflated => zip::CompressionMethod::Deflated,
                _ => zip::CompressionMethod::Stored,
            })
            .large_file(zipped == Zipped::Large);
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}
