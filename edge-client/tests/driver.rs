//! Tests of the driver that runs a session step by step: predictions between steps, steps that are dropped, a link that
//! accepts no bytes, and a clock that wraps.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, Closed, Driver, NoSensor, Step};
use fedspan_client::session::{Config, Sleep, Timers};
use fedspan_client::{NotReady, Task};
use fedspan_protocol::message::{Task as Wire, ToDevice, ToServer, decode};
use fedspan_protocol::tensor::Encoding;

use fedspan_protocol::frame::{Decoder, FeedResult};

/// Server at the other end of a link that can be full, and whose reads can be interrupted.
pub struct Peer {
    pub server: Server,
    decoder: Decoder<Vec<u8>>,
    pub to_device: Vec<u8>,
    is_full: bool,
    /// Number of polls of a read or write that are pending before it is ready.
    pending: u32,
    polls: u32,
}

/// Link to the server.
#[derive(Clone)]
pub struct Line(pub Rc<RefCell<Peer>>);

impl Line {
    pub fn new(server: Server) -> Self {
        let decoder = Decoder::new(vec![0; 4096]);
        let peer = Peer { server, decoder, to_device: Vec::new(), is_full: false, pending: 0, polls: 0 };
        Self(Rc::new(RefCell::new(peer)))
    }

    fn take(&self, out: &mut [u8]) -> usize {
        let mut peer = self.0.borrow_mut();
        let n = out.len().min(peer.to_device.len());
        out[..n].copy_from_slice(&peer.to_device[..n]);
        peer.to_device.drain(..n);
        n
    }

    fn accept(&self, bytes: &[u8]) -> usize {
        let mut peer = self.0.borrow_mut();
        let peer = &mut *peer;
        // Three bytes at a time, so that a frame takes many writes.
        let n = bytes.len().min(3);
        let (mut input, mut replies) = (&bytes[..n], Vec::new());
        loop {
            match peer.decoder.feed(&mut input) {
                FeedResult::NeedMore => break,
                FeedResult::Message(message) => {
                    let (message, body) = decode::<ToServer>(message).unwrap();
                    replies.extend(peer.server.handle_message(message, body.to_vec()));
                }
                other => panic!("the device's own frames are sound: {other:?}"),
            }
        }
        for (message, body) in replies {
            peer.to_device.extend(encode_frame(&message, &body));
        }
        n
    }

    /// Whether a poll is ready: as many are pending first as [`Peer::pending`] says.
    fn poll(&self) -> bool {
        let mut peer = self.0.borrow_mut();
        peer.polls += 1;
        peer.polls.is_multiple_of(peer.pending + 1)
    }
}

impl embedded_io::ErrorType for Line {
    type Error = embedded_io::ErrorKind;
}

impl embedded_io::Read for Line {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Self::Error> {
        Ok(self.take(out))
    }
}

impl embedded_io::ReadReady for Line {
    fn read_ready(&mut self) -> Result<bool, Self::Error> {
        Ok(!self.0.borrow().to_device.is_empty())
    }
}

impl embedded_io::WriteReady for Line {
    fn write_ready(&mut self) -> Result<bool, Self::Error> {
        Ok(!self.0.borrow().is_full)
    }
}

