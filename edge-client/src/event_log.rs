//! Log of a session's events for a developer: macro `log_event`, which forwards to `defmt` or `log`.
//!
//! The feature `defmt` is for firmware, `log` for hosts; if both are enabled, `defmt` gets the events. Without either there is no code.
//! No event has a key, a nonce, a sample or a value of a tensor, and none occurs at the end of a private computation, whose duration
//! may depend on samples.

/// Logs an event at a level of `log` and `defmt`. Arguments are numbers (`{}`) or enumerations (`{:?}`), which both can format.
macro_rules! log_event {
    ($level:ident, $format:literal $(, $argument:expr)*) => {{
        #[cfg(feature = "defmt")]
        ::defmt::$level!($format $(, $argument)*);
        #[cfg(all(feature = "log", not(feature = "defmt")))]
        ::log::$level!($format $(, $argument)*);
        // Never called: arguments count as used without a log.
        #[cfg(not(any(feature = "defmt", feature = "log")))]
        let _ = || ($(&$argument,)*);
    }};
}

pub(crate) use log_event;
