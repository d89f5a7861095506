//! Clipping radius of a whole gradient, represented by an integer and a power of two.

use core::fmt;

/// Number of bits of a radius.
const BITS: u32 = 15;

/// Number of fraction bits of an f32.
const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;
/// Bias of the exponent of an f32.
const BIAS: i32 = f32::MAX_EXP - 1;

/// Largest binary exponent of a radius: radii are below 2^40.
const EXPONENT_MAX: i32 = 39;
/// Smallest binary exponent of a radius: radii are at least 2^-40.
const EXPONENT_MIN: i32 = -40;

/// Radius `C` to which a whole gradient is clipped before noise is added: 2^14 to 2^15 units of a grid whose
/// unit is a power of two. The radius is part of the firmware, public, and fixed before any data is read.
///
/// Most gradients should be slightly shorter than the radius: longer gradients are shortened, and the noise,
/// which is proportional to the radius, dominates much shorter gradients.
///
/// ```
/// use fedspan_client::privacy::Clip;
///
/// let clip = Clip::new(0.75)?;
/// assert_eq!((clip.units(), clip.exponent()), (24_576, -15));
/// // One record changes a gradient by at most the diameter.
/// assert_eq!(clip.sensitivity(), 49_152);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Sensitivity
///
/// Before noise is added, the upload is a vector of integers `q`, and exact sums check that
/// `|q|^2 <= units^2`; if a gradient does not pass the check, `q = 0`. For any two sets of records, and in
/// particular for two that differ in one record, `|q - q'| <= |q| + |q'| <= 2 units` therefore holds. The
/// bound makes no assumption on the computation of `q`: not on the rounding of floats, the existence of heads
/// or the number of records. The bound is not divided by the number of records: the head is fitted on the
/// same records, so one record can change the head, and with it every term of the mean. A record that
/// reverses a gradient attains the bound, twice the radius.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clip {
    /// Radius in units of the grid.
    units: u16,
    /// Exponent of the grid's unit.
    exponent: i8,
}

impl Clip {
    /// Creates a radius in units of the gradient. Only the first 15 bits are used, so the stored radius is
    /// smaller by a relative difference below 2^-14.
    ///
    /// # Errors
    /// [`ClipError`] for NaN, and for radii below 2^-40 or not below 2^40.
    pub const fn new(radius: f32) -> Result<Self, ClipError> {
        let bits = radius.to_bits();
        // A set sign bit makes the exponent too large.
        let exponent = (bits >> MANTISSA).cast_signed() - BIAS;
        if exponent < EXPONENT_MIN || exponent > EXPONENT_MAX {
            return Err(ClipError { radius });
        }
        let mantissa = bits & ((1 << MANTISSA) - 1) | 1 << MANTISSA;
        #[allow(clippy::cast_possible_truncation, reason = "15 bits, and from -54 to 25")]
        let clip = Self {
            units: (mantissa >> (MANTISSA + 1 - BITS)) as u16,
            exponent: (exponent + 1 - BITS.cast_signed()) as i8,
        };
        Ok(clip)
    }

    /// Returns the radius in units of the grid.
    #[must_use]
    pub const fn units(&self) -> u16 {
        self.units
    }

    /// Returns the exponent of the grid's unit, a power of two.
    #[must_use]
    pub const fn exponent(&self) -> i8 {
        self.exponent
    }

    /// Returns the unit of the grid.
    #[must_use]
    pub const fn unit(&self) -> f32 {
        power_of_two(self.exponent as i32)
    }

    /// Returns the reciprocal of the grid's unit.
    #[must_use]
    pub const fn units_in_one(&self) -> f32 {
        power_of_two(-(self.exponent as i32))
    }

    /// Returns the L2 sensitivity of a clipped gradient in units of the grid: twice the radius.
    #[must_use]
    pub const fn sensitivity(&self) -> u64 {
        2 * self.units as u64
    }
}

/// Returns `2^exponent`, for exponents from -54 to 54.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent + BIAS).cast_unsigned() << MANTISSA)
}

/// Clipping radius out of range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipError {
    /// Radius that was given.
    pub radius: f32,
}

impl fmt::Display for ClipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clipping radius is {}; allowed: at least 2^-40 and below 2^40", self.radius)
    }
}

impl core::error::Error for ClipError {}
