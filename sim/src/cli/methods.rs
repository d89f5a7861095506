//! `compare --algorithms`: each scenario with each algorithm, and the papers' table of them.

use fedspan_engine::config::AlgorithmName;

use super::execute::{Entry, Executed};
use super::{Stop, load};
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::{Scenario, TargetKind};

/// The network that methods which need one get beside a linear model, where the scenario names none.
const NETWORK: &str = "model.network.hidden=[32]";

/// A scenario of the command line, with the changes that are its own.
#[derive(Clone, Debug)]
pub struct Word {
    /// Built-in, or a file.
    pub name: String,
    /// Changes: the scenario's, that of `--over`, that of the algorithm.
    pub changes: Vec<String>,
    /// A change that no label shows: a network for a method that needs one.
    pub network: Option<&'static str>,
    /// How many changes are of `--over`.
    varied: usize,
    /// Row and column of the table: the algorithm, and which of the scenarios.
    place: Option<(String, usize)>,
}

/// The words of a comparison, and sentences on what they leave out.
#[derive(Clone, Debug, Default)]
pub struct Words {
    /// In the order of the command line.
    pub all: Vec<Word>,
    /// Below the table.
    pub notes: Vec<String>,
}

/// Every scenario with every algorithm, each with every change of `over`; as they are where no algorithm is asked for.
pub fn expand(
    words: &[String],
    algorithms: &[String],
    over: &[String],
    common: &[String],
) -> Result<Words, Stop> {
    let mut expanded = Words::default();
    for (column, word) in words.iter().enumerate() {
        let (name, own) = load::with_changes(word);
        if algorithms.is_empty() {
            expanded.all.push(Word { name, changes: own, network: None, varied: 0, place: None });
            continue;
        }
        let changes: Vec<String> = common.iter().chain(&own).cloned().collect();
        let methods = methods(&name, &changes, algorithms)?;
        expanded.notes.extend(methods.notes(&super::compare::label(&name, &own)));
        for (algorithm, network) in methods.all {
            let word = |change: Option<&String>| {
                let mut changes: Vec<String> = own.iter().chain(change).cloned().collect();
                changes.push(format!("algorithm.name=\"{algorithm}\""));
                let varied = usize::from(change.is_some());
                let place = Some((algorithm.clone(), column));
                Word { name: name.clone(), changes, network, varied, place }
            };
            match over {
                [] => expanded.all.push(word(None)),
                over => expanded.all.extend(over.iter().map(|change| word(Some(change)))),
            }
        }
    }
    Ok(expanded)
}

/// The methods of one scenario.
#[derive(Default)]
struct Methods {
    /// Each with the network that it gets, where the scenario names none.
    all: Vec<(String, Option<&'static str>)>,
    /// Those of `all` that the scenario cannot run, and the reason of the first.
    left_out: Vec<String>,
    reason: String,
}

impl Methods {
    /// What is to be said of them.
    fn notes(&self, scenario: &str) -> Vec<String> {
        let of = |names: Vec<&str>| names.join(", ");
        let given = self.all.iter().filter(|(_, network)| network.is_some());
        let given = of(given.map(|(name, _)| name.as_str()).collect());
        let mut notes = Vec::new();
        if !given.is_empty() {
            notes.push(format!(
                "{scenario}: {given}: networks of one hidden layer of 32, as the model is linear and these need a network; \
                 [model.network] and [algorithm.network] in the scenario say otherwise"
            ));
        }
        if !self.left_out.is_empty() {
            let left_out = of(self.left_out.iter().map(String::as_str).collect());
            notes.push(format!("{scenario}: left out: {left_out}: {}", self.reason));
        }
        notes
    }
}

/// The algorithms that are asked for; `all` are those of the scenario's model, and beside a linear one those on networks where
/// there are classes and the scenario allows it.
fn methods(name: &str, changes: &[String], algorithms: &[String]) -> Result<Methods, Stop> {
    let Scenario { data, mut model, has_network_section, .. } = load::scenario(name, changes)?;
    if has_network_section {
        // The linear one of both, whichever the file's own method has.
        model.network = None;
    }
    let linear = model.network.is_none() && !model.adapter;
    let network = |algorithm: &str| {
        let needed = linear && !has_network_section && AlgorithmName::needs_network(algorithm);
        needed.then_some(NETWORK)
    };
    let mut methods = Methods::default();
    if algorithms != ["all"] {
        methods.all = algorithms.iter().map(|word| (word.clone(), network(word))).collect();
        return Ok(methods);
    }
    let target_kind = data.target_kind();
    let targets = target_kind != TargetKind::Absent;
    let own = AlgorithmName::for_model(&model)
        .filter(|(_, name)| !linear || targets && *name != AlgorithmName::FedPower);
    methods.all.extend(own.map(|(word, _)| (word.to_owned(), None)));
    if !linear || target_kind != TargetKind::Classes {
        return Ok(methods);
    }
    for word in AlgorithmName::network_only_names() {
        let network = network(word);
        let with = [format!("algorithm.name=\"{word}\"")].into_iter().chain(network.map(str::to_owned));
        match load::scenario(name, &changes.iter().cloned().chain(with).collect::<Vec<_>>()) {
            Ok(_) => methods.all.push((word.to_owned(), network)),
            Err(Stop::Usage(reason) | Stop::Failed(reason)) => {
                methods.left_out.push(word.to_owned());
                methods.reason = reason;
            }
        }
    }
    Ok(methods)
}

/// `KEY=VALUE,VALUE,...` as a change for each value.
pub fn over(text: Option<&str>) -> Result<Vec<String>, Stop> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let wrong = || Stop::Usage(format!("--over: found {text:?}, allowed: KEY=VALUE,VALUE,..."));
    let (key, values) = text.split_once('=').ok_or_else(wrong)?;
    let values: Vec<&str> = values.split(',').map(str::trim).collect();
    if key.trim().is_empty() || values.iter().any(|value| value.is_empty()) {
        return Err(wrong());
    }
    Ok(values.iter().map(|value| format!("{}={value}", key.trim())).collect())
}

