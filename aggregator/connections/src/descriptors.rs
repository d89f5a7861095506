//! File descriptors of a server. Every connection has one, and without a free one no connection is accepted.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::SlotLimits;
use crate::connection_slots::{LEAVING_MAX, LINGERING_MAX};

/// The process may open fewer files than the connections and the server's files need. The text is a warning for the
/// operator, with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShortage {
    /// Number of file descriptors that may be needed.
    pub needed: u64,
    /// Number that the process may have.
    pub allowed: u64,
}

impl std::fmt::Display for DescriptorShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { needed, allowed } = self;
        write!(
            f,
            "the process may open {allowed} files, and its connections and files may need {needed}; raise the limit (ulimit -n), or lower those in [limits]"
        )
    }
}

impl std::error::Error for DescriptorShortage {}

/// Raises the number of files that the process may open to that which connections with these limits and `others`
/// other files need, as far as the system allows.
///
/// # Errors
/// [`DescriptorShortage`] if the system allows fewer. Connections can then be refused although there is room for
/// them.
pub fn reserve_descriptors(limits: SlotLimits, others: usize) -> Result<(), DescriptorShortage> {
    let needed = needed_descriptors(limits, others);
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

/// Number of files that the process may open besides all connections with these limits, those that wait and those that
/// close included, and `others` other files.
#[must_use]
pub fn spare_descriptors(limits: SlotLimits, others: usize) -> usize {
    spare(getrlimit(Resource::Nofile).current, needed_descriptors(limits, others))
}

/// Largest number of file descriptors of connections with these limits and of `others` other files.
fn needed_descriptors(limits: SlotLimits, others: usize) -> u64 {
    let SlotLimits { connections, unauthenticated, per_owner: _ } = limits;
    let needed = [connections, unauthenticated, LEAVING_MAX, LINGERING_MAX, others].into_iter();
    needed.fold(0u64, |sum, count| sum.saturating_add(count as u64))
}

/// Number of file descriptors that are left; `allowed` is `None` without a limit.
fn spare(allowed: Option<u64>, needed: u64) -> usize {
    usize::try_from(allowed.unwrap_or(u64::MAX).saturating_sub(needed)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections: usize) -> SlotLimits {
        SlotLimits { connections, per_owner: 1, unauthenticated: 100 }
    }

    /// The number that is left for other files does not include the descriptors of any connection.
    #[test]
    fn spare_descriptors_leave_room_for_all_connections() {
        let needed = needed_descriptors(limits(64), 10);
        // 64 connections of owners, 100 of others, 256 that are evicted, 64 that linger, and 10 other files.
        assert_eq!(needed, 64 + 100 + 256 + 64 + 10);
        assert_eq!(spare(Some(1024), needed), 530);
        assert_eq!(spare(Some(needed), needed), 0);
        assert_eq!(spare(Some(256), needed), 0);
        assert_eq!(spare(None, needed), usize::MAX - 494);
        assert_eq!(needed_descriptors(limits(usize::MAX), 10), u64::MAX);
    }

    #[test]
    fn text_of_a_shortage_has_both_numbers_and_a_remedy() {
        let text = DescriptorShortage { needed: 1844, allowed: 1024 }.to_string();
        assert!(["1844", "1024", "ulimit -n", "[limits]"].iter().all(|part| text.contains(part)), "{text}");
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
