//! Arrangement of the values of a row (image or time series, constant feature), on which convolutions and
//! networks with biases depend.

use fedspan_engine::config::Shape as Sizes;
use fedspan_protocol::message::Image;

use super::{Client, Dataset, Set, SharedSet};

/// Arrangement of the values of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Shape of the values before the constant, if they form an image or a time series.
    pub shape: Option<Shape>,
    /// True if the last value of every row is a constant 1, the bias of a linear model.
    pub constant: bool,
}

/// Shape of an image or a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Image, row by row, with all channels of a pixel together.
    Image {
        /// Number of colours.
        channels: usize,
        /// Number of rows.
        height: usize,
        /// Number of columns.
        width: usize,
    },
    /// Time series, step by step, with all channels of a step together.
    Series {
        /// Number of steps in time.
        steps: usize,
        /// Number of values in each step.
        channels: usize,
    },
}

impl Shape {
    /// Shape in the protocol, where a time series is an image of one row. `None` if a size does not fit a
    /// u16.
    #[must_use]
    pub fn image(self) -> Option<Image> {
        let [height, width, channels] = match self {
            Self::Image { channels, height, width } => [height, width, channels],
            Self::Series { steps, channels } => [1, steps, channels],
        };
        let to_u16 = |n: usize| u16::try_from(n).ok();
        Some(Image { height: to_u16(height)?, width: to_u16(width)?, channels: to_u16(channels)? })
    }

    /// Number of values.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Image { channels, height, width } => channels * height * width,
            Self::Series { steps, channels } => steps * channels,
        }
    }

    /// True if there are no values.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Dataset {
    /// Layout for the engine. The image shape is set only if a row contains nothing but the image.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let shape = self.layout.shape.filter(|shape| shape.len() == self.features);
        Sizes { features: self.features, outputs: self.outputs, image: shape.and_then(Shape::image) }
    }

    /// Removes the constant at the end of each row, if rows have one, for models with biases. Test sets that
    /// are shared by several clients remain shared.
    #[must_use]
    pub fn without_constant(mut self) -> Self {
        if !self.layout.constant || self.features == 0 {
            return self;
        }
        let d = self.features;
        // Pairs of original and shortened sets. Keeping the original alive keeps its address unique.
        let mut shortened_sets: Vec<(SharedSet, SharedSet)> = Vec::new();
        let mut shorten = |set: &mut SharedSet| {
            if let Some((_, shortened_set)) =
                shortened_sets.iter().find(|(original, _)| original.is_same(set))
            {
                *set = shortened_set.clone();
                return;
            }
            let shortened_set = SharedSet::from(shortened(&set.load(), d));
            if set.get_mut().is_none() {
                shortened_sets.push((set.clone(), shortened_set.clone()));
            }
            *set = shortened_set;
        };
        for Client { train, test, .. } in self.clients.iter_mut().chain(&mut self.newcomers) {
            shorten(train);
            shorten(test);
        }
        self.features = d - 1;
        self.layout.constant = false;
        self
    }
}

/// Copies a set of rows of `d` values without each row's last value.
fn shortened(set: &Set, d: usize) -> Set {
    Set {
        x: without_last(&set.x, d),
        y: set.y.clone(),
        x_f64: set.x_f64.as_ref().map(|wide| without_last(wide, d)),
        y_f64: set.y_f64.clone(),
        rows: set.rows.clone(),
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
    use crate::data::Labels;

    #[test]
    fn without_constant_shortens_rows_and_keeps_the_rest() {
        // Six images of 8 x 8 different values, each followed by the constant.
        let value = |index: u16| if index % 65 == 64 { 1.0 } else { f32::from(index) / 400.0 };
        let images = Set::new((0..6 * 65).map(value).collect(), Labels::Classes(vec![0, 1, 2, 3, 4, 5]));
        let test = SharedSet::from(images.select(65, &[5, 3]));
        let client = |part: &[usize]| Client {
            test: test.clone(),
            ..Client::new(images.select(65, part), Set::empty(true))
        };
        let dataset = Dataset {
            features: 65,
            outputs: 10,
            classification: true,
            clients: vec![client(&[1, 2]), client(&[])],
            newcomers: vec![client(&[4])],
            truth: None,
            layout: Layout { shape: Some(Shape::Image { channels: 1, height: 8, width: 8 }), constant: true },
            ..Dataset::default()
        };
        let without_constant = dataset.clone().without_constant();
        assert_eq!((dataset.features, without_constant.features), (65, 64));
        assert_eq!(without_constant.layout.shape.map(Shape::len), Some(64));
        let (a, b) = (&dataset.clients[0].train, &without_constant.clients[0].train);
        for row in 0..2 {
            assert_eq!(a.x[row * 65..row * 65 + 64], b.x[row * 64..row * 64 + 64]);
            assert_eq!(a.x[row * 65 + 64].to_bits(), 1f32.to_bits());
        }
        assert!(matches!(&b.y, Labels::Classes(classes) if classes.len() == 2));
        assert!(
            without_constant.clients[1].test.is_same(&without_constant.newcomers[0].test),
            "the test set is no longer shared"
        );
        assert_eq!(
            without_constant.clone().without_constant().features,
            64,
            "a second call changed the data set"
        );
    }
}
