//! Part of command `compare` for option `--reach`: simulated time to target accuracies at several
//! communication costs.

use clap::Args;
use fedspan_engine::config::Init;
use fedspan_engine::participation::{DoublingSettings, Policy, Schedule};
use serde::Serialize;

use super::runs::{Entry, Executed};
use super::{CommandError, measurement};
use fedspan_sim_core::report::accuracy_times::{final_accuracy, median_crossing, shifted};
use fedspan_sim_core::report::plot::Series;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::Scenario;

/// Options of command `compare` that request a table of times to target accuracies.
#[derive(Debug, Default, Args)]
pub struct TimeToAccuracyOptions {
    /// Show the simulated time until these fractions of the best final accuracy are reached, e.g. 0.9,0.95
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = fraction)]
    reach: Vec<f64>,
    /// Communication costs for which times are shown, computed from the same run [default: the scenario's
    /// cost]
    #[arg(long, value_name = "C,...", value_delimiter = ',', value_parser = cost, requires = "reach")]
    communication: Vec<f64>,
}

/// Parses a fraction of the best final accuracy.
fn fraction(text: &str) -> Result<f64, String> {
    measurement::parse_number(text, |value| value > 0.0 && value <= 1.0, "above 0 to 1")
}

/// Parses a communication cost.
fn cost(text: &str) -> Result<f64, String> {
    measurement::parse_number(text, |value| value >= 0.0, "numbers from 0")
}

/// Simulated time of one entry to one target accuracy at one communication cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeToAccuracy {
    /// Label of the entry.
    pub label: String,
    /// Final accuracy of the entry: mean over the last ten rounds and over the seeds.
    pub accuracy: f64,
    /// Communication cost of each round; `None` for the cost of the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication: Option<f64>,
    /// Target accuracy.
    pub target: f64,
    /// First time at which more than half of the seeds are at the target; absent if there is no such time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// For doubling participation: time of the same algorithm without doubling, divided by `time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
}

impl TimeToAccuracyOptions {
    /// True if a table of times is requested.
    pub fn is_requested(&self) -> bool {
        !self.reach.is_empty()
    }

    /// Checks that the communication cost does not influence the runs, so that the times at every cost can be
    /// computed from the same run.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if a setting of an entry depends on the communication cost.
    pub fn check(&self, entries: &[Entry]) -> Result<(), CommandError> {
        if self.communication.is_empty() {
            return Ok(());
        }
        for entry in entries {
            if let Some(dependence) = depends_on_communication(&entry.scenario) {
                let message = format!(
                    "--communication: {} has {dependence}; allowed: runs that are the same at any cost of communication",
                    entry.label
                );
                return Err(CommandError::Usage(message));
            }
        }
        Ok(())
    }

    /// Communication costs of the table; `None` for the cost of the scenario.
    fn costs(&self) -> Vec<Option<f64>> {
        if self.communication.is_empty() {
            return vec![None];
        }
        self.communication.iter().copied().map(Some).collect()
    }

    /// Computes all times, ordered by entry, then by communication cost, then by target.
    pub fn times(&self, entries: &[Entry], executed: &Executed) -> Vec<TimeToAccuracy> {
        let finals: Vec<Option<f64>> =
            executed.runs.iter().map(|runs| final_accuracy(&runs.curves)).collect();
        let best = finals.iter().flatten().copied().fold(0.0, f64::max);
        let mut reached_times = Vec::new();
        for (index, entry) in entries.iter().enumerate().take(executed.runs.len()) {
            let Some(accuracy) = finals.get(index).copied().flatten() else { continue };
            for communication in self.costs() {
                for target in self.reach.iter().map(|part| part * best) {
                    let crossing = |index: usize| {
                        let (entry, runs) = (entries.get(index)?, executed.runs.get(index)?);
                        median_crossing(&shifted(&runs.curves, extra(&entry.scenario, communication)), target)
                    };
                    let time = crossing(index);
                    let waiting =
                        if is_doubling(&entry.scenario) { counterpart(entries, entry) } else { None };
                    let gain = match (waiting.and_then(crossing), time) {
                        (Some(waiting), Some(time)) if time > 0.0 => Some(waiting / time),
                        _ => None,
                    };
                    let label = entry.label.clone();
                    reached_times.push(TimeToAccuracy { label, accuracy, communication, target, time, gain });
                }
            }
        }
        reached_times
    }

