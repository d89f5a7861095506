//! Products of a matrix of integers with a block of integers: projections and predictions.

use super::scale::scaled;

/// How often a sum of `n` products must be halved to fit 32 bits with its sign: two products of at most
/// 32767^2 do.
fn halvings(n: usize) -> u32 {
    usize::BITS - (n.saturating_sub(1) / 2).leading_zeros()
}

/// `A v` as f32, value by value. `columns` holds the rows of `A` one after the other, each as long as `v`;
/// `exponent` is the sum of the exponents of both scales.
pub fn products<'a>(rows: &'a [i16], v: &'a [i16], exponent: i32) -> impl Iterator<Item = f32> + 'a {
    let halvings = halvings(v.len());
    let exponent = exponent.saturating_add_unsigned(halvings);
    rows.chunks_exact(v.len().max(1)).map(move |row| scaled(dot(row, v, halvings), exponent))
}

/// `sum of a b / 2^halvings`, to the nearest.
#[inline(never)]
fn dot(a: &[i16], b: &[i16], halvings: u32) -> i32 {
    let (a, last) = a.as_chunks::<2>();
    let (b, other) = b.as_chunks::<2>();
    let mut sum = 0i64;
    for (a, b) in a.iter().zip(b) {
        // Two products fit 32 bits.
        sum += i64::from(product(a[0], b[0]) + product(a[1], b[1]));
    }
    if let ([a], [b]) = (last, other) {
        sum += i64::from(product(*a, *b));
    }
    #[allow(clippy::cast_possible_truncation, reason = "that is what the halvings are for")]
    let halved = ((sum + (1 << halvings >> 1)) >> halvings) as i32;
    halved
}

fn product(a: i16, b: i16) -> i32 {
    i32::from(a) * i32::from(b)
}
