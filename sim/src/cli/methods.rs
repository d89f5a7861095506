//! `compare --algorithms`: each scenario with each algorithm, and the papers' table of them.

use fedspan_aggregator::config::AlgorithmName;

use super::execute::{Entry, Executed};
use super::{Stop, load};
use crate::report::summary::Summary;
use crate::report::table::Table;

/// A scenario of the command line, with the changes that are its own.
#[derive(Clone, Debug)]
pub struct Word {
    /// Built-in, or a file.
    pub name: String,
    /// Changes, that of the algorithm last.
    pub changes: Vec<String>,
    /// Row and column of the table: the algorithm, and which of the scenarios.
    place: Option<(String, usize)>,
}

/// Every scenario with every algorithm; as they are where no algorithm is asked for.
pub fn expand(words: &[String], algorithms: &[String], common: &[String]) -> Result<Vec<Word>, Stop> {
    let mut all = Vec::new();
    for (column, word) in words.iter().enumerate() {
        let (name, own) = load::with_changes(word);
        if algorithms.is_empty() {
            all.push(Word { name, changes: own, place: None });
            continue;
        }
        for algorithm in names(&name, &own, common, algorithms)? {
            let mut changes = own.clone();
            changes.push(format!("algorithm.name=\"{algorithm}\""));
            all.push(Word { name: name.clone(), changes, place: Some((algorithm, column)) });
        }
    }
    Ok(all)
}

/// The algorithms that are asked for; `all` are those of the scenario's model.
fn names(name: &str, own: &[String], common: &[String], algorithms: &[String]) -> Result<Vec<String>, Stop> {
    if algorithms != ["all"] {
        return Ok(algorithms.to_vec());
    }
    let changes: Vec<String> = common.iter().chain(own).cloned().collect();
    let scenario = load::scenario(name, &changes)?;
    let targets = scenario.data.targeted() != crate::scenario::Targeted::Nothing;
    let words: Vec<&str> = match scenario.model.network {
        Some(_) => AlgorithmName::on_networks().map(|(word, _)| word).collect(),
        None => AlgorithmName::on_linear_models()
            .filter(|(_, name)| targets && *name != AlgorithmName::FedPower)
            .map(|(word, _)| word)
            .collect(),
    };
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// A row for each algorithm, a column for each scenario: mean and standard deviation over seeds of the mean accuracy of the
/// last ten rounds (of what is scored elsewhere), and that of the worst decile of clients. After epochs on the heads of
/// one network for all there is a row `+ft`. `None` where no algorithm was asked for.
pub fn table(words: &[Word], entries: &[Entry], executed: &Executed) -> Option<Table> {
    let columns: Vec<usize> = words.iter().filter_map(|word| Some(word.place.as_ref()?.1)).collect();
    let count = columns.iter().max()? + 1;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut put = |row: String, column: usize, cell: String| {
        let place = match rows.iter().position(|known| known.first() == Some(&row)) {
            Some(place) => place,
            None => {
                let blank = std::iter::repeat_n("-".to_owned(), count);
                rows.push([row].into_iter().chain(blank).collect());
                rows.len() - 1
            }
        };
        if let Some(at) = rows.get_mut(place).and_then(|row| row.get_mut(column + 1)) {
            *at = cell;
        }
    };
    let mut titles = vec![String::new(); count];
    let (mut seeds, mut notes) = (0, Vec::new());
    for ((word, entry), runs) in words.iter().zip(entries).zip(&executed.runs) {
        let Some((algorithm, column)) = &word.place else { continue };
        if let Some(title) = titles.get_mut(*column) {
            let (_, own) = word.changes.split_last()?;
            *title = super::compare::label(&word.name, own);
        }
        let whole = runs.summaries.iter().filter(|summary| !summary.interrupted);
        let (done, diverged): (Vec<&Summary>, Vec<&Summary>) = whole.partition(|run| run.diverged.is_none());
        if !diverged.is_empty() {
            let count = diverged.len();
            notes.push(format!(
                "{}: {count} of {} seeds diverged and are left out",
                entry.label,
                count + done.len()
            ));
        }
        seeds = seeds.max(done.len());
        let names = if entry.scenario.algorithm.network.is_some_and(|network| !network.tuned) {
            [("accuracy_last_10", "accuracy_worst_decile")]
        } else {
            [("accuracy", "accuracy_worst_decile")]
        };
        for (main, worst) in names {
            put(algorithm.clone(), *column, cell(&done, main, worst));
        }
        let shared = ["fedavg", "fedprox", "scaffold"].contains(&algorithm.as_str());
        if shared {
            let tuned = cell(&done, "accuracy_tuned", "accuracy_tuned_worst_decile");
            put(format!("{algorithm}+ft"), *column, tuned);
        }
    }
    Some(Table {
        title: format!("accuracy, {seeds} seeds: mean +- standard deviation (worst decile of clients)"),
        columns: ["algorithm".to_owned()].into_iter().chain(titles).collect(),
        rows,
        notes,
    })
}

/// Mean and deviation of one figure, mean of another.
fn cell(done: &[&Summary], main: &str, worst: &str) -> String {
    let values = |name: &str| -> Option<Vec<f64>> { done.iter().map(|run| run.figures.get(name)).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let Some(all) = values(main).filter(|all| !all.is_empty()) else { return "-".to_owned() };
    let middle = mean(&all);
    let mut text = format!("{middle:.4}");
    if all.len() > 1 {
        let squares: f64 = all.iter().map(|value| (value - middle).powi(2)).sum();
        text += &format!(" +- {:.4}", (squares / (all.len() - 1) as f64).sqrt());
    }
    if let Some(worst) = values(worst) {
        text += &format!(" ({:.3})", mean(&worst));
    }
    text
}
