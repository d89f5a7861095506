//! Memory of a network: the network's sizes, and its buffers, owned by the caller.

use core::marker::PhantomData;
use core::ops::Range;

use fedspan_protocol::limits::HIDDEN_MAX;
#[cfg(feature = "convolution")]
use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX};
#[cfg(feature = "convolution")]
use fedspan_protocol::message::{Filters, Image};

use super::FrontEnd;
use crate::kernel::Layer;
#[cfg(feature = "adapter")]
use crate::kernel::frozen::Frozen;
#[cfg(feature = "recurrent")]
use crate::kernel::recurrent::Lstm;
use crate::pace::Pace;

/// Sizes of a network: a [front end](FrontEnd), then dense layers. A ReLU follows each layer except the last,
/// which is the head.
///
/// A layer is a row-major matrix with the bias in its last row ([`Layer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkShape {
    /// Number of features d: the length of a sample.
    pub features: usize,
    /// Layers before the dense layers.
    pub front_end: FrontEnd,
    /// Widths of the hidden dense layers; unused entries at the end are zero.
    pub hidden: [usize; HIDDEN_MAX],
    /// Number of classes C.
    pub outputs: usize,
    /// Maximum number of samples in a batch.
    pub batch: usize,
}

impl NetworkShape {
    /// Creates a network of dense layers whose batches have at most `batch` samples.
    ///
    /// ```
    /// use fedspan_client::memory::NetworkShape;
    ///
    /// const SHAPE: NetworkShape = NetworkShape::new(64, &[32], 7, 10);
    /// assert_eq!((SHAPE.layers(), SHAPE.parameters()), (2, 65 * 32 + 33 * 7));
    /// ```
    ///
    /// # Panics
    /// Panics (at compile time, if the shape is a constant) if there are more hidden layers than
    /// [`HIDDEN_MAX`], if a size is zero, or if a layer has more than 65534 inputs or 65535 outputs, which
    /// the protocol cannot describe.
    #[must_use]
    pub const fn new(features: usize, hidden: &[usize], outputs: usize, batch: usize) -> Self {
        let shape = Self::unchecked(features, hidden, outputs, batch);
        shape.assert_describable();
        shape
    }

    /// Creates a shape like [`Self::new`], but without the check of the layers' sizes, which the caller does
    /// after setting the front end.
    const fn unchecked(features: usize, hidden: &[usize], outputs: usize, batch: usize) -> Self {
        assert!(hidden.len() <= HIDDEN_MAX && features >= 1 && outputs >= 1 && batch >= 1);
        let mut widths = [0; HIDDEN_MAX];
        let mut layer = 0;
        while layer < hidden.len() {
            assert!(hidden[layer] >= 1);
            widths[layer] = hidden[layer];
            layer += 1;
        }
        Self { features, front_end: FrontEnd::Nothing, hidden: widths, outputs, batch }
    }

