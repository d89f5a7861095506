//! Command queue from the server core to a peer session: bounded, and allocated only while it is in use.
//!
//! The server has one queue per connected device, and most queues are empty most of the time. A channel that
//! allocates blocks of slots, or all slots at once, would need more memory than everything else that the
//! server stores for a device.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// Number of slots that stay allocated while the queue is empty: for an acknowledgement and the next round.
const IDLE_CAPACITY: usize = 2;

/// Items and state of a queue, behind the lock.
#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<T>,
    capacity: usize,
    /// Whether one of the two ends has been dropped.
    closed: bool,
    /// Waker of the task that found the queue empty. It is stored under the queue's lock, so that no wake-up
    /// is lost.
    waker: Option<Waker>,
}

impl<T> Queue<T> {
    /// Takes the next item. Returns `None` if the queue is empty, and `Some(None)` if the queue is empty and
    /// closed.
    fn take(&mut self) -> Option<Option<T>> {
        let next = self.waiting.pop_front();
        if self.waiting.is_empty() && self.waiting.capacity() > IDLE_CAPACITY {
            self.waiting.shrink_to(IDLE_CAPACITY);
        }
        match next {
            Some(item) => Some(Some(item)),
            None => self.closed.then_some(None),
        }
    }
}

/// Queue shared by the two ends.
#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
}

impl<T> Shared<T> {
    /// Locks the queue.
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sending end. Dropping it closes the queue; queued items can still be received.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// Receiving end. Dropping it makes every later send fail.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

/// Creates a queue of at most `capacity` items.
pub(super) fn command_queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Queue { waiting: VecDeque::new(), capacity, closed: false, waker: None };
    let shared = Arc::new(Shared { queue: Mutex::new(queue) });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends an item. Returns false, and drops the item, if the queue is full or closed.
    #[must_use]
    pub(crate) fn send(&self, item: T) -> bool {
        let mut queue = self.0.queue();
        if queue.closed || queue.waiting.len() >= queue.capacity {
            return false;
        }
        if queue.waiting.len() == queue.waiting.capacity() {
            queue.waiting.reserve_exact(IDLE_CAPACITY);
        }
        queue.waiting.push_back(item);
        wake(queue);
        true
    }

    /// Returns true if the receiving end has been dropped.
    #[must_use]
    pub(super) fn is_closed(&self) -> bool {
        self.0.queue().closed
    }
}

impl<T> Receiver<T> {
    /// Waits for the next item. `None` once the queue is closed and empty. Cancel-safe: no item is lost if
    /// the future is dropped.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = self.0.queue();
        if let Some(received) = queue.take() {
            return Poll::Ready(received);
        }
        // The receiver may have moved to another task.
        if queue.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            let replaced_waker = queue.waker.replace(context.waker().clone());
            drop(queue);
            drop(replaced_waker);
        }
        Poll::Pending
    }

    /// Takes the next item without waiting.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.queue().take().flatten()
    }

    /// Returns true if no item is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.queue().waiting.is_empty()
    }

    /// Returns true if the sending end has been dropped; queued items can still be received.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.queue().closed
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.closed = true;
        wake(queue);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.closed = true;
        // Frees the items at once, because the sender may live much longer.
        let discarded = (std::mem::take(&mut queue.waiting), queue.waker.take());
        drop(queue);
        drop(discarded);
    }
}

/// Wakes the waiting task after releasing the lock.
fn wake<T>(mut queue: MutexGuard<'_, Queue<T>>) {
    let waker = queue.waker.take();
    drop(queue);
    waker.into_iter().for_each(Waker::wake);
}

/// Returns the heap memory of a queue with `waiting` items, in bytes.
#[cfg(test)]
pub(crate) fn memory<T>(waiting: usize) -> usize {
    size_of::<Shared<T>>() + 2 * size_of::<usize>() + (waiting + IDLE_CAPACITY) * size_of::<T>()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the queue with a `VecDeque`: order of items, capacity, and memory that stays allocated.
        #[test]
        fn command_queue_is_bounded_fifo(steps in prop::collection::vec(any::<bool>(), 0..300), capacity in 1usize..20) {
            let (sender, mut receiver) = command_queue(capacity);
            let mut model = VecDeque::new();
            for (step, is_send) in steps.into_iter().enumerate() {
                if is_send {
                    prop_assert_eq!(sender.send(step), model.len() < capacity);
                    if model.len() < capacity {
                        model.push_back(step);
                    }
                } else {
                    prop_assert_eq!(receiver.try_recv(), model.pop_front());
                }
                let allocated = sender.0.queue().waiting.capacity();
                prop_assert!(allocated <= capacity + IDLE_CAPACITY);
                prop_assert!(!model.is_empty() || allocated <= IDLE_CAPACITY);
            }
            drop(sender);
            while let Some(item) = model.pop_front() {
                prop_assert_eq!(receiver.0.queue().take(), Some(Some(item)));
            }
            prop_assert_eq!(receiver.0.queue().take(), Some(None));
        }
    }

    #[test]
    fn send_fails_after_receiver_drop() {
        let (sender, receiver) = command_queue(2);
        assert!(sender.send(1));
        drop(receiver);
        assert!(!sender.send(2));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dropped_wait_loses_no_wakeup() {
        for round in 0..500 {
            let (sender, mut receiver) = command_queue(4);
            let sending = tokio::spawn(async move {
                for item in 0..3 {
                    while !sender.send(item) {
                        tokio::task::yield_now().await;
                    }
                }
            });
            let mut received = Vec::new();
            loop {
                // A peer task does the same: it drops the future when another event occurs, and then waits
                // again.
                tokio::select! {
                    item = receiver.recv() => match item {
                        Some(item) => received.push(item),
                        None => break,
                    },
                    () = tokio::task::yield_now() => {}
                }
            }
            sending.await.unwrap();
            assert_eq!(received, [0, 1, 2], "{round}");
        }
    }
}
