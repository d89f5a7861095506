//! Names of clients and classes in a table: encodes texts as numbers, and recognises different notations of
//! the same value as one name.

use std::collections::{HashMap, HashSet};

use super::number::{DecimalMark, may_be_thousands};

/// Texts that programs write for a missing value: the texts that pandas reads as missing, the question mark
/// in files of the UCI repository, and pandas' `NaT` for a missing time.
const MISSING: [&str; 15] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "None",
    "n/a", "?", "NaT",
];
/// Texts that stand for a missing value in upper, lower or mixed case.
const MISSING_ANY_CASE: [&str; 3] = ["nan", "-nan", "null"];

/// True if a text stands for a missing value.
#[must_use]
pub fn is_missing(text: &str) -> bool {
    MISSING.contains(&text) || MISSING_ANY_CASE.iter().any(|missing| text.eq_ignore_ascii_case(missing))
}

/// Column of names, stored as one code for each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodedNames {
    /// Code of each row: an index into `names`.
    pub codes: Vec<u32>,
    /// Distinct names, sorted.
    pub names: Vec<String>,
}

/// Distinct texts of a column, in the order of their first occurrence.
#[derive(Debug, Default)]
pub struct Names {
    places: HashMap<String, u32>,
    /// Texts in the order of their first occurrence.
    texts: Vec<String>,
}

/// Text that is another notation of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Text that occurred first and is used as the name.
    pub name: String,
    /// Text that occurred later, in another notation.
    pub also: String,
}

impl Names {
    /// Returns the index of a text. Adds the text if it has not occurred before.
    pub fn intern(&mut self, text: &str) -> u32 {
        if let Some(index) = self.places.get(text) {
            return *index;
        }
        let index = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.places.insert(text.to_owned(), index);
        self.texts.push(text.to_owned());
        index
    }

    /// Number of distinct texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// True if there are no texts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// True if the texts are more than `max_names` names. The names are counted only when the number of texts
    /// is `most + 1` or a larger power of two, since counting takes time proportional to the number of texts;
    /// otherwise the result is false.
    #[must_use]
    pub fn exceeds(&self, max_names: usize) -> bool {
        let texts = self.texts.len();
        let is_due = texts > max_names && (texts == max_names + 1 || texts.is_power_of_two());
        // The comma is accepted besides the point, so that two notations of one name are not counted twice.
        let numbers: HashSet<Decimal> = match is_due {
            true => self.texts.iter().filter_map(|text| Decimal::parse(text, ',')).collect(),
            false => HashSet::new(),
        };
        let words = || self.texts.iter().filter(|text| Decimal::parse(text, ',').is_none()).count();
        is_due && numbers.len() + words() > max_names
    }

    /// Sorts the names by text, and encodes the rows, whose texts have the indices `codes`. Texts of exactly
    /// the same number, or of the same boolean, become one name: the text that occurred first. `mark` is the
    /// decimal mark. If it is `None`, the decimal mark is a comma if any text has a comma that cannot
    /// separate thousands.
    ///
    /// # Errors
    /// A one-line message if the texts include both a boolean and the number 0 or 1, which may mean the same.
    pub fn encode(
        self,
        codes: &[u32],
        mark: Option<DecimalMark>,
    ) -> Result<(CodedNames, Vec<Merged>), String> {
        #[derive(PartialEq, Eq, Hash)]
        enum Key<'a> {
            Number(Decimal),
            Truth(bool),
            Word(&'a str),
        }
        let comma = |text: &String| !may_be_thousands(text) && Decimal::parse(text, ',').is_some();
        let has_decimal_comma = || self.texts.iter().any(|text| text.contains(',') && comma(text));
        let mark = mark
            .unwrap_or_else(|| if has_decimal_comma() { DecimalMark::Comma } else { DecimalMark::Point })
            .character();
        let key = |text| match parse_truth(text) {
            Some(truth) => Key::Truth(truth),
            None => Decimal::parse(text, mark).map_or(Key::Word(text), Key::Number),
        };
        let mut first_of_key: HashMap<Key<'_>, usize> = HashMap::new();
        let mut merged = Vec::new();
        // For each text, the index of the first text with the same value.
        let first_of: Vec<usize> = (0..)
            .zip(&self.texts)
            .map(|(place, text)| {
                let first = *first_of_key.entry(key(text)).or_insert(place);
                if let Some(name) = self.texts.get(first).filter(|_| first != place) {
                    merged.push(Merged { name: name.clone(), also: text.clone() });
                }
                first
            })
            .collect();
        let name = |key: &Key<'_>| first_of_key.get(key).and_then(|place| self.texts.get(*place));
        for (truth, number) in [(false, "0"), (true, "1")] {
            if let (Some(truth), Some(number)) = (name(&Key::Truth(truth)), name(&key(number))) {
                return Err(format!(
                    "found {truth:?} and {number:?}, which may be one name, allowed: booleans or numbers in a column"
                ));
            }
        }
        let mut order: Vec<usize> = first_of_key.into_values().collect();
        order.sort_unstable_by_key(|place| self.texts.get(*place));
        let mut code_of = vec![0; self.texts.len()];
        for (code, place) in (0u32..).zip(&order) {
            if let Some(assigned) = code_of.get_mut(*place) {
                *assigned = code;
            }
        }
        let code = |place: &u32| {
            let first = first_of.get(*place as usize)?;
            code_of.get(*first).copied()
        };
        let names = order.iter().filter_map(|place| self.texts.get(*place).cloned()).collect();
        Ok((CodedNames { codes: codes.iter().filter_map(code).collect(), names }, merged))
    }
}