    /// Creates a network that begins with convolutional layers.
    ///
    /// ```
    /// use fedspan_client::memory::NetworkShape;
    /// use fedspan_protocol::message::{Filters, Image};
    ///
    /// // LeNet-5 (LeCun et al. 1998) with the sizes of Collins et al. 2021.
    /// const IMAGE: Image = Image { height: 32, width: 32, channels: 3 };
    /// const FILTERS: [Filters; 2] = [Filters { count: 64, side: 5, pool: 2 }; 2];
    /// const LENET: NetworkShape = NetworkShape::convolutional(IMAGE, &FILTERS, &[120, 64], 10, 10);
    /// assert_eq!((LENET.layers(), LENET.layer(2).inputs()), (5, 5 * 5 * 64));
    ///
    /// // 25 steps of six channels, 8 filters over 5 steps: 21 positions, pooled to 10. A batch of 10 takes 21 kB.
    /// const MOTION: Image = Image { height: 1, width: 25, channels: 6 };
    /// const SMALL: NetworkShape =
    ///     NetworkShape::convolutional(MOTION, &[Filters { count: 8, side: 5, pool: 2 }], &[], 7, 10);
    /// let (o, p, q, f) = (80, 30, 21, 8);
    /// assert_eq!(SMALL.scratch(), 10 * (150 + o + 7 + 2 * o) + q * (p + f) + (p + 1) * f);
    /// assert_eq!(SMALL.bytes(), 10 * (1 + o));
    /// ```
    ///
    /// # Panics
    /// Panics (at compile time, if the shape is a constant) for the reasons of [`Self::new`], if there are no
    /// convolutional layers or more than [`FILTERS_MAX`], if more than [`HIDDEN_AFTER_FILTERS_MAX`] hidden
    /// layers follow, if the convolutional layers have no output, or if a layer has more than 65534 inputs.
    #[cfg(feature = "convolution")]
    #[must_use]
    pub const fn convolutional(
        image: Image,
        filters: &[Filters],
        hidden: &[usize],
        outputs: usize,
        batch: usize,
    ) -> Self {
        assert!(
            !filters.is_empty() && filters.len() <= FILTERS_MAX && hidden.len() <= HIDDEN_AFTER_FILTERS_MAX
        );
        let features = image.height as usize * image.width as usize * image.channels as usize;
        let mut all_filters = [Filters { count: 0, side: 0, pool: 0 }; FILTERS_MAX];
        let mut layer = 0;
        while layer < filters.len() {
            assert!(filters[layer].count >= 1);
            all_filters[layer] = filters[layer];
            layer += 1;
        }
        let mut shape = Self::unchecked(features, hidden, outputs, batch);
        shape.front_end = FrontEnd::Filters { image, filters: all_filters };
        assert!(shape.layer(layer - 1).outputs() >= 1);
        shape.assert_describable();
        shape
    }

    /// Creates a network that begins with an LSTM, whose last hidden state is the input of the first dense
    /// layer.
    ///
    /// ```
    /// use fedspan_client::kernel::recurrent::Lstm;
    /// use fedspan_client::memory::NetworkShape;
    ///
    /// const CELLS: Lstm = Lstm { steps: 25, channels: 6, cells: 8 };
    /// const SHAPE: NetworkShape = NetworkShape::recurrent(CELLS, &[], 7, 10);
    /// assert_eq!(SHAPE.scratch(), 10 * (150 + 8 + 7 + 2 * 8) + CELLS.memory(10));
    /// ```
    ///
    /// # Panics
    /// Panics (at compile time, if the shape is a constant) for the reasons of [`Self::new`], or if there are
    /// no cells, more than 65535 steps, or a layer with more than 65534 inputs.
    #[cfg(feature = "recurrent")]
    #[must_use]
    pub const fn recurrent(cells: Lstm, hidden: &[usize], outputs: usize, batch: usize) -> Self {
        assert!(cells.cells >= 1 && cells.steps <= u16::MAX as usize);
        let mut shape = Self::unchecked(cells.inputs(), hidden, outputs, batch);
        shape.front_end = FrontEnd::Lstm(cells);
        shape.assert_describable();
        shape
    }

    /// Creates a network whose first layer, with `width` outputs, is frozen and has a trainable adapter of
    /// rank r (LoRA, Hu et al. 2022): the layer computes `x W0 + (x A) B`, where A is d x r and B is r x
    /// width. A ReLU and the other layers follow.
    ///
    /// ```
    /// use fedspan_client::memory::NetworkShape;
    ///
    /// // 64 features, a layer of 64, rank 4, 7 classes: the trainable factors take 2 kB, and the layer is in flash.
    /// const SHAPE: NetworkShape = NetworkShape::adapted(64, 4, 64, &[], 7, 10);
    /// assert_eq!((SHAPE.layers(), SHAPE.start(2)), (3, 64 * 4 + 4 * 64));
    /// assert_eq!(SHAPE.scratch(), 10 * (64 + 4 + 64 + 7 + 2 * 64));
    /// ```
    ///
    /// # Panics
    /// Panics (at compile time, if the shape is a constant) for the reasons of [`Self::new`], or if the rank
    /// or the width is zero, or a factor has more than 65535 inputs.
    #[cfg(feature = "adapter")]
    #[must_use]
    pub const fn adapted(
        features: usize,
        rank: usize,
        width: usize,
        hidden: &[usize],
        outputs: usize,
        batch: usize,
    ) -> Self {
        assert!(rank >= 1 && width >= 1 && hidden.len() < HIDDEN_MAX);
        let mut shape = Self::unchecked(features, hidden, outputs, batch);
        shape.front_end = FrontEnd::Adapter { features, rank, width };
        shape.assert_describable();
        shape
    }

