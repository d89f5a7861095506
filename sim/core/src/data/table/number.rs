//! Parser of the numbers in a table, which have a decimal point or a decimal comma.

use super::narrow;

/// Decimal mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecimalMark {
    /// Point, as in 1.5.
    Point,
    /// Comma, as in 1,5.
    Comma,
}

impl DecimalMark {
    /// Character of the mark.
    #[must_use]
    pub fn character(self) -> char {
        match self {
            Self::Point => '.',
            Self::Comma => ',',
        }
    }
}

/// Value of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// A finite number, within the range of an f32.
    Number(f64),
    /// A boolean, in upper, lower or mixed case, as 1 or 0.
    Bool(f64),
}

impl Cell {
    /// Value as a number.
    #[must_use]
    pub fn value(self) -> f64 {
        match self {
            Self::Number(value) | Self::Bool(value) => value,
        }
    }
}

/// Text and line of a cell, for messages.
#[derive(Clone, Debug)]
struct CellPosition {
    line: u64,
    text: String,
}

/// Parser of cells that also detects the decimal mark of the file.
#[derive(Debug)]
pub struct Numbers {
    /// Configured decimal mark; `None` to detect the mark.
    mark: Option<DecimalMark>,
    /// True if columns are separated by semicolons, which programs use when the decimal mark is a comma.
    semicolons: bool,
    /// Position of the first number with a point, and of the first number with a comma.
    seen: [Option<CellPosition>; 2],
    /// True if a number had a comma that cannot separate thousands.
    has_decimal_comma: bool,
}

impl Numbers {
    /// Creates a parser for a file with the given decimal mark and delimiter between columns.
    #[must_use]
    pub fn new(mark: Option<DecimalMark>, delimiter: u8) -> Self {
        Self { mark, semicolons: delimiter == b';', seen: [None, None], has_decimal_comma: false }
    }

    /// Parses one cell.
    ///
    /// # Errors
    /// The last part of an error message: a description of the expected value.
    pub fn read(&mut self, text: &str, line: u64) -> Result<Cell, String> {
        if text.eq_ignore_ascii_case("true") {
            return Ok(Cell::Bool(1.0));
        }
        if text.eq_ignore_ascii_case("false") {
            return Ok(Cell::Bool(0.0));
        }
        let (commas, points) = (text.matches(',').count(), text.matches('.').count());
        let mark = match (commas, points) {
            (0, 0) => None,
            (0, 1) => Some(DecimalMark::Point),
            (1, 0) => Some(DecimalMark::Comma),
            _ => return Err(expected_number(text)),
        };
        let value = match mark {
            Some(DecimalMark::Comma) => parse_number(&text.replace(',', ".")),
            _ => parse_number(text),
        };
        let Some(value) = value else { return Err(expected_number(text)) };
        if let Some(mark) = mark {
            if self.mark.is_some_and(|required| required != mark) {
                let required = self.mark.unwrap_or(mark).character();
                return Err(format!(
                    "expected a finite number with the decimal mark {required:?} (data.decimal)"
                ));
            }
            let seen = &mut self.seen[usize::from(mark == DecimalMark::Comma)];
            if seen.is_none() {
                *seen = Some(CellPosition { line, text: text.to_owned() });
            }
            self.has_decimal_comma |= mark == DecimalMark::Comma && !may_be_thousands(text);
        }
        Ok(Cell::Number(value))
    }

    /// Decimal mark of the file; `None` if no number has a mark and no mark is configured.
    ///
    /// # Errors
    /// A one-line message if the numbers are ambiguous, or have both marks.
    pub fn decimal_mark(&self) -> Result<Option<DecimalMark>, String> {
        match &self.seen {
            [None, None] => Ok(self.mark),
            [Some(_), None] => Ok(Some(DecimalMark::Point)),
            [None, Some(comma)] => {
                if self.has_decimal_comma || self.semicolons || self.mark.is_some() {
                    return Ok(Some(DecimalMark::Comma));
                }
                Err(format!(
                    "line {}: found {:?}, which may have a decimal comma or one that separates thousands, like every number in \
                     this file; set data.decimal = \",\" for the former (separators for thousands are not allowed)",
                    comma.line, comma.text
                ))
            }
            [Some(point), Some(comma)] => Err(format!(
                "line {} has {:?} and line {} has {:?}: allowed: points or commas as decimal marks, not both, and no \
                 separators for thousands; set data.decimal",
                point.line, point.text, comma.line, comma.text
            )),
        }
    }
}

/// Parses a finite number within the range of an f32.
fn parse_number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|value| narrow(*value).is_finite())
}

/// Formats the message about a text that is not a number or has several marks.
fn expected_number(text: &str) -> String {
    let expected = format!("expected a finite number, at most {:?} in size", f32::MAX);
    let digits = |c: char| c.is_ascii_digit() || ".,' _\u{a0}\u{202f}\u{2019}".contains(c);
    let text = text.trim_start_matches(['+', '-']);
    if text.chars().all(digits) && text.chars().any(|c| c.is_ascii_digit()) && text.chars().count() > 1 {
        return format!("{expected}, without separators for thousands");
    }
    expected
}

/// True if a comma may separate thousands: in "1,234", but not in "0,234" or "12,5".
pub(super) fn may_be_thousands(text: &str) -> bool {
    let unsigned = text.trim_start_matches(['+', '-']);
    let digits = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
    unsigned.split_once(',').is_some_and(|(integer_part, part)| {
        (1..=3).contains(&integer_part.len())
            && !integer_part.starts_with('0')
            && part.len() == 3
            && digits(integer_part)
            && digits(part)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn parse_all(texts: &[&str], delimiter: u8) -> Result<(Vec<f64>, Option<DecimalMark>), String> {
        let mut numbers = Numbers::new(None, delimiter);
        let values: Result<Vec<f64>, String> =
            (2..).zip(texts).map(|(line, text)| numbers.read(text, line).map(Cell::value)).collect();
        Ok((values?, numbers.decimal_mark()?))
    }

    #[test]
    fn decimal_mark_is_detected() {
        let point = parse_all(&["1.5", "-2e3", "7"], b',').unwrap();
        assert_eq!(point, (vec![1.5, -2000.0, 7.0], Some(DecimalMark::Point)));
        assert_eq!(
            parse_all(&["1,5", "-2e3", "7"], b';').unwrap(),
            (vec![1.5, -2000.0, 7.0], Some(DecimalMark::Comma))
        );
        assert_eq!(parse_all(&["1,5", "1,234"], b',').unwrap(), (vec![1.5, 1.234], Some(DecimalMark::Comma)));
        assert_eq!(parse_all(&["1,234"], b';').unwrap().0, [1.234]);
        assert_eq!(parse_all(&["0,234"], b'\t').unwrap().0, [0.234]);
        assert_eq!(parse_all(&["true", "FALSE"], b'\t').unwrap(), (vec![1.0, 0.0], None));
    }

    #[test]
    fn ambiguous_thousands_are_an_error() {
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
            let message = parse_all(texts, delimiter).unwrap_err();
            assert!(message.contains("thousands"), "{texts:?}: {message}");
        }
    }

    #[test]
    fn numbers_outside_f32_are_errors() {
        for text in
            ["inf", "nan", "1e400", "1e39", "-1e39", "", "1,5e", "0x10", "1_0", "--1", "1e", "e5", ","]
        {
            assert!(parse_all(&[text], b',').is_err(), "{text}");
        }
        assert_eq!(parse_all(&["1e-400", "3.4e38", "1E5", "+1", ".5", "5."], b',').unwrap().0.len(), 6);
    }
}
