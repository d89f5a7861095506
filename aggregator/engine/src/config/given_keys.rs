//! Keys that a configuration says itself, rather than leave them to their defaults.

use std::collections::BTreeSet;

use toml_edit::TableLike;

/// Dotted keys that a file says, with the changes of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenKeys {
    /// None: everything is meant as it is.
    keys: Option<BTreeSet<String>>,
}

impl GivenKeys {
    /// Of a configuration that no file has: nothing of it is a default.
    pub const ALL: Self = Self { keys: None };

    /// Keys of a document.
    pub(super) fn from_document(document: &dyn TableLike) -> Self {
        let mut keys = BTreeSet::new();
        collect("", document, &mut keys);
        Self { keys: Some(keys) }
    }

    /// Adds a key, such as one that an option of the command line stands for.
    pub fn add(&mut self, key: &str) {
        if let Some(keys) = &mut self.keys {
            keys.insert(key.to_owned());
        }
    }

    /// Whether a dotted key is among them.
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
