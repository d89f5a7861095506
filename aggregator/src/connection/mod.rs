//! Server half of the protocol for one device, without a socket (sans-IO). A connection turns received bytes
//! into messages, and commands into frames to send. The server and the simulator use the same code.

mod acceptor;
mod beacon;
mod partial_update;
mod receive;
mod secure_layer;
mod send;
mod traffic;

use std::collections::VecDeque;
use std::sync::Arc;

use fedspan_protocol::datagram::FRAME_MAX;
use fedspan_protocol::frame::Decoder;
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, HELLO_FRAME_MAX};
use fedspan_protocol::message::{
    Decline, Fault, Hello, Refusal, Report, ReportCounters, RoundId, ToDevice, ToServer,
};

use self::partial_update::PartialUpdate;
use self::secure_layer::{SECURE_LAYER_MEMORY_MAX, SecureLayer};
use self::send::{Outgoing, SentRound};
use crate::keys::AcceptedKey;
use fedspan_engine::{RoundBroadcast, Update};

pub use acceptor::Acceptor;
pub use beacon::{beacon, beacon_warning};
pub use traffic::Traffic;

/// Report of a device with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Firmware, reset and uptime.
    pub report: Report,
    /// Counters of the device.
    pub counters: ReportCounters,
}

impl DeviceReport {
    /// Reads a message and its body; `None` if they are no report, or a malformed one.
    fn read(message: &ToServer, body: &[u8]) -> Option<Self> {
        let ToServer::Report(report) = *message else { return None };
        Some(Self { report, counters: ReportCounters::read(body).ok()? })
    }
}

/// Message of a device, decrypted and validated.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// Hello of an admissible device, which has been welcomed and, under encryption, has proved its key. A
    /// repeated hello means that the device has restarted or that its welcome was lost; the connection then
    /// drops unsent messages and the open round.
    Hello(Hello),
    /// Hello of a second device on the connection of another device; answered with a fault and dropped.
    OtherDevice,
    /// Hello of a device that is refused. The reason is queued for sending, and all further input is ignored.
    Refused(Refusal),
    /// The device's key was revoked or replaced; nothing more is read or sent.
    Revoked,
    /// A complete update.
    Update(Update),
    /// An update for a round that is not open on this connection; its tensors were not decoded.
    UnreadUpdate(RoundId),
    /// The device declines a round.
    Decline(Decline),
    /// Report of the device about itself.
    Report(Box<DeviceReport>),
    /// Keep-alive.
    Alive,
    /// Message that the protocol does not allow at this point; answered with a fault and dropped.
    Fault(Fault),
}

/// Length of the outbox from which on further replies to the device are dropped.
pub const OUTBOX_MAX: usize = 6;

/// Largest length of the outbox: replies, and a round that the core opens at the same time.
const OUTBOX_CAPACITY: usize = OUTBOX_MAX + 2;

/// Number of slots that stay allocated while the outbox is empty.
const OUTBOX_IDLE_CAPACITY: usize = 4;

/// Server half of the protocol for one device.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder<Vec<u8>>,
    secure: SecureLayer,
    limit: usize,
    /// Whether the link outlasts this connection.
    persistent: bool,
    /// Whether the connection requests a hello when the device begins with another message, because the device
    /// cannot know that an earlier connection has ended.
    requests_hello: bool,
    /// Whether a hello was accepted.
    greeted: bool,
    /// Device that has said hello.
    device: Option<u64>,
    /// Whether the device can choose the ridge of its final head.
    chooses_ridge: bool,
    /// Whether the device receives beacons.
    receives_beacons: bool,
    /// True if the device stores keys that the server sends.
    receives_keys: bool,
    /// Round that was announced and whose beacon is to be sent.
    beacon: Option<Arc<RoundBroadcast>>,
    outbox: VecDeque<Outgoing>,
    /// Round that is open on this device, and the chunking of its tensors.
    open: Option<SentRound>,
    /// Whether the open round is still unanswered.
    unanswered: bool,
    /// Number of requests for chunks of open rounds.
    chunk_requests: u64,
    incoming: Option<PartialUpdate>,
    /// Tensors and descriptors of a processed update, whose memory the next one uses. In a box, since only simulations have it.
    spare: Option<Box<receive::SpareUpdate>>,
    /// Round of the update that was last completed, declined, closed or replaced; its chunks may still
    /// arrive.
    last_update: Option<RoundId>,
    /// Report by which the device has proved its key, until it is returned.
    report: Option<Box<DeviceReport>>,
    traffic: Traffic,
}

impl Connection {
    /// Creates a connection for a new link. Until the hello, only short frames are accepted.
    #[must_use]
    pub fn new(acceptor: Arc<Acceptor>) -> Self {
        Self::with_persistence(acceptor, false)
    }

