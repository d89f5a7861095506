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

    /// Waits until the time `wake`; waits for ever if `wake` is `None`.
    pub(super) async fn sleep_until(self, wake: Option<Millis>) {
        match wake.and_then(|time| self.0.checked_add(Duration::from_millis(time.as_u64()))) {
            Some(instant) => tokio::time::sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }
}
