//! Device that only speaks the protocol: real handshakes and updates, without a model, a store or a clock.

use std::io::{Error, Result};
use std::net::{IpAddr, SocketAddr};

use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Capabilities, Chunk, Descriptors, Hello, Model, Numeric, Privacy, RoundId, ToDevice, ToServer, Update,
    decode,
};
use fedspan_protocol::secure::{Channel, HandshakeInit, Key, answer_nonce, encode_hello};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

/// Shape of the model of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Feature count `d`.
    pub features: u16,
    /// Representation width `k`.
    pub width: u16,
}

impl Default for Shape {
    fn default() -> Self {
        Self { features: 64, width: 4 }
    }
}

impl Shape {
    /// Returns the number of values of an update.
    #[must_use]
    pub fn elements(self) -> u32 {
        u32::from(self.features) * u32::from(self.width)
    }
}

/// Read buffer size in bytes.
const READ_BYTES: usize = 2048;

/// Returns the capabilities of a device with a model of this shape.
#[must_use]
pub fn capabilities(shape: Shape, frame_limit: u16) -> Capabilities {
    Capabilities {
        frame_limit,
        model: Model::linear(shape.features, shape.width, 1),
        tasks: 0b11,
        roles: Role::Representation.bit() | Role::Gradient.bit(),
        encodings: Encoding::F32.bit(),
        numeric: Numeric::F32,
        tensors: 1,
        tensor_elements: shape.elements(),
        total_elements: shape.elements(),
        privacy: Privacy::None,
    }
}

/// Identity of a device, and its frame limit.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Device id.
    pub device: u64,
    /// Device key.
    pub key: Key,
    /// Longest frame that the device accepts, in bytes.
    pub frame_limit: u16,
    /// Shape of the device's model.
    pub shape: Shape,
}

impl Identity {
    /// Returns the hello of the `handshake`th connection and its transcript. The nonce is predictable and the
    /// same in every run.
    ///
    /// # Errors
    /// Never, unless this code has a bug.
    pub fn hello(&self, handshake: u64) -> Result<(Vec<u8>, [u8; 32])> {
        let capabilities = capabilities(self.shape, self.frame_limit);
        let mut nonce = [0; 16];
        let seed = self.device.to_le_bytes().into_iter().chain(handshake.to_le_bytes());
        for (nonce_byte, byte) in nonce.iter_mut().zip(seed) {
            *nonce_byte = byte;
        }
        let greeting = HandshakeInit { epoch: self.key.epoch(), handshake, nonce };
        let mut bytes = vec![0; 256];
        let (sent, transcript) = encode_hello(Hello::new(self.device, capabilities), &greeting, &mut bytes)
            .map_err(Error::other)?;
        bytes.truncate(sent);
        Ok((bytes, transcript))
    }
}

/// Connects from the address `from`, or from any address.
///
/// # Errors
/// The operating system's error.
pub async fn connect(address: SocketAddr, from: Option<IpAddr>) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connected device.
#[derive(Debug)]
pub struct Device {
    identity: Identity,
    transcript: [u8; 32],
    stream: TcpStream,
    /// Secure channel; `None` until the server has answered the hello.
    channel: Option<Channel>,
    decoder: Decoder<Vec<u8>>,
    /// Bytes that were read, and how many of them have been consumed.
    input: (Vec<u8>, usize),
}

