//! Sections `[data]` and `[split]` for labelled tables in CSV and npz files, which support the same settings.

use std::collections::HashSet;

use fedspan_engine::config::{Problem, Section};

use super::checksums::read_checksums;
use super::split_plan::{SAMPLES, SplitKind, check_fold, read_holdout_classes, read_partition, read_tests};
use crate::data::file::Files;
use crate::data::holdout::Holdout;
use crate::data::npz::{self, Arrays};
use crate::data::partition::Partition;
use crate::data::pool::{CLIENTS, SplitBy, SplitPlan};
use crate::data::scale::Scale;
use crate::data::split::{Order, OrderSplit};
use crate::data::table::number::DecimalMark;
use crate::data::table::text::DELIMITERS;
use crate::data::table::{self, Columns};
use crate::data::{DataError, Dataset};

/// Values of the key `task`, each with true for classification.
const TASKS: [(&str, bool); 2] = [("regression", false), ("classes", true)];
/// Values of the key `scale`. For "fleet" the features are not scaled here, since the campaign finds the
/// scale.
const SCALES: [(&str, Scale); 4] =
    [("standard", Scale::Standard), ("robust", Scale::Robust), ("none", Scale::None), ("fleet", Scale::None)];

/// Labelled table, and division of its rows among clients.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSection {
    /// Format of the file and the columns or arrays to read.
    pub source: TableSource,
    /// Path of the file.
    pub path: String,
    /// SHA-256 of the file; empty if the checksum is not verified.
    pub checksums: Vec<String>,
    /// Division of the rows among clients.
    pub plan: SplitPlan,
    /// Scaling of the features; `None` if the scaling depends on the content of the file.
    pub scale: Option<Scale>,
    /// True if a constant 1 is appended as the last feature; `None` if this depends on the content of the
    /// file.
    pub constant: Option<bool>,
    /// True if a missing test part in the file is an error when the split is "files".
    pub requires_test_part: bool,
}

/// Format of the file of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum TableSource {
    /// CSV file, with the roles of its columns.
    Csv(Columns),
    /// Npz file, with the names of its arrays.
    Npz(Arrays),
}

impl TableSection {
    /// True if targets are classes.
    #[must_use]
    pub fn classification(&self) -> bool {
        match &self.source {
            TableSource::Csv(columns) => columns.classification,
            TableSource::Npz(arrays) => arrays.classification,
        }
    }

    /// Number of features, if it is known before the file is read.
    pub(super) fn features(&self) -> Option<usize> {
        match &self.source {
            TableSource::Csv(columns) => Some(columns.count()? + usize::from(self.constant?)),
            TableSource::Npz(_) => None,
        }
    }

    /// Reads the keys of `kind = "csv"`.
    pub(super) fn read_csv(section: &Section<'_>, split: &Section<'_>) -> Result<Self, Problem> {
        let classification = section.choice("task", Some("regression"), &TASKS)?;
        let partition = read_partition(&section.section("partition")?, true, classification)?;
        let column = "a column name";
        let or_cut = "a column name, or a [data.partition] that cuts rows into clients";
        let client = match partition {
            Partition::Natural { .. } => Some(section.string("client", None, or_cut)?),
            _ => section.optional_string("client", column)?,
        };
        // Blanks around cells are ignored, so blanks around names are removed as well.
        let trimmed = |name: String| name.trim().to_owned();
        let names = "\"*\", a pattern, or a list of column names, ranges (\"a..z\") and patterns";
        let columns = Columns {
            client: client.map(trimmed),
            target: trimmed(section.string("target", None, column)?),
            features: section.strings("features", names)?.into_iter().map(trimmed).collect(),
            classification,
            delimiter: read_delimiter(section)?,
            decimal: section.choice(
                "decimal",
                Some("auto"),
                &[("auto", None), (".", Some(DecimalMark::Point)), (",", Some(DecimalMark::Comma))],
            )?,
            not_missing: read_not_missing(section)?,
        };
        let mut seen = HashSet::new();
        for name in &columns.features {
            let fail = |reason| Err(section.problem("features", format!("found {name:?}, {reason}")));
            if *name == columns.target {
                return fail("which is the target");
            }
            if !seen.insert(name) {
                return fail("listed twice; list each column once");
            }
        }
        if columns.client.as_ref() == Some(&columns.target) {
            return Err(section.problem("client", format!("found {:?}, which is the target", columns.target)));
        }
        Ok(Self {
            source: TableSource::Csv(columns),
            path: section.string("path", None, "a file name")?,
            checksums: read_checksums(section)?,
            plan: read_plan(split, partition, classification, false)?,
            scale: Some(section.choice("scale", Some("standard"), &SCALES)?),
            constant: Some(section.boolean("constant", true)?),
            requires_test_part: true,
        })
    }

