//! Part of command `compare` for option `--algorithms`: combines each scenario with each algorithm, and
//! formats the results as the tables of papers do, with one row for each algorithm.

use fedspan_engine::algorithm::{FedPowerSettings, LinearAlgorithm, network_only_names};
use fedspan_engine::config::{names_for_model, needs_network};

use super::runs::{Entry, Executed, Runs};
use super::{CommandError, compare_differences, load};
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::{Scenario, TargetKind};

/// Change of the scenario that sets the network of algorithms that require a network. It applies if the
/// scenario has a linear model and configures no network.
const DEFAULT_NETWORK: &str = "model.network.hidden=[32]";

/// Scenario of a comparison, with the changes that apply only to this scenario.
#[derive(Clone, Debug)]
pub struct ScenarioVariant {
    /// Name of a built-in scenario, or path of a file.
    pub name: String,
    /// Changes, in this order: those of the scenario argument, the change of `--over`, and the algorithm.
    pub changes: Vec<String>,
    /// Change that sets the network of an algorithm that requires one; labels do not show it.
    pub network: Option<&'static str>,
    /// Number of changes that come from `--over`: 0 or 1.
    over_changes: usize,
    /// Cell of the table that shows the result: the algorithm (row) and the index of the scenario (column).
    cell: Option<(String, usize)>,
}

impl ScenarioVariant {
    /// True if `--algorithms` has chosen the algorithm.
    pub fn has_algorithm(&self) -> bool {
        self.cell.is_some()
    }

    /// Algorithm (row) and index of the scenario (column) of the cell that shows the result.
    pub fn cell(&self) -> Option<(&str, usize)> {
        self.cell.as_ref().map(|(algorithm, column)| (algorithm.as_str(), *column))
    }

    /// Change that comes from `--over`.
    pub fn over_change(&self) -> Option<&str> {
        let index = self.changes.len().checked_sub(1 + self.over_changes)?;
        self.changes.get(index).filter(|_| self.over_changes > 0).map(String::as_str)
    }

    /// Title of the column: the scenario with its own changes.
    pub fn title(&self) -> String {
        let own = self.changes.len().saturating_sub(1 + self.over_changes);
        super::labels::label(&self.name, self.changes.get(..own).unwrap_or_default())
    }
}

/// All scenarios of a comparison, and notes on omitted algorithms.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Scenarios in the order of the command line.
    pub variants: Vec<ScenarioVariant>,
    /// Notes shown below the table.
    pub notes: Vec<String>,
}

/// Combines every scenario with every algorithm and every change of `over`. If `algorithms` is empty, the
/// scenarios run with their own algorithms.
///
/// # Errors
/// [`CommandError::Usage`] if a scenario cannot be read.
pub fn expand(
    arguments: &[String],
    algorithms: &[String],
    over: &[String],
    common: &[String],
) -> Result<Comparison, CommandError> {
    let mut expanded = Comparison::default();
    for (column, argument) in arguments.iter().enumerate() {
        let (name, own_changes) = load::with_changes(argument);
        if algorithms.is_empty() {
            expanded.variants.push(ScenarioVariant {
                name,
                changes: own_changes,
                network: None,
                over_changes: 0,
                cell: None,
            });
            continue;
        }
        let changes: Vec<String> = common.iter().chain(&own_changes).cloned().collect();
        let selected = select_algorithms(&name, &changes, algorithms)?;
        expanded.notes.extend(selected.notes(&super::labels::label(&name, &own_changes)));
        for (algorithm, network) in selected.all {
            let variant = |change: Option<&String>| {
                let mut changes: Vec<String> = own_changes.iter().chain(change).cloned().collect();
                changes.push(format!("algorithm.name=\"{algorithm}\""));
                let over_changes = usize::from(change.is_some());
                let cell = Some((algorithm.clone(), column));
                ScenarioVariant { name: name.clone(), changes, network, over_changes, cell }
            };
            match over {
                [] => expanded.variants.push(variant(None)),
                over => expanded.variants.extend(over.iter().map(|change| variant(Some(change)))),
            }
        }
    }
    Ok(expanded)
}

