//! Feeding of a chip's watchdog, which resets a board that hangs.
//!
//! A board starts its watchdog with [`TIMEOUT`] and gives a function that feeds it to [`Guard`]. The guard calls the function
//!
//! * at every pause of a computation, after at most [`QUOTA`] multiply-accumulates, so that a slow round is no hang;
//! * every [`TICK`] while the program waits, within the task that waits and not in an interrupt: a program that loops
//!   elsewhere is not fed.
//!
//! While a round collects samples, the sensor must deliver one within [`Limits::sensor`]; the link must move a byte within
//! [`Limits::link`], in either direction. After that the guard no longer feeds, and the chip resets: a driver that has lost an
//! interrupt, or a bus that is stuck, starts again. The state that a device needs is in its flash.

use core::cell::Cell;
use core::future::Future;
use core::pin::pin;

use embassy_futures::select::{Either, select};
use embassy_time::{Duration, Instant, Timer};
use embedded_io_async::{ErrorType, Read, Write};
use fedspan_client::Targets;
use fedspan_client::link::AsyncSensor;
use fedspan_client::pace::Pacer;

use crate::sensor::SILENCE;

/// Time after which the watchdog resets a board. The RP2040's cannot wait for more than 8.3 s; the longest stretch without a
/// feed is the erase of a flash sector, up to 0.5 s.
pub const TIMEOUT: Duration = Duration::from_secs(8);
/// Interval between two feeds while the program waits.
pub const TICK: Duration = Duration::from_secs(1);
/// Multiply-accumulates between two feeds of a computation: 50 ms on a Cortex-M0 at 16 MHz.
pub const QUOTA: u32 = 1_000;

/// Longest times without progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time without a sample, while a round collects samples.
    pub sensor: Duration,
    /// Time without a byte, over one link and the next ones. Devices repeat their hello every minute at least.
    pub link: Duration,
}

impl Limits {
    /// The sensor's own limit, and ten minutes for the link.
    pub const BOARD: Self = Self { sensor: SILENCE, link: Duration::from_secs(600) };
}

/// Decides whether the program makes progress, and feeds the watchdog if it does.
#[derive(Debug)]
pub struct Guard<'a, F> {
    feed: &'a F,
    pacer: Pacer<'a>,
    limits: Limits,
    /// Time of the last sample, or of the start of a collection; `None` while no samples are needed.
    sample: Cell<Option<Instant>>,
    /// Time of the last byte, or of the first link; `None` while there is no link.
    byte: Cell<Option<Instant>>,
}

impl<'a, F: Fn()> Guard<'a, F> {
    /// Creates a guard that feeds the watchdog by calling `feed`.
    #[must_use]
    pub fn new(feed: &'a F, limits: Limits) -> Self {
        Self { feed, pacer: Pacer::new(QUOTA, feed), limits, sample: Cell::new(None), byte: Cell::new(None) }
    }

    /// Returns the pacer for the memory of the model, whose pauses feed.
    #[must_use]
    pub fn pacer(&self) -> &Pacer<'a> {
        &self.pacer
    }

    /// Runs `work`, and feeds the watchdog meanwhile as long as there is progress.
    pub async fn watch<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            if self.makes_progress(Instant::now()) {
                (self.feed)();
            }
            match select(work.as_mut(), Timer::after(TICK.min(self.limits.sensor))).await {
                Either::First(result) => return result,
                Either::Second(()) => {}
            }
        }
    }

    /// Runs `work` that needs no link, such as the wait for a host that opens the port, and feeds the watchdog meanwhile.
    pub async fn watch_unlinked<T>(&self, work: impl Future<Output = T>) -> T {
        self.byte.set(None);
        self.watch(work).await
    }

    /// Starts to expect bytes, unless it does already.
    pub fn expect_bytes(&self) {
        self.byte.set(self.byte.get().or(Some(Instant::now())));
    }

    /// Notes whether samples are needed.
    pub fn expect_samples(&self, is_collecting: bool) {
        self.sample.set(self.sample.get().or(Some(Instant::now())).filter(|_| is_collecting));
    }

    /// True if sensor and link have moved recently enough, as far as they are needed.
    fn makes_progress(&self, now: Instant) -> bool {
        let within = |since: Option<Instant>, limit| {
            since.is_none_or(|since| now.saturating_duration_since(since) < limit)
        };
        within(self.sample.get(), self.limits.sensor) && within(self.byte.get(), self.limits.link)
    }
}

/// Sensor or link whose progress a guard notes.
#[derive(Debug)]
pub struct Watched<'a, 'f, W, F> {
    /// The sensor, or the link.
    pub inner: &'a mut W,
    /// The guard.
    pub guard: &'a Guard<'f, F>,
}

impl<W: AsyncSensor, F: Fn()> AsyncSensor for Watched<'_, '_, W, F> {
    async fn next(&mut self) -> (&[f32], Targets<'_>) {
        let sample = self.inner.next().await;
        self.guard.sample.set(Some(Instant::now()));
        sample
    }
}

impl<W: ErrorType, F> ErrorType for Watched<'_, '_, W, F> {
    type Error = W::Error;
}

impl<W: Read, F: Fn()> Read for Watched<'_, '_, W, F> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, W::Error> {
        let read = self.inner.read(buffer).await?;
        self.guard.byte.set(Some(Instant::now()));
        Ok(read)
    }
}

