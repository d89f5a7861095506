//! Names of clients and classes: one for each that occurs, however it is written.

use std::collections::{HashMap, HashSet};

use super::Coded;
use super::number::{Mark, thousands};

/// Texts that programs write where a value is missing: pandas reads them as such, files of the UCI repository have a question
/// mark, and pandas writes `NaT` for a time.
const MISSING: [&str; 15] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "None",
    "n/a", "?", "NaT",
];
/// The same, whatever the case of their letters.
const ANY_CASE: [&str; 3] = ["nan", "-nan", "null"];

/// Whether a text stands for a missing value.
#[must_use]
pub fn is_missing(text: &str) -> bool {
    MISSING.contains(&text) || ANY_CASE.iter().any(|missing| text.eq_ignore_ascii_case(missing))
}

/// The names of a column, as they are met.
#[derive(Debug, Default)]
pub struct Names {
    places: HashMap<String, u32>,
    /// In the order in which they were met first.
    texts: Vec<String>,
}

/// A name that stands for others that are the same value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// As it was met first, which is the name.
    pub name: String,
    /// As it was met later.
    pub also: String,
}

impl Names {
    /// The place of a text.
    pub fn place(&mut self, text: &str) -> u32 {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        let place = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.places.insert(text.to_owned(), place);
        self.texts.push(text.to_owned());
        place
    }

    /// How many texts were met.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether none was met.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether the texts are more than `most` names, where it can be: once they are that many, and at every doubling after.
    #[must_use]
    pub fn exceed(&self, most: usize) -> bool {
        let texts = self.texts.len();
        let due = texts > most && (texts == most + 1 || texts.is_power_of_two());
        // With either mark, so that what is one name is never counted twice.
        let numbers: HashSet<Decimal> = match due {
            true => self.texts.iter().filter_map(|text| Decimal::of(text, ',')).collect(),
            false => HashSet::new(),
        };
        let words = || self.texts.iter().filter(|text| Decimal::of(text, ',').is_none()).count();
        due && numbers.len() + words() > most
    }

    /// Names in the order of their texts, for rows whose texts have the places `of`. Texts that are the same number, to
    /// the last digit, or the same truth value, are one name: the one that was met first. The decimal mark is `mark`; where
    /// that is not known it is a comma if a text has one that cannot stand for thousands.
    ///
    /// # Errors
    /// A sentence on a truth value beside a 0 or a 1, which may mean the same.
    pub fn finish(self, of: &[u32], mark: Option<Mark>) -> Result<(Coded, Vec<Merged>), String> {
        #[derive(PartialEq, Eq, Hash)]
        enum Key<'a> {
            Number(Decimal),
            Truth(bool),
            Word(&'a str),
        }
        let comma = |text: &String| !thousands(text) && Decimal::of(text, ',').is_some();
        let found = || self.texts.iter().any(|text| text.contains(',') && comma(text));
        let mark = mark.unwrap_or_else(|| if found() { Mark::Comma } else { Mark::Point }).character();
        let key = |text| match truth(text) {
            Some(truth) => Key::Truth(truth),
            None => Decimal::of(text, mark).map_or(Key::Word(text), Key::Number),
        };
        let mut firsts: HashMap<Key<'_>, usize> = HashMap::new();
        let mut merged = Vec::new();
        // For each text the one that stands for it.
        let stands: Vec<usize> = (0..)
            .zip(&self.texts)
            .map(|(place, text)| {
                let first = *firsts.entry(key(text)).or_insert(place);
                if let Some(name) = self.texts.get(first).filter(|_| first != place) {
                    merged.push(Merged { name: name.clone(), also: text.clone() });
                }
                first
            })
            .collect();
        let name = |key: &Key<'_>| firsts.get(key).and_then(|place| self.texts.get(*place));
        for (truth, number) in [(false, "0"), (true, "1")] {
            if let (Some(truth), Some(number)) = (name(&Key::Truth(truth)), name(&key(number))) {
                return Err(format!(
                    "found {truth:?} and {number:?}, which may be one name: a column has truth values or numbers"
                ));
            }
        }
        let mut order: Vec<usize> = firsts.into_values().collect();
        order.sort_unstable_by_key(|place| self.texts.get(*place));
        let mut codes = vec![0; self.texts.len()];
        for (code, place) in (0u32..).zip(&order) {
            if let Some(own) = codes.get_mut(*place) {
                *own = code;
            }
        }
        let code = |place: &u32| {
            let first = stands.get(*place as usize)?;
            codes.get(*first).copied()
        };
        let names = order.iter().filter_map(|place| self.texts.get(*place).cloned()).collect();
        Ok((Coded { of: of.iter().filter_map(code).collect(), names }, merged))
    }
}