    fn with_persistence(acceptor: Arc<Acceptor>, persistent: bool) -> Self {
        Self {
            decoder: Decoder::new(vec![0; HELLO_FRAME_MAX]),
            secure: SecureLayer::new(acceptor, persistent),
            limit: HELLO_FRAME_MAX,
            persistent,
            requests_hello: persistent,
            greeted: false,
            device: None,
            chooses_ridge: false,
            receives_beacons: false,
            receives_keys: false,
            beacon: None,
            outbox: VecDeque::new(),
            open: None,
            unanswered: false,
            chunk_requests: 0,
            incoming: None,
            spare: None,
            last_update: None,
            report: None,
            traffic: Traffic::default(),
        }
    }

    /// Creates a connection on a link that outlasts it, such as a serial port. The connection begins with a
    /// request for a hello.
    #[must_use]
    pub fn persistent(acceptor: Arc<Acceptor>) -> Self {
        let mut connection = Self::with_persistence(acceptor, true);
        connection.send(ToDevice::Fault(Fault::Greet));
        connection
    }

    /// Creates a connection to an address from which packets arrive. As on a persistent link, the device does not learn when a
    /// connection ends. A device with a longer frame limit than [`FRAME_MAX`] is refused. Otherwise it is like [`Self::new`].
    #[must_use]
    pub fn datagrams(acceptor: Arc<Acceptor>) -> Self {
        let connection = Self::new(acceptor);
        Self { requests_hello: true, secure: connection.secure.with_longest_frame(FRAME_MAX), ..connection }
    }

    /// Returns true if others than the device can write into the link: noise on a persistent link, or senders of packets that forge
    /// the address. Its errors are then not the device's.
    #[must_use]
    pub fn is_open_to_strangers(&self) -> bool {
        self.requests_hello
    }

    /// Returns true if the link outlasts the connection.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Returns the traffic counters.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let seals = self.secure.seals();
        let mut frames = self.decoder.counters();
        if self.secure.is_encrypted() {
            frames.accepted = seals.opened;
        }
        let (replayed, forged, unsealed) = (seals.replayed, seals.forged, seals.unsealed);
        Traffic { frames, replayed, forged, unsealed, ..self.traffic }
    }

    /// Returns the memory of the connection in bytes, excluding an incoming update and the open round, which
    /// all connections share.
    #[must_use]
    pub fn memory(&self) -> usize {
        let outbox = self.outbox.capacity() * size_of::<Outgoing>();
        let encoded_replies: usize = self.outbox.iter().map(Outgoing::memory).sum();
        // Instead of a handshake, which the report has ended.
        let report = if self.report.is_some() { size_of::<DeviceReport>() } else { 0 };
        size_of::<Self>() + self.frame_capacity() + outbox + encoded_replies + self.secure.memory() + report
    }

    /// Returns an upper bound of [`Self::memory`] over all inputs. The bound holds if the caller sends the
    /// core's commands before it queues further ones.
    #[must_use]
    pub fn memory_max(&self) -> usize {
        let outbox = OUTBOX_CAPACITY * size_of::<Outgoing>();
        let handshake_answer = SECURE_LAYER_MEMORY_MAX;
        size_of::<Self>()
            + self.secure.acceptor().longest_frame(FRAME_LIMIT_MAX)
            + outbox
            + 2 * handshake_answer
    }

    /// Returns the number of messages that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Returns the memory of the decoded part of the incoming update in bytes.
    #[must_use]
    pub fn update_memory(&self) -> usize {
        self.incoming.as_ref().map_or(0, PartialUpdate::memory)
    }

    /// Returns the length of the longest frame that is accepted.
    fn frame_capacity(&self) -> usize {
        if self.greeted { self.secure.acceptor().longest_frame(self.limit) } else { HELLO_FRAME_MAX }
    }

    /// Resets the byte counters. Used after the hello and the welcome, which belong to no round.
    pub fn reset_traffic(&mut self) {
        self.traffic = Traffic { up: 0, down: 0, ..self.traffic };
    }

    /// Returns true if the device's key was revoked or replaced: nothing more is read or sent.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.secure.is_revoked()
    }

    /// Returns the device key of the last message; `None` before the handshake and in plaintext.
    #[must_use]
    pub fn key(&self) -> Option<Arc<AcceptedKey>> {
        self.secure.key()
    }

    /// Returns true while a frame or a chunked update is incomplete.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.decoder.is_mid_frame() || self.is_mid_update()
    }

    /// Returns true while a chunked update is incomplete.
    #[must_use]
    pub fn is_mid_update(&self) -> bool {
        self.incoming.is_some()
    }

    /// Returns the number of distinct chunks received of the incomplete update.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.incoming.as_ref().map_or(0, |update| update.chunks)
    }

    /// Returns the number of messages waiting to be sent.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }
}
