//! Server's end of the pipe from a board: it ends when the board has ended for good. The pipe itself stays open while a board
//! restarts.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, DuplexStream, ReadBuf};
use tokio::sync::oneshot;

/// Number of bytes from a board that wait for the server: a longest update. Without them a board that sends an update would block while
/// the server sends it the next round, and neither would read.
const WAITING_MAX: usize = 8 << 20;

/// Stream of the bytes from a board.
#[derive(Debug)]
struct BoardLine<R> {
    pipe: R,
    /// Completes when the board has ended, also if the sender is dropped.
    ended: oneshot::Receiver<()>,
    has_ended: bool,
}

/// Starts a task that reads the pipe from a board, and returns the stream of these bytes, and the sender that
/// ends the stream.
pub(super) fn board_line(
    pipe: impl AsyncRead + Send + Unpin + 'static,
) -> (DuplexStream, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel();
    let mut line = BoardLine { pipe, ended, has_ended: false };
    let (server, mut board) = tokio::io::duplex(WAITING_MAX);
    tokio::spawn(async move {
        // Fails only if the server has ended. The stream ends when `board` is dropped.
        let _ = tokio::io::copy(&mut line, &mut board).await;
    });
    (server, end)
}

impl<R: AsyncRead + Unpin> AsyncRead for BoardLine<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let line = self.get_mut();
        // The last bytes of the board are read first.
        let read = Pin::new(&mut line.pipe).poll_read(context, out);
        if read.is_pending() && !line.has_ended {
            line.has_ended = Pin::new(&mut line.ended).poll(context).is_ready();
        }
        if read.is_pending() && line.has_ended { Poll::Ready(Ok(())) } else { read }
    }
}
