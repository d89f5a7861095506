//! The places of a server's connections: one pool for devices, one for who has not proved yet to be one.
//!
//! A connection begins in the second pool and takes a place of the first when its device has proved its key (in plaintext,
//! when its hello is believed). So a flood of strangers, from however many addresses, takes no place from a device and
//! ends no device's connection; and it cannot shut the door on a device that comes, as in [`PendingPool`] the newest always
//! gets in.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::pending_pool::PendingPool;
use super::per_address::{PerAddressCount, network};
use crate::config::Limits;

/// Connections without a place that wait at once for their peer to read what it was told last: beyond it they are closed
/// without waiting.
const LINGERING_MAX: usize = 64;

/// Connections that have made room and are not closed yet: beyond it, who comes is closed at once, so that a flood
/// takes neither tasks nor descriptors without end.
const LEAVING_MAX: usize = 256;

#[derive(Debug)]
struct State {
    devices: PerAddressCount,
    /// Dropping the sender tells its connection to make room.
    pending: PendingPool<oneshot::Sender<()>>,
    leaving: usize,
    lingering: usize,
}

#[derive(Debug)]
struct Shared {
    connections: usize,
    per_address: usize,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct ConnectionSlots(Arc<Shared>);

/// What a connection has.
#[derive(Debug)]
enum Kind {
    /// A place among those that have proved nothing, and who tells it to make room for another.
    Unauthenticated(oneshot::Receiver<()>),
    /// A device's.
    Authenticated,
    /// None; it waits for its peer to read what it was told last.
    Lingering,
}

/// A connection's place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    shared: Arc<Shared>,
    address: IpAddr,
    number: u64,
    kind: Kind,
}

/// Why a device gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotError {
    /// All are taken, or all that its address may have.
    Full,
    /// Its connection has to make room for another.
    Evicted,
}

impl ConnectionSlots {
    pub(super) fn new(limits: &Limits) -> Self {
        let pending = PendingPool::new(limits.unauthenticated);
        let state = State { devices: PerAddressCount::default(), pending, leaving: 0, lingering: 0 };
        let (connections, per_address) = (limits.connections, limits.per_address);
        Self(Arc::new(Shared { connections, per_address, state: Mutex::new(state) }))
    }

    /// A place for a connection that has proved nothing yet. `None` if too many that make room are not gone yet.
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
    /// Completes when it has to make room for another; never for a device.
    pub(super) async fn evicted(&mut self) {
        match &mut self.kind {
            Kind::Unauthenticated(evicted_signal) => drop(evicted_signal.await),
            Kind::Authenticated | Kind::Lingering => std::future::pending().await,
        }
    }

