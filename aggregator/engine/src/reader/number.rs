//! Conversion of numbers to the form in which files contain them.

/// The f64 with the fewest decimal digits that rounds to `value`, so that a stored setting is as short as in
/// the original file.
#[must_use]
pub fn shortest(value: f32) -> f64 {
    // A formatted number always parses.
    value.to_string().parse().unwrap_or_else(|_| value.into())
}
