//! One side of a comparison, from the outside: a process that is sent numbers of repeats.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::side::{Facts, Turn, parse_turn};

/// Exit code of a side that lacks something, for example numpy.
pub const MISSING: i32 = 77;

/// Variables with which numerical libraries limit their threads.
const THREADS: [&str; 4] =
    ["RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"];

/// Reason why a side did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The side lacks a program or a library.
    Missing(String),
    /// The side has failed.
    Failed(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Missing(message) | Self::Failed(message)) = self;
        f.write_str(message)
    }
}

/// A running side.
#[derive(Debug)]
pub struct SideProcess {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// File with the process's error output.
    log: PathBuf,
    /// Description that the side has printed.
    pub facts: Facts,
}

impl SideProcess {
    /// Starts a side with so many threads, and reads its facts. Its error output is written to the file `log`.
    ///
    /// # Errors
    /// [`Fault::Missing`] if there is no such program, or if it exits with [`MISSING`]; [`Fault::Failed`] if it fails
    /// in another way, or does not print facts.
    pub fn start(command: &mut Command, threads: usize, log: &Path) -> Result<Self, Fault> {
        let failed = |error: String| Fault::Failed(format!("{}: {error}", log.display()));
        let errors = File::create(log).map_err(|error| failed(error.to_string()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        command.envs(THREADS.map(|name| (name, threads.to_string())));
        // Python would write compiled files among the sources.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let mut child = command.spawn().map_err(|error| {
            let message = format!("{}: {error}", command.get_program().to_string_lossy());
            if error.kind() == ErrorKind::NotFound { Fault::Missing(message) } else { Fault::Failed(message) }
        })?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or_else(|| failed("no pipes".to_owned()))?;
        let answers = BufReader::new(answers);
        let mut process = Self { child, requests, answers, log: log.to_owned(), facts: Facts::default() };
        let Some(line) = process.line().map_err(Fault::Failed)? else { return Err(process.end()) };
        process.facts = serde_json::from_str(&line).map_err(|error| {
            Fault::Failed(format!("printed {line:?}, allowed: its facts as JSON: {error}"))
        })?;
        Ok(process)
    }

    /// Runs a turn of so many repeats.
    ///
    /// # Errors
    /// A sentence if the process has ended, or does not answer with seconds and a check value.
    pub fn turn(&mut self, repeats: u32) -> Result<Turn, String> {
        // If the process has ended, its error output says more than the error of writing to it.
        let _ = writeln!(self.requests, "{repeats}").and_then(|()| self.requests.flush());
        match self.line()? {
            Some(line) => parse_turn(&line),
            None => Err(self.end().to_string()),
        }
    }

    /// Reads a line; `None` if the process has ended.
    fn line(&mut self) -> Result<Option<String>, String> {
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        Ok((length > 0).then(|| line.trim().to_owned()))
    }

    /// Returns the reason why the process has ended: the last line of its error output.
    fn end(&mut self) -> Fault {
        let status = match self.child.wait() {
            Ok(status) => status,
            Err(error) => return Fault::Failed(error.to_string()),
        };
        let errors = std::fs::read(&self.log).unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let last =
            errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no error output").to_owned();
        match status.code() {
            Some(MISSING) => Fault::Missing(last),
            _ => Fault::Failed(format!("ended with {status}: {last} (all of it: {})", self.log.display())),
        }
    }
}

impl Drop for SideProcess {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use tempfile::TempDir;

    use super::{Fault, SideProcess};
    use crate::benchmarks::side::Turn;

    const FACTS: &str = r#"{"program":"sh","form":"a script","dtype":"f32","n":"1"}"#;

    /// Starts a shell script as a side, with its log in `directory`.
    fn start(script: &str, directory: &TempDir) -> Result<SideProcess, Fault> {
        let mut command = Command::new("sh");
        SideProcess::start(command.args(["-c", script, "sh", FACTS]), 3, &directory.path().join("log"))
    }

    #[test]
    fn side_answers_until_it_ends() {
        let script = r#"echo "$1"; read n; echo "$n.5 $OMP_NUM_THREADS"; read n; echo done; read n; echo failed >&2; exit 4"#;
        let directory = tempfile::tempdir().unwrap();
        let mut side = start(script, &directory).unwrap();
        assert_eq!((side.facts.program.as_str(), side.facts.cost.clone()), ("sh", None));
        assert_eq!(side.turn(7).unwrap(), Turn { seconds: 7.5, check: 3.0 });
        assert!(side.turn(1).unwrap_err().contains("printed \"done\", allowed: positive seconds"));
        let error = side.turn(1).unwrap_err();
        assert!(error.starts_with("ended with exit status: 4: failed"), "{error}");
    }

    #[test]
    fn missing_side_is_not_a_failed_one() {
        let directory = tempfile::tempdir().unwrap();
        let missing = start("echo no numpy here >&2; exit 77", &directory).unwrap_err();
        assert_eq!(missing, Fault::Missing("no numpy here".to_owned()));
        let log = directory.path().join("log");
        let absent = SideProcess::start(&mut Command::new("no-such-program"), 1, &log).unwrap_err();
        assert!(matches!(absent, Fault::Missing(message) if message.contains("no-such-program")));
        for script in ["exit 1", "kill -9 $$", "echo hello"] {
            assert!(matches!(start(script, &directory), Err(Fault::Failed(_))), "{script}");
        }
        let Err(Fault::Failed(message)) = start("echo hello", &directory) else { unreachable!("it fails") };
        assert!(message.contains("printed \"hello\", allowed: its facts"), "{message}");
    }
}
