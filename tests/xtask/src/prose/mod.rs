//! Command `cargo xtask prose`: counts pieces of English text that break the rules of the project, for each
//! area.
//!
//! The lists of words and the counts of each area are in `tests/xtask/prose.toml`. A count must not rise.

mod baseline;
pub mod files;
mod items;
mod lexer;
mod words;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::process::{Failure, print_lines};
use baseline::{Area, Baseline, Counts};
use items::items;
use words::Words;

const BASELINE: &str = "tests/xtask/prose.toml";

/// Arguments of `cargo xtask prose`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "An item is one doc comment (or one section of it), help text, log message, error text or name of a
test. It breaks the rules if it begins with a word of the list 'first', or contains a word of the
list 'anywhere'; a log message also if it has a placeholder. Plain comments are counted, but no part
of the per cent.

exit: 0 all well · 1 a count is above its baseline · 2 wrong arguments"
)]
pub struct Prose {
    /// Compare with the baseline: fail if a count is above it.
    #[arg(long, conflicts_with_all = ["update", "list"])]
    check: bool,
    /// Write the counts as the new baseline; refused if the sum of a kind would rise.
    #[arg(long, conflicts_with = "list")]
    update: bool,
    /// Print each item that breaks the rules, instead of the table.
    #[arg(long)]
    list: bool,
    /// Files or folders to look at (with --list, or for one count); default: every area.
    #[arg(conflicts_with_all = ["check", "update"])]
    paths: Vec<PathBuf>,
}

impl Prose {
    /// Returns arguments that compare the counts with the baseline.
    #[must_use]
    pub fn check() -> Self {
        Self { check: true, ..Self::default() }
    }
}

/// One item that breaks the rules.
struct Offence {
    file: PathBuf,
    line: usize,
    class: &'static str,
    reason: String,
    text: String,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if a file cannot be read, or if the counts do not satisfy the arguments.
pub fn run(root: &Path, arguments: &Prose) -> Result<(), Failure> {
    let file = root.join(BASELINE);
    let text =
        std::fs::read_to_string(&file).map_err(|error| Failure::new(format!("{BASELINE}: {error}")))?;
    let baseline = Baseline::parse(&text).map_err(|error| Failure::new(format!("{BASELINE}: {error}")))?;
    if !arguments.paths.is_empty() {
        return count_paths(&arguments.paths, &baseline.words, arguments.list);
    }
    let mut counted = Vec::new();
    let mut offences = Vec::new();
    let mut counts_of_area = vec![Counts::default(); baseline.areas.len()];
    for (index, area) in baseline.areas.iter().enumerate() {
        let folder = root.join(&area.folder);
        if !folder.is_dir() {
            continue;
        }
        for file in files::rust_files(&folder)? {
            let relative = file.strip_prefix(root).unwrap_or(&file);
            // A file belongs to the innermost area that contains it.
            if baseline.area_of(relative) == Some(index) {
                offences.extend(count_file(&file, relative, &baseline.words, &mut counts_of_area[index])?);
            }
        }
    }
    counted.append(&mut counts_of_area);
    if arguments.list {
        print_offences(&offences);
    } else {
        print_lines(&format_table(&baseline.areas, &counted));
    }
    if arguments.update {
        let new = baseline.updated(&text, &counted).map_err(Failure::new)?;
        std::fs::write(&file, new).map_err(|error| Failure::new(format!("{BASELINE}: {error}")))?;
    }
    if arguments.check {
        let differences = baseline.differences(&counted);
        for line in differences.above.iter().chain(&differences.below) {
            println!("prose: {line}");
        }
        if !differences.above.is_empty() {
            return Err(Failure::new(
                "prose: counts may only fall; `cargo xtask prose --list` prints the items. Where code has moved from one \
                 area to another: `cargo xtask prose --update`",
            ));
        }
        if !differences.below.is_empty() {
            println!("prose: fewer than the baseline; `cargo xtask prose --update` lowers it");
        }
    }
    Ok(())
}

/// Counts or lists the items of files and folders, regardless of areas.
fn count_paths(paths: &[PathBuf], words: &Words, list: bool) -> Result<(), Failure> {
    let mut counts = Counts::default();
    let mut offences = Vec::new();
    for path in paths {
        for file in files::rust_files(path)? {
            offences.extend(count_file(&file, &file, words, &mut counts)?);
        }
    }
    if list {
        print_offences(&offences);
    }
    let area = Area { folder: "these paths".to_owned(), limit: None, baseline: Default::default() };
    print_lines(&format_table(&[area], &[counts]));
    Ok(())
}

/// Adds the items of a file to the counts. Returns the items that break the rules.
fn count_file(
    file: &Path,
    shown: &Path,
    words: &Words,
    counts: &mut Counts,
) -> Result<Vec<Offence>, Failure> {
    let mut offences = Vec::new();
    let Some(source) = files::source(file)? else { return Ok(offences) };
    for item in items(&source) {
        let reason = words.offence(&item);
        counts.add(item.class, reason.is_some());
        if let Some(reason) = reason {
            let text = item.text.split_whitespace().collect::<Vec<_>>().join(" ");
            let class = item.class.name();
            offences.push(Offence { file: shown.to_owned(), line: item.line, class, reason, text });
        }
    }
    Ok(offences)
}

fn print_offences(offences: &[Offence]) {
    for Offence { file, line, class, reason, text } in offences {
        let shown: String = text.chars().take(90).collect();
        print_lines(&format!("{}:{line}: {class} {reason}: {shown}", file.display()));
    }
}

/// Returns the table: offences and items of each kind, the percentage for all kinds except comments, and the
/// limit.
fn format_table(areas: &[Area], counted: &[Counts]) -> String {
    use std::fmt::Write;
    let mut text = format!("{:<22}", "area");
    for class in items::Class::ALL {
        let _ = write!(text, " {:>11}", class.name());
    }
    let _ = write!(text, " {:>6} {:>6}", "%", "limit");
    for (area, counts) in areas.iter().zip(counted) {
        let _ = write!(text, "\n{:<22}", area.folder);
        for class in items::Class::ALL {
            let count = counts.of(class);
            let _ = write!(text, " {:>11}", format!("{} / {}", count.offences, count.items));
        }
        let percent = counts.percent();
        let limit = area.limit.map_or(String::new(), |limit| format!("{limit:.1}"));
        let mark = if area.limit.is_some_and(|limit| percent >= limit) { "  over" } else { "" };
        let _ = write!(text, " {percent:>6.1} {limit:>6}{mark}");
    }
    text
}
