//! Columns that drown in what a representation makes of others: no head that sees products alone can bring them back.

use crate::data::Dataset;
use crate::scenario::Scenario;

/// What to say of columns that drown, in one line.
pub fn drowned(_scenario: &Scenario, _dataset: &Dataset) -> Option<String> {
    None
}
