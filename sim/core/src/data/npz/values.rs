//! Reader of an array in NumPy's `npy` format: numbers of any width, booleans, or texts.

use std::io::Read;

use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, TypeStr};

use super::Array;

/// Largest header of an array in bytes: 64 KiB, the limit of format version 1.
const MAX_HEADER: usize = 1 << 16;
/// Largest nesting depth of brackets in a header. A shape within a dictionary has depth two.
const MAX_DEPTH: usize = 8;
/// Largest width of a text in bytes.
const MAX_TEXT: usize = 1 << 12;
/// Largest number of texts in an array: one name for each row of a table.
const MAX_TEXTS: usize = 1 << 24;
/// Size of a number in memory, in bytes.
const NUMBER_SIZE: u64 = 8;
/// Number of elements in a chunk that is read at once.
const CHUNK_ELEMENTS: usize = 1 << 14;

/// Values of an array.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Numbers; booleans are 0 and 1.
    Numbers(Array),
    /// Texts.
    Texts {
        /// Dimensions of the array.
        shape: Vec<usize>,
        /// Texts in row-major order, without trailing zero characters.
        texts: Vec<String>,
    },
}

impl Values {
    /// Dimensions of the array.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Numbers(array) => &array.shape,
            Self::Texts { shape, .. } => shape,
        }
    }

    /// Size in memory, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        match self {
            Self::Numbers(array) => array.values.len() as u64 * NUMBER_SIZE,
            Self::Texts { texts, .. } => texts.iter().map(|text| text_memory(text.len())).sum(),
        }
    }

    /// Removes the last axis if its size is one and there are `axes` other axes.
    #[must_use]
    pub fn squeezed(mut self, axes: usize) -> Self {
        let (Self::Numbers(Array { shape, .. }) | Self::Texts { shape, .. }) = &mut self;
        if shape.len() == axes + 1 && shape.last() == Some(&1) {
            shape.pop();
        }
        self
    }

    /// Returns the numbers.
    ///
    /// # Errors
    /// A one-line message if the array holds texts.
    pub fn numbers(self) -> Result<Array, String> {
        match self {
            Self::Numbers(array) => Ok(array),
            Self::Texts { .. } => Err("found an array of texts, expected numbers".to_owned()),
        }
    }
}

