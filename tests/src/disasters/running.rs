//! A server that runs: its coordinator, and the conversations of its devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_aggregator::config::Limits;
use fedspan_aggregator::connection::{Connection, Gate, Inbound};
use fedspan_aggregator::coordinator::Coordinator;
use fedspan_aggregator::engine::{Action, DeviceId, Event, Failure, Opening, RoundRecord, Update};
use fedspan_protocol::message::{Ack, Privacy, ToDevice};

use super::Millis;

/// The device at the other end, and which of its links this is.
pub type LinkKey = (usize, u64);

/// Silence within an update in chunks after which the missing ones are asked for.
const ASK_AGAIN: Millis = 1_000;

/// What the server wants to be done, in this order.
#[derive(Debug)]
pub enum Out {
    /// Bytes for a link.
    Bytes(LinkKey, Vec<u8>),
    /// A link that it closes.
    Closed(LinkKey),
    /// A device is asked.
    Opened(Arc<Opening>),
    /// A device's update has come.
    Heard(DeviceId, Box<Update>),
    /// A device is told what became of its update.
    Told(DeviceId, Ack),
    /// A round is over.
    Committed(Box<RoundRecord>),
    /// The campaign has failed.
    Failed(Failure),
}

/// What a crash ends.
pub struct Running {
    pub coordinator: Coordinator,
    pub gate: Arc<Gate>,
    pub peers: BTreeMap<LinkKey, Peer>,
    /// The newest link of each device.
    pub current: BTreeMap<DeviceId, LinkKey>,
    /// The campaign's clock is that of the world, and this.
    pub ahead: i64,
    /// What has come while nothing could be written.
    pub inbox: Vec<(LinkKey, Vec<u8>)>,
    pub is_stalled: bool,
    /// Links are lines.
    pub is_line: bool,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

#[derive(Debug)]
pub struct Peer {
    connection: Connection,
    device: Option<DeviceId>,
    began: Millis,
    heard: Millis,
    accepted: u32,
    chunks: u32,
    /// Since when a frame, or an update in chunks, has been unfinished, and when its chunks were last asked for.
    unfinished: Option<Millis>,
    asked: Option<Millis>,
    unanswered: Option<(Millis, u64)>,
}

impl Peer {
    /// One that has said nothing.
    pub fn new(connection: Connection, now: Millis) -> Self {
        Self {
            connection,
            device: None,
            began: now,
            heard: now,
            accepted: 0,
            chunks: 0,
            unfinished: None,
            asked: None,
            unanswered: None,
        }
    }
}

impl Running {
    /// Looks at what time has brought: the engine's deadlines, and links that are silent.
    pub fn check(&mut self, now: Millis, limits: &Limits, out: &mut Vec<Out>) {
        let own = self.own(now);
        if self.coordinator.engine().wake().is_some_and(|wake| wake <= own) {
            self.coordinator.handle(own, Event::Tick);
        }
        let milliseconds =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (hello, idle) = (milliseconds(limits.hello), milliseconds(limits.idle));
        let (frame, repeat) = (milliseconds(limits.frame), milliseconds(limits.repeat));
        let mut ended = Vec::new();
        let is_line = self.is_line;
        for (link, peer) in &mut self.peers {
            let silent = match peer.device {
                None if is_line => false,
                None => now >= peer.began + hello,
                Some(_) => now >= peer.heard + idle,
            };
            let slow = peer.unfinished.is_some_and(|since| now >= since + frame);
            if peer.connection.is_revoked() || silent || slow {
                ended.push(*link);
                continue;
            }
            let asked = peer.connection.unanswered();
            let since = peer.unanswered.filter(|(_, before)| asked == Some(*before));
            peer.unanswered = asked.map(|asked| since.unwrap_or((now, asked)));
            if since.is_some_and(|(since, _)| now >= since + repeat) {
                peer.unanswered = None;
                peer.connection.open_again();
            }
            if let Some(since) = peer.unfinished.filter(|_| peer.connection.is_mid_update())
                && now >= peer.asked.unwrap_or(since) + ASK_AGAIN
            {
                peer.asked = Some(now);
                peer.connection.ask_missing();
            }
        }
        for link in ended {
            self.end(now, link, out);
        }
        self.flush(out);
    }

    pub fn own(&self, now: Millis) -> Millis {
        u64::try_from(i64::try_from(now).unwrap_or(i64::MAX) + self.ahead).unwrap_or(0)
    }

