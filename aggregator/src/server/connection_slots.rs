//! Limits on connections: a pool of slots for devices, and a pool for connections before their handshake.
//!
//! A connection begins in the pool of pending connections. It moves to the pool of devices when the device
//! has proved its key (in plaintext, when the hello is accepted). A flood of unauthenticated connections,
//! from any number of addresses, therefore neither uses slots of devices nor ends connections of devices. New
//! devices can connect during a flood, because [`PendingPool`] always admits the newest connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::pending_pool::PendingPool;
use super::per_address::{PerAddressCount, network};
use crate::config::Limits;

/// Largest number of connections without a slot that wait for the peer to read the last message. Further such
/// connections are closed at once.
const LINGERING_MAX: usize = 64;

/// Largest number of evicted connections that are still closing. At the limit, new connections are closed
/// immediately after they are accepted, so that a flood cannot exhaust tasks and file descriptors.
const LEAVING_MAX: usize = 256;

/// Numbers of connections of each kind.
#[derive(Debug)]
struct State {
    devices: PerAddressCount,
    /// Pool of connections before their handshake. Dropping the sender of a connection evicts the connection.
    pending: PendingPool<oneshot::Sender<()>>,
    leaving: usize,
    lingering: usize,
}

/// Limits and state, shared by all slots of a server.
#[derive(Debug)]
struct Shared {
    connections: usize,
    per_address: usize,
    state: Mutex<State>,
}

impl Shared {
    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slots of all connections of a server.
#[derive(Clone, Debug)]
pub(super) struct ConnectionSlots(Arc<Shared>);

/// Kind of slot that a connection holds.
#[derive(Debug)]
enum Kind {
    /// Slot in the pending pool, with the eviction signal.
    Unauthenticated(oneshot::Receiver<()>),
    /// Slot of a device.
    Authenticated,
    /// No slot: the connection waits for its peer to read the last message.
    Lingering,
}

/// Slot of one connection, freed on drop.
#[derive(Debug)]
pub(super) struct Slot {
    shared: Arc<Shared>,
    address: IpAddr,
    number: u64,
    kind: Kind,
}

/// Reason why a device gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotError {
    /// All device slots, or all device slots for the address of the connection, are taken.
    Full,
    /// The connection has been evicted.
    Evicted,
}

impl ConnectionSlots {
    /// Creates the slots of a server with these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        let pending = PendingPool::new(limits.unauthenticated);
        let state = State { devices: PerAddressCount::default(), pending, leaving: 0, lingering: 0 };
        let (connections, per_address) = (limits.connections, limits.per_address);
        Self(Arc::new(Shared { connections, per_address, state: Mutex::new(state) }))
    }

    /// Returns a slot for a new connection; `None` if too many evicted connections are still closing.
    pub(super) fn enter(&self, from: SocketAddr) -> Option<Slot> {
        let address = network(from.ip());
        let mut state = self.0.state();
        if state.pending.is_full() && state.leaving >= LEAVING_MAX {
            return None;
        }
        let (evict, evicted_signal) = oneshot::channel();
        let (number, evicted) = state.pending.insert(address, evict);
        state.leaving += usize::from(evicted.is_some());
        drop(state);
        Some(Slot {
            shared: Arc::clone(&self.0),
            address,
            number,
            kind: Kind::Unauthenticated(evicted_signal),
        })
    }
}

impl Slot {
    /// Completes when the connection is evicted. Never completes for a device.
    pub(super) async fn evicted(&mut self) {
        match &mut self.kind {
            Kind::Unauthenticated(evicted_signal) => drop(evicted_signal.await),
            Kind::Authenticated | Kind::Lingering => std::future::pending().await,
        }
    }

