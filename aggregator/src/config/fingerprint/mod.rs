//! Fingerprint: the settings that a campaign keeps from its first round to its last. A server resumes a stored
//! campaign under the settings that it was begun with.
//!
//! Store, journal and export hold them as a TOML document with one line per setting, under the key that it has
//! in `fleet.toml`, whether the file sets it or not. Two fingerprints are compared key by key, by the meaning
//! of the values.
//!
//! * [`write`] lists the settings of a configuration exhaustively: a field added to a section does
//!   not compile until it is written, or left out on purpose.
//! * [`read`] makes a configuration of settings, with the reader of `fleet.toml`.
//! * [`legacy_text`] reads the text of the first versions with store format 5.
//!
//! A default that changes needs nothing here, since every stored text has the value of its time. A key that is
//! new needs a line in [`LATER`].

mod legacy_text;
mod read;
mod text;
mod value;
mod write;

use text::{Change, Settings};
use value::Setting;

use super::fleet::Fleet;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::config::Problem;

/// Keys that were added after the first stored texts.
const LATER: &[Later] = &[Later {
    key: "algorithm.fallback_ridge",
    value: "0.03",
    applies_with: Some(("algorithm.final_ridge", "\"auto\"")),
}];

/// Key that was added later.
#[derive(Clone, Copy, Debug)]
struct Later {
    /// Name of the key.
    key: &'static str,
    /// Value, in TOML, of texts without the key.
    value: &'static str,
    /// Another key with the value that makes this one apply.
    applies_with: Option<(&'static str, &'static str)>,
}

/// Reason why a configuration cannot resume a stored campaign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The configuration sets another value.
    #[error("{0}")]
    Differs(String),
    /// This version cannot read the stored settings.
    #[error("{0}")]
    Unreadable(Problem),
}

/// Configuration under the settings of a stored campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// Configuration itself.
    pub fleet: Fleet,
    /// Stored settings that the file does not set and whose defaults have changed, one line each.
    pub kept: Vec<String>,
}

impl Fleet {
    /// Returns the fingerprint: one `key = value` line per setting that affects results. Settings that may
    /// change while a campaign runs (addresses, deadlines, the number of expected devices, limits on peers) are
    /// not included.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.settings().to_string()
    }

    /// Returns this configuration under the settings of a stored campaign. Keys that the file sets must have
    /// the stored value; other keys take it, whatever their default is now.
    ///
    /// # Errors
    /// [`Mismatch`] if the file sets another value, or the stored settings cannot be read.
    pub fn resumed(&self, stored: &str) -> Result<Resumed, Mismatch> {
        let own = self.settings();
        let stored = Settings::parse(stored).with_later(LATER, &own);
        let changes = stored.changes(&own).into_iter();
        let (given, unset): (Vec<Change<'_>>, Vec<Change<'_>>) =
            changes.partition(|change| self.says(change.key, &stored));
        if !given.is_empty() {
            return Err(Mismatch::Differs(given.iter().map(Change::to_string).collect()));
        }
        if unset.is_empty() {
            return Ok(Resumed { fleet: self.clone(), kept: Vec::new() });
        }
        let fleet = self.with_settings(&stored).map_err(Mismatch::Unreadable)?;
        // Settings that are not stored but in force all the same.
        let differences = stored.difference(&fleet.settings());
        if !differences.is_empty() {
            return Err(Mismatch::Differs(differences));
        }
        let unset = unset.iter().filter(|change| !write::DERIVED.contains(&change.key));
        let kept = unset.filter_map(|change| Some(format!("{} = {}", change.key, change.was?)));
        Ok(Resumed { fleet, kept: kept.collect() })
    }
}

impl Fleet {
    /// Returns true if the file sets a key, or its absence has a meaning: no file can name a custom part, so that
    /// the stored one must be the given one.
    fn says(&self, key: &str, stored: &Settings) -> bool {
        if key.starts_with(write::CUSTOM) {
            return true;
        }
        if key.starts_with(write::AGGREGATION)
            && (matches!(self.rule, Rule::Custom(_)) || has_custom_rule(stored))
        {
            return true;
        }
        match key {
            // Without the key there is no value; there is no default.
            "stop.change" | "data.image" => true,
            "participation.cohort" => self.given.contains("participation.policy"),
            key => self.given.contains(key) || self.is_set_in_own_table(key),
        }
    }

    /// Returns true if the file sets a network's key in a table named after the algorithm.
    fn is_set_in_own_table(&self, key: &str) -> bool {
        let own =
            key.strip_prefix("algorithm.").map(|key| format!("algorithm.{}.{key}", self.algorithm.name()));
        own.is_some_and(|key| self.given.contains(&key))
    }
}

/// Returns true if the rule of stored settings is none that a file can name.
fn has_custom_rule(stored: &Settings) -> bool {
    let rule = stored.get("aggregation.rule");
    rule.is_some() && !Rule::NAMES.iter().any(|(name, _)| rule == Some(&Setting::from(*name)))
}

/// Returns the lines in which two fingerprints differ in meaning: `-` stored, `+` given.
#[must_use]
pub fn difference(stored: &str, given: &str) -> String {
    let given = Settings::parse(given);
    Settings::parse(stored).with_later(LATER, &given).difference(&given)
}
