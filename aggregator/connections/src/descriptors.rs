//! File descriptors of a server. Every connection has one, and without a free one no connection is accepted.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::SlotLimits;
use crate::connection_slots::{LEAVING_MAX, LINGERING_MAX};

/// The process may open fewer files than the connections and the server's files need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShortage {
    /// Number of file descriptors that may be needed.
    pub needed: u64,
    /// Number that the process may have.
    pub allowed: u64,
}

/// Raises the number of files that the process may open to that which connections with these limits and `others`
/// other files need, as far as the system allows.
///
/// # Errors
/// [`DescriptorShortage`] if the system allows fewer. Connections can then be refused although there is room for
/// them.
pub fn reserve_descriptors(limits: SlotLimits, others: usize) -> Result<(), DescriptorShortage> {
    let SlotLimits { connections, unauthenticated, per_owner: _ } = limits;
    let needed = [connections, unauthenticated, LEAVING_MAX, LINGERING_MAX, others].into_iter();
    let needed = needed.fold(0u64, |sum, count| sum.saturating_add(count as u64));
    let mut limit = getrlimit(Resource::Nofile);
    let is_enough = |current: Option<u64>| current.is_none_or(|current| current >= needed);
    if !is_enough(limit.current) {
        limit.current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // A failure leaves the limit as it was, which is read again.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < needed => Err(DescriptorShortage { needed, allowed }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections: usize) -> SlotLimits {
        SlotLimits { connections, per_owner: 1, unauthenticated: 100 }
    }

    /// The limit of the process is raised to what is needed, never lowered, and a shortage has both numbers.
    #[test]
    fn limit_is_raised_as_far_as_the_system_allows() {
        let before = getrlimit(Resource::Nofile);
        assert_eq!(reserve_descriptors(limits(1), 10), Ok(()));
        assert_eq!(getrlimit(Resource::Nofile).current, before.current, "few are needed");
        let result = reserve_descriptors(limits(usize::MAX), 10);
        let after = getrlimit(Resource::Nofile);
        match before.maximum {
            Some(maximum) => {
                assert_eq!(result, Err(DescriptorShortage { needed: u64::MAX, allowed: maximum }));
                assert_eq!(after.current, before.maximum);
            }
            None => assert!(after.current >= before.current || after.current.is_none()),
        }
    }
}
