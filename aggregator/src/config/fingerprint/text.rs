//! Settings of a fingerprint as a list of keys and values, their text form, and the comparison of two lists.

use std::fmt;

use super::LaterKey;
use super::value::Setting;

/// Settings by key, in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Settings(Vec<(String, Setting)>);

/// Key whose value differs between two lists of settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    /// Name of the key.
    pub(super) key: &'a str,
    /// Value in the first list; `None` if the list lacks the key.
    pub(super) was: Option<&'a Setting>,
    /// Value in the second list; `None` if the list lacks the key.
    pub(super) is: Option<&'a Setting>,
}

/// Formats the change as the first value on a line with a minus and the second value on a line with a plus.
impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sign, value) in [("-", self.was), ("+", self.is)] {
            if let Some(value) = value {
                writeln!(f, "{sign} {} = {value}", self.key)?;
            }
        }
        Ok(())
    }
}

impl Settings {
    /// Returns the value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Setting> {
        self.0.iter().find(|(existing, _)| existing == key).map(|(_, value)| value)
    }

    /// Appends a setting, even if the key exists already.
    pub(super) fn push(&mut self, key: &str, value: Setting) {
        self.0.push((key.to_owned(), value));
    }

    /// Adds a setting, or replaces the value of an existing one.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Setting>) {
        let value = value.into();
        match self.0.iter_mut().find(|(existing, _)| existing == key) {
            Some((_, old_value)) => *old_value = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Removes a setting and returns its value.
    pub(super) fn take(&mut self, key: &str) -> Option<Setting> {
        let index = self.0.iter().position(|(existing, _)| existing == key)?;
        Some(self.0.remove(index).1)
    }

    /// Removes the settings whose keys begin with `prefix`.
    pub(super) fn take_all(&mut self, prefix: &str) {
        self.0.retain(|(key, _)| !key.starts_with(prefix));
    }

    /// Adds each key of `later` that is missing here and present in `other`, with the value that a missing
    /// key stands for.
    pub(super) fn with_later(mut self, later: &[LaterKey], other: &Self) -> Self {
        for LaterKey { key, value, applies_with } in later {
            let applies =
                applies_with.is_none_or(|(key, value)| self.get(key) == Some(&Setting::parse(value)));
            if applies && self.get(key).is_none() && other.get(key).is_some() {
                self.set(key, Setting::parse(value));
            }
        }
        self
    }

    /// Returns the keys whose values differ in `other`: first the keys of these settings, then the keys that
    /// only `other` has.
    pub(super) fn changes<'a>(&'a self, other: &'a Self) -> Vec<Change<'a>> {
        let own_changes = self.0.iter().map(|(key, was)| Change { key, was: Some(was), is: other.get(key) });
        let added = other.0.iter().filter(|(key, _)| self.get(key).is_none());
        let added = added.map(|(key, is)| Change { key, was: None, is: Some(is) });
        own_changes.chain(added).filter(|change| change.was != change.is).collect()
    }

    /// Formats the differences, one line each.
    pub(super) fn difference(&self, other: &Self) -> String {
        self.changes(other).iter().map(Change::to_string).collect()
    }
}

/// Formats each setting as a line `key = value`.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(key, value)| writeln!(f, "{key} = {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{LaterKey, Settings};

    /// A text without a later key is read with the value that the missing key stands for, but only where the
    /// key applies.
    #[test]
    fn later_keys_have_their_earlier_meaning() {
        let later = [("algorithm.scale", "\"none\""), ("algorithm.clip", "2.5")];
        let later = later.map(|(key, value)| LaterKey { key, value, applies_with: None });
        let stored = Settings::parse("seed = 1\nalgorithm.clip = 3\n");
        let given = Settings::parse("seed = 1\nalgorithm.clip = 3.0\nalgorithm.scale = \"none\"\n");
        assert_eq!(stored.difference(&given), "+ algorithm.scale = \"none\"\n");
        assert_eq!(stored.clone().with_later(&later, &given).difference(&given), "");
        let other = Settings::parse("seed = 1\nalgorithm.clip = 3\nalgorithm.scale = \"fleet\"\n");
        let expected = "- algorithm.scale = \"none\"\n+ algorithm.scale = \"fleet\"\n";
        assert_eq!(stored.clone().with_later(&later, &other).difference(&other), expected);
        assert_eq!(stored.clone().with_later(&later, &stored).difference(&stored), "");
        for (seed, difference) in [("1", ""), ("2", "+ algorithm.scale = \"none\"\n")] {
            let later = later.map(|later| LaterKey { applies_with: Some(("seed", seed)), ..later });
            assert_eq!(stored.clone().with_later(&later, &given).difference(&given), difference);
        }
    }
}
