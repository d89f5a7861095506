//! The first of several futures.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

/// Output of [`select`].
pub enum Selected<A, B> {
    /// Output of the link's future.
    Io(A),
    /// Output of the sensor's future.
    Sample(B),
    /// The timeout was first.
    Timeout,
}

/// Waits for the first of three futures. If several are ready, the link has priority over the sensor, and the
/// sensor over the timeout.
pub async fn select<A, B>(
    io: impl Future<Output = A>,
    sample: impl Future<Output = B>,
    timeout: impl Future<Output = ()>,
) -> Selected<A, B> {
    let (mut io, mut sample, mut timeout) = (pin!(io), pin!(sample), pin!(timeout));
    poll_fn(|context| {
        if let Poll::Ready(output) = io.as_mut().poll(context) {
            return Poll::Ready(Selected::Io(output));
        }
        if let Poll::Ready(output) = sample.as_mut().poll(context) {
            return Poll::Ready(Selected::Sample(output));
        }
        timeout.as_mut().poll(context).map(|()| Selected::Timeout)
    })
    .await
}

/// Lets the other tasks of the executor run once.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
