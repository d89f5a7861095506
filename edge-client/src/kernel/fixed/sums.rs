//! Sums over samples in 32-bit integers that share one scale.
//!
//! The integers are stored in buffers of f32, as bits: the same memory holds the growing sums and, at the
//! end, their values as floats. Zero has the same bits in both formats.

use super::Scale;
use super::product::halve;
use super::scale::scaled;

/// Largest product of two integers.
const PRODUCT_MAX: u32 = 32767 * 32767;
/// Largest magnitude of a sum.
const SUM_MAX: u32 = i32::MAX.cast_unsigned();

/// Scale of sums, which is raised as the sums grow. Each raise rounds every sum once; all raises together
/// change a sum by less than one unit of the last scale.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Exponent of the unit of the sums.
    exponent: i32,
    /// Upper bound on the magnitude of all sums.
    bound: u32,
}

/// Shift and rounding of a sample's products to the scale of the sums.
#[derive(Clone, Copy, Debug)]
pub struct Aligned {
    /// Number of bits by which a product is shifted down.
    shift: u32,
    /// Half of the last remaining bit, added before the shift to round to nearest.
    half: i32,
}

impl Sums {
    /// Creates the scale of zero sums.
    #[must_use]
    pub const fn new() -> Self {
        Self { exponent: 0, bound: 0 }
    }

    /// Makes room for one more product in each of `sums`, of integers with these scales. Returns `None` if
    /// all such products round to zero.
    #[inline(never)]
    pub fn align(&mut self, sums: &mut [f32], a: Scale, b: Scale) -> Option<Aligned> {
        let exponent = a.exponent() + b.exponent();
        if self.bound == 0 {
            self.exponent = exponent;
        }
        if exponent > self.exponent {
            self.raise(sums, exponent.abs_diff(self.exponent));
        }
        loop {
            let shift = self.exponent.abs_diff(exponent);
            if shift > 31 {
                return None;
            }
            // Both terms fit 32 unsigned bits.
            let bound = self.bound + (PRODUCT_MAX >> shift) + 1;
            if bound <= SUM_MAX {
                self.bound = bound;
                return Some(Aligned { shift, half: (1u32 << shift >> 1).cast_signed() });
            }
            self.raise(sums, 1);
        }
    }

    /// Coarsens the scale by `by > 0` powers of two.
    #[inline(never)]
    fn raise(&mut self, sums: &mut [f32], by: u32) {
        for sum in sums {
            *sum = f32::from_bits(halve(sum.to_bits().cast_signed(), by).cast_unsigned());
        }
        self.bound = self.bound.unbounded_shr(by) + 1;
        self.exponent = self.exponent.saturating_add_unsigned(by);
    }

    /// Returns the exponent of the sums.
    #[must_use]
    pub fn exponent(self) -> i32 {
        self.exponent
    }
}

/// Converts sums to floats: `integer 2^exponent`.
pub fn to_floats(sums: &mut [f32], exponent: i32) {
    for sum in sums {
        *sum = scaled(sum.to_bits().cast_signed(), exponent);
    }
}

impl Aligned {
    /// Computes `sum += product`.
    #[inline(always)]
    fn add(self, sum: &mut f32, product: i32) {
        let value = sum.to_bits().cast_signed();
        *sum = f32::from_bits(value.wrapping_add((product + self.half) >> self.shift).cast_unsigned());
    }

    /// Computes `S += x r^T` for one sample: `s` is d x c, `x` has d values of scale `scale`, `r` has c
    /// integers.
    #[inline(never)]
    pub fn add_outer(self, s: &mut [f32], x: &[f32], scale: Scale, r: &[i16]) {
        if let [r] = *r {
            let r = i32::from(r);
            for (s, &x) in s.iter_mut().zip(x) {
                self.add(s, scale.integer(x) * r);
            }
        } else {
            let mut sums_left = s;
            for &x in x {
                let Some((row, later)) = sums_left.split_at_mut_checked(r.len()) else { return };
                sums_left = later;
                self.add_scaled(row, scale.integer(x), r);
            }
        }
    }

    /// Computes `Z^T Y += z y^T` for one sample: `sums` is k x c.
    #[inline(never)]
    pub fn add_products(self, sums: &mut [f32], z: &[i16], y: &[i16]) {
        if let [y] = *y {
            for (sum, &z) in sums.iter_mut().zip(z) {
                self.add(sum, i32::from(z) * i32::from(y));
            }
            return;
        }
        let mut sums_left = sums;
        for &z in z {
            let Some((row, later)) = sums_left.split_at_mut_checked(y.len()) else { return };
            sums_left = later;
            self.add_scaled(row, i32::from(z), y);
        }
    }

    /// Adds the upper triangle of `z z^T` to `Z^T Z`, k x k.
    #[inline(never)]
    pub fn add_squares(self, sums: &mut [f32], z: &[i16]) {
        let (mut values_left, mut sums_left) = (z, sums);
        while let Some((&value, next_values)) = values_left.split_first() {
            // Adds from the diagonal to the end of the row, then skips to the next diagonal.
            let Some((row, below)) = sums_left.split_at_mut_checked(values_left.len()) else { return };
            self.add_scaled(row, i32::from(value), values_left);
            sums_left = below.get_mut(z.len() - next_values.len()..).unwrap_or_default();
            values_left = next_values;
        }
    }

    /// Adds `a b` to `sums`.
    #[inline(always)]
    fn add_scaled(self, sums: &mut [f32], a: i32, b: &[i16]) {
        for (sum, &b) in sums.iter_mut().zip(b) {
            self.add(sum, a * i32::from(b));
        }
    }
}
