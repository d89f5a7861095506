//! Memory of a network on the heap, for simulated devices.

use std::sync::Arc;

use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::memory::{NetworkMemory, NetworkParts, NetworkShape};
use fedspan_client::pace::Pace;

use super::BaseNetwork;

/// Memory of a network on the heap, with sizes that are known only at run time. Replaces the
/// `NetworkWorkspace` of a real device, and has room to cache the body's outputs for all samples.
#[derive(Clone, Debug)]
pub struct HeapNetwork {
    shape: NetworkShape,
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    scratch: Vec<f32>,
    body_cache: Vec<f32>,
    classes: Vec<u8>,
    pool_indices: Vec<u8>,
    base: Option<Arc<BaseNetwork>>,
}

impl HeapNetwork {
    /// Creates zeroed memory for a device with `samples` samples. All devices share `base`.
    #[must_use]
    pub fn new(shape: NetworkShape, momentum: bool, samples: usize, base: Option<Arc<BaseNetwork>>) -> Self {
        let parameters = shape.parameters();
        Self {
            shape,
            parameters: vec![0.0; parameters],
            velocity: vec![0.0; if momentum { parameters } else { 0 }],
            scratch: vec![0.0; shape.scratch()],
            body_cache: vec![0.0; shape.body_cache_len(samples)],
            classes: vec![0; shape.batch],
            pool_indices: vec![0; shape.bytes() - shape.batch],
            base,
        }
    }
}

impl HeapNetwork {
    /// Creates working memory without parameters and velocity.
    pub(super) fn scratch(shape: NetworkShape) -> Self {
        Self { parameters: Vec::new(), velocity: Vec::new(), ..Self::new(shape, false, 0, None) }
    }
}

impl NetworkMemory for HeapNetwork {
    fn parts(&mut self) -> NetworkParts<'_> {
        let Self { shape, parameters, velocity, scratch, body_cache, classes, pool_indices, base } = self;
        NetworkParts {
            shape: *shape,
            parameters,
            velocity,
            scratch,
            classes,
            pool_indices,
            body_cache,
            pace: Pace::NONE,
            frozen: frozen_layer(base),
        }
    }

    fn shape(&self) -> NetworkShape {
        self.shape
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    fn frozen(&self) -> Frozen<'_> {
        frozen_layer(&self.base)
    }
}

/// Frozen layer of the base network, if there is a base network.
fn frozen_layer(base: &Option<Arc<BaseNetwork>>) -> Frozen<'_> {
    base.as_ref().map_or(Frozen::Nothing, |base| Frozen::F32(&base.frozen))
}
