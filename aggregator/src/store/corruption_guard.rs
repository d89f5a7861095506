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

/// Runs `work`, which reads possibly corrupt pages, and catches its panics. State that `work` changes must
/// not be used after an error.
///
/// # Errors
/// The error of `work`, or [`DatabaseError::Damaged`] after a panic.
pub(super) fn catch_corruption<T>(
    work: impl FnOnce() -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                usual(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    result.unwrap_or_else(|_| Err(DatabaseError::Damaged("corrupt pages".to_owned())))
}
