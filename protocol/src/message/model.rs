//! What a device's buffers are made for.
//!
//! In memory as on the wire a model is the number of its kind and a row of sizes: an enum of structs of arrays would take
//! a device half a kilobyte of flash to read and write.

use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX};

/// The model that a device's buffers are made for: its kind and its sizes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Model {
    kind: Kind,
    /// In the order that `SPEC.md` has; zeros after the last.
    sizes: [u16; SIZES_MAX],
}

/// Sizes of a model, at most.
const SIZES_MAX: usize = CONVOLUTIONAL;

/// Sizes of an image, two layers of filters, hidden layers and outputs.
const CONVOLUTIONAL: usize = 3 + 2 * FILTERS_MAX + HIDDEN_AFTER_FILTERS_MAX + 1;

/// What the sizes are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Linear,
    Network,
    Convolutional,
    Recurrent,
    Adapted,
}

impl Kind {
    /// In the order of their numbers.
    const ALL: [Self; 5] = [Self::Linear, Self::Network, Self::Convolutional, Self::Recurrent, Self::Adapted];

    /// How many sizes it has.
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

/// Sizes of an image: row-major, the channels of a pixel side by side. A signal has a height of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Rows of pixels.
    pub height: u16,
    /// Pixels of a row.
    pub width: u16,
    /// Values of a pixel.
    pub channels: u16,
}

/// A layer of filters that move on by one pixel, without padding, and the pooling of what they make of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// How many there are.
    pub count: u16,
    /// A filter sees so many pixels of so many rows; of a signal, its one row.
    pub side: u8,
    /// Of so many pixels of so many rows, side by side, the largest value of each filter is kept. Of a signal, of its one
    /// row.
    pub pool: u8,
}

impl Filters {
    /// What a filter sees, times 256, and what is pooled.
    const fn window(self) -> u16 {
        u16::from_be_bytes([self.side, self.pool])
    }
}

impl Model {
    /// `y = W^T B^T x`: `features` d of a sample, `width` k of the representation, `outputs` C of the head.
    #[must_use]
    pub const fn linear(features: u16, width: u16, outputs: u16) -> Self {
        Self::of(Kind::Linear, [features, width, outputs])
    }

    /// Dense layers with biases, ReLU between them, softmax after the last, which is the head: `features` d of a sample,
    /// widths of the `hidden` layers in their order with zeros after the last, `outputs` C.
    #[must_use]
    pub const fn network(features: u16, hidden: [u16; HIDDEN_MAX], outputs: u16) -> Self {
        let [a, b, c] = hidden;
        Self::of(Kind::Network, [features, a, b, c, outputs])
    }

    /// `filters` that move over an `image`, ReLU and a pooling after each; those after the last have a count of zero. Then
    /// as a [network](Self::network).
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
        Self::of(
            Kind::Convolutional,
            [
                height,
                width,
                channels,
                first.count,
                first.window(),
                second.count,
                second.window(),
                a,
                b,
                outputs,
            ],
        )
    }

    /// Long short-term memory of `cells` values that goes along a sequence of `steps` steps of `channels` values; its hidden
    /// state after the last step, which has no ReLU, goes into dense layers as in a [network](Self::network).
    #[must_use]
    pub const fn recurrent(
        steps: u16,
        channels: u16,
        cells: u16,
        hidden: [u16; HIDDEN_MAX],
        outputs: u16,
    ) -> Self {
        let [a, b, c] = hidden;
        Self::of(Kind::Recurrent, [steps, channels, cells, a, b, c, outputs])
    }

    /// A layer of `width` outputs that stays as it is, with an adapter of `rank` r that learns (LoRA, Hu et al. 2022): `x (W0 + A B)`
    /// plus a bias, A `features` x r, B r x `width`; then ReLU and dense layers as in a [network](Self::network). `frozen` is
    /// the CRC-32C of the weights that stay, as their bytes lie in a device's flash; zero where there are none.
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
        Self::of(Kind::Adapted, [features, rank, width, a, b, c, outputs, high, low])
    }

    /// Values of a sample.
    #[must_use]
    pub fn features(&self) -> usize {
        let of = |count: usize| self.row().iter().take(count).map(|size| usize::from(*size)).product();
        match self.kind {
            Kind::Linear | Kind::Network | Kind::Adapted => of(1),
            Kind::Convolutional => of(3),
            Kind::Recurrent => of(2),
        }
    }

    /// Outputs of the head.
    #[must_use]
    pub fn outputs(&self) -> usize {
        let last = match (self.kind, self.row()) {
            (Kind::Adapted, [row @ .., _, _]) => row.last(),
            (_, row) => row.last(),
        };
        last.map_or(0, |size| usize::from(*size))
    }

    const fn of<const N: usize>(kind: Kind, given: [u16; N]) -> Self {
        let mut sizes = [0; SIZES_MAX];
        sizes.split_at_mut(N).0.copy_from_slice(&given);
        Self { kind, sizes }
    }

    /// Those that its kind has.
    fn row(&self) -> &[u16] {
        self.sizes.get(..self.kind.sizes()).unwrap_or_default()
    }
}

impl Serialize for Model {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.row();
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

struct ModelVisitor;

impl<'de> Visitor<'de> for ModelVisitor {
    type Value = Model;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a model and its sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Model, A::Error> {
        let mut next = || values.next_element::<u16>()?.ok_or_else(|| A::Error::custom("sizes are missing"));
        let kind = usize::from(next()?);
        let kind = *Kind::ALL.get(kind).ok_or_else(|| A::Error::custom("no such model"))?;
        let mut sizes = [0; SIZES_MAX];
        for size in sizes.iter_mut().take(kind.sizes()) {
            *size = next()?;
        }
        Ok(Model { kind, sizes })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:?})", self.kind, self.row())
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.row()) {
            (Kind::Linear, [features, width, outputs]) => {
                write!(f, "linear, d = {features}, k = {width}, outputs = {outputs}")
            }
            (Kind::Network, [features, dense @ ..]) => {
                write!(f, "a network of {features}")?;
                widths(f, dense)
            }
            (Kind::Convolutional, [height, width, channels, first, seen, second, then_seen, dense @ ..]) => {
                write!(f, "a network of {height}x{width}x{channels}")?;
                for (count, seen) in [(first, seen), (second, then_seen)] {
                    let [side, pool] = seen.to_be_bytes();
                    if *count > 0 {
                        write!(f, "-{count} filters of side {side} pooled by {pool}")?;
                    }
                }
                widths(f, dense)
            }
            (Kind::Recurrent, [steps, channels, cells, dense @ ..]) => {
                write!(f, "a network of {steps}x{channels}-{cells} cells")?;
                widths(f, dense)
            }
            (Kind::Adapted, [features, rank, width, dense @ .., high, low]) => {
                write!(f, "a network of {features}-{width} with an adapter of rank {rank}")?;
                widths(f, dense)?;
                write!(f, ", frozen {:#010x}", u32::from(*high) << 16 | u32::from(*low))
            }
            // Rows have the sizes of their kind.
            _ => Ok(()),
        }
    }
}

/// The widths of dense layers, each after a hyphen.
fn widths(f: &mut fmt::Formatter<'_>, dense: &[u16]) -> fmt::Result {
    dense.iter().filter(|width| **width > 0).try_for_each(|width| write!(f, "-{width}"))
}
