//! Progress display on standard error: a progress bar on a terminal, otherwise a few lines of text.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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

/// Progress display of one run, which also interrupts the run if the stop flag is set.
pub struct Progress {
    label: String,
    bar: Option<ProgressBar>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Creates the display for the run `label`. The run ends after the current round if `stop` becomes true.
    pub fn new(label: String, rounds: u32, stop: &Arc<AtomicBool>) -> Self {
        let bar = create_bar(&label, rounds.into());
        Self { label, bar, stop: Arc::clone(stop) }
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
                if done > 0 && (done.is_multiple_of(interval) || done == total) {
                    log_line(&format!("{}: round {done}/{total}{figures}", self.label));
                }
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Combined progress display of many parallel runs.
pub struct PartsProgress {
    label: String,
    bar: Option<ProgressBar>,
    done: AtomicU64,
}

impl PartsProgress {
    /// Creates a display at 0 %.
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), bar: create_bar(label, 0), done: AtomicU64::new(0) }
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
