//! Monotonic clock of the server, in milliseconds since its creation.

use std::time::Duration;

use tokio::time::Instant;

use fedspan_engine::Millis;

/// Monotonic clock that starts at 0 ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> Millis {
        self.0.elapsed().into()
    }

    /// Waits until the time `at`; waits for ever if `at` is `None`.
    pub(super) async fn sleep_until(self, at: Option<Millis>) {
        match at.and_then(|at| self.0.checked_add(Duration::from_millis(at.as_u64()))) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
