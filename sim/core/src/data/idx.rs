//! Reader of IDX files, plain or gzipped: the format of MNIST, EMNIST, Fashion-MNIST and the bundled digits.
//! A header cannot make the reader allocate more memory than the file has bytes.

use super::file::{Files, unpack};
use super::pool::Pool;
use super::{DataError, Labels, Layout, Set, Shape};

/// Data sets that are built into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bundled {
    /// 1797 optical digits of 8 x 8 pixels.
    Digits,
    /// 5000 MNIST digits of 28 x 28 pixels.
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

/// Largest decompressed file size in bytes; EMNIST's largest file has 550 MB.
const LARGEST: u64 = 1 << 30;
/// Offset of the first label in a file of labels.
const LABELS_AT: usize = 8;

/// Paths of the IDX files of a data set, and the conventions of their labels and images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idx {
    /// Paths of the images and the labels of the training part.
    pub train: (String, String),
    /// Paths of the images and the labels of the test part; `None` if there is no test part.
    pub test: Option<(String, String)>,
    /// Label of the first class: 1 for EMNIST's letters, otherwise 0.
    pub first_label: u8,
    /// True if images are stored column by column, as in EMNIST.
    pub transposed: bool,
}

/// Reads a bundled data set.
///
/// # Errors
/// [`DataError`] if the file in the program is damaged.
pub fn bundled(data_set: Bundled) -> Result<Pool, DataError> {
    let ([images, labels], name) = match data_set {
        Bundled::Digits => (DIGITS, "digits"),
        Bundled::Mnist5k => (MNIST5K, "mnist5k"),
    };
    Idx::default().parse([(images, name), (labels, name)], None)
}

impl Idx {
    /// Reads the files into a pool.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the offset if a file cannot be read or is malformed.
    pub fn read(&self, files: &mut Files<'_>) -> Result<Pool, DataError> {
        type Pair = ((Vec<u8>, String), (Vec<u8>, String));
        let mut load = |(images, labels): &(String, String)| {
            Ok::<Pair, DataError>((files.read(images, LARGEST)?, files.read(labels, LARGEST)?))
        };
        let train = load(&self.train)?;
        let test = match &self.test {
            None => None,
            Some(test) => Some(load(test)?),
        };
        fn pair(((images, first), (labels, second)): &Pair) -> [(&[u8], &str); 2] {
            [(images, first), (labels, second)]
        }
        self.parse(pair(&train), test.as_ref().map(pair))
    }

    /// Parses the content of the files, plain or gzipped: images and labels, each with its file name.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the offset if a file is malformed.
    pub fn parse(
        &self,
        [images, labels]: [(&[u8], &str); 2],
        test: Option<[(&[u8], &str); 2]>,
    ) -> Result<Pool, DataError> {
        let plain = (unpack(images.0, images.1, LARGEST)?, unpack(labels.0, labels.1, LARGEST)?);
        let train = Part::parse(&plain.0, images.1, &plain.1, labels.1)?;
        let Some([images, labels]) = test else { return build_pool(self, &train, None) };
        let plain = (unpack(images.0, images.1, LARGEST)?, unpack(labels.0, labels.1, LARGEST)?);
        build_pool(self, &train, Some(&Part::parse(&plain.0, images.1, &plain.1, labels.1)?))
    }
}

/// Parsed content of a file of images and its file of labels.
struct Part<'a> {
    name: &'a str,
    labels_name: &'a str,
    rows: usize,
    cols: usize,
    pixels: &'a [u8],
    labels: &'a [u8],
}

impl<'a> Part<'a> {
    /// Parses a file of images and a file of labels, and checks that their numbers are equal.
    fn parse(
        images: &'a [u8],
        name: &'a str,
        labels: &'a [u8],
        labels_name: &'a str,
    ) -> Result<Self, DataError> {
        let (shape, pixels) = parse_header(images, name, 3)?;
        let (count, labels) = parse_header(labels, labels_name, 1)?;
        let [n, rows, cols] = *shape.as_slice() else {
            return Err(DataError::new(name, "found another number of dimensions, expected 3"));
        };
        if count != [n] {
            let message = format!("{} labels for {n} images", labels.len());
            return Err(DataError::new(labels_name, message));
        }
        Ok(Self { name, labels_name, rows, cols, pixels, labels })
    }

