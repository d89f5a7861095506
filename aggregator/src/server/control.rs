//! The control socket: a Unix socket in the state directory, for its owner alone. One request a line:
//! `status` answers one line of JSON, `watch` a line after every round until the connection ends, `keys` and a request
//! of [`crate::keys`] in JSON what came of it, `export` what is kept: [`super::export_stream`].

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

/// The request that has no end.
const WATCH: &str = "watch";

/// Longest request, with the end of its line: several thousand ranges of devices.
const REQUEST_MAX: u64 = 1 << 16;

/// The bound socket; its file goes when it goes.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Binds the socket. The directory's lock is held, so a file that is there is a leftover. A server
    /// without a control socket still serves, and says so.
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
                tracing::warn!(path = %path.display(), %error, "no control socket");
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

/// The next client; waits for ever without a socket.
pub(super) async fn accept(control: Option<&Control>) -> Option<UnixStream> {
    match control {
        Some(control) => control.listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Whether a server is gone from a state directory that has not ended orderly: its socket is still there. For whoever has been
/// connected to it.
#[must_use]
pub fn socket_is_stale(directory: &Path) -> bool {
    directory.join(SOCKET).symlink_metadata().is_ok()
}

/// Answers one client to its end.
pub(super) async fn answer(
    stream: UnixStream,
    status: watch::Receiver<Status>,
    mut rounds: broadcast::Receiver<String>,
    keys: Option<SharedKeyStore>,
    core: mpsc::Sender<SnapshotRequest>,
) {
    // The socket's permissions say the same, but only from a moment after it was bound.
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
        // What has come may be a request, but another one than was meant.
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
        WATCH => loop {
            let line = match rounds.recv().await {
                Ok(line) => line,
                Err(broadcast::error::RecvError::Lagged(missed)) => format!("{{\"missed\":{missed}}}"),
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if write.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                return;
            }
        },
        other => {
            let line = serde_json::json!({ "error": format!("unknown request {other:?}; known: status, watch, keys, export") });
            let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// How long a server may say nothing that was asked something.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the server that runs on a state directory and gives each line of its answer to `each`. `None` if
/// no server runs there. Rounds that are watched may take any time; everything else is answered soon.
///
/// # Errors
/// What the system says about the socket, or `each`; [`std::io::ErrorKind::TimedOut`] if the server takes connections and does not
/// answer.
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
                    // Its path is too long for a socket: no server has one there.
                    | std::io::ErrorKind::InvalidInput
            ) =>
        {
            return Ok(None);
        }
        // Others wait for its answer already.
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
        // It may hold keys.
        each(&Zeroizing::new(line))?;
    }
}

async fn with_timeout<T>(work: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(REQUEST_TIMEOUT, work).await.unwrap_or_else(|_| Err(timed_out()))
}

fn timed_out() -> std::io::Error {
    let seconds = REQUEST_TIMEOUT.as_secs();
    let what = format!(
        "the server that runs here does not answer ({seconds} s): it is stopped, or waits for its disk"
    );
    std::io::Error::new(std::io::ErrorKind::TimedOut, what)
}
