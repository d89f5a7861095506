//! NOR flash in memory with an asynchronous driver, and futures that are polled a given number of times.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use embedded_storage::nor_flash as blocking;
use embedded_storage_async::nor_flash::{NorFlash, ReadNorFlash};

use crate::chip::{Chip, PAGE, WORD};

/// Largest number of polls of a future that must complete.
const POLLS: usize = 100_000;

/// Polls a future at most `polls` times, and drops it.
pub fn poll<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    (0..polls).find_map(|_| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// Polls a future until it is complete.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    poll(future, POLLS).expect("the future makes no progress")
}

/// Future that is pending once.
async fn yield_once() {
    let mut is_ready = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut is_ready, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Reads take no time. Writes and erases are pending once before and once after the change.
impl ReadNorFlash for Chip {
    const READ_SIZE: usize = 1;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        blocking::ReadNorFlash::read(self, offset, bytes)
    }

    fn capacity(&self) -> usize {
        blocking::ReadNorFlash::capacity(self)
    }
}

impl NorFlash for Chip {
    const WRITE_SIZE: usize = WORD;
    const ERASE_SIZE: usize = PAGE;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        yield_once().await;
        let erased = blocking::NorFlash::erase(self, from, to);
        yield_once().await;
        erased
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        yield_once().await;
        let written = blocking::NorFlash::write(self, offset, bytes);
        yield_once().await;
        written
    }
}
