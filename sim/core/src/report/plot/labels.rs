//! Short labels of curves, and their places at the ends of the curves.

use std::collections::BTreeSet;

/// Suffix of algorithms whose heads are fine-tuned before scoring.
const FINE_TUNED: &str = "+ft";

/// Family of a label: the label without the algorithm. The first word is the scenario, which may be called like an
/// algorithm.
pub(super) fn family(label: &str, algorithm: &str) -> String {
    let plain = |name: &str| name.strip_suffix(FINE_TUNED).unwrap_or(name).to_owned();
    let is_kept = |(index, word): &(usize, &str)| *index == 0 || plain(word) != plain(algorithm);
    let words: Vec<&str> = label.split(' ').enumerate().filter(is_kept).map(|(_, word)| word).collect();
    words.join(" ")
}

/// Labels without the words that all of them begin or end with. If the results were empty or not distinct, longer
/// labels are returned.
pub(super) fn short_labels(labels: &[&str]) -> Vec<String> {
    let words: Vec<Vec<String>> =
        labels.iter().map(|label| label.split_whitespace().map(str::to_owned).collect()).collect();
    let Some(first) = words.first() else { return Vec::new() };
    let shortest = words.iter().map(Vec::len).min().unwrap_or(0);
    let shared = |count: usize, part: &dyn Fn(&[String], usize) -> Option<String>| {
        (0..count)
            .take_while(|index| words.iter().all(|label| part(label, *index) == part(first, *index)))
            .count()
    };
    let head = shared(shortest, &|label, index| label.get(index).cloned());
    let tail = shared(shortest - head, &|label, index| label.iter().rev().nth(index).cloned());
    let distinct = |labels: &[String]| labels.iter().collect::<BTreeSet<_>>().len() == labels.len();
    let cut = |head: usize, tail: usize| -> Vec<String> {
        let cut_label = |label: &Vec<String>| {
            let kept = label.get(head..label.len() - tail).unwrap_or_default();
            let text = if kept.is_empty() { label.join(" ") } else { kept.join(" ") };
            // Words that all labels end with may be separated by a comma.
            text.trim_end_matches(',').to_owned()
        };
        words.iter().map(cut_label).collect()
    };
    let (short, long) = (cut(head, tail), cut(0, 0));
    match (labels.len() > 1 && distinct(&short), distinct(&long)) {
        (true, _) => short,
        (false, true) => long,
        (false, false) => labels.iter().map(|label| (*label).to_owned()).collect(),
    }
}

/// Moves labels apart: returns their heights, at least `gap` apart and between `top` and `bottom` if there is
/// room, close to the wanted heights, in the order of the wanted heights.
pub(super) fn placed(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    let height = |index: usize| wanted.get(index).copied().unwrap_or(top);
    order.sort_by(|a, b| height(*a).total_cmp(&height(*b)));
    let mut heights: Vec<f64> =
        order.iter().map(|index| height(*index).clamp(top, bottom.max(top))).collect();
    let mut lowest = f64::NEG_INFINITY;
    for height in &mut heights {
        *height = height.max(lowest + gap);
        lowest = *height;
    }
    let mut highest = bottom + gap;
    for height in heights.iter_mut().rev() {
        *height = height.min(highest - gap);
        highest = *height;
    }
    let mut places = vec![top; wanted.len()];
    for (index, height) in order.into_iter().zip(heights) {
        if let Some(place) = places.get_mut(index) {
            *place = height;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::{family, placed, short_labels};

    #[test]
    fn labels_lose_shared_words() {
        assert_eq!(short_labels(&["GD-GD, n = 20", "FedRep, n = 20"]), ["GD-GD", "FedRep"]);
        let labels = ["digits fedrep", "digits fedavg"];
        assert_eq!(short_labels(&labels), ["fedrep", "fedavg"]);
        assert_eq!(short_labels(&["linear", "linear k=3"]), ["linear", "k=3"]);
        assert_eq!(short_labels(&["a x", "a x"]), ["a x", "a x"]);
        assert_eq!(short_labels(&["one y"]), ["one y"]);
        assert_eq!(short_labels(&[]), [""; 0]);
        assert_eq!(family("digits classes=5 fedrep", "fedrep"), "digits classes=5");
        assert_eq!(family("digits fedavg+ft", "fedavg"), "digits");
        assert_eq!(family("fedpower k=2 fedpower", "fedpower"), "fedpower k=2");
    }

    #[test]
    fn placed_labels_keep_their_distance_and_order() {
        let places = placed(&[50.0, 50.0, 10.0, 51.0, 100.0], 14.0, 0.0, 100.0);
        let mut sorted = places.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 14.0 - 1e-9), "{places:?}");
        assert!(places.iter().all(|place| (0.0..=100.0).contains(place)), "{places:?}");
        assert!(places[2] < places[0] && places[3] < places[4]);
        let crowded = placed(&[99.0; 7], 14.0, 0.0, 100.0);
        assert!(crowded.windows(2).all(|pair| (pair[1] - pair[0]).abs() >= 14.0 - 1e-9), "{crowded:?}");
        assert_eq!(placed(&[], 14.0, 0.0, 1.0), [0.0; 0]);
    }
}
