//! What a client is told: JSON, or a file block by block.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

/// Bytes of a file that are read at a time, and how many blocks wait for the network.
const BLOCK: u64 = 1 << 16;
const AHEAD: usize = 2;

/// A request that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    /// What HTTP calls it.
    pub status: StatusCode,
    /// What it is called in answers and in the status.
    pub kind: &'static str,
    /// Why, for people.
    pub text: String,
    /// It has been counted in the status.
    pub is_counted: bool,
}

impl HttpError {
    /// A refusal.
    pub fn new(status: StatusCode, kind: &'static str, text: impl Into<String>) -> Self {
        Self { status, kind, text: text.into(), is_counted: false }
    }

    /// It is not the client's fault, and what it is stands in the log.
    pub fn failed() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", "the server could not do it; its log says why")
    }

    /// The answer.
    pub fn answer(&self) -> Response<ResponseBody> {
        let mut answer = json(self.status, &serde_json::json!({ "error": self.kind, "text": self.text }));
        if self.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// An answer's body.
#[derive(Debug)]
pub enum ResponseBody {
    /// At once.
    Text(Option<Bytes>),
    /// A file's bytes as they are read, and how many there are still to come.
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
            Self::File(blocks, left) => blocks.poll_recv(context).map(|block| {
                let block = block?;
                if let Ok(bytes) = &block {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Some(block.map(Frame::data))
            }),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Text(text) => text.as_ref().map_or(0, |text| text.len() as u64),
            Self::File(_, left) => *left,
        })
    }
}

/// JSON.
pub fn json(status: StatusCode, value: &Value) -> Response<ResponseBody> {
    let text = value.to_string() + "\n";
    let mut answer = Response::new(ResponseBody::Text(Some(text.into())));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// A file that does not change.
///
/// # Errors
/// What the system says when it is opened.
pub fn file(path: &Path, kind: &'static str) -> std::io::Result<Response<ResponseBody>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let (sender, blocks) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut left = length;
        while left > 0 {
            let mut block = Vec::new();
            let read = file.by_ref().take(left.min(BLOCK)).read_to_end(&mut block);
            let read = match read {
                Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => Ok(Bytes::from(block)),
                Err(error) => Err(error),
            };
            left = left.saturating_sub(read.as_ref().map_or(left, |block| block.len() as u64));
            // The connection has ended.
            if sender.blocking_send(read).is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(ResponseBody::File(blocks, length));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}