    /// Reads the keys of `kind = "npz"`.
    pub(super) fn read_npz(section: &Section<'_>, split: &Section<'_>) -> Result<Self, Problem> {
        let classification = section.choice("task", Some("regression"), &TASKS)?;
        let partition = read_partition(&section.section("partition")?, true, classification)?;
        let name = |key: &str| section.string(key, Some(key), "the name of an array");
        let read_pair = |key: &str, test: &str| Ok([name(key)?, name(test)?]);
        let arrays = Arrays {
            x: read_pair("x", "x_test")?,
            y: read_pair("y", "y_test")?,
            client: read_pair("client", "client_test")?,
            truth: name("b_star")?,
            classification,
            requires_client: matches!(partition, Partition::Natural { .. }),
            not_missing: read_not_missing(section)?,
        };
        let scale = match section.has("scale") {
            true => Some(section.choice("scale", Some("standard"), &SCALES)?),
            // Reading the key marks it as known.
            false => section.optional_string("scale", "")?.and(None),
        };
        let constant = match section.has("constant") {
            true => Some(section.boolean("constant", true)?),
            false => section.optional_string("constant", "")?.and(None),
        };
        Ok(Self {
            source: TableSource::Npz(arrays),
            path: section.string("path", None, "a file name")?,
            checksums: read_checksums(section)?,
            plan: read_plan(split, partition, classification, true)?,
            scale,
            constant,
            requires_test_part: split.has("by"),
        })
    }

    /// Reads the file, divides its rows among clients and scales the features. `name` is the name of the
    /// scenario. A given initial representation, and a true representation in an npz file, refer to unscaled
    /// features. In these cases features are not scaled by default.
    pub(super) fn dataset(&self, name: &str, seed: u64, has_given_start: bool) -> Result<Dataset, DataError> {
        let mut files = Files::new(name, &self.checksums);
        let (table, truth) = match &self.source {
            TableSource::Csv(columns) => {
                let (bytes, path) = files.read(&self.path, table::LARGEST_FILE)?;
                (table::parse(&bytes, &path, columns)?, None)
            }
            TableSource::Npz(arrays) => {
                let (bytes, path) = files.read(&self.path, npz::LARGEST_FILE)?;
                npz::table(&bytes, &path, arrays)?
            }
        };
        let files = files.finish()?;
        let unscaled = truth.is_some() || has_given_start;
        let scale = self.scale.unwrap_or(if unscaled { Scale::None } else { Scale::Standard });
        let constant = self.constant.unwrap_or(!unscaled);
        if truth.is_some() && scale != Scale::None {
            let message = format!(
                "data.scale = {:?}: the file holds a true representation of the unscaled features; allowed here: \"none\"",
                scale.word()
            );
            return Err(DataError::new(table.name, message));
        }
        let (features, max_features) = (table.features.len(), table::FEATURES - usize::from(constant));
        if features > max_features {
            let plus = if constant { " plus the constant 1" } else { "" };
            let message = format!("{features} features{plus}, allowed: at most {max_features}");
            return Err(DataError::new(table.name, message));
        }
        let pool = table.pool(constant);
        let mut plan = self.plan.clone();
        if plan.by == SplitBy::Files && !self.requires_test_part && pool.tests_from >= pool.set.len() {
            // The file has no test part, and the scenario does not require one.
            let split = OrderSplit { test: 0.0, ..plan.split };
            plan = SplitPlan { by: SplitBy::Clients, split, ..plan };
        }
        let mut dataset = plan.dataset(&pool, seed)?;
        let (features, path) = (pool.feature_names, pool.name);
        drop(pool.set);
        dataset = scale.apply(dataset, &features, &path)?;
        dataset.feature_names = features.clone();
        dataset.files = files;
        // The row of the constant feature in the true representation is zero.
        dataset.truth = truth.map(|b| if constant { b.insert_row(features.len(), 0.0) } else { b });
        Ok(dataset)
    }
}

