//! Numbers of a table, with a decimal point or a decimal comma.

use super::narrow;

/// The mark between a number's whole and its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// 1.5
    Point,
    /// 1,5
    Comma,
}

impl Mark {
    /// The character.
    #[must_use]
    pub fn character(self) -> char {
        match self {
            Self::Point => '.',
            Self::Comma => ',',
        }
    }
}

/// A cell that was read as a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// A finite number, within the range of an f32.
    Number(f64),
    /// True or false, in any case of letters: 1 or 0.
    Truth(f64),
}

impl Cell {
    /// The number.
    #[must_use]
    pub fn value(self) -> f64 {
        match self {
            Self::Number(value) | Self::Truth(value) => value,
        }
    }
}

/// A cell of a file, for messages.
#[derive(Clone, Debug)]
struct Place {
    line: u64,
    text: String,
}

/// Reads cells, and finds out on the way which decimal mark the file has.
#[derive(Debug)]
pub struct Numbers {
    /// As it was asked for.
    mark: Option<Mark>,
    /// Columns are cut at semicolons, as programs do where the decimal mark is a comma.
    semicolons: bool,
    /// The first number with a point, and the first with a comma.
    seen: [Option<Place>; 2],
    /// A comma that cannot stand for thousands was met.
    sure: bool,
}

impl Numbers {
    /// A reader for a file that is cut at `delimiter`.
    #[must_use]
    pub fn new(mark: Option<Mark>, delimiter: u8) -> Self {
        Self { mark, semicolons: delimiter == b';', seen: [None, None], sure: false }
    }

    /// Reads one cell.
    ///
    /// # Errors
    /// The end of a sentence on what is expected instead.
    pub fn read(&mut self, text: &str, line: u64) -> Result<Cell, String> {
        if text.eq_ignore_ascii_case("true") {
            return Ok(Cell::Truth(1.0));
        }
        if text.eq_ignore_ascii_case("false") {
            return Ok(Cell::Truth(0.0));
        }
        let (commas, points) = (text.matches(',').count(), text.matches('.').count());
        let mark = match (commas, points) {
            (0, 0) => None,
            (0, 1) => Some(Mark::Point),
            (1, 0) => Some(Mark::Comma),
            _ => return Err(separated(text)),
        };
        let value = match mark {
            Some(Mark::Comma) => number(&text.replace(',', ".")),
            _ => number(text),
        };
        let Some(value) = value else { return Err(separated(text)) };
        if let Some(mark) = mark {
            if self.mark.is_some_and(|asked| asked != mark) {
                let asked = self.mark.unwrap_or(mark).character();
                return Err(format!("expected a finite number, its decimal mark {asked:?} (data.decimal)"));
            }
            let seen = &mut self.seen[usize::from(mark == Mark::Comma)];
            if seen.is_none() {
                *seen = Some(Place { line, text: text.to_owned() });
            }
            self.sure |= mark == Mark::Comma && !thousands(text);
        }
        Ok(Cell::Number(value))
    }

    /// The decimal mark of the file; none where no number has one.
    ///
    /// # Errors
    /// A sentence on what can be read in two ways.
    pub fn finish(&self) -> Result<Option<Mark>, String> {
        match &self.seen {
            [None, None] => Ok(self.mark),
            [Some(_), None] => Ok(Some(Mark::Point)),
            [None, Some(comma)] => {
                if self.sure || self.semicolons || self.mark.is_some() {
                    return Ok(Some(Mark::Comma));
                }
                Err(format!(
                    "line {}: {:?} may have a decimal comma or one for thousands, and so may all numbers with a comma: \
                     data.decimal = \",\" reads it as the former; commas for thousands are not read",
                    comma.line, comma.text
                ))
            }
            [Some(point), Some(comma)] => Err(format!(
                "line {} has {:?} and line {} has {:?}: points and commas are decimal marks, not both in one file, and \
                 not for thousands; data.decimal says which one it is",
                point.line, point.text, comma.line, comma.text
            )),
        }
    }
}

/// A finite number that an f32 can hold.
fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|value| narrow(*value).is_finite())
}

/// The message on a text that is no number, or has more marks than one.
fn separated(text: &str) -> String {
    let expected = format!("expected a finite number, at most {:?} in size", f32::MAX);
    let digits = |c: char| c.is_ascii_digit() || ".,' _\u{a0}\u{202f}\u{2019}".contains(c);
    let text = text.trim_start_matches(['+', '-']);
    if text.chars().all(digits) && text.chars().any(|c| c.is_ascii_digit()) && text.chars().count() > 1 {
        return format!("{expected}, without separators for thousands");
    }
    expected
}

/// Whether commas stand where they do between thousands: "1,234", but not "0,234" or "12,5".
pub(super) fn thousands(text: &str) -> bool {
    let unsigned = text.trim_start_matches(['+', '-']);
    let digits = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
    unsigned.split_once(',').is_some_and(|(whole, part)| {
        (1..=3).contains(&whole.len())
            && !whole.starts_with('0')
            && part.len() == 3
            && digits(whole)
            && digits(part)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn all(texts: &[&str], delimiter: u8) -> Result<(Vec<f64>, Option<Mark>), String> {
        let mut numbers = Numbers::new(None, delimiter);
        let values: Result<Vec<f64>, String> =
            (2..).zip(texts).map(|(line, text)| numbers.read(text, line).map(Cell::value)).collect();
        Ok((values?, numbers.finish()?))
    }

    #[test]
    fn marks_are_found_out() {
        let point = all(&["1.5", "-2e3", "7"], b',').unwrap();
        assert_eq!(point, (vec![1.5, -2000.0, 7.0], Some(Mark::Point)));
        assert_eq!(all(&["1,5", "-2e3", "7"], b';').unwrap(), (vec![1.5, -2000.0, 7.0], Some(Mark::Comma)));
        assert_eq!(all(&["1,5", "1,234"], b',').unwrap(), (vec![1.5, 1.234], Some(Mark::Comma)));
        assert_eq!(all(&["1,234"], b';').unwrap().0, [1.234]);
        assert_eq!(all(&["0,234"], b'\t').unwrap().0, [0.234]);
        assert_eq!(all(&["true", "FALSE"], b'\t').unwrap(), (vec![1.0, 0.0], None));
    }

    #[test]
    fn readings_that_differ_by_a_thousand_are_refused() {
        for (texts, delimiter) in [
            (&["1,234", "12,345"][..], b','),
            (&["1.5", "1,5"], b';'),
            (&["1.234", "0,5"], b';'),
            (&["1.234,5"], b';'),
            (&["1,234.5"], b','),
            (&["1,234,567"], b';'),
            (&["1.234.567"], b';'),
            (&["1 234"], b','),
            (&["1'234"], b','),
            (&["1\u{a0}234"], b','),
        ] {
            let said = all(texts, delimiter).unwrap_err();
            assert!(said.contains("thousands"), "{texts:?}: {said}");
        }
    }

    #[test]
    fn numbers_are_finite_and_fit_an_f32() {
        for text in
            ["inf", "nan", "1e400", "1e39", "-1e39", "", "1,5e", "0x10", "1_0", "--1", "1e", "e5", ","]
        {
            assert!(all(&[text], b',').is_err(), "{text}");
        }
        assert_eq!(all(&["1e-400", "3.4e38", "1E5", "+1", ".5", "5."], b',').unwrap().0.len(), 6);
    }
}