/// Algorithms to run on one scenario.
#[derive(Default)]
struct ScenarioAlgorithms {
    /// Names of the algorithms, each with the change that sets its network if the scenario configures none.
    all: Vec<(String, Option<&'static str>)>,
    /// Algorithms that the scenario cannot run: each reason with the names of the algorithms.
    incompatible: Vec<(String, Vec<String>)>,
}

impl ScenarioAlgorithms {
    /// Notes that are shown below the table.
    fn notes(&self, scenario: &str) -> Vec<String> {
        let list = |names: Vec<&str>| names.join(", ");
        let network_algorithms = self.all.iter().filter(|(_, network)| network.is_some());
        let network_algorithms = list(network_algorithms.map(|(name, _)| name.as_str()).collect());
        let mut notes = Vec::new();
        if !network_algorithms.is_empty() {
            notes.push(format!(
                "{scenario}: {network_algorithms}: networks of one hidden layer of 32, as the model is linear and these need a network; \
                 [model.network] and [algorithm.network] in the scenario set other ones"
            ));
        }
        notes.extend(self.incompatible.iter().map(|(reason, names)| {
            format!("{scenario}: left out: {}: {reason}", list(names.iter().map(String::as_str).collect()))
        }));
        notes
    }

    /// Records that an algorithm is omitted for the given reason.
    fn leave_out(&mut self, algorithm: &str, reason: String) {
        match self.incompatible.iter_mut().find(|(known_reason, _)| *known_reason == reason) {
            Some((_, names)) => names.push(algorithm.to_owned()),
            None => self.incompatible.push((reason, vec![algorithm.to_owned()])),
        }
    }
}

/// Selects the requested algorithms. The request `all` selects the algorithms for the scenario's model and,
/// for a linear model with class labels, also every network algorithm that the scenario can run.
fn select_algorithms(
    name: &str,
    changes: &[String],
    algorithms: &[String],
) -> Result<ScenarioAlgorithms, CommandError> {
    let Scenario { data, mut model, has_network_section, .. } = load::scenario(name, changes)?;
    if has_network_section {
        // The linear model is used even if the scenario's own algorithm has a network.
        model.network = None;
    }
    let linear = model.network.is_none() && !model.adapter;
    let network = |algorithm: &str| {
        let needed = linear && !has_network_section && needs_network(algorithm);
        needed.then_some(DEFAULT_NETWORK)
    };
    let mut selected = ScenarioAlgorithms::default();
    let known: Vec<&str> = fedspan_engine::algorithm::algorithms().map(|(known, _)| known).collect();
    let base = |name: &String| name.strip_suffix("+ft").unwrap_or(name).to_owned();
    if let Some(unknown) =
        algorithms.iter().find(|name| *name != "all" && !known.contains(&base(name).as_str()))
    {
        let hint = fedspan_engine::config::nearest(unknown, &known)
            .map_or(String::new(), |suggestion| format!(" (did you mean {suggestion:?}?)"));
        let message = format!(
            "--algorithms: found {unknown:?}{hint}, allowed: all, or names of `fedspan-sim list --algorithms`"
        );
        return Err(CommandError::Usage(message));
    }
    if algorithms != ["all"] {
        selected.all = algorithms.iter().map(|name| (name.clone(), network(name))).collect();
        return Ok(selected);
    }
    let target_kind = data.target_kind();
    let targets = target_kind != TargetKind::Absent;
    let for_model = names_for_model(&model).into_iter();
    let for_model = for_model.filter(|name| !linear || targets && *name != FedPowerSettings::NAME);
    selected.all.extend(for_model.map(|name| (name.to_owned(), None)));
    if !linear || !targets {
        return Ok(selected);
    }
    if target_kind != TargetKind::Classes {
        let reason = "networks need classes (data.task = \"classes\" in a table)";
        network_only_names().for_each(|algorithm_name| selected.leave_out(algorithm_name, reason.to_owned()));
        return Ok(selected);
    }
    for algorithm_name in network_only_names() {
        let network = network(algorithm_name);
        let algorithm_changes =
            [format!("algorithm.name=\"{algorithm_name}\"")].into_iter().chain(network.map(str::to_owned));
        match load::scenario(name, &changes.iter().cloned().chain(algorithm_changes).collect::<Vec<_>>()) {
            Ok(_) => selected.all.push((algorithm_name.to_owned(), network)),
            Err(
                CommandError::Usage(reason) | CommandError::Failed(reason) | CommandError::Missed(reason),
            ) => {
                selected.leave_out(algorithm_name, reason);
            }
        }
    }
    Ok(selected)
}

/// Splits `KEY=VALUE,VALUE,...` into one change per value.
///
/// # Errors
/// [`CommandError::Usage`] if the text does not have this form.
pub fn parse_over(text: Option<&str>) -> Result<Vec<String>, CommandError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let usage_error = || CommandError::Usage(format!("--over: found {text:?}, allowed: KEY=VALUE,VALUE,..."));
    let (key, values) = text.split_once('=').ok_or_else(usage_error)?;
    let values: Vec<&str> = values.split(',').map(str::trim).collect();
    if key.trim().is_empty() || values.iter().any(|value| value.is_empty()) {
        return Err(usage_error());
    }
    Ok(values.iter().map(|value| format!("{}={value}", key.trim())).collect())
}

