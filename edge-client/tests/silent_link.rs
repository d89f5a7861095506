//! Tests that the drivers hide the duration of a private computation. A serial line that is not read buffers
//! a limited number of bytes. The choice of the bytes that are lost must not depend on the duration.
#![cfg(feature = "privacy")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::priced_task::*;
use crate::common::problem::{Problem, create_problem, gradient_task, session_config};
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, run, run_async};
use fedspan_client::session::{Protection, Session};
use fedspan_client::source::{SampleSource, Samples};
use fedspan_client::{Linear, SourceError};
use fedspan_protocol::message::{Ack, AckOutcome, Fault, Missing, RoundId, Task as Wire, ToDevice, Welcome};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Waker that records that the future was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const LIMIT: u16 = 256;
const SLOT: u64 = 1_000;
/// Time at which the line ends, in milliseconds.
const END: u64 = 8 * SLOT;

/// Sample source that takes time: each pass advances the clock by `pass_time` milliseconds.
struct SlowSource {
    samples: Sliced,
    clock: Rc<Cell<u64>>,
    pass_time: u64,
}

impl SampleSource for SlowSource {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.clock.set(self.clock.get() + self.pass_time);
        self.samples.rewind(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        self.samples.next()
    }
}

/// Device's end of a serial line. Bytes arrive at given times, and are lost if the buffer is full.
#[derive(Clone)]
struct Line {
    clock: Rc<Cell<u64>>,
    arrivals: Rc<RefCell<VecDeque<(u64, u8)>>>,
    received: Rc<RefCell<VecDeque<u8>>>,
    buffer_size: usize,
    sent: Rc<RefCell<Vec<(u64, String)>>>,
}

impl Line {
    /// Receives the bytes that have arrived. Returns true if a read would return: a byte is available, or the
    /// end of file is reached.
    fn receive_arrived(&self) -> bool {
        let (mut arrivals, mut received) = (self.arrivals.borrow_mut(), self.received.borrow_mut());
        let arrived = arrivals.iter().take_while(|(time, _)| *time <= self.clock.get()).count();
        for (_, byte) in arrivals.drain(..arrived) {
            if received.len() < self.buffer_size {
                received.push_back(byte);
            }
        }
        !received.is_empty() || self.clock.get() >= END
    }

    /// Advances the clock to `until` or to the arrival of the next byte.
    fn wait_until(&self, until: u64) {
        self.receive_arrived();
        let now = self.clock.get();
        let end = if now < END { END } else { u64::MAX };
        let next = self.arrivals.borrow().front().map_or(end, |(time, _)| *time);
        self.clock.set(until.min(next).min(end).max(now));
    }

    /// Moves received bytes into `out`, and returns their number.
    fn take_received(&self, out: &mut [u8]) -> usize {
        let mut received = self.received.borrow_mut();
        let n = out.len().min(received.len());
        out.iter_mut().zip(received.drain(..n)).for_each(|(target, byte)| *target = byte);
        n
    }

    /// Records a frame of the device and its time.
    fn record_frame(&self, bytes: &[u8]) -> usize {
        let (message, body) = decode_frame(bytes, LIMIT.into());
        self.sent.borrow_mut().push((self.clock.get(), format!("{message:?} {body:?}")));
        bytes.len()
    }
}

impl embedded_io::ErrorType for Line {
    type Error = Infallible;
}

impl embedded_io::Read for Line {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Infallible> {
        Ok(self.take_received(out))
    }
}

impl embedded_io::ReadReady for Line {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(self.receive_arrived())
    }
}

impl embedded_io::WriteReady for Line {
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(true)
    }
}

impl embedded_io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        Ok(self.record_frame(bytes))
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl embedded_io_async::Read for Line {
    async fn read(&mut self, out: &mut [u8]) -> Result<usize, Infallible> {
        poll_fn(|_| if self.receive_arrived() { Poll::Ready(()) } else { Poll::Pending }).await;
        Ok(self.take_received(out))
    }
}

impl embedded_io_async::Write for Line {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        Ok(self.record_frame(bytes))
    }

    async fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Runs a device until the line is closed. Returns the sent frames with their times, and the time of the next
