//! Baseline file of `cargo xtask prose`: lists of words, and the largest allowed number of items in each
//! folder that break the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml_edit::{DocumentMut, Item as Toml, value};

use super::items::Class;
use super::words::Words;

/// Number of items (doc comments, messages, names of tests), and number of items that break a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of items.
    pub items: u64,
    /// Number of items that break the rules.
    pub offences: u64,
}

/// Counts of one area, by kind of item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Class, Count>);

impl Counts {
    /// Adds one item.
    pub fn add(&mut self, class: Class, offends: bool) {
        let count = self.0.entry(class).or_default();
        count.items += 1;
        count.offences += u64::from(offends);
    }

    /// Returns the count of one kind.
    #[must_use]
    pub fn of(&self, class: Class) -> Count {
        self.0.get(&class).copied().unwrap_or_default()
    }

    /// Returns the percentage of items that break a rule, without comments; 0 if there are no items.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let kinds = || self.0.iter().filter(|(class, _)| **class != Class::Comments);
        let (items, offences): (u64, u64) =
            (kinds().map(|(_, count)| count.items).sum(), kinds().map(|(_, count)| count.offences).sum());
        if items == 0 { 0.0 } else { 100.0 * offences as f64 / items as f64 }
    }
}

/// A folder with separate counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Area {
    /// Folder, relative to the root of the repository. A file belongs to the innermost area that contains it.
    pub folder: String,
    /// Percentage that the area must stay below.
    pub limit: Option<f64>,
    /// Largest number of offences of each kind; a kind without an entry has no baseline yet.
    pub baseline: BTreeMap<Class, u64>,
}

/// Contents of the baseline file.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// Lists of words.
    pub words: Words,
    /// Areas in the order of the file.
    pub areas: Vec<Area>,
}

/// Messages about counts that differ from the baseline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Counts that have risen, or have no baseline.
    pub above: Vec<String>,
    /// Counts that have fallen.
    pub below: Vec<String>,
}

impl Baseline {
    /// Parses the file.
    ///
    /// # Errors
    /// A message about the first fault: the text is not TOML, an entry is missing or has another type.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        let list = |name: &str| -> Result<BTreeSet<String>, String> {
            let words = document.get("words").and_then(|words| words.get(name)).and_then(Toml::as_array);
            let words = words.ok_or_else(|| format!("words.{name} must be a list of words"))?;
            let word = |word: &toml_edit::Value| word.as_str().map(str::to_lowercase);
            words
                .iter()
                .map(word)
                .collect::<Option<_>>()
                .ok_or_else(|| format!("words.{name} must hold words only"))
        };
        let words = Words {
            first: list("first")?,
            first_of_tests: list("first_of_tests")?,
            anywhere: list("anywhere")?,
        };
        let areas = document.get("areas").and_then(Toml::as_table).ok_or("the table 'areas' is missing")?;
        let areas = areas.iter().map(|(folder, entry)| read_area(folder, entry)).collect::<Result<_, _>>()?;
        Ok(Self { words, areas })
    }

    /// Returns the index of the innermost area that contains a file.
    #[must_use]
    pub fn area_of(&self, file: &Path) -> Option<usize> {
        let holding = self.areas.iter().enumerate().filter(|(_, area)| file.starts_with(&area.folder));
        holding.max_by_key(|(_, area)| Path::new(&area.folder).components().count()).map(|(index, _)| index)
    }

    /// Compares the counts, one per area in the order of the areas, with the baseline.
    #[must_use]
    pub fn differences(&self, counted: &[Counts]) -> Differences {
        let mut differences = Differences::default();
        for (area, counts) in self.areas.iter().zip(counted) {
            for class in Class::ALL {
                let folder = &area.folder;
                let name = class.name();
                let offences = counts.of(class).offences;
                match area.baseline.get(&class) {
                    Some(&limit) if offences > limit => {
                        differences.above.push(format!("{folder}: {name} {offences}, baseline {limit}"))
                    }
                    Some(&limit) if offences < limit => {
                        differences.below.push(format!("{folder}: {name} {offences}, baseline {limit}"))
                    }
                    Some(_) => {}
                    None => {
                        differences.above.push(format!("{folder}: {name} {offences}, without a baseline"))
                    }
                }
            }
        }
        differences
    }

    /// Returns the text of the file with the counts as its new baseline.
    ///
    /// # Errors
    /// A message if the sum of a kind over all areas would rise. The count of one area may rise if the sum
    /// does not, because code moves between areas.
    pub fn updated(&self, text: &str, counted: &[Counts]) -> Result<String, String> {
        for class in Class::ALL {
            let total_before: Option<u64> =
                self.areas.iter().map(|area| area.baseline.get(&class).copied()).sum();
            let total_now: u64 = counted.iter().map(|counts| counts.of(class).offences).sum();
            if let Some(total_before) = total_before
                && total_now > total_before
            {
                let name = class.name();
                return Err(format!(
                    "prose: {name} would rise from {total_before} to {total_now} in total; baselines may only fall"
                ));
            }
        }
        let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        for (area, counts) in self.areas.iter().zip(counted) {
            for class in Class::ALL {
                let number = i64::try_from(counts.of(class).offences).unwrap_or(i64::MAX);
                document["areas"][&area.folder][class.name()] = value(number);
            }
        }
        Ok(document.to_string())
    }
}