impl Device {
    /// Connects to the server and completes the handshake.
    ///
    /// # Errors
    /// A connection error, or an answer that is no welcome.
    pub async fn join(
        address: SocketAddr,
        from: Option<IpAddr>,
        identity: Identity,
        handshake: u64,
    ) -> Result<Self> {
        let mut stream = connect(address, from).await?;
        let (hello, transcript) = identity.hello(handshake)?;
        stream.write_all(&hello).await?;
        let decoder = Decoder::new(vec![0; usize::from(identity.frame_limit)]);
        let input = (Vec::with_capacity(READ_BYTES), 0);
        let mut device = Self { identity, transcript, stream, channel: None, decoder, input };
        match device.receive().await? {
            ToDevice::Welcome(_) => {}
            other => return Err(Error::other(format!("received {other:?}, expected a welcome"))),
        }
        let alive = device.seal(&ToServer::Alive, &[])?;
        device.stream.write_all(&alive).await?;
        Ok(device)
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::UnexpectedEof`] when the server closes the connection; other errors for frames
    /// that an honest server never sends.
    pub async fn receive(&mut self) -> Result<ToDevice> {
        loop {
            let (bytes, used) = &mut self.input;
            let mut unread = bytes.get(*used..).unwrap_or_default();
            let result = self.decoder.feed(&mut unread);
            *used = bytes.len() - unread.len();
            match result {
                FeedResult::NeedMore => {
                    bytes.clear();
                    *used = 0;
                    if self.stream.read_buf(bytes).await? == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                }
                FeedResult::Sealed(frame) => {
                    if self.channel.is_none() {
                        self.channel = answer_nonce(frame)
                            .map(|nonce| Channel::device(&self.identity.key, &self.transcript, &nonce));
                    }
                    let not_authentic = || Error::other("a sealed frame failed authentication");
                    let channel = self.channel.as_mut().ok_or_else(not_authentic)?;
                    let message = channel.open(frame).map_err(|_| not_authentic())?;
                    return decode(message).map(|(message, _)| message).map_err(Error::other);
                }
                FeedResult::Message(message) => {
                    return decode(message).map(|(message, _)| message).map_err(Error::other);
                }
                FeedResult::Dropped(reason) => {
                    return Err(Error::other(format!("received a broken frame: {reason:?}")));
                }
            }
        }
    }

    /// Answers a round; returns the time at which the last byte was written.
    ///
    /// # Errors
    /// The operating system's error.
    pub async fn answer(&mut self, id: RoundId) -> Result<Instant> {
        let frames = self.update(id)?;
        self.send(&frames).await
    }

    /// Writes frames of [`Self::update`]; returns the time at which the last byte was written.
    ///
    /// # Errors
    /// The operating system's error.
    pub async fn send(&mut self, frames: &[u8]) -> Result<Instant> {
        self.stream.write_all(frames).await?;
        Ok(Instant::now())
    }

    /// Returns the frames of an update: one, or several chunks if the frame limit is small. The values are
    /// the same in every round.
    ///
    /// # Errors
    /// Never, unless this code has a bug.
    pub fn update(&mut self, id: RoundId) -> Result<Vec<u8>> {
        let shape = self.identity.shape;
        let descriptor = TensorDescriptor::inline(Role::Gradient, Encoding::F32, shape.features, shape.width);
        let mut tensors: Descriptors = [descriptor].into_iter().collect();
        plan(&mut tensors, usize::from(self.identity.frame_limit)).map_err(Error::other)?;
        let elements = u64::from(shape.elements());
        let value = |index: u64| (index.wrapping_mul(31) ^ self.identity.device) % 17;
        #[allow(clippy::cast_precision_loss)]
        let bytes: Vec<u8> =
            (0..elements).flat_map(|index| ((value(index) as f32 - 8.0) * 1e-3).to_le_bytes()).collect();
        let chunked = tensors.first().cloned().filter(|tensor| tensor.chunk > 0);
        let head = ToServer::Update(Update { id, samples: 32, skipped: 0, tensors });
        let Some(tensor) = chunked else { return self.seal(&head, &bytes) };
        let mut frames = self.seal(&head, &[])?;
        for index in 0..tensor.chunks() {
            let range = tensor.chunk_range(index).unwrap_or_default();
            let offset = u32::try_from(range.start).map_err(Error::other)?;
            let body = bytes.get(4 * range.start..4 * range.end).unwrap_or_default();
            frames.extend(self.seal(&ToServer::Chunk(Chunk { id, tensor: 0, offset }), body)?);
        }
        Ok(frames)
    }

    fn seal(&mut self, message: &ToServer, body: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![0; wire_capacity(usize::from(self.identity.frame_limit))];
        let channel = self.channel.as_mut().ok_or_else(|| Error::other("not welcomed yet"))?;
        let sent = channel.seal(message, body.len(), |buffer| buffer.copy_from_slice(body), &mut out);
        out.truncate(sent.map_err(Error::other)?);
        Ok(out)
    }

    /// Drops the device and returns its connection.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}
