//! State of a run after a round, from which the run can be continued with the same bits.
//!
//! A file has a line with the version of its writer, the SHA-256 of the content, and the content in postcard.

use fedspan_engine::{NotExtended, Snapshot};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Job, RoundRow, RunError};
use crate::data::file::DataFile;
use crate::energy::Usage;
use crate::fleet::SavedDevice;
use crate::scenario::Scenario;

/// Beginning of a file's first line.
const FORMAT: &str = "fedspan-sim run, version ";
/// Length of a SHA-256.
const HASH_LEN: usize = 32;

/// State of a run after a training round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedRun {
    /// Name of the scenario.
    pub scenario: String,
    /// Text of the scenario with all changes, and with the seed of the run.
    pub text: String,
    /// Seed of the run.
    pub seed: u64,
    /// Files from which the data were read.
    pub files: Vec<DataFile>,
    pub(super) engine: Snapshot,
    pub(super) devices: Vec<SavedDevice>,
    pub(super) rows: Vec<RoundRow>,
    pub(super) time: f64,
    pub(super) updates: u64,
    pub(super) attacks: u64,
    pub(super) traffic: (u64, u64),
    pub(super) energy: Vec<Usage>,
    pub(super) seconds: f64,
    /// True if a condition of the section `[stop]` is met, so that no further round is trained.
    pub(super) is_stopped: bool,
}

/// Reason why a saved run cannot be read or continued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedRunError {
    /// The file is not a saved run.
    #[error("not a saved run of fedspan-sim")]
    Other,
    /// The file was written by another version of this program, whose results may differ.
    #[error("written by fedspan-sim {found}, this is {own}: run the scenario again, or use that version")]
    Version {
        /// Version that wrote the file.
        found: String,
        /// Version of this program.
        own: String,
    },
    /// The content does not match its checksum.
    #[error("damaged: the content does not match its SHA-256")]
    Damaged,
    /// The number of rounds cannot be changed.
    #[error(transparent)]
    NotExtended(#[from] NotExtended),
    /// The noise of each round depends on the number of rounds.
    #[error(
        "the scenario has a section [privacy], and the noise of each round depends on the number of rounds; run it again"
    )]
    Private,
    /// The number of rounds follows from other keys.
    #[error("the number of rounds of {0} cannot be changed in a run that has begun; run it again")]
    DerivedRounds(&'static str),
    /// The changed scenario is not valid.
    #[error("{0}")]
    Scenario(String),
}

impl SavedRun {
    /// Content of a file. `version` is the version of the program, with the commit of its sources if it is known.
    #[must_use]
    pub fn encode(&self, version: &str) -> Vec<u8> {
        // Encoding to a vector does not fail: all parts have known lengths.
        let content = postcard::to_stdvec(self).unwrap_or_default();
        let mut file = format!("{FORMAT}{version}\n").into_bytes();
        file.extend_from_slice(&Sha256::digest(&content));
        file.extend_from_slice(&content);
        file
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// [`SavedRunError`] if it is no such file, is damaged, or was written by another version.
    pub fn decode(file: &[u8], version: &str) -> Result<Self, SavedRunError> {
        let line_end = file.iter().position(|byte| *byte == b'\n').ok_or(SavedRunError::Other)?;
        let (line, content) = file.split_at(line_end);
        let line = std::str::from_utf8(line).map_err(|_| SavedRunError::Other)?;
        let found = line.strip_prefix(FORMAT).ok_or(SavedRunError::Other)?;
        if found != version {
            return Err(SavedRunError::Version { found: found.to_owned(), own: version.to_owned() });
        }
        let content = content.get(1..).unwrap_or_default();
        let (hash, content) = content.split_at_checked(HASH_LEN).ok_or(SavedRunError::Damaged)?;
        if *hash != *Sha256::digest(content) {
            return Err(SavedRunError::Damaged);
        }
        postcard::from_bytes(content).map_err(|_| SavedRunError::Damaged)
    }

    /// Wall-clock time of the rounds so far, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Number of finished training rounds.
    #[must_use]
    pub fn done(&self) -> u32 {
        self.engine.done()
    }

    /// Scenario of the run.
    ///
    /// # Errors
    /// [`SavedRunError::Scenario`] if the text cannot be parsed.
    pub fn parse(&self) -> Result<Scenario, SavedRunError> {
        Scenario::parse(&self.scenario, &self.text, &[])
            .map_err(|problem| SavedRunError::Scenario(problem.to_string()))
    }

    /// Changes the number of rounds of the run. Results are those of a run that had this number from the beginning.
    ///
    /// # Errors
    /// [`SavedRunError`] if this is not possible; the state is then unchanged.
    pub fn extend(&mut self, rounds: u32) -> Result<(), SavedRunError> {
        let configured = self.parse()?;
        if configured.algorithm.rounds == rounds {
            return Ok(());
        }
        if configured.privacy.is_some() {
            return Err(SavedRunError::Private);
        }
        let has_own_rounds = configured.algorithm.linear().is_some_and(|method| method.rounds().is_some());
        if has_own_rounds || configured.algorithm.learned_prior().is_some() {
            return Err(SavedRunError::DerivedRounds(configured.algorithm.name()));
        }
        let done = self.done();
        if self.is_stopped {
            return Err(NotExtended::Stopped { done, rounds: configured.algorithm.rounds }.into());
        }
        let change = format!("algorithm.rounds={rounds}");
        let changed = Scenario::parse(&self.scenario, &self.text, &[change])
            .map_err(|problem| SavedRunError::Scenario(problem.to_string()))?;
        self.engine.extend(rounds, configured.algorithm.rounds)?;
        // The longer run does not evaluate the last rounds of the shorter one, and reports an average of its own.
        for row in &mut self.rows {
            row.scores = row.scores.filter(|_| changed.evaluates(row.round));
        }
        self.text = changed.text;
        Ok(())
    }

    /// Checks that the data of a job are those of this run.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] naming the first file that differs.
    pub fn check_data(&self, job: &Job<'_>) -> Result<(), RunError> {
        let found = &job.dataset.files;
        let message = self.files.iter().zip(found).find_map(|(saved, found)| saved.difference(found));
        if let Some(message) = message {
            return Err(RunError::Mismatch(message));
        }
        if self.files.len() != found.len() {
            let message = format!("the saved run has read {} files, not {}", self.files.len(), found.len());
            return Err(RunError::Mismatch(message));
        }
        Ok(())
    }
}
