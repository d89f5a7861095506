//! Key-by-key reader of the tables of a TOML file. Every mistake is reported in one message with the file,
//! the line number, the key, the value found and the values allowed. Unknown keys are mistakes, and the
//! message suggests the nearest known key.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use toml_edit::{Item, TableLike, Value};

use super::source::{Problem, SHOWN_MAX, Source};
use super::suggestions::{nearest, shortened, show};

impl Source {
    /// Section for the top level of the file.
    #[must_use]
    pub fn root(&self) -> Section<'_> {
        let table: &dyn TableLike = self.effective.as_table();
        Section { source: self, path: String::new(), table: Some(table), known_keys: RefCell::default() }
    }
}

/// Table of a file that is read key by key. A key becomes known when it is read, and [`Self::finish`] rejects
/// the other keys.
pub struct Section<'a> {
    source: &'a Source,
    path: String,
    table: Option<&'a dyn TableLike>,
    /// Keys that have been read, which are the known keys of the section.
    known_keys: RefCell<Vec<String>>,
}

impl<'a> Section<'a> {
    /// Dotted path of a key of this section.
    #[must_use]
    pub fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Whether the file has the section.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the file has the key, with any value. Does not add the key to the known keys.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Whether the file has the key, with a table as its value.
    #[must_use]
    pub(crate) fn has_table(&self, key: &str) -> bool {
        self.item(key).is_some_and(|item| item.as_table_like().is_some())
    }

