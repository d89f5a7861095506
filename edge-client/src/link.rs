//! Drivers that run a [`Session`] over a byte stream: a blocking driver ([`run`], on `embedded-io`) and an
//! asynchronous driver ([`run_async`], on `embedded-io-async`).
//!
//! Both drivers return when the link is lost, with the time at which to connect again. The caller reconnects,
//! since only the caller knows the link. Sessions in streaming mode get their samples from a [`Sensor`]
//! through the `_with_sensor` variants.
//!
//! While a private device is silent ([`Session::silent_until`]) the drivers do not read: input waits in the
//! link or is lost there, as it is while the device computes. Neither the set of processed bytes nor the time
//! at which a lost link is detected then depends on the duration of a computation. A custom driver must do
//! the same.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use fedspan_protocol::frame::{Decoder, FeedResult, FrameCounters};

use crate::session::{Event, Progress, Session};
use crate::source::{SampleSource, Targets};
use crate::store::Store;
use crate::task::Task;
use crate::time::Millis;

/// Size of the read buffer, in bytes.
const READ_SIZE: usize = 64;

/// Result of a driver whose link was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<E> {
    /// Time at which to connect again, on the caller's clock.
    pub retry_at: Millis,
    /// Error of the link. `None` if the peer or the session closed the link, or if the link accepted no more
    /// bytes.
    pub error: Option<E>,
    /// Numbers of frames accepted and dropped on this link.
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
pub fn run<T, S, P, R, IO>(
    session: &mut Session<T, S, P, R>,
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
    IO: embedded_io::Read + embedded_io::Write + embedded_io::ReadReady,
{
    run_with_sensor(session, io, buffers, clock, wait, &mut NoSensor)
}

/// Runs `session` over a connected link until the link is lost.
///
/// `clock` returns the current time. `wait` is called when the driver has nothing to do until the given time;
/// `wait` may return early, for example on an interrupt or a received byte, so `|_| cortex_m::asm::wfi()` is
/// sufficient.
///
/// End of file (a read of 0 bytes) and errors end the link. Each frame is written completely before the next
/// frame is encoded, so a slow link slows the session down and no frames are queued.
pub fn run_with_sensor<T, S, P, R, IO>(
    session: &mut Session<T, S, P, R>,
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
    IO: embedded_io::Read + embedded_io::Write + embedded_io::ReadReady,
{
    let Buffers { receive, transmit } = buffers;
    let mut decoder = Decoder::new(receive);
    let mut bytes = [0u8; READ_SIZE];
    let mut step = || -> Result<(), Option<IO::Error>> {
        let mut progress = send(session, io, Event::LinkUp, &mut clock, transmit)?;
        while !progress.close {
            // Timeouts come first, so that a link with continuous input cannot starve them.
            if progress.again || clock() >= progress.wake {
                progress = send(session, io, Event::Tick, &mut clock, transmit)?;
            } else if session.is_silent(clock()) {
                wait(progress.wake);
            } else if io.read_ready()? {
                let n = io.read(&mut bytes)?;
                if n == 0 {
                    break;
                }
                let mut input = bytes.get(..n).unwrap_or_default();
                loop {
                    let event = match decoder.feed(&mut input) {
                        FeedResult::NeedMore => break,
                        FeedResult::Dropped(_) => continue,
                        FeedResult::Message(message) => Event::Message(message),
                        FeedResult::Sealed(frame) => Event::Sealed(frame),
                    };
                    progress = send(session, io, event, &mut clock, transmit)?;
                }
            } else if let Some((x, target)) = session.is_collecting().then(|| sensor.poll()).flatten() {
                progress = send(session, io, Event::Sample(x, target), &mut clock, transmit)?;
            } else {
                wait(progress.wake);
            }
        }
        Ok(())
    };
    let error = step().err().flatten();
    let last = session.handle(clock(), Event::LinkDown, transmit);
    Closed { retry_at: last.wake, error, frames: decoder.counters() }
}

/// Passes an event to the session and writes the resulting frame to the link.
fn send<T, S, P, R, IO>(
    session: &mut Session<T, S, P, R>,
    io: &mut IO,
    event: Event<'_>,
    clock: &mut impl FnMut() -> Millis,
    out: &mut [u8],
) -> Result<Progress, Option<IO::Error>>
where
    T: Task,
    S: SampleSource,
    P: Store,
    R: rand_core::Rng,
    IO: embedded_io::Write,
{
    let progress = session.handle(clock(), event, out);
    if progress.sent > 0 {
        let mut unsent = out.get(..progress.sent).unwrap_or_default();
        while !unsent.is_empty() {
            unsent = unwritten(io.write(unsent)?, unsent)?;
        }
        io.flush()?;
    }
    Ok(progress)
}

/// Returns the bytes after a write of `written` bytes. A write of 0 bytes ends the link; `write_all` would
/// panic.
fn unwritten<E>(written: usize, bytes: &[u8]) -> Result<&[u8], Option<E>> {
    if written == 0 { Err(None) } else { Ok(bytes.get(written..).unwrap_or_default()) }
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
pub async fn run_async<T, S, P, R, IO, F>(
    session: &mut Session<T, S, P, R>,
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
    IO: embedded_io_async::Read + embedded_io_async::Write,
    F: Future<Output = ()>,
{
    run_async_with_sensor(session, io, buffers, clock, sleep_until, &mut NoSensor).await
}

/// Runs `session` over an asynchronous link until the link is lost, like [`run_with_sensor`]. The future of
/// `sleep_until` must complete at the given time.
///
/// The driver cancels a read when the wake-up time comes first, so the link's `read` must be cancel-safe, as
/// `embedded-io-async` requires. Dropping the driver's future is safe; pass [`Event::LinkDown`] to the
/// session afterwards.
pub async fn run_async_with_sensor<T, S, P, R, IO, F>(
    session: &mut Session<T, S, P, R>,
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
    IO: embedded_io_async::Read + embedded_io_async::Write,
    F: Future<Output = ()>,
{
    let Buffers { receive, transmit } = buffers;
    let mut decoder = Decoder::new(receive);
    let mut bytes = [0u8; READ_SIZE];
    let mut error = None;
    let mut progress = session.handle(clock(), Event::LinkUp, transmit);
    'link: loop {
        if let Err(e) = write(io, transmit.get(..progress.sent).unwrap_or_default()).await {
            error = e;
            break;
        }
        if progress.close {
            break;
        }
        if progress.again {
            progress = session.handle(clock(), Event::Tick, transmit);
            continue;
        }
        #[cfg(feature = "privacy")]
        if session.is_silent(clock()) {
            sleep_until(progress.wake).await;
            progress = session.handle(clock(), Event::Tick, transmit);
            continue;
        }
        let collecting = session.is_collecting();
        let sample = async {
            match collecting {
                true => sensor.next().await,
                false => core::future::pending().await,
            }
        };
        let read = match select(io.read(&mut bytes), sample, sleep_until(progress.wake)).await {
            Selected::Io(Ok(0)) => break,
            Selected::Io(Ok(n)) => n,
            Selected::Io(Err(e)) => {
                error = Some(e);
                break;
            }
            Selected::Sample((x, target)) => {
                progress = session.handle(clock(), Event::Sample(x, target), transmit);
                continue;
            }
            Selected::Timeout => {
                progress = session.handle(clock(), Event::Tick, transmit);
                continue;
            }
        };
        progress.sent = 0;
        // Timeouts must not be starved by a link with continuous input.
        progress.again |= clock() >= progress.wake;
        let mut input = bytes.get(..read).unwrap_or_default();
        loop {
            let event = match decoder.feed(&mut input) {
                FeedResult::NeedMore => break,
                FeedResult::Dropped(_) => continue,
                FeedResult::Message(message) => Event::Message(message),
                FeedResult::Sealed(frame) => Event::Sealed(frame),
            };
            progress = session.handle(clock(), event, transmit);
            if let Err(e) = write(io, transmit.get(..progress.sent).unwrap_or_default()).await {
                error = e;
                break 'link;
            }
            progress.sent = 0;
        }
    }
    let last = session.handle(clock(), Event::LinkDown, transmit);
    Closed { retry_at: last.wake, error, frames: decoder.counters() }
}

/// Writes all bytes and flushes the link.
async fn write<IO: embedded_io_async::Write>(io: &mut IO, bytes: &[u8]) -> Result<(), Option<IO::Error>> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut unsent = bytes;
    while !unsent.is_empty() {
        unsent = unwritten(io.write(unsent).await?, unsent)?;
    }
    Ok(io.flush().await?)
}

/// Output of [`select`].
enum Selected<A, B> {
    /// Output of the link's future.
    Io(A),
    /// Output of the sensor's future.
    Sample(B),
    /// The timeout was first.
    Timeout,
}

/// Waits for the first of three futures. If several are ready, the link has priority over the sensor, and the
/// sensor over the timeout.
async fn select<A, B>(
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
