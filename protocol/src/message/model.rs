//! Model shapes: the kind and the sizes of the model for which a device's buffers are made.
//!
//! A model is stored in its wire format, a kind number and a row of sizes: serialising and deserialising an
//! enum of structs of arrays would cost a device half a kilobyte of flash.

use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX};

/// Model shape: its kind and its sizes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
pub struct Model {
    /// Kind of the model.
    kind: Kind,
    /// Sizes in the order of `SPEC.md`; unused entries at the end are zero.
    sizes: [u16; SIZES_MAX],
}

/// Maximum number of sizes of a model.
const SIZES_MAX: usize = CONVOLUTIONAL;

/// Number of words of a [`Model`]: its kind and its sizes.
pub const MODEL_WORDS: usize = 1 + SIZES_MAX;

/// Sizes of a model of each kind, as the functions of the same names of [`Model`] take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the arguments of the functions")]
pub enum ModelSizes {
    /// Sizes of [`Model::linear`].
    Linear { features: u16, width: u16, outputs: u16 },
    /// Sizes of [`Model::network`].
    Network { features: u16, hidden: [u16; HIDDEN_MAX], outputs: u16 },
    /// Sizes of [`Model::convolutional`].
    Convolutional {
        image: Image,
        filters: [Filters; FILTERS_MAX],
        hidden: [u16; HIDDEN_AFTER_FILTERS_MAX],
        outputs: u16,
    },
    /// Sizes of [`Model::recurrent`].
    Recurrent { steps: u16, channels: u16, cells: u16, hidden: [u16; HIDDEN_MAX], outputs: u16 },
    /// Sizes of [`Model::adapted`].
    Adapted { features: u16, rank: u16, width: u16, hidden: [u16; HIDDEN_MAX], outputs: u16, frozen: u32 },
}

/// Number of sizes of a convolutional model: image, two layers of filters, hidden layers and outputs.
const CONVOLUTIONAL: usize = 3 + 2 * FILTERS_MAX + HIDDEN_AFTER_FILTERS_MAX + 1;

/// Kind of a model. The number on the wire is the position in this enum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[repr(u8)]
enum Kind {
    Linear,
    Network,
    Convolutional,
    Recurrent,
    Adapted,
}

impl Kind {
    /// All kinds, indexed by their wire number.
    const ALL: [Self; 5] = [Self::Linear, Self::Network, Self::Convolutional, Self::Recurrent, Self::Adapted];

    /// Returns the number of sizes of this kind.
    const fn sizes(self) -> usize {
        match self {
            Self::Linear => 3,
            Self::Network => 1 + HIDDEN_MAX + 1,
            Self::Convolutional => CONVOLUTIONAL,
            Self::Recurrent => 3 + HIDDEN_MAX + 1,
            Self::Adapted => 3 + HIDDEN_MAX + 1 + 2,
        }
    }
}

/// Sizes of an image in row-major order, with the channels of a pixel adjacent. A signal is an image of
/// height one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Number of rows of pixels.
    pub height: u16,
    /// Number of pixels in a row.
    pub width: u16,
    /// Number of values of a pixel.
    pub channels: u16,
}

/// Convolutional layer with stride 1 and no padding, followed by max pooling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Number of filters; 0 for a layer that does not exist.
    pub count: u16,
    /// Height and width of a filter in pixels; only the width if the image is a signal.
    pub side: u8,
    /// Height and width of a pooling window in pixels; only the width if the image is a signal. Windows do
    /// not overlap.
    pub pool: u8,
}

impl Filters {
    /// Packs the two sides into one size: `256 side + pool`.
    const fn pack_sides(self) -> u16 {
        u16::from_be_bytes([self.side, self.pool])
    }

    /// Creates a layer from its number of filters and its packed sides.
    const fn unpack(count: u16, sides: u16) -> Self {
        let [side, pool] = sides.to_be_bytes();
        Self { count, side, pool }
    }
}

impl Model {
    /// Creates a linear model `y = W^T B^T x`: `features` is the length d of a sample, `width` the number k
    /// of columns of the representation, `outputs` the number C of outputs of the head.
    #[must_use]
    pub const fn linear(features: u16, width: u16, outputs: u16) -> Self {
        Self::from_sizes(Kind::Linear, [features, width, outputs])
    }

