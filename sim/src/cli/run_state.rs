//! Files with which an interrupted command continues: the state of a run that has not finished, and the results of one
//! that has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::progress::Progress;
use super::{CommandError, output};
use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::report::clients::ClientFigures;
use fedspan_sim_core::report::files::{write_bytes, write_json};
use fedspan_sim_core::report::plot::Point;
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::run::{SavedRun, Watcher};
use fedspan_sim_core::scenario::Scenario;

/// File with the state of a run that has not finished, or of the end of its training.
const CHECKPOINT: &str = "checkpoint.bin";
/// File with the results of a run that has finished.
const FINISHED: &str = "finished.json";
/// Time between two states of a run. A shorter run writes only its last state, if at all.
const INTERVAL: Duration = Duration::from_secs(10);

/// Version of this program, with the commit of its sources if it is known.
pub fn version() -> String {
    match option_env!("FEDSPAN_REVISION") {
        Some(revision) => format!("{} ({revision})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Results of a run that has finished, as tables and reports need them.
#[derive(Clone, Deserialize, Serialize)]
pub struct Finished {
    /// Version of the program.
    pub program: String,
    /// Text of the scenario with the seed of the run.
    pub scenario: String,
    /// Metrics after the rounds.
    pub curve: Vec<Point>,
    /// Results of the clients.
    pub clients: ClientFigures,
    /// Numbers of features and outputs of the data.
    pub shape: (usize, usize),
    /// Summary of the run.
    pub summary: Summary,
}

/// Progress of a run in an earlier command.
pub enum Left {
    /// Nothing, so the run begins.
    Nothing,
    /// State after a round.
    Saved(Box<SavedRun>),
    /// All results.
    Finished(Box<Finished>),
}

/// Reads the progress of a run from its directory.
///
/// # Errors
/// [`CommandError::Usage`] if the scenario, the data or the program have changed, or a file cannot be used.
pub fn left(directory: &Path, scenario: &Scenario, seed: u64) -> Result<Left, CommandError> {
    let finished = directory.join(FINISHED);
    let finished_content = read(&finished)?;
    let has_finished = finished_content.is_some();
    if let Some(content) = finished_content {
        let unusable = |reason: String| cannot_continue(&finished, &reason);
        let found: Finished =
            serde_json::from_slice(&content).map_err(|error| unusable(format!("it is damaged: {error}")))?;
        if found.program != version() {
            let reason = format!("it was written by fedspan-sim {}, this is {}", found.program, version());
            return Err(unusable(reason));
        }
        if found.scenario == scenario.resolved(seed) {
            // The results of the remaining runs would otherwise be compared with those of other data.
            for file in &found.summary.data {
                let present = file.present().map_err(|error| unusable(error.to_string()))?;
                if let Some(message) = file.difference(&present) {
                    return Err(CommandError::Usage(format!("{}: {message}", finished.display())));
                }
            }
            return Ok(Left::Finished(Box::new(found)));
        }
    }
    if !scenario.is_federated() {
        return Ok(Left::Nothing);
    }
    let path = directory.join(CHECKPOINT);
    let Some(content) = read(&path)? else {
        if has_finished {
            return Err(CommandError::Usage(format!(
                "cannot extend the run in {}: its state was not kept. Run it with --keep-states; doubling \
                 participation with the schedule adaptive or verified has none that can be kept",
                directory.display()
            )));
        }
        return Ok(Left::Nothing);
    };
    let unusable = |reason: String| cannot_continue(&path, &reason);
    let mut saved = SavedRun::decode(&content, &version()).map_err(|error| unusable(error.to_string()))?;
    if saved.text != scenario.resolved(seed) {
        saved.extend(scenario.algorithm.rounds).map_err(|error| unusable(error.to_string()))?;
        let own = saved.parse().map_err(|error| unusable(error.to_string()))?;
        let wanted = Scenario {
            seed,
            text: own.text.clone(),
            name: own.name.clone(),
            given: own.given.clone(),
            ..scenario.clone()
        };
        if own != wanted {
            return Err(unusable(format!("{} has changed since", scenario.name)));
        }
    }
    Ok(Left::Saved(Box::new(saved)))
}

/// Content of a file, or `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CommandError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CommandError::Failed(format!("cannot read {}: {error}", path.display()))),
    }
}

fn cannot_continue(path: &Path, reason: &str) -> CommandError {
    CommandError::Usage(format!(
        "cannot continue from {}: {reason}; remove the file to begin this run again",
        path.display()
    ))
}

/// Writes the results of a run that has finished. Its state is removed unless it is to be kept.
///
/// # Errors
/// [`CommandError::Failed`] if a file cannot be written or removed.
pub fn finish(directory: &Path, finished: &Finished, keeps_state: bool) -> Result<(), CommandError> {
    write_json(&directory.join(FINISHED), finished)?;
    let path = directory.join(CHECKPOINT);
    if !keeps_state && path.exists() {
        let removed = fs::remove_file(&path);
        removed
            .map_err(|error| CommandError::Failed(format!("cannot remove {}: {error}", path.display())))?;
    }
    Ok(())
}

/// Observer that shows the progress of a run, and writes its state now and then and when it is interrupted.
pub struct StateKeeper<'a> {
    progress: &'a mut Progress,
    /// Path of the file; `None` if no files are written.
    path: Option<PathBuf>,
    written_at: Instant,
    is_interrupted: bool,
    /// Whether the state at the end of training is written.
    keeps_last: bool,
    has_failed: bool,
}

impl<'a> StateKeeper<'a> {
    /// Creates the observer of a run with this directory.
    pub fn new(progress: &'a mut Progress, directory: Option<&Path>, keeps_last: bool) -> Self {
        let path = directory.map(|directory| directory.join(CHECKPOINT));
        let written_at = Instant::now();
        Self { progress, path, written_at, is_interrupted: false, keeps_last, has_failed: false }
    }
}

impl Watcher for StateKeeper<'_> {
    fn round(&mut self, done: u32, of: u32, scores: Option<&Scores>) -> bool {
        let continues = self.progress.round(done, of, scores);
        self.is_interrupted = !continues;
        continues
    }

    fn wants_state(&mut self, is_last: bool) -> bool {
        let is_due =
            self.written_at.elapsed() >= INTERVAL || self.is_interrupted || (is_last && self.keeps_last);
        self.path.is_some() && !self.has_failed && is_due
    }

    fn keep_state(&mut self, state: SavedRun) {
        let Some(path) = &self.path else { return };
        if let Err(error) = write_bytes(path, &state.encode(&version())) {
            output::log_line(&format!(
                "warning: {error}; the run goes on, and cannot be continued after an interruption"
            ));
            self.has_failed = true;
        }
        self.written_at = Instant::now();
    }
}