/// Names of the scores that a table of algorithms shows.
#[derive(Clone, Copy)]
pub struct ScoreNames {
    pub title: &'static str,
    main: &'static str,
    /// Score that replaces `main` for linear models, and for networks whose heads are fine-tuned before
    /// scoring or have a learned prior.
    otherwise: &'static str,
    worst: &'static str,
    /// Scores of a shared network with fine-tuned heads: name of the main score and of the worst decile.
    pub tuned: Option<(&'static str, &'static str)>,
}

impl ScoreNames {
    /// Name of the score of an entry.
    pub fn name(&self, entry: &Entry) -> &'static str {
        let network = entry.scenario.algorithm.network_with_trained_heads();
        let is_plain = network.is_some_and(|network| !network.tuned);
        if is_plain { self.main } else { self.otherwise }
    }
}

/// Scores of clients that took part in training: accuracy.
const TRAINED: ScoreNames = ScoreNames {
    title: "accuracy",
    main: "accuracy_last_10",
    otherwise: "accuracy",
    worst: "accuracy_worst_decile",
    tuned: Some(("accuracy_tuned", "accuracy_tuned_worst_decile")),
};

/// Scores of clients that took part in training, for regression without samples for tests: loss.
const REGRESSION: ScoreNames =
    ScoreNames { title: "loss", main: "loss", otherwise: "loss", worst: "", tuned: None };

/// Scores of clients that took part in training, for regression: squared error of predictions of samples for tests.
const REGRESSION_TESTED: ScoreNames = ScoreNames {
    title: "mean squared error of predictions",
    main: "test_mse",
    otherwise: "test_mse",
    worst: "",
    tuned: None,
};

/// Scores of clients that joined after training, for regression.
const REGRESSION_NEWCOMERS: ScoreNames = ScoreNames {
    title: "mean squared error of predictions, clients that came after training",
    main: "test_mse_new_clients",
    otherwise: "test_mse_new_clients",
    worst: "",
    tuned: None,
};

/// Scores of clients that joined after training: accuracy.
const NEWCOMERS: ScoreNames = ScoreNames {
    title: "accuracy of clients that came after training",
    main: "accuracy_new_clients",
    otherwise: "accuracy_new_clients",
    worst: "",
    tuned: None,
};

/// Scores that the tables show: those of clients that took part in training, then those of clients that joined after it, if any did.
fn shown_scores(entries: &[Entry], executed: &Executed) -> Vec<ScoreNames> {
    let are_values = entries.iter().all(|entry| entry.scenario.data.target_kind() == TargetKind::Values);
    let has_any = |scores: &ScoreNames| {
        let mut summaries = executed.runs.iter().flat_map(|runs| &runs.summaries);
        summaries.any(|summary| summary.figures.get(scores.main).is_some())
    };
    let (trained, newcomers) = match are_values {
        true if has_any(&REGRESSION_TESTED) => (REGRESSION_TESTED, REGRESSION_NEWCOMERS),
        true => (REGRESSION, REGRESSION_NEWCOMERS),
        false => (TRAINED, NEWCOMERS),
    };
    [trained].into_iter().chain(Some(newcomers).filter(has_any)).collect()
}