/// connection.
fn trace_device(
    problem: &Problem,
    pass_time: u64,
    arrivals: &[(u64, u8)],
    buffer_size: usize,
    asynchronous: bool,
) -> Vec<(u64, String)> {
    let clock = Rc::new(Cell::new(0));
    let source = SlowSource { samples: problem.samples.clone(), clock: clock.clone(), pass_time };
    let task = PricedTask::new(Linear::new(Heap::new(problem.d, problem.k, problem.c)), Some(1000), SLOT);
    let config = session_config(LIMIT);
    let random = ChaCha8Rng::seed_from_u64(1);
    let mut session = Session::new(config, Protection::Plaintext, task, source, Flash::default(), random);
    let mut line = Line {
        clock: clock.clone(),
        arrivals: Rc::new(RefCell::new(arrivals.iter().copied().collect())),
        received: Rc::default(),
        buffer_size,
        sent: Rc::default(),
    };
    let (mut receive, mut transmit) = (vec![0; LIMIT.into()], vec![0; config.transmit_capacity()]);
    let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
    let idle = line.clone();
    let closed = if asynchronous {
        let alarm = Cell::new(0);
        let sleep = |until: Millis| {
            let until = until.as_u64();
            let (idle, alarm) = (&idle, &alarm);
            poll_fn(move |_| {
                alarm.set(until);
                if idle.clock.get() >= until { Poll::Ready(()) } else { Poll::Pending }
            })
        };
        let mut future =
            pin!(run_async(&mut session, &mut line, buffers, || Millis::new(clock.get()), sleep));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(closed) => break closed,
                // The future lets other tasks run, which take no time.
                Poll::Pending if woken.0.swap(false, Ordering::Relaxed) => {}
                // The device sleeps until an alarm or an arriving byte.
                Poll::Pending => idle.wait_until(alarm.get()),
            }
        }
    } else {
        run(
            &mut session,
            &mut line,
            buffers,
            || Millis::new(clock.get()),
            |until: Millis| idle.wait_until(until.as_u64()),
        )
    };
    assert_eq!(session.counters().slots_missed, 0);
    let mut sent = line.sent.take();
    sent.push((clock.get(), format!("again at {}", closed.retry_at)));
    sent
}

/// Returns one of several frames that the server may send.
fn server_frame(problem: &Problem, kind: u8) -> Vec<u8> {
    let id = RoundId { round: 1, stage: 0 };
    let open = |round, task| {
        let (message, body) = problem.server(round, task, Encoding::F32, LIMIT).opening_messages().remove(0);
        encode_frame(&message, &body)
    };
    match kind % 8 {
        0 => encode_frame(&ToDevice::RoundClosed(id), &[]),
        1 => encode_frame(&ToDevice::Fault(Fault::Greet), &[]),
        2 => encode_frame(&ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }), &[]),
        3 => open(2, gradient_task()),
        4 => open(3, Wire::FitHead { head: EXACT }),
        5 => encode_frame(&ToDevice::RetryAfter { milliseconds: 100 }, &[]),
        6 => {
            let chunks = std::iter::once(0).collect();
            encode_frame(&ToDevice::Missing(Missing { id, tensor: 0, chunks }), &[])
        }
        _ => encode_frame(&ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 900 }), &[]),
    }
}

/// Returns the bytes of a Welcome and of the opening of a round, and of the frames after them. Each of these
/// frames has a kind, the time since the preceding frame, and a pause at some place.
fn incoming_bytes(problem: &Problem, later_frames: &[(u8, u64, usize, u64)]) -> Vec<(u64, u8)> {
    let opening = problem.server(1, gradient_task(), Encoding::F32, LIMIT).opening_messages();
    let mut bytes_with_times: Vec<_> = server_frame(problem, 7).into_iter().map(|byte| (1, byte)).collect();
    let mut time = 50;
    for (message, body) in opening {
        // The line carries one byte per millisecond.
        bytes_with_times
            .extend(encode_frame(&message, &body).into_iter().zip(time..).map(|(byte, time)| (time, byte)));
        time += 250;
    }
    for &(kind, delay, pause_position, pause) in later_frames {
        time += delay;
        let bytes = server_frame(problem, kind);
        let pause_position = pause_position % bytes.len();
        for (n, byte) in bytes.into_iter().enumerate() {
            time += if n == pause_position { pause } else { 0 };
            bytes_with_times.push((time, byte));
        }
    }
    bytes_with_times
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn drivers_hide_the_duration_of_a_computation(
        later_frames in prop::collection::vec(
            (any::<u8>(), 0..2 * SLOT, any::<usize>(), prop_oneof![Just(0), 0..2 * SLOT]), 0..6),
        buffer_size in prop::sample::select(vec![16usize, 64, 300, 1 << 20]),
        asynchronous in any::<bool>(),
    ) {
        let problem = create_problem(20, 2, 1);
        let arrivals = incoming_bytes(&problem, &later_frames);
        let first = trace_device(&problem, 0, &arrivals, buffer_size, asynchronous);
        prop_assert!(first.iter().any(|(_, description)| description.starts_with("Update")));
        // A round takes two passes, which together must be shorter than the slot.
        for pass_time in [1, 3, SLOT / 8, SLOT / 4, SLOT / 3, SLOT / 2 - 1] {
            let trace = trace_device(&problem, pass_time, &arrivals, buffer_size, asynchronous);
            prop_assert_eq!(&trace, &first, "{}", pass_time);
        }
    }
}
