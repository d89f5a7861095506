//! Trait for sources of incoming connections: TCP listeners, and replacements for tests and tunnels.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

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

/// Binds an address, `host:port`, with a queue for `waiting` connections that are not accepted yet, so that none of a
/// fleet that comes back at once is refused. The system bounds the queue (on Linux `net.core.somaxconn`).
///
/// # Errors
/// The error of the last address that the host has, or of its lookup.
pub(super) async fn bind(address: &str, waiting: usize) -> std::io::Result<TcpListener> {
    let queue = u32::try_from(waiting).unwrap_or(u32::MAX).clamp(LEAST_QUEUE, LONGEST_QUEUE);
    let mut result = Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the host has no address"));
    for address in lookup_host(address).await? {
        result = bind_one(address, queue);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Shortest queue of connections that are not accepted yet.
const LEAST_QUEUE: u32 = 1024;
/// Longest queue, which is the largest number that every system accepts.
const LONGEST_QUEUE: u32 = i32::MAX.unsigned_abs();

fn bind_one(address: SocketAddr, queue: u32) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that restarts can bind its address although old connections are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(queue)
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
