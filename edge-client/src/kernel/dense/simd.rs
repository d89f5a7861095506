//! Explicit SIMD vectors, used so that the kernels do not depend on auto-vectorisation.

/// Vector unit of a machine: a vector type and its operations.
pub trait Vector: Copy {
    /// Vector of [`Vector::LANES`] values.
    type Lanes: Copy;
    /// Number of values of a vector.
    const LANES: usize;

    /// Returns a vector of equal lanes.
    fn splat(self, value: f32) -> Self::Lanes;

    /// Loads the first values of a slice; `None` if the slice is shorter than a vector.
    fn load(self, values: &[f32]) -> Option<Self::Lanes>;

    /// Stores a vector into the first values of a slice; `None` if the slice is shorter than a vector.
    fn store(self, values: &mut [f32], lanes: Self::Lanes) -> Option<()>;

    /// Adds lane by lane.
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// Subtracts lane by lane.
    fn subtract(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// Multiplies lane by lane.
    fn multiply(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
}

/// Vectors of four values, which fit the registers of a microcontroller. The operations are unrolled by hand,
/// because the compiler does not unroll loops at `opt-level = "s"`.
#[derive(Clone, Copy)]
pub struct Fours;

impl Vector for Fours {
    type Lanes = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 4] {
        [value, value, value, value]
    }

    #[inline(always)]
    fn load(self, values: &[f32]) -> Option<[f32; 4]> {
        values.first_chunk().copied()
    }

    #[inline(always)]
    fn store(self, values: &mut [f32], lanes: [f32; 4]) -> Option<()> {
        *values.first_chunk_mut()? = lanes;
        Some(())
    }

    #[inline(always)]
    fn add(self, [a0, a1, a2, a3]: [f32; 4], [b0, b1, b2, b3]: [f32; 4]) -> [f32; 4] {
        [a0 + b0, a1 + b1, a2 + b2, a3 + b3]
    }

    #[inline(always)]
    fn subtract(self, [a0, a1, a2, a3]: [f32; 4], [b0, b1, b2, b3]: [f32; 4]) -> [f32; 4] {
        [a0 - b0, a1 - b1, a2 - b2, a3 - b3]
    }

    #[inline(always)]
    fn multiply(self, [a0, a1, a2, a3]: [f32; 4], [b0, b1, b2, b3]: [f32; 4]) -> [f32; 4] {
        [a0 * b0, a1 * b1, a2 * b2, a3 * b3]
    }
}

/// Vectors of one value, for the columns that do not fill a wider vector.
#[derive(Clone, Copy)]
pub struct One;

impl Vector for One {
    type Lanes = f32;
    const LANES: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn load(self, values: &[f32]) -> Option<f32> {
        values.first().copied()
    }

    #[inline(always)]
    fn store(self, values: &mut [f32], lanes: f32) -> Option<()> {
        *values.first_mut()? = lanes;
        Some(())
    }

    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn subtract(self, a: f32, b: f32) -> f32 {
        a - b
    }

    #[inline(always)]
    fn multiply(self, a: f32, b: f32) -> f32 {
        a * b
    }
}

/// Widest vectors of the host.
#[cfg(all(feature = "wide", not(target_os = "none")))]
#[derive(Clone, Copy)]
pub struct Widest<S>(pub S);

#[cfg(all(feature = "wide", not(target_os = "none")))]
impl<S: pulp::Simd> Vector for Widest<S> {
    type Lanes = S::f32s;
    const LANES: usize = S::F32_LANES;

    #[inline(always)]
    fn splat(self, value: f32) -> S::f32s {
        self.0.splat_f32s(value)
    }

    #[inline(always)]
    fn load(self, values: &[f32]) -> Option<S::f32s> {
        S::as_simd_f32s(values.get(..Self::LANES)?).0.first().copied()
    }

    #[inline(always)]
    fn store(self, values: &mut [f32], lanes: S::f32s) -> Option<()> {
        *S::as_mut_simd_f32s(values.get_mut(..Self::LANES)?).0.first_mut()? = lanes;
        Some(())
    }

    #[inline(always)]
    fn add(self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.add_f32s(a, b)
    }

    #[inline(always)]
    fn subtract(self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.sub_f32s(a, b)
    }

    #[inline(always)]
    fn multiply(self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.mul_f32s(a, b)
    }
}
