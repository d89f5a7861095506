//! Random draws of labelled samples for [`Task::RidgeScores`](crate::message::Task::RidgeScores),
//! reproducible by devices, the simulator and independent checks.

/// Returns true if draw number `draw` labels usable sample number `number` (both counted from 0).
/// `samples_left` is the number of remaining samples of the sample's class, including this sample, and
/// `labels_needed` is the number of labels still to assign. The result is a uniform draw without replacement
/// in one pass (selection sampling; Knuth, volume 2, algorithm 3.4.2 S).
#[must_use]
pub fn is_labelled(draw: u32, number: u32, samples_left: u32, labels_needed: u32) -> bool {
    (u64::from(hash_integer(number ^ hash_integer(draw.wrapping_add(1)))) * u64::from(samples_left)) >> 32
        < u64::from(labels_needed)
}

/// Hashes an integer: a bijection of 32-bit numbers (Wellons, hash-prospector).
fn hash_integer(number: u32) -> u32 {
    let number = (number ^ number >> 16).wrapping_mul(0x7feb_352d);
    let number = (number ^ number >> 15).wrapping_mul(0x846c_a68b);
    number ^ number >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the labelled samples of a draw, as a bitmap.
    fn draw_labels(draw: u32, first: u32, count: u32, labels: u32) -> u32 {
        let mut labels_needed = labels.min(count);
        let mut labelled = 0;
        for position in 0..count {
            if is_labelled(draw, first + position, count - position, labels_needed) {
                labels_needed -= 1;
                labelled |= 1 << position;
            }
        }
        assert_eq!(labels_needed, 0);
        labelled
    }

    #[test]
    fn draws_choose_all_pairs_equally_often() {
        let mut counts = [0u32; 32];
        for first in 0..10_000 {
            if let Some(count) = counts.get_mut(draw_labels(first % 8, 5 * first, 5, 2) as usize) {
                *count += 1;
            }
        }
        let pairs = counts.iter().filter(|count| **count > 0);
        assert_eq!(pairs.clone().count(), 10);
        // Each of the ten pairs is expected 1000 times, with a standard deviation of 30.
        assert!(pairs.clone().all(|count| count.abs_diff(1000) < 150), "{counts:?}");
    }

    /// Tests the values that SPEC.md lists.
    #[test]
    fn draws_match_the_specification() {
        assert_eq!([hash_integer(0), hash_integer(1), hash_integer(2)], SPECIFIED);
        assert_eq!([0, 1, 2, 3].map(|draw| draw_labels(draw, 0, 8, 1).trailing_zeros()), DRAWN);
    }

    /// Hashes of 0, 1 and 2.
    const SPECIFIED: [u32; 3] = [0x0000_0000, 0x6889_90c0, 0xd113_2181];
    /// Labelled sample of the first four draws of one sample from eight.
    const DRAWN: [u32; 4] = [7, 1, 4, 6];
}
