//! Control socket: a Unix socket in the state directory, for the owner only. A request is one line:
//!
//! * `status`: one line of JSON;
//! * `watch`: one line after every round, until the connection ends;
//! * `keys` with a [`crate::keys::Request`] in JSON: one line of JSON;
//! * `export`: the stored campaign, see [`super::export_stream`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc, watch};
use zeroize::Zeroizing;

use super::export_stream::{self, SnapshotRequest};
use crate::core::Status;
use crate::keys::{Answer, SharedKeyStore};
use fedspan_files::user;

const SOCKET: &str = "control.sock";

/// Request without an end.
const WATCH: &str = "watch";

/// Longest request in bytes, with its newline: several thousand ranges of devices.
const REQUEST_MAX: u64 = 1 << 16;

/// Bound control socket; its file is removed on drop.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Binds the socket. The directory is locked, so an existing socket is left from an earlier server. A
    /// server that cannot bind it logs a warning and serves without it.
    pub(super) fn bind(directory: &Path) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.join(SOCKET);
        let _ = std::fs::remove_file(&path);
        let bound = UnixListener::bind(&path).and_then(|listener| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        });
        match bound {
            Ok(listener) => Some(Self { listener, path }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "control socket cannot be bound; status, watch, keys and export are not available");
                None
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Accepts the next client; waits for ever without a socket.
pub(super) async fn accept(control: Option<&Control>) -> Option<UnixStream> {
    match control {
        Some(control) => control.listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Returns true if the control socket still exists. After its connection has closed, a client concludes from
/// this that the server crashed: a clean shutdown removes the socket first.
#[must_use]
pub fn socket_is_stale(directory: &Path) -> bool {
    directory.join(SOCKET).symlink_metadata().is_ok()
}

/// Serves one client until its request is answered.
pub(super) async fn serve_client(
    stream: UnixStream,
    status: watch::Receiver<Status>,
    mut rounds: broadcast::Receiver<String>,
    keys: Option<SharedKeyStore>,
    core: mpsc::Sender<SnapshotRequest>,
) {
    // The socket's permissions ensure the same, but are set only after it was bound.
    let owner = stream.peer_cred().is_ok_and(|peer| peer.uid() == user() || peer.uid() == 0);
    let (read, mut write) = stream.into_split();
    let mut request = String::new();
    if BufReader::new(read.take(REQUEST_MAX)).read_line(&mut request).await.is_err() {
        return;
    }
    if !owner {
        let line = serde_json::json!({ "error": format!("this server answers user {} only", user()) });
        let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        return;
    }
    if !request.ends_with('\n') {
        // A truncated request might be a valid one with another meaning.
        let error = format!("a request is one line of at most {REQUEST_MAX} bytes");
        let line = serde_json::json!({ "error": error });
        let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        return;
    }
    if let Some(request) = request.strip_prefix("keys ") {
        let line = match keys {
            None => Answer::NoStore.to_line(),
            Some(key_store) => {
                let request = request.to_owned();
                // It waits for the disk.
                match tokio::task::spawn_blocking(move || key_store.answer(&request, now())).await {
                    Ok(line) => line,
                    Err(_) => return,
                }
            }
        };
        let _ = write.write_all(line.as_bytes()).await;
        return;
    }
    match request.trim() {
        "status" => {
            let now = status.borrow().clone();
            let line = serde_json::to_string(&now).unwrap_or_default();
            let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        }
        export_stream::REQUEST => export_stream::send(&mut write, &core).await,
        WATCH => {
            tracing::info!("watch client connected");
            loop {
                let line = match rounds.recv().await {
                    Ok(line) => line,
                    Err(broadcast::error::RecvError::Lagged(missed)) => format!("{{\"missed\":{missed}}}"),
                    Err(broadcast::error::RecvError::Closed) => return,
                };
                if write.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        }
        other => {
            let line = serde_json::json!({ "error": format!("unknown request {other:?}; known: status, watch, keys, export") });
            let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        }
    }
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Longest wait for an answer of the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request to the server of a state directory and passes each line of the answer to `each`. `None` if
/// no server runs there. `watch` may wait any time for its next line, other requests 10 s.
///
/// # Errors
/// [`std::io::ErrorKind::TimedOut`] if the server accepts the connection but does not answer; otherwise the
/// error of the socket or of `each`.
pub async fn query(
    directory: &Path,
    request: &str,
    mut each: impl FnMut(&str) -> std::io::Result<()>,
) -> std::io::Result<Option<()>> {
    let mut stream = match with_timeout(UnixStream::connect(directory.join(SOCKET))).await {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound
                    | std::io::ErrorKind::ConnectionRefused
                    // The path is too long for a socket, so no server can be listening there.
                    | std::io::ErrorKind::InvalidInput
            ) =>
        {
            return Ok(None);
        }
        // The socket's backlog is full of clients that wait for an answer.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Err(timed_out()),
        Err(error) => return Err(error),
    };
    with_timeout(stream.write_all(format!("{request}\n").as_bytes())).await?;
    let mut lines = BufReader::new(stream).lines();
    loop {
        let line = match request {
            WATCH => lines.next_line().await?,
            _ => with_timeout(lines.next_line()).await?,
        };
        let Some(line) = line else { return Ok(Some(())) };
        // The line may hold keys.
        each(&Zeroizing::new(line))?;
    }
}

async fn with_timeout<T>(work: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(REQUEST_TIMEOUT, work).await.unwrap_or_else(|_| Err(timed_out()))
}

fn timed_out() -> std::io::Error {
    let seconds = REQUEST_TIMEOUT.as_secs();
    let what = format!(
        "the running server has not answered within {seconds} s: it is suspended, or waits for its disk"
    );
    std::io::Error::new(std::io::ErrorKind::TimedOut, what)
}
