//! Conversion of the database's panics on corrupt pages into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::error::DatabaseError;

thread_local! {
    /// Whether panics of this thread are not printed, because they are returned as errors.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Installation of the panic hook.
static HOOK: Once = Once::new();

/// Runs `operation`, which reads possibly corrupt pages, and catches its panics. State that `operation`
/// changes must not be used after an error.
///
/// # Errors
/// The error of `operation`, or [`DatabaseError::Damaged`] after a panic.
pub(super) fn catch_corruption<T>(
    operation: impl FnOnce() -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    HOOK.call_once(|| {
        let default_hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                default_hook(panic);
            }
        }));
    });
    let was_quiet = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(operation));
    QUIET.set(was_quiet);
    result.unwrap_or_else(|_| Err(DatabaseError::Damaged("corrupt pages".to_owned())))
}
