//! HTTP responses: JSON texts, and files that are streamed block by block.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::disk::finish_hex;

/// Number of bytes of a file that are read at a time.
const BLOCK: u64 = 1 << 16;

/// Largest number of blocks that wait for the network.
const QUEUED_BLOCKS: usize = 2;

/// Error response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    /// HTTP status code.
    pub status: StatusCode,
    /// Kind of the error: the value of `error` in the response and the name of a counter in the status.
    pub kind: &'static str,
    /// Explanation for people: the value of `text` in the response.
    pub text: String,
    /// True if the counter of this kind has been incremented already.
    pub is_counted: bool,
    /// Time after which the client may try again, in seconds; `None` if a retry would not help.
    pub retry_after: Option<u32>,
    /// True if the connection is closed after the response, because it has proved nothing.
    pub is_last: bool,
}

impl HttpError {
    /// Creates an error that has not been counted.
    pub fn new(status: StatusCode, kind: &'static str, text: impl Into<String>) -> Self {
        Self { status, kind, text: text.into(), is_counted: false, retry_after: None, is_last: false }
    }

    /// Creates an error after which the client may try again.
    pub fn later(status: StatusCode, kind: &'static str, seconds: u32, text: impl Into<String>) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(status, kind, text) }
    }

    /// Response 500 for a failure of the server, whose cause has been logged.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "failed",
            "the server could not process the request; its log has the cause",
        )
    }

    /// Builds the HTTP response.
    pub fn response(&self) -> Response<ResponseBody> {
        let mut response = json(self.status, &serde_json::json!({ "error": self.kind, "text": self.text }));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if self.is_last {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Body of a response.
#[derive(Debug)]
pub enum ResponseBody {
    /// Text in memory, sent in one frame.
    Text(Option<Bytes>),
    /// Blocks of a file from the reading task, and the number of bytes that have not been sent.
    File(mpsc::Receiver<std::io::Result<Bytes>>, u64),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::File(blocks, remaining) => blocks.poll_recv(context).map(|block| {
                let block = block?;
                if let Ok(bytes) = &block {
                    *remaining = remaining.saturating_sub(bytes.len() as u64);
                }
                Some(block.map(Frame::data))
            }),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Text(text) => text.as_ref().map_or(0, |text| text.len() as u64),
            Self::File(_, remaining) => *remaining,
        })
    }
}

/// JSON response that must not be cached.
pub fn json(status: StatusCode, value: &Value) -> Response<ResponseBody> {
    let text = value.to_string() + "\n";
    let mut response = Response::new(ResponseBody::Text(Some(text.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Response that streams a file. The file must not change while it is streamed. With `digest`, the SHA-256 of the
/// file in hexadecimal digits, the last block is sent only if the whole file has this digest; otherwise the response
/// breaks off, and `on_damage` is called with the digest that was found, or with the error of a read.
///
/// # Errors
/// The I/O error if the file cannot be opened, is not a regular file, or is empty although its digest says otherwise.
pub fn file(
    path: &Path,
    kind: &'static str,
    digest: Option<String>,
    on_damage: impl FnOnce(&str) + Send + 'static,
) -> std::io::Result<Response<ResponseBody>> {
    fedspan_files::regular(path)?;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let empty = finish_hex(Sha256::new());
    if length == 0 && digest.as_ref().is_some_and(|digest| *digest != empty) {
        return Err(std::io::Error::other("the file is empty"));
    }
    let (sender, blocks) = mpsc::channel(QUEUED_BLOCKS);
    tokio::task::spawn_blocking(move || {
        let mut hasher = Sha256::new();
        let mut remaining = length;
        while remaining > 0 {
            let mut block = Vec::new();
            let result = file.by_ref().take(remaining.min(BLOCK)).read_to_end(&mut block);
            remaining = remaining.saturating_sub(block.len() as u64);
            let block = match result {
                Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    hasher.update(&block);
                    Ok(Bytes::from(block))
                }
                Err(error) => Err(error),
            };
            let is_end = remaining == 0;
            let block = match (&digest, block) {
                (Some(digest), Ok(_)) if is_end && finish_hex(hasher.clone()) != *digest => {
                    on_damage(&format!("found SHA-256 {}", finish_hex(hasher)));
                    drop(sender.blocking_send(Err(std::io::Error::other("the file is damaged"))));
                    return;
                }
                (_, Err(error)) => {
                    on_damage(&format!("cannot be read: {error}"));
                    drop(sender.blocking_send(Err(error)));
                    return;
                }
                (_, block) => block,
            };
            // Sending fails if the connection is closed.
            if sender.blocking_send(block).is_err() || is_end {
                return;
            }
        }
    });
    let mut response = Response::new(ResponseBody::File(blocks, length));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
