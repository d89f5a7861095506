//! What a device's buffers are made for.
//!
//! On the wire a model is its number and a row of sizes: written by hand, since what serde derives for enums of structs of
//! arrays takes 0.9 kB of a device's flash.

use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX};

/// The model that a device's buffers are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Model {
    /// `y = W^T B^T x`.
    Linear {
        /// `d`, length of a sample.
        features: u16,
        /// `k`, columns of the representation.
        width: u16,
        /// `C`, outputs of the head.
        outputs: u16,
    },
    /// Dense layers with biases, ReLU between them, softmax after the last, which is the head.
    Network {
        /// `d`, length of a sample.
        features: u16,
        /// Widths of the hidden layers in their order; zeros after the last.
        hidden: [u16; HIDDEN_MAX],
        /// `C`, classes.
        outputs: u16,
    },
    /// Filters that move over an image, ReLU and a pooling after each; then as a [`Network`](Self::Network).
    Convolutional {
        /// What a sample is.
        image: Image,
        /// In their order; those after the last have a count of zero.
        filters: [Filters; FILTERS_MAX],
        /// Widths of the hidden dense layers in their order; zeros after the last.
        hidden: [u16; HIDDEN_AFTER_FILTERS_MAX],
        /// `C`, classes.
        outputs: u16,
    },
    /// Long short-term memory that goes along a sequence; its hidden state after the last step, which has no ReLU, goes into
    /// dense layers as in a [`Network`](Self::Network).
    Recurrent {
        /// Steps of a sequence.
        steps: u16,
        /// Values of a step.
        channels: u16,
        /// Values of the hidden state.
        cells: u16,
        /// Widths of the hidden dense layers in their order; zeros after the last.
        hidden: [u16; HIDDEN_MAX],
        /// `C`, classes.
        outputs: u16,
    },
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

/// Sizes of a model, at most.
const SIZES_MAX: usize = 3 + 3 * FILTERS_MAX + HIDDEN_AFTER_FILTERS_MAX + 1;

/// A model as it is on the wire.
struct Row {
    /// Number of the variant.
    kind: u16,
    /// In the order of the fields; zeros after the last.
    sizes: [u16; SIZES_MAX],
}

impl Row {
    /// How many sizes the variant of number `kind` has.
    const fn length(kind: u16) -> Option<usize> {
        match kind {
            0 => Some(3),
            1 => Some(1 + HIDDEN_MAX + 1),
            2 => Some(SIZES_MAX),
            3 => Some(3 + HIDDEN_MAX + 1),
            _ => None,
        }
    }

    fn new<const N: usize>(kind: u16, given: [u16; N]) -> Self {
        let mut sizes = [0; SIZES_MAX];
        for (size, given) in sizes.iter_mut().zip(given) {
            *size = given;
        }
        Self { kind, sizes }
    }
}

impl From<&Model> for Row {
    fn from(model: &Model) -> Self {
        match *model {
            Model::Linear { features, width, outputs } => Self::new(0, [features, width, outputs]),
            Model::Network { features, hidden: [a, b, c], outputs } => {
                Self::new(1, [features, a, b, c, outputs])
            }
            Model::Convolutional { image, filters: [first, second], hidden: [a, b], outputs } => {
                let Image { height, width, channels } = image;
                let [(n, side, pool), (m, wide, over)] =
                    [first, second].map(|filters| (filters.count, filters.side.into(), filters.pool.into()));
                Self::new(2, [height, width, channels, n, side, pool, m, wide, over, a, b, outputs])
            }
            Model::Recurrent { steps, channels, cells, hidden: [a, b, c], outputs } => {
                Self::new(3, [steps, channels, cells, a, b, c, outputs])
            }
        }
    }
}

impl TryFrom<Row> for Model {
    /// A size that no model has.
    type Error = ();

    fn try_from(Row { kind, sizes }: Row) -> Result<Self, ()> {
        let [p, q, r, s, t, u, v, w, x, y, z, last] = sizes;
        let filters = |count, side, pool| match (u8::try_from(side), u8::try_from(pool)) {
            (Ok(side), Ok(pool)) => Ok(Filters { count, side, pool }),
            _ => Err(()),
        };
        Ok(match kind {
            0 => Self::Linear { features: p, width: q, outputs: r },
            1 => Self::Network { features: p, hidden: [q, r, s], outputs: t },
            2 => Self::Convolutional {
                image: Image { height: p, width: q, channels: r },
                filters: [filters(s, t, u)?, filters(v, w, x)?],
                hidden: [y, z],
                outputs: last,
            },
            3 => Self::Recurrent { steps: p, channels: q, cells: r, hidden: [s, t, u], outputs: v },
            _ => return Err(()),
        })
    }
}

impl Serialize for Model {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = Row::from(self);
        let length = Row::length(row.kind).unwrap_or(0);
        let mut tuple = serializer.serialize_tuple(1 + length)?;
        tuple.serialize_element(&row.kind)?;
        for size in row.sizes.iter().take(length) {
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
        f.write_str("a model")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Model, A::Error> {
        let mut next = || values.next_element()?.ok_or_else(|| A::Error::custom("a model ends early"));
        let kind = next()?;
        let length = Row::length(kind).ok_or_else(|| A::Error::custom("no such model"))?;
        let mut sizes = [0; SIZES_MAX];
        for size in sizes.iter_mut().take(length) {
            *size = next()?;
        }
        Model::try_from(Row { kind, sizes }).map_err(|()| A::Error::custom("no such size"))
    }
}
