//! Tests of the export from a running server: the exported state is that of one moment, and an incomplete
//! answer writes no files.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::stored_campaign::{configuration, create_state};
use crate::common::{Scratch, ServerProcess, run_program};

/// Configuration, with or without a state directory of five devices in the middle of their third round.
struct CampaignDirectory {
    scratch: Scratch,
}

impl CampaignDirectory {
    /// Creates a configuration without a state directory.
    fn without_state() -> Self {
        let directory = Self { scratch: Scratch::new() };
        std::fs::write(directory.config_path(), configuration(&directory.state_path())).unwrap();
        directory
    }

    /// Creates a configuration with a state directory.
    fn with_state() -> Self {
        let directory = Self::without_state();
        create_state(&directory.state_path());
        directory
    }

    fn config_path(&self) -> PathBuf {
        self.scratch.path().join("fleet.toml")
    }

    fn state_path(&self) -> PathBuf {
        self.scratch.path().join("state")
    }

    fn create_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
        command.args(arguments).arg("--config").arg(self.config_path());
        command
    }

    fn run_command(&self, arguments: &[&str]) -> Output {
        run_program(&mut self.create_command(arguments))
    }

    /// Runs a command that must fail with one line that contains `expected`.
    fn assert_refused(&self, arguments: &[&str], expected: &str) {
        let output = self.run_command(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

/// Returns a path in the directory, also as text.
fn path_in(dir: &CampaignDirectory, name: &str) -> (PathBuf, String) {
    let path = dir.scratch.path().join(name);
    let text = path.display().to_string();
    (path, text)
}

/// Reads a file as text.
fn read_text(directory: &Path, file: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(directory.join(file)).unwrap()).into_owned()
}

#[test]
fn export_from_server_equals_export_from_files() {
    let dir = CampaignDirectory::with_state();
    let ((path_before, text_before), (path_during, text_during)) =
        (path_in(&dir, "before"), path_in(&dir, "during"));
    assert!(dir.run_command(&["export", "--out", &text_before]).status.success());
    let server = ServerProcess::start(dir.create_command(&["serve"]).stderr(Stdio::null()));
    let output = dir.run_command(&["export", "--out", &text_during]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in
        ["representation.npy", "model.safetensors", "rounds.jsonl", "ledger.json", "configuration.txt"]
    {
        assert_eq!(read_text(&path_before, file), read_text(&path_during, file), "{file}");
    }
    let (journal_before, journal_during) =
        (read_text(&path_before, "arrivals.jsonl"), read_text(&path_during, "arrivals.jsonl"));
    let added_lines = journal_during.strip_prefix(journal_before.as_str()).unwrap();
    assert!(
        added_lines.starts_with("{\"event\":\"resumed\"") && added_lines.lines().count() == 1,
        "{added_lines}"
    );
    let slash = format!("{}/beside/", dir.scratch.path().display());
    let partial = dir.scratch.path().join("beside.partial");
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("f"), b"x").unwrap();
    assert!(dir.run_command(&["export", "--out", &slash]).status.success());
    assert_eq!(std::fs::read_dir(&slash).unwrap().count(), 6);
    assert_eq!(read_text(&partial, "f"), "x", "a file of another program was changed");
    dir.assert_refused(&["export", "--out", &text_during], "already exists; refusing to overwrite it");
    dir.assert_refused(&["check"], "another server is running on this state directory");
    drop(server);
    assert_eq!(dir.run_command(&["check"]).status.code(), Some(0));
}

/// Answers one request on the control socket with this text.
fn serve_answer(dir: &CampaignDirectory, answer: String) -> std::thread::JoinHandle<String> {
    std::fs::create_dir_all(dir.state_path()).unwrap();
    let _ = std::fs::remove_file(dir.state_path().join("control.sock"));
    let listener = UnixListener::bind(dir.state_path().join("control.sock")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        request
    })
}

#[test]
fn incomplete_answer_writes_nothing() {
    let version = env!("CARGO_PKG_VERSION");
    let cases = [
        (String::new(), "incomplete answer of the server"),
        ("{\"error\":\"unknown request\"}\n".to_owned(), "the server reports: unknown request"),
        (format!("{{\"version\":\"{version}\",\"campaign\":\"00\"}}\n"), "incomplete answer of the server"),
        (
            format!("{{\"version\":\"{version}\",\"campaign\":\"00\"}}\n{{}}\n"),
            "incomplete answer of the server",
        ),
        (
            format!("{{\"version\":\"{version}\",\"campaign\":\"00\"}}\n{{}}\n{{\"end\":2}}\n"),
            "incomplete answer of the server",
        ),
        (
            format!("{{\"version\":\"{version}\",\"campaign\":\"00\"}}\n{{\"end\":0}}\n"),
            "malformed answer of the server: no campaign",
        ),
        (
            format!("{{\"version\":\"{version}\",\"campaign\":\"0\"}}\n{{\"end\":0}}\n"),
            "malformed answer of the server: no campaign",
        ),
        (
            format!("{{\"version\":\"{version}\",\"campaign\":\"zz\"}}\n{{\"end\":0}}\n"),
            "malformed answer of the server: no campaign",
        ),
        (
            "{\"version\":\"0.0.0\",\"campaign\":\"00\"}\n{\"end\":0}\n".to_owned(),
            "the server has version 0.0.0, this program has",
        ),
        ("nonsense\n{\"end\":0}\n".to_owned(), "malformed answer of the server"),
        (
            format!("{{\"version\":\"{version}\",\"campaign\":\"00\"}}\n{{\"error\":\"a page\"}}\n"),
            "the server reports: a page",
        ),
    ];
    let dir = CampaignDirectory::without_state();
    let (target, target_text) = path_in(&dir, "out");
    for (answer, expected) in cases {
        let server = serve_answer(&dir, answer.clone());
        let output = dir.run_command(&["export", "--out", &target_text]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{answer}: {stderr}");
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{answer}: {stderr}");
        assert_eq!(server.join().unwrap(), "export\n");
        assert!(!target.exists());
    }
}

/// Every command reports an unusable state path in one line, and creates no files.
#[test]
fn unusable_state_path_is_reported_in_one_line() {
    let dir = CampaignDirectory::without_state();
    std::fs::write(dir.state_path(), b"a file").unwrap();
    let (target, target_text) = path_in(&dir, "out");
    for command in [&["check"][..], &["export", "--out", &target_text], &["serve"], &["status"]] {
        let output = dir.run_command(command);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        assert!(
            stderr.contains("state") && stderr.lines().count() == 1 && !stderr.contains("panicked"),
            "{command:?}: {stderr}"
        );
        assert!(stderr.contains("directory") || stderr.contains("File exists"), "{command:?}: {stderr}");
    }
    assert!(!target.exists());
    assert_eq!(std::fs::read(dir.state_path()).unwrap(), b"a file");
}
