//! Sums over samples in 32-bit integers that share a scale.
//!
//! The integers are in buffers of f32, as their bits: the same memory holds the sums while they grow and the
//! floats that they become in the end. Zero is zero in both.

use super::Scale;
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
        self.raise(sums, u32::try_from(exponent - self.exponent).unwrap_or(0));
        loop {
            let shift = u32::try_from(self.exponent - exponent).unwrap_or(0);
            let share = PRODUCT_MAX.unbounded_shr(shift) + 1;
            if shift > 31 {
                return None;
            }
            if let Some(bound) = self.bound.checked_add(share).filter(|&bound| bound <= SUM_MAX) {
                self.bound = bound;
                return Some(Aligned { shift, half: (1u32 << shift >> 1).cast_signed() });
            }
            self.raise(sums, 1);
        }
    }

    /// Counts in a scale that is `by` powers of two coarser.
    fn raise(&mut self, sums: &mut [f32], by: u32) {
        if by == 0 {
            return;
        }
        for sum in sums {
            let value = sum.to_bits().cast_signed();
            // To the nearest, without the sum that could be too large.
            let half = value.unbounded_shr(by - 1) & 1;
            *sum = f32::from_bits((value.unbounded_shr(by) + half).cast_unsigned());
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
            for (row, &x) in s.chunks_exact_mut(r.len().max(1)).zip(x) {
                self.add_scaled(row, scale.integer(x), r);
            }
        }
    }

    /// `Z^T Y += z y^T` for one sample: `sums` is k x c.
    #[inline(never)]
    pub fn add_products(self, sums: &mut [f32], z: &[i16], y: &[i16]) {
        for (row, &z) in sums.chunks_exact_mut(y.len().max(1)).zip(z) {
            self.add_scaled(row, i32::from(z), y);
        }
    }

    /// The upper triangle of `Z^T Z += z z^T`, k x k.
    #[inline(never)]
    pub fn add_squares(self, sums: &mut [f32], z: &[i16]) {
        let mut later = z;
        for row in sums.chunks_exact_mut(z.len().max(1)) {
            let Some((&own, rest)) = later.split_first() else { return };
            let first = z.len() - later.len();
            self.add_scaled(row.get_mut(first..).unwrap_or_default(), i32::from(own), later);
            later = rest;
        }
    }

    #[inline(always)]
    fn add_scaled(self, sums: &mut [f32], a: i32, b: &[i16]) {
        for (sum, &b) in sums.iter_mut().zip(b) {
            self.add(sum, a * i32::from(b));
        }
    }
}