    /// Returns true if the network begins with an adapter, whose two factors are then the first two layers.
    #[must_use]
    pub const fn is_adapted(&self) -> bool {
        #[cfg(feature = "adapter")]
        if matches!(self.front_end, FrontEnd::Adapter { .. }) {
            return true;
        }
        false
    }

    /// Panics if a layer is larger than a tensor descriptor can express.
    const fn assert_describable(&self) {
        let mut layer = 0;
        while layer < self.layers() {
            let layer_shape = self.layer(layer);
            assert!(layer_shape.rows() <= u16::MAX as usize && layer_shape.matrix().1 <= u16::MAX as usize);
            layer += 1;
        }
    }

    /// Returns the number of layers, including the head.
    #[must_use]
    pub const fn layers(&self) -> usize {
        let mut count = 0;
        while count < HIDDEN_MAX && self.hidden[count] > 0 {
            count += 1;
        }
        self.front_end.layers() + count + 1
    }

    /// Returns layer number `layer`; a layer without inputs and outputs if `layer` is beyond the last.
    #[must_use]
    pub const fn layer(&self, layer: usize) -> Layer {
        let (front, last) = (self.front_end.layers(), self.layers() - 1);
        if layer > last {
            return Layer::Dense { inputs: 0, outputs: 0 };
        }
        if layer < front {
            return self.front_end.layer(layer);
        }
        let inputs = match layer - front {
            0 if front == 0 => self.features,
            0 => self.front_end.layer(front - 1).outputs(),
            before => self.width_of(before - 1),
        };
        Layer::Dense {
            inputs,
            outputs: if layer == last { self.outputs } else { self.width_of(layer - front) },
        }
    }

    /// Returns the width of hidden dense layer number `layer`; 0 if it does not exist.
    const fn width_of(&self, layer: usize) -> usize {
        if layer < HIDDEN_MAX { self.hidden[layer] } else { 0 }
    }

    /// Returns the index of a layer's first value among the parameters.
    #[must_use]
    pub const fn start(&self, layer: usize) -> usize {
        let mut start = 0;
        let mut before = 0;
        while before < layer {
            start += self.layer(before).parameters();
            before += 1;
        }
        start
    }

    /// Returns the index range of these layers among the parameters.
    #[must_use]
    pub const fn range(&self, layers: Range<usize>) -> Range<usize> {
        self.start(layers.start)..self.start(layers.end)
    }

    /// Returns the number of weights and biases of all layers.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.start(self.layers())
    }
}

/// All buffers of one network. [`crate::task`] defines the content of the buffers.
#[derive(Debug)]
pub struct NetworkParts<'a> {
    /// Sizes of the buffers.
    pub shape: NetworkShape,
    /// Parameters of all layers, layer by layer.
    pub parameters: &'a mut [f32],
    /// Velocity of SGD with momentum, with the length of the parameters; empty without momentum.
    pub velocity: &'a mut [f32],
    /// Working memory, [`NetworkShape::scratch`] values.
    pub scratch: &'a mut [f32],
    /// Classes of a batch.
    pub classes: &'a mut [u8],
    /// Indices of the maxima in pooling windows; `classes` and `pool_indices` together have
    /// [`NetworkShape::bytes`] bytes.
    pub pool_indices: &'a mut [u8],
    /// Outputs of the body for every sample of the device, if there is memory
    /// ([`NetworkShape::body_cache_len`]): epochs of the head then read no samples and do not recompute the
    /// body. The result is bit-identical.
    pub body_cache: &'a mut [f32],
    /// Pauses within computations; [`Pace::NONE`] unless the memory is [`Paced`](crate::pace::Paced).
    pub pace: Pace<'a>,
    /// Frozen layer that the adapter belongs to.
    #[cfg(feature = "adapter")]
    pub frozen: Frozen<'a>,
}

/// Memory of one network.
pub trait NetworkMemory {
    /// Returns all buffers, with the lengths of the shape.
    fn parts(&mut self) -> NetworkParts<'_>;

