//! The same epochs in numpy on one thread, by a script that waits for its turns.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running script.
#[derive(Debug)]
pub struct Numpy {
    child: Child,
    turns: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// What it says it is.
    pub version: String,
    /// The mean cross-entropy after its first epoch.
    pub loss: f64,
}

impl Numpy {
    /// Starts it; it has done one epoch then.
    ///
    /// # Errors
    /// Where there is no Python or no numpy.
    pub fn start(python: &str) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/epochs.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        for threads in ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(threads, "1");
        }
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (turns, answers) = pipes.ok_or_else(|| Error::other("no pipes"))?;
        let mut numpy =
            Self { child, turns, answers: BufReader::new(answers), version: String::new(), loss: f64::NAN };
        numpy.version = numpy.line()?;
        numpy.loss = numpy.number()?;
        Ok(numpy)
    }

    /// Seconds that so many epochs take.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn epochs(&mut self, count: usize) -> Result<f64> {
        writeln!(self.turns, "{count}")?;
        self.turns.flush()?;
        self.number()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(Error::other("the script has ended: is numpy installed?"));
        }
        Ok(line.trim().to_owned())
    }

    fn number(&mut self) -> Result<f64> {
        let line = self.line()?;
        line.parse().map_err(|_| Error::other(format!("not a number: {line}")))
    }
}

impl Drop for Numpy {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left to do about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
