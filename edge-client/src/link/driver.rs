//! Driver of a session over a byte stream, one step at a time. Between two steps the session belongs to the caller, who can
//! predict with the model, feed a watchdog, or leave the link.

use core::future::Future;
use core::ops::Range;

use fedspan_protocol::frame::{Decoder, FeedResult};

use super::select::{Selected, select};
use super::{AsyncSensor, Buffers, Closed, READ_SIZE, Sensor};
use crate::session::{Aead, Event, Progress, Session};
use crate::source::SampleSource;
use crate::store::{Commit, Store};
use crate::task::Task;
use crate::time::Millis;

/// Result of a step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<E> {
    /// The step has done something; the next step may have more to do.
    Again,
    /// Nothing is to be done until this time on the caller's clock, or until the link is ready to be read or written. Only
    /// blocking steps return this; asynchronous ones wait. A caller whose clock wraps waits for the time less `now`.
    Wait(Millis),
    /// The link has ended. The next step begins a new one over its own stream.
    Closed(Closed<E>),
}

/// Driver of a session over one link after the other.
///
/// A step handles at most one event: it reads at most 64 bytes, passes one frame or one sample to the session, or writes at
/// most one frame. A round is computed within one step. Where [`Driver::is_urgent`], the next step must follow at once: a
/// private device measures the time of its computation between the two.
#[derive(Debug)]
pub struct Driver<'a> {
    decoder: Decoder<&'a mut [u8]>,
    transmit: &'a mut [u8],
    /// Part of `transmit` that is not written yet.
    unsent: Range<usize>,
    /// True if everything is written, but not flushed.
    is_unflushed: bool,
    /// Time from which the time limit of an unfinished write counts.
    written_at: Millis,
    received: [u8; READ_SIZE],
    /// Part of `received` that is not decoded yet.
    unread: Range<usize>,
    /// Answer of the session to the last event; `None` before the link has begun.
    progress: Option<Progress>,
    /// Caller's time at the last step.
    last: Millis,
    /// True if the caller's clock has gone back since the session was called.
    has_jumped: bool,
}

/// Byte stream whose operations never block.
pub trait NonBlockingLink {
    /// Error that ends the link.
    type Error;

