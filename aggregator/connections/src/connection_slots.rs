//! Limits on connections: slots for connections with a proven owner, and a pool for all others.
//!
//! A connection begins in the pool of pending connections. It moves to a slot of its owner when the owner is
//! proven: on the device server by a device's key (in plaintext, by an accepted hello), on the HTTP server by a
//! client's token. A flood of unauthenticated connections, from any number of addresses, therefore neither uses
//! slots of owners nor ends connections of owners. Owners can connect during a flood, because [`PendingPool`]
//! always admits the newest connection.

use std::future::Future;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::pending_pool::PendingPool;
use crate::per_owner::{PerOwnerCount, network};

/// Largest number of connections without a slot that wait for the peer to read the last message. Further such
/// connections are closed at once.
pub(crate) const LINGERING_MAX: usize = 64;

/// Largest number of evicted connections that are still closing. At the limit, new connections are closed
/// immediately after they are accepted, so that a flood cannot exhaust tasks and file descriptors.
pub(crate) const LEAVING_MAX: usize = 256;

/// Largest numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Largest number of connections with a proven owner.
    pub connections: usize,
    /// Largest number of connections with the same owner.
    pub per_owner: usize,
    /// Largest number of connections without a proven owner, in addition to the others.
    pub unauthenticated: usize,
}

/// Numbers of connections of each kind.
#[derive(Debug)]
struct State<O> {
    owners: PerOwnerCount<O>,
    /// Pool of connections without a proven owner. Dropping the sender of a connection evicts the connection.
    pending: PendingPool<oneshot::Sender<()>>,
    leaving: usize,
    lingering: usize,
}

/// Limits and state, shared by all slots of a server.
#[derive(Debug)]
struct Shared<O> {
    limits: SlotLimits,
    state: Mutex<State<O>>,
}

impl<O> Shared<O> {
    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slots of all connections of a server. `O` identifies an owner.
#[derive(Clone, Debug)]
pub struct ConnectionSlots<O>(Arc<Shared<O>>);

/// Kind of slot that a connection holds.
#[derive(Debug)]
enum Kind<O> {
    /// Slot in the pending pool, with the eviction signal.
    Unauthenticated(oneshot::Receiver<()>),
    /// Slot of a proven owner.
    Authenticated(O),
    /// No slot: the connection waits for its peer to read the last message.
    Lingering,
}

/// Slot of one connection, freed on drop.
#[derive(Debug)]
pub struct Slot<O: Copy + Eq + Hash> {
    shared: Arc<Shared<O>>,
    address: IpAddr,
    number: u64,
    kind: Kind<O>,
}

/// Reason why a connection gets no slot of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// All slots are taken.
    Full,
    /// All slots of this owner are taken.
    OwnerFull,
}

impl<O: Copy + Eq + Hash> ConnectionSlots<O> {
    /// Creates the slots of a server with these limits.
    #[must_use]
    pub fn new(limits: SlotLimits) -> Self {
        let pending = PendingPool::new(limits.unauthenticated);
        let state = State { owners: PerOwnerCount::default(), pending, leaving: 0, lingering: 0 };
        Self(Arc::new(Shared { limits, state: Mutex::new(state) }))
    }

    /// Returns a slot for a new connection; `None` if too many evicted connections are still closing.
    #[must_use]
    pub fn enter(&self, from: SocketAddr) -> Option<Slot<O>> {
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

impl<O: Copy + Eq + Hash> Slot<O> {
    /// Returns the address under which the connection is counted: see [`network`].
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Completes when the connection is evicted. Never completes for a connection with a proven owner.
    pub async fn evicted(&mut self) {
        std::future::poll_fn(|context| self.poll_evicted(context)).await;
    }

    /// Polls for [`Self::evicted`].
    pub fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.kind {
            Kind::Unauthenticated(evicted_signal) => Pin::new(evicted_signal).poll(context).map(drop),
            Kind::Authenticated(_) | Kind::Lingering => Poll::Pending,
        }
    }

    /// Moves the connection to a slot of `owner`, which cannot be evicted. An evicted connection that is not closed
    /// yet moves too: its proof had arrived, and was only read late. A connection of another owner changes to `owner`.
    ///
    /// # Errors
    /// [`SlotError`] if no slot is free. The connection keeps its current slot.
    pub fn authenticate(&mut self, owner: O) -> Result<(), SlotError> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let others = match self.kind {
            Kind::Authenticated(current) if current == owner => return Ok(()),
            Kind::Authenticated(_) => state.owners.count() - 1,
            Kind::Unauthenticated(_) | Kind::Lingering => state.owners.count(),
        };
        if state.owners.count_of(&owner) >= shared.limits.per_owner {
            return Err(SlotError::OwnerFull);
        }
        if others >= shared.limits.connections {
            return Err(SlotError::Full);
        }
        self.free(&mut state);
        state.owners.enter(owner);
        self.kind = Kind::Authenticated(owner);
        Ok(())
    }

