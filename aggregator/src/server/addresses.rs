//! How many connections come from where: one address shall not take all places.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Places that are taken, by address; by the first half of an IPv6 address, which is what one customer gets.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    most: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    address: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Addresses {
    pub(super) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// A place for one more connection from there; `None` if it has as many as it may.
    pub(super) fn enter(&self, from: SocketAddr) -> Option<Place> {
        let address = network(from.ip());
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { address, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(long) => {
            let [a, b, c, d, ..] = long.segments();
            Ipv6Addr::from([a, b, c, d, 0, 0, 0, 0]).into()
        }
        short => short,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn from(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 1)
    }

    #[test]
    fn an_address_has_so_many_places_and_gets_them_back() {
        let addresses = Addresses::new(2);
        let first = addresses.enter(from("10.0.0.1")).unwrap();
        let _second = addresses.enter(from("10.0.0.1")).unwrap();
        assert!(addresses.enter(from("10.0.0.1")).is_none());
        assert!(addresses.enter(from("::ffff:10.0.0.1")).is_none(), "the same host");
        let _other = addresses.enter(from("10.0.0.2")).unwrap();
        drop(first);
        let again = addresses.enter(from("10.0.0.1")).unwrap();
        assert!(addresses.enter(from("10.0.0.1")).is_none());
        drop(again);
        assert_eq!(addresses.taken.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_customer_with_many_long_addresses_is_one() {
        let addresses = Addresses::new(1);
        let place = addresses.enter(from("2001:db8:1:2::1")).unwrap();
        assert!(addresses.enter(from("2001:db8:1:2:ffff::9")).is_none());
        let _neighbour = addresses.enter(from("2001:db8:1:3::1")).unwrap();
        drop(place);
        assert_eq!(addresses.taken.lock().unwrap().len(), 1, "nothing is kept of who has left");
    }
}
