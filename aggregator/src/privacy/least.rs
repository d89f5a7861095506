//! The least number for which something holds that, once it holds, does not cease to.

/// The least `f64` from 0 for which `holds`, `None` if it does not for the largest. Floats from 0 up are ordered as
/// their bits are, so 64 halvings of those end at one of two neighbours. The result always holds: where rounding makes `holds`
/// waver it is one of the numbers around.
pub(super) fn least(holds: impl Fn(f64) -> bool) -> Option<f64> {
    if holds(0.0) {
        return Some(0.0);
    }
    if !holds(f64::MAX) {
        return None;
    }
    let (mut below, mut least) = (0, f64::MAX.to_bits());
    while least - below > 1 {
        let middle = below + (least - below) / 2;
        if holds(f64::from_bits(middle)) {
            least = middle;
        } else {
            below = middle;
        }
    }
    Some(f64::from_bits(least))
}