    /// Creates a network of dense layers with biases, a ReLU between layers, and softmax after the last
    /// layer, which is the head. `features` is the length d of a sample, `hidden` contains the widths of the
    /// hidden layers in order with zeros after the last, and `outputs` is the number C of classes.
    #[must_use]
    pub const fn network(features: u16, hidden: [u16; HIDDEN_MAX], outputs: u16) -> Self {
        let [a, b, c] = hidden;
        Self::from_sizes(Kind::Network, [features, a, b, c, outputs])
    }

    /// Creates a network that begins with convolutional layers on an `image`, each followed by ReLU and max
    /// pooling. Unused entries of `filters` have a count of zero. Dense layers follow as in a
    /// [network](Self::network).
    #[must_use]
    pub const fn convolutional(
        image: Image,
        filters: [Filters; FILTERS_MAX],
        hidden: [u16; HIDDEN_AFTER_FILTERS_MAX],
        outputs: u16,
    ) -> Self {
        let Image { height, width, channels } = image;
        let [first, second] = filters;
        let [a, b] = hidden;
        Self::from_sizes(
            Kind::Convolutional,
            [
                height,
                width,
                channels,
                first.count,
                first.pack_sides(),
                second.count,
                second.pack_sides(),
                a,
                b,
                outputs,
            ],
        )
    }

    /// Creates a network that begins with an LSTM of `cells` cells over a sequence of `steps` steps with
    /// `channels` values each. The last hidden state is the input, without ReLU, of dense layers as in a
    /// [network](Self::network).
    #[must_use]
    pub const fn recurrent(
        steps: u16,
        channels: u16,
        cells: u16,
        hidden: [u16; HIDDEN_MAX],
        outputs: u16,
    ) -> Self {
        let [a, b, c] = hidden;
        Self::from_sizes(Kind::Recurrent, [steps, channels, cells, a, b, c, outputs])
    }

    /// Creates a network whose first layer, with `width` outputs, is frozen and has a trainable adapter of
    /// rank r (LoRA, Hu et al. 2022). The layer computes `x (W0 + A B)` plus a bias, where A is `features` x
    /// r and B is r x `width`. A ReLU and dense layers follow as in a [network](Self::network). `frozen` is
    /// the CRC-32C of the frozen weights as stored in the device's flash, or zero if there are no frozen
    /// weights.
    #[must_use]
    pub const fn adapted(
        features: u16,
        rank: u16,
        width: u16,
        hidden: [u16; HIDDEN_MAX],
        outputs: u16,
        frozen: u32,
    ) -> Self {
        let [a, b, c] = hidden;
        let (high, low) = ((frozen >> 16) as u16, frozen as u16);
        Self::from_sizes(Kind::Adapted, [features, rank, width, a, b, c, outputs, high, low])
    }

    /// Returns the number of values of a sample.
    #[must_use]
    pub fn features(&self) -> usize {
        let product_of_first =
            |count: usize| self.used_sizes().iter().take(count).map(|size| usize::from(*size)).product();
        match self.kind {
            Kind::Linear | Kind::Network | Kind::Adapted => product_of_first(1),
            Kind::Convolutional => product_of_first(3),
            Kind::Recurrent => product_of_first(2),
        }
    }

    /// Returns the number of outputs of the head.
    #[must_use]
    pub fn outputs(&self) -> usize {
        let last = match (self.kind, self.used_sizes()) {
            (Kind::Adapted, [row @ .., _, _]) => row.last(),
            (_, row) => row.last(),
        };
        last.map_or(0, |size| usize::from(*size))
    }

    /// Returns the sizes of the model.
    #[must_use]
    pub const fn sizes(&self) -> ModelSizes {
        let [a, b, c, d, e, f, g, h, i, j] = self.sizes;
        match self.kind {
            Kind::Linear => ModelSizes::Linear { features: a, width: b, outputs: c },
            Kind::Network => ModelSizes::Network { features: a, hidden: [b, c, d], outputs: e },
            Kind::Convolutional => ModelSizes::Convolutional {
                image: Image { height: a, width: b, channels: c },
                filters: [Filters::unpack(d, e), Filters::unpack(f, g)],
                hidden: [h, i],
                outputs: j,
            },
            Kind::Recurrent => {
                ModelSizes::Recurrent { steps: a, channels: b, cells: c, hidden: [d, e, f], outputs: g }
            }
            Kind::Adapted => ModelSizes::Adapted {
                features: a,
                rank: b,
                width: c,
                hidden: [d, e, f],
                outputs: g,
                frozen: (h as u32) << 16 | i as u32,
            },
        }
    }