impl embedded_io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
        assert!(!self.0.borrow().is_full, "this write would block for ever");
        Ok(self.accept(bytes))
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl embedded_io_async::Read for Line {
    async fn read(&mut self, out: &mut [u8]) -> Result<usize, Self::Error> {
        std::future::poll_fn(|_| {
            let is_ready = self.poll() && !self.0.borrow().to_device.is_empty();
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(self.take(out))
    }
}

impl embedded_io_async::Write for Line {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
        std::future::poll_fn(|_| {
            let is_ready = self.poll() && !self.0.borrow().is_full;
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(self.accept(bytes))
    }

    async fn flush(&mut self) -> Result<(), Self::Error> {
        std::future::poll_fn(|_| if self.poll() { Poll::Ready(()) } else { Poll::Pending }).await;
        Ok(())
    }
}

/// Device and server with a round, and the parts of a driver.
struct World {
    problem: Problem,
    session: Device<Sliced>,
    receive: Vec<u8>,
    transmit: Vec<u8>,
    line: Line,
}

impl World {
    fn new(task: Wire, config: Config) -> Self {
        let problem = create_problem(20, 2, 1);
        let server = problem.server(1, task, Encoding::F32, config.frame_limit);
        let bench = Bench::new(config, Heap::new(20, 2, 1), problem.samples.clone(), Flash::default());
        Self {
            problem,
            session: bench.session,
            receive: vec![0; config.frame_limit.into()],
            transmit: vec![0; config.transmit_capacity()],
            line: Line::new(server),
        }
    }
}

/// Steps of a blocking driver until its link has nothing to do for a second, or ends. `between` is called between steps.
fn run_blocking(
    world: &mut World,
    clock: &Cell<u64>,
    mut between: impl FnMut(&mut Device<Sliced>),
) -> Option<Closed<embedded_io::ErrorKind>> {
    let buffers = Buffers { receive: &mut world.receive, transmit: &mut world.transmit };
    let mut driver = Driver::new(buffers);
    for _ in 0..100_000 {
        let now = Millis::new(clock.get());
        match driver.step(&mut world.session, &mut world.line, now, &mut NoSensor) {
            Step::Again => {}
            Step::Wait(until)
                if world.line.0.borrow().server.updates.is_empty() || world.line.0.borrow().is_full =>
            {
                assert!(until > now, "a wait for a time that has passed");
                clock.set(until.as_u64());
            }
            Step::Wait(_) => return None,
            Step::Closed(closed) => return Some(closed),
        }
        between(&mut world.session);
    }
    panic!("the driver does not come to rest");
}

/// The session belongs to the caller between steps: it predicts with the link open, and sees when the head is new.
#[test]
fn caller_predicts_while_the_link_is_open() {
    let mut world = World::new(Wire::FitHead { head: EXACT }, session_config(128));
    let clock = Cell::new(5);
    let x: Vec<f32> = world.problem.samples.x[..20].to_vec();
    let mut fitted = Vec::new();
    let (mut without_head, mut versions) = (0, Vec::new());
    assert_eq!(
        run_blocking(&mut world, &clock, |session| {
            let mut out = [0.0];
            let version = session.head_version();
            match session.task_mut().predict(&x, &mut out) {
                Ok(()) => {
                    fitted.push(out[0].to_bits());
                    versions.push(version);
                }
                Err(NotReady::NoHead | NotReady::NoRepresentation) => {
                    without_head += 1;
                    assert_eq!(version, 0);
                }
                Err(error) => panic!("{error}"),
            }
        }),
        None
    );
    assert!(without_head > 3 && fitted.len() > 3, "{without_head} {}", fitted.len());
    assert!(fitted.windows(2).all(|pair| pair[0] == pair[1]), "predictions changed the head");
    assert!(world.session.is_fitted());
    assert!(versions.iter().all(|version| *version == 1), "{versions:?}");
}

/// A step that is dropped at any point loses nothing: the update is the same.
#[test]
fn dropped_steps_lose_nothing() {
    let expected = {
        let mut world = World::new(gradient_task(), session_config(128));
        assert_eq!(run_blocking(&mut world, &Cell::new(5), |_| {}), None);
        bits(&world.line.0.borrow().server.update_values(0))
    };
    for pending in 0..5 {
        for polls in 1..4 {
            let mut world = World::new(gradient_task(), session_config(128));
            world.line.0.borrow_mut().pending = pending;
            let now = Cell::new(5_u64);
            let buffers = Buffers { receive: &mut world.receive, transmit: &mut world.transmit };
            let mut driver = Driver::new(buffers);
            let (mut clock, mut sensor) = (|| Millis::new(now.get()), NoSensor);
            let mut sleep = |until: Millis| {
                let now = &now;
                std::future::poll_fn(move |_| {
                    if now.get() >= until.as_u64() { Poll::Ready(()) } else { Poll::Pending }
                })
            };
            let mut dropped = 0;
            while world.line.0.borrow().server.updates.is_empty() {
                let step = driver.step_async(
                    &mut world.session,
                    &mut world.line,
                    &mut clock,
                    &mut sleep,
                    &mut sensor,
                );
                let mut step = pin!(step);
                let mut is_ready = false;
                for _ in 0..polls {
                    if let Poll::Ready(step) = step.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        assert!(matches!(step, Step::Again), "{step:?}");
                        is_ready = true;
                        break;
                    }
                }
                dropped += u32::from(!is_ready);
                assert!(
                    dropped < 10_000,
                    "no progress with {pending} pending polls and {polls} polls a step"
                );
                // Time passes slowly, so that no message is repeated.
                now.set(now.get() + u64::from(dropped % 50 == 0));
            }
            assert!(dropped > 0 || pending < polls, "{pending} {polls}");
            assert_eq!(bits(&world.line.0.borrow().server.update_values(0)), expected, "{pending} {polls}");
        }
    }
}

/// A link that accepts no bytes is given up after the time limit, and not before.
#[test]
fn full_link_is_given_up() {
    let timers = Timers { write: 3_000, ..Timers::DEFAULT };
    let config = Config { timers, ..session_config(128) };
    let mut world = World::new(gradient_task(), config);
    world.line.0.borrow_mut().is_full = true;
    let clock = Cell::new(1_000);
    let closed = run_blocking(&mut world, &clock, |_| {}).unwrap();
    assert!(closed.is_stalled && closed.error.is_none());
    assert_eq!(clock.get(), 4_000);
    assert!(closed.retry_at > Millis::new(4_000));
    // The same driver works over the next link.
    world.line.0.borrow_mut().is_full = false;
    assert_eq!(run_blocking(&mut world, &clock, |_| {}), None);
    assert_eq!(world.line.0.borrow().server.updates.len(), 1);

    let mut world = World::new(gradient_task(), config);
    world.line.0.borrow_mut().is_full = true;
    let now = Cell::new(1_000_u64);
    let buffers = Buffers { receive: &mut world.receive, transmit: &mut world.transmit };
    let mut driver = Driver::new(buffers);
    let closed = loop {
        let (mut clock, mut sensor) = (|| Millis::new(now.get()), NoSensor);
        let mut sleep = |until: Millis| {
            let now = &now;
            std::future::poll_fn(
                move |_| if now.get() >= until.as_u64() { Poll::Ready(()) } else { Poll::Pending },
            )
        };
        let step =
            driver.step_async(&mut world.session, &mut world.line, &mut clock, &mut sleep, &mut sensor);
        let mut step = pin!(step);
        let polled = step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(Step::Closed(closed)) => break closed,
            Poll::Ready(_) => {}
            Poll::Pending => now.set(now.get() + 100),
        }
        assert!(now.get() < 100_000, "the write is never given up, though the steps are dropped");
    };
    assert!(closed.is_stalled);
    assert!((4_000..4_200).contains(&now.get()), "{}", now.get());
}

/// A counter of 32 bits that wraps in the middle of a round, and a clock that is set back, delay nothing.
#[test]
fn clock_may_wrap_or_jump_back() {
    for back in [u64::from(u32::MAX) + 1, 500, 3_600_000] {
        let mut world = World::new(gradient_task(), session_config(128));
        // The first hello is lost, so that the session has to wait for a timer over the jump.
        world.line.0.borrow_mut().is_full = false;
        let start = u64::from(u32::MAX) - 1_000;
        let passed = Cell::new(0_u64);
        let buffers = Buffers { receive: &mut world.receive, transmit: &mut world.transmit };
        let mut driver = Driver::new(buffers);
        let mut lost = 0;
        while world.line.0.borrow().server.updates.is_empty() {
            let time = start + passed.get();
            let now = Millis::new(if passed.get() >= 1_500 { time - back } else { time });
            match driver.step(&mut world.session, &mut world.line, now, &mut NoSensor) {
                Step::Again => {}
                Step::Wait(_) => passed.set(passed.get() + 100),
                Step::Closed(closed) => panic!("{closed:?}"),
            }
            // Everything that the server sends before the jump is lost.
            if passed.get() < 2_000 {
                lost += world.line.0.borrow_mut().to_device.drain(..).count();
            }
            assert!(passed.get() < 60_000, "the device waits for a time that has passed");
        }
        assert!(lost > 0, "the device has waited for nothing");
        // The session has not been called since the start, so it does not see a jump that leads to a later time.
        assert_eq!(world.session.counters().clock_jumps, u32::from(back > 1_500), "{back}");
        assert!(passed.get() < 10_000, "{} ms", passed.get());
        assert!(world.session.task().head().iter().all(|value| value.is_finite()));
    }
}

/// A clock that goes back while a write is pending delays neither the time limit of the write nor what follows it.
#[test]
fn clock_may_go_back_during_a_write() {
    for accepts_again in [false, true] {
        let timers = Timers { write: 3_000, ..Timers::DEFAULT };
        let mut world = World::new(gradient_task(), Config { timers, ..session_config(128) });
        world.line.0.borrow_mut().is_full = true;
        let start = u64::from(u32::MAX) - 1_000;
        let buffers = Buffers { receive: &mut world.receive, transmit: &mut world.transmit };
        let mut driver = Driver::new(buffers);
        let mut passed = 0;
        let end = loop {
            let now = Millis::new((start + passed) % (1 << 32));
            match driver.step(&mut world.session, &mut world.line, now, &mut NoSensor) {
                Step::Again => {}
                Step::Wait(_) => passed += 100,
                Step::Closed(closed) => break Some(closed),
            }
            // The first hello is lost, so that a timer has to repeat it after the jump.
            let mut peer = world.line.0.borrow_mut();
            peer.is_full = !(accepts_again && passed >= 2_000);
            if passed < 3_000 {
                peer.to_device.clear();
            }
            assert!(passed < 60_000, "the driver waits for a time that has passed");
            if !peer.server.updates.is_empty() {
                break None;
            }
        };
        match end {
            Some(closed) => assert!(closed.is_stalled && !accepts_again && passed <= 5_000, "{passed} ms"),
            None => assert!(accepts_again && passed <= 8_000, "{passed} ms"),
        }
    }
}

/// An answer that is named by `ToDevice::RetryAfter` is obeyed on the caller's clock, also after a jump.
#[test]
fn times_are_those_of_the_callers_clock() {
    let mut bench = create_problem(20, 2, 1).bench(256);
    bench.now = 1 << 32;
    bench.connect(7, 60_000);
    bench.now = 5_000;
    bench.receive_message(&ToDevice::RetryAfter { milliseconds: 30_000 }, &[]);
    assert_eq!(bench.last.wake, Millis::new(35_000));
    assert_eq!(bench.session.counters().clock_jumps, 1);
}

/// A caller with a counter of 32 bits waits for durations, `until - now`: a time beyond the counter's end would never come.
#[test]
fn caller_with_a_clock_of_32_bits_waits_for_durations() {
    let timers = Timers { write: 3_000, ..Timers::DEFAULT };
    for (name, sleep) in [("lost hello", None), ("sleep", Some(Sleep::once_in(3_600_000)))] {
        let mut world = World::new(gradient_task(), Config { timers, sleep, ..session_config(128) });
        let (start, mut passed) = (u64::from(u32::MAX) - 1_000, 0_u64);
        let mut driver = Driver::new(Buffers { receive: &mut world.receive, transmit: &mut world.transmit });
        let (mut longest, mut links) = (0, 0);
        while links < 3 && passed < 4 * 3_600_000 {
            let now = Millis::new((start + passed) % (1 << 32));
            let wait = match driver.step(&mut world.session, &mut world.line, now, &mut NoSensor) {
                Step::Again => continue,
                Step::Wait(until) => until - now,
                Step::Closed(closed) => {
                    links += 1;
                    closed.retry_at - now
                }
            };
            // The first answers are lost, so that a timer of the session spans the end of the counter.
            if passed < 1_000 {
                world.line.0.borrow_mut().to_device.clear();
            }
            // Input may arrive earlier than the time; the server's is there at once.
            let has_input = !world.line.0.borrow().to_device.is_empty();
            let wait = if has_input { 0 } else { wait.as_u64() };
            longest = longest.max(wait);
            passed += wait;
        }
        assert!(!world.line.0.borrow().server.updates.is_empty(), "{name}: no update");
        let expected = if sleep.is_some() { 3_600_000 } else { 20_000 };
        assert_eq!(longest, expected, "{name}");
    }
}
