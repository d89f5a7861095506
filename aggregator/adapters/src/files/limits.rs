//! Limits of adapter files.

/// Longest header that is read, in bytes. The header of an adapter with 200 tensors is 40 kB.
pub const HEADER_MAX: u64 = 1 << 24;

/// Number of bytes by which the header of an upload may be longer than that of the base.
pub const HEADER_ROOM: u64 = 1 << 16;

/// Largest number of input files that stay open. Other files are opened again for every block.
pub const OPEN_MAX: usize = 512;

/// Largest number of dimensions of a shape.
pub const DIMENSIONS_MAX: usize = 8;

/// Longest tensor name, in bytes.
pub const NAME_MAX: usize = 1024;

/// Largest number of samples of one client. Products of larger weights and f32 values would not be exact in
/// f64.
pub const SAMPLES_MAX: u32 = (1 << 29) - 1;
