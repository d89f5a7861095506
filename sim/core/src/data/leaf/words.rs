//! Word vectors, which convert a text to numbers: the mean of the vectors of its words, or their sequence.

use std::collections::{BTreeMap, BTreeSet};

use super::super::DataError;

/// Largest number of values of a word vector; common word vectors have 25 to 300.
const MAX_WIDTH: usize = 4096;

/// Splits a text into words in lower case. A word is a run of letters, digits, `_` and `'`, or one of the
/// marks `.,!?;`.
pub fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let belongs = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '\'';
    let mut remaining = text;
    std::iter::from_fn(move || {
        remaining =
            remaining.trim_start_matches(|letter: char| !belongs(letter) && !".,!?;".contains(letter));
        let first = remaining.chars().next()?;
        let end = if belongs(first) {
            remaining.find(|letter: char| !belongs(letter)).unwrap_or(remaining.len())
        } else {
            first.len_utf8()
        };
        let (word, remaining_text) = remaining.split_at(end);
        remaining = remaining_text;
        Some(word.to_lowercase())
    })
}

/// Vectors of the words that occur in the texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    /// Number of values of a word vector.
    pub width: usize,
    by_word: BTreeMap<String, Vec<f32>>,
}

impl Vectors {
    /// Reads the vectors of the words of `texts` from the first `vocabulary` lines of a file. A line holds a
    /// word and its numbers, separated by blanks. If a word is repeated, its first vector is used.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the line if a line is malformed, or naming the file if it contains
    /// no word of the texts.
    pub fn parse<'t>(
        bytes: &[u8],
        name: &str,
        vocabulary: usize,
        texts: impl Iterator<Item = &'t str>,
    ) -> Result<Self, DataError> {
        let text_words: BTreeSet<String> = texts.flat_map(words).collect();
        let mut vectors = Self { width: 0, by_word: BTreeMap::new() };
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')).take(vocabulary) {
            if line.is_empty() {
                continue;
            }
            let data_error = |message: String| DataError::new(name, format!("line {number}: {message}"));
            let line = std::str::from_utf8(line)
                .map_err(|error| data_error(format!("not UTF-8 at its byte {}", error.valid_up_to())))?;
            let mut fields = line.split_ascii_whitespace();
            let Some(word) = fields.next() else { continue };
            if vectors.width == 0 {
                vectors.width = fields.clone().count();
                if !(1..=MAX_WIDTH).contains(&vectors.width) {
                    return Err(data_error(format!(
                        "found {} numbers after the word, expected 1 to {MAX_WIDTH}",
                        vectors.width
                    )));
                }
            }
            if !text_words.contains(word) || vectors.by_word.contains_key(word) {
                continue;
            }
            let number = |text: &str| {
                let value = text.parse::<f32>().ok().filter(|value| value.is_finite());
                value.ok_or_else(|| data_error(format!("found {text:?}, expected a finite number")))
            };
            let values: Vec<f32> = fields.map(number).collect::<Result<_, _>>()?;
            if values.len() != vectors.width {
                return Err(data_error(format!(
                    "found {} numbers, expected {} as in the first line",
                    values.len(),
                    vectors.width
                )));
            }
            vectors.by_word.insert(word.to_owned(), values);
        }
        if vectors.by_word.is_empty() {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count().min(vocabulary);
            return Err(DataError::new(
                name,
                format!(
                    "found no word of the texts in {lines} lines; increase data.vocabulary or use another file"
                ),
            ));
        }
        Ok(vectors)
    }

    /// Concatenates the vectors of the last `words` known words of a text, preceded by zeros if the text has
    /// fewer known words.
    #[must_use]
    pub fn sequence(&self, text: &str, words: usize) -> Vec<f32> {
        let known_vectors: Vec<&Vec<f32>> =
            self::words(text).filter_map(|word| self.by_word.get(&word)).collect();
        let last = known_vectors.get(known_vectors.len().saturating_sub(words)..).unwrap_or_default();
        let mut values = vec![0.0; (words - last.len()) * self.width];
        last.iter().for_each(|vector| values.extend_from_slice(vector));
        values
    }

    /// Mean of the vectors of a text's known words; zeros if the text has no known word.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
    pub fn mean(&self, text: &str) -> Vec<f32> {
        let mut sum = vec![0f64; self.width];
        let mut count = 0f64;
        for vector in words(text).filter_map(|word| self.by_word.get(&word)) {
            count += 1.0;
            for (sum, value) in sum.iter_mut().zip(vector) {
                *sum += f64::from(*value);
            }
        }
        sum.iter().map(|sum| (sum / count.max(1.0)) as f32).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn words_are_lower_case_and_marks_are_words() {
        let split_words: Vec<String> = words("  Don't STOP,now!! é_1 #tag @me...").collect();
        assert_eq!(split_words, ["don't", "stop", ",", "now", "!", "!", "é_1", "tag", "me", ".", ".", "."]);
        assert_eq!(words("«»").count(), 0);
    }

    #[test]
    fn text_is_mean_or_sequence_of_known_words() {
        let file = b"the 1 2\ngood 3 -4\nbad 5 5\n";
        let texts = ["The good", "nothing", "bad bad good"];
        let vectors = Vectors::parse(file, "v", 10, texts.into_iter()).unwrap();
        assert_eq!(vectors.mean("The good"), [2.0, -1.0]);
        assert_eq!(vectors.mean("nothing"), [0.0, 0.0]);
        assert_eq!(vectors.mean("bad, bad good"), [13.0 / 3.0, 2.0]);
        assert_eq!(vectors.sequence("bad, good: the bad", 3), [3.0, -4.0, 1.0, 2.0, 5.0, 5.0], "the last");
        assert_eq!(vectors.sequence("good?", 3), [0.0, 0.0, 0.0, 0.0, 3.0, -4.0]);
        assert_eq!(vectors.sequence("nothing", 2), [0.0; 4]);
        // Only the first two lines are read.
        let two_vectors = Vectors::parse(file, "v", 2, texts.into_iter()).unwrap();
        assert_eq!(two_vectors.mean("bad good"), [3.0, -4.0]);
    }

    #[test]
    fn errors_name_the_line() {
        for (file, parts) in [
            (&b"a 1 2\nb 1\n"[..], ["line 2", "1 numbers"]),
            (b"a 1 2\nb 1 nan\n", ["line 2", "\"nan\""]),
            (b"a\n", ["line 1", "0 numbers"]),
            (b"a 1\n\xff 1\n", ["line 2", "UTF-8"]),
            (b"c 1\n", ["no word", "1 lines"]),
        ] {
            let message = Vectors::parse(file, "v.txt", 10, ["a b"].into_iter()).unwrap_err().to_string();
            assert!(
                message.starts_with("v.txt") && parts.iter().all(|part| message.contains(part)),
                "{message}"
            );
        }
    }
}
