//! Log of a session's events for a developer: macro `log_event`, which forwards to `defmt` or `log`.
//!
//! The feature `defmt` is for firmware and has no effect on a host, `log` is for both; if both are enabled, firmware's events go to
//! `defmt`. Without either there is no code.
//! No event has a key, a nonce, a sample or a value of a tensor, and none occurs at the end of a private computation, whose duration
//! may depend on samples.

/// Logs an event at a level of `log` and `defmt`. Arguments are numbers (`{}`) or enumerations (`{:?}`), which both can format.
macro_rules! log_event {
    ($level:ident, $format:literal $(, $argument:expr)*) => {{
        #[cfg(all(feature = "defmt", target_os = "none"))]
        ::defmt::$level!($format $(, $argument)*);
        #[cfg(all(feature = "log", not(all(feature = "defmt", target_os = "none"))))]
        ::log::$level!($format $(, $argument)*);
        // Never called: arguments count as used without a log.
        #[cfg(not(any(all(feature = "defmt", target_os = "none"), feature = "log")))]
        let _ = || ($(&$argument,)*);
    }};
}

pub(crate) use log_event;