    /// Moves the connection to a device's slot, which cannot be evicted.
    ///
    /// # Errors
    /// [`SlotError`] if no slot is free or the connection has been evicted. The connection keeps its current
    /// slot.
    pub(super) fn authenticate(&mut self) -> Result<(), SlotError> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let is_full = state.devices.count() >= shared.connections
            || state.devices.count_from(self.address) >= shared.per_address;
        match self.kind {
            Kind::Authenticated => return Ok(()),
            Kind::Unauthenticated(_) if !state.pending.contains(self.address, self.number) => {
                return Err(SlotError::Evicted);
            }
            _ if is_full => return Err(SlotError::Full),
            _ => {}
        }
        self.free(&mut state);
        state.devices.enter(self.address);
        self.kind = Kind::Authenticated;
        Ok(())
    }

    /// Returns true if the connection may wait for its peer to read the last message. A device keeps its slot
    /// while it waits. Another connection frees its slot first, and at most [`LINGERING_MAX`] such
    /// connections may wait.
    pub(super) fn may_linger(&mut self) -> bool {
        if matches!(self.kind, Kind::Authenticated) {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        if state.lingering >= LINGERING_MAX {
            return false;
        }
        self.free(&mut state);
        state.lingering += 1;
        self.kind = Kind::Lingering;
        true
    }

    /// Frees the slot.
    fn free(&self, state: &mut State) {
        match self.kind {
            Kind::Unauthenticated(_) => {
                if state.pending.remove(self.address, self.number).is_none() {
                    state.leaving -= 1;
                }
            }
            Kind::Authenticated => state.devices.leave(self.address),
            Kind::Lingering => state.lingering -= 1,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.free(&mut self.shared.state());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::config::Fleet;

    fn slots(connections: usize, per_address: usize, unauthenticated: usize) -> ConnectionSlots {
        let text = "[devices]\nexpected = 1\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\n\
                    rounds = 3\nstep_size = 0.25\n";
        let limits = Fleet::parse("fleet.toml", text).unwrap().limits;
        ConnectionSlots::new(&Limits { connections, per_address, unauthenticated, ..limits })
    }

    fn address(last_byte: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, last_byte].into(), 1)
    }

    fn is_evicted(slot: &mut Slot) -> bool {
        match &mut slot.kind {
            Kind::Unauthenticated(evicted_signal) => {
                evicted_signal.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            }
            _ => false,
        }
    }

    /// Returns the numbers of device, pending, evicted and lingering connections.
    fn count_connections(slots: &ConnectionSlots) -> (usize, usize, usize, usize) {
        let state = slots.0.state();
        let pending = (1..=9).map(|last_byte| network(address(last_byte).ip()));
        let pending =
            pending.map(|address| (0..1000).filter(|n| state.pending.contains(address, *n)).count());
        (state.devices.count(), pending.sum(), state.leaving, state.lingering)
    }

    #[test]
    fn pending_connections_take_no_device_slot() {
        let slots = slots(2, 2, 2);
        let mut device = slots.enter(address(1)).unwrap();
        device.authenticate().unwrap();
        let mut unauthenticated: Vec<Slot> =
            (0..8).map(|n| slots.enter(address(2 + n % 4)).unwrap()).collect();
        assert_eq!(count_connections(&slots), (1, 2, 6, 0));
        assert!(!is_evicted(&mut device) && is_evicted(unauthenticated.first_mut().unwrap()));
        // The next device gets a slot although the pending pool is full.
        let mut next = slots.enter(address(1)).unwrap();
        next.authenticate().unwrap();
        next.authenticate().unwrap();
        assert_eq!(count_connections(&slots), (2, 1, 7, 0));
        // An evicted connection cannot move to a device slot, even with a valid key.
        assert_eq!(unauthenticated.first_mut().unwrap().authenticate(), Err(SlotError::Evicted));
        // Both device slots are taken.
        let mut third = slots.enter(address(3)).unwrap();
        assert_eq!(third.authenticate(), Err(SlotError::Full));
        drop(device);
        third.authenticate().unwrap();
        drop((next, third, unauthenticated));
        assert_eq!(count_connections(&slots), (0, 0, 0, 0));
    }

    #[test]
    fn address_limit_applies_to_devices() {
        let slots = slots(9, 1, 9);
        let mut first = slots.enter(address(1)).unwrap();
        first.authenticate().unwrap();
        let mut second = slots.enter(address(1)).unwrap();
        assert_eq!(second.authenticate(), Err(SlotError::Full));
        slots.enter(address(2)).unwrap().authenticate().unwrap();
        drop(first);
        second.authenticate().unwrap();
    }

    #[test]
    fn lingering_connections_are_bounded() {
        let slots = slots(1, 1, 1);
        let mut pending: Vec<Slot> = (0..LINGERING_MAX).map(|_| slots.enter(address(1)).unwrap()).collect();
        assert_eq!(count_connections(&slots), (0, 1, LINGERING_MAX - 1, 0));
        assert!(pending.iter_mut().all(Slot::may_linger));
        assert_eq!(count_connections(&slots), (0, 0, 0, LINGERING_MAX));
        let mut next = slots.enter(address(1)).unwrap();
        assert!(!next.may_linger());
        next.authenticate().unwrap();
        assert!(next.may_linger());
        assert_eq!(count_connections(&slots), (1, 0, 0, LINGERING_MAX));
        drop((pending, next));
        assert_eq!(count_connections(&slots), (0, 0, 0, 0));
    }

    /// Evicted connections that are still closing are bounded, because each of them still uses a task and a
    /// socket.
    #[test]
    fn leaving_connections_are_bounded() {
        let slots = slots(1, 1, 1);
        let mut slots_held: Vec<Slot> = (0..=LEAVING_MAX).map(|_| slots.enter(address(1)).unwrap()).collect();
        assert!(slots.enter(address(2)).is_none());
        slots_held.remove(0);
        assert!(slots.enter(address(2)).is_some());
    }

    #[tokio::test]
    async fn slot_signals_eviction() {
        let slots = slots(1, 1, 1);
        let mut first = slots.enter(address(1)).unwrap();
        let mut second = slots.enter(address(1)).unwrap();
        first.evicted().await;
        second.authenticate().unwrap();
        let third = slots.enter(address(1)).unwrap();
        drop(third);
        tokio::select! {
            biased;
            () = second.evicted() => panic!("a device was evicted"),
            () = std::future::ready(()) => {}
        }
    }
}
