//! The database's own panics, over pages that it has not written, as errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::error::DatabaseError;

thread_local! {
    /// What panics here is told as an error, and by nothing else.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Reads what may be damaged. `work` must leave nothing behind that is used after an error.
///
/// # Errors
/// What `work` says, or that it has panicked.
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
    let done = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    done.unwrap_or_else(|_| Err(DatabaseError::Damaged("its pages make no sense".to_owned())))
}
