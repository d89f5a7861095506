//! Counter of connections per owner, which prevents that one owner takes all slots.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// Number of connections of each owner, such as an address or a client.
#[derive(Debug)]
pub struct PerOwnerCount<O> {
    count: usize,
    by_owner: HashMap<O, usize>,
}

impl<O> Default for PerOwnerCount<O> {
    fn default() -> Self {
        Self { count: 0, by_owner: HashMap::new() }
    }
}

impl<O: Eq + Hash> PerOwnerCount<O> {
    /// Returns the number of all connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of connections of one owner.
    #[must_use]
    pub fn count_of(&self, owner: &O) -> usize {
        self.by_owner.get(owner).copied().unwrap_or(0)
    }

    /// Counts a new connection.
    pub fn enter(&mut self, owner: O) {
        self.count += 1;
        *self.by_owner.entry(owner).or_default() += 1;
    }

    /// Removes a connection from the count.
    pub fn leave(&mut self, owner: &O) {
        let Some(count) = self.by_owner.get_mut(owner) else { return };
        self.count -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_owner.remove(owner);
        }
    }
}

/// Returns the address under which connections are counted: an IPv4 address, or the /64 prefix of an IPv6
/// address, because a provider usually assigns a /64 prefix to each customer.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::from([a, b, c, d, 0, 0, 0, 0]).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn counted_address(address: &str) -> IpAddr {
        network(address.parse().unwrap())
    }

    #[test]
    fn ipv6_prefix_counts_as_one_address() {
        assert_eq!(counted_address("::ffff:10.0.0.1"), counted_address("10.0.0.1"));
        assert_eq!(counted_address("2001:db8:1:2::1"), counted_address("2001:db8:1:2:ffff::9"));
        assert_ne!(counted_address("2001:db8:1:2::1"), counted_address("2001:db8:1:3::1"));
    }

    #[test]
    fn empty_owners_are_removed() {
        let mut addresses = PerOwnerCount::default();
        let (first, second) = (counted_address("10.0.0.1"), counted_address("10.0.0.2"));
        for address in [first, second, first] {
            addresses.enter(address);
        }
        assert_eq!((addresses.count(), addresses.count_of(&first), addresses.count_of(&second)), (3, 2, 1));
        for address in [first, first, second] {
            addresses.leave(&address);
        }
        assert_eq!((addresses.count(), addresses.count_of(&first), addresses.by_owner.len()), (0, 0, 0));
        addresses.leave(&first);
        assert_eq!(addresses.count(), 0);
    }
}
