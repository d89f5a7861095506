//! Sums over samples in 32-bit integers that share a scale.
//!
//! The integers are in buffers of f32, as their bits: the same memory holds the sums while they grow and the
//! floats that they become in the end. Zero is zero in both.

use super::Scale;
use super::product::halve;
use super::scale::scaled;

/// No product of two integers is larger.
const PRODUCT_MAX: u32 = 32767 * 32767;
/// Nor may a sum be.
const SUM_MAX: u32 = i32::MAX.cast_unsigned();

/// The scale of sums, which rises as they grow: each bit less is one rounding of every sum, and all of them
/// together move a sum by less than one unit of the last scale.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    exponent: i32,
    /// No sum is larger in magnitude.
    bound: u32,
}

/// How a sample's products are counted in the scale of the sums.
#[derive(Clone, Copy, Debug)]
pub struct Aligned {
    shift: u32,
    half: i32,
}

impl Sums {
    /// Sums of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self { exponent: 0, bound: 0 }
    }

    /// Makes room for one product more in each of `sums`, of integers counted in these scales. `None` where
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
            // Both fit 32 bits without sign.
            let bound = self.bound + (PRODUCT_MAX >> shift) + 1;
            if bound <= SUM_MAX {
                self.bound = bound;
                return Some(Aligned { shift, half: (1u32 << shift >> 1).cast_signed() });
            }
            self.raise(sums, 1);
        }
    }

    /// Counts in a scale that is `by > 0` powers of two coarser.
    #[inline(never)]
    fn raise(&mut self, sums: &mut [f32], by: u32) {
        for sum in sums {
            *sum = f32::from_bits(halve(sum.to_bits().cast_signed(), by).cast_unsigned());
        }
        self.bound = self.bound.unbounded_shr(by) + 1;
        self.exponent = self.exponent.saturating_add_unsigned(by);
    }

    /// The exponent that the sums are counted in.
    #[must_use]
    pub fn exponent(self) -> i32 {
        self.exponent
    }
}

/// Turns sums into floats: `integer 2^exponent`.
pub fn to_floats(sums: &mut [f32], exponent: i32) {
    for sum in sums {
        *sum = scaled(sum.to_bits().cast_signed(), exponent);
    }
}

impl Aligned {
    /// `sum += product`.
    #[inline(always)]
    fn add(self, sum: &mut f32, product: i32) {
        let value = sum.to_bits().cast_signed();
        *sum = f32::from_bits(value.wrapping_add((product + self.half) >> self.shift).cast_unsigned());
    }

    /// `S += x r^T` for one sample: `s` is d x c, `x` has d values of scale `scale`, `r` has c integers.
    #[inline(never)]
    pub fn add_outer(self, s: &mut [f32], x: &[f32], scale: Scale, r: &[i16]) {
        if let [r] = *r {
            let r = i32::from(r);
            for (s, &x) in s.iter_mut().zip(x) {
                self.add(s, scale.integer(x) * r);
            }
        } else {
            let mut rest = s;
            for &x in x {
                let Some((row, later)) = rest.split_at_mut_checked(r.len()) else { return };
                rest = later;
                self.add_scaled(row, scale.integer(x), r);
            }
        }
    }

    /// `Z^T Y += z y^T` for one sample: `sums` is k x c.
    #[inline(never)]
    pub fn add_products(self, sums: &mut [f32], z: &[i16], y: &[i16]) {
        if let [y] = *y {
            for (sum, &z) in sums.iter_mut().zip(z) {
                self.add(sum, i32::from(z) * i32::from(y));
            }
            return;
        }
        let mut rest = sums;
        for &z in z {
            let Some((row, later)) = rest.split_at_mut_checked(y.len()) else { return };
            rest = later;
            self.add_scaled(row, i32::from(z), y);
        }
    }

    /// The upper triangle of `Z^T Z += z z^T`, k x k.
    #[inline(never)]
    pub fn add_squares(self, sums: &mut [f32], z: &[i16]) {
        let (mut later, mut rest) = (z, sums);
        while let Some((&own, others)) = later.split_first() {
            // From the diagonal to the end of the row, then as far as the next diagonal.
            let Some((row, below)) = rest.split_at_mut_checked(later.len()) else { return };
            self.add_scaled(row, i32::from(own), later);
            rest = below.get_mut(z.len() - others.len()..).unwrap_or_default();
            later = others;
        }
    }

    #[inline(always)]
    fn add_scaled(self, sums: &mut [f32], a: i32, b: &[i16]) {
        for (sum, &b) in sums.iter_mut().zip(b) {
            self.add(sum, a * i32::from(b));
        }
    }
}
