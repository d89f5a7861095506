//! Colours and dash patterns of curves. The page defines the colours, for light and for dark screens, and the
//! patterns.

/// Number of colours, all distinct for readers with colour-vision deficiencies.
pub const COLOURS: usize = 10;
/// Number of dash patterns.
pub const DASHES: usize = 3;

/// Number of curves with different styles.
#[must_use]
pub const fn distinct_styles() -> usize {
    COLOURS * DASHES
}

/// Colour and dash pattern of a series, by its index. Further series reuse the styles of the first ones.
#[must_use]
pub const fn style_of(index: usize) -> (usize, usize) {
    (index % COLOURS, index / COLOURS % DASHES)
}

/// Classes of a line of a series.
pub(super) fn classes(index: usize) -> String {
    let (colour, dash) = style_of(index);
    format!("c{colour} d{dash}")
}
