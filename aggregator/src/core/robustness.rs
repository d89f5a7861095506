//! Distance of the fleet from the space in which its aggregation rule was measured.

use fedspan_engine::RoundSizes;
use fedspan_engine::aggregate::{FleetSize, Rule};

use crate::config::Fleet;

/// Conditions of the measured space that the fleet does not meet.
#[derive(Clone, Debug)]
pub(super) struct Robustness {
    size: FleetSize,
    unmet: Vec<String>,
}

impl Robustness {
    /// Compares the configuration with the measured space; `None` if nothing is promised for its rule or
    /// model. Until a round is closed, every expected device counts, and numbers of samples are unknown.
    pub(super) fn new(fleet: &Fleet) -> Option<Self> {
        if !matches!(fleet.rule, Rule::SpectralFilter(_)) || fleet.algorithm.linear().is_none() {
            return None;
        }
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let size = FleetSize {
            devices: number(fleet.expected),
            samples: None,
            features: number(fleet.shape.features),
            width: number(fleet.model.k),
            outputs: number(fleet.shape.outputs),
        };
        Some(Self { size, unmet: size.unmet_conditions() })
    }

    /// Compares a closed round with the measured space. Returns true if the conditions that are not met have
    /// changed in number.
    pub(super) fn update(&mut self, sizes: RoundSizes) -> bool {
        let size = FleetSize { devices: sizes.devices, samples: Some(sizes.samples), ..self.size };
        let before = std::mem::replace(&mut self.unmet, size.unmet_conditions());
        before.len() != self.unmet.len()
    }

    /// Conditions that are not met, each with the number found and the number needed.
    pub(super) fn unmet(&self) -> &[String] {
        &self.unmet
    }

    /// Logs the conditions that are not met, if there are any.
    pub(super) fn log(&self) {
        if !self.unmet.is_empty() {
            tracing::warn!(
                unmet = self.unmet.join("; "),
                "the fleet is outside the space in which the aggregation rule was measured"
            );
        }
    }
}
