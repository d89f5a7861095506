//! Lines that the program `benchmarks` prints for a comparison.

use std::fmt::Write;

use super::history::Row;
use super::pairs::Comparison;
use super::side::Facts;
use super::verdict::{Verdict, compare};

/// Returns the lines for a comparison and its recorded row, if there is one.
#[must_use]
pub fn lines(comparison: &Comparison, recorded: Option<&Row>) -> (String, Verdict) {
    let Comparison { row, ratios, threads, ours, rival, limit, check } = comparison;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<9} {value}");
    };
    let side = |facts: &Facts, rate: f64| {
        let Facts { program, form, dtype, .. } = facts;
        format!("{} {}/s: {program}; {form}; {dtype}", significant(rate), row.unit)
    };
    match rival {
        Some((facts, rate)) => {
            line("rival", format!("{}, {}", row.rival, side(facts, *rate)));
        }
        None => line("rival", "none; the ratio is that of a second to a run".to_owned()),
    }
    line("ours", side(ours, row.rate));
    line("sizes", row.n.clone());
    line(
        "ratio",
        format!(
            "{} ({} to {} with coverage {:.2}), pairs {}, spread {:.0} %",
            significant(row.ratio),
            significant(row.low),
            significant(row.high),
            ratios.coverage,
            row.pairs,
            100.0 * ratios.spread()
        ),
    );
    if let (Some(limit), Some(part)) = (limit, row.of_limit) {
        line("limit", format!("{:.1} % of it in the fastest turn: {}", 100.0 * part, limit.cause));
    }
    if let (threads @ 2.., 1) = *threads {
        let serial = serial_part(row.ratio, threads);
        line("serial", format!("{:.0} % of the work, by Amdahl's law on {threads} threads", 100.0 * serial));
    }
    let (name, ours, other) = check;
    let other = other.map_or_else(String::new, |other| format!(", the rival's {other:.7}"));
    line("check", format!("{name} {ours:.7}{other}"));
    let Some(recorded) = recorded else {
        line("recorded", "nothing for this processor and size".to_owned());
        return (text, Verdict::Same);
    };
    let verdict = compare(ratios, recorded.ratio);
    let note = match verdict {
        Verdict::Same => "",
        Verdict::Lower => "; WARNING: the whole interval is lower",
        Verdict::MuchLower => "; FAILURE: the whole interval is more than 10 % lower",
    };
    line(
        "recorded",
        format!("{} on {}, {}{note}", significant(recorded.ratio), recorded.date, recorded.commit),
    );
    (text, verdict)
}

/// Returns the part of the work that does not become faster with threads, from the factor by which `threads` threads
/// are faster than one (Amdahl 1967).
#[must_use]
pub fn serial_part(factor: f64, threads: usize) -> f64 {
    let threads = threads as f64;
    (threads / factor - 1.0) / (threads - 1.0)
}

/// Formats a number with three significant digits, without an exponent.
#[must_use]
pub fn significant(value: f64) -> String {
    let digits = if value > 0.0 { value.log10().floor() as i32 } else { 0 };
    let places = usize::try_from(2 - digits).unwrap_or(0);
    // Digits of large numbers that are not significant become zeros.
    let unit = 10f64.powi(digits.max(2) - 2);
    let rounded = if digits > 2 { (value / unit).round() * unit } else { value };
    format!("{rounded:.places$}")
}

#[cfg(test)]
mod tests {
    use super::{serial_part, significant};

    #[test]
    fn numbers_have_three_digits() {
        let values = [0.0123456, 0.5, 1.0, 12.345, 999.6, 1_234_567.0];
        let shown = ["0.0123", "0.500", "1.00", "12.3", "1000", "1230000"];
        assert_eq!(values.map(significant), shown);
    }

    #[test]
    fn serial_part_is_amdahls() {
        assert!(serial_part(2.0, 2).abs() < 1e-12 && (serial_part(1.0, 2) - 1.0).abs() < 1e-12);
        // Half of the work on four threads: 1/2 + 1/8 of the time.
        assert!((serial_part(1.6, 4) - 0.5).abs() < 1e-12);
    }
}