    /// Reads bytes that have arrived and returns their number: `None` if none have arrived yet, 0 at the end of the stream.
    ///
    /// # Errors
    /// The link is lost.
    fn read(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, Self::Error>;

    /// Writes the first of `bytes` and returns their number: `None` if none can be written yet, 0 at the end of the stream.
    ///
    /// # Errors
    /// The link is lost.
    fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, Self::Error>;

    /// Sends what was written.
    ///
    /// # Errors
    /// The link is lost.
    fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Link that is asked whether it is ready before each operation.
struct AskedFirst<'a, IO>(&'a mut IO);

impl<IO> NonBlockingLink for AskedFirst<'_, IO>
where
    IO: embedded_io::Read + embedded_io::Write + embedded_io::ReadReady + embedded_io::WriteReady,
{
    type Error = IO::Error;

    fn read(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, IO::Error> {
        if self.0.read_ready()? { self.0.read(bytes).map(Some) } else { Ok(None) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, IO::Error> {
        if self.0.write_ready()? { self.0.write(bytes).map(Some) } else { Ok(None) }
    }

    fn flush(&mut self) -> Result<(), IO::Error> {
        self.0.flush()
    }
}

/// Next action of a step.
enum Action {
    /// An event was handled.
    Handled,
    /// Bytes are to be written, or written ones to be flushed.
    Write,
    /// The link is to be closed.
    Close,
    /// Nothing may be read before this time.
    Silent(Millis),
    /// The link is to be read, or a sample to be taken, until this time.
    Read(Millis),
}

/// Reason for the end of a link.
enum End<E> {
    /// The session has left the link, or the other side has.
    Left,
    /// The link accepted no byte in time.
    Stalled,
    /// The link has failed.
    Failed(E),
}

impl<'a> Driver<'a> {
    /// Creates a driver without a link.
    #[must_use]
    pub fn new(buffers: Buffers<'a>) -> Self {
        Self {
            decoder: Decoder::new(buffers.receive),
            transmit: buffers.transmit,
            unsent: 0..0,
            is_unflushed: false,
            written_at: Millis::ZERO,
            received: [0; READ_SIZE],
            unread: 0..0,
            progress: None,
            last: Millis::ZERO,
            has_jumped: false,
        }
    }

    /// Does one step over a link that blocks only where it is not ready: [`Self::step_non_blocking`] over
    /// [`ReadReady`](embedded_io::ReadReady) and [`WriteReady`](embedded_io::WriteReady). Only `flush` of a link that buffers
    /// what is written can block.
    pub fn step<T, S, P, R, A, IO>(
        &mut self,
        session: &mut Session<T, S, P, R, A>,
        io: &mut IO,
        now: Millis,
        sensor: &mut dyn Sensor,
    ) -> Step<IO::Error>
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
        IO: embedded_io::Read + embedded_io::Write + embedded_io::ReadReady + embedded_io::WriteReady,
    {
        self.step_non_blocking(session, &mut AskedFirst(io), now, sensor)
    }

    /// Does one step over a link that never blocks. `sensor` is asked for a sample while a round collects samples
    /// ([`super::NoSensor`] if none does).
    ///
    /// A link that accepts no byte for [`Timers::write`](crate::session::Timers::write) is ended.
    pub fn step_non_blocking<T, S, P, R, A, L>(
        &mut self,
        session: &mut Session<T, S, P, R, A>,
        link: &mut L,
        now: Millis,
        sensor: &mut dyn Sensor,
    ) -> Step<L::Error>
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
        L: NonBlockingLink,
    {
        self.try_step(session, link, now, sensor).unwrap_or_else(|end| self.close(session, now, end))
    }

    fn try_step<T, S, P, R, A, L>(
        &mut self,
        session: &mut Session<T, S, P, R, A>,
        link: &mut L,
        now: Millis,
        sensor: &mut dyn Sensor,
    ) -> Result<Step<L::Error>, End<L::Error>>
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
        L: NonBlockingLink,
    {
        Ok(match self.advance(session, now) {
            Action::Handled => Step::Again,
            Action::Close => return Err(End::Left),
            Action::Silent(until) => Step::Wait(until),
            Action::Write if self.is_unflushed => {
                link.flush().map_err(End::Failed)?;
                self.is_unflushed = false;
                Step::Again
            }
            Action::Write => match link.write(self.unsent_bytes()).map_err(End::Failed)? {
                Some(0) => return Err(End::Left),
                Some(written) => self.written(now, written),
                None => {
                    let until = self.written_at + session.write_limit();
                    if now >= until {
                        return Err(End::Stalled);
                    }
                    Step::Wait(until)
                }
            },
            Action::Read(until) => {
                if let Some(read) = link.read(&mut self.received).map_err(End::Failed)? {
                    if read == 0 {
                        return Err(End::Left);
                    }
                    self.received(read)
                } else if let Some((x, target)) = session.is_collecting().then(|| sensor.poll()).flatten() {
                    self.handle(session, now, Event::Sample(x, target));
                    Step::Again
                } else {
                    Step::Wait(until)
                }
            }
        })
    }

    /// Does one step over an asynchronous link: waits until the session has something to do, and does it. `sleep_until` must
    /// complete at the given time on the clock.
    ///
    /// The future may be dropped at any time without a loss, for example because another one was ready first, if `read` and
    /// `write` of the link may be. The session then belongs to the caller until the next step.
    pub async fn step_async<T, S, P, R, A, IO, F>(
        &mut self,
        session: &mut Session<T, S, P, R, A>,
        io: &mut IO,
        clock: &mut impl FnMut() -> Millis,
        sleep_until: &mut impl FnMut(Millis) -> F,
        sensor: &mut impl AsyncSensor,
    ) -> Step<IO::Error>
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
        IO: embedded_io_async::Read + embedded_io_async::Write,
        F: Future<Output = ()>,
    {
        let now = clock();
        match self.advance(session, now) {
            Action::Handled => Step::Again,
            Action::Close => self.close(session, now, End::Left),
            Action::Silent(until) => {
                sleep_until(until).await;
                Step::Again
            }
            Action::Write => {
                let time_limit = sleep_until(self.written_at + session.write_limit());
                let written = if self.is_unflushed {
                    let flush = async { io.flush().await.map(|()| None) };
                    select(flush, core::future::pending::<()>(), time_limit).await
                } else {
                    let unsent = self.transmit.get(self.unsent.clone()).unwrap_or_default();
                    let write = async { io.write(unsent).await.map(Some) };
                    select(write, core::future::pending::<()>(), time_limit).await
                };
                let now = clock();
                match written {
                    Selected::Io(Ok(None)) => {
                        self.is_unflushed = false;
                        Step::Again
                    }
                    Selected::Io(Ok(Some(0))) | Selected::Sample(()) => self.close(session, now, End::Left),
                    Selected::Io(Ok(Some(written))) => self.written(now, written),
                    Selected::Io(Err(error)) => self.close(session, now, End::Failed(error)),
                    Selected::Timeout => self.close(session, now, End::Stalled),
                }
            }
            Action::Read(until) => {
                let is_collecting = session.is_collecting();
                let sample = async {
                    match is_collecting {
                        true => sensor.next().await,
                        false => core::future::pending().await,
                    }
                };
                match select(io.read(&mut self.received), sample, sleep_until(until)).await {
                    Selected::Io(Ok(0)) => self.close(session, clock(), End::Left),
                    Selected::Io(Ok(read)) => self.received(read),
                    Selected::Io(Err(error)) => self.close(session, clock(), End::Failed(error)),
                    Selected::Sample((x, target)) => {
                        let now = clock();
                        self.handle(session, now, Event::Sample(x, target));
                        Step::Again
                    }
                    Selected::Timeout => Step::Again,
                }
            }
        }
    }

    /// Does one step over an asynchronous link, like [`Self::step_async`], with storage that is written asynchronously: what the session
    /// has stored is committed before a frame is written. If that fails, the frame is not sent, the link is closed
    /// and the failure counted ([`Counters::storage`](crate::session::Counters::storage)).
    pub async fn step_async_with_commit<T, S, P, R, A, IO, F>(
        &mut self,
        session: &mut Session<T, S, P, R, A>,
        io: &mut IO,
        clock: &mut impl FnMut() -> Millis,
        sleep_until: &mut impl FnMut(Millis) -> F,
        sensor: &mut impl AsyncSensor,
    ) -> Step<IO::Error>
    where
        T: Task,
        S: SampleSource,
        P: Commit,
        R: rand_core::Rng,
        A: Aead + Clone,
        IO: embedded_io_async::Read + embedded_io_async::Write,
        F: Future<Output = ()>,
    {
        // Also before a link begins: without what could not be read so far, the session has nothing to send.
        let must_commit = !self.unsent.is_empty() || self.progress.is_none();
        if must_commit && session.store().is_dirty() && session.commit().await.is_err() {
            return self.close(session, clock(), End::Left);
        }
        self.step_async(session, io, clock, sleep_until, sensor).await
    }

    /// Whether the session waits for the next step: it has more to send, or has computed and needs the time at which the
    /// computation ended. The caller must not do anything else before that step.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.progress.is_some_and(|progress| progress.again)
    }

    /// Handles the next event that needs neither the link nor a sensor, or says what to do with them.
    fn advance<T, S, P, R, A>(&mut self, session: &mut Session<T, S, P, R, A>, now: Millis) -> Action
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
    {
        if now < core::mem::replace(&mut self.last, now) {
            self.has_jumped = true;
            self.written_at = now;
        }
        let event = if let Some(progress) = self.progress {
            if self.is_unflushed || !self.unsent.is_empty() {
                return Action::Write;
            }
            if progress.close {
                return Action::Close;
            }
            // Timeouts come before input, so that a link with continuous input cannot starve them. After a jump of the clock, the
            // session has to name another time.
            if progress.again || self.has_jumped || now >= progress.wake {
                Event::Tick
            } else if session.is_silent(now) {
                return Action::Silent(progress.wake);
            } else {
                let mut input = self.received.get(self.unread.clone()).unwrap_or_default();
                if input.is_empty() {
                    return Action::Read(progress.wake);
                }
                let fed = self.decoder.feed(&mut input);
                self.unread.start = self.unread.end.saturating_sub(input.len());
                match fed {
                    FeedResult::NeedMore | FeedResult::Dropped(_) => return Action::Handled,
                    FeedResult::Message(message) => Event::Message(message),
                    FeedResult::Sealed(frame) => Event::Sealed(frame),
                }
            }
        } else {
            self.decoder.reset();
            Event::LinkUp
        };
        let progress = session.handle(now, event, self.transmit);
        self.answered(now, progress);
        Action::Handled
    }

    /// Passes an event to the session.
    fn handle<T, S, P, R, A>(&mut self, session: &mut Session<T, S, P, R, A>, now: Millis, event: Event<'_>)
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
    {
        let progress = session.handle(now, event, self.transmit);
        self.answered(now, progress);
    }

    /// Keeps the answer of the session to an event, and the frame to be written.
    fn answered(&mut self, now: Millis, progress: Progress) {
        self.has_jumped = false;
        self.unsent = 0..progress.sent;
        self.written_at = now;
        self.progress = Some(progress);
    }

    fn unsent_bytes(&self) -> &[u8] {
        self.transmit.get(self.unsent.clone()).unwrap_or_default()
    }

    /// Records that the link has accepted bytes.
    fn written<E>(&mut self, now: Millis, written: usize) -> Step<E> {
        self.unsent.start = self.unsent.end.min(self.unsent.start.saturating_add(written));
        self.is_unflushed = self.unsent.is_empty();
        self.written_at = now;
        Step::Again
    }

    /// Records that bytes have been read.
    fn received<E>(&mut self, read: usize) -> Step<E> {
        self.unread = 0..read.min(READ_SIZE);
        Step::Again
    }

    /// Ends the link.
    fn close<T, S, P, R, A, E>(
        &mut self,
        session: &mut Session<T, S, P, R, A>,
        now: Millis,
        end: End<E>,
    ) -> Step<E>
    where
        T: Task,
        S: SampleSource,
        P: Store,
        R: rand_core::Rng,
        A: Aead + Clone,
    {
        let last = session.handle(now, Event::LinkDown, self.transmit);
        (self.unsent, self.unread, self.is_unflushed, self.progress) = (0..0, 0..0, false, None);
        let (error, is_stalled) = match end {
            End::Left => (None, false),
            End::Stalled => (None, true),
            End::Failed(error) => (Some(error), false),
        };
        Step::Closed(Closed { retry_at: last.wake, error, is_stalled, frames: self.decoder.counters() })
    }
}
