//! Drivers that run a [`Session`] over a byte stream: a blocking one ([`run`], on `embedded-io`) and an asynchronous one
//! ([`run_async`], on `embedded-io-async`). A [`Driver`] does the same one step at a time, for firmware that predicts or
//! feeds a watchdog while it is connected.
//!
//! All return when the link is lost, with the time at which to connect again. The caller reconnects,
//! since only the caller knows the link. Sessions in streaming mode get their samples from a [`Sensor`]
//! through the `_with_sensor` variants.
//!
//! While a private device is silent ([`Session::silent_until`]) the drivers do not read: input waits in the
//! link or is lost there, as it is while the device computes. Neither the set of processed bytes nor the time
//! at which a lost link is detected then depends on the duration of a computation. A custom driver must do
//! the same.

#[cfg(feature = "datagrams")]
mod datagram;
mod driver;
mod select;

use core::future::Future;

use fedspan_protocol::frame::FrameCounters;

use crate::session::{Aead, Session};
use crate::source::{SampleSource, Targets};
use crate::store::{Commit, Store};
use crate::task::Task;
use crate::time::Millis;

#[cfg(feature = "datagrams")]
pub use datagram::{AsyncPackets, DatagramLink, Packets};
pub use driver::{Driver, NonBlockingLink, Step};

/// Size of the read buffer, in bytes.
const READ_SIZE: usize = 64;

/// Result of a driver whose link was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<E> {
    /// Time at which to connect again, on the caller's clock. A caller whose clock wraps waits for `retry_at - now`: the time itself may lie
    /// beyond the clock's end.
    pub retry_at: Millis,
    /// Error of the link. `None` if the peer or the session closed the link, or if the link accepted no more
    /// bytes.
    pub error: Option<E>,
    /// True if the link was given up because it accepted no byte for
    /// [`Timers::write`](crate::session::Timers::write).
    pub is_stalled: bool,
    /// Numbers of frames accepted and dropped since the driver was created.
    pub frames: FrameCounters,
}

/// The two frame buffers of a link, owned by the caller.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// Buffer for received frames, as long as the session's frame limit.
    pub receive: &'a mut [u8],
    /// Buffer for one outgoing frame: [`crate::session::Config::transmit_capacity`] bytes.
    pub transmit: &'a mut [u8],
}

/// Sensor for a session in streaming mode ([`crate::session::Sampling::Stream`]), which uses each sample
/// once. The driver polls the sensor only while a round collects samples.
pub trait Sensor {
    /// Returns the next sample (d values) with its target, if a sample is available.
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)>;
}

/// Sensor without samples, for a session that is not in streaming mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSensor;

impl Sensor for NoSensor {
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)> {
        None
    }
}

/// Runs a session that is not in streaming mode: [`run_with_sensor`] without a sensor.
pub fn run<T, S, P, R, A, IO>(
    session: &mut Session<T, S, P, R, A>,
    io: &mut IO,
    buffers: Buffers<'_>,
    clock: impl FnMut() -> Millis,
    wait: impl FnMut(Millis),
) -> Closed<IO::Error>
where
    T: Task,
    S: SampleSource,
    P: Store,
    R: rand_core::Rng,
    A: Aead + Clone,
    IO: embedded_io::Read + embedded_io::Write + embedded_io::ReadReady + embedded_io::WriteReady,
{
    run_with_sensor(session, io, buffers, clock, wait, &mut NoSensor)
}

/// Runs `session` over a connected link until the link is lost.
///
/// `clock` returns the current time. `wait` is called when the driver has nothing to do until the given time, or until the
/// link is ready to be read or written; it may return early, for example at any interrupt. On a microcontroller it asks
/// once more whether the link is ready, with interrupts masked, before it sleeps: an interrupt between the driver's question
/// and `wfi` would otherwise be slept over.
///
/// End of file (a read of 0 bytes), errors, and a link that accepts no byte for a while end the link. Each frame is written
/// completely before the next frame is encoded, so a slow link slows the session down and no frames are queued.
///
/// All frames of an update are written before the link is read again. The server reads while it writes, so neither end waits for ever for
/// the other over a link with small buffers. Another program at the other end must do the same.
pub fn run_with_sensor<T, S, P, R, A, IO>(
    session: &mut Session<T, S, P, R, A>,
    io: &mut IO,
    buffers: Buffers<'_>,
    mut clock: impl FnMut() -> Millis,
    mut wait: impl FnMut(Millis),
    sensor: &mut dyn Sensor,
) -> Closed<IO::Error>
where
    T: Task,
    S: SampleSource,
    P: Store,
    R: rand_core::Rng,
    A: Aead + Clone,
    IO: embedded_io::Read + embedded_io::Write + embedded_io::ReadReady + embedded_io::WriteReady,
{
    let mut driver = Driver::new(buffers);
    loop {
        match driver.step(session, io, clock(), sensor) {
            Step::Again => {}
            Step::Wait(until) => wait(until),
            Step::Closed(closed) => return closed,
        }
    }
}