/// The truth value that a text is.
fn truth(text: &str) -> Option<bool> {
    let is = |word| text.eq_ignore_ascii_case(word);
    if is("true") { Some(true) } else { is("false").then_some(false) }
}

/// Whether a name is a decimal number.
#[must_use]
pub fn is_number(name: &str) -> bool {
    Decimal::of(name, '.').is_some()
}

/// Whether two names are the same decimal number.
#[must_use]
pub fn is_same_number(one: &str, other: &str) -> bool {
    let of = |name| Decimal::of(name, '.');
    of(one).is_some_and(|one| of(other) == Some(one))
}

/// A decimal number without what does not change it: leading and trailing zeros, and how its exponent is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Decimal {
    negative: bool,
    /// Without zeros at its ends; none for zero.
    digits: String,
    /// Of the last digit.
    exponent: i64,
}

impl Decimal {
    /// Reads digits with at most one decimal mark and an exponent; nothing of any other text.
    fn of(text: &str, mark: char) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let unsigned = mantissa.strip_prefix(['+', '-']).unwrap_or(mantissa);
        let (whole, part) = unsigned.split_once([mark, '.']).unwrap_or((unsigned, ""));
        let all: String = [whole, part].concat();
        if all.is_empty() || !all.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let shown = all.trim_end_matches('0');
        let exponent = i64::from(exponent) - i64::try_from(part.len()).ok()?
            + i64::try_from(all.len() - shown.len()).ok()?;
        let digits = shown.trim_start_matches('0').to_owned();
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

    fn coded(texts: &[&str]) -> (Coded, Vec<Merged>) {
        let mut names = Names::default();
        let of: Vec<u32> = texts.iter().map(|text| names.place(text)).collect();
        names.finish(&of, None).unwrap()
    }

    #[test]
    fn texts_of_one_number_are_one_name() {
        let (coded, merged) = coded(&["8", "walk", "8.0", "08", "8e0", "+8", "0.8e1", "80e-1", "-8", "walk"]);
        assert_eq!(coded.names, ["-8", "8", "walk"]);
        assert_eq!(coded.of, [1, 2, 1, 1, 1, 1, 1, 1, 0, 2]);
        assert_eq!(merged.len(), 6);
        assert!(merged.iter().all(|merged| merged.name == "8"));
    }

    #[test]
    fn numbers_are_compared_to_the_last_digit_and_words_letter_by_letter() {
        let texts =
            ["12345678901234567890", "12345678901234567891", "a1", "A1", "a01", "1.", ".1", "0.1", "1e"];
        let (coded, merged) = coded(&texts);
        assert_eq!(coded.names.len(), texts.len() - 1);
        assert_eq!(merged, [Merged { name: ".1".to_owned(), also: "0.1".to_owned() }]);
    }

    #[test]
    fn names_are_counted_and_not_their_spellings() {
        let mut names = Names::default();
        let mut exceeded = Vec::new();
        for spelling in ["", ".0", ".00", "e0", ".", ",0", "e+0", "e00"] {
            for number in 0..100 {
                names.place(&format!("{number}{spelling}"));
                exceeded.push(names.exceed(100));
            }
        }
        assert!(exceeded.iter().all(|exceeded| !exceeded));
        let mut names = Names::default();
        let exceeded = (0..101).map(|number| {
            names.place(&format!("w{number}"));
            names.exceed(100)
        });
        assert_eq!(exceeded.collect::<Vec<_>>().iter().position(|exceeded| *exceeded), Some(100));
    }

    #[test]
    fn zeros_are_zero() {
        let (coded, _) = coded(&["0", "-0", "0.000", "0e7", "00"]);
        assert_eq!((coded.names.as_slice(), coded.of.as_slice()), (&["0".to_owned()][..], &[0; 5][..]));
    }
}
