//! Receiver of request bodies: streams a body into a file block by block, with limits on length and time.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body, Bytes, Incoming};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::disk::PRIVATE;
use super::response::HttpError;

/// Largest number of blocks that wait for the disk. The read buffer of the server limits the length of a
/// block.
const QUEUED_BLOCKS: usize = 4;

/// Temporary files of one upload, removed on drop if they still exist.
#[derive(Debug)]
pub struct TempFiles {
    /// Path of the body as it was received.
    pub body: PathBuf,
    /// Path of the whole adapter that is built from the body.
    pub merged: PathBuf,
}

impl Drop for TempFiles {
    fn drop(&mut self) {
        [&self.body, &self.merged].into_iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Writes a body of at most `max_len` bytes to a new file and returns its SHA-256.
///
/// # Errors
/// Response 413 if the body is longer, 408 if receiving takes longer than `timeout`, 400 if the body ends
/// early, 500 if the file cannot be written.
pub async fn receive(
    body: &mut Incoming,
    path: &Path,
    max_len: u64,
    timeout: Duration,
) -> Result<[u8; 32], HttpError> {
    let write_error = |error: &std::io::Error| {
        tracing::error!(path = %path.display(), %error, "cannot write an upload");
        HttpError::internal()
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
    let file = file.map_err(|error| write_error(&error))?;
    let (sender, blocks) = mpsc::channel(QUEUED_BLOCKS);
    let writer = tokio::task::spawn_blocking(move || write_blocks(file, blocks));
    let forwarded = tokio::time::timeout(timeout, forward_blocks(body, sender, max_len)).await;
    let written = writer.await;
    forwarded.map_err(|_| timed_out(timeout))??;
    match written {
        Ok(Ok(digest)) => Ok(digest),
        Ok(Err(error)) => Err(write_error(&error)),
        Err(_) => Err(HttpError::internal()),
    }
}

/// Discards the rest of a refused body in a background task, so that a client that is still sending receives
/// the response instead of a connection reset.
pub fn drain(mut body: Incoming, max_len: u64, timeout: Duration) {
    let reading = async move {
        let mut remaining = max_len;
        while let Some(Ok(block)) = next_block(&mut body).await {
            match remaining.checked_sub(block.len() as u64) {
                Some(difference) => remaining = difference,
                None => break,
            }
        }
    };
    // The task ends at the latest when the connection is closed.
    drop(tokio::spawn(tokio::time::timeout(timeout, reading)));
}

/// Sends the blocks of a body to the writing thread, and checks the length.
async fn forward_blocks(
    body: &mut Incoming,
    sender: mpsc::Sender<Bytes>,
    max_len: u64,
) -> Result<(), HttpError> {
    let mut remaining = max_len;
    while let Some(block) = next_block(body).await {
        let text = |error: hyper::Error| format!("the body ended early: {error}");
        let block =
            block.map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, "truncated", text(error)))?;
        remaining = remaining.checked_sub(block.len() as u64).ok_or_else(|| too_long(max_len))?;
        if sender.send(block).await.is_err() {
            // Sending fails if the writer has failed; the writer returns the error.
            break;
        }
    }
    Ok(())
}

/// Next data block of a body; `None` after the last block.
async fn next_block(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(block)) => return Some(Ok(block)),
            // Trailers are ignored.
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Writes blocks to a file and returns their SHA-256.
fn write_blocks(mut file: File, mut blocks: mpsc::Receiver<Bytes>) -> std::io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    while let Some(block) = blocks.blocking_recv() {
        hasher.update(&block);
        file.write_all(&block)?;
    }
    Ok(hasher.finalize().into())
}

/// Response 413 for a body that is longer than `max_len` bytes.
pub fn too_long(max_len: u64) -> HttpError {
    let text =
        format!("the body is longer than {max_len} bytes, the adapter's length plus room for another header");
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", text)
}

/// Response 408 for a body that took longer than `timeout`.
fn timed_out(timeout: Duration) -> HttpError {
    let text = format!("the body took longer than {} s; try again", timeout.as_secs_f64());
    HttpError::new(StatusCode::REQUEST_TIMEOUT, "slow", text)
}
