//! Names of clients and classes: one for each that occurs, however it is written.

use std::collections::HashMap;

use super::Coded;

/// Texts that programs write where a value is missing: pandas reads all of them as such.
const MISSING: [&str; 18] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan",
];

/// Whether a text stands for a missing value.
#[must_use]
pub fn is_missing(text: &str) -> bool {
    MISSING.contains(&text) || text == "null"
}

/// The names of a column, as they are met.
#[derive(Debug, Default)]
pub struct Names {
    places: HashMap<String, u32>,
    /// In the order in which they were met first.
    texts: Vec<String>,
}

/// A name that stands for others that are the same number.
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

    /// Names in the order of their texts, for rows whose texts have the places `of`. Texts that are the same number, to
    /// the last digit, are one name: the one that was met first.
    #[must_use]
    pub fn finish(self, of: &[u32], mark: char) -> (Coded, Vec<Merged>) {
        #[derive(PartialEq, Eq, Hash)]
        enum Key<'a> {
            Number(Decimal),
            Word(&'a str),
        }
        let mut firsts: HashMap<Key<'_>, usize> = HashMap::new();
        let mut merged = Vec::new();
        // For each text the one that stands for it.
        let stands: Vec<usize> = (0..)
            .zip(&self.texts)
            .map(|(place, text)| {
                let key = Decimal::of(text, mark).map_or(Key::Word(text), Key::Number);
                let first = *firsts.entry(key).or_insert(place);
                if let Some(name) = self.texts.get(first).filter(|_| first != place) {
                    merged.push(Merged { name: name.clone(), also: text.clone() });
                }
                first
            })
            .collect();
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
        (Coded { of: of.iter().filter_map(code).collect(), names }, merged)
    }
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
        names.finish(&of, '.')
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
    fn zeros_are_zero() {
        let (coded, _) = coded(&["0", "-0", "0.000", "0e7", "00"]);
        assert_eq!((coded.names.as_slice(), coded.of.as_slice()), (&["0".to_owned()][..], &[0; 5][..]));
    }
}
