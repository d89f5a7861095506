//! `byzantine`: attacks on a campaign, and rules of aggregation that withstand them.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::speedup::number;
use super::{Format, Stop, check_out, interrupt, make_out, output, progress, use_threads};
use crate::byzantine::{self, ByzantineError, Choice, GRIDS, Row, Settings};
use crate::report::files::{json, write_json, write_text};

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
    /// Threads; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write table.md and figures.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What standard output gets: a table, or the text of figures.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
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

/// `figures.json`.
#[derive(Serialize)]
struct Figures<'a> {
    version: &'static str,
    scenario: &'static str,
    grid: &'static str,
    changes: &'a [String],
    seed: u64,
    seeds: u32,
    rows: &'a [Row],
    timing: Timing,
}

#[derive(Serialize)]
struct Timing {
    wall_s: f64,
}

/// `fedspan-sim byzantine`.
pub fn command(options: &ByzantineOptions) -> Result<(), Stop> {
    let settings = settings(options)?;
    if let Some(out) = &options.out {
        check_out(out)?;
        make_out(out)?;
    }
    use_threads(options.threads)?;
    let settings = Settings { threads: rayon::current_num_threads(), ..settings };
    let stop = interrupt::watch();
    let progress = progress::Whole::new("byzantine");
    let began = Instant::now();
    let rows = byzantine::measure(&settings, &stop, &progress);
    progress.finish();
    let rows = rows.map_err(|error| match error {
        ByzantineError::Scenario(_) => Stop::Usage(error.to_string()),
        ByzantineError::Run(_) => Stop::Failed(error.to_string()),
    })?;
    let Some(rows) = rows else { return Err(Stop::Failed("interrupted; nothing was finished".to_owned())) };
    let figures = Figures {
        version: env!("CARGO_PKG_VERSION"),
        scenario: byzantine::SCENARIO,
        grid: settings.grid.name,
        changes: &settings.changes,
        seed: settings.seed,
        seeds: settings.seeds,
        rows: &rows,
        timing: Timing { wall_s: began.elapsed().as_secs_f64() },
    };
    let table = byzantine::markdown(&rows);
    if let Some(out) = &options.out {
        write_text(&out.join("table.md"), &table)?;
        write_json(&out.join("figures.json"), &figures)?;
    }
    match options.format {
        Format::Human => output::print(&table)?,
        Format::Json => {
            output::print(&json(&figures).map_err(|error| Stop::Failed(error.to_string()))?)?;
        }
    }
    output::say(&format!("{} seeds, {:.1} s", settings.seeds, figures.timing.wall_s));
    Ok(())
}

fn settings(options: &ByzantineOptions) -> Result<Settings, Stop> {
    let grid = GRIDS.into_iter().find(|grid| grid.name == options.grid).unwrap_or(GRIDS[0]);
    Ok(Settings {
        grid,
        attacks: chosen("--attacks", options.attacks.as_ref(), grid.attacks)?,
        rules: chosen("--rules", options.rules.as_ref(), grid.rules)?,
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
fn chosen(option: &str, names: Option<&Names>, known: &[Choice]) -> Result<Vec<Choice>, Stop> {
    let Some(Names(names)) = names else { return Ok(known.to_vec()) };
    let find = |name: &String| {
        let choice = known.iter().find(|choice| choice.name == *name).copied();
        let all: Vec<String> = known.iter().map(|choice| format!("{:?}", choice.name)).collect();
        choice.ok_or_else(|| Stop::Usage(format!("{option}: found {name:?}, allowed: {}", all.join(", "))))
    };
    names.iter().map(find).collect()
}
