//! Numbers as files contain them.

/// The f64 with the fewest digits that is read as `value`, so that a stored setting is as short as the one in the
/// file.
#[must_use]
pub fn shortest(value: f32) -> f64 {
    // A formatted number always parses.
    value.to_string().parse().unwrap_or_else(|_| value.into())
}
