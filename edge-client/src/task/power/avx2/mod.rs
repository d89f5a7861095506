//! Integer arithmetic of noisy products with AVX2, for which compilers find no instructions of this kind in portable code.

mod block;
mod squares;

pub use block::Block;
pub use squares::Squares;
