//! Progress display on standard error: a progress bar on a terminal, otherwise a few lines of text.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::log_line;
use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::figures::Figures;
use fedspan_sim_core::report::table::figure;
use fedspan_sim_core::run::Watcher;

/// Number of progress lines of a run if standard error is not a terminal.
const LINES: u32 = 10;

/// Creates a progress bar, or returns `None` if standard error is not a terminal.
fn create_bar(prefix: &str, length: u64) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    // Indicatif omits colours if the environment variable NO_COLOR is set.
    let style = ProgressStyle::with_template("{prefix} {bar:32.cyan/blue} {pos}/{len}{msg} ({eta})");
    let bar = ProgressBar::new(length).with_prefix(prefix.to_owned());
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    Some(bar)
}

/// Position of a run among the runs of a command.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Number of the run, from 1.
    pub number: usize,
    /// Number of runs.
    pub total: usize,
    /// Start of the command.
    pub began: Instant,
}

impl Position {
    /// Text such as "3 of 78", with the time that the later runs will take if they take as long as those so far; empty
    /// for a single run.
    pub fn text(self, is_done: bool) -> String {
        if self.total < 2 {
            return String::new();
        }
        let done = if is_done { self.number } else { self.number - 1 };
        let seconds = self.began.elapsed().as_secs_f64() / done.max(1) as f64 * (self.total - done) as f64;
        let left = match (done, seconds) {
            (0, _) => String::new(),
            (_, seconds) if seconds < 90.0 => format!(", {seconds:.0} s left"),
            (_, seconds) => format!(", {:.0} min left", seconds / 60.0),
        };
        format!("{} of {}{left}", self.number, self.total)
    }
}

/// Progress display of one run, which also interrupts the run if the stop flag is set.
pub struct Progress {
    label: String,
    bar: Option<ProgressBar>,
    /// Whether lines are shown if there is no bar.
    lines: bool,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Creates the display for the run `label`, or none if `quiet`. The run ends after the current round if `stop` becomes
    /// true. Without a terminal only a single run shows its rounds.
    pub fn new(label: String, rounds: u32, position: Position, quiet: bool, stop: &Arc<AtomicBool>) -> Self {
        let text = position.text(false);
        let prefix = if text.is_empty() { label.clone() } else { format!("[{text}] {label}") };
        let bar = if quiet { None } else { create_bar(&prefix, rounds.into()) };
        Self { label, bar, lines: !quiet && position.total < 2, stop: Arc::clone(stop) }
    }

    /// Removes the progress bar from the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Progress {
    fn round(&mut self, done: u32, total: u32, scores: Option<&Scores>) -> bool {
        let mut figures = String::new();
        if let Some(scores) = scores {
            for (name, value) in Figures::new(scores).iter() {
                figures.push_str(&format!(", {name} {}", figure(name, value)));
            }
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position(done.into());
                if scores.is_some() {
                    bar.set_message(figures);
                }
            }
            None => {
                let interval = total.div_ceil(LINES).max(1);
                if self.lines && done > 0 && (done.is_multiple_of(interval) || done == total) {
                    log_line(&format!("{}: round {done}/{total}{figures}", self.label));
                }
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Combined progress display of many parallel runs.
pub struct PartsProgress {
    quiet: bool,
    label: String,
    bar: Option<ProgressBar>,
    done: AtomicU64,
}

impl PartsProgress {
    /// Creates a display at 0 %, which shows nothing if `quiet`.
    pub fn new(label: &str, quiet: bool) -> Self {
        let bar = if quiet { None } else { create_bar(label, 0) };
        Self { quiet, label: label.to_owned(), bar, done: AtomicU64::new(0) }
    }

    /// Removes the progress bar from the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl fedspan_sim_core::progress::Progress for PartsProgress {
    fn advance(&self, parts: u64, total: u64, what: &str) {
        let done_before = self.done.fetch_add(parts, Ordering::Relaxed);
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done_before + parts);
                bar.set_message(format!(", {what}"));
            }
            None if self.quiet => {}
            None => {
                let tenth = |done: u64| done * u64::from(LINES) / total.max(1);
                if tenth(done_before) != tenth(done_before + parts) {
                    log_line(&format!(
                        "{}: {}% done, {what}",
                        self.label,
                        (done_before + parts) * 100 / total.max(1)
                    ));
                }
            }
        }
    }
}

/// Line of text on a terminal that changes while a command has no known end; nothing elsewhere.
pub struct Spinner(Option<ProgressBar>);

impl Spinner {
    /// Creates an empty line.
    pub fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(ProgressBar::new_spinner))
    }

    /// Changes the line.
    pub fn show(&self, text: impl FnOnce() -> String) {
        if let Some(bar) = &self.0 {
            bar.set_message(text());
            bar.tick();
        }
    }

    /// Prints a line that stays.
    pub fn log(&self, line: &str) {
        match &self.0 {
            Some(bar) => bar.suspend(|| log_line(line)),
            None => log_line(line),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
