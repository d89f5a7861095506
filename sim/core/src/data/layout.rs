//! What the values of a row are, for models that have to know: networks with biases, convolutions.

use std::sync::Arc;

use fedspan_engine::config::Shape as Sizes;
use fedspan_protocol::message::Image;

use super::{Client, Dataset, Set};

/// What the values of a row are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// How they are arranged, where they are; the constant comes after.
    pub shape: Option<Shape>,
    /// The last value of every row is a constant 1: the bias of a linear model.
    pub constant: bool,
}

/// How values are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An image, row by row: all channels of one pixel stand together.
    Image {
        /// Colours.
        channels: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// A series in time, step by step: all channels of one step stand together.
    Series {
        /// In time.
        steps: usize,
        /// Values of one.
        channels: usize,
    },
}

impl Shape {
    /// As devices are told of it: a series is an image of one row. `None` for what is larger than any that they can have.
    #[must_use]
    pub fn image(self) -> Option<Image> {
        let [height, width, channels] = match self {
            Self::Image { channels, height, width } => [height, width, channels],
            Self::Series { steps, channels } => [1, steps, channels],
        };
        let small = |n: usize| u16::try_from(n).ok();
        Some(Image { height: small(height)?, width: small(width)?, channels: small(channels)? })
    }

    /// How many values.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Image { channels, height, width } => channels * height * width,
            Self::Series { steps, channels } => steps * channels,
        }
    }

    /// None.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Dataset {
    /// What an engine has to know of the samples. They have an image where a row is that and nothing else.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let shape = self.layout.shape.filter(|shape| shape.len() == self.features);
        Sizes { features: self.features, outputs: self.outputs, image: shape.and_then(Shape::image) }
    }

    /// The same samples without the constant at their end, where they have one: for models with biases of their own.
    /// Test sets that clients share stay shared.
    #[must_use]
    pub fn without_constant(mut self) -> Self {
        if !self.layout.constant || self.features == 0 {
            return self;
        }
        let d = self.features;
        // By address, which nothing frees while its set is held.
        let mut cut: Vec<(Arc<Set>, Arc<Set>)> = Vec::new();
        let mut shared = |set: &mut Arc<Set>| {
            if let Some((_, short)) = cut.iter().find(|(whole, _)| Arc::ptr_eq(whole, set)) {
                *set = Arc::clone(short);
                return;
            }
            let short = Arc::new(shortened(set, d));
            // One that nobody else holds cannot come again.
            if Arc::strong_count(set) > 1 {
                cut.push((Arc::clone(set), Arc::clone(&short)));
            }
            *set = short;
        };
        for Client { train, test, .. } in self.clients.iter_mut().chain(&mut self.newcomers) {
            shared(train);
            shared(test);
        }
        self.features = d - 1;
        self.layout.constant = false;
        self
    }
}

/// Rows of `d` values, each without its last.
fn shortened(set: &Set, d: usize) -> Set {
    Set {
        x: without_last(&set.x, d),
        y: set.y.clone(),
        wide: set.wide.as_ref().map(|wide| without_last(wide, d)),
        wide_y: set.wide_y.clone(),
    }
}

fn without_last<T: Copy>(values: &[T], d: usize) -> Vec<T> {
    let rows = values.chunks_exact(d).filter_map(|row| row.split_last());
    rows.flat_map(|(_, row)| row).copied().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::data::{Labels, idx};

    #[test]
    fn without_the_constant_rows_are_one_shorter_and_otherwise_the_same() {
        let images = idx::bundled(idx::Bundled::Digits).unwrap();
        let test = Arc::new(images.set.select(images.features, &[5, 3]));
        let client = |part: &[usize]| Client {
            test: Arc::clone(&test),
            ..Client::new(images.set.select(images.features, part), Set::empty(true))
        };
        let whole = Dataset {
            features: images.features,
            outputs: 10,
            classification: true,
            clients: vec![client(&[1, 2]), client(&[])],
            newcomers: vec![client(&[4])],
            truth: None,
            layout: images.layout,
            ..Dataset::default()
        };
        let short = whole.clone().without_constant();
        assert_eq!((whole.features, short.features), (65, 64));
        assert_eq!(short.layout.shape.map(Shape::len), Some(64));
        let (a, b) = (&whole.clients[0].train, &short.clients[0].train);
        for row in 0..2 {
            assert_eq!(a.x[row * 65..row * 65 + 64], b.x[row * 64..row * 64 + 64]);
            assert_eq!(a.x[row * 65 + 64].to_bits(), 1f32.to_bits());
        }
        assert!(matches!(&b.y, Labels::Classes(classes) if classes.len() == 2));
        assert!(Arc::ptr_eq(&short.clients[1].test, &short.newcomers[0].test), "shared as before");
        assert_eq!(short.clone().without_constant().features, 64, "twice is once");
    }
}
