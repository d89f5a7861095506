//! The buffers of a network, owned by the caller.

use core::marker::PhantomData;
use core::ops::Range;

use fedspan_protocol::limits::HIDDEN_MAX;

/// Sizes of a network: dense layers with biases, ReLU between them, the last of which is the head.
///
/// A layer from i inputs to o outputs is (i + 1) x o values, row-major, the last row its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// `d`, length of a sample.
    pub features: usize,
    /// Widths of the hidden layers; zeros after the last.
    pub hidden: [usize; HIDDEN_MAX],
    /// `C`, classes.
    pub outputs: usize,
    /// Samples of a batch, at most.
    pub batch: usize,
}

impl NetworkShape {
    /// A network whose batches have at most `batch` samples.
    ///
    /// ```
    /// use fedspan_client::memory::NetworkShape;
    ///
    /// const SHAPE: NetworkShape = NetworkShape::new(64, &[32], 7, 10);
    /// assert_eq!((SHAPE.layers(), SHAPE.parameters()), (2, 65 * 32 + 33 * 7));
    /// ```
    ///
    /// # Panics
    /// When a constant is computed: if there are more hidden layers than [`HIDDEN_MAX`], or a size is zero.
    #[must_use]
    pub const fn new(features: usize, hidden: &[usize], outputs: usize, batch: usize) -> Self {
        assert!(hidden.len() <= HIDDEN_MAX && features >= 1 && outputs >= 1 && batch >= 1);
        let mut widths = [0; HIDDEN_MAX];
        let mut layer = 0;
        while layer < hidden.len() {
            assert!(hidden[layer] >= 1);
            widths[layer] = hidden[layer];
            layer += 1;
        }
        Self { features, hidden: widths, outputs, batch }
    }

    /// Layers, the head among them.
    #[must_use]
    pub const fn layers(&self) -> usize {
        let mut count = 0;
        while count < HIDDEN_MAX && self.width_of(count) > 0 {
            count += 1;
        }
        count + 1
    }

    /// Width of hidden layer `layer`; 0 where there is none.
    const fn width_of(&self, layer: usize) -> usize {
        if layer < HIDDEN_MAX { self.hidden[layer] } else { 0 }
    }

    /// Inputs and outputs of a layer; nothing beyond the last.
    #[must_use]
    pub const fn layer(&self, layer: usize) -> (usize, usize) {
        let last = self.layers() - 1;
        if layer > last {
            return (0, 0);
        }
        let inputs = if layer == 0 { self.features } else { self.width_of(layer - 1) };
        (inputs, if layer == last { self.outputs } else { self.width_of(layer) })
    }

    /// Where a layer begins among the parameters.
    #[must_use]
    pub const fn start(&self, layer: usize) -> usize {
        let mut start = 0;
        let mut before = 0;
        while before < layer {
            let (inputs, outputs) = self.layer(before);
            start += (inputs + 1) * outputs;
            before += 1;
        }
        start
    }

    /// The parameters of these layers among all.
    #[must_use]
    pub const fn range(&self, layers: Range<usize>) -> Range<usize> {
        self.start(layers.start)..self.start(layers.end)
    }

    /// Weights and biases of all layers.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.start(self.layers())
    }

    /// Values that keep what the body makes of so many samples, and their classes.
    #[must_use]
    pub const fn kept(&self, samples: usize) -> usize {
        samples * (self.layer(self.layers() - 1).0 + 1)
    }

    /// Outputs of all layers for one sample.
    const fn activations(&self) -> usize {
        let mut sum = 0;
        let mut layer = 0;
        while layer < self.layers() {
            sum += self.layer(layer).1;
            layer += 1;
        }
        sum
    }

    /// The widest layer, hidden or last.
    const fn widest(&self) -> usize {
        let mut most = 0;
        let mut layer = 0;
        while layer < self.layers() {
            let (_, outputs) = self.layer(layer);
            if outputs > most {
                most = outputs;
            }
            layer += 1;
        }
        most
    }

    /// Values of working memory: a batch, what all layers make of it, and two layers' errors.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        self.batch * (self.features + self.activations() + 2 * self.widest())
    }
}

