//! What `speedup`, `byzantine` and `dropout` do alike: they measure over seeds, and show a table and the figures behind it.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::{Format, Stop, check_out, interrupt, make_out, output, progress, use_threads};
use fedspan_sim_core::report::files::{json, write_json, write_text};

/// Options of all of them.
#[derive(Debug, Args)]
pub struct FiguresOptions {
    /// Threads; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write table.md and figures.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What standard output gets: a table, which is Markdown, or the text of figures.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// `figures.json`.
#[derive(Serialize)]
pub struct Figures<'a, O, R> {
    /// This program's.
    pub version: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// The first seed.
    pub seed: u64,
    /// How many.
    pub seeds: u32,
    /// What only this command has.
    #[serde(flatten)]
    pub own: O,
    /// What was measured.
    pub rows: &'a [R],
    /// What differs from run to run.
    pub timing: Timing,
}

/// How long it took.
#[derive(Serialize)]
pub struct Timing {
    wall_s: f64,
}

impl FiguresOptions {
    /// Measures with so many threads until Ctrl-C; what can be wrong with the options is found before.
    pub fn measure<T>(
        &self,
        name: &str,
        measure: impl FnOnce(usize, &AtomicBool, &progress::Whole) -> T,
    ) -> Result<(T, Timing), Stop> {
        if let Some(out) = &self.out {
            check_out(out)?;
            make_out(out)?;
        }
        use_threads(self.threads)?;
        let stop = interrupt::watch();
        let progress = progress::Whole::new(name);
        let began = Instant::now();
        let measured = measure(rayon::current_num_threads(), &stop, &progress);
        progress.finish();
        Ok((measured, Timing { wall_s: began.elapsed().as_secs_f64() }))
    }

    /// Writes and prints.
    pub fn show(
        &self,
        table: &str,
        figures: &Figures<'_, impl Serialize, impl Serialize>,
    ) -> Result<(), Stop> {
        if let Some(out) = &self.out {
            write_text(&out.join("table.md"), table)?;
            write_json(&out.join("figures.json"), figures)?;
        }
        match self.format {
            Format::Human | Format::Markdown => output::print(table)?,
            Format::Json => {
                output::print(&json(figures).map_err(|error| Stop::Failed(error.to_string()))?)?;
            }
        }
        output::say(&format!("{} seeds, {:.1} s", figures.seeds, figures.timing.wall_s));
        Ok(())
    }
}

/// Those of what is known that an option names.
pub fn chosen<T: Clone>(
    option: &str,
    names: &[String],
    known: &[T],
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, Stop> {
    let find = |word: &String| {
        let found = known.iter().find(|one| name(one) == word).cloned();
        let all: Vec<String> = known.iter().map(|one| format!("{:?}", name(one))).collect();
        found.ok_or_else(|| Stop::Usage(format!("{option}: found {word:?}, allowed: {}", all.join(", "))))
    };
    names.iter().map(find).collect()
}

/// A finite number of which something holds.
pub fn number(text: &str, holds: impl Fn(f64) -> bool, allowed: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && holds(*value));
    value.ok_or_else(|| format!("allowed: {allowed}"))
}
