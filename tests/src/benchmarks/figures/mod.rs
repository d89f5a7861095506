//! Our side of each figure.

pub mod clients;
#[cfg(feature = "encoder")]
pub mod encoder;
pub mod fedpower;
pub mod networks;
pub mod start;
pub mod updates;
pub mod updates_nalgebra;

/// Returns pseudo-random values from -1 to 1.
#[must_use]
pub fn pseudo_random_values(count: usize, mut state: u32) -> Vec<f32> {
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Name and version of this project.
#[must_use]
pub fn version() -> String {
    format!("fedspan {}", env!("CARGO_PKG_VERSION"))
}

/// Makes a value live as long as the program of a side, which prepares one only.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
