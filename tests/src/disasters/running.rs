//! A server that runs: its host, the conversations with its devices, and what is between them. As the real server's tasks do, it
//! carries bytes, messages and commands from one to the other, and decides nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fedspan_aggregator::connection::Connection;
use fedspan_aggregator::core::{
    Command, CoreError, DisconnectReason, Origin, PeerAction, PeerEvent, PeerEventKind, PeerSession,
    Receiver, ServerCore, Timeouts,
};
use fedspan_aggregator::journal::Committed;
use fedspan_engine::{DeviceId, Opening, Update};
use fedspan_protocol::message::Ack;

use super::Millis;
use super::tally::Tally;

/// The device at the other end, and which of its links this is.
pub type LinkKey = (usize, u64);

/// What the server wants to be done, in this order, and what is seen of it.
#[derive(Debug)]
pub enum Out {
    /// Bytes for a link.
    Bytes(LinkKey, Vec<u8>),
    /// A link that it closes.
    Closed(LinkKey),
    /// When something is due on a link.
    Due(LinkKey, Millis),
    /// The host has told a conversation something, which is heard after a while.
    Commands(LinkKey),
    /// A device is asked.
    Opened(Arc<Opening>),
    /// A device's update has come.
    Heard(DeviceId, Box<Update>),
    /// A device is told what became of its update.
    Told(DeviceId, Ack),
    /// A round is over.
    Committed(Committed),
}

/// What a crash ends.
#[derive(Debug)]
pub struct Running {
    pub host: ServerCore,
    pub tally: Tally,
    patience: Timeouts,
    peers: BTreeMap<LinkKey, Peer>,
    /// Conversations that ever began.
    begun: u64,
    /// The host's clock is that of the world, and this.
    ahead: i64,
    /// What waits for the host.
    inbox: VecDeque<PeerEvent>,
    /// Links are lines.
    is_line: bool,
}

/// A conversation, and what a task of the real server has besides.
#[derive(Debug)]
struct Peer {
    conversation: PeerSession,
    commands: Receiver<Command>,
    device: Option<DeviceId>,
    /// When it is looked at next.
    planned: Option<Millis>,
}

impl Peer {
    /// The host has told it something, or has let it go.
    fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.commands.is_closed()
    }
}

impl Running {
    /// A server that has just begun, with so many lines if links are lines.
    pub fn new(
        host: ServerCore,
        patience: Timeouts,
        now: Millis,
        lines: Option<usize>,
        out: &mut Vec<Out>,
    ) -> Self {
        let tally = Tally::new(&host);
        let ahead = -i64::try_from(now).unwrap_or(i64::MAX);
        let (peers, inbox) = (BTreeMap::new(), VecDeque::new());
        let is_line = lines.is_some();
        let mut running = Self { host, tally, patience, peers, begun: 0, ahead, inbox, is_line };
        for index in 0..lines.unwrap_or(0) {
            running.begin(now, (index, 0));
            running.attend(now, (index, 0), out);
        }
        running
    }

    /// What the host's clock says.
    fn own(&self, now: Millis) -> Millis {
        u64::try_from(i64::try_from(now).unwrap_or(i64::MAX) + self.ahead).unwrap_or(0)
    }

    /// When that is, which is not yet.
    fn world(&self, now: Millis, own: Millis) -> Millis {
        let at = i64::try_from(own).unwrap_or(i64::MAX).saturating_sub(self.ahead);
        u64::try_from(at).unwrap_or(0).max(now + 1)
    }

    /// Its clock jumps.
    pub fn jump(&mut self, now: Millis, by: Millis, out: &mut Vec<Out>) {
        self.ahead += i64::try_from(by).unwrap_or(0);
        let links: Vec<LinkKey> = self.peers.keys().copied().collect();
        links.into_iter().for_each(|link| self.elapse(now, link, out));
    }

