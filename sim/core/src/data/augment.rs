//! Augmentation of training images by random shifts and reflections, different in every round.

use fedspan_engine::random::{Purpose, stream};

use super::{Set, Shape};

/// Largest shift in each direction, in pixels.
const PADDING: usize = 4;

/// Augmentation that shifts each image by up to four pixels in each direction and mirrors it with probability
/// 1/2. Pixels that are shifted in from outside the image are 0, the mean of standardised colours. The result
/// depends only on the seed, the client, the round and the sample, so all epochs of a round use the same
/// images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the client.
    pub client: u64,
    /// Shape of the samples. Only images are augmented; time series are returned unchanged.
    pub shape: Shape,
}

impl Augment {
    /// Returns the augmented images of a round. Values that follow the pixels in a row, such as a constant,
    /// are unchanged.
    #[must_use]
    pub fn apply(&self, set: &Set, round: u32) -> Set {
        let Shape::Image { channels, height, width } = self.shape else { return set.clone() };
        let d = set.x.len().checked_div(set.len()).unwrap_or(0);
        let area = height * width;
        if area == 0 || d < channels * area {
            return set.clone();
        }
        // Synthetic samples use the same stream, but synthetic data are not augmented.
        let mut random = stream(self.seed, Purpose::Samples, (self.client + 1) << 32 | u64::from(round));
        let mut x = Vec::with_capacity(set.x.len());
        for row in set.x.chunks_exact(d) {
            let (down, right) = (random.below(2 * PADDING + 1), random.below(2 * PADDING + 1));
            let mirrored = random.below(2) == 1;
            let (image, other_values) = row.split_at(channels * area);
            for i in 0..height {
                for j in 0..width {
                    let column = if mirrored { width - 1 - j } else { j };
                    // Position in the image with a border of PADDING pixels.
                    let from = (i + down).checked_sub(PADDING).filter(|i| *i < height);
                    let source_column = (column + right).checked_sub(PADDING).filter(|j| *j < width);
                    let pixel = from.zip(source_column).map(|(i, j)| (i * width + j) * channels);
                    match pixel.and_then(|start| image.get(start..start + channels)) {
                        Some(pixel) => x.extend_from_slice(pixel),
                        None => x.extend(std::iter::repeat_n(0.0, channels)),
                    }
                }
            }
            x.extend_from_slice(other_values);
        }
        Set::new(x, set.y.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Labels;

    const SHAPE: Shape = Shape::Image { channels: 2, height: 6, width: 5 };

    /// Creates `count` images whose values identify the image and the pixel, each followed by a constant.
    fn images(count: u8) -> Set {
        let pixel = |k: u8| (1..=60).map(move |value: u8| f32::from(k) * 100.0 + f32::from(value));
        let x = (0..count).flat_map(|k| pixel(k).chain([1.0])).collect();
        Set::new(x, Labels::Classes((0..count).collect()))
    }

    #[test]
    fn augmented_image_is_a_shift_or_reflection() {
        let (set, augment) = (images(200), Augment { seed: 3, client: 5, shape: SHAPE });
        let out = augment.apply(&set, 7);
        assert_eq!((out.x.len(), &out.y), (set.x.len(), &set.y));
        let (mut mirrored, mut unchanged) = (0, 0);
        for (k, row) in out.x.chunks_exact(61).enumerate() {
            assert_eq!(row[60].to_bits(), 1f32.to_bits());
            let source = &set.x[k * 61..k * 61 + 60];
            // Exactly one shift and reflection must explain the pixels of both colours.
            let moves = (0..9)
                .flat_map(|down| (0..9).flat_map(move |right| [(down, right, false), (down, right, true)]));
            let explains = |(down, right, mirror): &(usize, usize, bool)| {
                (0..60usize).all(|p| {
                    let (colour, i, j) = (p % 2, p / 10, p / 2 % 5);
                    let j = if *mirror { 4 - j } else { j };
                    let (i, j) = (i + down, j + right);
                    let is_inside = (4..10).contains(&i) && (4..9).contains(&j);
                    let value = if is_inside { source[((i - 4) * 5 + j - 4) * 2 + colour] } else { 0.0 };
                    row[p].to_bits() == value.to_bits()
                })
            };
            let matching_moves: Vec<_> = moves.filter(explains).collect();
            assert!(!matching_moves.is_empty(), "image {k}");
            mirrored += usize::from(matching_moves.iter().all(|(_, _, mirror)| *mirror));
            unchanged += usize::from(matching_moves.contains(&(4, 4, false)));
        }
        assert!((60..140).contains(&mirrored), "about half: {mirrored}");
        assert!(unchanged < 10, "one in 162: {unchanged}");
    }

    #[test]
    fn augmentation_depends_on_seed_client_and_round() {
        let (set, augment) = (images(20), Augment { seed: 3, client: 5, shape: SHAPE });
        let first = augment.apply(&set, 1);
        assert_eq!(first, augment.apply(&set, 1));
        assert_ne!(first, augment.apply(&set, 2));
        assert_ne!(first, Augment { client: 6, ..augment }.apply(&set, 1));
        assert_ne!(first, Augment { seed: 4, ..augment }.apply(&set, 1));
        let series = Augment { shape: Shape::Series { steps: 6, channels: 10 }, ..augment };
        assert_eq!(series.apply(&set, 1), set);
    }
}