    pub fn listen(&mut self, now: Millis, link: LinkKey, bytes: &[u8], out: &mut Vec<Out>) {
        let mut said = Vec::new();
        let Some(peer) = self.peers.get_mut(&link) else { return };
        peer.connection.receive(bytes, &mut said);
        let accepted = peer.connection.traffic().frames.accepted;
        let progress = std::mem::replace(&mut peer.accepted, accepted) != accepted;
        if progress {
            peer.heard = now;
        }
        let mid_update = peer.connection.is_mid_update();
        let most = if mid_update { peer.chunks } else { 0 };
        peer.chunks = most.max(peer.connection.chunks());
        if !peer.connection.is_mid_message() {
            peer.unfinished = None;
        } else if peer.unfinished.is_none() || if mid_update { peer.chunks > most } else { progress } {
            peer.unfinished = Some(now);
            peer.asked = None;
        }
        for inbound in said {
            self.judge(now, link, inbound, out);
        }
        self.flush(out);
    }

    fn judge(&mut self, now: Millis, link: LinkKey, inbound: Inbound, out: &mut Vec<Out>) {
        let own = self.own(now);
        let Some(peer) = self.peers.get_mut(&link) else { return };
        if peer.connection.key().is_some_and(|key| !key.is_accepted()) {
            return self.end(now, link, out);
        }
        let known = peer.device;
        let event = match (inbound, known) {
            (Inbound::Hello(hello), None) => {
                peer.device = Some(hello.device);
                let old = self.current.insert(hello.device, link).filter(|old| *old != link);
                if let Some(old) = old {
                    // The device is back before its old link was missed.
                    self.peers.remove(&old);
                    out.push(Out::Closed(old));
                }
                return self.join(own, hello.device, hello.capabilities.privacy);
            }
            (Inbound::Hello(hello), Some(device)) if self.current.get(&device) == Some(&link) => {
                return self.join(own, device, hello.capabilities.privacy);
            }
            (Inbound::Update(update), Some(device)) => {
                out.push(Out::Heard(device, Box::new(update.clone())));
                Event::Update(device, update)
            }
            (Inbound::Unread(id), Some(device)) => Event::Unread(device, id),
            (Inbound::Decline(decline), Some(device)) => Event::Declined(device, decline),
            (Inbound::Revoked | Inbound::Refused(_) | Inbound::Stranger, _) => {
                self.send(link, out);
                return self.end(now, link, out);
            }
            _ => return,
        };
        if known.and_then(|device| self.current.get(&device)) == Some(&link) {
            self.coordinator.handle(own, event);
        }
    }

    fn join(&mut self, own: Millis, device: DeviceId, privacy: Privacy) {
        self.coordinator.heard_privacy(device, privacy);
        self.coordinator.handle(own, Event::Joined(device));
    }

    /// A conversation is over; on a line the next one begins.
    pub fn end(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        let Some(peer) = self.peers.remove(&link) else { return };
        if self.is_line {
            let connection = Connection::lasting(Arc::clone(&self.gate));
            self.peers.insert(link, Peer::new(connection, now));
        } else {
            out.push(Out::Closed(link));
        }
        if let Some(device) = peer.device
            && self.current.get(&device) == Some(&link)
        {
            self.current.remove(&device);
            let own = self.own(now);
            self.coordinator.handle(own, Event::Left(device));
        }
    }

    pub fn act(&mut self, action: Action, out: &mut Vec<Out>) {
        let peer = |running: &Self, device| running.current.get(&device).copied();
        match action {
            Action::Open(device, opening) => {
                if let Some(peer) = peer(self, device).and_then(|link| self.peers.get_mut(&link)) {
                    peer.connection.open(&opening);
                    peer.unanswered = None;
                    out.push(Out::Opened(opening));
                }
            }
            Action::Acknowledge(device, ack) => {
                if let Some(peer) = peer(self, device).and_then(|link| self.peers.get_mut(&link)) {
                    peer.connection.send(ToDevice::Ack(ack));
                    out.push(Out::Told(device, ack));
                }
            }
            Action::Close(device, id) => {
                if let Some(peer) = peer(self, device).and_then(|link| self.peers.get_mut(&link)) {
                    peer.connection.close_round(id);
                }
            }
            Action::Commit(record) => out.push(Out::Committed(record)),
            Action::Failed(failure) => out.push(Out::Failed(failure)),
            Action::Finished => {}
        }
    }

    pub fn flush(&mut self, out: &mut Vec<Out>) {
        let links: Vec<LinkKey> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.connection.pending() > 0)
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            self.send(link, out);
        }
    }

    fn send(&mut self, link: LinkKey, out: &mut Vec<Out>) {
        let Some(peer) = self.peers.get_mut(&link) else { return };
        let mut frame = Vec::new();
        while peer.connection.next_frame(&mut frame) {
            out.push(Out::Bytes(link, std::mem::take(&mut frame)));
        }
    }
}