/// Reads an array of at most `max_values` elements from a file of `length` bytes, into at most `max_memory`
/// bytes of memory.
///
/// # Errors
/// A one-line message if the header is malformed, the type is not supported, or the array is larger than
/// allowed or than the file. Memory is allocated only for elements that the file contains.
pub fn read(mut file: impl Read, length: u64, max_values: u64, max_memory: u64) -> Result<Values, String> {
    let header = read_header(&mut file, max_values)?;
    let shape: Vec<usize> = header.shape().iter().filter_map(|&n| usize::try_from(n).ok()).collect();
    let product = header.shape().iter().try_fold(1u64, |product, &n| product.checked_mul(n));
    let count = product.filter(|count| *count <= max_values && shape.len() == header.shape().len());
    let Some(count) = count else {
        return Err(format!("found shape {:?}, which is larger than {max_values} elements", header.shape()));
    };
    let kind = element_type(&header)?;
    let width = kind.num_bytes().unwrap_or(usize::MAX);
    let bytes = count.saturating_mul(width as u64);
    if bytes > length {
        return Err(format!(
            "found shape {:?}, which takes {bytes} bytes, in a file of {length}",
            header.shape()
        ));
    }
    let is_text = matches!(kind.type_char(), TypeChar::UnicodeStr | TypeChar::ByteStr);
    let element_memory = if is_text { text_memory(width) } else { NUMBER_SIZE };
    let memory = count.saturating_mul(element_memory);
    if memory > max_memory {
        return Err(format!(
            "shape {:?} takes {memory} bytes of memory, allowed: at most {max_memory} for all arrays of a file of this size; \
             save with numpy.savez, which does not compress",
            header.shape()
        ));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let is_big_endian = kind.endianness() == Endianness::Big;
    let order = header.order();
    match kind.type_char() {
        TypeChar::UnicodeStr | TypeChar::ByteStr => {
            if count > MAX_TEXTS {
                return Err(format!("found {count} texts, allowed: at most {MAX_TEXTS}"));
            }
            let unicode = kind.type_char() == TypeChar::UnicodeStr;
            let mut texts = Vec::with_capacity(count);
            read_chunks(&mut file, count, width, |chunk| {
                for text in chunk.chunks_exact(width.max(1)) {
                    texts.push(if unicode {
                        decode_unicode(text, is_big_endian)?
                    } else {
                        decode_bytes(text)?
                    });
                }
                Ok(())
            })?;
            let texts = if order == Order::C { texts } else { row_major(&shape, &texts) };
            Ok(Values::Texts { shape, texts })
        }
        _ => {
            let mut values = Vec::with_capacity(count);
            read_chunks(&mut file, count, width, |chunk| {
                decode_numbers(chunk, kind.type_char(), width, is_big_endian, &mut values);
                Ok(())
            })?;
            let values = if order == Order::C { values } else { row_major(&shape, &values) };
            Ok(Values::Numbers(Array { shape, values }))
        }
    }
}

/// Reads and checks the header. Sizes in the header are checked before memory is allocated for them.
fn read_header(file: &mut impl Read, max_values: u64) -> Result<NpyHeader, String> {
    let io_message = |error: std::io::Error| error.to_string();
    let mut head = vec![0; 10];
    file.read_exact(&mut head).map_err(|_| "ends in the header".to_owned())?;
    let length = match *head.as_slice() {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b] => usize::from(u16::from_le_bytes([a, b])),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b] => {
            let mut length_bytes = [0; 2];
            file.read_exact(&mut length_bytes).map_err(|_| "ends in the header".to_owned())?;
            head.extend_from_slice(&length_bytes);
            u32::from_le_bytes([a, b, length_bytes[0], length_bytes[1]]) as usize
        }
        _ => return Err("found no array in NumPy's format, version 1 to 3".to_owned()),
    };
    if length > MAX_HEADER {
        return Err(format!("found a header of {length} bytes, allowed: at most {MAX_HEADER}"));
    }
    let text = head.len();
    head.resize(text + length, 0);
    let header_text = head.get_mut(text..).unwrap_or_default();
    file.read_exact(header_text).map_err(|_| "ends in the header".to_owned())?;
    // The parser of the header recurses at each bracket, so deep nesting could overflow the stack.
    let mut depth = 0usize;
    for byte in header_text.iter() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("found a header with more than {MAX_DEPTH} nested brackets"));
        }
    }
    // The parser of the header multiplies the sizes without an overflow check.
    let text_of_header = String::from_utf8_lossy(header_text).into_owned();
    let shape =
        text_of_header.split_once("shape").map_or("", |(_, shape)| shape.split(')').next().unwrap_or(""));
    let sizes = shape.split(|c: char| !c.is_ascii_digit()).filter(|size| !size.is_empty());
    let product =
        sizes.map(|size| size.parse::<u64>().ok()).try_fold(1u64, |product, size| product.checked_mul(size?));
    if product.is_none() {
        return Err(format!(
            "shape {} is larger than {max_values} elements",
            shape.trim_matches([':', '(', '\'', '"', ' '])
        ));
    }
    NpyHeader::from_reader(head.as_slice()).map_err(io_message)
}

