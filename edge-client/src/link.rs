//! Drivers that run a [`Session`] over a byte stream: blocking ([`run`], `embedded-io`) and asynchronous
//! ([`run_async`], `embedded-io-async`).
//!
//! Both return when the link is lost, with the time at which to connect again; connecting is the caller's
//! task, since only the caller knows the link. Sessions that stream get their samples from a [`Sensor`]
//! through the `_with_sensor` variants.
//!
//! While a private device is silent ([`Session::silent_until`]) the drivers do not read: input waits in the
//! link or is lost there, as it is while the device computes. Neither the bytes that are handled nor the
//! moment at which a lost link is noticed then depends on the duration of a computation. A driver of your own
//! must do the same.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use fedspan_protocol::frame::{Decoder, FeedResult, FrameCounters};

use crate::session::{Event, Progress, Session};
use crate::source::{SampleSource, Targets};
use crate::store::Store;
use crate::task::Task;
use crate::time::Millis;

/// Bytes per read.
const READ_SIZE: usize = 64;

/// Result of a driver: the link is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<E> {
    /// Time at which to connect again, on the caller's clock.
    pub retry_at: Millis,
    /// The link's error. `None` if the peer or the session closed the link, or if it accepted no more bytes.
    pub error: Option<E>,
    /// Numbers of frames accepted and dropped on this link.
    pub frames: FrameCounters,
}

/// The two buffers of a link, owned by the caller.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// Buffer for received frames: as long as the session's frame limit.
    pub receive: &'a mut [u8],
    /// Buffer for one outgoing frame: [`crate::session::Config::transmit_capacity`] bytes.
    pub transmit: &'a mut [u8],
}

/// A sensor whose samples are seen once, for a session that streams ([`crate::session::Sampling::Stream`]).
/// The driver polls it only while a round collects samples.
pub trait Sensor {
    /// The next sample (d values) with its target, if one is available now.
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)>;
}

/// Sensor of a session that does not stream: it never has a sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSensor;

impl Sensor for NoSensor {
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)> {
        None
    }
}

/// Runs a session that does not stream: [`run_with_sensor`] without a sensor.
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

/// Runs `session` over a link that has just come up, until it goes down.
///
/// `clock` returns the current time. `wait` is called when there is nothing to do until the given time; it
/// may return early, on an interrupt or a byte: `|_| cortex_m::asm::wfi()` will do.
///
/// End of file (a read of 0 bytes) and errors end the link. Each frame is written completely before the next
/// is encoded, so a slow link slows the session down and nothing is queued.
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
            // Timeouts first: a link that never falls silent must not starve them.
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
        let mut rest = out.get(..progress.sent).unwrap_or_default();
        while !rest.is_empty() {
            rest = unwritten(io.write(rest)?, rest)?;
        }
        io.flush()?;
    }
    Ok(progress)
}

/// The rest of `bytes` after a write of `written`. A write of 0 bytes ends the link; `write_all` would panic.
fn unwritten<E>(written: usize, bytes: &[u8]) -> Result<&[u8], Option<E>> {
    if written == 0 { Err(None) } else { Ok(bytes.get(written..).unwrap_or_default()) }
}

/// [`Sensor`] for an asynchronous link.
pub trait AsyncSensor {
    /// The next sample (d values) with its target. Must be cancel-safe: a sample that was not returned must
    /// be returned by the next call.
    fn next(&mut self) -> impl Future<Output = (&[f32], Targets<'_>)>;
}

impl AsyncSensor for NoSensor {
    async fn next(&mut self) -> (&[f32], Targets<'_>) {
        core::future::pending().await
    }
}

/// Runs a session that does not stream: [`run_async_with_sensor`] without a sensor.
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

/// Like [`run_with_sensor`], for an asynchronous link. `sleep_until` completes at the given time.
///
/// Reads are cancelled when the wake-up time comes first: the link's `read` must be cancel-safe, as
/// `embedded-io-async` requires. Dropping the future is safe; pass [`Event::LinkDown`] to the session
/// afterwards.
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
        // A link that never falls silent must not starve the timeouts.
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

async fn write<IO: embedded_io_async::Write>(io: &mut IO, bytes: &[u8]) -> Result<(), Option<IO::Error>> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = unwritten(io.write(rest).await?, rest)?;
    }
    Ok(io.flush().await?)
}

/// Output of [`select`].
enum Selected<A, B> {
    Io(A),
    Sample(B),
    Timeout,
}

/// Waits for the first of three futures. On a tie the link wins over the sensor, and the sensor over the
/// clock.
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