/// What a table of methods shows, above and in brackets.
#[derive(Clone, Copy)]
struct Shown {
    title: &'static str,
    main: &'static str,
    /// In its place where models are scored after epochs on their heads, and on linear ones.
    otherwise: &'static str,
    worst: &'static str,
    /// The same of one network for all, after epochs on its head.
    tuned: Option<(&'static str, &'static str)>,
}

/// Who trained.
const TRAINED: Shown = Shown {
    title: "accuracy",
    main: "accuracy_last_10",
    otherwise: "accuracy",
    worst: "accuracy_worst_decile",
    tuned: Some(("accuracy_tuned", "accuracy_tuned_worst_decile")),
};

/// Who trained, on values: there is no accuracy.
const REGRESSION: Shown = Shown { title: "loss", main: "loss", otherwise: "loss", worst: "", tuned: None };

/// Who came after training.
const NEWCOMERS: Shown = Shown {
    title: "accuracy of clients that came after training",
    main: "accuracy_new_clients",
    otherwise: "accuracy_new_clients",
    worst: "",
    tuned: None,
};

/// A row for each algorithm, a column for each scenario: mean and standard deviation over seeds (and values of `--over`) of
/// the mean accuracy of the last ten rounds (of what is scored elsewhere), and that of the worst decile of clients. After
/// epochs on the heads of one network for all there is a row `+ft`. Then the same of clients that came after training, where
/// there are any. Nothing where no algorithm was asked for.
pub fn tables(words: &Words, entries: &[Entry], executed: &Executed) -> Vec<Table> {
    let values = |entry: &Entry| entry.scenario.data.target_kind() == TargetKind::Values;
    let shown = if entries.iter().all(values) { REGRESSION } else { TRAINED };
    let Words { all: words, notes } = words;
    let Some(mut trained) = table(words, entries, executed, shown) else { return Vec::new() };
    trained.notes.extend_from_slice(notes);
    let came = |summary: &Summary| summary.figures.get(NEWCOMERS.main).is_some();
    let any = executed.runs.iter().flat_map(|runs| &runs.summaries).any(came);
    let newcomers = any.then(|| table(words, entries, executed, NEWCOMERS)).flatten();
    [trained].into_iter().chain(newcomers).collect()
}

fn table(words: &[Word], entries: &[Entry], executed: &Executed, shown: Shown) -> Option<Table> {
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
    let (mut runs, mut notes) = (0, Vec::new());
    let begun: Vec<_> = words.iter().zip(entries).zip(&executed.runs).collect();
    // Entries of one place differ by what `--over` changes; they stand one after the other.
    for same in begun.chunk_by(|((a, _), _), ((b, _), _)| a.place == b.place) {
        let Some(((word, entry), _)) = same.first() else { continue };
        let Some((algorithm, column)) = &word.place else { continue };
        if let Some(title) = titles.get_mut(*column) {
            let own = word.changes.get(..word.changes.len().saturating_sub(1 + word.varied))?;
            *title = super::compare::label(&word.name, own);
        }
        let whole = same.iter().flat_map(|(_, runs)| &runs.summaries).filter(|summary| !summary.interrupted);
        let (done, diverged): (Vec<&Summary>, Vec<&Summary>) = whole.partition(|run| run.diverged.is_none());
        if !diverged.is_empty() {
            let count = diverged.len();
            let all = count + done.len();
            notes.push(format!("{}: {count} of {all} seeds diverged and are left out", entry.label));
        }
        for (_, runs) in same {
            if let Some(failure) = &runs.failure {
                let all = runs.failed + runs.summaries.len();
                notes.push(format!("{}: {} of {all} seeds stopped: {failure}", entry.label, runs.failed));
            }
        }
        runs = runs.max(done.len());
        let plain = entry.scenario.algorithm.network.is_some_and(|network| !network.tuned);
        let main = if plain { shown.main } else { shown.otherwise };
        put(algorithm.clone(), *column, cell(&done, main, shown.worst));
        let shared = ["fedavg", "fedprox", "scaffold"].contains(&algorithm.as_str());
        if let (true, Some((main, worst))) = (shared, shown.tuned) {
            put(format!("{algorithm}+ft"), *column, cell(&done, main, worst));
        }
    }
    let over = if words.iter().any(|word| word.varied > 0) { "runs" } else { "seeds" };
    let worst = if shown.worst.is_empty() { "" } else { " (worst decile of clients)" };
    Some(Table {
        title: format!("{}, {runs} {over}: mean +- standard deviation{worst}", shown.title),
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
