//! Listener for devices that send packets over UDP: one stream for each address.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fedspan_protocol::datagram::{FRAME_MAX, PacketReader, PacketWriter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::core::PacketTotals;

/// Number of packets of one address that wait for its session. More are dropped, as by a full queue in a network.
const WAITING_PACKETS: usize = 64;

/// Number of new addresses that wait for a session.
const WAITING_ADDRESSES: usize = 1024;

/// Longest packet that is received, in bytes: a whole frame, for devices with longer packets than the server sends.
const LONGEST_RECEIVED: usize = FRAME_MAX;

/// Pause after an error of the socket.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Number of addresses from which ended sessions are removed; later twice the number that remained.
const SWEEP_MIN: usize = 64;

/// Socket for packets, and the task that distributes them.
#[derive(Debug)]
pub(super) struct UdpListener {
    accepted: mpsc::Receiver<(UdpStream, SocketAddr)>,
    address: SocketAddr,
    totals: Arc<PacketTotals>,
    distributor: tokio::task::JoinHandle<()>,
}

impl UdpListener {
    /// Binds an address. `packet` is the longest packet that is sent, in bytes.
    ///
    /// # Errors
    /// The error of the socket.
    pub(super) async fn bind(address: &str, packet: usize) -> std::io::Result<Self> {
        let socket = Arc::new(UdpSocket::bind(address).await?);
        let address = socket.local_addr()?;
        tracing::info!(%address, packet, "listening for packets over UDP");
        let (sender, accepted) = mpsc::channel(WAITING_ADDRESSES);
        let totals = Arc::new(PacketTotals::default());
        let distributor = tokio::spawn(distribute(socket, packet, sender, Arc::clone(&totals)));
        Ok(Self { accepted, address, totals, distributor })
    }

    /// Returns the counters of all streams.
    pub(super) fn totals(&self) -> Arc<PacketTotals> {
        Arc::clone(&self.totals)
    }

    /// Returns the local address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        self.distributor.abort();
    }
}

/// Waits for packets from a new address; for ever if there is no listener. Cancel-safe.
pub(super) async fn accept(listener: &mut Option<UdpListener>) -> (UdpStream, SocketAddr) {
    match listener {
        Some(listener) => match listener.accepted.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Distributes packets to the streams of their addresses, and begins a stream for each new address.
async fn distribute(
    socket: Arc<UdpSocket>,
    packet: usize,
    accepted: mpsc::Sender<(UdpStream, SocketAddr)>,
    totals: Arc<PacketTotals>,
) {
    let mut streams: HashMap<SocketAddr, mpsc::Sender<Box<[u8]>>> = HashMap::new();
    let mut sweep_at = SWEEP_MIN;
    let mut bytes = vec![0; LONGEST_RECEIVED + 1];
    loop {
        // The error of an earlier packet that could not be delivered, or of an interface that is down and may come up again.
        let Ok((length, address)) = socket.recv_from(&mut bytes).await else {
            tokio::time::sleep(ERROR_PAUSE).await;
            continue;
        };
        // A packet that was cut becomes an empty one, which the session counts as malformed.
        let received = bytes.get(..length).filter(|bytes| bytes.len() <= LONGEST_RECEIVED);
        let content: Box<[u8]> = received.unwrap_or_default().into();
        let content = match streams.get(&address) {
            None => content,
            Some(inbox) => match inbox.try_send(content) {
                Ok(()) => continue,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    totals.count_dropped();
                    continue;
                }
                // The session has ended.
                Err(mpsc::error::TrySendError::Closed(content)) => content,
            },
        };
        if streams.len() >= sweep_at {
            streams.retain(|_, inbox| !inbox.is_closed());
            sweep_at = SWEEP_MIN.max(2 * streams.len());
        }
        let (packets, received) = mpsc::channel(WAITING_PACKETS);
        let stream = UdpStream {
            socket: Arc::clone(&socket),
            address,
            received,
            totals: Arc::clone(&totals),
            writer: PacketWriter::new(packet),
            reader: PacketReader::new(vec![0; FRAME_MAX]),
            packet,
            writable: None,
        };
        // The channel is new and has room.
        let _ = packets.try_send(content);
        match accepted.try_send((stream, address)) {
            Ok(()) => drop(streams.insert(address, packets)),
            Err(mpsc::error::TrySendError::Full(_)) => {
                totals.count_dropped();
                tracing::debug!(from = %address, "packet dropped: too many new addresses");
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return,
        }
    }
}

/// Returns true if the socket accepts no packet now.
fn is_full(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock
}

/// Wait of one stream until the socket accepts a packet. The socket's own method for this wakes only the stream that has asked last.
struct Writable(Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>);

impl Writable {
    fn of(socket: &Arc<UdpSocket>) -> Self {
        let socket = Arc::clone(socket);
        Self(Box::pin(async move { socket.writable().await }))
    }
}

impl std::fmt::Debug for Writable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writable")
    }
}

/// Byte stream over the packets of one address.
#[derive(Debug)]
pub(super) struct UdpStream {
    socket: Arc<UdpSocket>,
    address: SocketAddr,
    received: mpsc::Receiver<Box<[u8]>>,
    totals: Arc<PacketTotals>,
    writer: PacketWriter,
    reader: PacketReader<Vec<u8>>,
    /// Longest packet that is sent, in bytes.
    packet: usize,
    /// Wait for room in the socket's buffer.
    writable: Option<Writable>,
}

impl AsyncRead for UdpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let Self { received, reader, totals, .. } = self.get_mut();
        while !reader.has_frame() {
            match ready!(received.poll_recv(context)) {
                Some(packet) => {
                    let before = reader.counters();
                    reader.receive(&packet);
                    totals.add(before, reader.counters());
                }
                None => return Poll::Ready(Ok(())),
            }
        }
        let read = reader.read(out.initialize_unfilled());
        out.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UdpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        encoded: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let stream = self.get_mut();
        let (mut writer, mut rest) = (stream.writer, encoded);
        let mut packet = vec![0; stream.packet.min(FRAME_MAX)];
        let Some(length) = writer.write(&mut rest, &mut packet) else {
            let message = format!("the frame is longer than the {FRAME_MAX} bytes that packets can carry");
            return Poll::Ready(Err(std::io::Error::other(message)));
        };
        let content = packet.get(..length).unwrap_or_default();
        // A packet that the network refuses is lost, like one that it drops later.
        while stream.socket.try_send_to(content, stream.address).is_err_and(|error| is_full(&error)) {
            let socket = &stream.socket;
            let _ =
                ready!(stream.writable.get_or_insert_with(|| Writable::of(socket)).0.as_mut().poll(context));
            stream.writable = None;
        }
        stream.writer = writer;
        Poll::Ready(Ok(encoded.len() - rest.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for UdpStream {
    fn drop(&mut self) {
        tracing::debug!(from = %self.address, packets = ?self.reader.counters(), "stream of packets ended");
    }
}
