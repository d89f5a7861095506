//! How long a whole update may be: a radius in integers, on a grid of its own.

use core::fmt;

/// Bits of a radius.
const BITS: u32 = 15;

/// Fractional bits of an f32, and the bias of its exponent.
const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;
const BIAS: i32 = f32::MAX_EXP - 1;

/// The binary exponents of a radius: from 2^-40 to below 2^40.
const EXPONENT_MAX: i32 = 39;
const EXPONENT_MIN: i32 = -40;

/// The radius `C` that a whole gradient is clipped to, before it is hidden in noise: from 2^14 to 2^15 units of a grid
/// whose unit is a power of two. It is the firmware's, public, and fixed before any data is seen.
///
/// Most gradients should be a little shorter: what is longer is shortened, and what is shorter drowns in noise that is
/// measured by the radius.
///
/// ```
/// use fedspan_client::privacy::Clip;
///
/// let clip = Clip::new(0.75)?;
/// assert_eq!((clip.units(), clip.exponent()), (24_576, -15));
/// // One record moves a gradient by the diameter at most.
/// assert_eq!(clip.sensitivity(), 49_152);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Sensitivity
///
/// What leaves but for its noise is a vector of integers `q` of which `|q|^2 <= units^2` was checked, of those integers,
/// by exact sums; where no gradient passes the check, `q = 0`. So for any two sets of records whatever, and for two that
/// differ in one record above all, `|q - q'| <= |q| + |q'| <= 2 units`. Nothing was used of how `q` is computed: not
/// that floats are rounded well, not that heads exist, not how many records there are. Nor is it divided by that number:
/// the head is fitted on the same records, so that one record turns it, and with it every term of the mean. Twice the
/// radius is attained by a record that turns a gradient around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clip {
    units: u16,
    exponent: i8,
}

impl Clip {
    /// From a radius in units of the gradient. Its first 15 bits count, the others are cut off, which makes it smaller
    /// by less than 2^-14 of it.
    ///
    /// # Errors
    /// [`ClipError`] for a NaN, and for what is below 2^-40, or not below 2^40.
    pub const fn new(radius: f32) -> Result<Self, ClipError> {
        let bits = radius.to_bits();
        // With a sign, this is beyond every exponent.
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

    /// The radius in units of the grid.
    #[must_use]
    pub const fn units(&self) -> u16 {
        self.units
    }

    /// The unit of the grid is two to this power.
    #[must_use]
    pub const fn exponent(&self) -> i8 {
        self.exponent
    }

    /// The unit of the grid.
    #[must_use]
    pub const fn unit(&self) -> f32 {
        power_of_two(self.exponent as i32)
    }

    /// How many units make one.
    #[must_use]
    pub const fn units_in_one(&self) -> f32 {
        power_of_two(-(self.exponent as i32))
    }

    /// The L2 sensitivity of a clipped gradient in units of the grid: twice the radius.
    #[must_use]
    pub const fn sensitivity(&self) -> u64 {
        2 * self.units as u64
    }
}

/// Of an exponent from -54 to 54.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent + BIAS).cast_unsigned() << MANTISSA)
}

/// No gradient is clipped to that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipError {
    /// What was asked for.
    pub radius: f32,
}

impl fmt::Display for ClipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clipping at {}: it has to be at least 2^-40, and below 2^40", self.radius)
    }
}

impl core::error::Error for ClipError {}
