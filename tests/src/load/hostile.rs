//! Hostile peers. Each kind misbehaves in another way and reconnects whenever the server closes the
//! connection.

use std::io::Result;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{RoundId, ToServer};
use fedspan_protocol::secure::Key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::device::connect;
use super::{Device, Identity, Shape};

/// Pause between two bytes of a slow writer.
const BYTE_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two blocks of garbage.
const BLOCK_PAUSE: Duration = Duration::from_millis(250);

/// Length of a block of garbage, in bytes.
const BLOCK_BYTES: usize = 1024;

/// Pause between two connections of a peer.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Kind of misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Authenticated device that sends an update at one byte per second.
    Drip,
    /// Authenticated device that sends half an update, then nothing.
    Stall,
    /// Peer that sends a hello at one byte per second (slowloris).
    Loris,
    /// Peer that sends random bytes, 4 KiB per second.
    Noise,
    /// Peer that sends a frame that never ends, 4 KiB per second.
    Endless,
    /// Peer that sends well-formed frames with unexpected messages, or sealed without a known key.
    Junk,
    /// Unknown device that sends a hello.
    Stranger,
}

impl Kind {
    /// Kinds that send slowly.
    pub const SLOW: [Self; 3] = [Self::Drip, Self::Stall, Self::Loris];

    /// Kinds that send garbage.
    pub const GARBAGE: [Self; 3] = [Self::Noise, Self::Endless, Self::Junk];

    /// Returns true if the kind needs a key.
    #[must_use]
    pub fn has_key(self) -> bool {
        matches!(self, Self::Drip | Self::Stall)
    }
}

/// Server under attack, and the seed of the attack.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Address of the server.
    pub address: SocketAddr,
    /// Seed of the garbage.
    pub seed: u64,
}

/// A hostile peer.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// Kind of misbehaviour.
    pub kind: Kind,
    /// Index of the peer.
    pub index: u64,
    /// Source address of the peer's connections; several peers may share one.
    pub from: Option<Ipv4Addr>,
    /// Key of the peer, if its kind is authenticated.
    pub identity: Option<Identity>,
}

impl Hostile {
    /// Connects to the server; authenticated kinds complete the handshake.
    ///
    /// # Errors
    /// If the connection fails, or the server does not welcome an authenticated device.
    pub async fn connect(&self, target: Target, time: u64) -> Result<ConnectedPeer> {
        let from = self.from.map(IpAddr::V4);
        let random = stream(target.seed, Purpose::Loss, self.index << 32 | time);
        if let (true, Some(identity)) = (self.kind.has_key(), &self.identity) {
            let mut device = Device::join(target.address, from, identity.clone(), time).await?;
            let mut update = device.update(RoundId { round: 1, stage: 0 })?;
            let pattern = if self.kind == Kind::Drip {
                Pattern::Bytes(update)
            } else {
                update.truncate(update.len() / 2);
                Pattern::Once(update)
            };
            return Ok(ConnectedPeer { stream: device.into_stream(), pattern });
        }
        let stream = connect(target.address, from).await?;
        let pattern = match self.kind {
            Kind::Noise => Pattern::Blocks(Box::new(random), random_block),
            Kind::Endless => Pattern::Blocks(Box::new(random), block_without_zeros),
            Kind::Junk => Pattern::Blocks(Box::new(random), junk_frames),
            _ => {
                let mut random = random;
                let stranger = Identity {
                    device: u64::MAX - self.index,
                    key: Key::new(0, [(random.bits() & 0xff) as u8; 32]),
                    frame_limit: 1280,
                    shape: Shape::default(),
                };
                let (hello, _) = stranger.hello(time)?;
                if self.kind == Kind::Loris { Pattern::Bytes(hello) } else { Pattern::Once(hello) }
            }
        };
        Ok(ConnectedPeer { stream, pattern })
    }

    /// Opens one connection and misbehaves until the server closes it.
    async fn connect_once(&self, target: Target, time: u64) -> Result<()> {
        self.connect(target, time).await?.until_closed().await;
        Ok(())
    }

    /// Reconnects while the switch is on, and counts the connections.
    pub async fn reconnect_while(
        self,
        target: Target,
        mut switch: watch::Receiver<bool>,
        connections: Arc<AtomicU64>,
    ) {
        for time in 0.. {
            if switch.wait_for(|switch| *switch).await.is_err() {
                return;
            }
            connections.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                _ = self.connect_once(target, time) => {}
                _ = switch.wait_for(|switch| !*switch) => {}
            }
            sleep(RECONNECT_PAUSE).await;
        }
    }
}

/// A connected peer that has not misbehaved yet.
pub struct ConnectedPeer {
    stream: TcpStream,
    pattern: Pattern,
}

/// Bytes that a peer sends, and their timing.
enum Pattern {
    /// Sends one byte per second.
    Bytes(Vec<u8>),
    /// Sends all bytes at once.
    Once(Vec<u8>),
    /// Sends block after block.
    Blocks(Box<Stream>, fn(&mut Stream) -> Vec<u8>),
}

impl ConnectedPeer {
    /// Misbehaves until the server closes the connection.
    pub async fn until_closed(self) {
        let Self { stream, pattern } = self;
        let (mut read, mut write) = stream.into_split();
        let closed = async {
            let mut buffer = [0; 512];
            while matches!(read.read(&mut buffer).await, Ok(1..)) {}
        };
        let writing = async {
            match pattern {
                Pattern::Bytes(bytes) => {
                    for byte in bytes {
                        if write.write_all(&[byte]).await.is_err() {
                            break;
                        }
                        sleep(BYTE_PAUSE).await;
                    }
                }
                Pattern::Once(bytes) => drop(write.write_all(&bytes).await),
                Pattern::Blocks(mut random, block) => loop {
                    // If the server does not read, the next block is tried.
                    match timeout(BLOCK_PAUSE, write.write_all(&block(&mut random))).await {
                        Ok(Err(_)) => break,
                        Ok(Ok(())) => sleep(BLOCK_PAUSE).await,
                        Err(_) => {}
                    }
                },
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = closed => {}
            () = writing => {}
        }
    }
}

fn random_block(random: &mut Stream) -> Vec<u8> {
    (0..BLOCK_BYTES / 8).flat_map(|_| random.bits().to_le_bytes()).collect()
}

fn block_without_zeros(random: &mut Stream) -> Vec<u8> {
    random_block(random).into_iter().map(|byte| byte.max(1)).collect()
}

/// Returns eight plain `Alive` messages, and eight frames whose header says that they are sealed.
fn junk_frames(random: &mut Stream) -> Vec<u8> {
    let mut frames = Vec::new();
    for _ in 0..8 {
        let mut frame = vec![0; 64];
        if let Ok(sent) = encode(&ToServer::Alive, 0, |_| {}, &mut frame) {
            frames.extend(frame.iter().take(sent));
        }
        // COBS code and sealed header, then bytes other than zero.
        frames.extend([42, 0x11]);
        frames.extend(random_block(random).into_iter().take(40).map(|byte| byte.max(1)));
        frames.push(0);
    }
    frames
}
