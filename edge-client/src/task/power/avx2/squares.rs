//! Rounding of the values of a row, and their squares.

use core::arch::x86_64::{__m256, __m256i};

use pulp::cast;
use pulp::x86::V3;

use crate::task::power::integer_rows::{HALF, WORD, Word};

/// Number of values of a vector.
const LANES: usize = WORD / 2;

/// Smallest square of an integer that may be saturated.
const SATURATED: u32 = (i16::MAX as u32).pow(2);

/// Rounding of the values of a row times a scale, with the sums of the squares of the integers.
pub struct Squares {
    simd: V3,
    scale: __m256,
    /// Sums of every other pair of squares, without signs.
    sums: __m256i,
    /// Union of the bits of all values that the sums had. A sum that overflows had the uppermost bit before, since two squares
    /// are at most 2^31.
    bits: __m256i,
    /// Largest sums of two squares, without signs.
    largest: __m256i,
}

impl Squares {
    /// Starts a row.
    #[inline(always)]
    pub fn new(simd: V3, scale: f32) -> Self {
        let zero = cast([0i32; LANES]);
        Self { simd, scale: cast([scale; LANES]), sums: zero, bits: zero, largest: zero }
    }

    /// Returns the integers nearest to values times the scale, rounding halves away from zero. Values that do not fit saturate, or become
    /// the lowest integer.
    #[inline(always)]
    pub fn round(&mut self, x: &[f32; WORD]) -> Word {
        let avx2 = self.simd.avx2;
        // Packing exchanges the second and the third quarter.
        let &[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
        let first = self.round_lanes(cast([a, b, c, d, i, j, k, l]));
        let second = self.round_lanes(cast([e, f, g, h, m, n, o, p]));
        let word = avx2._mm256_packs_epi32(first, second);
        let squares = avx2._mm256_madd_epi16(word, word);
        self.sums = avx2._mm256_add_epi32(self.sums, squares);
        self.bits = avx2._mm256_or_si256(self.bits, self.sums);
        self.largest = avx2._mm256_max_epu32(self.largest, squares);
        cast(word)
    }

    #[inline(always)]
    fn round_lanes(&self, x: __m256) -> __m256i {
        let avx = self.simd.avx;
        let (half, sign) = (cast([HALF; LANES]), cast([-0.0f32; LANES]));
        let value = avx._mm256_mul_ps(x, self.scale);
        let half = avx._mm256_or_ps(avx._mm256_and_ps(value, sign), half);
        // A value beyond 32 bits becomes the lowest integer.
        avx._mm256_cvttps_epi32(avx._mm256_add_ps(value, half))
    }

    /// Returns the squared norm of the integers of the row; `None` if one may not fit 16 bits.
    #[inline(always)]
    pub fn sum(self, row: &[Word]) -> Option<u64> {
        let avx2 = self.simd.avx2;
        let highest = avx2._mm256_srai_epi32::<31>(self.bits);
        let bound = cast([SATURATED; LANES]);
        let may_be_saturated =
            avx2._mm256_cmpeq_epi32(avx2._mm256_max_epu32(self.largest, bound), self.largest);
        if avx2._mm256_movemask_epi8(avx2._mm256_or_si256(highest, may_be_saturated)) != 0
            && (avx2._mm256_movemask_epi8(highest) != 0 || has_saturated(row))
        {
            return None;
        }
        let mut sum = 0;
        for lane in cast::<__m256i, [u32; LANES]>(self.sums) {
            sum += u64::from(lane);
        }
        Some(sum)
    }
}

/// Returns true if an integer may be saturated.
#[cold]
fn has_saturated(row: &[Word]) -> bool {
    row.as_flattened().iter().any(|integer| u32::from(integer.unsigned_abs()).pow(2) >= SATURATED)
}
