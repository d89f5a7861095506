//! Formatting of epsilons: they are rounded up to four decimals, or to four significant digits if these need
//! more decimals.
//!
//! Noise is calibrated for the requested epsilon rounded down to the same digits. A printed epsilon is
//! therefore never below the spent epsilon and never above the requested epsilon.

use super::Epsilon;

/// Number of decimals of an epsilon of at least 0.1.
const DECIMALS: usize = 4;
/// Largest number of decimals. With it the smallest epsilon of configuration files, 1e-6, has seven
/// significant digits.
const DECIMALS_MAX: usize = 12;

/// Formats an epsilon in decimals, rounded up; infinity is `inf`.
#[must_use]
pub fn shown(epsilon: f64) -> String {
    let (decimals, unit) = decimals_and_unit(epsilon);
    let count = (epsilon * unit).ceil();
    // Multiplication and division both round, so a neighbouring count may be the correct one.
    let mut candidates = [count - 1.0, count, count + 1.0].into_iter().map(|count| count / unit);
    let rounded = candidates.find(|value| *value >= epsilon);
    format!("{:.decimals$}", rounded.unwrap_or(epsilon))
}

/// Rounds an epsilon down to the number of digits that [`shown`] prints.
#[must_use]
pub fn rounded_down(epsilon: Epsilon) -> Epsilon {
    let value = epsilon.get();
    let (_, unit) = decimals_and_unit(value);
    let count = (value * unit).floor();
    let mut candidates = [count + 1.0, count, count - 1.0].into_iter().map(|count| count / unit);
    let rounded = candidates.find(|candidate| *candidate <= value);
    let rounded = rounded.and_then(|rounded| Epsilon::new(rounded).ok());
    rounded.filter(|rounded| rounded.get() > 0.0).unwrap_or(epsilon)
}

/// Number of printed decimals, and the corresponding power of ten.
fn decimals_and_unit(epsilon: f64) -> (usize, f64) {
    let (mut decimals, mut unit) = (DECIMALS, 1e4);
    while epsilon > 0.0 && epsilon * unit < 1e3 && decimals < DECIMALS_MAX {
        decimals += 1;
        unit *= 10.0;
    }
    (decimals, unit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{rounded_down, shown};
    use crate::privacy::Epsilon;

    #[test]
    fn printed_epsilon_is_rounded_up() {
        for (epsilon, text) in [
            (0.0, "0.0000"),
            (0.5, "0.5000"),
            (0.5f64.next_down(), "0.5000"),
            (0.5f64.next_up(), "0.5001"),
            (0.1, "0.1000"),
            (0.1f64.next_up(), "0.1001"),
            (1.23401, "1.2341"),
            (1e-6, "0.000001000"),
            (1.23e-5, "0.00001230"),
            (1e-14, "0.000000000001"),
            (123_456.7, "123456.7000"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(shown(epsilon), text, "{epsilon}");
        }
    }

    #[test]
    fn calibrated_epsilon_is_rounded_down() {
        let pairs = [
            (0.5, 0.5),
            (1.0 / 3.0, 0.3333),
            (0.1, 0.1),
            (0.1f64.next_down(), 0.09999),
            (1e-6, 1e-6),
            (1e6, 1e6),
        ];
        for (requested, expected) in pairs {
            assert_eq!(rounded_down(Epsilon::new(requested).unwrap()).get(), expected, "{requested}");
        }
    }
}
