//! The places of a server's connections: one pool for devices, one for who has not proved yet to be one.
//!
//! A connection begins in the second pool and takes a place of the first when its device has proved its key (in plaintext,
//! when its hello is believed). So a flood of strangers, from however many addresses, takes no place from a device and
//! ends no device's connection; and it cannot shut the door on a device that comes, as in [`Waiting`] the newest always
//! gets in.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::per_address::{Addresses, network};
use super::pending_pool::Waiting;
use crate::config::Limits;

/// Connections without a place that wait at once for their peer to read what it was told last: beyond it they are closed
/// without waiting.
const FAREWELLS: usize = 64;

/// Connections that have made room and are not closed yet: beyond it, who comes is closed at once, so that a flood
/// takes neither tasks nor descriptors without end.
const LEAVING: usize = 256;

#[derive(Debug)]
struct State {
    devices: Addresses,
    /// Dropping the sender tells its connection to make room.
    waiting: Waiting<oneshot::Sender<()>>,
    leaving: usize,
    farewells: usize,
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
pub(super) struct Places(Arc<Shared>);

/// What a connection has.
#[derive(Debug)]
enum Kind {
    /// A place among those that have proved nothing, and who tells it to make room for another.
    Unauthenticated(oneshot::Receiver<()>),
    /// A device's.
    Authenticated,
    /// None; it waits for its peer to read what it was told last.
    Farewell,
}

/// A connection's place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    address: IpAddr,
    number: u64,
    kind: Kind,
}

/// Why a device gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All are taken, or all that its address may have.
    Full,
    /// Its connection has to make room for another.
    Evicted,
}

impl Places {
    pub(super) fn new(limits: &Limits) -> Self {
        let waiting = Waiting::new(limits.unauthenticated);
        let state = State { devices: Addresses::default(), waiting, leaving: 0, farewells: 0 };
        let (connections, per_address) = (limits.connections, limits.per_address);
        Self(Arc::new(Shared { connections, per_address, state: Mutex::new(state) }))
    }

    /// A place for a connection that has proved nothing yet. `None` if too many that make room are not gone yet.
    pub(super) fn enter(&self, from: SocketAddr) -> Option<Place> {
        let address = network(from.ip());
        let mut state = self.0.state();
        if state.waiting.is_full() && state.leaving >= LEAVING {
            return None;
        }
        let (bell, heard) = oneshot::channel();
        let (number, evicted) = state.waiting.enter(address, bell);
        state.leaving += usize::from(evicted.is_some());
        drop(state);
        Some(Place { shared: Arc::clone(&self.0), address, number, kind: Kind::Unauthenticated(heard) })
    }
}

impl Place {
    /// Completes when it has to make room for another; never for a device.
    pub(super) async fn evicted(&mut self) {
        match &mut self.kind {
            Kind::Unauthenticated(heard) => drop(heard.await),
            Kind::Authenticated | Kind::Farewell => std::future::pending().await,
        }
    }

    /// Its device has proved its key: it gets a device's place, which nobody takes from it.
    ///
    /// # Errors
    /// [`NoPlace`]; it has the place that it had.
    pub(super) fn authenticate(&mut self) -> Result<(), NoPlace> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let full = state.devices.count() >= shared.connections
            || state.devices.count_from(self.address) >= shared.per_address;
        match self.kind {
            Kind::Authenticated => return Ok(()),
            Kind::Unauthenticated(_) if !state.waiting.contains(self.address, self.number) => {
                return Err(NoPlace::Evicted);
            }
            _ if full => return Err(NoPlace::Full),
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
        if state.farewells >= FAREWELLS {
            return false;
        }
        self.free(&mut state);
        state.farewells += 1;
        self.kind = Kind::Farewell;
        true
    }

    fn free(&self, state: &mut State) {
        match self.kind {
            Kind::Unauthenticated(_) => {
                if state.waiting.leave(self.address, self.number).is_none() {
                    state.leaving -= 1;
                }
            }
            Kind::Authenticated => state.devices.leave(self.address),
            Kind::Farewell => state.farewells -= 1,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free(&mut self.shared.state());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::config::Fleet;

    fn places(connections: usize, per_address: usize, unauthenticated: usize) -> Places {
        let text = "[devices]\nexpected = 1\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\n\
                    rounds = 3\nstep_size = 0.25\n";
        let limits = Fleet::parse("fleet.toml", text).unwrap().limits;
        Places::new(&Limits { connections, per_address, unauthenticated, ..limits })
    }

    fn from(last: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, last].into(), 1)
    }