/// Creates the tables with one row for each algorithm and one column for each scenario.
///
/// The first table shows mean and standard deviation of the accuracy over seeds and values of `--over`, where
/// the accuracy of a run is the mean over the last ten rounds, and the mean of the worst decile of clients; for regression
/// the squared error of predictions, or without samples for tests the loss.
/// Algorithms that share one network have an additional row `+ft` for fine-tuned heads. If clients joined
/// after training, a second table shows their scores. With `against`, tables of differences to that algorithm
/// follow. Without requested algorithms there are no tables.
pub fn tables(
    comparison: &Comparison,
    entries: &[Entry],
    executed: &Executed,
    against: Option<&str>,
) -> Vec<Table> {
    let Comparison { variants, notes } = comparison;
    let (mut tables, mut differences) = (Vec::new(), Vec::new());
    for score_names in shown_scores(entries, executed) {
        let Some(mut table) = algorithm_table(variants, entries, executed, score_names) else {
            return Vec::new();
        };
        if tables.is_empty() {
            table.notes.extend(row_notes(entries, executed, score_names));
        }
        table.notes.extend_from_slice(notes);
        tables.push(table);
        differences.extend(against.and_then(|against| {
            compare_differences::table(comparison, entries, executed, against, score_names)
        }));
    }
    tables.into_iter().chain(differences).collect()
}

