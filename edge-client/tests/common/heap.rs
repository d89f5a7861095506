//! Test helpers: memory of a linear model whose sizes are known only at run time.

use fedspan_client::memory::{Blocks, Eight, Memory, Parts, PartsRef, Shape};
use fedspan_client::pace::Pace;

/// Memory for a linear model of any shape, optionally with the buffers for power iterations and streaming.
#[derive(Clone, Debug)]
pub struct Heap {
    shape: Shape,
    buffers: [Vec<f32>; 7],
    extra_matrix: Option<Vec<f32>>,
    blocks: Option<(Vec<Eight>, Vec<Eight>)>,
}

impl Heap {
    /// Creates memory without optional buffers.
    pub fn new(features: usize, width: usize, outputs: usize) -> Self {
        let (d, k, c) = (features, width, outputs);
        let buffers = [d * k, k * c, k * k, k * c, d * c, k, c].map(|n| vec![0.0; n]);
        Self { shape: Shape { features, width, outputs }, buffers, extra_matrix: None, blocks: None }
    }

    /// Creates memory with the second d x k buffer that power iterations need.
    pub fn power(features: usize, width: usize, outputs: usize) -> Self {
        Self { extra_matrix: Some(vec![0.0; features * width]), ..Self::new(features, width, outputs) }
    }

    /// Creates memory with the second d x k buffer and the blocks that streamed samples need.
    pub fn streaming(features: usize, width: usize, outputs: usize) -> Self {
        let blocks_of = |n| vec![[0.0; 8]; n];
        let blocks = Some((blocks_of(width), blocks_of(outputs)));
        Self { blocks, ..Self::power(features, width, outputs) }
    }
}

impl Memory for Heap {
    fn parts(&mut self) -> Parts<'_> {
        let [representation, head, factor, rhs, residual, z, y] = &mut self.buffers;
        let extra_matrix = self.extra_matrix.as_deref_mut();
        let blocks = self.blocks.as_mut().map(|(z, y)| Blocks { z, y });
        Parts {
            shape: self.shape,
            representation,
            head,
            factor,
            rhs,
            residual,
            extra_matrix,
            blocks,
            z,
            y,
            gathered: &mut [],
            pace: Pace::NONE,
        }
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        let [representation, head, _, _, residual, ..] = &self.buffers;
        PartsRef {
            shape: self.shape,
            representation,
            head,
            residual,
            extra_matrix: self.extra_matrix.as_deref(),
            pace: Pace::NONE,
        }
    }
}
