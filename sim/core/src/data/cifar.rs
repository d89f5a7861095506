//! Reader of the binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky 2009). A record in a file has one or
//! two labels and three colour planes of 32 x 32 pixels. In samples, the three colours of a pixel are
//! adjacent.

use std::path::Path;

use super::file::Files;
use super::pool::Pool;
use super::{DataError, Labels, Layout, Set, Shape};

/// Width and height of an image, in pixels.
const SIDE: usize = 32;
/// Number of colours: red, green, blue.
const CHANNELS: usize = 3;
/// Size of an image in bytes.
const PIXELS: usize = CHANNELS * SIDE * SIDE;
/// Largest file size in bytes; CIFAR-100's training file has 154 MB.
const LARGEST: u64 = 1 << 28;

/// Mean and standard deviation with which each colour is standardised, relative to the largest pixel value.
/// The values are those of ImageNet, as in the code of the papers: values measured on CIFAR itself could leak
/// test data into training.
const COLOURS: [(f32, f32); CHANNELS] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];

/// Variant of the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CIFAR-10: one label per record, 10 classes.
    Ten,
    /// CIFAR-100 with its second label: 100 classes.
    Fine,
    /// CIFAR-100 with its first label: 20 classes.
    Coarse,
}

impl Kind {
    /// Index of the label used, number of labels in a record, and number of classes.
    fn labels(self) -> (usize, usize, usize) {
        match self {
            Self::Ten => (0, 1, 10),
            Self::Fine => (1, 2, 100),
            Self::Coarse => (0, 2, 20),
        }
    }

    /// Names of the training files and of the test file.
    fn files(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Ten => (
                &[
                    "data_batch_1.bin",
                    "data_batch_2.bin",
                    "data_batch_3.bin",
                    "data_batch_4.bin",
                    "data_batch_5.bin",
                ],
                "test_batch.bin",
            ),
            Self::Fine | Self::Coarse => (&["train.bin"], "test.bin"),
        }
    }
}

/// Reads the training files and the test file from `directory` into a pool.
///
/// # Errors
/// [`DataError`] naming the file and the offset if a file is missing, truncated or has a bad label.
pub fn read(directory: &str, kind: Kind, files: &mut Files<'_>) -> Result<Pool, DataError> {
    let (train, test) = kind.files();
    let mut set = Set::empty(true);
    let mut part = |name: &str, set: &mut Set| {
        let path = Path::new(directory).join(name);
        let (bytes, path) = files.read(&path.display().to_string(), LARGEST)?;
        append(&bytes, &path, kind, set)
    };
    for name in train {
        part(name, &mut set)?;
    }
    let tests_from = set.len();
    part(test, &mut set)?;
    let (_, _, classes) = kind.labels();
    Ok(Pool {
        name: directory.to_owned(),
        features: PIXELS + 1,
        classes,
        set,
        tests_from,
        layout: Layout {
            shape: Some(Shape::Image { channels: CHANNELS, height: SIDE, width: SIDE }),
            constant: true,
        },
        ..Pool::default()
    })
}

/// Appends the records of one file to `set`, with a constant 1 after each image.
///
/// # Errors
/// [`DataError`] naming the file and the offset if the file is truncated or has a bad label.
pub fn append(bytes: &[u8], name: &str, kind: Kind, set: &mut Set) -> Result<(), DataError> {
    let (label_index, labels, classes) = kind.labels();
    let record = labels + PIXELS;
    let (count, extra_bytes) = (bytes.len() / record, bytes.len() % record);
    if extra_bytes != 0 || count == 0 {
        let message = format!(
            "truncated record at byte {}: found {extra_bytes} bytes, expected {record}",
            count * record
        );
        return Err(DataError::new(name, message));
    }
    set.x.reserve_exact(count * (PIXELS + 1));
    for (number, record_bytes) in bytes.chunks_exact(record).enumerate() {
        let (record_labels, image) = record_bytes.split_at(labels);
        let label = record_labels.get(label_index).copied().unwrap_or(0);
        if usize::from(label) >= classes {
            let label_offset = number * record + label_index;
            return Err(DataError::new(
                name,
                format!("label {label} at byte {label_offset}, expected 0 to {}", classes - 1),
            ));
        }
        for pixel_index in 0..SIDE * SIDE {
            for (colour, (mean, deviation)) in image.chunks_exact(SIDE * SIDE).zip(COLOURS) {
                let pixel = colour.get(pixel_index).copied().unwrap_or(0);
                set.x.push((f32::from(pixel) / 255.0 - mean) / deviation);
            }
        }
        set.x.push(1.0);
        if let Labels::Classes(set_labels) = &mut set.y {
            set_labels.push(label);
        }
    }
    Ok(())
}