    /// Table of the times with one row for each entry.
    pub fn table(&self, times: &[TimeToAccuracy]) -> Table {
        let mut columns = vec!["simulated time".to_owned(), "final accuracy".to_owned()];
        let per_entry = self.costs().len() * self.reach.len();
        for time in times.get(..per_entry).unwrap_or_default() {
            let cost = time.communication.map_or(String::new(), |c| format!("C = {c}, "));
            columns.push(format!("{cost}{:.4}", time.target));
        }
        let rows = times.chunks(per_entry.max(1)).map(|chunk| {
            let first = chunk.first();
            let label = first.map_or(String::new(), |time| time.label.clone());
            let accuracy = first.map_or(String::new(), |time| format!("{:.4}", time.accuracy));
            [label, accuracy].into_iter().chain(chunk.iter().map(format_cell)).collect()
        });
        Table {
            title: "simulated time to accuracies".to_owned(),
            columns,
            rows: rows.collect(),
            notes: vec![
                "When more than half of the seeds are at the accuracy, by their last evaluated round; in brackets how many \
                 times as fast as the same method without doubling."
                    .to_owned(),
            ],
        }
    }

    /// Curves at each communication cost, with a heading for each cost.
    pub fn curves(&self, entries: &[Entry], executed: &Executed) -> Vec<(String, Vec<Series>)> {
        let group = |cost: f64| {
            let series = entries.iter().zip(&executed.runs).map(|(entry, runs)| {
                let runs = shifted(&runs.curves, extra(&entry.scenario, Some(cost)));
                Series::of(&entry.label, &entry.scenario, runs)
            });
            (format!("C = {cost}"), series.collect())
        };
        self.communication.iter().copied().map(group).collect()
    }
}

/// Formats a time and, in brackets, the gain of doubling participation.
fn format_cell(reached: &TimeToAccuracy) -> String {
    let Some(time) = reached.time else { return "-".to_owned() };
    reached.gain.map_or_else(|| format!("{time:.1}"), |gain| format!("{time:.1} (x{gain:.2})"))
}

/// Name of a setting by which the server's decisions or the number of exchanges depend on the communication
/// cost, or `None` if there is no such setting.
fn depends_on_communication(scenario: &Scenario) -> Option<&'static str> {
    match scenario.participation {
        Policy::Doubling(DoublingSettings { schedule: Schedule::Adaptive, .. }) => {
            return Some("schedule = \"adaptive\"");
        }
        Policy::Doubling(DoublingSettings { schedule: Schedule::Optimal { .. }, .. }) => {
            return Some("schedule = \"optimal\"");
        }
        _ => {}
    }
    if scenario.stop.simulated_time.is_some() {
        return Some("stop.simulated_time");
    }
    if scenario.fleet.dropout > 0.0 {
        return Some("fleet.dropout");
    }
    if scenario.fleet.waking.is_some() || scenario.fleet.window.is_some() {
        return Some("devices that sleep");
    }
    if scenario.deadline.is_some() {
        return Some("rounds.deadline");
    }
    matches!(scenario.model.init, Init::Power { .. } | Init::NoisyPower { .. } | Init::Moments)
        .then_some("a start that exchanges something")
}

fn is_doubling(scenario: &Scenario) -> bool {
    matches!(scenario.participation, Policy::Doubling(_))
}

/// Index of the first entry that has the same algorithm and compute times but no doubling participation.
fn counterpart(entries: &[Entry], entry: &Entry) -> Option<usize> {
    let method = |scenario: &Scenario| {
        let tuned = scenario.algorithm.network().is_some_and(|network| network.tuned);
        (scenario.algorithm_name(), tuned)
    };
    entries.iter().position(|other| {
        !is_doubling(&other.scenario)
            && method(&other.scenario) == method(&entry.scenario)
            && other.scenario.fleet.compute_times == entry.scenario.fleet.compute_times
    })
}

/// Communication cost of a round in addition to that of the scenario.
fn extra(scenario: &Scenario, communication: Option<f64>) -> f64 {
    communication.map_or(0.0, |communication| communication - scenario.fleet.communication)
}
