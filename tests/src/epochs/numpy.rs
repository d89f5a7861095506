//! Training epochs in numpy on one thread: starts a Python script and sends it commands.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running Python script.
#[derive(Debug)]
pub struct Numpy {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Version of numpy that the script reports.
    pub version: String,
    /// Mean cross-entropy after the first epoch.
    pub loss: f64,
}

impl Numpy {
    /// Starts the script, which runs one epoch.
    ///
    /// # Errors
    /// If Python or numpy is missing.
    pub fn start(python: &str) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/epochs.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        for threads in ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(threads, "1");
        }
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (commands, answers) = pipes.ok_or_else(|| Error::other("no pipes"))?;
        let mut numpy = Self {
            child,
            commands,
            answers: BufReader::new(answers),
            version: String::new(),
            loss: f64::NAN,
        };
        numpy.version = numpy.line()?;
        numpy.loss = numpy.number()?;
        Ok(numpy)
    }

    /// Runs `count` epochs; returns their time in seconds.
    ///
    /// # Errors
    /// If the script has ended.
    pub fn epochs(&mut self, count: usize) -> Result<f64> {
        writeln!(self.commands, "{count}")?;
        self.commands.flush()?;
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
        line.parse().map_err(|_| Error::other(format!("the script printed {line:?}, expected a number")))
    }
}

impl Drop for Numpy {
    fn drop(&mut self) {
        // Errors are ignored, because the script may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
