//! Server's end of the pipe from a board: it ends when the board has ended for good. The pipe itself stays open while a board
//! restarts.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

/// Stream of the bytes from a board.
#[derive(Debug)]
pub(super) struct BoardLine<R> {
    pipe: R,
    /// Completes when the board has ended, also if the sender is dropped.
    ended: oneshot::Receiver<()>,
    has_ended: bool,
}

/// Returns the stream of the bytes from a board, and the sender that ends the stream.
pub(super) fn board_line<R>(pipe: R) -> (BoardLine<R>, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel();
    (BoardLine { pipe, ended, has_ended: false }, end)
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
