//! Replacement of the real server's tasks: carries bytes, messages and commands between the server core and
//! the peer sessions, and makes no decisions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fedspan_aggregator::connection::Connection;
use fedspan_aggregator::core::{
    Command, CoreError, DisconnectReason, Origin, PeerAction, PeerEvent, PeerEventKind, PeerSession,
    Receiver, ServerCore, Timeouts,
};
use fedspan_aggregator::journal::Committed;
use fedspan_engine::{DeviceId, Millis, RoundBroadcast, Update};
use fedspan_protocol::message::Ack;

use super::shadow_counters::ShadowCounters;

/// Index of a device, and number of its connection.
pub type LinkKey = (usize, u64);

/// Outputs and observations of the server, in order.
#[derive(Debug)]
pub enum ServerOutput {
    /// Bytes to send on a link.
    Bytes(LinkKey, Vec<u8>),
    /// A link that the server closes.
    Closed(LinkKey),
    /// World time at which the deadlines of a link must be checked.
    Due(LinkKey, Millis),
    /// A peer session has commands to handle, with a small delay.
    Commands(LinkKey),
    /// A round is sent to a device.
    Opened(Arc<RoundBroadcast>),
    /// An update has been received.
    UpdateReceived(DeviceId, Box<Update>),
    /// An update is answered.
    Acknowledged(DeviceId, Ack),
    /// A round is committed.
    Committed(Committed),
}

/// Volatile state of the server; a power cut loses all of it.
#[derive(Debug)]
pub struct ServerTasks {
    pub host: ServerCore,
    pub shadow: ShadowCounters,
    timeouts: Timeouts,
    peers: BTreeMap<LinkKey, Peer>,
    /// Number of peer sessions started so far.
    sessions: u64,
    /// Offset of the server's clock from the world's clock, in ms.
    clock_offset: i64,
    /// Messages for the server core.
    inbox: VecDeque<PeerEvent>,
    /// Whether links are serial lines.
    is_serial: bool,
}

/// A peer session with the state that the task of a session has in the real server.
#[derive(Debug)]
struct Peer {
    session: PeerSession,
    commands: Receiver<Command>,
    device: Option<DeviceId>,
    /// World time of the next scheduled deadline check.
    planned: Option<Millis>,
}

impl Peer {
    /// Returns true if the server core has sent commands, or has closed the queue.
    fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.commands.is_closed()
    }
}

impl ServerTasks {
    /// Creates a server that has just started. With serial lines it has a session for each of `lines`
    /// devices.
    pub fn new(
        host: ServerCore,
        timeouts: Timeouts,
        now: Millis,
        lines: Option<usize>,
        out: &mut Vec<ServerOutput>,
    ) -> Self {
        let shadow = ShadowCounters::new(&host);
        let clock_offset = -i64::try_from(now.as_u64()).unwrap_or(i64::MAX);
        let (peers, inbox) = (BTreeMap::new(), VecDeque::new());
        let is_serial = lines.is_some();
        let mut running = Self { host, shadow, timeouts, peers, sessions: 0, clock_offset, inbox, is_serial };
        for index in 0..lines.unwrap_or(0) {
            running.begin_session(now, (index, 0));
            running.perform_actions(now, (index, 0), out);
        }
        running
    }

    /// Converts world time to the server's time.
    fn server_time(&self, now: Millis) -> Millis {
        Millis::new(
            u64::try_from(i64::try_from(now.as_u64()).unwrap_or(i64::MAX) + self.clock_offset).unwrap_or(0),
        )
    }

    /// Converts a time of the server's clock to world time; the result is at least 1 ms after `now`.
    fn world_time(&self, now: Millis, server_time: Millis) -> Millis {
        let time = i64::try_from(server_time.as_u64()).unwrap_or(i64::MAX).saturating_sub(self.clock_offset);
        Millis::new(u64::try_from(time).unwrap_or(0)).max(now + Millis::new(1))
    }

    /// Moves the server's clock forward.
    pub fn jump_clock(&mut self, now: Millis, by: Millis, out: &mut Vec<ServerOutput>) {
        self.clock_offset += i64::try_from(by.as_u64()).unwrap_or(0);
        let links: Vec<LinkKey> = self.peers.keys().copied().collect();
        links.into_iter().for_each(|link| self.check_deadlines(now, link, out));
    }

