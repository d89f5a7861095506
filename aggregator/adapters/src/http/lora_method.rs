//! Federated LoRA methods, which determine the factors that clients train in each round.

use crate::files::RoundKind;

/// Schedule of the factors that are trained and averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraMethod {
    /// RoLoRA: up factors in odd rounds, down factors in even rounds (Chen et al. 2025, Algorithm 1).
    RoLora,
    /// Plain LoRA: both factors in every round, each averaged separately.
    Lora,
    /// FFA-LoRA: up factors in every round (Sun et al. 2024).
    FfaLora,
}

impl LoraMethod {
    /// All methods with their names in configurations and JSON.
    pub const ALL: [(&'static str, Self); 3] =
        [("rolora", Self::RoLora), ("lora", Self::Lora), ("ffa-lora", Self::FfaLora)];

    /// Factors that are trained in round `number`, counted from 1.
    #[must_use]
    pub fn round_kind(self, number: u32) -> RoundKind {
        match self {
            Self::RoLora if number.is_multiple_of(2) => RoundKind::Down,
            Self::RoLora | Self::FfaLora => RoundKind::Up,
            Self::Lora => RoundKind::Plain,
        }
    }

    /// Name in configurations and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }
}
