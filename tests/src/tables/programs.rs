//! Runner of the programs that print tables. Runs each command once and records its time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The simulator, which prints Markdown on request.
const SIMULATOR: &str = "fedspan-sim";
/// Name of this program in marks.
const THIS_PROGRAM: &str = "tests/tables";

/// Returns true if the command can be run by this program. Values of other commands (benchmarks, runs on
/// external data) are entered by hand.
#[must_use]
pub fn is_known(command: &[String]) -> bool {
    command.first().is_some_and(|program| [SIMULATOR, THIS_PROGRAM].contains(&program.as_str()))
}

/// Function that creates the table with a given name from the output of other commands.
pub type OwnTable = fn(&str, &mut Programs) -> Result<String, String>;

/// Runs commands, and caches their output.
#[derive(Debug)]
pub struct Programs {
    /// Directory of the programs.
    directory: PathBuf,
    /// Working directory of the programs, for the files they write.
    working_directory: PathBuf,
    /// Function that creates the tables that no command prints.
    own_table: OwnTable,
    printed: BTreeMap<Vec<String>, Result<String, String>>,
}

impl Programs {
    /// Creates a runner of the programs in `directory`, which run in `working_directory`. `own_table` creates
    /// the tables that no command prints.
    #[must_use]
    pub fn new(directory: &Path, working_directory: &Path, own_table: OwnTable) -> Self {
        Self {
            directory: directory.to_owned(),
            working_directory: working_directory.to_owned(),
            own_table,
            printed: BTreeMap::new(),
        }
    }

    /// Returns the standard output of a command, as Markdown.
    ///
    /// # Errors
    /// A sentence if the program is unknown, or the last line of its error output if it fails.
    pub fn printed(&mut self, command: &[String]) -> Result<String, String> {
        if let Some(known) = self.printed.get(command) {
            return known.clone();
        }
        let printed = match command {
            [program, print, name] if program == THIS_PROGRAM && print == "--print" => {
                (self.own_table)(name, self)
            }
            [program, ..] if program == SIMULATOR => {
                let format = ["--format", "markdown"].map(str::to_owned);
                self.run(&[command, &format].concat())
            }
            _ => {
                let words = command.join(" ");
                Err(format!(
                    "found {words:?}, allowed: a command of {SIMULATOR}, or {THIS_PROGRAM} --print NAME"
                ))
            }
        };
        self.printed.insert(command.to_owned(), printed.clone());
        printed
    }

    /// Runs the simulator's command `run` or `compare` with these arguments. Its result files are written to the directory `out`, from
    /// where [`Self::read`] reads them.
    ///
    /// # Errors
    /// The same errors as [`Self::printed`].
    pub fn simulate(&mut self, words: &[&str], out: &str) -> Result<(), String> {
        // Tables run the program again and again into one directory.
        let command = [&[SIMULATOR], words, &["--out", out, "--overwrite"]].concat();
        self.run(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).map(|_| ())
    }

    /// Reads a file that a program has written.
    ///
    /// # Errors
    /// The name of the file and the operating system's error.
    pub fn read(&self, file: &str) -> Result<String, String> {
        std::fs::read_to_string(self.working_directory.join(file)).map_err(|error| format!("{file}: {error}"))
    }

    /// Runs a program in the working directory and returns its standard output.
    fn run(&self, command: &[String]) -> Result<String, String> {
        let [name, words @ ..] = command else { return Err("no command".to_owned()) };
        let program = self.directory.join(name);
        std::fs::create_dir_all(&self.working_directory)
            .map_err(|error| format!("{}: {error}", self.working_directory.display()))?;
        let output = Command::new(&program).args(words).current_dir(&self.working_directory).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().last().unwrap_or("no error output").to_owned();
            return Err(format!("{}: {}: {last}", command.join(" "), output.status));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("{}: {error}", command.join(" ")))
    }
}

/// Time that the commands of each table took when the table was last made, in seconds; kept in a file below
/// `target`.
#[derive(Debug)]
pub struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    /// Reads the times of earlier runs. There are none if the file does not exist.
    #[must_use]
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        Self { file: file.to_owned(), seconds: serde_json::from_str(&text).unwrap_or_default() }
    }

    /// Returns the time that a table took, in seconds.
    #[must_use]
    pub fn get(&self, commands: &str) -> Option<f64> {
        self.seconds.get(commands).copied()
    }

    /// Records the time of a table. Errors in writing the file are ignored.
    pub fn note(&mut self, commands: &str, began: Instant) {
        self.seconds.insert(commands.to_owned(), began.elapsed().as_secs_f64());
        if let (Ok(text), Some(parent)) = (serde_json::to_string_pretty(&self.seconds), self.file.parent()) {
            let _ = std::fs::create_dir_all(parent);
            let _ = std::fs::write(&self.file, text);
        }
    }
}
