//! Peers that mean no good, each in its own way, one connection after the other.

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
use super::{Device, Identity};

/// Between two bytes of a slow writer.
const BYTE: Duration = Duration::from_secs(1);

/// Between two heaps of garbage.
const HEAP: Duration = Duration::from_millis(250);

/// Bytes of a heap.
const HEAP_BYTES: usize = 1024;

/// Between the end of a connection and the next one.
const PAUSE: Duration = Duration::from_secs(1);

/// What a peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device with a key: an update, one byte a second.
    Drip,
    /// A device with a key: half an update, and then nothing.
    Stall,
    /// A hello, one byte a second.
    Loris,
    /// Random bytes, four KiB a second.
    Noise,
    /// A frame without an end, four KiB a second.
    Endless,
    /// Frames that are well made and hold nothing known, or are sealed by nobody.
    Junk,
    /// A hello of a device that nobody knows.
    Stranger,
}

impl Kind {
    /// Those that take their time.
    pub const SLOW: [Self; 3] = [Self::Drip, Self::Stall, Self::Loris];

    /// Those that send garbage.
    pub const GARBAGE: [Self; 3] = [Self::Noise, Self::Endless, Self::Junk];

    /// Whether it needs a key.
    #[must_use]
    pub fn has_key(self) -> bool {
        matches!(self, Self::Drip | Self::Stall)
    }
}

/// Where they stand.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// Whom they trouble.
    pub address: SocketAddr,
    /// Of their garbage.
    pub seed: u64,
}

/// One that means no good.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// What it does.
    pub kind: Kind,
    /// Which one it is.
    pub index: u64,
    /// Where its connections come from; several may share an address.
    pub from: Option<Ipv4Addr>,
    /// For those with a key.
    pub identity: Option<Identity>,
}

impl Hostile {
    /// Connects; those with a key are welcomed.
    ///
    /// # Errors
    /// If it could not connect, or a device with a key was not welcomed.
    pub async fn enter(&self, ground: Ground, time: u64) -> Result<Entered> {
        let from = self.from.map(IpAddr::V4);
        let random = stream(ground.seed, Purpose::Loss, self.index << 32 | time);
        if let (true, Some(identity)) = (self.kind.has_key(), &self.identity) {
            let mut device = Device::join(ground.address, from, identity.clone(), time).await?;
            let mut update = device.update(RoundId { round: 1, stage: 0 })?;
            let pattern = if self.kind == Kind::Drip {
                Pattern::Bytes(update)
            } else {
                update.truncate(update.len() / 2);
                Pattern::Once(update)
            };
            return Ok(Entered { stream: device.into_stream(), pattern });
        }
        let stream = connect(ground.address, from).await?;
        let pattern = match self.kind {
            Kind::Noise => Pattern::Heaps(Box::new(random), noise),
            Kind::Endless => Pattern::Heaps(Box::new(random), endless),
            Kind::Junk => Pattern::Heaps(Box::new(random), junk),
            _ => {
                let mut random = random;
                let nobody = Identity {
                    device: u64::MAX - self.index,
                    key: Key::new(0, [(random.bits() & 0xff) as u8; 32]),
                    frame_limit: 1280,
                };
                let (hello, _) = nobody.hello(time)?;
                if self.kind == Kind::Loris { Pattern::Bytes(hello) } else { Pattern::Once(hello) }
            }
        };
        Ok(Entered { stream, pattern })
    }

    /// One connection, until the server ends it.
    async fn once(&self, ground: Ground, time: u64) -> Result<()> {
        self.enter(ground, time).await?.until_closed().await;
        Ok(())
    }

    /// One connection after the other while the switch is on. Counts them.
    pub async fn again_and_again(self, ground: Ground, mut on: watch::Receiver<bool>, made: Arc<AtomicU64>) {
        for time in 0.. {
            if on.wait_for(|on| *on).await.is_err() {
                return;
            }
            made.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                _ = self.once(ground, time) => {}
                _ = on.wait_for(|on| !*on) => {}
            }
            sleep(PAUSE).await;
        }
    }
}

/// One that has entered, and has done nothing bad yet.
pub struct Entered {
    stream: TcpStream,
    pattern: Pattern,
}

enum Pattern {
    /// One byte a second.
    Bytes(Vec<u8>),
    /// At once.
    Once(Vec<u8>),
    /// Heap after heap.
    Heaps(Box<Stream>, fn(&mut Stream) -> Vec<u8>),
}

impl Entered {
    /// What it came for, until the server ends the connection.
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
                        sleep(BYTE).await;
                    }
                }
                Pattern::Once(bytes) => drop(write.write_all(&bytes).await),
                Pattern::Heaps(mut random, heap) => loop {
                    // One that is not read does not wait for it.
                    match timeout(HEAP, write.write_all(&heap(&mut random))).await {
                        Ok(Err(_)) => break,
                        Ok(Ok(())) => sleep(HEAP).await,
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

fn noise(random: &mut Stream) -> Vec<u8> {
    (0..HEAP_BYTES / 8).flat_map(|_| random.bits().to_le_bytes()).collect()
}

fn endless(random: &mut Stream) -> Vec<u8> {
    noise(random).into_iter().map(|byte| byte.max(1)).collect()
}

/// Eight messages that make no sense, and eight frames that say they are sealed.
fn junk(random: &mut Stream) -> Vec<u8> {
    let mut frames = Vec::new();
    for _ in 0..8 {
        let mut frame = vec![0; 64];
        if let Ok(sent) = encode(&ToServer::Alive, 0, |_| {}, &mut frame) {
            frames.extend(frame.iter().take(sent));
        }
        // COBS of a header and what follows, none of it zero.
        frames.extend([42, 0x11]);
        frames.extend(noise(random).into_iter().take(40).map(|byte| byte.max(1)));
        frames.push(0);
    }
    frames
}
