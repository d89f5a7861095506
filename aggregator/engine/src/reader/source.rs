//! Parsed TOML file with the changes of the command line applied: its values, and the positions of keys for
//! error messages.

use std::str::FromStr;

use toml_edit::{Document, DocumentMut, Item, TableLike, Value};

use super::depth::{DEPTH_MAX, too_deep};
use super::given_keys::GivenKeys;
use super::suggestions::shortened;

/// Largest number of characters of a key, or of a change, in an error message.
pub const SHOWN_MAX: usize = 60;

/// Mistake in a file or on the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Problem {
    /// Position of the mistake: `file:line`, `file`, or `--set key`.
    pub place: String,
    /// Text with the value found and the values allowed.
    pub message: String,
}

impl Problem {
    /// Creates an error at a position.
    #[must_use]
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }
}

/// Parsed file with the changes of the command line applied.
#[derive(Debug)]
pub struct Source {
    name: String,
    text: String,
    /// Document as parsed from the file, for line numbers.
    original: Document<String>,
    /// Document with the changes applied.
    pub(super) effective: DocumentMut,
    /// Dotted keys of the changes.
    changed: Vec<String>,
    /// Whether the changes come from the program itself, not from the command line.
    in_code: bool,
}

impl Source {
    /// Parses `text` and applies `changes` (`dotted.key=value`; a value that is not TOML is a string).
    ///
    /// # Errors
    /// [`Problem`] if the text is not TOML, a change is not `key=value`, or the nesting is too deep.
    pub fn parse(name: &str, text: &str, changes: &[String]) -> Result<Self, Problem> {
        if let Some(offset) = too_deep(text) {
            let place = format!("{name}:{}", line_of(text, offset));
            let message = format!(
                "found keys, tables or lists more than {DEPTH_MAX} deep, allowed: at most {DEPTH_MAX}"
            );
            return Err(Problem::new(place, message));
        }
        let original = Document::parse(text.to_owned()).map_err(|error| {
            let place = match error.span() {
                Some(span) => format!("{name}:{}", line_of(text, span.start)),
                None => name.to_owned(),
            };
            Problem::new(place, error.message().replace('\n', ", "))
        })?;
        let mut effective = original.clone().into_mut();
        let mut changed = Vec::new();
        for change in changes {
            let place = format!("--set {}", shortened(change, SHOWN_MAX));
            let (key, value) = change
                .split_once('=')
                .ok_or_else(|| Problem::new(&place, "expected KEY=VALUE, no '=' found"))?;
            let (key, value) = (key.trim(), value.trim());
            let is_value = too_deep(value).is_none();
            let parsed = is_value.then(|| Value::from_str(value).ok()).flatten();
            let value = parsed.unwrap_or_else(|| Value::from(value));
            let parts = key.split('.').count();
            if parts > DEPTH_MAX {
                let message = format!("found a key of {parts} parts, allowed: at most {DEPTH_MAX}");
                return Err(Problem::new(place, message));
            }
            set_value(&mut effective, key, value).ok_or_else(|| {
                Problem::new(
                    &place,
                    format!("{:?} is not a dotted key of this file", shortened(key, SHOWN_MAX)),
                )
            })?;
            changed.push(key.to_owned());
        }
        Ok(Self {
            name: name.to_owned(),
            text: text.to_owned(),
            original,
            effective,
            changed,
            in_code: false,
        })
    }

    /// Creates a source from settings in code, without a file.
    pub(super) fn from_values(name: &str, values: Vec<(String, Value)>) -> Result<Self, Problem> {
        let mut source = Self::parse(name, "", &[])?;
        source.in_code = true;
        for (key, value) in values {
            let fits = key.split('.').count() <= DEPTH_MAX;
            fits.then(|| set_value(&mut source.effective, &key, value)).flatten().ok_or_else(|| {
                Problem::new(name, format!("{:?} is not a dotted key", shortened(&key, SHOWN_MAX)))
            })?;
            source.changed.push(key);
        }
        Ok(source)
    }

    /// The file with all changes applied, as TOML text.
    #[must_use]
    pub fn effective(&self) -> String {
        self.effective.to_string()
    }

    /// Name of the file, as given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Keys that the file or the changes set.
    #[must_use]
    pub fn given_keys(&self) -> GivenKeys {
        GivenKeys::from_document(self.effective.as_table())
    }

    /// Position of a dotted key, for messages.
    #[must_use]
    pub fn place(&self, path: &str) -> String {
        if self.changed.iter().any(|key| key == path) {
            let key = shortened(path, SHOWN_MAX);
            return if self.in_code { key } else { format!("--set {key}") };
        }
        let mut item = Some(self.original.as_item());
        let mut span = None;
        for part in path.split('.').filter(|part| !part.is_empty()) {
            let table = item.and_then(Item::as_table_like);
            span = table
                .and_then(|t| t.get_key_value(part))
                .and_then(|(key, value)| key.span().or_else(|| value.span()));
            item = table.and_then(|t| t.get(part));
        }
        match span {
            Some(span) => format!("{}:{}", self.name, line_of(&self.text, span.start)),
            None => self.name.clone(),
        }
    }
}

/// Line number of an offset, counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Sets a dotted key, and creates missing tables. `None` if a part of the key is empty or is not a table.
fn set_value(document: &mut DocumentMut, key: &str, value: Value) -> Option<()> {
    let parts: Vec<&str> = key.split('.').collect();
    let (last, tables) = parts.split_last()?;
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for part in tables {
        table = table.entry(part).or_insert_with(toml_edit::table).as_table_like_mut()?;
    }
    table.insert(last, Item::Value(value));
    Some(())
}
