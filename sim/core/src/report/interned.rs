//! Names in results that are read again. Names are constants of the program otherwise.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer};

/// Name of which there is one text in the program. The derived reader would borrow a `&str` from its input.
pub type Name = &'static str;

/// All names that were read so far, each once.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Name with this text that lives as long as the program. Memory is used once for each distinct name.
fn interned(text: String) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(text.as_str()) {
        return name;
    }
    let name: &'static str = text.leak();
    names.insert(name);
    name
}

/// Reads a name.
pub(crate) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    String::deserialize(deserializer).map(interned)
}

/// Reads a name that may be missing.
pub(crate) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'static str>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.map(interned))
}

/// Reads names with values, in the order of the text.
pub(crate) fn names_and_values<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<(&'static str, V)>, D::Error> {
    struct Entries<V>(std::marker::PhantomData<V>);
    impl<'de, V: Deserialize<'de>> serde::de::Visitor<'de> for Entries<V> {
        type Value = Vec<(&'static str, V)>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("a map of names")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some((name, value)) = map.next_entry::<String, V>()? {
                entries.push((interned(name), value));
            }
            Ok(entries)
        }
    }
    deserializer.deserialize_map(Entries(std::marker::PhantomData))
}
