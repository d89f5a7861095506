//! Messages between peer sessions and the server core.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, Decline, Privacy, Refusal, RoundId};

use super::command_queue::Sender;
use crate::connection::{DeviceReport, Traffic};
use crate::keys::AcceptedKey;
use fedspan_engine::{DeviceId, Millis, RoundBroadcast, Update};

/// Event of one peer session, sent to the server core.
#[derive(Debug)]
pub struct PeerEvent {
    /// Number of the peer session; never reused.
    pub peer: u64,
    /// Remote end of the peer session's connection.
    pub from: Origin,
    /// Key that the connection uses; `None` before the handshake and in plaintext.
    pub key: Option<Arc<AcceptedKey>>,
    /// Kind of the event, with its content.
    pub kind: PeerEventKind,
    /// Traffic counted since the previous event.
    pub traffic: Traffic,
}

/// Remote end of a connection, for the log.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Address of a socket's remote end.
    Address(SocketAddr),
    /// Name of a persistent link, such as a serial port.
    Link(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Link(name) => f.write_str(name),
        }
    }
}

/// Kind of a peer event, with its content.
#[derive(Debug)]
pub enum PeerEventKind {
    /// An admissible device has completed its handshake. Contains the sending end of the device's command
    /// queue.
    Hello(DeviceId, Privacy, Sender<Command>),
    /// The same device has said hello again on the same connection. Contains the time of its last message before.
    HelloAgain(Privacy, Millis),
    /// The device was refused.
    Refused(Refusal),
    /// The device is admissible, but was turned away because no connection slot is free.
    TurnedAway,
    /// A complete update.
    Update(Box<Update>),
    /// An update for a round that is not open on this connection; its tensors were not decoded.
    UnreadUpdate(RoundId),
    /// The device declines a round.
    Decline(Decline),
    /// The device reports about itself.
    Report(Box<DeviceReport>),
    /// Traffic counters without a message; sent after many protocol errors.
    TrafficOnly,
    /// The session has ended; this is its last event.
    Gone(DisconnectReason),
}

impl PeerEventKind {
    /// Returns true if the event must be discarded once its key is revoked.
    pub(super) fn needs_key(&self) -> bool {
        match self {
            Self::Hello(..)
            | Self::HelloAgain(..)
            | Self::Update(_)
            | Self::UnreadUpdate(_)
            | Self::Decline(_)
            | Self::Report(_) => true,
            Self::Refused(_) | Self::TurnedAway | Self::TrafficOnly | Self::Gone(_) => false,
        }
    }
}

/// Reason why a peer session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The remote end or the network closed the connection.
    Closed,
    /// No hello arrived in time.
    NoHello,
    /// The connection was evicted before its handshake to make room for a newer one.
    Evicted,
    /// The device was silent for longer than the idle timeout.
    Idle,
    /// Receiving or sending one frame took longer than the frame timeout.
    Slow,
    /// Too many protocol errors or repeated hellos.
    Flood,
    /// The device was refused, and the reason was sent to it.
    Refused,
    /// The device's key was revoked or replaced.
    Revoked,
    /// The device was turned away or replaced, or the server is stopping.
    Ended,
}

/// Command of the server core to a peer session.
#[derive(Debug)]
pub enum Command {
    /// Opens a round on the device.
    Open(Arc<RoundBroadcast>),
    /// Acknowledges an update.
    Acknowledge(Ack),
    /// Closes a round on the device.
    CloseRound(RoundId),
    /// Informs the device that no further round opens before this time has passed.
    NextRound(Millis),
}
