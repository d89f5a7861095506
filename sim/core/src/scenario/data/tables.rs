//! `[data]` and `[split]` of labelled tables: CSV and npz files, which can do the same things.

use std::collections::HashSet;

use fedspan_engine::config::{Problem, Section};

use super::cutting::{By, CLIENTS, SAMPLES, read_holdout_classes, read_partition, read_tests};
use super::read::read_sums;
use crate::data::file::Files;
use crate::data::holdout::Holdout;
use crate::data::npz::{self, Arrays};
use crate::data::partition::Partition;
use crate::data::pool::{Cutting, SplitBy};
use crate::data::scale::Scale;
use crate::data::split::{Order, OrderSplit};
use crate::data::table::number::Mark;
use crate::data::table::text::DELIMITERS;
use crate::data::table::{self, Columns};
use crate::data::{DataError, Dataset};

/// Whether targets are classes.
const TASKS: [(&str, bool); 2] = [("regression", false), ("classes", true)];
/// How features are scaled. The fleet's scale is found by the campaign, from the numbers as they are.
const SCALES: [(&str, Scale); 4] =
    [("standard", Scale::Standard), ("robust", Scale::Robust), ("none", Scale::None), ("fleet", Scale::None)];

/// A labelled table, and how its rows become clients.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSection {
    /// What is read.
    pub source: TableSource,
    /// The file's name.
    pub path: String,
    /// Its SHA-256, if that is to be checked.
    pub sums: Vec<String>,
    /// How rows become clients.
    pub cutting: Cutting,
    /// How features are scaled; none where the file decides.
    pub scale: Option<Scale>,
    /// Whether a constant 1 is the last feature; none where the file decides.
    pub constant: Option<bool>,
    /// Whether the file must bring a test part where it is the file that decides what tests.
    pub tested: bool,
}

/// What a table is read from.
#[derive(Clone, Debug, PartialEq)]
pub enum TableSource {
    /// A CSV file.
    Csv(Columns),
    /// An npz file.
    Npz(Arrays),
}

impl TableSection {
    /// Whether targets are classes.
    #[must_use]
    pub fn classification(&self) -> bool {
        match &self.source {
            TableSource::Csv(columns) => columns.classification,
            TableSource::Npz(arrays) => arrays.classification,
        }
    }

    /// The number of features, where it is known before the file is read.
    pub(super) fn features(&self) -> Option<usize> {
        match &self.source {
            TableSource::Csv(columns) => Some(columns.count()? + usize::from(self.constant?)),
            TableSource::Npz(_) => None,
        }
    }

