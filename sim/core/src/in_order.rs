//! Parallel work whose results are used in order, while later work is still in progress.

use std::collections::BTreeMap;
use std::sync::mpsc::{TryRecvError, channel};

/// Runs `work` on all items in parallel. Passes each item to `deliver` as soon as its work and that of all earlier items is
/// done, so in the order of the items. Then runs `follow_up` on the item, in parallel again. Panics of all three are passed on.
pub fn in_order<T: Send>(
    items: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(&mut T) + Sync,
    mut deliver: impl FnMut(&mut T) + Send,
    follow_up: impl Fn(T) + Sync,
) {
    let count = items.len();
    if count == 0 {
        return;
    }
    let (work, follow_up) = (&work, &follow_up);
    // One thread follows up while it has the item in its cache.
    let is_alone = rayon::current_num_threads() == 1;
    rayon::scope_fifo(|scope| {
        let (done, finished) = channel();
        for (number, mut item) in items.enumerate() {
            let done = done.clone();
            scope.spawn_fifo(move |_| {
                work(&mut item);
                // Fails only if a delivery has panicked.
                let _ = done.send((number, item));
            });
        }
        drop(done);
        let (mut early, mut next) = (BTreeMap::new(), 0);
        while next < count {
            match finished.try_recv() {
                Ok((number, item)) => {
                    early.insert(number, item);
                }
                // While there is nothing to deliver, this thread works on items, too.
                Err(TryRecvError::Empty) => {
                    if rayon::yield_now() != Some(rayon::Yield::Executed) {
                        std::thread::yield_now();
                    }
                }
                // The work on an item has panicked, which the scope passes on.
                Err(TryRecvError::Disconnected) => return,
            }
            while let Some(mut item) = early.remove(&next) {
                deliver(&mut item);
                next += 1;
                if is_alone {
                    follow_up(item);
                } else {
                    scope.spawn_fifo(move |_| follow_up(item));
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::in_order;

    fn with_threads(threads: usize, run: impl FnOnce() + Send) {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
    }

    /// Tests that every item is worked on, delivered and followed up once, in this order, and delivered in the order of the items, though
    /// work takes different times.
    #[test]
    fn items_are_delivered_in_their_order() {
        for threads in [1, 2, 7] {
            for count in [0, 1, 2, 63, 500] {
                with_threads(threads, || {
                    let (worked, followed_up) = (AtomicUsize::new(0), AtomicUsize::new(0));
                    let mut delivered = Vec::new();
                    let work = |item: &mut (u64, u64)| {
                        // Early items take longer.
                        for step in 0..20 * (count - item.0) {
                            item.1 = std::hint::black_box(item.1.wrapping_add(step));
                        }
                        item.1 = 3 * item.0;
                        worked.fetch_add(1, Ordering::Relaxed);
                    };
                    in_order(
                        (0..count).map(|item| (item, 0)).collect::<Vec<_>>().into_iter(),
                        work,
                        |item| {
                            delivered.push(*item);
                            item.1 += 1;
                        },
                        |(number, value)| {
                            assert_eq!(value, 3 * number + 1);
                            followed_up.fetch_add(1, Ordering::Relaxed);
                        },
                    );
                    assert_eq!(worked.into_inner() as u64, count);
                    assert_eq!(followed_up.into_inner() as u64, count);
                    assert_eq!(delivered, (0..count).map(|item| (item, 3 * item)).collect::<Vec<_>>());
                });
            }
        }
    }

    #[test]
    fn panics_are_passed_on() {
        for threads in [1, 3] {
            with_threads(threads, || {
                let run = |failing: &str| {
                    let is_failing = |part, item| item == 5 && part == failing;
                    let work = |item: &mut usize| assert!(!is_failing("work", *item), "work fails");
                    let deliver =
                        |item: &mut usize| assert!(!is_failing("delivery", *item), "delivery fails");
                    let follow_up = |item: usize| assert!(!is_failing("follow-up", item), "follow-up fails");
                    catch_unwind(AssertUnwindSafe(|| in_order(0..20usize, work, deliver, follow_up)))
                };
                for part in ["work", "delivery", "follow-up"] {
                    assert!(run(part).is_err(), "{part}");
                }
                assert!(run("nothing").is_ok());
            });
        }
    }
}
