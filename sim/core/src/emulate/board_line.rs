//! Server's end of the pipes of a board: it ends when the board has ended for good. The pipes themselves stay open while a board
//! restarts.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Stream over the pipes of a board.
#[derive(Debug)]
pub(super) struct BoardLine<S> {
    pipes: S,
    /// Completes when the board has ended, also if the sender is dropped.
    ended: oneshot::Receiver<()>,
    has_ended: bool,
}

impl<S> BoardLine<S> {
    /// Creates the stream, and the sender that ends it.
    pub(super) fn new(pipes: S) -> (Self, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        (Self { pipes, ended, has_ended: false }, end)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoardLine<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let line = self.get_mut();
        // The last bytes of the board are read first.
        let read = Pin::new(&mut line.pipes).poll_read(context, out);
        if read.is_pending() && !line.has_ended {
            line.has_ended = Pin::new(&mut line.ended).poll(context).is_ready();
        }
        if read.is_pending() && line.has_ended { Poll::Ready(Ok(())) } else { read }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoardLine<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().pipes).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().pipes).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().pipes).poll_shutdown(context)
    }
}