/// Notes that say which column of `results.csv` a row shows, where it is not the one that the title names.
fn row_notes(entries: &[Entry], executed: &Executed, score_names: ScoreNames) -> Vec<String> {
    if score_names.main == score_names.otherwise {
        return Vec::new();
    }
    let algorithms = |holds: &dyn Fn(&Entry, &Runs) -> bool| -> String {
        let mut names: Vec<&str> = Vec::new();
        for (entry, _) in entries.iter().zip(&executed.runs).filter(|(entry, runs)| holds(entry, runs)) {
            let name = entry.scenario.algorithm_name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    };
    let network = |entry: &Entry| entry.scenario.algorithm.network_with_trained_heads();
    let mut notes = Vec::new();
    if !algorithms(&|entry, _| network(entry).is_some_and(|network| !network.tuned)).is_empty() {
        notes.push(format!(
            "networks: mean over the last ten rounds ({} in results.csv); the worst decile is that of the last round",
            score_names.main
        ));
    }
    let tuned_rows = algorithms(&|entry, _| has_tuned_row(&entry.scenario));
    if let (false, Some((name, _))) = (tuned_rows.is_empty(), score_names.tuned) {
        notes.push(format!(
            "{tuned_rows}: in the row +ft each client trains the head before it is scored ({name} in results.csv)"
        ));
    }
    let own_heads = algorithms(&|_, runs| {
        runs.summaries.iter().any(|summary| {
            let [own, shared] =
                [score_names.otherwise, "accuracy_global"].map(|name| summary.figures.get(name));
            shared.is_some() && own != shared
        })
    });
    if !own_heads.is_empty() {
        notes.push(format!(
            "{own_heads}: each client with a head of its own; the one shared model is accuracy_global in results.csv"
        ));
    }
    notes
}

/// True if clients are also scored after training the head of a network that they share.
pub fn has_tuned_row(scenario: &Scenario) -> bool {
    scenario
        .algorithm
        .network()
        .is_some_and(|network| !network.tuned && network.method.shares_whole_network())
}

/// Creates one table; `None` without requested algorithms.
fn algorithm_table(
    variants: &[ScenarioVariant],
    entries: &[Entry],
    executed: &Executed,
    score_names: ScoreNames,
) -> Option<Table> {
    let columns: Vec<usize> = variants.iter().filter_map(|variant| Some(variant.cell.as_ref()?.1)).collect();
    let count = columns.iter().max()? + 1;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut put = |row: String, column: usize, cell: String| {
        let index = match rows.iter().position(|row_cells| row_cells.first() == Some(&row)) {
            Some(index) => index,
            None => {
                let empty_cells = std::iter::repeat_n("-".to_owned(), count);
                rows.push([row].into_iter().chain(empty_cells).collect());
                rows.len() - 1
            }
        };
        if let Some(entry_cell) = rows.get_mut(index).and_then(|row| row.get_mut(column + 1)) {
            *entry_cell = cell;
        }
    };
    let mut titles = vec![String::new(); count];
    let (mut runs, mut notes) = (0, Vec::new());
    let finished: Vec<_> = variants.iter().zip(entries).zip(&executed.runs).collect();
    // Entries of the same cell are adjacent and differ only in the change of `--over`.
    for same_cell in finished.chunk_by(|((a, _), _), ((b, _), _)| a.cell == b.cell) {
        let Some(((variant, entry), _)) = same_cell.first() else { continue };
        let Some((algorithm, column)) = &variant.cell else { continue };
        if let Some(title) = titles.get_mut(*column) {
            *title = variant.title();
        }
        let ended = same_cell.iter().flat_map(|(_, runs)| &runs.summaries).filter(|run| !run.interrupted);
        let (converged, diverged): (Vec<&Summary>, Vec<&Summary>) =
            ended.partition(|run| run.diverged.is_none());
        if !diverged.is_empty() {
            let count = diverged.len();
            let seed_count = count + converged.len();
            notes.push(format!("{}: {count} of {seed_count} seeds diverged and are left out", entry.label));
        }
        for (_, runs) in same_cell {
            if let Some(failure) = &runs.failure {
                let seed_count = runs.failed + runs.summaries.len();
                notes.push(format!(
                    "{}: {} of {seed_count} seeds stopped: {failure}",
                    entry.label, runs.failed
                ));
            }
        }
        runs = runs.max(converged.len());
        put(algorithm.clone(), *column, format_cell(&converged, score_names.name(entry), score_names.worst));
        if let (true, Some((main, worst))) = (has_tuned_row(&entry.scenario), score_names.tuned) {
            put(format!("{algorithm}+ft"), *column, format_cell(&converged, main, worst));
        }
    }
    let repeated = if variants.iter().any(|variant| variant.over_changes > 0) { "runs" } else { "seeds" };
    let spread = match runs {
        0 => "no finished run".to_owned(),
        1 => "one run".to_owned(),
        runs => format!("{runs} {repeated}: mean +- standard deviation"),
    };
    let decile_note = if score_names.worst.is_empty() { "" } else { " (worst decile of clients)" };
    Some(Table {
        title: format!("{}, {spread}{decile_note}", score_names.title),
        columns: ["algorithm".to_owned()].into_iter().chain(titles).collect(),
        rows,
        notes,
    })
}

/// Formats mean and standard deviation of the score `main` and, in brackets, the mean of the score `worst`.
fn format_cell(runs: &[&Summary], main: &str, worst: &str) -> String {
    let values = |name: &str| -> Option<Vec<f64>> { runs.iter().map(|run| run.figures.get(name)).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let Some(main_values) = values(main).filter(|main_values| !main_values.is_empty()) else {
        return "-".to_owned();
    };
    let middle = mean(&main_values);
    let mut text = format!("{middle:.4}");
    if main_values.len() > 1 {
        let squares: f64 = main_values.iter().map(|value| (value - middle).powi(2)).sum();
        text += &format!(" +- {:.4}", (squares / (main_values.len() - 1) as f64).sqrt());
    }
    if let Some(worst) = values(worst) {
        text += &format!(" ({:.3})", mean(&worst));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Notes on omitted algorithms for the built-in scenario `digits` with changes.
    fn notes(changes: &[&str]) -> Vec<String> {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let selected = select_algorithms("digits", &changes, &["all".to_owned()]).unwrap();
        selected.notes("digits").into_iter().filter(|note| note.contains("left out")).collect()
    }

    #[test]
    fn note_gives_each_algorithm_its_own_reason() {
        assert_eq!(notes(&[]), [""; 0]);
        // The reason contains the name of the algorithm, so each algorithm has a separate note.
        let private = notes(&["privacy={ epsilon = 1, delta = 1e-4, clip = 1 }"]);
        let names: Vec<&str> = network_only_names().collect();
        assert_eq!(private.len(), names.len(), "{private:#?}");
        for (note, name) in private.iter().zip(names) {
            assert!(note.contains(&format!("left out: {name}: ")), "{note}");
            assert!(note.contains(&format!("{name:?}")), "{note}");
        }
    }

    #[test]
    fn regression_leaves_out_networks_with_a_note() {
        let selected = select_algorithms("linear", &[], &["all".to_owned()]).unwrap();
        let names: Vec<&str> = network_only_names().collect();
        let note = format!("linear: left out: {}: networks need classes", names.join(", "));
        let notes = selected.notes("linear");
        assert!(matches!(notes.as_slice(), [one] if one.starts_with(&note)), "{notes:#?}");
    }

    #[test]
    fn algorithms_with_one_reason_share_a_note() {
        let attacked = notes(&["attack.kind=\"mimic\""]);
        let names: Vec<&str> = network_only_names().collect();
        assert_eq!(attacked.len(), 1, "{attacked:#?}");
        assert!(attacked[0].contains(&format!("left out: {}: ", names.join(", "))), "{attacked:?}");
    }
}