    /// Appends the images to the features `x`, and their classes to `y`.
    fn append(&self, files: &Idx, scale: f32, x: &mut Vec<f32>, y: &mut Vec<u8>) -> Result<(), DataError> {
        let (rows, cols) = (self.rows, self.cols);
        x.reserve_exact(self.labels.len() * (rows * cols + 1));
        for image in self.pixels.chunks_exact((rows * cols).max(1)) {
            let value = |pixel: &u8| f32::from(*pixel) / scale;
            if files.transposed {
                x.extend((0..cols).flat_map(|col| image.iter().skip(col).step_by(cols.max(1)).map(value)));
            } else {
                x.extend(image.iter().map(value));
            }
            x.push(1.0);
        }
        for (offset, label) in (LABELS_AT..).zip(self.labels) {
            let class = label.checked_sub(files.first_label).ok_or_else(|| {
                let first = files.first_label;
                let message = format!(
                    "found label {label} at byte {offset}, allowed: from {first}, the value of data.first_label"
                );
                DataError::new(self.labels_name, message)
            })?;
            y.push(class);
        }
        Ok(())
    }
}

/// Builds a pool from the training part and the test part. Pixels are divided by the largest training pixel,
/// so training pixels are in 0..=1, and a constant 1 follows the pixels of an image.
fn build_pool(files: &Idx, train: &Part<'_>, test: Option<&Part<'_>>) -> Result<Pool, DataError> {
    let scale = train.pixels.iter().copied().max().map_or(1.0, |largest| f32::from(largest.max(1)));
    let (mut x, mut y) = (Vec::new(), Vec::new());
    train.append(files, scale, &mut x, &mut y)?;
    if let Some(test) = test {
        if (test.rows, test.cols) != (train.rows, train.cols) {
            let message = format!(
                "found images of {} x {}, expected those of {}: {} x {}",
                test.rows, test.cols, train.name, train.rows, train.cols
            );
            return Err(DataError::new(test.name, message));
        }
        test.append(files, scale, &mut x, &mut y)?;
    }
    let (height, width) = if files.transposed { (train.cols, train.rows) } else { (train.rows, train.cols) };
    let largest = y.iter().copied().max().unwrap_or(0);
    Ok(Pool {
        name: train.name.to_owned(),
        features: height * width + 1,
        classes: usize::from(largest) + 1,
        set: Set::new(x, Labels::Classes(y)),
        tests_from: train.labels.len(),
        layout: Layout { shape: Some(Shape::Image { channels: 1, height, width }), constant: true },
        ..Pool::default()
    })
}

/// Parses an IDX file of unsigned bytes: returns the sizes of its dimensions and its elements.
fn parse_header<'a>(
    bytes: &'a [u8],
    name: &str,
    dimensions: usize,
) -> Result<(Vec<usize>, &'a [u8]), DataError> {
    let read_word = |offset: usize| match bytes.get(offset..offset + 4) {
        Some(&[a, b, c, d]) => Ok(u32::from_be_bytes([a, b, c, d])),
        _ => Err(DataError::new(name, format!("ends in the header, at byte {}", bytes.len()))),
    };
    let magic = read_word(0)?;
    let expected = 0x0000_0800 | u32::try_from(dimensions).unwrap_or(0);
    if magic != expected {
        let message =
            format!("starts with {magic:#010x} at byte 0, expected {expected:#010x} (IDX, unsigned bytes)");
        return Err(DataError::new(name, message));
    }
    let mut shape = Vec::new();
    let mut elements = 1usize;
    for dimension in 0..dimensions {
        let size = read_word(4 + 4 * dimension)? as usize;
        let product = elements.checked_mul(size).filter(|_| size > 0);
        elements = product.ok_or_else(|| {
            DataError::new(
                name,
                format!(
                    "found a dimension of {size} at byte {}, allowed: 1 or more, within memory",
                    4 + 4 * dimension
                ),
            )
        })?;
        shape.push(size);
    }
    let start = 4 + 4 * dimensions;
    let body = bytes.get(start..).unwrap_or_default();
    if body.len() != elements {
        let message =
            format!("found {} bytes after byte {start}, expected {elements} as in the header", body.len());
        return Err(DataError::new(name, message));
    }
    Ok((shape, body))
}
