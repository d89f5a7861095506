//! Client of the [control socket](super::control).

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use zeroize::Zeroizing;

/// File name of the control socket in the state directory.
pub(super) const SOCKET: &str = "control.sock";

/// Name of the request whose answer does not end.
pub(super) const WATCH: &str = "watch";

/// Returns true if the file of the control socket still exists. After the connection has closed, an existing
/// file means that the server has crashed, because a clean shutdown removes the file first.
#[must_use]
pub fn socket_is_stale(directory: &Path) -> bool {
    directory.join(SOCKET).symlink_metadata().is_ok()
}

/// Longest wait for an answer of the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request to the server of a state directory and passes each line of the answer to `each`. Returns
/// `None` if no server runs there. The time between two lines is limited to 10 s, except for `watch`.
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
                    // The path is too long for a socket, so no server can listen on it.
                    | std::io::ErrorKind::InvalidInput
            ) =>
        {
            return Ok(None);
        }
        // The backlog of the socket is full of waiting clients.
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
        // The line may contain keys, so it is zeroised after use.
        each(&Zeroizing::new(line))?;
    }
}

/// Awaits `operation` for at most [`REQUEST_TIMEOUT`].
async fn with_timeout<T>(operation: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(REQUEST_TIMEOUT, operation).await.unwrap_or_else(|_| Err(timed_out()))
}

fn timed_out() -> std::io::Error {
    let seconds = REQUEST_TIMEOUT.as_secs();
    let message = format!(
        "the running server has not answered within {seconds} s: it is suspended, or waits for its disk"
    );
    std::io::Error::new(std::io::ErrorKind::TimedOut, message)
}
