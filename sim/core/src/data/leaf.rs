//! LEAF's JSON files (Caldas et al. 2018): users with their samples, numbers as in FEMNIST, or tweets as in Sent140. Every user
//! is in the pool, without samples, too; who becomes no client is counted where clients are made.

pub mod json;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::file::Files;
use super::pool::{Pool, User};
use super::{DataError, LARGEST_VALUES, Labels, Layout, Set, Shape};
use json::{Samples, Users};
use words::Vectors;

/// Largest file that is read; LEAF writes a hundred users a file, and vectors of 300 numbers take 1 GB.
const LARGEST: u64 = 1 << 30;

/// Most numbers of a text: what a device can be told of, the constant with it.
const WIDEST: usize = 65_534;

/// Where LEAF's data are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// A file, or a directory of them.
    pub path: String,
    /// A test part of the same users.
    pub test_path: Option<String>,
    /// Word vectors, for text.
    pub vectors: Option<String>,
    /// So many lines of that file are looked at.
    pub vocabulary: usize,
    /// A text is a sequence of so many words; 0: the mean of all.
    pub words: usize,
}

/// How a text becomes a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Of its words.
    pub vectors: Vectors,
    /// As in [`Leaf`].
    pub words: usize,
}

impl Text {
    /// Values of a sample, the constant not counted.
    fn width(&self) -> usize {
        self.vectors.width * self.words.max(1)
    }

    fn sample(&self, text: &str) -> Vec<f32> {
        match self.words {
            0 => self.vectors.mean(text),
            words => self.vectors.sequence(text, words),
        }
    }
}

impl Leaf {
    /// Reads all files. Users are in the order of their names.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the place.
    pub fn read(&self, files: &mut Files<'_>) -> Result<Pool, DataError> {
        let mut parts = vec![read_part(&self.path, files)?];
        if let Some(path) = &self.test_path {
            parts.push(read_part(path, files)?);
        }
        let name = files.locate(&self.path);
        let wrong = |message: &str| Err(DataError::new(&name, message));
        let samples = || parts.iter().flat_map(BTreeMap::values);
        let text = samples().any(|samples| !samples.texts.is_empty());
        let numbers = samples().any(|samples| !samples.rows.is_empty());
        let text = match (text, numbers, &self.vectors) {
            (true, true, _) => return wrong("samples of numbers and of text"),
            (false, false, _) => return wrong("nobody has a sample"),
            (true, false, None) => {
                return wrong("samples are text: data.vectors is to name a file of word vectors");
            }
            (false, true, Some(_)) => {
                return wrong("samples are numbers: data.vectors is for text, leave it out");
            }
            (true, false, Some(vectors)) => {
                let (bytes, path) = files.read(vectors, LARGEST)?;
                let texts = samples().flat_map(|samples| &samples.texts).map(String::as_str);
                let vectors = Vectors::parse(&bytes, &path, self.vocabulary, texts)?;
                Some(Text { vectors, words: self.words })
            }
            (false, true, None) => None,
        };
        pool(&name, &parts, text.as_ref())
    }

    /// What to say of users of the test part who have nothing to train on, in one line.
    ///
    /// # Errors
    /// [`DataError`] where that is all of them: nobody would be scored.
    pub fn strangers(&self, pool: &Pool, files: &Files<'_>) -> Result<Option<String>, DataError> {
        let Some(test_path) = self.test_path.as_ref().map(|path| files.locate(path)) else { return Ok(None) };
        let path = &pool.name;
        let is_strange = |user: &&User| user.samples.iter().all(|sample| *sample >= pool.tests_from);
        let tested =
            || pool.users.iter().filter(|user| user.samples.iter().any(|sample| *sample >= pool.tests_from));
        let (all, strange) = (tested().count(), tested().filter(is_strange).count());
        let Some(first) = tested().find(is_strange).map(|user| &user.name) else { return Ok(None) };
        if strange == all {
            return Err(DataError::new(
                test_path,
                format!(
                    "none of its {all} users (the first is {first:?}) has samples in {path}, so there is nobody to score; \
                     allowed: a test part of the same users. Users who come after training stand among the others, and \
                     split.holdout_clients says how many"
                ),
            ));
        }
        Ok(Some(format!(
            "{test_path}: {strange} of {all} users (the first is {first:?}) have no samples in {path} and are left out"
        )))
    }
}