    /// Its device has proved its key: it gets a device's place, which nobody takes from it.
    ///
    /// # Errors
    /// [`SlotError`]; it has the place that it had.
    pub(super) fn authenticate(&mut self) -> Result<(), SlotError> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let full = state.devices.count() >= shared.connections
            || state.devices.count_from(self.address) >= shared.per_address;
        match self.kind {
            Kind::Authenticated => return Ok(()),
            Kind::Unauthenticated(_) if !state.pending.contains(self.address, self.number) => {
                return Err(SlotError::Evicted);
            }
            _ if full => return Err(SlotError::Full),
            _ => {}
        }
        self.free(&mut state);
        state.devices.enter(self.address);
        self.kind = Kind::Authenticated;
        Ok(())
    }

    /// Whether it may wait for its peer to read what was said last. A device does so on its place; others free theirs
    /// first, as far as there is room to wait elsewhere.
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

    fn from(last: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, last].into(), 1)
    }

    fn is_evicted(slot: &mut Slot) -> bool {
        match &mut slot.kind {
            Kind::Unauthenticated(evicted_signal) => {
                evicted_signal.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            }
            _ => false,
        }
    }

    /// In use: devices, strangers, those that make room, those that wait to be read.
    fn used(slots: &ConnectionSlots) -> (usize, usize, usize, usize) {
        let state = slots.0.state();
        let pending = (1..=9).map(|last| network(from(last).ip()));
        let pending =
            pending.map(|address| (0..1000).filter(|n| state.pending.contains(address, *n)).count());
        (state.devices.count(), pending.sum(), state.leaving, state.lingering)
    }

    #[test]
    fn strangers_take_nothing_from_devices() {
        let slots = slots(2, 2, 2);
        let mut device = slots.enter(from(1)).unwrap();
        device.authenticate().unwrap();
        let mut strangers: Vec<Slot> = (0..8).map(|n| slots.enter(from(2 + n % 4)).unwrap()).collect();
        assert_eq!(used(&slots), (1, 2, 6, 0));
        assert!(!is_evicted(&mut device) && is_evicted(strangers.first_mut().unwrap()));
        // The next device gets in, and its place, while they hold all of theirs.
        let mut next = slots.enter(from(1)).unwrap();
        next.authenticate().unwrap();
        next.authenticate().unwrap();
        assert_eq!(used(&slots), (2, 1, 7, 0));
        // One that has to make room gets none, even if it has a key.
        assert_eq!(strangers.first_mut().unwrap().authenticate(), Err(SlotError::Evicted));
        // Nor is there one more than there are.
        let mut third = slots.enter(from(3)).unwrap();
        assert_eq!(third.authenticate(), Err(SlotError::Full));
        drop(device);
        third.authenticate().unwrap();
        drop((next, third, strangers));
        assert_eq!(used(&slots), (0, 0, 0, 0));
    }

    #[test]
    fn an_address_has_its_devices_and_no_more() {
        let slots = slots(9, 1, 9);
        let mut first = slots.enter(from(1)).unwrap();
        first.authenticate().unwrap();
        let mut second = slots.enter(from(1)).unwrap();
        assert_eq!(second.authenticate(), Err(SlotError::Full));
        slots.enter(from(2)).unwrap().authenticate().unwrap();
        drop(first);
        second.authenticate().unwrap();
    }

    #[test]
    fn who_waits_to_be_read_holds_nobody_up_and_there_are_not_many() {
        let slots = slots(1, 1, 1);
        let mut pending: Vec<Slot> = (0..LINGERING_MAX).map(|_| slots.enter(from(1)).unwrap()).collect();
        assert_eq!(used(&slots), (0, 1, LINGERING_MAX - 1, 0));
        assert!(pending.iter_mut().all(Slot::may_linger));
        assert_eq!(used(&slots), (0, 0, 0, LINGERING_MAX));
        let mut next = slots.enter(from(1)).unwrap();
        assert!(!next.may_linger());
        next.authenticate().unwrap();
        assert!(next.may_linger());
        assert_eq!(used(&slots), (1, 0, 0, LINGERING_MAX));
        drop((pending, next));
        assert_eq!(used(&slots), (0, 0, 0, 0));
    }

    /// What makes room is still a task and a socket for a moment.
    #[test]
    fn those_that_make_room_are_bounded_too() {
        let slots = slots(1, 1, 1);
        let mut all: Vec<Slot> = (0..=LEAVING_MAX).map(|_| slots.enter(from(1)).unwrap()).collect();
        assert!(slots.enter(from(2)).is_none());
        all.remove(0);
        assert!(slots.enter(from(2)).is_some());
    }

    #[tokio::test]
    async fn a_place_says_when_it_has_to_make_room() {
        let slots = slots(1, 1, 1);
        let mut first = slots.enter(from(1)).unwrap();
        let mut second = slots.enter(from(1)).unwrap();
        first.evicted().await;
        second.authenticate().unwrap();
        let third = slots.enter(from(1)).unwrap();
        drop(third);
        tokio::select! {
            biased;
            () = second.evicted() => panic!("a device makes room for nobody"),
            () = std::future::ready(()) => {}
        }
    }
}
