//! Summary of the least-squares fits of a run: counts of fits that dropped directions, and the columns
//! concerned.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::data::Dataset;
use crate::least_squares::DroppedDirections;

/// Counts of the least-squares fits of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct FitStats {
    /// Number of fits.
    pub fits: usize,
    /// Number of fits that dropped a direction, for any reason.
    pub cut: usize,
    /// Number of fits that dropped a direction and had fewer samples than columns.
    pub few_samples: usize,
    /// Number of fits that lost directions which features of higher precision would have preserved.
    pub lost: usize,
    /// Columns of the lost directions, by name, or by number from 0 if columns have no names.
    pub columns: Vec<String>,
}

impl FitStats {
    /// Counts the fits of a run.
    #[must_use]
    pub fn new(fits: &[DroppedDirections], dataset: &Dataset) -> Self {
        let count = |has_property: &dyn Fn(&DroppedDirections) -> bool| {
            fits.iter().filter(|dropped| has_property(dropped)).count()
        };
        let columns: BTreeSet<usize> = fits
            .iter()
            .filter(|dropped| dropped.is_loss())
            .flat_map(|dropped| dropped.columns.iter().copied())
            .collect();
        Self {
            fits: fits.len(),
            cut: count(&|dropped| dropped.directions > 0),
            few_samples: count(&|dropped| dropped.directions > 0 && dropped.few_samples),
            lost: count(&DroppedDirections::is_loss),
            columns: columns.into_iter().map(|column| column_name(column, dataset)).collect(),
        }
    }

    /// Formats a one-line warning if directions were lost.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.lost > 0).then(|| {
            format!(
                "{} of {} least-squares fits dropped directions in which columns differ by little more than their rounding \
                 errors: {}; leave one of these columns out, or give it more digits or another origin",
                self.lost,
                self.fits,
                join_names(&self.columns)
            )
        })
    }
}

/// Largest number of columns that a message names.
const MAX_NAMES: usize = 8;

/// Name of a column, or the number of the column from 0 if it has no name.
pub fn column_name(column: usize, dataset: &Dataset) -> String {
    dataset.feature_names.get(column).map_or_else(|| format!("column {column}"), |name| format!("{name:?}"))
}

/// Joins names for a message. Of many names only the first `MAX_NAMES` are listed.
pub fn join_names(names: &[String]) -> String {
    let first = names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MAX_NAMES) {
        Some(hidden_count @ 1..) => format!("{first} and {hidden_count} more"),
        _ => first,
    }
}