    /// Returns the world time at which the server core must run next.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        self.host.wake().map(|time| self.world_time(now, time))
    }

    /// Returns true if the server core would accept a message at this time.
    pub fn has_messages(&self) -> bool {
        !self.inbox.is_empty() && !self.host.is_stalled()
    }

    /// Runs the server core: first its due timers, then all waiting messages, which one flush makes durable.
    pub fn run_core(&mut self, now: Millis, out: &mut Vec<ServerOutput>) -> Result<(), CoreError> {
        let server_time = self.server_time(now);
        if self.host.wake().is_some_and(|time| time <= server_time) {
            self.host.tick(server_time)?;
        }
        if self.has_messages() {
            while let Some(message) = self.inbox.pop_front() {
                self.shadow.count_message(&message);
                self.host.handle(server_time, message);
            }
            self.host.flush(server_time)?;
        }
        let with_commands = self.peers.iter_mut().filter(|(_, peer)| peer.has_commands());
        out.extend(with_commands.map(|(link, _)| ServerOutput::Commands(*link)));
        Ok(())
    }

    /// Handles the commands of a peer session.
    pub fn run_commands(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        loop {
            let Some(peer) = self.peers.get_mut(&link).filter(|peer| !peer.session.awaits_hello()) else {
                return;
            };
            match (peer.commands.try_recv(), peer.device) {
                (Some(command), Some(device)) => {
                    match &command {
                        Command::Open(opening) => out.push(ServerOutput::Opened(Arc::clone(opening))),
                        Command::Acknowledge(ack) => out.push(ServerOutput::Acknowledged(device, *ack)),
                        Command::CloseRound(_) | Command::NextRound(_) => {}
                    }
                    peer.session.execute(command);
                }
                _ if peer.commands.is_closed() => peer.session.close(),
                _ => return,
            }
            self.perform_actions(now, link, out);
        }
    }

    /// Starts a peer session for a new link.
    pub fn connect(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        self.begin_session(now, link);
        self.perform_actions(now, link, out);
    }

    fn begin_session(&mut self, now: Millis, link: LinkKey) {
        let number = self.sessions;
        let server_time = self.server_time(now);
        let acceptor = self.host.acceptor();
        self.sessions += 1;
        let connection =
            if self.is_serial { Connection::persistent(acceptor) } else { Connection::new(acceptor) };
        let from = Origin::Link("simulated".into());
        let (session, commands) = PeerSession::new(number, from, connection, self.timeouts, server_time);
        self.peers.insert(link, Peer { session, commands, device: None, planned: None });
    }

    /// Delivers bytes to a link. Returns false if there is no such link.
    pub fn receive(&mut self, now: Millis, link: LinkKey, bytes: &[u8], out: &mut Vec<ServerOutput>) -> bool {
        let Some(peer) = self.peers.get_mut(&link) else { return false };
        peer.session.receive(bytes);
        self.perform_actions(now, link, out);
        true
    }

    /// Checks the deadlines of a link.
    pub fn check_deadlines(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        let server_time = self.server_time(now);
        if let Some(peer) = self.peers.get_mut(&link) {
            peer.planned = None;
            peer.session.on_timer(server_time);
            self.perform_actions(now, link, out);
        }
    }

    /// Ends the peer session of a closed link.
    pub fn link_closed(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        self.end_session(now, link, DisconnectReason::Closed, out);
        self.perform_actions(now, link, out);
    }

    /// Performs all pending actions of a peer session.
    fn perform_actions(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        let server_time = self.server_time(now);
        let mut frame = Vec::new();
        loop {
            let Some(peer) = self.peers.get_mut(&link) else { return };
            match peer.session.next(server_time, &mut frame) {
                PeerAction::Send => out.push(ServerOutput::Bytes(link, std::mem::take(&mut frame))),
                PeerAction::Admit => peer.session.admit(),
                // No beacons are sent in these histories.
                PeerAction::Beacon(_) => {}
                PeerAction::Report(event) => {
                    match (&event.kind, peer.device) {
                        (PeerEventKind::Hello(device, ..), _) => peer.device = Some(*device),
                        (PeerEventKind::Update(update), Some(device)) => {
                            out.push(ServerOutput::UpdateReceived(device, update.clone()))
                        }
                        _ => {}
                    }
                    self.inbox.push_back(event);
                }
                PeerAction::Close(reason) => self.end_session(now, link, reason, out),
                PeerAction::Wait => break,
            }
        }
        self.schedule_check(now, link, out);
    }

    /// Schedules the next deadline check of a link, unless an earlier one is scheduled.
    fn schedule_check(&mut self, now: Millis, link: LinkKey, out: &mut Vec<ServerOutput>) {
        let server_time = self.server_time(now);
        let Some(due) = self.peers.get_mut(&link).and_then(|peer| peer.session.due(server_time)) else {
            return;
        };
        let check_at = self.world_time(now, due);
        if let Some(peer) = self.peers.get_mut(&link)
            && peer.planned.is_none_or(|planned| check_at < planned)
        {
            peer.planned = Some(check_at);
            out.push(ServerOutput::Due(link, check_at));
        }
    }

    /// Ends a peer session. On a serial line the next session starts at once.
    fn end_session(
        &mut self,
        now: Millis,
        link: LinkKey,
        reason: DisconnectReason,
        out: &mut Vec<ServerOutput>,
    ) {
        let Some(mut peer) = self.peers.remove(&link) else { return };
        self.inbox.push_back(peer.session.gone(reason));
        if self.is_serial {
            self.begin_session(now, link);
        } else {
            out.push(ServerOutput::Closed(link));
        }
    }
}