/// All buffers of one network; what is in them is the business of [`crate::task`].
#[derive(Debug)]
pub struct NetworkParts<'a> {
    /// Sizes of all that follows.
    pub shape: NetworkShape,
    /// All layers, one after the other.
    pub parameters: &'a mut [f32],
    /// As long as the parameters, or nothing: then there is no momentum.
    pub velocity: &'a mut [f32],
    /// [`NetworkShape::scratch`] values.
    pub scratch: &'a mut [f32],
    /// Classes of a batch.
    pub classes: &'a mut [u8],
    /// What the body makes of every sample of the device, where there is room for so many ([`NetworkShape::kept`]): epochs
    /// of the head then neither read the samples nor compute it again. Has no influence on any bit.
    pub kept: &'a mut [f32],
}

/// Memory for one network.
pub trait NetworkMemory {
    /// All buffers. Their lengths must be those of the shape.
    fn parts(&mut self) -> NetworkParts<'_>;

    /// The sizes.
    fn shape(&self) -> NetworkShape;

    /// All layers, to read.
    fn parameters(&self) -> &[f32];
}

impl<M: NetworkMemory + ?Sized> NetworkMemory for &mut M {
    fn parts(&mut self) -> NetworkParts<'_> {
        (**self).parts()
    }

    fn shape(&self) -> NetworkShape {
        (**self).shape()
    }

    fn parameters(&self) -> &[f32] {
        (**self).parameters()
    }
}

/// The sizes of a network, as a type: memory that holds nothing but zeros takes no flash.
pub trait NetworkSizes {
    /// The sizes.
    const SHAPE: NetworkShape;
}

/// Memory for a network with `P` parameters, `S` values of working memory, batches of `N` samples, and `V` values of
/// velocity (`P` with momentum, 0 without). With `F` values besides, the body's outputs for so many samples
/// ([`NetworkShape::kept`]) are kept during the epochs of the head. Its size is the whole RAM of the model:
/// `4 (P + V + S + F) + N` bytes, for hidden widths h, of which the largest or C is w: `S = N (d + sum of h + C + 2 w)`.
///
/// ```
/// use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};
///
/// struct Mine;
///
/// impl NetworkSizes for Mine {
///     const SHAPE: NetworkShape = NetworkShape::new(64, &[32], 7, 10);
/// }
///
/// const P: usize = Mine::SHAPE.parameters();
/// const S: usize = Mine::SHAPE.scratch();
/// static MEMORY: NetworkWorkspace<Mine, P, S, 10, P> = NetworkWorkspace::new();
/// assert_eq!(size_of_val(&MEMORY), (4 * (2 * P + S) + 10usize).next_multiple_of(4));
/// ```
#[derive(Clone, Debug)]
pub struct NetworkWorkspace<
    Z,
    const P: usize,
    const S: usize,
    const N: usize,
    const V: usize = 0,
    const F: usize = 0,
> {
    sizes: PhantomData<fn() -> Z>,
    parameters: [f32; P],
    velocity: [f32; V],
    scratch: [f32; S],
    kept: [f32; F],
    classes: [u8; N],
}

impl<Z: NetworkSizes, const P: usize, const S: usize, const N: usize, const V: usize, const F: usize>
    NetworkWorkspace<Z, P, S, N, V, F>
{
    /// All zero; fit for a `static`. Does not compile if the numbers are not those of the sizes.
    #[must_use]
    pub const fn new() -> Self {
        const {
            let shape = Z::SHAPE;
            assert!(
                P == shape.parameters() && S == shape.scratch() && N == shape.batch && (V == 0 || V == P)
            );
        }
        Self {
            sizes: PhantomData,
            parameters: [0.0; P],
            velocity: [0.0; V],
            scratch: [0.0; S],
            kept: [0.0; F],
            classes: [0; N],
        }
    }
}

impl<Z: NetworkSizes, const P: usize, const S: usize, const N: usize, const V: usize, const F: usize> Default
    for NetworkWorkspace<Z, P, S, N, V, F>
{
    fn default() -> Self {
        Self::new()
    }
}

impl<Z: NetworkSizes, const P: usize, const S: usize, const N: usize, const V: usize, const F: usize>
    NetworkMemory for NetworkWorkspace<Z, P, S, N, V, F>
{
    fn parts(&mut self) -> NetworkParts<'_> {
        let Self { sizes: _, parameters, velocity, scratch, kept, classes } = self;
        NetworkParts { shape: Z::SHAPE, parameters, velocity, scratch, classes, kept }
    }

    fn shape(&self) -> NetworkShape {
        Z::SHAPE
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }
}
