//! Windows of inertial samples as rows of features, computed by the extractor that runs on boards.

use fedspan_client::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};
use fedspan_sim_core::data::watch::HOP;

/// Number of overlapping windows that are open at a time.
const OPEN: usize = WINDOW / HOP;

/// Names of the columns: all features but the constant, which readers of tables add.
pub fn names() -> Vec<String> {
    (1..FEATURES).map(|number| format!("f{number:02}")).collect()
}

/// Overlapping windows over a series without gaps.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    extractors: [WindowFeatures; OPEN],
    /// Number of samples since the start or the last gap.
    samples: usize,
}

impl Windows {
    /// Starts again after a gap, over which no window reaches.
    pub fn interrupt(&mut self) {
        *self = Self::default();
    }

    /// Adds a sample: acceleration in g, then rotation in rad/s. Returns the features of a window that it completes.
    pub fn push(&mut self, sample: &[f32; CHANNELS]) -> Option<Vec<f32>> {
        let mut completed = None;
        for (index, extractor) in self.extractors.iter_mut().enumerate() {
            let mut out = [0.0; FEATURES];
            if self.samples >= index * HOP && extractor.push(sample, &mut out) {
                completed = out.get(..FEATURES - 1).map(<[f32]>::to_vec);
            }
        }
        self.samples += 1;
        completed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use fedspan_sim_core::data::watch::{recordings, windows};

    use super::*;

    #[test]
    fn features_are_those_of_the_simulator() {
        let series = recordings().unwrap().swap_remove(0);
        let mut recorder = Windows::default();
        let found: Vec<Vec<f32>> =
            series.samples().iter().filter_map(|sample| recorder.push(sample)).collect();
        let expected: Vec<Vec<f32>> =
            windows(&series).iter().map(|row| row[..FEATURES - 1].to_vec()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn windows_do_not_reach_over_gaps() {
        let mut windows = Windows::default();
        let rows = |windows: &mut Windows, samples| {
            (0..samples).filter(|_| windows.push(&[0.0; CHANNELS]).is_some()).count()
        };
        assert_eq!(rows(&mut windows, WINDOW + HOP), 2);
        windows.interrupt();
        assert_eq!(rows(&mut windows, WINDOW - 1), 0);
        assert_eq!(rows(&mut windows, 1), 1);
    }
}
