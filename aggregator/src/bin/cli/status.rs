//! Commands `status` and `watch`: print the status of the running server, or of its files if no server runs.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fedspan_aggregator::server::{FAILED_PHASE, query, socket_is_stale};
use fedspan_aggregator::store::{CampaignState, OfflineStore, StoreError};
use fedspan_engine::Phase;

use super::status_text::{round_text, status_text};
use crate::{FAILED, fail, output_exit_code, print};

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people.
    Human,
    /// One line of JSON for each status or round.
    Json,
}

impl Format {
    /// Formats a line of JSON by `text` if people read it.
    fn shown(self, line: &str, text: impl Fn(&serde_json::Value) -> String) -> String {
        match (self, serde_json::from_str(line)) {
            (Self::Human, Ok(value)) => text(&value),
            _ => line.to_owned(),
        }
    }
}

/// Prints the status of the server, or of its files if no server runs.
pub async fn status(state: &Path, format: Format) -> ExitCode {
    match request_status(state).await {
        Ok(Some(line)) => output_exit_code(
            print(&format.shown(&line, status_text)).map(|()| ExitCode::SUCCESS),
            "standard output",
        ),
        Ok(None) => print_offline_status(state, format),
        Err(message) => fail(FAILED, &format!("{}: {message}", state.display())),
    }
}

/// Requests the status from the server; `None` if no server runs.
async fn request_status(state: &Path) -> Result<Option<String>, String> {
    let mut answer = None;
    let result = query(state, "status", |line| {
        answer = Some(line.to_owned());
        Ok(())
    });
    match result.await {
        Ok(Some(())) => {
            let no_answer = || "the server closed the control socket without an answer".to_owned();
            answer.ok_or_else(no_answer).and_then(parse_line).map(Some)
        }
        Ok(None) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns a line from the server. If the line contains an error, returns the error.
fn parse_line(line: String) -> Result<String, String> {
    match serde_json::from_str::<serde_json::Value>(&line) {
        Ok(value) => match value.get("error").and_then(serde_json::Value::as_str) {
            Some(error) => Err(format!("the server reports: {error}")),
            None => Ok(line),
        },
        Err(_) => Err("malformed answer of the server".to_owned()),
    }
}

/// Prints the status of the files.
fn print_offline_status(state: &Path, format: Format) -> ExitCode {
    match load_offline(state) {
        Ok(Some((stored, answers))) => output_exit_code(
            print(&format.shown(&offline_status(&stored, answers), status_text)).map(|()| ExitCode::SUCCESS),
            "standard output",
        ),
        Ok(None) => {
            fail(FAILED, &format!("{}: no server is running and no round is committed", state.display()))
        }
        Err(StoreError::Locked { path }) => {
            let message = "a server uses this state directory and has no control socket: it is starting or stopping, or could not \
                           bind the socket (see its log); try again";
            fail(FAILED, &format!("{}: {message}", path.display()))
        }
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

/// Loads the campaign and the number of updates of the open round. No key is needed, because the updates are
/// not decrypted.
fn load_offline(state: &Path) -> Result<Option<(CampaignState, u64)>, StoreError> {
    let Some(snapshot) = OfflineStore::open(state)? else { return Ok(None) };
    let Some(stored) = snapshot.campaign()? else { return Ok(None) };
    Ok(Some((stored, snapshot.count_updates()?)))
}

/// Formats the state of the files like the status of a running server.
fn offline_status(stored: &CampaignState, answers: u64) -> String {
    let Some(checkpoint) = &stored.checkpoint else {
        return serde_json::json!({ "phase": "not running", "round": 0, "start_rounds": 0 }).to_string();
    };
    let (start_round, round) = match checkpoint.done {
        Phase::Start(number) => (number, 0),
        Phase::Train(number) => (0, number),
        Phase::RidgeScores => (0, checkpoint.rounds),
        _ => (0, 0),
    };
    serde_json::json!({
        "phase": "not running",
        "round": round,
        "start_rounds": start_round,
        "training_ended": checkpoint.ends_training(),
        "exchange": stored.last_round().map_or(0, |id| id.round),
        "is_open": checkpoint.open.is_some(),
        "answers": answers,
    })
    .to_string()
}

/// Prints a line after every round until the campaign has ended, or the server stops.
pub async fn watch(state: &Path, format: Format) -> ExitCode {
    let name = state.display();
    let not_running = || fail(FAILED, &format!("{name}: no server is running on this state directory"));
    // The server sends no line until a round is over, so the status is requested first to check that the
    // server answers, and until it has started: before, it answers nothing else.
    let mut waits = false;
    loop {
        match request_status(state).await {
            Ok(Some(line)) if is_starting(&line) => {
                if !std::mem::replace(&mut waits, true) {
                    eprintln!("fedspan-aggregator: {name}: the server is starting");
                }
                tokio::time::sleep(START_INTERVAL).await;
            }
            Ok(Some(_)) => break,
            Ok(None) => return not_running(),
            Err(message) => return fail(FAILED, &format!("{name}: {message}")),
        }
    }
    let mut end = None;
    let result = query(state, "watch", |line| {
        let line = parse_line(line.to_owned()).map_err(std::io::Error::other)?;
        end = phase_at_end(&line);
        print(&format.shown(&line, round_text))
    });
    let answered = result.await;
    let code = answered.map(|answered| match answered {
        Some(()) if end.as_deref() == Some(FAILED_PHASE) => {
            fail(FAILED, &format!("{name}: the campaign has failed; the log of the server says why"))
        }
        Some(()) if end.is_some() => ExitCode::SUCCESS,
        Some(()) if socket_is_stale(state) => {
            fail(FAILED, &format!("{name}: the server has stopped without a clean shutdown"))
        }
        Some(()) => ExitCode::SUCCESS,
        None => not_running(),
    });
    output_exit_code(code, &name.to_string())
}

/// Time between two questions whether the server has started.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// Returns true if a status says that the server is starting.
fn is_starting(line: &str) -> bool {
    let line: Result<serde_json::Value, _> = serde_json::from_str(line);
    line.is_ok_and(|line| line.get("phase").and_then(serde_json::Value::as_str) == Some("starting"))
}

/// Phase with which the campaign has ended, if the line says so: only the last line counts all updates.
fn phase_at_end(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line.get("counted")?;
    line.get("phase")?.as_str().map(str::to_owned)
}
