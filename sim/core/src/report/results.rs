//! Result file `results.csv`: one line for each run, for tables of any kind.

use super::files::quote_cell;
use super::summary::Summary;

/// Text of `results.csv` for these runs. A line has the label, the scenario, the algorithm, the settings in which runs
/// differ, the seed, the figures of the final model, and counts. What does not apply to a run is empty.
#[must_use]
pub fn results(runs: &[&Summary]) -> String {
    let mut settings: Vec<&str> = Vec::new();
    let mut figures: Vec<&'static str> = Vec::new();
    for run in runs {
        // The seed has a column of its own.
        for key in run.settings.keys().map(String::as_str).filter(|key| *key != "seed") {
            if !settings.contains(&key) {
                settings.push(key);
            }
        }
        for (name, _) in run.figures.iter() {
            if !figures.contains(&name) {
                figures.push(name);
            }
        }
    }
    let counts =
        ["rounds", "clients", "simulated_time", "updates", "bytes_up", "bytes_down", "rejected", "status"];
    let header = ["label", "scenario", "algorithm"].into_iter().chain(settings.iter().copied());
    let header = header.chain(["seed"]).chain(figures.iter().copied()).chain(counts);
    let mut text = header.map(quote_cell).collect::<Vec<_>>().join(",") + "\n";
    for run in runs {
        let status = match (run.interrupted, run.diverged) {
            (true, _) => "interrupted",
            (false, Some(_)) => "diverged",
            (false, None) => "finished",
        };
        let setting = |key: &&str| run.settings.get(*key).map_or(String::new(), |value| quote_cell(value));
        let figure = |name: &&str| run.figures.get(name).map_or(String::new(), |value| value.to_string());
        let cells = [&run.label, &run.scenario]
            .into_iter()
            .map(|name| quote_cell(name))
            .chain([run.algorithm.to_owned()]);
        let cells = cells.chain(settings.iter().map(setting)).chain([run.seed.to_string()]);
        let cells = cells.chain(figures.iter().map(figure)).chain([
            run.rounds.to_string(),
            run.clients.to_string(),
            run.time.simulated.to_string(),
            run.updates.to_string(),
            run.bytes.up.to_string(),
            run.bytes.down.to_string(),
            run.rejected.to_string(),
            status.to_owned(),
        ]);
        text += &(cells.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}