/// Boolean value of a text; `None` if the text is not a boolean.
fn parse_truth(text: &str) -> Option<bool> {
    let equals = |word| text.eq_ignore_ascii_case(word);
    if equals("true") { Some(true) } else { equals("false").then_some(false) }
}

/// True if a name is a decimal number.
#[must_use]
pub fn is_number(name: &str) -> bool {
    Decimal::parse(name, '.').is_some()
}

/// True if two names are the same decimal number.
#[must_use]
pub fn is_same_number(one: &str, other: &str) -> bool {
    let parse = |name| Decimal::parse(name, '.');
    parse(one).is_some_and(|one| parse(other) == Some(one))
}

/// Decimal number in a normal form, which does not depend on leading or trailing zeros or on the notation of
/// the exponent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Decimal {
    negative: bool,
    /// Significant digits, without zeros at either end; empty for zero.
    digits: String,
    /// Exponent of the last digit.
    exponent: i64,
}

impl Decimal {
    /// Parses digits with at most one decimal mark and an exponent. Returns `None` for any other text.
    fn parse(text: &str, mark: char) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let unsigned = mantissa.strip_prefix(['+', '-']).unwrap_or(mantissa);
        let (integer_part, part) = unsigned.split_once([mark, '.']).unwrap_or((unsigned, ""));
        let all_digits: String = [integer_part, part].concat();
        if all_digits.is_empty() || !all_digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let significant = all_digits.trim_end_matches('0');
        let exponent = i64::from(exponent) - i64::try_from(part.len()).ok()?
            + i64::try_from(all_digits.len() - significant.len()).ok()?;
        let digits = significant.trim_start_matches('0').to_owned();
        let zero = digits.is_empty();
        Some(Self {
            negative: mantissa.starts_with('-') && !zero,
            digits,
            exponent: if zero { 0 } else { exponent },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn coded(texts: &[&str]) -> (CodedNames, Vec<Merged>) {
        let mut names = Names::default();
        let codes: Vec<u32> = texts.iter().map(|text| names.intern(text)).collect();
        names.encode(&codes, None).unwrap()
    }

    #[test]
    fn texts_of_one_number_merge_into_one_name() {
        let (coded, merged) = coded(&["8", "walk", "8.0", "08", "8e0", "+8", "0.8e1", "80e-1", "-8", "walk"]);
        assert_eq!(coded.names, ["-8", "8", "walk"]);
        assert_eq!(coded.codes, [1, 2, 1, 1, 1, 1, 1, 1, 0, 2]);
        assert_eq!(merged.len(), 6);
        assert!(merged.iter().all(|merged| merged.name == "8"));
    }

    #[test]
    fn numbers_compare_exactly_and_words_by_letter() {
        let texts =
            ["12345678901234567890", "12345678901234567891", "a1", "A1", "a01", "1.", ".1", "0.1", "1e"];
        let (coded, merged) = coded(&texts);
        assert_eq!(coded.names.len(), texts.len() - 1);
        assert_eq!(merged, [Merged { name: ".1".to_owned(), also: "0.1".to_owned() }]);
    }

    #[test]
    fn exceed_counts_names_not_spellings() {
        let mut names = Names::default();
        let mut exceeded = Vec::new();
        for spelling in ["", ".0", ".00", "e0", ".", ",0", "e+0", "e00"] {
            for number in 0..100 {
                names.intern(&format!("{number}{spelling}"));
                exceeded.push(names.exceeds(100));
            }
        }
        assert!(exceeded.iter().all(|exceeded| !exceeded));
        let mut names = Names::default();
        let exceeded = (0..101).map(|number| {
            names.intern(&format!("w{number}"));
            names.exceeds(100)
        });
        assert_eq!(exceeded.collect::<Vec<_>>().iter().position(|exceeded| *exceeded), Some(100));
    }

    #[test]
    fn all_zeros_are_one_name() {
        let (coded, _) = coded(&["0", "-0", "0.000", "0e7", "00"]);
        assert_eq!((coded.names.as_slice(), coded.codes.as_slice()), (&["0".to_owned()][..], &[0; 5][..]));
    }
}
