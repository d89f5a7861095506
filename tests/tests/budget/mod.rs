//! Test helpers of the budgets: compares measurements with a list of `budgets.toml`. With
//! FEDSPAN_REGENERATE_BUDGETS, writes the measurements to the list and to the tables of the documents.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use fedspan_tests::lists::{read_list, with_list, with_table};
use fedspan_xtask::boards::Boards;
use serde_json::Value;

/// Largest allowed growth of a measured value. Another tool chain changes the values slightly.
const GROWTH: f64 = 1.02;

/// Table of the boards.
pub static BOARDS: LazyLock<Boards> =
    LazyLock::new(|| Boards::read(&root()).unwrap_or_else(|fault| panic!("{fault}")));

/// File of the budgets, relative to the root of the repository.
const FILE: &str = "tests/budgets.toml";

/// Words that identify a measurement, in the order of the field `keys` of [`List`].
pub type Key = Vec<String>;
/// Values of each measurement, by name.
pub type Rows = BTreeMap<Key, BTreeMap<String, u64>>;

/// Description of a list of `budgets.toml`.
pub struct List {
    /// Name of the list in the file.
    pub name: &'static str,
    /// Names of the words that identify a measurement.
    pub keys: &'static [&'static str],
    /// Names of the values with a budget; a measurement may lack some of them.
    pub figures: &'static [&'static str],
    /// Keys that are written as numbers.
    pub numbers: &'static [&'static str],
}

impl List {
    /// Returns the words that identify a measurement.
    pub fn key(&self, line: &Value) -> Key {
        self.keys.iter().map(|name| value_text(&line[*name])).collect()
    }

    /// Reads measurements.
    pub fn measured(&self, lines: &[Value]) -> Rows {
        let mut rows = Rows::new();
        for line in lines {
            let value = |name: &&str| Some(((*name).to_owned(), line[*name].as_u64()?));
            let key = self.key(line);
            let previous = rows.insert(key.clone(), self.figures.iter().filter_map(value).collect());
            assert!(previous.is_none(), "{key:?} was measured twice");
        }
        rows
    }

    /// Reads the budgets.
    pub fn budgets(&self) -> Rows {
        let row = |table: BTreeMap<String, String>| {
            let value =
                |name: &&str| Some(((*name).to_owned(), table.get(*name)?.parse().expect("a number")));
            let key = self.keys.iter().map(|name| table[*name].clone()).collect();
            (key, self.figures.iter().filter_map(value).collect())
        };
        tables(self.name).into_iter().map(row).collect()
    }

    /// Fails if a value exceeds its budget by more than [`GROWTH`].
    pub fn check(&self, rows: &Rows) {
        let budgets = self.budgets();
        let mut over_budget = String::new();
        for (key, values) in rows {
            let budget = budgets.get(key).unwrap_or_else(|| panic!("{key:?} has no budget"));
            for (name, &value) in values {
                if value as f64 > budget[name] as f64 * GROWTH {
                    let _ =
                        writeln!(over_budget, "{} {name}: {value}, budget {}", key.join(" "), budget[name]);
                }
            }
        }
        assert!(over_budget.is_empty(), "over budget by more than 2 %:\n{over_budget}");
    }

    /// Writes measurements as the new budgets.
    pub fn write(&self, rows: &Rows) {
        let tables = rows.iter().map(|(key, values)| {
            let assignment = |name: &&str| Some(format!("{name} = {}", values.get(*name)?));
            self.format_assignments(self.keys, key)
                .chain(self.figures.iter().filter_map(assignment))
                .collect()
        });
        write_list(self.name, tables);
    }

    /// Formats `name = word` for each key.
    pub fn format_assignments(&self, names: &[&str], words: &[String]) -> impl Iterator<Item = String> {
        names.iter().zip(words).map(|(name, word)| match self.numbers.contains(name) {
            true => format!("{name} = {word}"),
            false => format!("{name} = {word:?}"),
        })
    }
}

/// Writes a list of inline tables to `budgets.toml`. Each table is given by its assignments.
pub fn write_list(name: &str, tables: impl Iterator<Item = Vec<String>>) {
    let list_text: String = tables.map(|table| format!("    {{ {} }},\n", table.join(", "))).collect();
    change_file(FILE, |file_text| with_list(file_text, name, &list_text).expect("a list"));
}

/// Reads a list of inline tables from `budgets.toml`. Each table is returned as a map from names to words.
pub fn tables(name: &str) -> Vec<BTreeMap<String, String>> {
    read_list(&read_locked(FILE), name).unwrap_or_else(|error| panic!("{FILE}: {error}"))
}

/// Reads a file of measurements, one JSON object per line.
pub fn read_json_lines(file: &str) -> Vec<Value> {
    read_locked(file).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the text of a word or a number.
pub fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns true if lists and tables are to be written.
pub fn regenerating() -> bool {
    std::env::var_os("FEDSPAN_REGENERATE_BUDGETS").is_some()
}

/// A generated table in a document, between two marks.
pub struct GeneratedTable {
    pub file: &'static str,
    pub begin: &'static str,
    pub end: &'static str,
}

impl GeneratedTable {
    /// Writes the table into the document.
    pub fn write(&self, table: &str) {
        change_file(self.file, |document| self.replace_table(document, table));
    }

    /// Fails if the document contains another table. Does nothing while the budgets are being regenerated.
    pub fn check(&self, table: impl FnOnce() -> String, program: &str) {
        if !regenerating() {
            let document = read_locked(self.file);
            let is_current = document == self.replace_table(&document, &table());
            assert!(is_current, "FEDSPAN_REGENERATE_BUDGETS=1 {program} writes the table");
        }
    }

    fn replace_table(&self, document: &str, table: &str) -> String {
        with_table(document, self.begin, self.end, table).expect("the document lacks the marks of the table")
    }
}

/// Returns the name of a core in the tables of the documents.
pub fn core_name(word: &str) -> &'static str {
    &BOARDS.emulated(word).unwrap_or_else(|| panic!("no board {word}")).core
}

/// Returns true if cycles are estimated for a core and an optimisation level.
pub fn is_estimated(core: &str, level: &str) -> bool {
    level == "s" && BOARDS.emulated(core).is_some_and(|board| board.cycles)
}

/// Returns the number of pairs of core and optimisation level that are measured. With FEDSPAN_AS_BUILT these
/// are all cores at the level of their release profile.
pub fn builds() -> usize {
    match std::env::var_os("FEDSPAN_AS_BUILT") {
        Some(_) => BOARDS.emulated.len(),
        None => BOARDS.emulated.iter().map(|board| board.levels.len()).sum(),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Lock of the files, which tests in parallel threads change.
static FILES: Mutex<()> = Mutex::new(());

fn read_locked(file: &str) -> String {
    let _guard = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    read_file(file)
}

fn change_file(file: &str, new: impl FnOnce(&str) -> String) {
    let _guard = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    std::fs::write(root().join(file), new(&read_file(file))).expect("written");
}

fn read_file(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}
