//! Control socket: a Unix socket in the state directory that only the owner can use. A request is one line of
//! text:
//!
//! * `status`: answered with one line of JSON, also while the server is starting;
//! * `devices`: answered with one line of JSON for each device;
//! * `watch`: answered with one line after every round, and a last line when the campaign is finished or has failed;
//! * `keys`, followed by a [`crate::keys::Request`] in JSON: answered with one line of JSON;
//! * `export`: answered with the stored campaign, see [`super::export_stream`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, broadcast, mpsc, watch};

use super::clock::Clock;
use super::export_stream::{self, SnapshotRequest};
use super::query::{SOCKET, WATCH};
use crate::core::{DeviceTable, Status};
use crate::keys::{Answer, SharedKeyStore};
use fedspan_files::user;

/// Longest request in bytes, including the newline: enough for several thousand ranges of devices.
const REQUEST_MAX: u64 = 1 << 16;

/// Answer to `status` while the campaign is loaded.
const STARTING: &str = "{\"phase\":\"starting\"}\n";

/// Bound control socket. The socket file is removed on drop.
#[derive(Debug)]
pub(super) struct Control {
    listener: Arc<UnixListener>,
    path: PathBuf,
    /// Device and inode of the socket file.
    file: Option<(u64, u64)>,
    /// Task that answers clients while the server starts.
    starting: tokio::task::JoinHandle<()>,
}

impl Control {
    /// Binds the socket. Returns `None` and logs a warning if the socket cannot be bound; the server then
    /// runs without a control socket. The state directory must be locked, so an existing socket file belongs to
    /// an earlier server and is replaced. Clients are informed that the server is starting until
    /// [`Self::end_start`] is called.
    pub(super) fn bind(directory: &Path) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.join(SOCKET);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).and_then(|listener| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        });
        match listener {
            Ok(listener) => {
                let listener = Arc::new(listener);
                let starting = tokio::spawn(answer_while_starting(Arc::clone(&listener)));
                Some(Self { listener, file: file_identity(&path), path, starting })
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "control socket cannot be bound; status, devices, watch, keys and export are not available");
                None
            }
        }
    }
}

impl Control {
    /// Ends the answers that the server is starting. Later clients wait until they are accepted.
    pub(super) fn end_start(&self) {
        self.starting.abort();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.starting.abort();
        // After a failed start the lock may have been released already, and the file may be that of another
        // server.
        if file_identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the device and the inode of a file.
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Answers clients with the information that the server is starting.
async fn answer_while_starting(listener: Arc<UnixListener>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (read, mut write) = stream.into_split();
            let mut request = String::new();
            let answer = match BufReader::new(read.take(REQUEST_MAX)).read_line(&mut request).await {
                Ok(_) if request.trim() == "status" => STARTING.to_owned(),
                Ok(_) => format!("{}\n", serde_json::json!({ "error": "the server is starting; try again" })),
                Err(_) => return,
            };
            let _ = write.write_all(answer.as_bytes()).await;
        });
    }
}

/// Accepts the next client; waits for ever if there is no control socket.
pub(super) async fn accept(control: Option<&Control>) -> Option<UnixStream> {
    match control {
        Some(control) => control.listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Serves one client until its request is answered. The second value of `keys` is notified of every request to the
/// key store that has been performed.
pub(super) async fn serve_client(
    stream: UnixStream,
    mut status: watch::Receiver<Status>,
    mut rounds: broadcast::Receiver<String>,
    keys: Option<(SharedKeyStore, Arc<Notify>)>,
    core: mpsc::Sender<SnapshotRequest>,
    (devices, clock): (DeviceTable, Clock),
) {
    // The permissions of the socket ensure the same, but they are set only after the socket is bound.
    let is_owner = stream.peer_cred().is_ok_and(|peer| peer.uid() == user() || peer.uid() == 0);
    let (read, mut write) = stream.into_split();
    let mut request = String::new();
    if BufReader::new(read.take(REQUEST_MAX)).read_line(&mut request).await.is_err() {
        return;
    }
    if !is_owner {
        let line = serde_json::json!({ "error": format!("this server answers user {} only", user()) });
        let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        return;
    }
    if !request.ends_with('\n') {
        // A truncated request is refused, because it might be a valid request with another meaning.
        let error = format!("a request is one line of at most {REQUEST_MAX} bytes");
        let line = serde_json::json!({ "error": error });
        let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        return;
    }
    if let Some(request) = request.strip_prefix("keys ") {
        let line = match keys {
            None => Answer::NoStore.to_line(),
            Some((key_store, changed)) => {
                let request = request.to_owned();
                // Requests to the key store wait for the disk, so they run on a blocking thread.
                let answer = move || key_store.answer(&request, unix_seconds());
                let answered = tokio::task::spawn_blocking(answer).await;
                // After a panic the keys may have changed as well.
                changed.notify_one();
                match answered {
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
            let current = status.borrow().clone();
            let line = serde_json::to_string(&current).unwrap_or_default();
            let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        }
        "devices" => {
            let lines = devices.lines(clock.now());
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let _ = write.write_all(text.as_bytes()).await;
        }
        export_stream::REQUEST => export_stream::send_export(&mut write, &core).await,
        WATCH => {
            tracing::info!("watch client connected");
            loop {
                // Lines of rounds go before the end of the campaign, which is published after them.
                let line = tokio::select! {
                    biased;
                    round = rounds.recv() => match round {
                        Ok(line) => line,
                        Err(broadcast::error::RecvError::Lagged(missed)) => format!("{{\"missed\":{missed}}}"),
                        Err(broadcast::error::RecvError::Closed) => break,
                    },
                    _ = status.wait_for(Status::has_ended) => break,
                };
                if write.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
            // Without an end, the server stops in the middle of a campaign.
            let end = Some(status.borrow().clone()).filter(Status::has_ended).map(|status| status.end_line());
            if let Some(end) = end {
                let _ = write.write_all(format!("{end}\n").as_bytes()).await;
            }
        }
        unknown => {
            let line = serde_json::json!({ "error": format!("unknown request {unknown:?}; known: status, devices, watch, keys, export") });
            let _ = write.write_all(format!("{line}\n").as_bytes()).await;
        }
    }
}

/// Returns the time in seconds since 1970.
fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
