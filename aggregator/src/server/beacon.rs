//! Sender of beacons: frames by which a round opens on many devices, sent once as packets to an address that reaches all of them,
//! such as a multicast group or the gateway of a radio.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fedspan_engine::RoundBroadcast;
use fedspan_protocol::datagram::PacketWriter;
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::mpsc;

use crate::connection::{Acceptor, beacon};

/// Number of requests for beacons that wait. More are dropped: the round then opens on those devices one by one.
const WAITING: usize = 1024;

/// Requests for beacons.
pub(super) type Beacons = mpsc::Sender<Arc<RoundBroadcast>>;

/// Starts the task that sends beacons to `address`, `delay` after the first announcement. `packet` is the longest packet in
/// bytes. The task ends when all senders are dropped.
///
/// # Errors
/// The error of the address or of the socket.
pub(super) async fn start(
    address: &str,
    delay: Duration,
    packet: usize,
    acceptor: Arc<Acceptor>,
) -> std::io::Result<Beacons> {
    let no_address = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "the host has no address");
    let target = lookup_host(address).await?.next().ok_or_else(no_address)?;
    let local: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.set_broadcast(true)?;
    tracing::info!(%target, packet, "sending beacons over UDP");
    let (sender, requests) = mpsc::channel(WAITING);
    tokio::spawn(send_beacons(socket, target, delay, packet, acceptor, requests));
    Ok(sender)
}

/// Sends one beacon for each round, for all requests that arrive within the delay.
async fn send_beacons(
    socket: UdpSocket,
    target: SocketAddr,
    delay: Duration,
    packet: usize,
    acceptor: Arc<Acceptor>,
    mut requests: mpsc::Receiver<Arc<RoundBroadcast>>,
) {
    let mut writer = PacketWriter::new(packet);
    let mut bytes = vec![0; packet];
    while let Some(first) = requests.recv().await {
        // The announcements must reach the devices first.
        tokio::time::sleep(delay).await;
        let mut rounds = BTreeMap::from([(first.id.round, first)]);
        while let Ok(next) = requests.try_recv() {
            rounds.insert(next.id.round, next);
        }
        for (number, round) in rounds {
            // Requests for an earlier beacon were made before it was sent.
            if !acceptor.begin_beacon(number) {
                continue;
            }
            // A connection only announces a beacon that fits one packet.
            let written = beacon(&round).and_then(|mut encoded| writer.write(&mut encoded, &mut bytes));
            let Some(content) = written.and_then(|length| bytes.get(..length)) else { continue };
            match socket.send_to(content, target).await {
                Ok(length) => tracing::debug!(%target, round = number, length, "beacon"),
                Err(error) => {
                    tracing::warn!(%target, %error, round = number, "beacon not sent; the round opens on each device alone");
                }
            }
        }
    }
}
