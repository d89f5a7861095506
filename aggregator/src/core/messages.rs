//! What conversations and the host say to each other.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, Decline, Privacy, Refusal, RoundId};

use super::command_queue::Sender;
use crate::connection::Traffic;
use crate::keys::AcceptedKey;
use fedspan_engine::{DeviceId, Opening, Update};

/// From a conversation to the host.
#[derive(Debug)]
pub struct PeerEvent {
    /// Which conversation: another number for each that ever begins.
    pub peer: u64,
    /// Where its device is.
    pub from: Origin,
    /// The key under which it came; `None` before there is one, and in plaintext.
    pub key: Option<Arc<AcceptedKey>>,
    /// What there is to report.
    pub kind: PeerEventKind,
    /// What has passed since the last message.
    pub traffic: Traffic,
}

/// Where a peer is, for the log.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A socket's other end.
    Address(SocketAddr),
    /// A line, by its name.
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

/// What a conversation reports.
#[derive(Debug)]
pub enum PeerEventKind {
    /// A device that may take part, and where it is told what to do.
    Hello(DeviceId, Privacy, Sender<Command>),
    /// The same device again, on the same connection.
    HelloAgain(Privacy),
    /// It may not take part.
    Refused(Refusal),
    /// It may take part, and there is no place for it.
    TurnedAway,
    /// A whole update.
    Update(Box<Update>),
    /// An update for a round that is not open there.
    UnreadUpdate(RoundId),
    /// It will not answer a round.
    Decline(Decline),
    /// Nothing but noise.
    TrafficOnly,
    /// The conversation is over; nothing comes after this.
    Gone(DisconnectReason),
}

impl PeerEventKind {
    /// It counts only as long as the key counts under which it came.
    pub(super) fn needs_key(&self) -> bool {
        match self {
            Self::Hello(..)
            | Self::HelloAgain(_)
            | Self::Update(_)
            | Self::UnreadUpdate(_)
            | Self::Decline(_) => true,
            Self::Refused(_) | Self::TurnedAway | Self::TrafficOnly | Self::Gone(_) => false,
        }
    }
}

/// Why a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The peer closed it, or the network did.
    Closed,
    /// No hello in time.
    NoHello,
    /// It had proved nothing yet, and made room for another.
    Evicted,
    /// Silent for too long.
    Idle,
    /// A frame took too long, coming or going.
    Slow,
    /// Too many messages without sense, or frames without end.
    Flood,
    /// It may not take part, and was told so.
    Refused,
    /// Its key has been revoked or replaced.
    Revoked,
    /// It was turned away or replaced, or the server stops.
    Ended,
}

/// From the host to a conversation.
#[derive(Debug)]
pub enum Command {
    /// The device is asked.
    Open(Arc<Opening>),
    /// It is told what became of its update.
    Acknowledge(Ack),
    /// It is told that a round is over.
    CloseRound(RoundId),
}
