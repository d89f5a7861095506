//! Brake on wrong tokens: a token bucket for each address.
//!
//! The brake bounds how often an address is answered that a token is wrong. It never refuses a token that is right,
//! since many clients may share an address behind a proxy, and one of them could otherwise lock out the others. So it
//! does not bound how many tokens a peer can try; against that stands the length of the tokens.

use std::collections::HashMap;
use std::net::IpAddr;

use fedspan_engine::Millis;

/// Number of wrong tokens that an address may send at once.
const BURST: u32 = 20;

/// Time after which an address may send another wrong token.
const REFILL: Millis = Millis::new(3_000);

/// Largest number of addresses that are remembered. While so many have sent wrong tokens, all others are throttled with
/// their first.
const ADDRESSES_MAX: usize = 10_000;

/// Number of wrong tokens that an address may still send at a time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    /// Time up to which refills are included in `tokens`.
    refilled: Millis,
}

impl Bucket {
    /// Adds the refills up to `now`.
    fn refill(&mut self, now: Millis) {
        let refills = (now - self.refilled).as_u64() / REFILL.as_u64();
        self.refilled += Millis::new(refills.saturating_mul(REFILL.as_u64()));
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(refills).min(BURST);
    }
}

/// Time between two searches for addresses that can be forgotten, so that a flood from new addresses does not search
/// all of them for each wrong token.
const SEARCH: Millis = Millis::new(1_000);

/// Buckets of all addresses that have sent wrong tokens.
#[derive(Debug, Default)]
pub struct TokenBrake {
    buckets: HashMap<IpAddr, Bucket>,
    /// Time of the last search for addresses that can be forgotten.
    searched: Option<Millis>,
}

impl TokenBrake {
    /// Counts a wrong token of an address.
    ///
    /// # Errors
    /// The time until the address may send another wrong token, if it has sent too many.
    pub fn count_wrong(&mut self, address: IpAddr, now: Millis) -> Result<(), Millis> {
        if self.buckets.len() >= ADDRESSES_MAX && !self.buckets.contains_key(&address) {
            if self.searched.is_none_or(|searched| now - searched >= SEARCH) {
                self.searched = Some(now);
                self.buckets.retain(|_, bucket| {
                    bucket.refill(now);
                    bucket.tokens < BURST
                });
            }
            if self.buckets.len() >= ADDRESSES_MAX {
                return Err(REFILL);
            }
        }
        let bucket = self.buckets.entry(address).or_insert(Bucket { tokens: BURST, refilled: now });
        bucket.refill(now);
        match bucket.tokens.checked_sub(1) {
            Some(tokens) => {
                bucket.tokens = tokens;
                Ok(())
            }
            None => Err(bucket.refilled + REFILL - now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(number).into()
    }

    #[test]
    fn address_is_throttled_after_a_burst_and_recovers() {
        let mut brake = TokenBrake::default();
        let start = Millis::new(500);
        assert!((0..BURST).all(|_| brake.count_wrong(address(1), start).is_ok()));
        assert_eq!(brake.count_wrong(address(1), start), Err(REFILL));
        assert_eq!(brake.count_wrong(address(1), Millis::new(1_500)), Err(Millis::new(2_000)));
        assert_eq!(brake.count_wrong(address(2), start), Ok(()));
        assert_eq!(brake.count_wrong(address(1), start + REFILL), Ok(()));
        assert_eq!(brake.count_wrong(address(1), start + REFILL), Err(REFILL));
        let later = start + Millis::new(10_000_000);
        assert!((0..BURST).all(|_| brake.count_wrong(address(1), later).is_ok()));
        assert!(brake.count_wrong(address(1), later).is_err());
    }

    #[test]
    fn number_of_addresses_is_bounded() {
        let mut brake = TokenBrake::default();
        let count = u32::try_from(ADDRESSES_MAX).unwrap_or(u32::MAX);
        assert!((0..count).all(|number| brake.count_wrong(address(number), Millis::ZERO).is_ok()));
        assert_eq!(brake.count_wrong(address(count), Millis::ZERO), Err(REFILL));
        assert_eq!(brake.buckets.len(), ADDRESSES_MAX);
        // The search is not repeated at once, although all could be forgotten.
        brake.searched = Some(REFILL);
        assert_eq!(brake.count_wrong(address(count), REFILL), Err(REFILL));
        // Addresses whose bucket is full again are forgotten.
        assert_eq!(brake.count_wrong(address(count), REFILL + SEARCH), Ok(()));
        assert_eq!(brake.buckets.len(), 1);
    }
}
