//! Fingerprint of a configuration: the settings that a campaign keeps from its first round to its last. A
//! server resumes a stored campaign under the settings with which the campaign was begun.
//!
//! Store, journal and export contain the fingerprint as a TOML document with one `key = value` line per
//! setting. The keys are those of `fleet.toml`; a setting that the file omits has a line with the default
//! value. Two fingerprints are compared key by key, by the meaning of the values.
//!
//! * [`write`] writes the settings of a configuration. The code names every field of every section, so a new
//!   field does not compile until `write` handles the field.
//! * [`read`] builds a configuration from settings, with the parser of `fleet.toml`.
//! * [`legacy_text`] reads the text of the first versions with store format 5.
//!
//! A changed default needs no change in this module, because every stored fingerprint contains the value
//! itself. A new key needs an entry in [`LATER`].

mod legacy_text;
mod parse;
mod read;
mod text;
mod value;
mod write;

use text::{Change, Settings};
use value::Setting;

use super::fleet::Fleet;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::config::Problem;

/// Keys that were added to fingerprints after the first release of store format 5.
const LATER: &[LaterKey] = &[LaterKey {
    key: "algorithm.fallback_ridge",
    value: "0.03",
    applies_with: Some(("algorithm.final_ridge", "\"auto\"")),
}];

/// Key that older fingerprints do not contain.
#[derive(Clone, Copy, Debug)]
struct LaterKey {
    /// Name of the key.
    key: &'static str,
    /// Value in TOML that a fingerprint without the key stands for.
    value: &'static str,
    /// Condition for the key: another key, and the value that this other key must have; `None` if the key
    /// always applies.
    applies_with: Option<(&'static str, &'static str)>,
}

/// Reason why a configuration cannot resume a stored campaign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The configuration sets a value that differs from the stored one. The text lists the differences, one
    /// line each.
    #[error("{0}")]
    Differs(String),
    /// This version cannot read the stored settings.
    #[error("{0}")]
    Unreadable(Problem),
}

/// Configuration under the settings of a stored campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// Configuration with the stored settings.
    pub fleet: Fleet,
    /// Stored settings that the file does not set and whose defaults have changed, one line each.
    pub kept: Vec<String>,
}

impl Fleet {
    /// Returns the fingerprint: one `key = value` line per setting that affects results. Settings that may
    /// change while a campaign runs (addresses, deadlines, the number of expected devices, limits on peers)
    /// are not included.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.settings().to_string()
    }

    /// Returns this configuration under the settings of a stored campaign. A key that the file sets must have
    /// the stored value. A key that the file does not set gets the stored value, even if the default has
    /// changed.
    ///
    /// # Errors
    /// [`Mismatch`] if the file sets another value, or the stored settings cannot be read.
    pub fn resumed(&self, stored: &str) -> Result<Resumed, Mismatch> {
        let current = self.settings();
        let stored = Settings::parse(stored).with_later(LATER, &current);
        let changes = stored.changes(&current).into_iter();
        let (fixed, unset): (Vec<Change<'_>>, Vec<Change<'_>>) =
            changes.partition(|change| self.is_fixed(change.key, &stored));
        if !fixed.is_empty() {
            return Err(Mismatch::Differs(fixed.iter().map(Change::to_string).collect()));
        }
        if unset.is_empty() {
            return Ok(Resumed { fleet: self.clone(), kept: Vec::new() });
        }
        let fleet = self.with_settings(&stored).map_err(Mismatch::Unreadable)?;
        // Settings that are not among the stored ones and still apply to this configuration.
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
    /// Returns true if the configuration fixes the value of a key: the file sets the key, the absence of the
    /// key is itself a value, or the key belongs to a custom part, which no file can set.
    fn is_fixed(&self, key: &str, stored: &Settings) -> bool {
        if key.starts_with(write::CUSTOM) {
            return true;
        }
        if key.starts_with(write::AGGREGATION)
            && (matches!(self.rule, Rule::Custom(_)) || has_custom_rule(stored))
        {
            return true;
        }
        match key {
            // These keys have no default; an absent key means that there is no such setting.
            "stop.change" | "data.image" => true,
            "participation.cohort" => self.given.contains("participation.policy"),
            key => self.given.contains(key) || self.is_set_in_own_table(key),
        }
    }

    /// Returns true if the file sets a network's key in a table named after the algorithm.
    fn is_set_in_own_table(&self, key: &str) -> bool {
        let key_in_table =
            key.strip_prefix("algorithm.").map(|key| format!("algorithm.{}.{key}", self.algorithm.name()));
        key_in_table.is_some_and(|key| self.given.contains(&key))
    }
}

/// Returns true if the stored aggregation rule is a custom rule.
fn has_custom_rule(stored: &Settings) -> bool {
    let rule = stored.get("aggregation.rule");
    rule.is_some() && !Rule::NAMES.iter().any(|(name, _)| rule == Some(&Setting::from(*name)))
}

/// Returns the settings in which two fingerprints differ in meaning, as lines that begin with `-` (stored) or
/// `+` (given).
#[must_use]
pub fn difference(stored: &str, given: &str) -> String {
    let given = Settings::parse(given);
    Settings::parse(stored).with_later(LATER, &given).difference(&given)
}
