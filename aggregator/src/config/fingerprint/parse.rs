//! Parser of stored fingerprints, as written by any version.

use toml_edit::{Document, Item, TableLike};

use super::legacy_text;
use super::text::Settings;
use super::value::Setting;

impl Settings {
    /// Parses a fingerprint that any version wrote. A line that cannot be parsed becomes a setting that
    /// differs from every valid setting.
    pub(super) fn parse(text: &str) -> Self {
        if legacy_text::is_legacy(text) {
            return legacy_text::translate(text);
        }
        let mut settings = Self::default();
        match Document::parse(text) {
            Ok(document) => settings.flatten("", document.as_table()),
            Err(_) => {
                for line in text.lines() {
                    let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
                    settings.push(key, Setting::parse(value));
                }
            }
        }
        settings
    }

    /// Flattens nested tables into dotted keys. The TOML parser limits the depth of nesting.
    fn flatten(&mut self, path: &str, table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let key = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            match item {
                Item::Value(value) if !value.is_inline_table() => self.set(&key, Setting::from_toml(value)),
                item => match item.as_table_like() {
                    Some(table) => self.flatten(&key, table),
                    None => self.set(&key, Setting::Other(item.to_string())),
                },
            }
        }
    }
}
