//! Counter of connections per address, which prevents that one address takes all slots.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Number of connections of each address.
#[derive(Debug, Default)]
pub(super) struct PerAddressCount {
    count: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl PerAddressCount {
    /// Returns the number of all connections.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of connections from one address.
    pub(super) fn count_from(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    /// Counts a new connection.
    pub(super) fn enter(&mut self, address: IpAddr) {
        self.count += 1;
        *self.by_address.entry(address).or_default() += 1;
    }

    /// Removes a connection from the count.
    pub(super) fn leave(&mut self, address: IpAddr) {
        let Some(count) = self.by_address.get_mut(&address) else { return };
        self.count -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(&address);
        }
    }
}

/// Returns the address under which connections are counted: an IPv4 address, or the /64 prefix of an IPv6
/// address, because a provider usually assigns a /64 prefix to each customer.
pub(super) fn network(address: IpAddr) -> IpAddr {
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
    fn empty_addresses_are_removed() {
        let mut addresses = PerAddressCount::default();
        let (first, second) = (counted_address("10.0.0.1"), counted_address("10.0.0.2"));
        for address in [first, second, first] {
            addresses.enter(address);
        }
        assert_eq!((addresses.count(), addresses.count_from(first), addresses.count_from(second)), (3, 2, 1));
        for address in [first, first, second] {
            addresses.leave(address);
        }
        assert_eq!((addresses.count(), addresses.count_from(first), addresses.by_address.len()), (0, 0, 0));
        addresses.leave(first);
        assert_eq!(addresses.count(), 0);
    }
}
