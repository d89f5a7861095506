//! Server program (release build) that runs as a child process.

use std::io::{BufRead, BufReader, Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use fedspan_aggregator::server::query;

/// A running server. Dropping it removes its directory.
#[derive(Debug)]
pub struct ServerProcess {
    process: Child,
    /// Output of the server, kept open so that the server can print.
    _output: BufReader<ChildStdout>,
    /// Address on which the server listens.
    pub address: SocketAddr,
    directory: PathBuf,
}

impl ServerProcess {
    /// Starts `program` with a `fleet.toml`. The server's log is written to a file in the directory.
    ///
    /// # Errors
    /// The operating system's error, or the server's output if it does not listen.
    pub fn start(program: &Path, directory: &Path, fleet: &str) -> Result<Self> {
        let config = directory.join("fleet.toml");
        std::fs::write(&config, fleet)?;
        let log = std::fs::File::create(directory.join("log"))?;
        let mut process = Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| Error::other(format!("{}: {error}", program.display())))?;
        let output = process.stdout.take().ok_or_else(|| Error::other("no output"))?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let address = line
            .strip_prefix("listening on ")
            .and_then(|remaining| remaining.split(',').next()?.parse().ok());
        let Some(address) = address else {
            let _ = process.kill();
            let log = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
            return Err(Error::other(format!("the server does not listen: {line}{log}")));
        };
        Ok(Self { process, _output: output, address, directory: directory.to_owned() })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Requests the status of the server, a JSON object.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn status(&self) -> Result<serde_json::Value> {
        let mut answer = String::new();
        let state = self.state();
        let request = query(&state, "status", |line| {
            answer.push_str(line);
            Ok(())
        });
        request.await?.ok_or_else(|| Error::other("the server does not answer"))?;
        serde_json::from_str(&answer).map_err(Error::other)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
