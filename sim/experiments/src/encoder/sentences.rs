//! Sentences that people have rated, in groups: the reviews or articles that they come from.
//!
//! A line is `id TAB mean rating TAB text`, the form of the ground truth published with VADER (Hutto and Gilbert 2014). An id
//! `review_sentence` names its group; one without `_` is a group by itself.

use std::collections::HashSet;
use std::path::Path;

use super::error::read_text;
use super::{EncoderError, Tokenizer};

/// Longest file that is read.
const FILE_MAX: u64 = 1 << 28;

/// Greatest magnitude of a rating.
const RATING_MAX: f64 = 4.0;

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// As the file has it.
    pub id: String,
    /// First and last token included.
    pub tokens: Vec<u32>,
    /// 1 if it is rated above zero.
    pub label: u8,
}

/// Sentences that belong together, from one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of its file, from 0.
    pub file: usize,
    /// In the order of the file.
    pub sentences: Vec<Sentence>,
}

/// What is done with lines.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// Makes tokens of texts.
    pub tokenizer: &'a Tokenizer,
    /// Most tokens of a sentence; what is longer is cut.
    pub tokens: usize,
    /// Sentences that are rated nearer to zero than this are left out: raters did not agree on a sign.
    pub margin: f64,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    /// In the order of files, and of their first lines.
    pub groups: Vec<Group>,
    /// How many sentences were rated too near to zero.
    pub left_out: usize,
}

impl Corpus {
    /// Reads files.
    ///
    /// # Errors
    /// Which line of which file is not of the form, or a file of which nothing is left.
    pub fn read<P: AsRef<Path>>(files: &[P], reading: Reading<'_>) -> Result<Self, EncoderError> {
        let mut corpus = Self::default();
        for (number, file) in files.iter().enumerate() {
            corpus.add(number, file.as_ref(), reading)?;
        }
        Ok(corpus)
    }

    fn add(&mut self, file: usize, path: &Path, reading: Reading<'_>) -> Result<(), EncoderError> {
        let text = read_text(path, FILE_MAX)?;
        let mut places = std::collections::HashMap::new();
        let (mut seen, before) = (HashSet::new(), self.groups.len());
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let wrong = |fault: String| EncoderError::file(path, format!("line {}: {fault}", number + 1));
            let mut cells = line.splitn(3, '\t');
            let (Some(id), Some(rating), Some(text)) = (cells.next(), cells.next(), cells.next()) else {
                return Err(wrong("not of the form id TAB rating TAB text".to_owned()));
            };
            let rating = rating.trim().parse().ok().filter(|value: &f64| value.abs() <= RATING_MAX);
            let rating: f64 = rating.ok_or_else(|| {
                wrong(format!("the rating is no number from -{RATING_MAX} to {RATING_MAX}"))
            })?;
            if !seen.insert(id.to_owned()) {
                return Err(wrong(format!("{id:?} is there twice")));
            }
            if text.trim().is_empty() {
                return Err(wrong("there is no text".to_owned()));
            }
            if rating.abs() < reading.margin || rating == 0.0 {
                self.left_out += 1;
                continue;
            }
            let tokens = reading.tokenizer.tokens(text, reading.tokens);
            let sentence = Sentence { id: id.to_owned(), tokens, label: u8::from(rating > 0.0) };
            let group = id.split_once('_').map_or(id, |(group, _)| group).to_owned();
            let place = *places.entry(group).or_insert(self.groups.len());
            match self.groups.get_mut(place) {
                Some(group) => group.sentences.push(sentence),
                None => self.groups.push(Group { file, sentences: vec![sentence] }),
            }
        }
        match self.groups.len() == before {
            true => Err(EncoderError::file(path, "no sentence with a rating far enough from zero")),
            false => Ok(()),
        }
    }

    /// How many sentences there are.
    #[must_use]
    pub fn sentences(&self) -> usize {
        self.groups.iter().map(|group| group.sentences.len()).sum()
    }
}
