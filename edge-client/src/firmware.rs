//! Version and build of the firmware, for reports.

/// Returns the [`Firmware`](crate::session::Firmware) of the package that calls the macro: version of its `Cargo.toml`, and the
/// identifier of the build in hexadecimal in the environment variable `FEDSPAN_BUILD` of the compiler, 0 without it.
///
/// A version or an identifier that cannot be read does not compile.
///
/// ```
/// use fedspan_client::session::{About, ResetReason};
/// let about = About { firmware: fedspan_client::firmware!(), reset: ResetReason::Unknown };
/// assert_ne!(about.firmware.version, [0; 3]);
/// ```
#[macro_export]
macro_rules! firmware {
    () => {
        const {
            let build = match option_env!("FEDSPAN_BUILD") {
                Some(build) => build,
                None => "0",
            };
            match $crate::session::Firmware::parse(env!("CARGO_PKG_VERSION"), build) {
                Some(firmware) => firmware,
                None => panic!("CARGO_PKG_VERSION is not like 1.2.3, or FEDSPAN_BUILD is no hexadecimal number of at most 8 digits"),
            }
        }
    };
}
