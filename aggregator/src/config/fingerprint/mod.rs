//! Settings that a campaign keeps from its first round to its last: a server goes on with a stored campaign under the settings
//! with which that began.
//!
//! A store, a journal and an export hold them as text: a TOML document with one line for every setting, each under the key that
//! it has in `fleet.toml`, whether the file says it or not. Two texts are compared by meaning, key by key.
//!
//! * [`write`](self::write) makes the settings of a configuration, exhaustively: a field that is added to a section does not
//!   compile until it is written or left out on purpose.
//! * [`read`](self::read) makes a configuration of settings, with the reader of the file.
//! * [`legacy_text`](self::legacy_text) reads the text that the first versions with store format 5 wrote.
//!
//! A default that changes needs nothing here: every stored text says the value of its time. A key that is new needs a line in
//! [`LATER`].

mod legacy_text;
mod read;
mod text;
mod value;
mod write;

use text::{Change, Settings};

use super::fleet::Fleet;
use fedspan_engine::config::Problem;

/// Keys that came after the first stored texts.
const LATER: &[Later] = &[Later {
    key: "algorithm.fallback_ridge",
    value: "0.03",
    beside: Some(("algorithm.final_ridge", "\"auto\"")),
}];

/// A key that came later.
#[derive(Clone, Copy, Debug)]
struct Later {
    /// The key.
    key: &'static str,
    /// The value, as it would stand in the file, that a text without the key means.
    value: &'static str,
    /// Another key, and the value that it must have for there to be this one.
    beside: Option<(&'static str, &'static str)>,
}

/// Settings of a stored campaign under which a configuration cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The configuration says something else.
    #[error("{0}")]
    Differs(String),
    /// The stored settings make no sense to this version.
    #[error("{0}")]
    Unreadable(Problem),
}

/// A configuration under the settings of a stored campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// The configuration.
    pub fleet: Fleet,
    /// Settings that the file does not say and whose defaults were others when the campaign began, a line each.
    pub kept: Vec<String>,
}

impl Fleet {
    /// The settings of the campaign as text, a line each, in the words of the file: everything on which depends what counts, and
    /// as what. Settings that may change while a campaign runs (addresses, deadlines, how many devices are expected, what one
    /// peer may take) are not among them.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.settings().to_string()
    }

    /// This configuration for a campaign that began with the settings `stored`. What the file says must be what is stored; of what
    /// it does not say the stored value counts, whatever the default is now.
    ///
    /// # Errors
    /// [`Mismatch`] where the file says something else, or the stored settings cannot be read.
    pub fn resumed(&self, stored: &str) -> Result<Resumed, Mismatch> {
        let own = self.settings();
        let stored = Settings::parse(stored).with_later(LATER, &own);
        let changes = stored.changes(&own).into_iter();
        let (said, unsaid): (Vec<Change<'_>>, Vec<Change<'_>>) =
            changes.partition(|change| self.says(change.key));
        if !said.is_empty() {
            return Err(Mismatch::Differs(said.iter().map(Change::to_string).collect()));
        }
        if unsaid.is_empty() {
            return Ok(Resumed { fleet: self.clone(), kept: Vec::new() });
        }
        let fleet = self.under(&stored).map_err(Mismatch::Unreadable)?;
        // A setting that the stored text has not, and that is in force all the same.
        let differences = stored.difference(&fleet.settings());
        if !differences.is_empty() {
            return Err(Mismatch::Differs(differences));
        }
        let unsaid = unsaid.iter().filter(|change| !write::DERIVED.contains(&change.key));
        let kept = unsaid.filter_map(|change| Some(format!("{} = {}", change.key, change.was?)));
        Ok(Resumed { fleet, kept: kept.collect() })
    }
}

impl Fleet {
    /// Whether the value of a setting, or that it has none, is the configuration's own rather than a default.
    fn says(&self, key: &str) -> bool {
        match key {
            // Without the key there is none, now and ever.
            "stop.change" | "data.image" => true,
            "participation.cohort" => self.said.says("participation.policy"),
            key => self.said.says(key) || self.says_in_own_table(key),
        }
    }

    /// Keys of networks may stand in a table of the algorithm's name.
    fn says_in_own_table(&self, key: &str) -> bool {
        let own = key
            .strip_prefix("algorithm.")
            .map(|key| format!("algorithm.{}.{key}", self.algorithm.name.word()));
        own.is_some_and(|key| self.said.says(&key))
    }
}

/// Lines of two fingerprints that mean different things, the stored ones with a minus, those that are given now with a plus.
#[must_use]
pub fn difference(stored: &str, given: &str) -> String {
    let given = Settings::parse(given);
    Settings::parse(stored).with_later(LATER, &given).difference(&given)
}
