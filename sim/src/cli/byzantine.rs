//! `byzantine`: attacks on a campaign, and rules of aggregation that withstand them.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::Stop;
use super::figures::{Figures, FiguresOptions, chosen, number};
use fedspan_experiments::byzantine::{self, ByzantineError, Choice, GRIDS, Settings};

/// Options of `byzantine`.
#[derive(Debug, Args)]
pub struct ByzantineOptions {
    /// What devices upload
    #[arg(long, value_name = "NAME", default_value = GRIDS[0].name, value_parser = PossibleValuesParser::new(GRIDS.map(|grid| grid.name)))]
    grid: String,
    /// Attacks, by their names in the table [default: all of the grid]
    #[arg(long, value_name = "NAME,...", value_parser = names)]
    attacks: Option<Names>,
    /// Rules, by their names in the table [default: all of the grid]
    #[arg(long, value_name = "NAME,...", value_parser = names)]
    rules: Option<Names>,
    /// Parts of the fleet that attack [default: those of the grid]
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = fraction)]
    fractions: Vec<f64>,
    /// Change a key of the scenario, for every run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// How many seeds, counting up
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    #[command(flatten)]
    figures: FiguresOptions,
}

/// A list of names, some of which have a comma followed by a space.
#[derive(Clone, Debug)]
struct Names(Vec<String>);

fn names(text: &str) -> Result<Names, std::convert::Infallible> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        match names.last_mut().filter(|_| part.starts_with(' ')) {
            Some(last) => last.push_str(&format!(",{part}")),
            None => names.push(part.to_owned()),
        }
    }
    Ok(Names(names))
}

fn fraction(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..=0.49).contains(&value), "a number from 0 to 0.49")
}

/// What is its own in `figures.json`.
#[derive(Serialize)]
struct Own<'a> {
    grid: &'static str,
    changes: &'a [String],
}

/// `fedspan-sim byzantine`.
pub fn command(options: &ByzantineOptions) -> Result<(), Stop> {
    let settings = settings(options)?;
    let own = Own { grid: settings.grid.name, changes: &options.changes };
    let (rows, timing) = options.figures.measure("byzantine", |threads, stop, progress| {
        byzantine::measure(&Settings { threads, ..settings }, stop, progress)
    })?;
    let rows = rows.map_err(|error| match error {
        ByzantineError::Scenario(_) => Stop::Usage(error.to_string()),
        ByzantineError::Run(_) => Stop::Failed(error.to_string()),
    })?;
    let Some(rows) = rows else { return Err(Stop::Failed("interrupted; nothing was finished".to_owned())) };
    let (seed, seeds, scenario) = (options.seed, options.seeds, byzantine::SCENARIO);
    let figures =
        Figures { version: env!("CARGO_PKG_VERSION"), scenario, seed, seeds, own, rows: &rows, timing };
    options.figures.show(&byzantine::markdown(&rows), &figures)
}

fn settings(options: &ByzantineOptions) -> Result<Settings, Stop> {
    let grid = GRIDS.into_iter().find(|grid| grid.name == options.grid).unwrap_or(GRIDS[0]);
    Ok(Settings {
        grid,
        attacks: among("--attacks", options.attacks.as_ref(), grid.attacks)?,
        rules: among("--rules", options.rules.as_ref(), grid.rules)?,
        fractions: if options.fractions.is_empty() {
            grid.fractions.to_vec()
        } else {
            options.fractions.clone()
        },
        changes: options.changes.clone(),
        seed: options.seed,
        seeds: options.seeds,
        threads: 1,
    })
}

/// Those that are asked for, or all.
fn among(option: &str, names: Option<&Names>, known: &[Choice]) -> Result<Vec<Choice>, Stop> {
    match names {
        Some(Names(names)) => chosen(option, names, known, |choice| choice.name),
        None => Ok(known.to_vec()),
    }
}
