//! Link over packets of a radio, or of UDP.

use core::future::Future;

use fedspan_protocol::datagram::{PacketCounters, PacketReader, PacketWriter};

use super::NonBlockingLink;

/// Sender and receiver of packets that arrive whole or not at all. Its operations never block.
pub trait Packets {
    /// Error that ends the link.
    type Error;

    /// Sends a packet. Returns false if none can be sent yet; the link then offers it again.
    ///
    /// # Errors
    /// The link is lost.
    fn send(&mut self, packet: &[u8]) -> Result<bool, Self::Error>;

    /// Receives the next packet, and returns its length, at most that of `packet`; `None` if none has arrived. A packet that is longer than
    /// `packet` is dropped.
    ///
    /// # Errors
    /// The link is lost.
    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Self::Error>;
}

/// Sender and receiver of packets for asynchronous drivers.
pub trait AsyncPackets {
    /// Error that ends the link.
    type Error: embedded_io::Error;

    /// Sends a packet. If the future is dropped, the packet may have been sent; it is then sent again, which the receiver recognises.
    ///
    /// # Errors
    /// The link is lost.
    fn send(&mut self, packet: &[u8]) -> impl Future<Output = Result<(), Self::Error>>;

    /// Waits for the next packet, and returns its length, at most that of `packet`. A longer packet is dropped. Must be cancel-safe: a
    /// packet that was not returned must be returned by the next call.
    ///
    /// # Errors
    /// The link is lost.
    fn receive(&mut self, packet: &mut [u8]) -> impl Future<Output = Result<usize, Self::Error>>;
}

/// Link of a [`Driver`](super::Driver) over [`Packets`], or over [`AsyncPackets`]. Frames without COBS are packets, or fragments if they are longer
/// ([`fedspan_protocol::datagram`]). Lost packets are repaired by the session. A frame longer than
/// [`FRAME_MAX`](fedspan_protocol::datagram::FRAME_MAX) ends the link: the frame limit of the device must not exceed it.
#[derive(Debug)]
pub struct DatagramLink<'a, P> {
    packets: P,
    writer: PacketWriter,
    reader: PacketReader<&'a mut [u8]>,
    /// Buffer for one packet in either direction.
    packet: &'a mut [u8],
}

impl<'a, P> DatagramLink<'a, P> {
    /// Creates a link. `packet` is as long as the longest packet, at least [`PACKET_MIN`](fedspan_protocol::datagram::PACKET_MIN) bytes,
    /// and `receive` as the frame limit of the session.
    #[must_use]
    pub fn new(packets: P, packet: &'a mut [u8], receive: &'a mut [u8]) -> Self {
        Self { packets, writer: PacketWriter::new(packet.len()), reader: PacketReader::new(receive), packet }
    }

    /// Forgets unfinished frames. To be called when the link begins again.
    pub fn reset(&mut self) {
        self.writer.reset();
        self.reader.reset();
    }

    /// Returns the counters of received packets.
    #[must_use]
    pub fn counters(&self) -> PacketCounters {
        self.reader.counters()
    }

    /// Returns the sender and receiver of packets.
    pub fn packets_mut(&mut self) -> &mut P {
        &mut self.packets
    }
}

impl<P: Packets> NonBlockingLink for DatagramLink<'_, P> {
    type Error = P::Error;

    fn read(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, P::Error> {
        while !self.reader.has_frame() {
            let Some(length) = self.packets.receive(self.packet)? else { return Ok(None) };
            self.reader.receive(self.packet.get(..length).unwrap_or_default());
        }
        Ok(Some(self.reader.read(bytes)))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, P::Error> {
        let (mut writer, mut rest) = (self.writer, bytes);
        let Some(length) = writer.write(&mut rest, self.packet) else { return Ok(Some(0)) };
        if !self.packets.send(self.packet.get(..length).unwrap_or_default())? {
            return Ok(None);
        }
        self.writer = writer;
        Ok(Some(bytes.len() - rest.len()))
    }
}

impl<P: AsyncPackets> embedded_io::ErrorType for DatagramLink<'_, P> {
    type Error = P::Error;
}

impl<P: AsyncPackets> embedded_io_async::Read for DatagramLink<'_, P> {
    async fn read(&mut self, bytes: &mut [u8]) -> Result<usize, P::Error> {
        while !self.reader.has_frame() {
            let length = self.packets.receive(self.packet).await?;
            self.reader.receive(self.packet.get(..length).unwrap_or_default());
        }
        Ok(self.reader.read(bytes))
    }
}

impl<P: AsyncPackets> embedded_io_async::Write for DatagramLink<'_, P> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, P::Error> {
        let (mut writer, mut rest) = (self.writer, bytes);
        let Some(length) = writer.write(&mut rest, self.packet) else { return Ok(0) };
        self.packets.send(self.packet.get(..length).unwrap_or_default()).await?;
        self.writer = writer;
        Ok(bytes.len() - rest.len())
    }

    async fn flush(&mut self) -> Result<(), P::Error> {
        Ok(())
    }
}
