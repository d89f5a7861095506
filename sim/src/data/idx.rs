//! IDX files (MNIST, EMNIST, Fashion-MNIST, the bundled digits), plain or gzipped. Bounded: a header cannot
//! make the reader allocate more than the file holds.

use std::io::Read;

use flate2::read::GzDecoder;

use super::{DataError, Labels, Set};

/// The bundled data sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bundled {
    /// 1797 optical digits of 8 x 8.
    Digits,
    /// 5000 MNIST digits of 28 x 28.
    Mnist5k,
}

static DIGITS: [&[u8]; 2] = [
    include_bytes!("../../data/digits-images-idx3-ubyte.gz"),
    include_bytes!("../../data/digits-labels-idx1-ubyte.gz"),
];
static MNIST5K: [&[u8]; 2] = [
    include_bytes!("../../data/mnist5k-images-idx3-ubyte.gz"),
    include_bytes!("../../data/mnist5k-labels-idx1-ubyte.gz"),
];

/// Largest file that is read, decompressed: full MNIST is 47 MB.
const LARGEST: u64 = 1 << 30;

/// Images with their labels, as features in 0..=1 and a constant 1 at the end.
#[derive(Clone, Debug)]
pub struct Images {
    /// Pixels of one image, plus one.
    pub features: usize,
    /// Number of classes: the largest label plus one.
    pub classes: usize,
    /// All images.
    pub set: Set,
}

/// Reads a bundled data set.
///
/// # Errors
/// [`DataError`]; never, short of a broken build.
pub fn bundled(which: Bundled) -> Result<Images, DataError> {
    let ([images, labels], name) = match which {
        Bundled::Digits => (DIGITS, "bundled digits"),
        Bundled::Mnist5k => (MNIST5K, "bundled mnist5k"),
    };
    parse(&decompress(images, name)?, name, &decompress(labels, name)?, name)
}

/// Reads a pair of files.
///
/// # Errors
/// [`DataError`] naming the file and the offset.
pub fn read(images: &str, labels: &str) -> Result<Images, DataError> {
    let load = |path: &str| {
        let bytes = std::fs::read(path).map_err(|error| DataError::new(path, error.to_string()))?;
        decompress(&bytes, path)
    };
    parse(&load(images)?, images, &load(labels)?, labels)
}

fn decompress(bytes: &[u8], name: &str) -> Result<Vec<u8>, DataError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes.to_vec());
    }
    let mut plain = Vec::new();
    let read = GzDecoder::new(bytes).take(LARGEST + 1).read_to_end(&mut plain);
    read.map_err(|error| DataError::new(name, format!("gzip: {error}")))?;
    if plain.len() as u64 > LARGEST {
        return Err(DataError::new(name, format!("more than {LARGEST} bytes after decompression")));
    }
    Ok(plain)
}

fn parse(images: &[u8], images_name: &str, labels: &[u8], labels_name: &str) -> Result<Images, DataError> {
    let (shape, pixels) = header(images, images_name, 3)?;
    let (count, classes) = header(labels, labels_name, 1)?;
    let [n, rows, cols] = *shape.as_slice() else {
        return Err(DataError::new(images_name, "not three dimensions"));
    };
    if count != [n] {
        let message = format!("{} labels for {n} images", classes.len());
        return Err(DataError::new(labels_name, message));
    }
    let side = rows * cols;
    let scale = pixels.iter().copied().max().map_or(1.0, |largest| f32::from(largest.max(1)));
    let mut x = Vec::with_capacity(n * (side + 1));
    for image in pixels.chunks_exact(side.max(1)) {
        x.extend(image.iter().map(|&pixel| f32::from(pixel) / scale));
        x.push(1.0);
    }
    let largest = classes.iter().copied().max().unwrap_or(0);
    Ok(Images {
        features: side + 1,
        classes: usize::from(largest) + 1,
        set: Set { x, y: Labels::Classes(classes.to_vec()) },
    })
}

/// Dimensions and elements of an IDX file of unsigned bytes.
fn header<'a>(bytes: &'a [u8], name: &str, dimensions: usize) -> Result<(Vec<usize>, &'a [u8]), DataError> {
    let word = |at: usize| match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => Ok(u32::from_be_bytes([a, b, c, d])),
        _ => Err(DataError::new(name, format!("ends in the header, at byte {}", bytes.len()))),
    };
    let magic = word(0)?;
    let expected = 0x0000_0800 | u32::try_from(dimensions).unwrap_or(0);
    if magic != expected {
        let message =
            format!("starts with {magic:#010x} at byte 0, expected {expected:#010x} (IDX, unsigned bytes)");
        return Err(DataError::new(name, message));
    }
    let mut shape = Vec::new();
    let mut elements = 1usize;
    for dimension in 0..dimensions {
        let size = word(4 + 4 * dimension)? as usize;
        let product = elements.checked_mul(size).filter(|_| size > 0);
        elements = product.ok_or_else(|| {
            DataError::new(name, format!("dimension of {size} at byte {}", 4 + 4 * dimension))
        })?;
        shape.push(size);
    }
    let start = 4 + 4 * dimensions;
    let body = bytes.get(start..).unwrap_or_default();
    if body.len() != elements {
        let message = format!("{} bytes after byte {start}, the header announces {elements}", body.len());
        return Err(DataError::new(name, message));
    }
    Ok((shape, body))
}
