//! Part of command `compare` for option `--against`: differences between algorithms on the same clients, with intervals.

use std::collections::BTreeMap;

use super::CommandError;
use super::compare_algorithms::{Comparison, ScenarioVariant, ScoreNames, has_tuned_row};
use super::runs::{Entry, Executed};
use fedspan_sim_core::report::table::Table;

/// Scores of one cell of the table: by the change of `--over`, and the seed.
type Scores = BTreeMap<(Option<String>, u64), f64>;

/// Checks that the algorithm of `--against` is among those that are compared.
///
/// # Errors
/// [`CommandError::Usage`] with the names that are allowed.
pub fn check(comparison: &Comparison, against: Option<&str>) -> Result<(), CommandError> {
    let Some(against) = against else { return Ok(()) };
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in comparison.variants.iter().filter_map(ScenarioVariant::cell) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.contains(&against) {
        return Ok(());
    }
    Err(CommandError::Usage(format!("--against: found {against:?}, allowed: {}", names.join(", "))))
}

/// Creates the table of the differences of a score to that of the algorithm `against`, one row for each other algorithm and one column
/// for each scenario: mean, and the 95 % interval of Student's t distribution.
///
/// Runs with the same seed and the same value of `--over` are paired. With several values of `--over` the interval is over values, each
/// averaged over its seeds, since seeds of a value share clients (the newcomers of a fold); otherwise it is over seeds. `None` without a
/// finished pair.
pub fn table(
    comparison: &Comparison,
    entries: &[Entry],
    executed: &Executed,
    against: &str,
    score_names: ScoreNames,
) -> Option<Table> {
    let mut cells: Vec<(String, usize, Scores)> = Vec::new();
    let mut titles: Vec<String> = Vec::new();
    for ((variant, entry), runs) in comparison.variants.iter().zip(entries).zip(&executed.runs) {
        let Some((algorithm, column)) = variant.cell() else { continue };
        if titles.len() <= column {
            titles.resize(column + 1, String::new());
        }
        if let Some(title) = titles.get_mut(column) {
            *title = variant.title();
        }
        let mut add = |row: String, score: &str| {
            let scores = runs.summaries.iter().filter(|run| !run.interrupted && run.diverged.is_none());
            let scores = scores.filter_map(|run| {
                let key = (variant.over_change().map(str::to_owned), run.seed);
                Some((key, run.figures.get(score)?))
            });
            match cells.iter_mut().find(|(known, at, _)| *known == row && *at == column) {
                Some((_, _, known)) => known.extend(scores),
                None => cells.push((row, column, scores.collect())),
            }
        };
        add(algorithm.to_owned(), score_names.name(entry));
        if let (true, Some((main, _))) = (has_tuned_row(&entry.scenario), score_names.tuned) {
            add(format!("{algorithm}+ft"), main);
        }
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut units = 0;
    for (row, column, scores) in cells.iter().filter(|(row, _, _)| row != against) {
        let Some((_, _, reference)) = cells.iter().find(|(name, at, _)| name == against && at == column)
        else {
            continue;
        };
        let differences = differences(scores, reference);
        units = units.max(differences.len());
        let index = rows.iter().position(|cells| cells.first() == Some(row)).unwrap_or_else(|| {
            rows.push([row.clone()].into_iter().chain(titles.iter().map(|_| "-".to_owned())).collect());
            rows.len() - 1
        });
        if let Some(cell) = rows.get_mut(index).and_then(|cells| cells.get_mut(column + 1)) {
            *cell = format(&differences);
        }
    }
    if units == 0 {
        return None;
    }
    let over = comparison.variants.iter().find_map(|variant| variant.over_change()?.split_once('='));
    let spread = match (units, over) {
        (1, _) => "one pair of runs".to_owned(),
        (units, Some((key, _))) => format!("mean [95 % interval over {units} values of {key}]"),
        (units, None) => format!("mean [95 % interval over {units} seeds]"),
    };
    Some(Table {
        title: format!("{}, difference to {against}, {spread}", score_names.title),
        columns: ["algorithm".to_owned()].into_iter().chain(titles).collect(),
        rows,
        notes: Vec::new(),
    })
}

/// Differences of paired runs: one for each value of `--over`, averaged over its seeds, or one for each seed if there are fewer than two
/// values.
fn differences(scores: &Scores, reference: &Scores) -> Vec<f64> {
    let mut of_values: BTreeMap<&Option<String>, Vec<f64>> = BTreeMap::new();
    for (key, score) in scores {
        if let Some(reference) = reference.get(key) {
            of_values.entry(&key.0).or_default().push(score - reference);
        }
    }
    if of_values.len() < 2 {
        return of_values.into_values().flatten().collect();
    }
    of_values.values().map(|of_seeds| mean(of_seeds)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Formats the mean of differences with its 95 % interval, if there are at least two.
fn format(differences: &[f64]) -> String {
    let middle = mean(differences);
    match differences.len() {
        0 => "-".to_owned(),
        1 => format!("{middle:+.4}"),
        count => {
            let squares: f64 = differences.iter().map(|value| (value - middle).powi(2)).sum();
            let error = (squares / ((count - 1) * count) as f64).sqrt();
            let half = student(count - 1) * error;
            format!("{middle:+.4} [{:+.4}, {:+.4}]", middle - half, middle + half)
        }
    }
}

/// The 97.5 % quantile of Student's t distribution with `freedom` degrees of freedom, by bisection of its distribution function
/// (Abramowitz and Stegun, 26.7.3 and 26.7.4).
fn student(freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0_f64, 1e3_f64);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if within(middle, freedom) < 0.95 { low = middle } else { high = middle }
    }
    high
}

/// Probability of values in `[-t, t]`.
fn within(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let square = angle.cos().powi(2);
    let odd = freedom % 2;
    // The terms of the series are products of (2 i - 1) / (2 i), or of 2 i / (2 i + 1) if `freedom` is odd.
    let (mut term, mut sum) = (1.0, 0.0);
    for i in (odd..freedom.saturating_sub(1)).step_by(2) {
        sum += term;
        term *= square * (i + 1) as f64 / (i + 2) as f64;
    }
    if odd == 1 {
        (angle + angle.sin() * angle.cos() * sum) * std::f64::consts::FRAC_2_PI
    } else {
        angle.sin() * sum
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Quantiles of a printed table.
    #[test]
    fn quantiles_are_those_of_students_table() {
        for (freedom, expected) in [
            (1, 12.706_205),
            (2, 4.302_653),
            (3, 3.182_446),
            (4, 2.776_445),
            (5, 2.570_582),
            (9, 2.262_157),
            (10, 2.228_139),
            (19, 2.093_024),
            (30, 2.042_272),
            (1000, 1.962_339),
        ] {
            let found = student(freedom);
            assert!((found - expected).abs() < 1e-5 * expected, "{freedom}: {found}, {expected}");
        }
    }

    #[test]
    fn seeds_of_one_value_are_averaged_first() {
        let scores = |values: &[(&str, u64, f64)]| -> Scores {
            values.iter().map(|(value, seed, score)| ((Some((*value).to_owned()), *seed), *score)).collect()
        };
        let ours = scores(&[("fold=0", 1, 0.5), ("fold=0", 2, 0.7), ("fold=1", 1, 0.5), ("fold=1", 2, 0.5)]);
        let others =
            scores(&[("fold=0", 1, 0.6), ("fold=0", 2, 0.9), ("fold=1", 1, 0.5), ("fold=1", 3, 9.0)]);
        let found = differences(&others, &ours);
        assert_eq!(found.len(), 2);
        assert!((found[0] - 0.15).abs() < 1e-12 && found[1] == 0.0, "{found:?}");
        let one_value = scores(&[("fold=0", 1, 0.6), ("fold=0", 2, 0.9)]);
        assert_eq!(differences(&one_value, &ours).len(), 2);
        assert!(differences(&Scores::new(), &ours).is_empty());
    }

    #[test]
    fn intervals_have_signs() {
        assert_eq!(format(&[]), "-");
        assert_eq!(format(&[0.25]), "+0.2500");
        assert_eq!(format(&[1.0, 1.0, 1.0]), "+1.0000 [+1.0000, +1.0000]");
        // Mean 0, standard error 1, one degree of freedom.
        assert_eq!(format(&[-1.0, 1.0]), "+0.0000 [-12.7062, +12.7062]");
    }
}