    /// `kind = "csv"`.
    pub(super) fn read_csv(section: &Section<'_>, split: &Section<'_>) -> Result<Self, Problem> {
        let classification = section.choice("task", Some("regression"), &TASKS)?;
        let partition = read_partition(&section.section("partition")?, true, classification)?;
        let column = "a column name";
        let or_cut = "a column name, or a [data.partition] that cuts rows into clients";
        let client = match partition {
            Partition::Natural { .. } => Some(section.string("client", None, or_cut)?),
            _ => section.optional_string("client", column)?,
        };
        // Blanks around cells do not count, so that none stand around names.
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
                &[("auto", None), (".", Some(Mark::Point)), (",", Some(Mark::Comma))],
            )?,
            not_missing: read_not_missing(section)?,
        };
        let mut before = HashSet::new();
        for name in &columns.features {
            let wrong = |what| Err(section.problem("features", format!("found {name:?}, {what}")));
            if *name == columns.target {
                return wrong("which is the target");
            }
            if !before.insert(name) {
                return wrong("twice");
            }
        }
        if columns.client.as_ref() == Some(&columns.target) {
            return Err(section.problem("client", format!("found {:?}, which is the target", columns.target)));
        }
        Ok(Self {
            source: TableSource::Csv(columns),
            path: section.string("path", None, "a file name")?,
            sums: read_sums(section)?,
            cutting: read_cutting(split, partition, classification, false)?,
            scale: Some(section.choice("scale", Some("standard"), &SCALES)?),
            constant: Some(section.boolean("constant", true)?),
            tested: true,
        })
    }

    /// `kind = "npz"`.
    pub(super) fn read_npz(section: &Section<'_>, split: &Section<'_>) -> Result<Self, Problem> {
        let classification = section.choice("task", Some("regression"), &TASKS)?;
        let partition = read_partition(&section.section("partition")?, true, classification)?;
        let name = |key: &str| section.string(key, Some(key), "the name of an array");
        let both = |key: &str, test: &str| Ok([name(key)?, name(test)?]);
        let arrays = Arrays {
            x: both("x", "x_test")?,
            y: both("y", "y_test")?,
            client: both("client", "client_test")?,
            truth: name("b_star")?,
            classification,
            owned: matches!(partition, Partition::Natural { .. }),
            not_missing: read_not_missing(section)?,
        };
        let scale = match section.has("scale") {
            true => Some(section.choice("scale", Some("standard"), &SCALES)?),
            // The key is known all the same.
            false => section.optional_string("scale", "")?.and(None),
        };
        let constant = match section.has("constant") {
            true => Some(section.boolean("constant", true)?),
            false => section.optional_string("constant", "")?.and(None),
        };
        Ok(Self {
            source: TableSource::Npz(arrays),
            path: section.string("path", None, "a file name")?,
            sums: read_sums(section)?,
            cutting: read_cutting(split, partition, classification, true)?,
            scale,
            constant,
            tested: split.has("by"),
        })
    }

    /// Reads the file, cuts it into clients and scales it; `name` is the scenario's. A `given` start is a matrix of the
    /// features as they are, and so is the truth that an npz file may hold: an npz file is then taken as it is.
    pub(super) fn dataset(&self, name: &str, seed: u64, given: bool) -> Result<Dataset, DataError> {
        let mut files = Files::new(name, &self.sums);
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
        files.finish()?;
        let as_it_is = truth.is_some() || given;
        let scale = self.scale.unwrap_or(if as_it_is { Scale::None } else { Scale::Standard });
        let constant = self.constant.unwrap_or(!as_it_is);
        if truth.is_some() && scale != Scale::None {
            let message = format!(
                "data.scale = {:?}: the file has a true representation of the features as they are; allowed here: \"none\"",
                scale.word()
            );
            return Err(DataError::new(table.name, message));
        }
        let (features, most) = (table.features.len(), table::FEATURES - usize::from(constant));
        if features > most {
            let beside = if constant { " beside the constant 1" } else { "" };
            let message = format!("{features} features{beside}, allowed: at most {most}");
            return Err(DataError::new(table.name, message));
        }
        let pool = table.pool(constant);
        let mut cutting = self.cutting.clone();
        if cutting.by == SplitBy::Files && !self.tested && pool.tests_from >= pool.set.len() {
            // Nobody has asked for tests, and there are none.
            let split = OrderSplit { test: 0.0, ..cutting.split };
            cutting = Cutting { by: SplitBy::Clients, split, ..cutting };
        }
        let mut dataset = cutting.dataset(&pool, seed)?;
        let (features, path) = (pool.feature_names, pool.name);
        drop(pool.set);
        dataset = scale.finish(dataset, &features, &path)?;
        dataset.feature_names = features.clone();
        // The truth has no part in the constant.
        dataset.truth = truth.map(|b| if constant { b.insert_row(features.len(), 0.0) } else { b });
        Ok(dataset)
    }
}

/// `[split]` of a table; `files` where it may bring a test part.
fn read_cutting(
    split: &Section<'_>,
    partition: Partition,
    classification: bool,
    files: bool,
) -> Result<Cutting, Problem> {
    let all = [
        ("time", By::Clients(Order::Time)),
        ("random", By::Clients(Order::Random)),
        ("stratified", By::Clients(Order::Stratified)),
        ("classes", By::Classes),
        ("files", By::Files),
    ];
    let by_class = |by: &By| matches!(by, By::Classes | By::Clients(Order::Stratified));
    let known: Vec<(&str, By)> = all
        .into_iter()
        .filter(|(_, by)| (classification || !by_class(by)) && (files || !matches!(by, By::Files)))
        .collect();
    // Whoever says how much tests does not want what the file says.
    let word = if files && !split.has("test") { "files" } else { "time" };
    let (by, order, test) = split.choice("by", Some(word), &known)?.read(split, Order::Time)?;
    let tests = match partition {
        Partition::Natural { .. } => crate::data::pool::Tests::Share,
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
    let holdout_classes = match classification {
        true => read_holdout_classes(split, &holdout, partition, true)?,
        false => Vec::new(),
    };
    let validation = split.number("validation", Some(0.0), 0.0..=0.9)?;
    let split = OrderSplit { test, validation, gap };
    Ok(Cutting { partition, by, order, split, tests, holdout, holdout_classes })
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
