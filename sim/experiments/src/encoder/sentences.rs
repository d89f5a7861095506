//! Reader of files of rated sentences. Sentences of the same review or article form a group.
//!
//! Each line has the form `id TAB mean rating TAB text`, like the ground truth published with VADER (Hutto
//! and Gilbert 2014). The part of an id before the first `_` is the name of the group; without `_`, the id
//! itself is the name of the group.

use std::collections::HashSet;
use std::path::Path;

use super::error::read_text;
use super::{EncoderError, Tokenizer};

/// Largest accepted file, in bytes.
const FILE_MAX: u64 = 1 << 28;

/// Largest accepted magnitude of a rating.
const RATING_MAX: f64 = 4.0;

/// One rated sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// Id of the sentence in the file.
    pub id: String,
    /// Tokens, including `[CLS]` and `[SEP]`.
    pub tokens: Vec<u32>,
    /// Class: 1 for a positive rating, 0 for a negative rating.
    pub label: u8,
}

/// Sentences of one review or article.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Index of the file that contains the group, from 0.
    pub file: usize,
    /// Sentences in the order of the file.
    pub sentences: Vec<Sentence>,
}

/// Options for reading files of sentences.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions<'a> {
    /// Tokenizer of the texts.
    pub tokenizer: &'a Tokenizer,
    /// Largest number of tokens of a sentence; longer sentences are truncated.
    pub tokens: usize,
    /// Smallest magnitude of a rating. Sentences with a smaller magnitude are omitted, because the raters did
    /// not agree on a sign.
    pub margin: f64,
}

/// Groups of sentences of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    /// Groups in the order of the files and, within a file, of the first sentence of each group.
    pub groups: Vec<Group>,
    /// Number of sentences that were omitted because of their rating.
    pub left_out: usize,
}

impl Corpus {
    /// Reads files of sentences.
    ///
    /// # Errors
    /// [`EncoderError::File`] if a line is malformed, or if a file contains no usable sentence.
    pub fn read<P: AsRef<Path>>(files: &[P], reading: ReadOptions<'_>) -> Result<Self, EncoderError> {
        let mut corpus = Self::default();
        for (number, file) in files.iter().enumerate() {
            corpus.add(number, file.as_ref(), reading)?;
        }
        Ok(corpus)
    }

    /// Reads the file with index `file` and appends its groups.
    fn add(&mut self, file: usize, path: &Path, reading: ReadOptions<'_>) -> Result<(), EncoderError> {
        let text = read_text(path, FILE_MAX)?;
        let mut places = std::collections::HashMap::new();
        let (mut seen, group_count) = (HashSet::new(), self.groups.len());
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let line_error =
                |fault: String| EncoderError::file(path, format!("line {}: {fault}", number + 1));
            let mut cells = line.splitn(3, '\t');
            let (Some(id), Some(rating), Some(text)) = (cells.next(), cells.next(), cells.next()) else {
                return Err(line_error("not of the form id TAB rating TAB text".to_owned()));
            };
            let rating = rating.trim().parse().ok().filter(|value: &f64| value.abs() <= RATING_MAX);
            let rating: f64 = rating.ok_or_else(|| {
                line_error(format!("the rating is no number from -{RATING_MAX} to {RATING_MAX}"))
            })?;
            if !seen.insert(id.to_owned()) {
                return Err(line_error(format!("{id:?} occurs twice")));
            }
            if text.trim().is_empty() {
                return Err(line_error("there is no text".to_owned()));
            }
            if rating.abs() < reading.margin || rating == 0.0 {
                self.left_out += 1;
                continue;
            }
            let tokens = reading.tokenizer.tokens(text, reading.tokens);
            let sentence = Sentence { id: id.to_owned(), tokens, label: u8::from(rating > 0.0) };
            let group = id.split_once('_').map_or(id, |(group, _)| group).to_owned();
            let index = *places.entry(group).or_insert(self.groups.len());
            match self.groups.get_mut(index) {
                Some(group) => group.sentences.push(sentence),
                None => self.groups.push(Group { file, sentences: vec![sentence] }),
            }
        }
        match self.groups.len() == group_count {
            true => Err(EncoderError::file(path, "no sentence with a rating far enough from zero")),
            false => Ok(()),
        }
    }

    /// Number of sentences of all groups.
    #[must_use]
    pub fn sentences(&self) -> usize {
        self.groups.iter().map(|group| group.sentences.len()).sum()
    }
}
