//! Keys that a configuration sets itself, as opposed to those left to their defaults.

use std::collections::BTreeSet;

use toml_edit::TableLike;

/// Dotted keys that a file or the command line sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenKeys {
    /// The set keys; `None` for all keys.
    keys: Option<BTreeSet<String>>,
}

impl GivenKeys {
    /// All keys, for a configuration that comes from no file and so has no defaults.
    pub const ALL: Self = Self { keys: None };

    /// Collects the keys of a document.
    pub(super) fn from_document(document: &dyn TableLike) -> Self {
        let mut keys = BTreeSet::new();
        collect("", document, &mut keys);
        Self { keys: Some(keys) }
    }

    /// Adds a key, such as one set by an option of the command line.
    pub fn add(&mut self, key: &str) {
        if let Some(keys) = &mut self.keys {
            keys.insert(key.to_owned());
        }
    }

    /// Whether a dotted key is set.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(key))
    }
}

fn collect(path: &str, table: &dyn TableLike, keys: &mut BTreeSet<String>) {
    for (key, item) in table.iter().filter(|(_, item)| !item.is_none()) {
        let key = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match item.as_table_like() {
            Some(table) => collect(&key, table, keys),
            None => drop(keys.insert(key)),
        }
    }
}
