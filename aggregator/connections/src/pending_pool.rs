//! Pool of connections that have proved nothing, with the rule by which a full pool evicts a connection for a
//! newer one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Bounded pool of pending connections, by address and in order of arrival. `T` is the type of the handle
/// that is returned on eviction.
///
/// When the pool is full, **the oldest connection of the address with the most connections is evicted for the
/// newest**. A proof (a device's handshake, a client's request) takes milliseconds, but an attacker holds a slot as long as the timeout
/// allows. If the newest connection were refused instead, an attacker could exclude all others for that time
/// with one connection per slot. With eviction, the newest connection is always admitted:
///
/// * A connection from an address with fewer pending connections than another address is never evicted, at
///   any rate of new connections. To evict a connection, an attacker therefore needs as many addresses as the
///   pool has slots.
/// * An attacker with that many addresses, or with the address of an honest peer, evicts the oldest connections
///   first. A proof then completes unless as many newer connections as the pool has slots arrive during it. Random eviction would not give that guarantee to any connection, and slower attacks could
///   succeed.
#[derive(Debug)]
pub struct PendingPool<T> {
    capacity: usize,
    count: usize,
    /// Number of the next connection.
    next: u64,
    addresses: HashMap<IpAddr, BTreeMap<u64, T>>,
    /// Every address with its number of connections and the number of its oldest connection. The oldest
    /// connection of the last entry is evicted first.
    eviction_order: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
}

impl<T> PendingPool<T> {
    /// Creates a pool of `capacity` slots, or of one slot if `capacity` is 0.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, count: 0, next: 0, addresses: HashMap::new(), eviction_order: BTreeSet::new() }
    }

    /// Returns true if the next insertion evicts a connection.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count >= self.capacity
    }

    /// Adds a connection. Returns the number of the connection, and the handle of the connection that was
    /// evicted, if any.
    pub fn insert(&mut self, address: IpAddr, handle: T) -> (u64, Option<T>) {
        let evicted = if self.is_full() { self.evict() } else { None };
        let number = self.next;
        self.next += 1;
        self.change(address, |connections| connections.insert(number, handle));
        self.count += 1;
        (number, evicted)
    }

    /// Returns true if a connection is in the pool.
    #[must_use]
    pub fn contains(&self, address: IpAddr, number: u64) -> bool {
        self.addresses.get(&address).is_some_and(|connections| connections.contains_key(&number))
    }

    /// Removes a connection; `None` if it has been evicted.
    pub fn remove(&mut self, address: IpAddr, number: u64) -> Option<T> {
        let removed = self.change(address, |connections| connections.remove(&number));
        self.count -= usize::from(removed.is_some());
        removed
    }

    /// Evicts a connection by the rule of the pool.
    fn evict(&mut self) -> Option<T> {
        let &(_, Reverse(oldest), address) = self.eviction_order.last()?;
        self.remove(address, oldest)
    }

    /// Changes the connections of an address and updates its place in the eviction order.
    fn change<R>(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, T>) -> R) -> R {
        let rank = |connections: &BTreeMap<u64, T>| {
            connections.first_key_value().map(|(oldest, _)| (connections.len(), Reverse(*oldest), address))
        };
        let connections = self.addresses.entry(address).or_default();
        if let Some(rank) = rank(connections) {
            self.eviction_order.remove(&rank);
        }
        let changed = change(connections);
        match rank(connections) {
            Some(rank) => drop(self.eviction_order.insert(rank)),
            None => drop(self.addresses.remove(&address)),
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// Returns the connection that the rule evicts, found by linear search.
    fn evicted_by_rule(model: &[(u64, IpAddr)]) -> Option<u64> {
        let count = |address| model.iter().filter(|(_, of_connection)| *of_connection == address).count();
        let largest_count = model.iter().map(|(_, address)| count(*address)).max()?;
        model.iter().filter(|(_, address)| count(*address) == largest_count).map(|(number, _)| *number).min()
    }

    proptest! {
        #[test]
        fn pool_matches_linear_model(
            capacity in 1..6usize,
            steps in prop::collection::vec((0..4u8, any::<bool>(), 0..8usize), 0..100),
        ) {
            let mut pool = PendingPool::new(capacity);
            let mut model = Vec::<(u64, IpAddr)>::new();
            for (last_byte, is_insertion, index) in steps {
                if is_insertion {
                    let expected = if model.len() == capacity { evicted_by_rule(&model) } else { None };
                    model.retain(|(number, _)| Some(*number) != expected);
                    let next = pool.next;
                    let (number, evicted) = pool.insert(address(last_byte), next);
                    prop_assert_eq!((number, evicted), (next, expected));
                    if let Some(evicted) = evicted {
                        let is_absent = (0..4).all(|byte| !pool.contains(address(byte), evicted));
                        prop_assert!(is_absent && pool.remove(address(last_byte), evicted).is_none());
                    }
                    model.push((number, address(last_byte)));
                } else if index < model.len() {
                    let (number, address) = model.remove(index);
                    prop_assert!(pool.contains(address, number));
                    prop_assert_eq!(pool.remove(address, number), Some(number));
                }
                let addresses: BTreeSet<IpAddr> = model.iter().map(|(_, address)| *address).collect();
                prop_assert_eq!((pool.count, pool.is_full()), (model.len(), model.len() == capacity));
                prop_assert_eq!(pool.addresses.len(), addresses.len(), "an address has no connection");
                prop_assert_eq!(pool.eviction_order.len(), addresses.len());
            }
        }
    }

    /// If three addresses flood the pool, the only connection of a fourth address is never evicted.
    #[test]
    fn flood_does_not_evict_other_address() {
        let mut pool = PendingPool::new(8);
        let flood = |pool: &mut PendingPool<()>| {
            for last in (1..4).cycle().take(100) {
                pool.insert(address(last), ());
            }
        };
        flood(&mut pool);
        let (honest, evicted) = pool.insert(address(9), ());
        assert_eq!(evicted, Some(()));
        flood(&mut pool);
        assert!(pool.contains(address(9), honest));
        assert_eq!(pool.remove(address(9), honest), Some(()));
    }

    /// During a flood from the address of a device, a handshake of the device completes unless as many newer
    /// connections arrive as the pool has slots.
    #[test]
    fn oldest_of_an_address_is_evicted_first() {
        let mut pool = PendingPool::new(8);
        for _ in 0..100 {
            pool.insert(address(1), ());
        }
        let (honest, _) = pool.insert(address(1), ());
        for _ in 0..7 {
            pool.insert(address(1), ());
            assert!(pool.contains(address(1), honest));
        }
        pool.insert(address(1), ());
        assert!(!pool.contains(address(1), honest));
    }
}