    /// When the host wants to be woken.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        self.host.wake().map(|at| self.world(now, at))
    }

    /// Whether there is something that the host would listen to.
    pub fn has_mail(&self) -> bool {
        !self.inbox.is_empty() && !self.host.is_stalled()
    }

    /// The host's turn: what is due, and then what has come, which is made durable together.
    pub fn turn(&mut self, now: Millis, out: &mut Vec<Out>) -> Result<(), CoreError> {
        let own = self.own(now);
        if self.host.wake().is_some_and(|at| at <= own) {
            self.host.tick(own)?;
        }
        if self.has_mail() {
            while let Some(message) = self.inbox.pop_front() {
                self.tally.hears(&message);
                self.host.handle(own, message);
            }
            self.host.flush(own)?;
        }
        let told = self.peers.iter_mut().filter(|(_, peer)| peer.has_commands());
        out.extend(told.map(|(link, _)| Out::Commands(*link)));
        Ok(())
    }

    /// A conversation does what the host wants.
    pub fn obey(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        loop {
            let Some(peer) = self.peers.get_mut(&link).filter(|peer| !peer.conversation.awaits_hello())
            else {
                return;
            };
            match (peer.commands.try_recv(), peer.device) {
                (Some(command), Some(device)) => {
                    match &command {
                        Command::Open(opening) => out.push(Out::Opened(Arc::clone(opening))),
                        Command::Acknowledge(ack) => out.push(Out::Told(device, *ack)),
                        Command::CloseRound(_) => {}
                    }
                    peer.conversation.execute(command);
                }
                _ if peer.commands.is_closed() => peer.conversation.close(),
                _ => return,
            }
            self.attend(now, link, out);
        }
    }

    /// A link begins.
    pub fn connect(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        self.begin(now, link);
        self.attend(now, link, out);
    }

    fn begin(&mut self, now: Millis, link: LinkKey) {
        let (number, own, gate) = (self.begun, self.own(now), self.host.acceptor());
        self.begun += 1;
        let connection = if self.is_line { Connection::persistent(gate) } else { Connection::new(gate) };
        let from = Origin::Link("simulated".into());
        let (conversation, commands) = PeerSession::new(number, from, connection, self.patience, own);
        self.peers.insert(link, Peer { conversation, commands, device: None, planned: None });
    }

    /// Bytes have come. False if there is no such link.
    pub fn hear(&mut self, now: Millis, link: LinkKey, bytes: &[u8], out: &mut Vec<Out>) -> bool {
        let Some(peer) = self.peers.get_mut(&link) else { return false };
        peer.conversation.receive(bytes);
        self.attend(now, link, out);
        true
    }

    /// Something may be due on a link.
    pub fn elapse(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        let own = self.own(now);
        if let Some(peer) = self.peers.get_mut(&link) {
            peer.planned = None;
            peer.conversation.on_timer(own);
            self.attend(now, link, out);
        }
    }

    /// A link has ended.
    pub fn gone(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        self.end(now, link, DisconnectReason::Closed, out);
        self.attend(now, link, out);
    }

    /// Sees to everything on a link that can be seen to now.
    fn attend(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        let own = self.own(now);
        let mut frame = Vec::new();
        loop {
            let Some(peer) = self.peers.get_mut(&link) else { return };
            match peer.conversation.next(own, &mut frame) {
                PeerAction::Send => out.push(Out::Bytes(link, std::mem::take(&mut frame))),
                PeerAction::Admit => peer.conversation.admit(),
                PeerAction::Report(event) => {
                    match (&event.kind, peer.device) {
                        (PeerEventKind::Hello(device, ..), _) => peer.device = Some(*device),
                        (PeerEventKind::Update(update), Some(device)) => {
                            out.push(Out::Heard(device, update.clone()))
                        }
                        _ => {}
                    }
                    self.inbox.push_back(event);
                }
                PeerAction::Close(gone) => self.end(now, link, gone, out),
                PeerAction::Wait => break,
            }
        }
        self.plan(now, link, out);
    }

    /// Plans the next look at a link, if that is sooner than the one that is planned.
    fn plan(&mut self, now: Millis, link: LinkKey, out: &mut Vec<Out>) {
        let own = self.own(now);
        let Some(due) = self.peers.get_mut(&link).and_then(|peer| peer.conversation.due(own)) else { return };
        let at = self.world(now, due);
        if let Some(peer) = self.peers.get_mut(&link)
            && peer.planned.is_none_or(|planned| at < planned)
        {
            peer.planned = Some(at);
            out.push(Out::Due(link, at));
        }
    }

    /// A conversation is over; on a line the next one begins.
    fn end(&mut self, now: Millis, link: LinkKey, gone: DisconnectReason, out: &mut Vec<Out>) {
        let Some(mut peer) = self.peers.remove(&link) else { return };
        self.inbox.push_back(peer.conversation.gone(gone));
        if self.is_line {
            self.begin(now, link);
        } else {
            out.push(Out::Closed(link));
        }
    }
}