/// Reads the entry of an area.
fn read_area(folder: &str, entry: &Toml) -> Result<Area, String> {
    let limit = entry.get("limit").map(|limit| {
        let number = limit.as_float().or_else(|| limit.as_integer().map(|number| number as f64));
        number.ok_or_else(|| format!("{folder}: limit must be a number"))
    });
    let mut baseline = BTreeMap::new();
    for class in Class::ALL {
        if let Some(number) = entry.get(class.name()) {
            let number = number.as_integer().and_then(|number| u64::try_from(number).ok());
            let not_a_count = || format!("{folder}: {} must be a whole number, at least 0", class.name());
            baseline.insert(class, number.ok_or_else(not_a_count)?);
        }
    }
    Ok(Area { folder: folder.to_owned(), limit: limit.transpose()?, baseline })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FILE: &str = "\
# A comment that stays.
[words]
first = [\"What\"]
first_of_tests = []
anywhere = [\"anew\"]

[areas.\"a\"]
limit = 2
docs = 3
help = 0
logs = 0
errors = 0
tests = 0
comments = 0

[areas.\"a/b\"]
limit = 5.0
docs = 1
help = 0
logs = 0
errors = 0
tests = 0
comments = 0
";

    fn counts_with(offences: u64) -> Counts {
        Counts(BTreeMap::from([(Class::Docs, Count { items: 10, offences })]))
    }

    #[test]
    fn file_belongs_to_the_innermost_area() {
        let baseline = Baseline::parse(FILE).unwrap();
        assert_eq!(baseline.area_of(Path::new("a/x.rs")), Some(0));
        assert_eq!(baseline.area_of(Path::new("a/b/x.rs")), Some(1));
        assert_eq!(baseline.area_of(Path::new("ab/x.rs")), None);
    }

    #[test]
    fn counts_above_and_below_are_named() {
        let baseline = Baseline::parse(FILE).unwrap();
        assert_eq!(baseline.differences(&[counts_with(3), counts_with(1)]), Differences::default());
        assert_eq!(
            baseline.differences(&[counts_with(4), counts_with(0)]),
            Differences {
                above: vec!["a: docs 4, baseline 3".to_owned()],
                below: vec!["a/b: docs 0, baseline 1".to_owned()]
            }
        );
    }

    #[test]
    fn count_without_a_baseline_fails() {
        let baseline = Baseline::parse(&FILE.replace("docs = 1\n", "")).unwrap();
        assert_eq!(
            baseline.differences(&[counts_with(3), counts_with(0)]).above,
            ["a/b: docs 0, without a baseline"]
        );
    }

    #[test]
    fn update_lowers_and_moves_but_never_raises_the_sum() {
        let baseline = Baseline::parse(FILE).unwrap();
        let moved = baseline.updated(FILE, &[counts_with(0), counts_with(4)]).unwrap();
        assert_eq!(moved, FILE.replace("docs = 3", "docs = 0").replace("docs = 1", "docs = 4"));
        assert!(baseline.updated(FILE, &[counts_with(3), counts_with(2)]).is_err());
        // A new area has no baseline: the first update writes one.
        let new = FILE.replace("docs = 1\n", "");
        assert!(Baseline::parse(&new).unwrap().updated(&new, &[counts_with(3), counts_with(2)]).is_ok());
    }

    #[test]
    fn percent_leaves_comments_out() {
        let mut counts = counts_with(1);
        counts.add(Class::Comments, true);
        assert!((counts.percent() - 10.0).abs() < 1e-9);
        assert!(Counts::default().percent() == 0.0);
    }

    #[test]
    fn faults_of_the_file_are_named() {
        for (old, new, part) in [
            ("limit = 2", "limit = 'x'", "limit must be a number"),
            ("docs = 3", "docs = -3", "docs must be a whole number"),
            ("anywhere = [\"anew\"]", "", "words.anywhere must be a list"),
            ("first = [\"What\"]", "first = [1]", "words.first must hold words"),
        ] {
            let error = Baseline::parse(&FILE.replace(old, new)).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
