//! Fits that have left directions out: how many, and the columns that explain it.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::data::Dataset;
use crate::least_squares::Cut;

/// What the fits of a run have left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fits {
    /// All fits.
    pub fits: usize,
    /// Fits that have left a direction out, whyever.
    pub cut: usize,
    /// Of these, fits of fewer samples than columns.
    pub few_samples: usize,
    /// Of these, fits that have lost what more digits would have kept.
    pub lost: usize,
    /// Columns in which that was, by name, or else by number, from 0.
    pub columns: Vec<String>,
}

impl Fits {
    /// Sums up the fits of a run.
    #[must_use]
    pub fn of(fits: &[Cut], dataset: &Dataset) -> Self {
        let count = |is: &dyn Fn(&Cut) -> bool| fits.iter().filter(|cut| is(cut)).count();
        let columns: BTreeSet<usize> =
            fits.iter().filter(|cut| cut.is_loss()).flat_map(|cut| cut.columns.iter().copied()).collect();
        Self {
            fits: fits.len(),
            cut: count(&|cut| cut.directions > 0),
            few_samples: count(&|cut| cut.directions > 0 && cut.few_samples),
            lost: count(&Cut::is_loss),
            columns: columns.into_iter().map(|column| name(column, dataset)).collect(),
        }
    }

    /// What to say of what was lost, in one line.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.lost > 0).then(|| {
            format!(
                "{} of {} least-squares fits have left out directions in which columns differ by little more than their \
                 roundings: {}; leave one of these out, or give it more digits or another origin",
                self.lost,
                self.fits,
                list(&self.columns)
            )
        })
    }
}

/// Most columns that a message names.
const NAMED: usize = 8;

/// A column by its name, or else by its number, from 0.
pub fn name(column: usize, dataset: &Dataset) -> String {
    dataset.feature_names.get(column).map_or_else(|| format!("column {column}"), |name| format!("{name:?}"))
}

/// The first few of a list.
pub fn list(names: &[String]) -> String {
    let first = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{first} and {more} more"),
        _ => first,
    }
}