    /// Returns the sizes of the network.
    fn shape(&self) -> NetworkShape;

    /// Returns the parameters of all layers.
    fn parameters(&self) -> &[f32];

    /// Returns the pauses of computations, which are those of [`Self::parts`].
    fn pace(&self) -> Pace<'_> {
        Pace::NONE
    }

    /// Returns the frozen layer that the adapter belongs to.
    #[cfg(feature = "adapter")]
    fn frozen(&self) -> Frozen<'_> {
        Frozen::Nothing
    }
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

    fn pace(&self) -> Pace<'_> {
        (**self).pace()
    }

    #[cfg(feature = "adapter")]
    fn frozen(&self) -> Frozen<'_> {
        (**self).frozen()
    }
}

/// Sizes of a network as a type, so that zeroed memory takes no flash.
pub trait NetworkSizes {
    /// Sizes of the network.
    const SHAPE: NetworkShape;

    /// Frozen layer that the adapter belongs to, if the network has an adapter. A constant is placed in
    /// flash.
    #[cfg(feature = "adapter")]
    const FROZEN: Frozen<'static> = Frozen::Nothing;
}

/// Memory for a network with `P` parameters, `S` values of working memory, and `N` bytes for a batch (one per
/// sample; more with convolutional layers, see [`NetworkShape::bytes`]). `V` is the number of values of
/// velocity: `P` with momentum, 0 without. `F` additional values ([`NetworkShape::body_cache_len`]) cache the
/// outputs of the body during the epochs of the head. The size of this type is the RAM of the whole model:
/// `4 (P + V + S + F) + N` bytes, where `S = N (d + sum of h + C + 2 w)` for hidden widths h, and w is the
/// largest of the widths and C.
///
/// A convolutional layer with f filters on patches of p values and o outputs counts as width o, and adds `o`
/// bytes for each sample of a batch. The largest scratch memory of a convolutional layer,
/// `q (p + f) + (p + 1) f` values, is added to `S`; here q is the number of positions that become one row of
/// outputs. An LSTM counts as its number of cells, and adds
#[cfg_attr(feature = "recurrent", doc = "[`Lstm::memory`]")]
#[cfg_attr(not(feature = "recurrent"), doc = "`Lstm::memory`")]
/// values to `S` for the sequences of a batch.
///
/// An adapter of rank r on a layer of d x o counts as two widths, r and o, and its factors as `r (d + o)`
/// parameters. The frozen layer is in flash ([`NetworkSizes`]) and takes `4 (d + 1) o` bytes as f32 or
/// `d o + 8 o` as i8.
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
    body_cache: [f32; F],
    bytes: [u8; N],
}

impl<Z: NetworkSizes, const P: usize, const S: usize, const N: usize, const V: usize, const F: usize>
    NetworkWorkspace<Z, P, S, N, V, F>
{
    /// Creates zeroed memory; can be called in a `const` context. Does not compile if the numbers do not
    /// match the sizes.
    #[must_use]
    pub const fn new() -> Self {
        const {
            let shape = Z::SHAPE;
            assert!(
                P == shape.parameters() && S == shape.scratch() && N == shape.bytes() && (V == 0 || V == P)
            );
        }
        Self {
            sizes: PhantomData,
            parameters: [0.0; P],
            velocity: [0.0; V],
            scratch: [0.0; S],
            body_cache: [0.0; F],
            bytes: [0; N],
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
        let Self { sizes: _, parameters, velocity, scratch, body_cache, bytes } = self;
        let (classes, pool_indices) = bytes.split_at_mut_checked(Z::SHAPE.batch).unwrap_or_default();
        NetworkParts {
            shape: Z::SHAPE,
            parameters,
            velocity,
            scratch,
            classes,
            pool_indices,
            body_cache,
            pace: Pace::NONE,
            #[cfg(feature = "adapter")]
            frozen: Z::FROZEN,
        }
    }

    fn shape(&self) -> NetworkShape {
        Z::SHAPE
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    #[cfg(feature = "adapter")]
    fn frozen(&self) -> Frozen<'_> {
        Z::FROZEN
    }
}