/// Element type of an array, if it is supported.
fn element_type(header: &NpyHeader) -> Result<TypeStr, String> {
    let expected = "expected numbers, booleans or texts";
    let DType::Plain(kind) = header.dtype() else {
        return Err(format!("found an array of records, {expected}"));
    };
    let is_known = match kind.type_char() {
        TypeChar::Bool => kind.size_field() == 1,
        TypeChar::Int | TypeChar::Uint => [1, 2, 4, 8].contains(&kind.size_field()),
        TypeChar::Float => [2, 4, 8].contains(&kind.size_field()),
        TypeChar::UnicodeStr | TypeChar::ByteStr => {
            if kind.num_bytes().is_none_or(|bytes| !(1..=MAX_TEXT).contains(&bytes)) {
                return Err(format!("found type {kind}, expected texts of 1 to {MAX_TEXT} bytes"));
            }
            true
        }
        TypeChar::Object => {
            return Err(format!(
                "found an array of Python objects, {expected}: save it with astype(str) or as numbers"
            ));
        }
        _ => false,
    };
    if is_known { Ok(kind) } else { Err(format!("found type {kind}, {expected}")) }
}

/// Size of a text in memory, in bytes, with an allocator overhead of the size of a `String`.
fn text_memory(width: usize) -> u64 {
    2 * size_of::<String>() as u64 + width as u64
}

/// Reads `count` elements of `width` bytes in chunks, and passes each chunk to `each`.
fn read_chunks(
    file: &mut impl Read,
    count: usize,
    width: usize,
    mut each: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let mut buffer = vec![0; width * CHUNK_ELEMENTS.min(count)];
    let mut read_count = 0;
    while read_count < count {
        let chunk_count = CHUNK_ELEMENTS.min(count - read_count);
        let part = buffer.get_mut(..chunk_count * width).unwrap_or_default();
        file.read_exact(part).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                format!("ends before element {} of {count}", read_count + chunk_count)
            }
            _ => error.to_string(),
        })?;
        each(part)?;
        read_count += chunk_count;
    }
    Ok(())
}

/// Decodes numbers of `width` bytes each and appends them to `values`.
fn decode_numbers(bytes: &[u8], kind: TypeChar, width: usize, is_big_endian: bool, values: &mut Vec<f64>) {
    macro_rules! each {
        ($width:literal, $value:expr) => {
            for element in bytes.chunks_exact($width) {
                let mut element = <[u8; $width]>::try_from(element).unwrap_or_default();
                if is_big_endian {
                    element.reverse();
                }
                values.push($value(element));
            }
        };
    }
    match (kind, width) {
        (TypeChar::Bool, _) => each!(1, |[byte]: [u8; 1]| f64::from(u8::from(byte != 0))),
        (TypeChar::Int, 1) => each!(1, |bytes| f64::from(i8::from_le_bytes(bytes))),
        (TypeChar::Int, 2) => each!(2, |bytes| f64::from(i16::from_le_bytes(bytes))),
        (TypeChar::Int, 4) => each!(4, |bytes| f64::from(i32::from_le_bytes(bytes))),
        (TypeChar::Int, _) => each!(8, |bytes| i64::from_le_bytes(bytes) as f64),
        (TypeChar::Uint, 1) => each!(1, |bytes| f64::from(u8::from_le_bytes(bytes))),
        (TypeChar::Uint, 2) => each!(2, |bytes| f64::from(u16::from_le_bytes(bytes))),
        (TypeChar::Uint, 4) => each!(4, |bytes| f64::from(u32::from_le_bytes(bytes))),
        (TypeChar::Uint, _) => each!(8, |bytes| u64::from_le_bytes(bytes) as f64),
        (_, 2) => each!(2, |bytes| half_to_f64(u16::from_le_bytes(bytes))),
        (_, 4) => each!(4, |bytes| f64::from(f32::from_le_bytes(bytes))),
        _ => each!(8, f64::from_le_bytes),
    }
}

/// Value of an IEEE 754 half-precision number.
fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => libm::ldexp(fraction, -24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => libm::ldexp(fraction + 1024.0, exponent - 25),
    }
}