    /// Returns true if the connection may wait for its peer to read the last message. A connection of a proven owner
    /// keeps its slot while it waits. Another connection frees its slot first, and at most `LINGERING_MAX` such
    /// connections may wait.
    pub fn may_linger(&mut self) -> bool {
        if matches!(self.kind, Kind::Authenticated(_)) {
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
    fn free(&self, state: &mut State<O>) {
        match self.kind {
            Kind::Unauthenticated(_) => {
                if state.pending.remove(self.address, self.number).is_none() {
                    state.leaving -= 1;
                }
            }
            Kind::Authenticated(owner) => state.owners.leave(&owner),
            Kind::Lingering => state.lingering -= 1,
        }
    }
}

impl<O: Copy + Eq + Hash> Drop for Slot<O> {
    fn drop(&mut self) {
        self.free(&mut self.shared.state());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn slots(connections: usize, per_owner: usize, unauthenticated: usize) -> ConnectionSlots<IpAddr> {
        ConnectionSlots::new(SlotLimits { connections, per_owner, unauthenticated })
    }

    /// Proves the owner of a connection, which is its address.
    fn authenticate(slot: &mut Slot<IpAddr>) -> Result<(), SlotError> {
        slot.authenticate(slot.address())
    }

    fn address(last_byte: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, last_byte].into(), 1)
    }

    fn is_evicted(slot: &mut Slot<IpAddr>) -> bool {
        match &mut slot.kind {
            Kind::Unauthenticated(evicted_signal) => {
                evicted_signal.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            }
            _ => false,
        }
    }

    /// Returns the numbers of device, pending, evicted and lingering connections.
    fn count_connections(slots: &ConnectionSlots<IpAddr>) -> (usize, usize, usize, usize) {
        let state = slots.0.state();
        let pending = (1..=9).map(|last_byte| network(address(last_byte).ip()));
        let pending =
            pending.map(|address| (0..1000).filter(|n| state.pending.contains(address, *n)).count());
        (state.owners.count(), pending.sum(), state.leaving, state.lingering)
    }

    #[test]
    fn pending_connections_take_no_device_slot() {
        let slots = slots(2, 2, 2);
        let mut device = slots.enter(address(1)).unwrap();
        authenticate(&mut device).unwrap();
        let mut unauthenticated: Vec<Slot<IpAddr>> =
            (0..8).map(|n| slots.enter(address(2 + n % 4)).unwrap()).collect();
        assert_eq!(count_connections(&slots), (1, 2, 6, 0));
        assert!(!is_evicted(&mut device) && is_evicted(unauthenticated.first_mut().unwrap()));
        // The next device gets a slot although the pending pool is full.
        let mut next = slots.enter(address(1)).unwrap();
        authenticate(&mut next).unwrap();
        authenticate(&mut next).unwrap();
        assert_eq!(count_connections(&slots), (2, 1, 7, 0));
        // Both device slots are taken.
        let mut third = slots.enter(address(3)).unwrap();
        assert_eq!(authenticate(&mut third), Err(SlotError::Full));
        drop(device);
        authenticate(&mut third).unwrap();
        drop((next, third, unauthenticated));
        assert_eq!(count_connections(&slots), (0, 0, 0, 0));
    }

    #[test]
    fn limit_of_an_owner_applies() {
        let slots = slots(9, 1, 9);
        let mut first = slots.enter(address(1)).unwrap();
        authenticate(&mut first).unwrap();
        let mut second = slots.enter(address(1)).unwrap();
        assert_eq!(authenticate(&mut second), Err(SlotError::OwnerFull));
        authenticate(&mut slots.enter(address(2)).unwrap()).unwrap();
        drop(first);
        authenticate(&mut second).unwrap();
    }

    /// A proof that arrived before the eviction counts, although it is read after it.
    #[test]
    fn evicted_connection_that_proves_its_owner_stays() {
        let slots = slots(2, 2, 1);
        let mut evicted = slots.enter(address(1)).unwrap();
        let pending = slots.enter(address(2)).unwrap();
        assert_eq!(count_connections(&slots), (0, 1, 1, 0));
        authenticate(&mut evicted).unwrap();
        assert!(!is_evicted(&mut evicted));
        assert_eq!(count_connections(&slots), (1, 1, 0, 0));
        drop((evicted, pending));
        assert_eq!(count_connections(&slots), (0, 0, 0, 0));
    }

    #[test]
    fn connection_changes_its_owner_within_the_limits() {
        let slots =
            ConnectionSlots::<u32>::new(SlotLimits { connections: 2, per_owner: 1, unauthenticated: 4 });
        let mut first = slots.enter(address(1)).unwrap();
        let mut second = slots.enter(address(1)).unwrap();
        first.authenticate(1).unwrap();
        second.authenticate(2).unwrap();
        assert_eq!(first.authenticate(2), Err(SlotError::OwnerFull));
        first.authenticate(3).unwrap();
        assert_eq!(slots.enter(address(1)).unwrap().authenticate(1), Err(SlotError::Full));
        second.authenticate(1).unwrap();
        assert_eq!([1, 2, 3].map(|owner| slots.0.state().owners.count_of(&owner)), [1, 0, 1]);
    }

    #[test]
    fn lingering_connections_are_bounded() {
        let slots = slots(1, 1, 1);
        let mut pending: Vec<Slot<IpAddr>> =
            (0..LINGERING_MAX).map(|_| slots.enter(address(1)).unwrap()).collect();
        assert_eq!(count_connections(&slots), (0, 1, LINGERING_MAX - 1, 0));
        assert!(pending.iter_mut().all(Slot::may_linger));
        assert_eq!(count_connections(&slots), (0, 0, 0, LINGERING_MAX));
        let mut next = slots.enter(address(1)).unwrap();
        assert!(!next.may_linger());
        authenticate(&mut next).unwrap();
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
        let mut slots_held: Vec<Slot<IpAddr>> =
            (0..=LEAVING_MAX).map(|_| slots.enter(address(1)).unwrap()).collect();
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
        authenticate(&mut second).unwrap();
        let third = slots.enter(address(1)).unwrap();
        drop(third);
        tokio::select! {
            biased;
            () = second.evicted() => panic!("a device was evicted"),
            () = std::future::ready(()) => {}
        }
    }
}
