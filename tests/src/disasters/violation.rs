//! Type of errors that report a broken invariant.

use std::fmt;

/// Description of a broken invariant.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation(String);

impl Violation {
    /// Creates a violation from a sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