impl<W: Write, F: Fn()> Write for Watched<'_, '_, W, F> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, W::Error> {
        let written = self.inner.write(bytes).await?;
        self.guard.byte.set(Some(Instant::now()));
        Ok(written)
    }

    async fn flush(&mut self) -> Result<(), W::Error> {
        self.inner.flush().await
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;
    use core::future::pending;

    use embassy_futures::block_on;
    use fedspan_client::pace::Paced;
    use fedspan_client::{HeadSolve, Linear, Recording, Workspace};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);
    const LIMITS: Limits = Limits { sensor: LIMIT, link: LIMIT };

    /// Sensor and link that hang for ever, or never do.
    struct Device {
        hangs: bool,
    }

    impl AsyncSensor for Device {
        async fn next(&mut self) -> (&[f32], Targets<'_>) {
            if self.hangs {
                pending::<()>().await;
            }
            Timer::after_millis(10).await;
            (&[1.0], Targets::Values(&[1.0]))
        }
    }

    impl ErrorType for Device {
        type Error = Infallible;
    }

    impl Read for Device {
        async fn read(&mut self, _: &mut [u8]) -> Result<usize, Infallible> {
            if self.hangs {
                pending::<()>().await;
            }
            Timer::after_millis(10).await;
            Ok(1)
        }
    }

    impl Write for Device {
        async fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
            if self.hangs {
                pending::<()>().await;
            }
            Ok(bytes.len())
        }

        async fn flush(&mut self) -> Result<(), Infallible> {
            Ok(())
        }
    }

    /// Use of a device, again and again.
    trait Use: AsyncFnMut(&mut Device, &Guard<'_, &dyn Fn()>) {}

    impl<U: AsyncFnMut(&mut Device, &Guard<'_, &dyn Fn()>)> Use for U {}

    /// Watches a use of a device; returns the time of the last feed within six times the limit, or of the first one after twice
    /// the limit. A late tick does not feed either, since the limit is compared with the clock.
    fn last_feed(hangs: bool, mut use_device: impl Use) -> Duration {
        let (start, last) = (Instant::now(), Cell::new(None));
        let feed: &dyn Fn() = &|| last.set(Some(start.elapsed()));
        let guard = Guard::new(&feed, LIMITS);
        let mut device = Device { hangs };
        let work = async {
            loop {
                use_device(&mut device, &guard).await;
            }
        };
        let end = async {
            while (!hangs || start.elapsed() < LIMIT * 6) && last.get().is_none_or(|last| last < LIMIT * 2) {
                Timer::after_millis(10).await;
            }
        };
        block_on(select(guard.watch(work), end));
        last.get().unwrap_or(Duration::MAX)
    }

    #[test]
    fn hung_sensor_is_not_fed() {
        let collect = async |device: &mut Device, guard: &Guard<'_, &dyn Fn()>| {
            guard.expect_samples(true);
            let _ = Watched { inner: device, guard }.next().await;
        };
        assert!(last_feed(true, collect) < LIMIT * 2);
        assert!(last_feed(false, collect) >= LIMIT * 2);
    }

    /// While no samples are needed, the sensor may rest.
    #[test]
    fn resting_sensor_is_fed() {
        let rest = async |device: &mut Device, guard: &Guard<'_, &dyn Fn()>| {
            guard.expect_samples(true);
            guard.expect_samples(false);
            let _ = Watched { inner: device, guard }.next().await;
        };
        assert!(last_feed(true, rest) >= LIMIT * 2);
    }

    #[test]
    fn hung_link_is_not_fed() {
        let read = async |device: &mut Device, guard: &Guard<'_, &dyn Fn()>| {
            guard.expect_bytes();
            let _ = Watched { inner: device, guard }.read(&mut [0]).await;
        };
        let write = async |device: &mut Device, guard: &Guard<'_, &dyn Fn()>| {
            guard.expect_bytes();
            let _ = Watched { inner: device, guard }.write(&[0]).await;
            Timer::after_millis(10).await;
        };
        assert!(last_feed(true, read) < LIMIT * 2);
        assert!(last_feed(true, write) < LIMIT * 2);
        assert!(last_feed(false, read) >= LIMIT * 2);
        assert!(last_feed(false, write) >= LIMIT * 2);
    }

    /// Waiting for a host is no hang, however long it takes.
    #[test]
    fn wait_for_a_host_is_fed() {
        let wait = async |_: &mut Device, guard: &Guard<'_, &dyn Fn()>| {
            guard.expect_bytes();
            guard.watch_unlinked(pending::<()>()).await;
        };
        assert!(last_feed(true, wait) >= LIMIT * 2);
    }

    #[test]
    fn slow_computation_is_fed() {
        let feeds = Cell::new(0);
        let feed = || feeds.set(feeds.get() + 1);
        let guard = Guard::new(&feed, LIMITS);
        let mut model = Linear::new(Paced::new(Workspace::<2, 1>::new(), guard.pacer()));
        let (x, y) = ([[1.0, 2.0]; 10_000], [2.0; 10_000]);
        let mut samples = Recording::regression(x.as_flattened(), &y, 2, 1);
        assert!(model.set_representation(&[1.0, 0.0]).is_ok());
        assert!(model.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut samples).is_ok());
        // The projection alone takes d k = 2 multiply-accumulates a sample.
        assert!(feeds.get() >= 20_000 / QUOTA, "{} feeds", feeds.get());
    }
}
