//! Bisection for the boundary of a monotone predicate on integers and floats.

/// Largest number below `above` for which `within` holds. `within` must hold for 0, and must hold for all
/// smaller numbers if it holds for a number. The result always satisfies `within`. If rounding makes `within`
/// not exactly monotone, the result is a number near the boundary.
pub(super) fn largest_u64(above: u64, within: impl Fn(u64) -> bool) -> u64 {
    let mut largest = 0;
    let mut above = above;
    while above.saturating_sub(largest) > 1 {
        let middle = largest + (above - largest) / 2;
        if within(middle) {
            largest = middle;
        } else {
            above = middle;
        }
    }
    largest
}

/// Smallest `f64` of at least 0 for which `holds` is true; `None` if it is false for the largest `f64`. If
/// `holds` is true for a number, it must be true for all larger numbers; for rounding errors, see
/// [`largest_u64`]. The result always satisfies `holds`. Non-negative floats have the same order as their
/// bits, so the bits are bisected.
pub(super) fn smallest_f64(holds: impl Fn(f64) -> bool) -> Option<f64> {
    if holds(0.0) {
        return Some(0.0);
    }
    if !holds(f64::MAX) {
        return None;
    }
    let below = largest_u64(f64::MAX.to_bits(), |bits| !holds(f64::from_bits(bits)));
    Some(f64::from_bits(below + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bisection_finds_largest_integer() {
        for last in [0, 1, 2, 1000, u64::MAX - 2, u64::MAX - 1] {
            assert_eq!(largest_u64(u64::MAX, |n| n <= last), last);
        }
        assert_eq!([0, 1, 8].map(|above| largest_u64(above, |_| true)), [0, 0, 7]);
    }

    #[test]
    fn bisection_finds_smallest_float() {
        for first in [0.0, 5e-324, 1e-300, 1.0, 1.0f64.next_up(), 1e300, f64::MAX] {
            assert_eq!(smallest_f64(|x| x >= first), Some(first));
        }
        assert_eq!(smallest_f64(|_| false), None);
    }
}
