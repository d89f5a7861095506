//! Trait for sources of incoming connections: TCP listeners, and replacements for tests and tunnels.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// Source of incoming connections.
pub trait Listener: Send + 'static {
    /// Stream of one connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Waits for the next connection and returns it with its remote address. Cancel-safe: no connection is
    /// lost if the future is dropped.
    fn accept(&mut self) -> impl Future<Output = std::io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Returns the local address.
    ///
    /// # Errors
    /// The error of the socket, if it cannot report its address.
    fn address(&self) -> std::io::Result<SocketAddr>;
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&mut self) -> std::io::Result<(Self::Stream, SocketAddr)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // Disables Nagle's algorithm, so that an acknowledgement is not delayed. If the option cannot be set,
        // the connection is merely slower.
        let _ = stream.set_nodelay(true);
        Ok((stream, address))
    }

    fn address(&self) -> std::io::Result<SocketAddr> {
        self.local_addr()
    }
}
