//! Measurement of the peak rate of one core: sums and products in registers, no memory access. The kernels of this
//! project do not fuse a product with a sum, so that every processor computes the same bits; other libraries do.

use std::hint::black_box;
use std::time::Instant;

/// Number of parallel dependency chains, enough to hide the latencies of a product and a sum on two units
/// each.
const CHAINS: usize = 12;
/// Number of steps of each chain.
const STEPS: usize = 1 << 20;

/// Returns the number of additions and multiplications per second, the best of ten tries, with or without fused
/// multiply-add. The vectors are the widest that the kernels use.
#[must_use]
pub fn peak(fused: bool) -> f64 {
    let rate = |_| {
        let start = Instant::now();
        let operations = pulp::Arch::new().dispatch(Chains { fused });
        operations / start.elapsed().as_secs_f64()
    };
    (0..10).map(rate).fold(0.0, f64::max)
}

/// Computation that is measured, for the widest vectors of the processor.
struct Chains {
    fused: bool,
}

impl pulp::WithSimd for Chains {
    type Output = f64;

    /// Runs the chains; returns the number of operations.
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
        let (factor, summand) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(0.001)));
        let mut chains = [summand; CHAINS];
        if self.fused {
            for _ in 0..STEPS {
                for chain in &mut chains {
                    *chain = simd.mul_add_e_f32s(*chain, factor, summand);
                }
            }
        } else {
            for _ in 0..STEPS {
                for chain in &mut chains {
                    *chain = simd.add_f32s(simd.mul_f32s(*chain, factor), summand);
                }
            }
        }
        for chain in chains {
            black_box(simd.reduce_sum_f32s(chain));
        }
        (2 * CHAINS * S::F32_LANES * STEPS) as f64
    }
}
