//! The programs that print tables: run once for each command, and timed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::own;

/// The simulator, which prints Markdown where it is asked to.
const SIMULATOR: &str = "fedspan-sim";
/// This program, as marks name it.
const OWN: &str = "tests/tables";

/// Whether the output of a command can be shown. Of others (benchmarks, what needs other data) people put the figures down.
#[must_use]
pub fn is_known(command: &[String]) -> bool {
    command.first().is_some_and(|program| [SIMULATOR, OWN].contains(&program.as_str()))
}

/// Runs commands, and remembers what they printed and how long they took.
#[derive(Debug)]
pub struct Programs {
    /// Where the programs are.
    beside: PathBuf,
    /// Where they run, and leave what they write.
    work: PathBuf,
    printed: BTreeMap<Vec<String>, Result<String, String>>,
}

impl Programs {
    /// Programs that stand in a directory, and run in another one.
    #[must_use]
    pub fn new(beside: &Path, work: &Path) -> Self {
        Self { beside: beside.to_owned(), work: work.to_owned(), printed: BTreeMap::new() }
    }

    /// The standard output of a command, in Markdown.
    ///
    /// # Errors
    /// A sentence: no such program, or the last line of what it says of its failure.
    pub fn printed(&mut self, command: &[String]) -> Result<String, String> {
        if let Some(known) = self.printed.get(command) {
            return known.clone();
        }
        let printed = match command {
            [program, print, name] if program == OWN && print == "--print" => own::print(name, self),
            [program, ..] if program == SIMULATOR => {
                let format = ["--format", "markdown"].map(str::to_owned);
                self.run(&[command, &format].concat())
            }
            _ => {
                let found = command.join(" ");
                Err(format!("found {found:?}, allowed: a command of {SIMULATOR}, or {OWN} --print NAME"))
            }
        };
        self.printed.insert(command.to_owned(), printed.clone());
        printed
    }

    /// Runs the simulator with these words after its name, with result files in a directory of that name; what is in it is
    /// read with [`Self::read`].
    ///
    /// # Errors
    /// As [`Self::printed`].
    pub fn simulate(&mut self, words: &[&str], out: &str) -> Result<(), String> {
        let command = [&[SIMULATOR], words, &["--out", out]].concat();
        self.run(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).map(|_| ())
    }

    /// A file that a program has written.
    ///
    /// # Errors
    /// Its name, and what the system says.
    pub fn read(&self, file: &str) -> Result<String, String> {
        std::fs::read_to_string(self.work.join(file)).map_err(|error| format!("{file}: {error}"))
    }

    fn run(&self, command: &[String]) -> Result<String, String> {
        let [name, words @ ..] = command else { return Err("no command".to_owned()) };
        let program = self.beside.join(name);
        std::fs::create_dir_all(&self.work).map_err(|error| format!("{}: {error}", self.work.display()))?;
        let output = Command::new(&program).args(words).current_dir(&self.work).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("nothing was said").to_owned();
            return Err(format!("{}: {}: {last}", command.join(" "), output.status));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("{}: {error}", command.join(" ")))
    }
}

/// How many seconds tables took when they were made last, by their commands: a file below `target`.
#[derive(Debug)]
pub struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    /// Those of earlier runs; none where there is no such file.
    #[must_use]
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        Self { file: file.to_owned(), seconds: serde_json::from_str(&text).unwrap_or_default() }
    }

    /// The seconds of a table.
    #[must_use]
    pub fn of(&self, commands: &str) -> Option<f64> {
        self.seconds.get(commands).copied()
    }

    /// Notes how long a table took. A file that cannot be written is no reason to stop.
    pub fn note(&mut self, commands: &str, began: Instant) {
        self.seconds.insert(commands.to_owned(), began.elapsed().as_secs_f64());
        if let (Ok(text), Some(directory)) = (serde_json::to_string_pretty(&self.seconds), self.file.parent())
        {
            let _ = std::fs::create_dir_all(directory);
            let _ = std::fs::write(&self.file, text);
        }
    }
}
