//! Reader of the JSON files of LEAF (Caldas et al. 2018): users with numeric samples, as in FEMNIST, or
//! texts, as in Sent140. The pool contains every user, even without samples; the division of the pool counts
//! the users that do not become clients.

pub mod json;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::file::Files;
use super::pool::{Pool, User};
use super::{DataError, LARGEST_VALUES, Labels, Layout, Set, Shape};
use json::{Samples, Users};
use words::Vectors;

/// Largest file size in bytes. LEAF writes a hundred users per file; a file of word vectors of 300 numbers
/// has 1 GB.
const LARGEST: u64 = 1 << 30;

/// Largest number of values of a text. With the constant, this is the largest number of features in the
/// protocol.
const MAX_TEXT_VALUES: usize = 65_534;

/// Paths and settings of a LEAF data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// Path of the training part: a file, or a directory of files.
    pub path: String,
    /// Path of the test part, which has the same users; `None` if there is no test part.
    pub test_path: Option<String>,
    /// Path of a file of word vectors; `None` if samples are numeric.
    pub vectors: Option<String>,
    /// Number of lines of the file of word vectors that are read.
    pub vocabulary: usize,
    /// Number of words of a text that form a sequence; 0 for the mean of all words.
    pub words: usize,
}

/// Conversion of texts to samples by word vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Word vectors.
    pub vectors: Vectors,
    /// Number of words in a sequence; 0 for the mean of all words.
    pub words: usize,
}

impl Text {
    /// Number of values of a sample, without the constant.
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
    /// Reads all files into a pool. Users are in the order of their names.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the position if a file cannot be read or is malformed, or its
    /// samples do not fit the settings.
    pub fn read(&self, files: &mut Files<'_>) -> Result<Pool, DataError> {
        let mut parts = vec![read_part(&self.path, files)?];
        if let Some(path) = &self.test_path {
            parts.push(read_part(path, files)?);
        }
        let name = files.locate(&self.path);
        let fail = |message: &str| Err(DataError::new(&name, message));
        let samples = || parts.iter().flat_map(BTreeMap::values);
        let text = samples().any(|samples| !samples.texts.is_empty());
        let numbers = samples().any(|samples| !samples.rows.is_empty());
        let text = match (text, numbers, &self.vectors) {
            (true, true, _) => return fail("found samples of numbers and of text, allowed: one kind"),
            (false, false, _) => return fail("found no sample of any user"),
            (true, false, None) => {
                return fail("samples are text: set data.vectors to a file of word vectors");
            }
            (false, true, Some(_)) => {
                return fail("samples are numbers: data.vectors is for text, leave it out");
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

    /// Formats a one-line warning about users of the test part that have no training samples.
    ///
    /// # Errors
    /// [`DataError`] if no user of the test part has training samples, so that no client could be scored.
    pub fn untrained_users_warning(
        &self,
        pool: &Pool,
        files: &Files<'_>,
    ) -> Result<Option<String>, DataError> {
        let Some(test_path) = self.test_path.as_ref().map(|path| files.locate(path)) else { return Ok(None) };
        let path = &pool.name;
        let is_untrained = |user: &&User| user.samples.iter().all(|sample| *sample >= pool.tests_from);
        let tested =
            || pool.users.iter().filter(|user| user.samples.iter().any(|sample| *sample >= pool.tests_from));
        let (tested_count, untrained) = (tested().count(), tested().filter(is_untrained).count());
        let Some(first) = tested().find(is_untrained).map(|user| &user.name) else { return Ok(None) };
        if untrained == tested_count {
            return Err(DataError::new(
                test_path,
                format!(
                    "none of its {tested_count} users (the first is {first:?}) has samples in {path}, so no client would be scored; \
                     allowed: a test part of the same users. Newcomers belong among the other users, and \
                     split.holdout_clients sets their number"
                ),
            ));
        }
        Ok(Some(format!(
            "{test_path}: {untrained} of {tested_count} users (the first is {first:?}) have no samples in {path} and are dropped"
        )))
    }
}

/// Reads a file, or all `.json` files of a directory in the order of their names. A user may occur in one
/// file only: in a directory with both training and test files, test samples would be trained on.
fn read_part(path: &str, files: &mut Files<'_>) -> Result<Users, DataError> {
    let located = files.locate(path);
    let mut paths = Vec::new();
    if Path::new(&located).is_dir() {
        let data_error = |error: std::io::Error| DataError::new(&located, error.to_string());
        for entry in std::fs::read_dir(&located).map_err(data_error)? {
            let file = entry.map_err(data_error)?.path();
            if file.extension().is_some_and(|extension| extension == "json") {
                paths.push(file.display().to_string());
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(DataError::new(located, "found no .json file in this directory"));
        }
    } else {
        paths.push(located.clone());
    }
    let mut users = Users::new();
    let mut file_of_user: BTreeMap<String, String> = BTreeMap::new();
    for path in paths {
        let (bytes, path) = files.read(&path, LARGEST)?;
        for (user, samples) in json::parse(&bytes, &path)? {
            if let Some(first_file) = file_of_user.insert(user.clone(), path.clone()) {
                return Err(DataError::new(
                    located,
                    format!(
                        "found user {user:?} in {first_file} and in {path}; allowed: each user in one file (a test part goes \
                         into data.test_path)"
                    ),
                ));
            }
            users.insert(user, samples);
        }
    }
    Ok(users)
}

/// Builds a pool of the samples of all parts, in the order of the parts.
///
/// # Errors
/// [`DataError`] if samples have different lengths, or do not fit in memory.
pub fn pool(name: &str, parts: &[Users], text: Option<&Text>) -> Result<Pool, DataError> {
    let fail = |message: String| Err(DataError::new(name, message));
    let all_users = || parts.iter().flatten();
    let width = match text {
        Some(text) => text.width(),
        None => all_users().find_map(|(_, samples)| samples.rows.first()).map_or(0, Vec::len),
    };
    if text.is_some() && width > MAX_TEXT_VALUES {
        return fail(format!(
            "found texts of {width} numbers, allowed: at most {MAX_TEXT_VALUES}; reduce data.words"
        ));
    }
    let count: usize = all_users().map(|(_, samples)| samples.labels.len()).sum();
    if (count as u64).saturating_mul(width as u64 + 1) > LARGEST_VALUES {
        return fail(format!(
            "found {count} samples of {width} values, allowed: at most {LARGEST_VALUES} values in all"
        ));
    }
    let (mut x, mut y) = (Vec::with_capacity(count * (width + 1)), Vec::with_capacity(count));
    let mut users: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut tests_from = 0;
    for (number, part) in parts.iter().enumerate() {
        for (user, Samples { rows, texts, labels }) in part {
            for (sample, row) in rows.iter().enumerate() {
                if row.len() != width {
                    return fail(format!(
                        "user {user:?}, sample {sample}: found {} values, expected {width} as in the other samples",
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
    // Only labels that occur become classes: a prediction of any other label would be wrong.
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
