//! The way from the host to a conversation: a bounded queue that takes memory for what is in it, and gives it back.
//!
//! There is one for every connected device, mostly empty: a channel that allocates blocks of its places, or all of
//! them at once, would be the largest thing that the server keeps of a device.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// Places that are kept while nothing waits: an acknowledgement and the next round.
const IDLE_CAPACITY: usize = 2;

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<T>,
    capacity: usize,
    /// One of the two ends is gone.
    closed: bool,
    /// Who has found nothing, and waits. Under the lock of what it waits for: nothing comes between its look and this.
    waker: Option<Waker>,
}

impl<T> Queue<T> {
    /// The next one if there is one; `Some(None)` if there will be none.
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

#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that puts in. Dropping it closes the mailbox; what is in it can still be taken.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// The end that takes. Dropping it makes every further command fail.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

/// A mailbox for at most `capacity`.
pub(super) fn command_queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Queue { waiting: VecDeque::new(), capacity, closed: false, waker: None };
    let shared = Arc::new(Shared { queue: Mutex::new(queue) });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Puts one in. False, and it is lost, if there is no room or nobody to take it.
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

    /// Nobody takes anything any more.
    #[must_use]
    pub(super) fn is_closed(&self) -> bool {
        self.0.queue().closed
    }
}

impl<T> Receiver<T> {
    /// Waits for the next one. `None` once the sender is gone and nothing is left. Loses nothing if it is dropped
    /// while it waits.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = self.0.queue();
        if let Some(taken) = queue.take() {
            return Poll::Ready(taken);
        }
        // It may be another task that waits now.
        let before = queue.waker.replace(context.waker().clone());
        drop(queue);
        drop(before);
        Poll::Pending
    }

    /// The next one, if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.queue().take().flatten()
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.queue().waiting.is_empty()
    }

    /// The sender is gone: what is left can be taken, and nothing comes after it.
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
        // The sender may stay for long.
        let left = (std::mem::take(&mut queue.waiting), queue.waker.take());
        drop(queue);
        drop(left);
    }
}

/// Wakes who waits, once nothing hinders it.
fn wake<T>(mut queue: MutexGuard<'_, Queue<T>>) {
    let waker = queue.waker.take();
    drop(queue);
    waker.into_iter().for_each(Waker::wake);
}

/// Bytes of a mailbox on the heap with so many in it.
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
        /// Against a queue: order, room, and the memory that is kept.
        #[test]
        fn it_is_a_bounded_queue(steps in prop::collection::vec(any::<bool>(), 0..300), capacity in 1usize..20) {
            let (sender, mut receiver) = command_queue(capacity);
            let mut model = VecDeque::new();
            for (step, put) in steps.into_iter().enumerate() {
                if put {
                    prop_assert_eq!(sender.send(step), model.len() < capacity);
                    if model.len() < capacity {
                        model.push_back(step);
                    }
                } else {
                    prop_assert_eq!(receiver.try_recv(), model.pop_front());
                }
                let capacity = sender.0.queue().waiting.capacity();
                prop_assert!(capacity <= capacity + IDLE_CAPACITY);
                prop_assert!(!model.is_empty() || capacity <= IDLE_CAPACITY);
            }
            drop(sender);
            while let Some(item) = model.pop_front() {
                prop_assert_eq!(receiver.0.queue().take(), Some(Some(item)));
            }
            prop_assert_eq!(receiver.0.queue().take(), Some(None));
        }
    }

    #[test]
    fn a_receiver_that_is_gone_takes_nothing() {
        let (sender, receiver) = command_queue(2);
        assert!(sender.send(1));
        drop(receiver);
        assert!(!sender.send(2));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn whoever_waits_is_woken_even_if_it_has_looked_away() {
        for round in 0..500 {
            let (sender, mut receiver) = command_queue(4);
            let sending = tokio::spawn(async move {
                for item in 0..3 {
                    while !sender.send(item) {
                        tokio::task::yield_now().await;
                    }
                }
            });
            let mut taken = Vec::new();
            loop {
                // As a peer does: the wait is given up for something else, and taken up again.
                tokio::select! {
                    item = receiver.recv() => match item {
                        Some(item) => taken.push(item),
                        None => break,
                    },
                    () = tokio::task::yield_now() => {}
                }
            }
            sending.await.unwrap();
            assert_eq!(taken, [0, 1, 2], "{round}");
        }
    }
}
