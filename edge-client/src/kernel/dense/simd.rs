//! Vectors of a machine. Written out in them, kernels do not depend on what a compiler finds out by itself.

/// Knows a vector of the machine and what can be done with it.
pub trait Vector: Copy {
    /// [`Vector::LANES`] values.
    type Lanes: Copy;
    /// How many values a vector has.
    const LANES: usize;

    /// All lanes equal.
    fn splat(self, value: f32) -> Self::Lanes;

    /// The first values of a slice, if there are enough.
    fn load(self, values: &[f32]) -> Option<Self::Lanes>;

    /// Writes over the first values of a slice, if there are enough.
    fn store(self, values: &mut [f32], lanes: Self::Lanes) -> Option<()>;

    /// Lane by lane.
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// Lane by lane.
    fn subtract(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// Lane by lane.
    fn multiply(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
}

/// Four values, each written out: at `opt-level = "s"` a compiler leaves a loop a loop. What a microcontroller has
/// registers for.
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

/// One value: what is left over.
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

/// The widest vector of a host.
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
