//! Monotonic clock of the server, in milliseconds since its creation.

use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

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
        match self.instant(wake) {
            Some(instant) => sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }

    /// Creates a timer for [`Self::wait`].
    pub(super) fn timer(self) -> Sleep {
        sleep_until(self.0)
    }

    /// Waits until the time `due`, or for ever if `due` is `None`, with a timer that is used for one wait after
    /// another. While `due` moves on, the timer stays registered for the earlier time, and is registered again
    /// only once that has passed. The wait ends in time although the task has used up its budget.
    pub(super) fn wait(self, mut timer: Pin<&mut Sleep>, due: Option<Millis>) -> impl Future<Output = ()> {
        let due = self.instant(due);
        std::future::poll_fn(move |context| {
            let Some(due) = due else { return Poll::Pending };
            if timer.deadline() > due {
                timer.as_mut().reset(due);
            }
            loop {
                ready!(Pin::new(&mut unconstrained(timer.as_mut())).poll(context));
                if timer.deadline() >= due {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(due);
            }
        })
    }

    /// Returns the instant of a time; `None` if there is no time, or none so late.
    fn instant(self, time: Option<Millis>) -> Option<Instant> {
        time.and_then(|time| self.0.checked_add(Duration::from_millis(time.as_u64())))
    }
}