    fn is_evicted(place: &mut Place) -> bool {
        match &mut place.kind {
            Kind::Unauthenticated(heard) => heard.try_recv() == Err(oneshot::error::TryRecvError::Closed),
            _ => false,
        }
    }

    /// In use: devices, strangers, those that make room, those that wait to be read.
    fn used(places: &Places) -> (usize, usize, usize, usize) {
        let state = places.0.state();
        let waiting = (1..=9).map(|last| network(from(last).ip()));
        let waiting =
            waiting.map(|address| (0..1000).filter(|n| state.waiting.contains(address, *n)).count());
        (state.devices.count(), waiting.sum(), state.leaving, state.farewells)
    }

    #[test]
    fn strangers_take_nothing_from_devices() {
        let places = places(2, 2, 2);
        let mut device = places.enter(from(1)).unwrap();
        device.authenticate().unwrap();
        let mut strangers: Vec<Place> = (0..8).map(|n| places.enter(from(2 + n % 4)).unwrap()).collect();
        assert_eq!(used(&places), (1, 2, 6, 0));
        assert!(!is_evicted(&mut device) && is_evicted(strangers.first_mut().unwrap()));
        // The next device gets in, and its place, while they hold all of theirs.
        let mut next = places.enter(from(1)).unwrap();
        next.authenticate().unwrap();
        next.authenticate().unwrap();
        assert_eq!(used(&places), (2, 1, 7, 0));
        // One that has to make room gets none, even if it has a key.
        assert_eq!(strangers.first_mut().unwrap().authenticate(), Err(NoPlace::Evicted));
        // Nor is there one more than there are.
        let mut third = places.enter(from(3)).unwrap();
        assert_eq!(third.authenticate(), Err(NoPlace::Full));
        drop(device);
        third.authenticate().unwrap();
        drop((next, third, strangers));
        assert_eq!(used(&places), (0, 0, 0, 0));
    }

    #[test]
    fn an_address_has_its_devices_and_no_more() {
        let places = places(9, 1, 9);
        let mut first = places.enter(from(1)).unwrap();
        first.authenticate().unwrap();
        let mut second = places.enter(from(1)).unwrap();
        assert_eq!(second.authenticate(), Err(NoPlace::Full));
        places.enter(from(2)).unwrap().authenticate().unwrap();
        drop(first);
        second.authenticate().unwrap();
    }

    #[test]
    fn who_waits_to_be_read_holds_nobody_up_and_there_are_not_many() {
        let places = places(1, 1, 1);
        let mut waiting: Vec<Place> = (0..FAREWELLS).map(|_| places.enter(from(1)).unwrap()).collect();
        assert_eq!(used(&places), (0, 1, FAREWELLS - 1, 0));
        assert!(waiting.iter_mut().all(Place::may_linger));
        assert_eq!(used(&places), (0, 0, 0, FAREWELLS));
        let mut next = places.enter(from(1)).unwrap();
        assert!(!next.may_linger());
        next.authenticate().unwrap();
        assert!(next.may_linger());
        assert_eq!(used(&places), (1, 0, 0, FAREWELLS));
        drop((waiting, next));
        assert_eq!(used(&places), (0, 0, 0, 0));
    }

    /// What makes room is still a task and a socket for a moment.
    #[test]
    fn those_that_make_room_are_bounded_too() {
        let places = places(1, 1, 1);
        let mut all: Vec<Place> = (0..=LEAVING).map(|_| places.enter(from(1)).unwrap()).collect();
        assert!(places.enter(from(2)).is_none());
        all.remove(0);
        assert!(places.enter(from(2)).is_some());
    }

    #[tokio::test]
    async fn a_place_says_when_it_has_to_make_room() {
        let places = places(1, 1, 1);
        let mut first = places.enter(from(1)).unwrap();
        let mut second = places.enter(from(1)).unwrap();
        first.evicted().await;
        second.authenticate().unwrap();
        let third = places.enter(from(1)).unwrap();
        drop(third);
        tokio::select! {
            biased;
            () = second.evicted() => panic!("a device makes room for nobody"),
            () = std::future::ready(()) => {}
        }
    }
}
