//! The way from the host to a peer: a bounded queue that takes memory for what is in it, and gives it back.
//!
//! There is one for every connected device, mostly empty: a channel that allocates blocks of its places, or all of
//! them at once, would be the largest thing that the server keeps of a device.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Places that are kept while nothing waits: an acknowledgement and the next round.
const KEPT: usize = 2;

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<T>,
    most: usize,
    /// One of the two ends is gone.
    closed: bool,
}

#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    filled: Notify,
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropping it closes the mailbox; what is in it can still be taken.
#[derive(Debug)]
pub(super) struct Sender<T>(Arc<Shared<T>>);

/// Dropping it makes every further command fail.
#[derive(Debug)]
pub(super) struct Receiver<T>(Arc<Shared<T>>);

/// A mailbox for at most `most`.
pub(super) fn mailbox<T>(most: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Queue { waiting: VecDeque::new(), most, closed: false };
    let shared = Arc::new(Shared { queue: Mutex::new(queue), filled: Notify::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Puts one in. False, and it is lost, if there is no room or nobody to take it.
    #[must_use]
    pub(super) fn send(&self, one: T) -> bool {
        let mut queue = self.0.queue();
        if queue.closed || queue.waiting.len() >= queue.most {
            return false;
        }
        if queue.waiting.len() == queue.waiting.capacity() {
            queue.waiting.reserve_exact(KEPT);
        }
        queue.waiting.push_back(one);
        drop(queue);
        self.0.filled.notify_one();
        true
    }
}

impl<T> Receiver<T> {
    /// Waits for the next one. `None` once the sender is gone and nothing is left. Loses nothing if it is dropped
    /// while it waits.
    pub(super) async fn recv(&mut self) -> Option<T> {
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            // Whoever fills it after that look leaves a permit here.
            self.0.filled.notified().await;
        }
    }

    /// The next one if there is one; `Some(None)` if there will be none.
    fn take(&mut self) -> Option<Option<T>> {
        let mut queue = self.0.queue();
        let next = queue.waiting.pop_front();
        if queue.waiting.is_empty() && queue.waiting.capacity() > KEPT {
            queue.waiting.shrink_to(KEPT);
        }
        match next {
            Some(one) => Some(Some(one)),
            None => queue.closed.then_some(None),
        }
    }

    #[cfg(test)]
    pub(super) fn try_recv(&mut self) -> Option<T> {
        self.take().flatten()
    }

    /// Nothing more is put in.
    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        self.0.queue().closed
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.queue().closed = true;
        self.0.filled.notify_one();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.closed = true;
        // The sender may stay for long.
        queue.waiting = VecDeque::new();
    }
}

/// Bytes of a mailbox on the heap with so many in it.
#[cfg(test)]
pub(super) fn memory<T>(waiting: usize) -> usize {
    size_of::<Shared<T>>() + 2 * size_of::<usize>() + (waiting + KEPT) * size_of::<T>()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a queue: order, room, and the memory that is kept.
        #[test]
        fn it_is_a_bounded_queue(steps in prop::collection::vec(any::<bool>(), 0..300), most in 1usize..20) {
            let (sender, mut receiver) = mailbox(most);
            let mut model = VecDeque::new();
            for (step, put) in steps.into_iter().enumerate() {
                if put {
                    prop_assert_eq!(sender.send(step), model.len() < most);
                    if model.len() < most {
                        model.push_back(step);
                    }
                } else {
                    prop_assert_eq!(receiver.try_recv(), model.pop_front());
                }
                let capacity = sender.0.queue().waiting.capacity();
                prop_assert!(capacity <= most + KEPT);
                prop_assert!(!model.is_empty() || capacity <= KEPT);
            }
            drop(sender);
            while let Some(one) = model.pop_front() {
                prop_assert_eq!(receiver.take(), Some(Some(one)));
            }
            prop_assert_eq!(receiver.take(), Some(None));
        }
    }

    #[test]
    fn a_receiver_that_is_gone_takes_nothing() {
        let (sender, receiver) = mailbox(2);
        assert!(sender.send(1));
        drop(receiver);
        assert!(!sender.send(2));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn whoever_waits_is_woken_even_if_it_has_looked_away() {
        for round in 0..500 {
            let (sender, mut receiver) = mailbox(4);
            let sending = tokio::spawn(async move {
                for one in 0..3 {
                    while !sender.send(one) {
                        tokio::task::yield_now().await;
                    }
                }
            });
            let mut taken = Vec::new();
            loop {
                // As a peer does: the wait is given up for something else, and taken up again.
                tokio::select! {
                    one = receiver.recv() => match one {
                        Some(one) => taken.push(one),
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
