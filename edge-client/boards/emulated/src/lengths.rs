//! Check of the integer products of all vectors with up to 67 elements against a loop that the compiler
//! cannot optimise. The lengths cover every remainder of an unrolled loop. LLVM's patterns for the dual
//! multiplications of Cortex-M4 and M7 have counted products twice at some lengths, and the shapes measured
//! by `update` would not reveal all of these errors.

use core::hint::black_box;

use fedspan_client::kernel::fixed::product::{products, residuals};

use crate::problem::Generator;

/// Largest length, longer than any unrolled loop body.
const LONGEST: usize = 67;
/// Number of rows in each product.
const ROWS: usize = 3;

/// Computes products and residuals of all lengths, and compares them with the exact sums.
///
/// # Errors
/// The first length with a wrong result.
pub fn check() -> Result<(), usize> {
    let mut random = Generator::new(4);
    let mut integer = || {
        let [low, high, ..] = random.bits().to_le_bytes();
        // Half of the integers have the largest magnitude.
        match low % 4 {
            0 => i16::MAX,
            1 => -i16::MAX,
            _ => i16::from_le_bytes([low, high]).max(-i16::MAX),
        }
    };
    let rows: [i16; ROWS * LONGEST] = core::array::from_fn(|_| integer());
    let v: [i16; LONGEST] = core::array::from_fn(|_| integer());
    for n in 1..=LONGEST {
        let (rows, v) = (rows.get(..ROWS * n).unwrap_or_default(), v.get(..n).unwrap_or_default());
        let (mut sums, mut residual_sums) = ([0.0; ROWS], [0.0; ROWS]);
        let halvings = products(rows, v, 0, &mut sums);
        let same_halvings = residuals(rows, v, 0, &mut residual_sums) == halvings;
        for ((row, sum), residual_sum) in rows.chunks_exact(n).zip(sums).zip(residual_sums) {
            let exact = row.iter().zip(v).fold(0i64, |sum, (a, b)| {
                black_box(sum) + i64::from(black_box(*a)) * i64::from(black_box(*b))
            });
            let half = if halvings > 0 { 1i64 << (halvings - 1) } else { 0 };
            let exact = (exact + half) >> halvings;
            let is_exact = |value: f32| i64::from(value.to_bits().cast_signed()) == exact;
            if !(same_halvings && is_exact(sum) && is_exact(residual_sum)) {
                return Err(n);
            }
        }
    }
    Ok(())
}
