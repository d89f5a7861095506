//! Samples and a representation for measurements. They are bit-identical on every core and on the host,
//! because they are computed from integers by exact conversions and sums in a fixed order.

/// The random number generator splitmix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Copy, Debug)]
pub struct Generator(u64);

impl Generator {
    /// Creates a generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns the next value in [-1, 1), a multiple of 2^-23, which is exact in f32.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "24 bits are exact")]
    pub const fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as i32 - (1 << 23)) as f32 / 8_388_608.0
    }
}

/// `M` samples with `D` features, and `C` targets each.
#[derive(Clone, Debug)]
pub struct Problem<const D: usize, const M: usize, const C: usize = 1> {
    /// Samples, row-major, M x D.
    pub x: [[f32; D]; M],
    /// Targets, row-major, M x C.
    pub y: [[f32; C]; M],
    /// True if the normal equations are ill conditioned.
    pub ill: bool,
}

/// Deviation of the samples from their common direction in the ill-conditioned problem. It is so small that
/// the pivots of the Gram matrix differ by a factor of a million and the normal equations are rejected.
const DEVIATION: f32 = 1.0 / 1024.0;

impl<const D: usize, const M: usize, const C: usize> Problem<D, M, C> {
    /// Creates samples in all directions, for which the head is solved by the normal equations.
    #[must_use]
    pub const fn well_conditioned() -> Self {
        Self::new(1, 0.0, 1.0)
    }

    /// Creates samples near one direction, for which the head is solved by triangular factorisation.
    #[must_use]
    pub const fn ill_conditioned() -> Self {
        Self::new(2, 1.0, DEVIATION)
    }

    /// Creates samples that are a random multiple of one direction, times `common`, plus a random vector,
    /// times `deviation`.
    const fn new(seed: u64, common: f32, deviation: f32) -> Self {
        let mut random = Generator::new(seed);
        let (mut x, mut y) = ([[0.0; D]; M], [[0.0; C]; M]);
        let mut direction = [0.0; D];
        let mut j = 0;
        while j < D {
            direction[j] = random.unit();
            j += 1;
        }
        let mut i = 0;
        while i < M {
            let along = common * random.unit();
            let mut j = 0;
            while j < D {
                x[i][j] = along * direction[j] + deviation * random.unit();
                j += 1;
            }
            // The targets are linear functions of all features, whose weights decrease with the index from another
            // feature on for each output.
            let mut c = 0;
            while c < C {
                let mut sum = 0.0;
                let mut j = 0;
                while j < D {
                    #[allow(clippy::cast_precision_loss, reason = "small")]
                    let weight = 1.0 / (j + 1) as f32;
                    sum += weight * x[i][(j + c) % D];
                    j += 1;
                }
                y[i][c] = sum + random.unit() / 16.0;
                c += 1;
            }
            i += 1;
        }
        Self { x, y, ill: common > 0.0 }
    }
}

/// Fills `b` with a pattern of full rank, the input of [`fedspan_protocol::orthonormal::orthonormalise`].
pub fn pattern(b: &mut [f32]) {
    let mut random = Generator::new(3);
    for value in b {
        *value = random.unit();
    }
}
