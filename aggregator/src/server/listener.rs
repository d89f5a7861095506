//! Where connections come from: a TCP socket, or whatever a test or a tunnel puts in its place.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// Accepts connections.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next connection, and from where it comes. May be given up before it is done: no connection is lost then.
    fn accept(&mut self) -> impl Future<Output = std::io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    fn address(&self) -> std::io::Result<SocketAddr>;
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&mut self) -> std::io::Result<(Self::Stream, SocketAddr)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // An acknowledgement waits for nothing that may follow it. A socket that cannot do that is slower, no worse.
        let _ = stream.set_nodelay(true);
        Ok((stream, address))
    }

    fn address(&self) -> std::io::Result<SocketAddr> {
        self.local_addr()
    }
}
