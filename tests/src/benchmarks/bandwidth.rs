//! Measurement of the rate at which one core reads an array: from a cache, if the array fits into one.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of parallel sums, enough to hide the latency of an addition.
const SUMS: usize = 8;
/// Duration of a try.
const TRY: Duration = Duration::from_millis(10);
/// Largest array, in bytes; larger ones are in main memory as well.
const LARGEST: f64 = (1 << 28) as f64;

/// Returns the bytes per second that are read from an array of about so many bytes, the best of ten tries.
#[must_use]
pub fn bandwidth(bytes: f64) -> f64 {
    let values = vec![1.0f32; (bytes.min(LARGEST) / 4.0) as usize];
    let rate = |_| {
        let start = Instant::now();
        let mut passes = 0;
        while passes == 0 || start.elapsed() < TRY {
            pulp::Arch::new().dispatch(Sum(black_box(&values)));
            passes += 1;
        }
        (4 * values.len() * passes) as f64 / start.elapsed().as_secs_f64()
    };
    (0..10).map(rate).fold(0.0, f64::max)
}

/// Sum of an array, for the widest vectors of the processor.
struct Sum<'a>(&'a [f32]);

impl pulp::WithSimd for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let (vectors, _) = S::as_simd_f32s(self.0);
        let mut sums = [simd.splat_f32s(0.0); SUMS];
        for vectors in vectors.chunks_exact(SUMS) {
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = simd.add_f32s(*sum, *vector);
            }
        }
        for sum in sums {
            black_box(simd.reduce_sum_f32s(sum));
        }
    }
}