/// A file, or all `.json` files of a directory in the order of their names. A user is in one of them: where training and test
/// parts stand side by side, what tests would train.
fn read_part(path: &str, files: &mut Files<'_>) -> Result<Users, DataError> {
    let place = files.locate(path);
    let mut paths = Vec::new();
    if Path::new(&place).is_dir() {
        let wrong = |error: std::io::Error| DataError::new(&place, error.to_string());
        for entry in std::fs::read_dir(&place).map_err(wrong)? {
            let file = entry.map_err(wrong)?.path();
            if file.extension().is_some_and(|extension| extension == "json") {
                paths.push(file.display().to_string());
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(DataError::new(place, "no .json file in this directory"));
        }
    } else {
        paths.push(place.clone());
    }
    let mut users = Users::new();
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for path in paths {
        let (bytes, path) = files.read(&path, LARGEST)?;
        for (user, samples) in json::parse(&bytes, &path)? {
            if let Some(before) = found.insert(user.clone(), path.clone()) {
                return Err(DataError::new(
                    place,
                    format!(
                        "user {user:?} is in {before} and in {path}; allowed: each user in one file (a test part goes into \
                         data.test_path)"
                    ),
                ));
            }
            users.insert(user, samples);
        }
    }
    Ok(users)
}

/// All samples, those of the second part behind the first.
///
/// # Errors
/// [`DataError`] if samples are of several lengths, or more than fit.
pub fn pool(name: &str, parts: &[Users], text: Option<&Text>) -> Result<Pool, DataError> {
    let wrong = |message: String| Err(DataError::new(name, message));
    let all = || parts.iter().flatten();
    let width = match text {
        Some(text) => text.width(),
        None => all().find_map(|(_, samples)| samples.rows.first()).map_or(0, Vec::len),
    };
    if text.is_some() && width > WIDEST {
        return wrong(format!("texts of {width} numbers, allowed: at most {WIDEST}"));
    }
    let count: usize = all().map(|(_, samples)| samples.labels.len()).sum();
    if (count as u64).saturating_mul(width as u64 + 1) > LARGEST_VALUES {
        return wrong(format!("{count} samples of {width} values are more than {LARGEST_VALUES} values"));
    }
    let (mut x, mut y) = (Vec::with_capacity(count * (width + 1)), Vec::with_capacity(count));
    let mut users: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut tests_from = 0;
    for (number, part) in parts.iter().enumerate() {
        for (user, Samples { rows, texts, labels }) in part {
            for (sample, row) in rows.iter().enumerate() {
                if row.len() != width {
                    return wrong(format!(
                        "user {user:?}, sample {sample}: {} values, others have {width}",
                        row.len()
                    ));
                }
                x.extend_from_slice(row);
                x.push(1.0);
            }
            for words in texts {
                x.extend(text.map(|text| text.sample(words)).unwrap_or_default());
                x.push(1.0);
            }
            users.entry(user).or_default().extend(y.len()..y.len() + labels.len());
            y.extend_from_slice(labels);
        }
        if number == 0 {
            tests_from = y.len();
        }
    }
    let side = width.isqrt();
    let shape = match text {
        None => (side * side == width).then_some(Shape::Image { channels: 1, height: side, width: side }),
        Some(Text { words: 0, .. }) => None,
        Some(Text { vectors, words }) => Some(Shape::Series { steps: *words, channels: vectors.width }),
    };
    let user = |(name, samples): (&str, Vec<usize>)| User { name: name.to_owned(), samples };
    // The labels that occur are the classes: one that nobody has could only be predicted wrongly.
    let labels: BTreeSet<u8> = y.iter().copied().collect();
    let mut classes = [0u8; 256];
    for (class, label) in (0u8..).zip(&labels) {
        classes[usize::from(*label)] = class;
    }
    let y = y.into_iter().map(|label| classes[usize::from(label)]).collect();
    Ok(Pool {
        name: name.to_owned(),
        features: width + 1,
        classes: labels.len().max(1),
        class_names: labels.iter().map(u8::to_string).collect(),
        set: Set::new(x, Labels::Classes(y)),
        tests_from,
        users: users.into_iter().map(user).collect(),
        layout: Layout { shape, constant: true },
        ..Pool::default()
    })
}
