//! Drives a [`Session`] over a byte stream: blocking ([`run`], `embedded-io`) and asynchronous
//! ([`run_async`], `embedded-io-async`). Both return when the link is gone; connecting anew, at the time
//! they return, is the caller's, who alone knows what a link is. Sessions that stream get their samples from
//! a [`Sensor`] through the variants `_with_sensor`.
//!
//! While a private device is quiet ([`Session::silent_until`]) nothing is read: what comes waits in the link, or is lost there,
//! as it does while the device computes. So it depends on no computation which bytes of which frame are heard, and when a
//! link is found to be gone. A driver of one's own does the same.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use fedspan_protocol::frame::{Decoder, Fed, FrameCounters};

use crate::session::{Event, Progress, Session};
use crate::source::{SampleSource, Targets};
use crate::store::Store;
use crate::task::Task;
use crate::time::Millis;

/// Bytes read at once.
const READ: usize = 64;

/// The link is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<E> {
    /// When to connect again, on the caller's clock.
    pub retry_at: Millis,
    /// What the link reported; `None` if the peer closed it, or the session did, or it takes no more bytes.
    pub error: Option<E>,
    /// Frames accepted and thrown away on this link.
    pub frames: FrameCounters,
}

/// The two buffers of a link, owned by the caller.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// Receives frames: as long as the session's frame limit.
    pub receive: &'a mut [u8],
    /// Holds one outgoing frame: [`crate::session::Config::transmit_capacity`] bytes.
    pub transmit: &'a mut [u8],
}

/// A sensor whose samples are seen once, for a session that streams
/// ([`crate::session::Sampling::Stream`]). It is only asked while a round collects samples.
pub trait Sensor {
    /// The next sample (d values) with its target, if there is one now.
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)>;
}

/// The sensor of a session that does not stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSensor;

impl Sensor for NoSensor {
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)> {
        None
    }
}

/// [`run_with_sensor`] for a session that does not stream.
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

/// Runs `session` over a link that just came up, until it goes down.
///
/// `clock` tells the time; `wait` is called when there is nothing to do until the given time and may
/// return early (an interrupt, a byte): `|_| cortex_m::asm::wfi()` will do.
///
/// End of file (a read of 0 bytes) and errors end the link. A frame is written whole before the next is
/// made, so a slow link slows the session down and nothing is queued.
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
    let mut bytes = [0u8; READ];
    let mut step = || -> Result<(), Option<IO::Error>> {
        let mut progress = send(session, io, Event::LinkUp, &mut clock, transmit)?;
        while !progress.close {
            // Time first: a link that is never silent must not keep the session from its wake-ups.
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
                        Fed::NeedMore => break,
                        Fed::Dropped(_) => continue,
                        Fed::Message(message) => Event::Message(message),
                        Fed::Sealed(frame) => Event::Sealed(frame),
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
            rest = after(io.write(rest)?, rest)?;
        }
        io.flush()?;
    }
    Ok(progress)
}

/// What is left of `bytes` when `written` are. A link that takes nothing is closed; `write_all` would panic.
fn after<E>(written: usize, bytes: &[u8]) -> Result<&[u8], Option<E>> {
    if written == 0 { Err(None) } else { Ok(bytes.get(written..).unwrap_or_default()) }
}

/// [`Sensor`] for an asynchronous link.
pub trait AsyncSensor {
    /// The next sample (d values) with its target. Must be cancel-safe: what was not returned must come again.
    fn next(&mut self) -> impl Future<Output = (&[f32], Targets<'_>)>;
}

impl AsyncSensor for NoSensor {
    async fn next(&mut self) -> (&[f32], Targets<'_>) {
        core::future::pending().await
    }
}

/// [`run_async_with_sensor`] for a session that does not stream.
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
/// Reads are cancelled when the wake-up time comes first: `read` of the link must be cancel-safe, as
/// `embedded-io-async` asks for. Dropping the future is safe; the session then has to be told
/// [`Event::LinkDown`].
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
    let mut bytes = [0u8; READ];
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
        let read = match first(io.read(&mut bytes), sample, sleep_until(progress.wake)).await {
            First::Work(Ok(0)) => break,
            First::Work(Ok(n)) => n,
            First::Work(Err(e)) => {
                error = Some(e);
                break;
            }
            First::Sample((x, target)) => {
                progress = session.handle(clock(), Event::Sample(x, target), transmit);
                continue;
            }
            First::Time => {
                progress = session.handle(clock(), Event::Tick, transmit);
                continue;
            }
        };
        progress.sent = 0;
        // A link that is never silent must not keep the session from its wake-ups.
        progress.again |= clock() >= progress.wake;
        let mut input = bytes.get(..read).unwrap_or_default();
        loop {
            let event = match decoder.feed(&mut input) {
                Fed::NeedMore => break,
                Fed::Dropped(_) => continue,
                Fed::Message(message) => Event::Message(message),
                Fed::Sealed(frame) => Event::Sealed(frame),
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
        rest = after(io.write(rest).await?, rest)?;
    }
    Ok(io.flush().await?)
}

/// Which of three came first.
enum First<A, B> {
    Work(A),
    Sample(B),
    Time,
}

/// The first of three futures to complete; on a tie the link before the sensor before the clock.
async fn first<A, B>(
    work: impl Future<Output = A>,
    sample: impl Future<Output = B>,
    limit: impl Future<Output = ()>,
) -> First<A, B> {
    let (mut work, mut sample, mut limit) = (pin!(work), pin!(sample), pin!(limit));
    poll_fn(|context| {
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(First::Work(output));
        }
        if let Poll::Ready(output) = sample.as_mut().poll(context) {
            return Poll::Ready(First::Sample(output));
        }
        limit.as_mut().poll(context).map(|()| First::Time)
    })
    .await
}
