//! Tokenizer of BERT (WordPiece; Schuster and Nakajima 2012, Devlin et al. 2019), which normalises text,
//! splits it at white space and punctuation, and splits each word into the longest pieces that the vocabulary
//! contains.
//!
//! Names of special tokens within a text, such as `[MASK]`, are treated as ordinary text.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use super::EncoderError;
use super::error::{read, read_text};

/// Name of the vocabulary file in a model directory; each line of the file is a token.
const VOCABULARY_FILE: &str = "vocab.txt";

/// Name of the optional configuration file in a model directory, of which only `do_lower_case` is used.
const CONFIG_FILE: &str = "tokenizer_config.json";

/// Largest accepted file, in bytes.
const FILE_MAX: u64 = 1 << 25;

/// Largest number of characters of a word that is split into pieces. Longer words become `[UNK]`.
const WORD_MAX: usize = 100;

/// Tokenizer with the vocabulary and normalisation of a BERT model.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    pieces: HashMap<String, u32>,
    unknown: u32,
    first: u32,
    last: u32,
    lower_case: bool,
}

/// Content of `tokenizer_config.json`, as far as it is used.
#[derive(Deserialize)]
struct Config {
    #[serde(default = "default_lower_case")]
    do_lower_case: bool,
}

fn default_lower_case() -> bool {
    true
}

impl Tokenizer {
    /// Reads `vocab.txt` of a directory and, if it exists, `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`EncoderError::File`] if the vocabulary lacks a special token, repeats a token, or has another size
    /// than the model.
    pub fn read(directory: &Path, vocabulary: usize) -> Result<Self, EncoderError> {
        let path = directory.join(VOCABULARY_FILE);
        let text = read_text(&path, FILE_MAX)?;
        let file_error = |fault: String| EncoderError::file(&path, fault);
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() != vocabulary {
            return Err(file_error(format!("{} tokens, and the model has {vocabulary}", lines.len())));
        }
        let mut pieces = HashMap::with_capacity(lines.len());
        for (number, line) in (0..).zip(&lines) {
            if pieces.insert((*line).to_owned(), number).is_some() {
                return Err(file_error(format!("line {}: {line:?} occurs twice", number + 1)));
            }
        }
        let special = |token: &str| {
            pieces.get(token).copied().ok_or_else(|| file_error(format!("there is no {token}")))
        };
        let (unknown, first, last) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
        let config = directory.join(CONFIG_FILE);
        let lower_case = match config.exists() {
            true => {
                serde_json::from_slice::<Config>(&read(&config, FILE_MAX)?)
                    .map_err(|error| EncoderError::file(&config, error))?
                    .do_lower_case
            }
            false => true,
        };
        Ok(Self { pieces, unknown, first, last, lower_case })
    }

    /// Converts a text into tokens: `[CLS]`, the pieces of the words, `[SEP]`. The number of tokens is
    /// limited to `max_tokens`, which is at least 2.
    #[must_use]
    pub fn tokens(&self, text: &str, max_tokens: usize) -> Vec<u32> {
        let mut tokens = vec![self.first];
        for word in words(&self.normalize(text)) {
            self.split(word, &mut tokens);
            if tokens.len() >= max_tokens {
                break;
            }
        }
        tokens.truncate(max_tokens.saturating_sub(1).max(1));
        tokens.push(self.last);
        tokens
    }

    /// Normalises a text: removes control characters, replaces white space by spaces, puts spaces around
    /// ideographs, and removes case and accents for lower-case models.
    fn normalize(&self, text: &str) -> String {
        let mut cleaned = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\t' | '\n' | '\r' => cleaned.push(' '),
                '\0' | '\u{fffd}' => {}
                c if c.general_category_group() == GeneralCategoryGroup::Other => {}
                c if c.is_whitespace() => cleaned.push(' '),
                c if is_ideograph(c) => cleaned.extend([' ', c, ' ']),
                c => cleaned.push(c),
            }
        }
        if !self.lower_case {
            return cleaned;
        }
        let without_accents =
            cleaned.nfd().filter(|c| c.general_category() != GeneralCategory::NonspacingMark);
        without_accents.flat_map(char::to_lowercase).collect()
    }

    /// Splits a word greedily into its longest pieces; a word that cannot be split becomes `[UNK]`.
    fn split(&self, word: &str, tokens: &mut Vec<u32>) {
        let (first_piece, mut remaining) = (tokens.len(), word);
        if word.chars().count() > WORD_MAX {
            tokens.push(self.unknown);
            return;
        }
        while !remaining.is_empty() {
            let ends = remaining.char_indices().map(|(offset, c)| offset + c.len_utf8()).rev();
            let longest_piece = ends.map(|end| remaining.split_at(end)).find_map(|(head, tail)| {
                let piece = match tokens.len() == first_piece {
                    true => self.pieces.get(head),
                    false => self.pieces.get(&format!("##{head}")),
                };
                piece.map(|piece| (*piece, tail))
            });
            let Some((piece, tail)) = longest_piece else {
                tokens.truncate(first_piece);
                tokens.push(self.unknown);
                return;
            };
            tokens.push(piece);
            remaining = tail;
        }
    }
}

/// Splits a text into words at white space and before and after each punctuation mark, which is a separate
/// word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(char::is_whitespace)
        .flat_map(|word| {
            word.split_inclusive(is_punctuation).flat_map(|part| {
                let mark = part.char_indices().next_back().filter(|(_, c)| is_punctuation(*c));
                let (word, mark) = part.split_at(mark.map_or(part.len(), |(offset, _)| offset));
                [word, mark]
            })
        })
        .filter(|word| !word.is_empty())
}

/// True if `c` is a Unicode punctuation mark or an ASCII symbol.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

/// True if `c` belongs to a block of ideographs, which BERT splits into single characters.
fn is_ideograph(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b73f
            | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0xf900..=0xfaff
            | 0x2f800..=0x2fa1f
    )
}