    /// Returns the number of the kind and the sizes, with zeros at the end: the form in which a file contains
    /// a model.
    #[must_use]
    pub fn words(&self) -> [u16; MODEL_WORDS] {
        let mut words = [self.kind as u16; MODEL_WORDS];
        for (word, size) in words.iter_mut().skip(1).zip(self.sizes) {
            *word = size;
        }
        words
    }

    /// Creates a model from its [words](Self::words). Returns `None` if the kind is unknown, or if a word
    /// after the sizes is not zero.
    #[must_use]
    pub fn from_words(words: [u16; MODEL_WORDS]) -> Option<Self> {
        let [kind, sizes @ ..] = words;
        let kind = *Kind::ALL.get(usize::from(kind))?;
        let has_zeros = sizes.iter().skip(kind.sizes()).all(|size| *size == 0);
        has_zeros.then_some(Self { kind, sizes })
    }

    /// Creates a model from its kind and sizes.
    const fn from_sizes<const N: usize>(kind: Kind, values: [u16; N]) -> Self {
        let mut sizes = [0; SIZES_MAX];
        sizes.split_at_mut(N).0.copy_from_slice(&values);
        Self { kind, sizes }
    }

    /// Returns the sizes that the kind uses.
    fn used_sizes(&self) -> &[u16] {
        self.sizes.get(..self.kind.sizes()).unwrap_or_default()
    }
}

impl Serialize for Model {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.used_sizes();
        let mut tuple = serializer.serialize_tuple(1 + row.len())?;
        tuple.serialize_element(&u16::from(self.kind as u8))?;
        for size in row {
            tuple.serialize_element(size)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(1 + SIZES_MAX, ModelVisitor)
    }
}

/// Reads a model from its kind number and sizes.
struct ModelVisitor;

impl<'de> Visitor<'de> for ModelVisitor {
    type Value = Model;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a model kind and its sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Model, A::Error> {
        let mut next =
            || values.next_element::<u16>()?.ok_or_else(|| A::Error::custom("the model has too few sizes"));
        let kind = usize::from(next()?);
        let kind = *Kind::ALL.get(kind).ok_or_else(|| A::Error::custom("unknown kind of model"))?;
        let mut sizes = [0; SIZES_MAX];
        for size in sizes.iter_mut().take(kind.sizes()) {
            *size = next()?;
        }
        Ok(Model { kind, sizes })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:?})", self.kind, self.used_sizes())
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.used_sizes()) {
            (Kind::Linear, [features, width, outputs]) => {
                write!(f, "linear, d = {features}, k = {width}, outputs = {outputs}")
            }
            (Kind::Network, [features, dense @ ..]) => {
                write!(f, "a network of {features}")?;
                write_widths(f, dense)
            }
            (
                Kind::Convolutional,
                [height, width, channels, first, first_sides, second, second_sides, dense @ ..],
            ) => {
                write!(f, "a network of {height}x{width}x{channels}")?;
                for (count, sides) in [(first, first_sides), (second, second_sides)] {
                    let Filters { side, pool, .. } = Filters::unpack(*count, *sides);
                    if *count > 0 {
                        write!(f, "-{count} filters of side {side} pooled by {pool}")?;
                    }
                }
                write_widths(f, dense)
            }
            (Kind::Recurrent, [steps, channels, cells, dense @ ..]) => {
                write!(f, "a network of {steps}x{channels}-{cells} cells")?;
                write_widths(f, dense)
            }
            (Kind::Adapted, [features, rank, width, dense @ .., high, low]) => {
                write!(f, "a network of {features}-{width} with an adapter of rank {rank}")?;
                write_widths(f, dense)?;
                write!(f, ", frozen {:#010x}", u32::from(*high) << 16 | u32::from(*low))
            }
            // Unreachable, because the number of sizes follows from the kind.
            _ => Ok(()),
        }
    }
}

/// Writes the widths of dense layers, each after a hyphen.
fn write_widths(f: &mut fmt::Formatter<'_>, dense: &[u16]) -> fmt::Result {
    dense.iter().filter(|width| **width > 0).try_for_each(|width| write!(f, "-{width}"))
}