/// [`Sensor`] for an asynchronous link.
pub trait AsyncSensor {
    /// Returns the next sample (d values) with its target. Must be cancel-safe: a sample that was not
    /// returned must be returned by the next call.
    fn next(&mut self) -> impl Future<Output = (&[f32], Targets<'_>)>;
}

impl AsyncSensor for NoSensor {
    async fn next(&mut self) -> (&[f32], Targets<'_>) {
        core::future::pending().await
    }
}

/// Runs a session that is not in streaming mode: [`run_async_with_sensor`] without a sensor.
pub async fn run_async<T, S, P, R, A, IO, F>(
    session: &mut Session<T, S, P, R, A>,
    io: &mut IO,
    buffers: Buffers<'_>,
    clock: impl FnMut() -> Millis,
    sleep_until: impl FnMut(Millis) -> F,
) -> Closed<IO::Error>
where
    T: Task,
    S: SampleSource,
    P: Store,
    R: rand_core::Rng,
    A: Aead + Clone,
    IO: embedded_io_async::Read + embedded_io_async::Write,
    F: Future<Output = ()>,
{
    run_async_with_sensor(session, io, buffers, clock, sleep_until, &mut NoSensor).await
}

/// Runs a session whose storage is written asynchronously ([`Commit`]): [`run_async_with_sensor`], with a commit before each
/// frame that depends on what was stored.
pub async fn run_async_with_commit<T, S, P, R, A, IO, F>(
    session: &mut Session<T, S, P, R, A>,
    io: &mut IO,
    buffers: Buffers<'_>,
    mut clock: impl FnMut() -> Millis,
    mut sleep_until: impl FnMut(Millis) -> F,
    sensor: &mut impl AsyncSensor,
) -> Closed<IO::Error>
where
    T: Task,
    S: SampleSource,
    P: Commit,
    R: rand_core::Rng,
    A: Aead + Clone,
    IO: embedded_io_async::Read + embedded_io_async::Write,
    F: Future<Output = ()>,
{
    let mut driver = Driver::new(buffers);
    loop {
        let step = driver.step_async_with_commit(session, io, &mut clock, &mut sleep_until, sensor).await;
        if let Step::Closed(closed) = step {
            return closed;
        }
        if !driver.is_urgent() {
            select::yield_now().await;
        }
    }
}

/// Runs `session` over an asynchronous link until the link is lost, like [`run_with_sensor`]. The future of
/// `sleep_until` must complete at the given time. Other tasks of the executor run after every step.
///
/// The driver cancels a read when the wake-up time comes first, so the link's `read` must be cancel-safe, as
/// `embedded-io-async` encourages. Dropping the driver's future is safe; pass
/// [`Event::LinkDown`](crate::session::Event::LinkDown) to the session afterwards.
pub async fn run_async_with_sensor<T, S, P, R, A, IO, F>(
    session: &mut Session<T, S, P, R, A>,
    io: &mut IO,
    buffers: Buffers<'_>,
    mut clock: impl FnMut() -> Millis,
    mut sleep_until: impl FnMut(Millis) -> F,
    sensor: &mut impl AsyncSensor,
) -> Closed<IO::Error>
where
    T: Task,
    S: SampleSource,
    P: Store,
    R: rand_core::Rng,
    A: Aead + Clone,
    IO: embedded_io_async::Read + embedded_io_async::Write,
    F: Future<Output = ()>,
{
    let mut driver = Driver::new(buffers);
    loop {
        let step = driver.step_async(session, io, &mut clock, &mut sleep_until, sensor).await;
        if let Step::Closed(closed) = step {
            return closed;
        }
        if !driver.is_urgent() {
            select::yield_now().await;
        }
    }
}
