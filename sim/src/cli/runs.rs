//! Scenarios of a command, and the results of their runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::output;
use fedspan_sim_core::report::clients::ClientFigures;
use fedspan_sim_core::report::plot::Point;
use fedspan_sim_core::report::summary::{SeedsSummary, Summary};
use fedspan_sim_core::scenario::Scenario;

/// Scenario to run, with its label and result directory.
pub struct Entry {
    /// Label of the scenario, which is unique among the entries.
    pub label: String,
    /// Scenario to run.
    pub scenario: Scenario,
    /// Changes of the scenario by which the entries differ.
    pub settings: BTreeMap<String, String>,
    /// Directory for the result files; `None` if no files are written.
    pub directory: Option<PathBuf>,
}

/// All finished runs of one scenario.
pub struct Runs {
    /// Summary of each seed.
    pub summaries: Vec<Summary>,
    /// Curve of each seed.
    pub curves: Vec<Vec<Point>>,
    /// Results of the clients, all seeds together.
    pub client_figures: ClientFigures,
    /// Summary over the seeds; `None` for a single seed.
    pub over_seeds: Option<SeedsSummary>,
    /// Lines of `clients.csv`, if the runs are those of a single seed and the clients have names.
    pub clients: Option<String>,
    /// Round, entry and seed of the first diverged run.
    pub diverged: Option<String>,
    /// Number of runs that failed and have no result.
    pub failed: usize,
    /// Error message of the first failed run.
    pub failure: Option<String>,
    /// Numbers of features and outputs of the data; `None` if no run has begun.
    pub shape: Option<(usize, usize)>,
}

/// Results of all entries that were started before the end or Ctrl-C.
pub struct Executed {
    /// Runs of each entry that was started.
    pub runs: Vec<Runs>,
    /// Round, entry and seed at which Ctrl-C interrupted the command.
    pub interrupted: Option<String>,
    /// Round, entry and seed of the first diverged run.
    pub diverged: Option<String>,
    /// Error message of the first failed run, if the other runs were continued.
    pub failure: Option<String>,
}

/// Content of the `summary.json` of one scenario.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Written<'a> {
    /// Summary of a single run.
    One(&'a Summary),
    /// Summary over several seeds.
    Seeds(&'a SeedsSummary),
}

impl Runs {
    /// Creates an empty list of runs.
    pub fn none() -> Self {
        let (summaries, curves, client_figures) = (Vec::new(), Vec::new(), ClientFigures::default());
        Self {
            summaries,
            curves,
            client_figures,
            over_seeds: None,
            clients: None,
            diverged: None,
            failed: 0,
            failure: None,
            shape: None,
        }
    }

    /// Records a run that failed and has no result.
    pub fn fail(&mut self, entry: &Entry, seed: u64, message: String) {
        output::log_line(&format!("{} seed {seed}: {message}", entry.label));
        self.failed += 1;
        self.failure.get_or_insert(message);
    }

    /// Content of `summary.json`, or `None` if no run was finished.
    pub fn written(&self) -> Option<Written<'_>> {
        let single = self.summaries.first().map(Written::One);
        self.over_seeds.as_ref().map(Written::Seeds).or(single)
    }
}
