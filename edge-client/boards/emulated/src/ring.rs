//! Byte queue between an interrupt and the main program. It has one producer and one consumer, and needs
//! neither a lock nor compare-and-swap, which the smallest cores do not have.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// A queue of up to `N - 1` bytes.
#[derive(Debug)]
pub struct Ring<const N: usize> {
    bytes: [AtomicU8; N],
    /// Index of the next write; only the producer changes it.
    head: AtomicUsize,
    /// Index of the next read; only the consumer changes it.
    tail: AtomicUsize,
    lost: AtomicU32,
}

impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Ring<N> {
    /// Creates an empty queue, usable in a `static`.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N >= 2) };
        Self {
            bytes: [const { AtomicU8::new(0) }; N],
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            lost: AtomicU32::new(0),
        }
    }

    /// Appends a byte, or counts it as lost if the queue is full. Only the producer may call this.
    pub fn push(&self, byte: u8) {
        let head = self.head.load(Ordering::Relaxed);
        let next = (head + 1) % N;
        match self.bytes.get(head) {
            Some(slot) if next != self.tail.load(Ordering::Acquire) => {
                slot.store(byte, Ordering::Relaxed);
                self.head.store(next, Ordering::Release);
            }
            _ => self.lost.store(self.lost().wrapping_add(1), Ordering::Relaxed),
        }
    }

    /// Moves as many bytes as are available and fit into `out`, and returns their number. Only the consumer
    /// may call this.
    pub fn pop(&self, out: &mut [u8]) -> usize {
        let head = self.head.load(Ordering::Acquire);
        let mut tail = self.tail.load(Ordering::Relaxed);
        let mut moved = 0;
        for target in out {
            let Some(byte) = self.bytes.get(tail).filter(|_| tail != head) else { break };
            *target = byte.load(Ordering::Relaxed);
            tail = (tail + 1) % N;
            moved += 1;
        }
        self.tail.store(tail, Ordering::Release);
        moved
    }

    /// Returns true if the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == self.tail.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that were lost because the queue was full.
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_keeps_order_and_counts_lost_bytes() {
        let ring = Ring::<8>::new();
        let (mut sent, mut expected) = (0u8, 0u8);
        let mut out = [0; 8];
        for step in 0..1000usize {
            for _ in 0..step % 7 {
                ring.push(sent);
                sent = sent.wrapping_add(1);
            }
            let n = ring.pop(&mut out[..step % 9 % 8 + 1]);
            for byte in &out[..n] {
                assert_eq!(*byte, expected);
                expected = expected.wrapping_add(1);
            }
            // Empties the queue, so that no byte is lost in this part.
            let n = ring.pop(&mut out);
            expected = expected.wrapping_add(u8::try_from(n).unwrap_or(0));
            assert!(ring.is_empty());
        }
        assert_eq!(ring.lost(), 0);
        (0..10).for_each(|byte| ring.push(byte));
        assert_eq!((ring.pop(&mut out), ring.lost()), (7, 3));
        assert_eq!(out[..7], [0, 1, 2, 3, 4, 5, 6]);
    }
}
