//! Sums of a block of integer rows with AVX2, whose instruction for the dot products of pairs of 16-bit integers multiplies
//! sixteen numbers at once. Besides the projections, which are dot products, it computes `q p + half` of a rounded product:
//! as the dot product of `(q, a)` and `(p, b)` with `a b = half`.

use core::arch::x86_64::__m256i;

use pulp::x86::V3;
use pulp::{NullaryFnOnce, cast};

use crate::privacy::FRACTION;
use crate::task::power::integer_columns::Sums;
use crate::task::power::integer_rows::{WORD, Word};

/// Number of rows that are projected together.
const GROUP: usize = 8;

/// Rows with the columns of a basis and of sums.
pub struct Block<'a> {
    /// Rows of `words` words.
    pub rows: &'a [Word],
    pub words: usize,
    /// Basis, r columns.
    pub basis: &'a [Word],
    /// Sums, r columns.
    pub sums: &'a mut [Sums],
    /// Scratch memory: r values for each row.
    pub pairs: &'a mut [i32],
    /// Number of bits by which a product is rounded.
    pub shift: u32,
}

impl Block<'_> {
    /// Adds the products of the rows. Returns false and adds nothing if a projection does not fit 16 bits, or the shift is not
    /// one of 15 to 30.
    pub fn add(self, simd: V3) -> bool {
        simd.vectorize(InBlock(self, simd))
    }

    /// Computes the pairs `(p, b)` of all rows. Returns false if a projection does not fit 16 bits.
    #[inline(always)]
    fn project(&mut self, simd: V3) -> bool {
        let (words, r) = (self.words, self.basis.len() / self.words);
        // `a` is -2^14.
        let b = cast::<_, __m256i>([-1i32 << (self.shift - FRACTION + 16); GROUP]);
        let half = cast::<_, __m256i>([1i32 << (FRACTION - 1); GROUP]);
        let lower = cast::<_, __m256i>([0xffffi32; GROUP]);
        let mut too_large = cast::<_, __m256i>([0i32; GROUP]);
        for (rows, pairs) in self.rows.chunks(GROUP * words).zip(self.pairs.chunks_mut(GROUP * r)) {
            let Some(first) = rows.get(..words) else { break };
            let group: [&[Word]; GROUP] =
                core::array::from_fn(|row| rows.get(row * words..(row + 1) * words).unwrap_or(first));
            for (number, column) in self.basis.chunks_exact(words).enumerate() {
                let sum = simd.avx2._mm256_add_epi32(dot_products(simd, &group, column), half);
                let p = simd.avx2._mm256_srai_epi32::<{ FRACTION as i32 }>(sum);
                let extended = simd.avx2._mm256_srai_epi32::<16>(simd.avx2._mm256_slli_epi32::<16>(p));
                let difference = simd.avx2._mm256_xor_si256(p, extended);
                too_large = simd.avx2._mm256_or_si256(too_large, difference);
                let pair = simd.avx2._mm256_or_si256(simd.avx2._mm256_and_si256(p, lower), b);
                for (target, pair) in
                    pairs.iter_mut().skip(number).step_by(r).zip(cast::<_, [i32; GROUP]>(pair))
                {
                    *target = pair;
                }
            }
        }
        cast::<_, [i32; GROUP]>(too_large) == [0; GROUP]
    }

    /// Adds the products of all rows.
    #[inline(always)]
    fn accumulate(&mut self, simd: V3) {
        let r = self.basis.len() / self.words;
        for word in 0..self.words {
            let mut column = 0;
            while column < r {
                column += match r - column {
                    1 => self.add_tile::<1>(simd, word, column, r),
                    2 | 4 => self.add_tile::<2>(simd, word, column, r),
                    _ => self.add_tile::<3>(simd, word, column, r),
                };
            }
        }
    }

    /// Adds the products of a word of all rows and columns `column..column + C`. Returns `C`.
    #[inline(always)]
    fn add_tile<const C: usize>(&mut self, simd: V3, word: usize, column: usize, r: usize) -> usize {
        let avx2 = simd.avx2;
        let a = cast::<_, __m256i>([-1i16 << (FRACTION - 1); WORD]);
        let shift = cast([u64::from(self.shift), 0]);
        let mut tile = [[cast::<_, __m256i>([0i32; GROUP]); 2]; C];
        for (row, pairs) in self.rows.chunks_exact(self.words).zip(self.pairs.chunks_exact(r)) {
            let (Some(&q), Some(pairs)) =
                (row.get(word), pairs.get(column..).and_then(<[i32]>::first_chunk::<C>))
            else {
                break;
            };
            let q = cast::<_, __m256i>(q);
            let halves = [avx2._mm256_unpacklo_epi16(q, a), avx2._mm256_unpackhi_epi16(q, a)];
            for (sums, &pair) in tile.iter_mut().zip(pairs) {
                let pair = cast::<_, __m256i>([pair; GROUP]);
                for (sum, q) in sums.iter_mut().zip(halves) {
                    let product = avx2._mm256_sra_epi32(avx2._mm256_madd_epi16(q, pair), shift);
                    *sum = avx2._mm256_add_epi32(*sum, product);
                }
            }
        }
        for (number, [first, second]) in tile.into_iter().enumerate() {
            let Some(sums) = self.sums.get_mut((column + number) * self.words + word) else { break };
            // The halves have the features 0 to 3 and 8 to 11, and the others.
            let [first, third] = cast::<_, [[i32; 4]; 2]>(first);
            let [second, fourth] = cast::<_, [[i32; 4]; 2]>(second);
            let values = [first, second, third, fourth];
            for (sum, value) in sums.iter_mut().zip(values.as_flattened()) {
                *sum += value;
            }
        }
        C
    }
}

/// Computation of a block with the vectors that the processor has.
struct InBlock<'a>(Block<'a>, V3);

impl NullaryFnOnce for InBlock<'_> {
    type Output = bool;

    #[inline(always)]
    fn call(self) -> bool {
        let Self(mut block, simd) = self;
        let fits = (FRACTION..=2 * FRACTION).contains(&block.shift) && block.project(simd);
        if fits {
            block.accumulate(simd);
        }
        fits
    }
}

/// Returns the dot products of the rows of a group and a column.
#[inline(always)]
fn dot_products(simd: V3, group: &[&[Word]; GROUP], column: &[Word]) -> __m256i {
    let avx2 = simd.avx2;
    let mut sums = [cast::<_, __m256i>([0i32; GROUP]); GROUP];
    for (word, z) in column.iter().enumerate() {
        let z = cast(*z);
        for (sum, row) in sums.iter_mut().zip(group) {
            let Some(&q) = row.get(word) else { break };
            *sum = avx2._mm256_add_epi32(*sum, avx2._mm256_madd_epi16(z, cast(q)));
        }
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
    // Each half of a vector has the sums of the same half of the rows' vectors.
    let [s0, s2] = [avx2._mm256_hadd_epi32(s0, s1), avx2._mm256_hadd_epi32(s2, s3)];
    let [s4, s6] = [avx2._mm256_hadd_epi32(s4, s5), avx2._mm256_hadd_epi32(s6, s7)];
    let [first, second] = [avx2._mm256_hadd_epi32(s0, s2), avx2._mm256_hadd_epi32(s4, s6)];
    avx2._mm256_add_epi32(
        avx2._mm256_permute2x128_si256::<0x20>(first, second),
        avx2._mm256_permute2x128_si256::<0x31>(first, second),
    )
}
