//! Set of the keys that a configuration sets explicitly, in contrast to keys that have their defaults.

use std::collections::BTreeSet;

use toml_edit::TableLike;

/// Dotted keys that a file or the command line sets explicitly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenKeys {
    /// Keys that are set; `None` means all keys.
    keys: Option<BTreeSet<String>>,
}

impl GivenKeys {
    /// All keys, for a configuration that was not read from a file and therefore has no defaults.
    pub const ALL: Self = Self { keys: None };

    /// Collects the keys of a document.
    pub(super) fn from_document(document: &dyn TableLike) -> Self {
        let mut keys = BTreeSet::new();
        collect_keys("", document, &mut keys);
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

/// Adds the dotted keys of a table, whose own dotted key is `path`.
fn collect_keys(path: &str, table: &dyn TableLike, keys: &mut BTreeSet<String>) {
    for (key, item) in table.iter().filter(|(_, item)| !item.is_none()) {
        let key = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match item.as_table_like() {
            Some(table) => collect_keys(&key, table, keys),
            None => drop(keys.insert(key)),
        }
    }
}
