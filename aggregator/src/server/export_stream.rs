//! Stream of a stored campaign: the answer to the control request `export`, from which a client writes files.
//!
//! ```text
//!  {"version":"0.1.0","campaign":"...","rounds":12}   version of the server; campaign (postcard, in
//!                                                     hexadecimal digits); number of rounds
//!  ...                                                rounds, one line each
//!  ...                                                lines of the journal
//!  {"end":1234}                                       number of lines between the first and this one;
//!                                                     an answer without this line is incomplete
//! ```
//!
//! The lines come from a read snapshot of the database, which the core opens; reading does not delay the
//! campaign.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};

use super::query::query;
use crate::export::ExportedState;
use crate::journal::CommittedRound;
use crate::store::{CampaignState, ReadSnapshot, StoreError};

/// Request to the core for a read snapshot of the store; the reply is sent through the channel.
pub(super) type SnapshotRequest = oneshot::Sender<Result<ReadSnapshot, StoreError>>;

/// Name of the control request.
pub(super) const REQUEST: &str = "export";

/// Approximate length of a chunk that is sent at once, in bytes.
const CHUNK_LEN: usize = 1 << 16;

/// Longest time that a client may take to read a chunk. The time is limited because the database cannot free
/// old pages while a snapshot is open.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Version of the program, which must be the same for client and server.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Sends the stored campaign to a client.
pub(super) async fn send_export(write: &mut OwnedWriteHalf, core: &mpsc::Sender<SnapshotRequest>) {
    let (request, answer) = oneshot::channel();
    if core.send(request).await.is_err() {
        return;
    }
    let Ok(snapshot) = answer.await else { return };
    let (chunk_sender, mut chunk_receiver) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        let written = snapshot
            .and_then(|snapshot| write_stream(&snapshot, |chunk| chunk_sender.blocking_send(chunk).is_ok()));
        if let Err(error) = written {
            let line = serde_json::json!({ "error": error.to_string() });
            let _ = chunk_sender.blocking_send(format!("{line}\n"));
        }
    });
    while let Some(chunk) = chunk_receiver.recv().await {
        match tokio::time::timeout(REQUEST_TIMEOUT, write.write_all(chunk.as_bytes())).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

/// Passes the stream to `send_chunk` in chunks, until `send_chunk` returns false.
fn write_stream(
    snapshot: &ReadSnapshot,
    mut send_chunk: impl FnMut(String) -> bool,
) -> Result<(), StoreError> {
    use std::fmt::Write;
    let campaign = snapshot.campaign()?.map(|stored| postcard::to_stdvec(&stored).unwrap_or_default());
    let mut digits = String::new();
    for byte in campaign.unwrap_or_default() {
        let _ = write!(digits, "{byte:02x}");
    }
    let rounds = snapshot.count_rounds()?;
    let header = serde_json::json!({ "version": VERSION, "campaign": digits, "rounds": rounds });
    let mut chunk = header.to_string() + "\n";
    let mut lines = 0u64;
    let mut wants_more = true;
    let mut append_line = |line: &str| {
        lines += 1;
        chunk.push_str(line);
        chunk.push('\n');
        if chunk.len() >= CHUNK_LEN {
            wants_more = send_chunk(std::mem::take(&mut chunk));
        }
        wants_more
    };
    let mut has_sent_rounds = true;
    snapshot.rounds(|round| {
        has_sent_rounds = append_line(round);
        has_sent_rounds
    })?;
    if has_sent_rounds {
        snapshot.journal(append_line)?;
    }
    if wants_more {
        chunk.push_str(&serde_json::json!({ "end": lines }).to_string());
        chunk.push('\n');
        send_chunk(chunk);
    }
    Ok(())
}

/// First line of an answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum Header {
    Error {
        error: String,
    },
    Campaign {
        version: String,
        campaign: String,
        #[serde(default)]
        rounds: usize,
    },
}

/// Last line of an answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum Trailer {
    Error { error: String },
    End { end: usize },
}

/// Fetches the stored campaign from the server of a state directory; `None` if no server runs there. Updates
/// of the open round are not included.
///
/// # Errors
/// Errors of the control socket. [`std::io::ErrorKind::Other`] for errors that the server reports and for an
/// incomplete or malformed answer.
pub async fn fetch_export(directory: &Path) -> std::io::Result<Option<ExportedState>> {
    let mut lines = Vec::new();
    let answered = query(directory, REQUEST, |line| {
        lines.push(line.to_owned());
        Ok(())
    });
    match answered.await? {
        Some(()) => parse_export(lines).map(Some).map_err(std::io::Error::other),
        None => Ok(None),
    }
}

/// Parses the lines of an answer.
fn parse_export(mut lines: Vec<String>) -> Result<ExportedState, String> {
    let truncated = || "incomplete answer of the server: it stopped while sending".to_owned();
    let last = lines.pop().ok_or_else(truncated)?;
    if let Ok(Trailer::Error { error }) = serde_json::from_str(&last) {
        return Err(format!("the server reports: {error}"));
    }
    if lines.is_empty() {
        return Err(truncated());
    }
    let (digits, rounds) = match serde_json::from_str(&lines.remove(0)) {
        Ok(Header::Campaign { version, campaign, rounds }) if version == VERSION => (campaign, rounds),
        Ok(Header::Campaign { version, .. }) => {
            return Err(format!(
                "the server has version {version}, this program has {VERSION}; use the same version"
            ));
        }
        Ok(Header::Error { error }) => return Err(format!("the server reports: {error}")),
        Err(_) => return Err("malformed answer of the server".to_owned()),
    };
    match serde_json::from_str(&last) {
        Ok(Trailer::End { end }) if end == lines.len() => {}
        _ => return Err(truncated()),
    }
    let stored = decode_campaign(&digits).ok_or("malformed answer of the server: no campaign")?;
    let rounds: Result<Vec<CommittedRound>, _> =
        lines.drain(..rounds.min(lines.len())).map(|line| serde_json::from_str(&line)).collect();
    let rounds = rounds.map_err(|error| format!("malformed answer of the server: a round: {error}"))?;
    Ok(ExportedState { stored, rounds, lines })
}

/// Decodes the campaign from hexadecimal digits.
fn decode_campaign(digits: &str) -> Option<CampaignState> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect();
    match postcard::take_from_bytes(&bytes?) {
        Ok((stored, [])) => Some(stored),
        _ => None,
    }
}
