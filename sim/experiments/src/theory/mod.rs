//! What the literature promises, computed: before anything is simulated, or beside it.

pub mod rolora;
pub mod srpfl;
