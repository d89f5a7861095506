//! Square root of f32, correctly rounded: in software, or C's (feature `c-sqrt`).

/// Returns the square root of `x`.
#[cfg(not(feature = "c-sqrt"))]
#[must_use]
#[inline]
pub fn sqrtf(x: f32) -> f32 {
    libm::sqrtf(x)
}

#[cfg(feature = "c-sqrt")]
pub use fedspan_c_math::sqrtf;