/// Decodes a text of four-byte characters, NumPy's type `U`.
fn decode_unicode(bytes: &[u8], big: bool) -> Result<String, String> {
    let code = |bytes: &[u8]| {
        let bytes = <[u8; 4]>::try_from(bytes).unwrap_or_default();
        if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    let text: Option<String> = bytes.chunks_exact(4).map(|bytes| char::from_u32(code(bytes))).collect();
    let text = text.ok_or_else(|| "found a text with a code that is no Unicode character".to_owned())?;
    Ok(text.trim_end_matches('\0').to_owned())
}

/// Decodes a text of bytes, NumPy's type `S`.
fn decode_bytes(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "found a text that is not UTF-8".to_owned())?;
    Ok(text.trim_end_matches('\0').to_owned())
}

/// Reorders values from column-major to row-major order.
fn row_major<T: Clone>(shape: &[usize], values: &[T]) -> Vec<T> {
    let mut strides = vec![1usize; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    let mut out = Vec::with_capacity(values.len());
    let mut index = vec![0usize; shape.len()];
    for _ in 0..values.len() {
        let source: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        out.extend(values.get(source).cloned());
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Compares with bit patterns and values of IEEE 754.
    #[test]
    fn half_decodes_known_bit_patterns() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65_504.0),
            (0x0400, 6.103_515_625e-5),
            (0x0001, 5.960_464_477_539_063e-8),
            (0x3555, 0.333_251_953_125),
            (0x7c00, f64::INFINITY),
            (0x8000, 0.0),
        ] {
            assert!(
                (half_to_f64(bits) - value).abs() == 0.0 || half_to_f64(bits) == value,
                "{bits:#x}: {}",
                half_to_f64(bits)
            );
        }
        assert!(half_to_f64(0x7e00).is_nan());
    }

    fn file(text: &str, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(text.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), body].concat()
    }

    fn error_of(text: &str, body: &[u8]) -> String {
        let bytes = file(text, body);
        read(bytes.as_slice(), bytes.len() as u64, 1 << 20, u64::MAX).unwrap_err()
    }

    #[test]
    fn malicious_headers_are_rejected() {
        let header_of = |kind: &str, shape: &str| {
            format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n")
        };
        assert!(error_of(&header_of("<f8", "(1000,)"), &[0; 80]).contains("takes 8000 bytes"));
        assert!(error_of(&header_of("<f8", "(4294967296, 4294967296)"), &[]).contains("larger than 1048576"));
        assert!(error_of(&header_of("|O", "(1,)"), &[0; 8]).contains("Python objects"));
        assert!(error_of(&header_of("<c16", "(1,)"), &[0; 16]).contains("type <c16"));
        assert!(error_of(&header_of("<U9999999", "(1,)"), &[0; 16]).contains("1 to 4096 bytes"));
        assert!(error_of(&"[".repeat(60_000), &[]).contains("brackets"));
        assert!(error_of("nonsense", &[]).len() > 3);
        let huge_header = [b"\x93NUMPY\x02\x00".as_slice(), &[0xff; 4]].concat();
        assert!(
            read(huge_header.as_slice(), 12, 1, 100).unwrap_err().contains("a header of 4294967295 bytes")
        );
    }

    #[test]
    fn texts_and_booleans_are_read() {
        let text = "{'descr': '<U2', 'fortran_order': False, 'shape': (2,), }\n";
        let body: Vec<u8> = "ab\u{e9}\0".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        let bytes = file(text, &body);
        let texts = vec!["ab".to_owned(), "\u{e9}".to_owned()];
        assert_eq!(read(bytes.as_slice(), 1000, 9, 1000).unwrap(), Values::Texts { shape: vec![2], texts });
        let text = "{'descr': '|b1', 'fortran_order': True, 'shape': (2, 3), }\n";
        let bytes = file(text, &[1, 0, 0, 1, 1, 1]);
        let values = vec![1.0, 0.0, 1.0, 0.0, 1.0, 1.0];
        assert_eq!(
            read(bytes.as_slice(), 1000, 9, 1000).unwrap(),
            Values::Numbers(Array { shape: vec![2, 3], values })
        );
    }
}
