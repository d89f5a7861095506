//! Link of a virtual device over UDP: packets in place of a byte stream, and beacons of the server from another address.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fedspan_protocol::datagram::{FRAME_MAX, PacketReader, PacketWriter};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UdpSocket, lookup_host};

/// Byte stream over packets, for the driver of a session.
#[derive(Debug)]
pub struct UdpLink {
    socket: UdpSocket,
    /// Socket at which beacons arrive; `None` if the device receives none.
    beacons: Option<UdpSocket>,
    writer: PacketWriter,
    reader: PacketReader<Vec<u8>>,
    /// Reader of beacons, so that they do not interrupt a frame in fragments.
    beacon_reader: PacketReader<Vec<u8>>,
    packet: Vec<u8>,
    received: Vec<u8>,
}

impl UdpLink {
    /// Opens a link to a server, with packets of at most `packet` bytes. `beacons` is the address at which beacons arrive: one of this
    /// host, or a multicast group. Several devices of a host can join a group, but only one can bind another address.
    ///
    /// # Errors
    /// The error of a socket or of an address.
    pub async fn open(server: &str, packet: usize, beacons: Option<&str>) -> std::io::Result<Self> {
        let server = first_address(server).await?;
        let socket = UdpSocket::bind(any_address(server, 0)).await?;
        socket.connect(server).await?;
        let beacons = match beacons {
            Some(address) => Some(join(first_address(address).await?).await?),
            None => None,
        };
        Ok(Self {
            socket,
            beacons,
            writer: PacketWriter::new(packet),
            reader: PacketReader::new(vec![0; FRAME_MAX]),
            beacon_reader: PacketReader::new(vec![0; FRAME_MAX]),
            packet: vec![0; packet.min(FRAME_MAX)],
            received: vec![0; FRAME_MAX],
        })
    }
}

/// Returns the first address of a host.
async fn first_address(address: &str) -> std::io::Result<SocketAddr> {
    let no_address = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "the host has no address");
    lookup_host(address).await?.next().ok_or_else(no_address)
}

/// Returns the address of all interfaces, of the same family as `other`.
fn any_address(other: SocketAddr, port: u16) -> SocketAddr {
    match other {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// Binds the address of beacons, and joins it if it is a multicast group.
async fn join(address: SocketAddr) -> std::io::Result<UdpSocket> {
    match address {
        SocketAddr::V4(group) if group.ip().is_multicast() => {
            let socket = bind_shared(any_address(address, address.port()))?;
            socket.join_multicast_v4(*group.ip(), Ipv4Addr::UNSPECIFIED)?;
            Ok(socket)
        }
        SocketAddr::V6(group) if group.ip().is_multicast() => {
            let socket = bind_shared(any_address(address, address.port()))?;
            socket.join_multicast_v6(group.ip(), 0)?;
            Ok(socket)
        }
        _ => UdpSocket::bind(address).await,
    }
}

/// Binds an address that other sockets of the host may bind, too. Each of them gets the packets of a multicast group.
fn bind_shared(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    // Linux does not need this option; other systems share an address only between sockets that set it.
    #[cfg(not(target_os = "linux"))]
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

impl AsyncRead for UdpLink {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let Self { socket, beacons, reader, beacon_reader, received, .. } = self.get_mut();
        // A frame is read to its end before another begins.
        while !reader.has_frame() && !beacon_reader.has_frame() {
            let mut buffer = ReadBuf::new(received);
            // The server's packets first, because the address of beacons is open to strangers.
            let (result, reader) = match (socket.poll_recv(context, &mut buffer), &*beacons) {
                (Poll::Ready(result), _) => (result, &mut *reader),
                (Poll::Pending, Some(beacons)) => {
                    (ready!(beacons.poll_recv(context, &mut buffer)), &mut *beacon_reader)
                }
                (Poll::Pending, None) => return Poll::Pending,
            };
            // An error belongs to an earlier packet that could not be delivered; the session repeats what is lost.
            if result.is_ok() {
                reader.receive(buffer.filled());
            }
        }
        let reader = if beacon_reader.has_frame() { beacon_reader } else { reader };
        let read = reader.read(out.initialize_unfilled());
        out.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UdpLink {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        encoded: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let Self { socket, writer, packet, .. } = self.get_mut();
        let (mut next_writer, mut rest) = (*writer, encoded);
        let Some(length) = next_writer.write(&mut rest, packet) else {
            let message = format!("the frame is longer than the {FRAME_MAX} bytes that packets can carry");
            return Poll::Ready(Err(std::io::Error::other(message)));
        };
        // A packet that the system refuses is lost, like one that the network drops.
        let _ = ready!(socket.poll_send(context, packet.get(..length).unwrap_or_default()));
        *writer = next_writer;
        Poll::Ready(Ok(encoded.len() - rest.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    /// Two devices of one host receive the packets of one multicast group.
    #[tokio::test]
    async fn devices_of_a_host_share_a_multicast_group() {
        let (group, local) = (Ipv4Addr::new(239, 255, 70, 83), Ipv4Addr::LOCALHOST);
        let first = bind_shared((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = bind_shared((Ipv4Addr::UNSPECIFIED, port).into()).unwrap();
        for socket in [&first, &second] {
            socket.join_multicast_v4(group, local).unwrap();
        }
        let sender = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        sender.set_multicast_if_v4(&local).unwrap();
        sender.send_to(b"beacon", &SocketAddr::from((group, port)).into()).unwrap();
        for socket in [first, second] {
            let mut received = [0; 16];
            let receive = socket.recv(&mut received);
            assert_eq!(tokio::time::timeout(Duration::from_secs(10), receive).await.unwrap().unwrap(), 6);
        }
    }
}
