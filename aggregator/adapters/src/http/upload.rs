//! A body into a file, block by block: as long as it may be, as long as it may take.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body, Bytes, Incoming};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::response::HttpError;

/// Blocks that wait for the disk; hyper's own buffer says how long one is.
const AHEAD: usize = 4;

/// Files that go when this is dropped, if they are still there.
#[derive(Debug)]
pub struct TempFiles(pub [PathBuf; 2]);

impl Drop for TempFiles {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Receives a body of at most `most` bytes into a new file, and says what its SHA-256 is.
///
/// # Errors
/// 413 if it is longer, 408 if it takes longer than `within`, 400 if it ends too early, 500 if it cannot be written.
pub async fn receive(
    body: &mut Incoming,
    to: &Path,
    most: u64,
    within: Duration,
) -> Result<[u8; 32], HttpError> {
    let failed = |error: &std::io::Error| {
        tracing::error!("{}: {error}", to.display());
        HttpError::failed()
    };
    let file = File::create_new(to).map_err(|error| failed(&error))?;
    let (sender, blocks) = mpsc::channel(AHEAD);
    let writer = tokio::task::spawn_blocking(move || write(file, blocks));
    let taken = tokio::time::timeout(within, take(body, sender, most)).await;
    let written = writer.await;
    taken.map_err(|_| slow(within))??;
    match written {
        Ok(Ok(digest)) => Ok(digest),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(HttpError::failed()),
    }
}

/// Reads what is left of a body that nobody wants, beside the answer: who is still sending would not read that otherwise.
pub fn drain(mut body: Incoming, most: u64, within: Duration) {
    let reading = async move {
        let mut left = most;
        while let Some(Ok(block)) = next(&mut body).await {
            match left.checked_sub(block.len() as u64) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // It ends with the connection at the latest.
    drop(tokio::spawn(tokio::time::timeout(within, reading)));
}

async fn take(body: &mut Incoming, sender: mpsc::Sender<Bytes>, most: u64) -> Result<(), HttpError> {
    let mut left = most;
    while let Some(block) = next(body).await {
        let text = |error: hyper::Error| format!("the body has ended too early: {error}");
        let block =
            block.map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, "truncated", text(error)))?;
        left = left.checked_sub(block.len() as u64).ok_or_else(|| too_long(most))?;
        if sender.send(block).await.is_err() {
            // The writer says why.
            break;
        }
    }
    Ok(())
}

/// The next block of a body; none after the last.
async fn next(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(block)) => return Some(Ok(block)),
            // Trailers: nothing for us.
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

fn write(mut file: File, mut blocks: mpsc::Receiver<Bytes>) -> std::io::Result<[u8; 32]> {
    let mut sum = Sha256::new();
    while let Some(block) = blocks.blocking_recv() {
        sum.update(&block);
        file.write_all(&block)?;
    }
    Ok(sum.finalize().into())
}

/// The refusal of a body that is too long.
pub fn too_long(most: u64) -> HttpError {
    let text = format!("longer than {most} bytes, which is the adapter's length and a little more");
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", text)
}

fn slow(within: Duration) -> HttpError {
    let text = format!("the body has taken longer than {} s", within.as_secs_f64());
    HttpError::new(StatusCode::REQUEST_TIMEOUT, "slow", text)
}