/// Reads the section `[split]` for a table. `files` is true if the file may have a test part.
fn read_plan(
    split: &Section<'_>,
    partition: Partition,
    classification: bool,
    files: bool,
) -> Result<SplitPlan, Problem> {
    let choices = [
        ("time", SplitKind::Clients(Order::Time)),
        ("random", SplitKind::Clients(Order::Random)),
        ("stratified", SplitKind::Clients(Order::Stratified)),
        ("classes", SplitKind::Classes),
        ("files", SplitKind::Files),
    ];
    let by_class = |by: &SplitKind| matches!(by, SplitKind::Classes | SplitKind::Clients(Order::Stratified));
    let available: Vec<(&str, SplitKind)> = choices
        .into_iter()
        .filter(|(_, by)| (classification || !by_class(by)) && (files || !matches!(by, SplitKind::Files)))
        .collect();
    // An explicit test fraction takes precedence over the test part of the file.
    let default = if files && !split.has("test") { "files" } else { "time" };
    let (by, order, test) = split.choice("by", Some(default), &available)?.read(split, Order::Time)?;
    let tests = match partition {
        Partition::Natural { .. } => crate::data::pool::TestAssignment::UpdateWeight,
        _ => read_tests(split, by)?,
    };
    let gap = match order {
        Order::Time => split.size("gap", Some(0), 0..=SAMPLES)?,
        Order::Random | Order::Stratified => 0,
    };
    let holdout = Holdout {
        clients: split.size("holdout_users", Some(0), 0..=CLIENTS)?,
        fold: split.size("fold", Some(0), 0..=CLIENTS)?,
        samples: match classification {
            true => split.size("labels_per_class", Some(1), 0..=SAMPLES)?,
            false => split.size("new_samples", Some(10), 1..=SAMPLES)?,
        },
        key: "holdout_users",
    };
    check_fold(split, &holdout)?;
    let holdout_classes = match classification {
        true => read_holdout_classes(split, &holdout, partition, true)?,
        false => Vec::new(),
    };
    let validation = split.number("validation", Some(0.0), 0.0..=0.9)?;
    let is_cut_in_time = match by {
        SplitBy::Files => validation > 0.0 && matches!(partition, Partition::Natural { .. }),
        SplitBy::Clients | SplitBy::Classes(_) => true,
    };
    if gap > 0 && !is_cut_in_time {
        let message = format!(
            "found {gap}, but with by = \"files\" only the validation part of clients that the file names is cut in time: \
             leave it out, or set by = \"time\""
        );
        return Err(split.problem("gap", message));
    }
    let split = OrderSplit { test, validation, gap };
    Ok(SplitPlan { partition, by, order, split, tests, holdout, holdout_classes })
}

fn read_delimiter(section: &Section<'_>) -> Result<Option<u8>, Problem> {
    let words = ["auto", ",", ";", "\t", "|"];
    let marks = [None].into_iter().chain(DELIMITERS.map(Some));
    let choices: Vec<(&str, Option<u8>)> = words.into_iter().zip(marks).collect();
    section.choice("delimiter", Some("auto"), &choices)
}

fn read_not_missing(section: &Section<'_>) -> Result<Vec<String>, Problem> {
    let allowed = "a list of names of clients or classes that look like a missing value";
    let names = section.list("not_missing", allowed, |value| value.as_str().map(str::to_owned))?;
    Ok(names.unwrap_or_default())
}
