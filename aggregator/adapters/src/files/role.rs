//! Roles of the tensors of an adapter.

/// Role of a tensor in an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Down factor A, r x d_in: `lora_A`.
    Down,
    /// Up factor B, d_out x r: `lora_B`.
    Up,
    /// Tensor of a module that is trained and saved as a whole (`modules_to_save`), such as a classifier.
    Saved,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Saved => "saved",
        })
    }
}
