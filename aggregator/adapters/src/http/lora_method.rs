//! What clients train in which round.

use crate::files::RoundKind;

/// How factors are trained and averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraMethod {
    /// The up factors in odd rounds, the down factors in even ones (RoLoRA, Chen et al. 2025, Algorithm 1).
    RoLora,
    /// Both, each averaged for itself.
    Lora,
    /// The up factors always (Sun et al. 2024).
    FfaLora,
}

impl LoraMethod {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("rolora", Self::RoLora), ("lora", Self::Lora), ("ffa-lora", Self::FfaLora)];

    /// What round `number`, from 1 on, trains.
    #[must_use]
    pub fn round_kind(self, number: u32) -> RoundKind {
        match self {
            Self::RoLora if number.is_multiple_of(2) => RoundKind::Down,
            Self::RoLora | Self::FfaLora => RoundKind::Up,
            Self::Lora => RoundKind::Plain,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }
}