    /// String value of a key, if it has one. Does not add the key to the known keys.
    #[must_use]
    pub fn peek_str(&self, key: &str) -> Option<&'a str> {
        self.table.and_then(|table| table.get(key)).and_then(Item::as_str)
    }

    /// First key of the section in the file.
    #[must_use]
    pub fn first_key(&self) -> Option<String> {
        self.table.and_then(|table| table.iter().next()).map(|(key, _)| key.to_owned())
    }

    /// Adds a key to the known keys, and returns whether the file has the key.
    pub(crate) fn register(&self, key: &str) -> bool {
        self.item(key).is_some()
    }

    /// Creates an error at the position of a key of this section.
    #[must_use]
    pub fn problem(&self, key: &str, message: impl Display) -> Problem {
        let path = self.path_of(key);
        let place = self.source.place(&path);
        let path = shortened(&path, SHOWN_MAX);
        let label =
            if path.is_empty() || place.ends_with(&path) { String::new() } else { format!("{path}: ") };
        Problem::new(place, format!("{label}{message}"))
    }

    /// Value of a key, if the file has the key. Adds the key to the known keys.
    fn item(&self, key: &str) -> Option<&'a Item> {
        self.known_keys.borrow_mut().push(key.to_owned());
        self.table.and_then(|table| table.get(key)).filter(|item| !item.is_none())
    }

    /// Creates the error of a value that is not allowed.
    fn mismatch(&self, key: &str, found: &Item, allowed: impl Display) -> Problem {
        self.problem(key, format!("found {}, allowed: {allowed}", show(found)))
    }

    /// Creates the error of a required key that the file does not have.
    fn missing(&self, key: &str, allowed: impl Display) -> Problem {
        let path = self.path_of(key);
        // If the section has an unknown key similar to the missing one, the key is probably misspelt.
        let known_keys = self.known_keys.borrow();
        let unknown = self.table.iter().flat_map(|table| table.iter()).map(|(name, _)| name);
        let unknown: Vec<&str> =
            unknown.filter(|name| !known_keys.iter().any(|known| known == name)).collect();
        if let Some(similar) = nearest(key, &unknown) {
            return self.problem(similar, format!("unknown key (did you mean {key:?}?), allowed: {allowed}"));
        }
        let place = self.source.place(&self.path);
        Problem::new(place, format!("{path} is missing, allowed: {allowed}"))
    }

    /// Reads a table inside this table. The table may be absent.
    ///
    /// # Errors
    /// [`Problem`] if the value is no table.
    pub fn section(&self, key: &str) -> Result<Section<'a>, Problem> {
        let table = match self.item(key) {
            None => None,
            Some(item) => Some(item.as_table_like().ok_or_else(|| self.mismatch(key, item, "a table"))?),
        };
        Ok(Section { source: self.source, path: self.path_of(key), table, known_keys: RefCell::default() })
    }

    /// Reads an integer within `range`.
    ///
    /// # Errors
    /// [`Problem`] if the key is absent without a default, or the value is no integer or out of range.
    pub fn integer(
        &self,
        key: &str,
        default: Option<u64>,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Problem> {
        let allowed = format!("an integer from {} to {}", range.start(), range.end());
        match self.item(key) {
            None => default.ok_or_else(|| self.missing(key, allowed)),
            Some(item) => item
                .as_integer()
                .and_then(|value| u64::try_from(value).ok())
                .filter(|value| range.contains(value))
                .ok_or_else(|| self.mismatch(key, item, allowed)),
        }
    }

    /// Reads an integer as a size.
    ///
    /// # Errors
    /// [`Problem`] if the key is absent without a default, or the value is no integer, out of range, or too
    /// large for this machine.
    pub fn size(
        &self,
        key: &str,
        default: Option<usize>,
        range: RangeInclusive<usize>,
    ) -> Result<usize, Problem> {
        let wide = *range.start() as u64..=*range.end() as u64;
        let value = self.integer(key, default.map(|v| v as u64), wide)?;
        usize::try_from(value).map_err(|_| self.problem(key, "too large for this machine"))
    }

    /// Reads a finite number within `range`; integers are accepted.
    ///
    /// # Errors
    /// [`Problem`] if the key is absent without a default, or the value is no number or out of range.
    pub fn number(
        &self,
        key: &str,
        default: Option<f64>,
        range: RangeInclusive<f64>,
    ) -> Result<f64, Problem> {
        let allowed = if *range.end() >= f64::MAX {
            format!("a number from {}", format_number(*range.start()))
        } else {
            format!("a number from {} to {}", format_number(*range.start()), format_number(*range.end()))
        };
        match self.item(key) {
            None => default.ok_or_else(|| self.missing(key, allowed)),
            #[allow(clippy::cast_precision_loss, reason = "a setting")]
            Some(item) => item
                .as_float()
                .or_else(|| item.as_integer().map(|value| value as f64))
                .filter(|value| value.is_finite() && range.contains(value))
                .ok_or_else(|| self.mismatch(key, item, allowed)),
        }
    }

    /// Reads a number that may be absent.
    ///
    /// # Errors
    /// [`Problem`] if the value is no number or out of range.
    pub fn optional_number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Problem> {
        if self.item(key).is_none() {
            return Ok(None);
        }
        self.number(key, None, range).map(Some)
    }

    /// Reads a number or the word `"auto"`; `None` for `"auto"` and for an absent key.
    ///
    /// # Errors
    /// [`Problem`] if the value is neither, or out of range.
    pub fn automatic(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Problem> {
        match self.item(key) {
            None => Ok(None),
            Some(item) if item.as_str() == Some("auto") => Ok(None),
            Some(item) if item.is_str() => {
                let (min, max) = (format_number(*range.start()), format_number(*range.end()));
                Err(self.mismatch(key, item, format!("\"auto\", a number from {min} to {max}")))
            }
            Some(_) => self.number(key, None, range).map(Some),
        }
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// [`Problem`] if the value is neither true nor false.
    pub fn boolean(&self, key: &str, default: bool) -> Result<bool, Problem> {
        match self.item(key) {
            None => Ok(default),
            Some(item) => item.as_bool().ok_or_else(|| self.mismatch(key, item, "true or false")),
        }
    }

    /// Reads a string.
    ///
    /// # Errors
    /// [`Problem`] if the key is absent without a default, or the value is no string.
    pub fn string(&self, key: &str, default: Option<&str>, allowed: &str) -> Result<String, Problem> {
        match self.item(key) {
            None => default.map(str::to_owned).ok_or_else(|| self.missing(key, allowed)),
            Some(item) => item.as_str().map(str::to_owned).ok_or_else(|| self.mismatch(key, item, allowed)),
        }
    }

    /// Reads a string that may be absent.
    ///
    /// # Errors
    /// [`Problem`] if the value is no string.
    pub fn optional_string(&self, key: &str, allowed: &str) -> Result<Option<String>, Problem> {
        if self.item(key).is_none() {
            return Ok(None);
        }
        self.string(key, None, allowed).map(Some)
    }

    /// Reads one of several words, and returns the value listed with it.
    ///
    /// # Errors
    /// [`Problem`] if the value is none of these words. The message lists all words and suggests the nearest.
    pub fn choice<T: Clone>(
        &self,
        key: &str,
        default: Option<&str>,
        choices: &[(&str, T)],
    ) -> Result<T, Problem> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let allowed = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let chosen = self.string(key, default, &allowed)?;
        choices.iter().find(|(name, _)| *name == chosen).map(|(_, value)| value.clone()).ok_or_else(|| {
            let hint = nearest(&chosen, &names).map_or(String::new(), |n| format!(" (did you mean {n:?}?)"));
            self.problem(key, format!("found {chosen:?}, allowed: {allowed}{hint}"))
        })
    }

    /// Reads a string or a list of strings.
    ///
    /// # Errors
    /// [`Problem`] if the value is neither, the list is empty, or the key is absent.
    pub fn strings(&self, key: &str, allowed: &str) -> Result<Vec<String>, Problem> {
        let Some(item) = self.item(key) else { return Err(self.missing(key, allowed)) };
        let strings = match (item.as_str(), item.as_array()) {
            (Some(string), _) => Some(vec![string.to_owned()]),
            (None, Some(array)) => array.iter().map(|value| value.as_str().map(str::to_owned)).collect(),
            (None, None) => None,
        };
        strings.filter(|list: &Vec<String>| !list.is_empty()).ok_or_else(|| self.mismatch(key, item, allowed))
    }

    /// Reads a list and converts each element by `element`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`Problem`] if the value is no list, or `element` returns `None` for an element.
    pub fn list<T>(
        &self,
        key: &str,
        allowed: &str,
        element: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Problem> {
        let Some(item) = self.item(key) else { return Ok(None) };
        let array = item.as_array().ok_or_else(|| self.mismatch(key, item, allowed))?;
        let values: Option<Vec<T>> = array.iter().map(element).collect();
        values.map(Some).ok_or_else(|| self.mismatch(key, item, allowed))
    }

    /// Ends the reading of the section.
    ///
    /// # Errors
    /// [`Problem`] for the first unknown key, that is, a key that was not read.
    pub fn finish(&self) -> Result<(), Problem> {
        let Some(table) = self.table else { return Ok(()) };
        let known_keys = self.known_keys.borrow();
        let known_names: Vec<&str> = known_keys.iter().map(String::as_str).collect();
        for (key, _) in table.iter() {
            if !known_names.contains(&key) {
                let mut allowed: Vec<&str> = known_names.clone();
                allowed.sort_unstable();
                allowed.dedup();
                if allowed.is_empty() {
                    let section = &self.path;
                    return Err(
                        self.problem(key, format!("unknown key: [{section}] has no keys here, leave it out"))
                    );
                }
                let kind = table.get("kind").and_then(Item::as_str);
                let kind = kind.map_or(String::new(), |kind| format!(" for kind {kind:?}"));
                let hint =
                    nearest(key, &allowed).map_or(String::new(), |n| format!(" (did you mean {n:?}?)"));
                let allowed = allowed.join(", ");
                return Err(self.problem(key, format!("unknown key{kind}{hint}, allowed: {allowed}")));
            }
        }
        Ok(())
    }
}

/// Formats a number in decimal notation, or in scientific notation if it is very large or small.
fn format_number(value: f64) -> String {
    if value == 0.0 || (1e-4..1e7).contains(&value.abs()) { value.to_string() } else { format!("{value:e}") }
}
