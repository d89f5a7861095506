//! Connections that have not proved yet who they are, and which of them makes room for a newer one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// So many connections at most, by address and in the order in which they came. `T` goes where they go.
///
/// When all places are taken, **the oldest connection of the address that has most of them makes room for the newest**.
/// An honest handshake takes milliseconds; who hoards places holds each as long as it may. Refusing the newest would
/// leave the door shut for as long as that is: one connection a place is enough. So the newest always gets in, and:
///
/// * who has fewer connections than somebody else here is never the one to go, however many connections a second the
///   others make. To reach it, they need as many addresses as there are places;
/// * where they have those, or share the address of the honest device, the oldest goes first: a handshake is finished
///   unless as many newer connections as there are places come while it lasts. To drop one at random instead would
///   leave each a chance under more than that, and would take this certainty from everybody below it.
#[derive(Debug)]
pub(super) struct PendingPool<T> {
    capacity: usize,
    count: usize,
    /// The number of the next one.
    next: u64,
    addresses: HashMap<IpAddr, BTreeMap<u64, T>>,
    /// Every address with how many it has and its oldest: the last one makes room.
    eviction_order: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
}

impl<T> PendingPool<T> {
    /// Room for `capacity`, and for one at least.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, count: 0, next: 0, addresses: HashMap::new(), eviction_order: BTreeSet::new() }
    }

    /// There is no room but what somebody makes.
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.capacity
    }

    /// A place for one more; and who makes room for it, if somebody must.
    pub(super) fn insert(&mut self, address: IpAddr, handle: T) -> (u64, Option<T>) {
        let evicted = if self.is_full() { self.evict() } else { None };
        let number = self.next;
        self.next += 1;
        self.change(address, |own| own.insert(number, handle));
        self.count += 1;
        (number, evicted)
    }

    /// Whether it is still here.
    pub(super) fn contains(&self, address: IpAddr, number: u64) -> bool {
        self.addresses.get(&address).is_some_and(|own| own.contains_key(&number))
    }

    /// Takes one out. `None` if it has made room already.
    pub(super) fn remove(&mut self, address: IpAddr, number: u64) -> Option<T> {
        let left = self.change(address, |own| own.remove(&number));
        self.count -= usize::from(left.is_some());
        left
    }

    fn evict(&mut self) -> Option<T> {
        let &(_, Reverse(oldest), address) = self.eviction_order.last()?;
        self.remove(address, oldest)
    }

    /// Changes what an address has, and its rank with it.
    fn change<R>(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, T>) -> R) -> R {
        let rank = |own: &BTreeMap<u64, T>| {
            own.first_key_value().map(|(oldest, _)| (own.len(), Reverse(*oldest), address))
        };
        let own = self.addresses.entry(address).or_default();
        if let Some(rank) = rank(own) {
            self.eviction_order.remove(&rank);
        }
        let changed = change(own);
        match rank(own) {
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

    /// What the rule is, the slow way.
    fn goes(model: &[(u64, IpAddr)]) -> Option<u64> {
        let count = |address| model.iter().filter(|(_, other)| *other == address).count();
        let capacity = model.iter().map(|(_, address)| count(*address)).max()?;
        model.iter().filter(|(_, address)| count(*address) == capacity).map(|(number, _)| *number).min()
    }

    proptest! {
        #[test]
        fn it_does_what_the_rule_says(
            capacity in 1..6usize,
            steps in prop::collection::vec((0..4u8, any::<bool>(), 0..8usize), 0..100),
        ) {
            let (mut pool, mut model) = (PendingPool::new(capacity), Vec::<(u64, IpAddr)>::new());
            for (last, enters, which) in steps {
                if enters {
                    let expected = if model.len() == capacity { goes(&model) } else { None };
                    model.retain(|(number, _)| Some(*number) != expected);
                    let next = pool.next;
                    let (number, evicted) = pool.insert(address(last), next);
                    prop_assert_eq!((number, evicted), (next, expected));
                    if let Some(gone) = evicted {
                        let nowhere = (0..4).all(|last| !pool.contains(address(last), gone));
                        prop_assert!(nowhere && pool.remove(address(last), gone).is_none());
                    }
                    model.push((number, address(last)));
                } else if which < model.len() {
                    let (number, address) = model.remove(which);
                    prop_assert!(pool.contains(address, number));
                    prop_assert_eq!(pool.remove(address, number), Some(number));
                }
                let addresses: BTreeSet<IpAddr> = model.iter().map(|(_, address)| *address).collect();
                prop_assert_eq!((pool.count, pool.is_full()), (model.len(), model.len() == capacity));
                prop_assert_eq!(pool.addresses.len(), addresses.len(), "nothing is kept of who has left");
                prop_assert_eq!(pool.eviction_order.len(), addresses.len());
            }
        }
    }

    /// However fast they are: three addresses, and one honest connection from a fourth.
    #[test]
    fn who_has_one_is_not_reached_by_who_has_many() {
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

    /// From the address of the flood: it has as many newer connections as there are places for its handshake.
    #[test]
    fn among_its_like_the_oldest_goes_first() {
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
