//! Tests of the blocking and the asynchronous driver over links in memory: reads of any length, partial
//! writes, noise, end of file, errors.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::common::server::*;
use crate::common::*;
use embedded_io::ErrorKind;
use fedspan_client::Millis;
use fedspan_client::link::{
    AsyncSensor, Buffers, Closed, Sensor, run, run_async, run_async_with_sensor, run_with_sensor,
};
use fedspan_client::session::{Config, Counters, Event, Sampling};
use fedspan_client::source::Targets;
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::message::{ToDevice, ToServer, Upload, decode};
use fedspan_protocol::tensor::{Encoding, Role};

const D: usize = 57;
const K: usize = 8;

/// Other end of the link, with a server.
struct Peer {
    server: Server,
    decoder: Decoder<Vec<u8>>,
    to_device: VecDeque<u8>,
    /// Largest number of bytes per read.
    read_at_once: usize,
    /// Largest number of bytes per write.
    write_at_once: usize,
    /// Returns the noise before a frame with this index. Noise without a final zero destroys the following
    /// frame.
    noise: Box<dyn FnMut(usize) -> Vec<u8>>,
    frames: usize,
    /// Number of bytes read after which the link is closed.
    end_after_reading: usize,
    /// Number of bytes read after which the link fails.
    fail_after_reading: usize,
    /// Number of bytes written after which the link fails.
    fail_after_writing: usize,
    read: usize,
    written: usize,
    closed: bool,
    /// Whether the link accepts no bytes.
    is_full: bool,
    idle: usize,
}

/// Handle to the peer, as the reader and writer of the device.
#[derive(Clone)]
struct LinkEnd(Rc<RefCell<Peer>>);

impl Peer {
    /// Creates a peer that neither fails nor closes the link, and that reads and writes `at_once` bytes per
    /// call.
    fn new(server: Server, at_once: usize) -> Self {
        Self {
            server,
            decoder: Decoder::new(vec![0; 4096]),
            to_device: VecDeque::new(),
            read_at_once: at_once,
            write_at_once: at_once,
            noise: Box::new(|_| Vec::new()),
            frames: 0,
            end_after_reading: usize::MAX,
            fail_after_reading: usize::MAX,
            fail_after_writing: usize::MAX,
            read: 0,
            written: 0,
            closed: false,
            is_full: false,
            idle: 0,
        }
    }

    /// Queues a message for the device, after the noise that precedes this frame.
    fn send(&mut self, message: &ToDevice, body: &[u8]) {
        let noise = (self.noise)(self.frames);
        self.frames += 1;
        self.to_device.extend(noise);
        self.to_device.extend(encode_frame(message, body));
    }

    /// Takes bytes from the device, and queues the server's replies to complete frames.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        if self.written >= self.fail_after_writing {
            return Err(ErrorKind::BrokenPipe);
        }
        let n = bytes.len().min(self.write_at_once);
        self.written += n;
        let (mut input, mut replies) = (&bytes[..n], Vec::new());
        loop {
            match self.decoder.feed(&mut input) {
                FeedResult::NeedMore => break,
                FeedResult::Dropped(why) => panic!("the device's own frames are sound: {why:?}"),
                FeedResult::Sealed(_) => panic!("a sealed frame from a device without a key"),
                FeedResult::Message(bytes) => {
                    let (message, body) = decode::<ToServer>(bytes).unwrap();
                    replies.extend(self.server.handle_message(message, body.to_vec()));
                }
            }
        }
        for (message, body) in replies {
            self.send(&message, &body);
        }
        Ok(n)
    }

    /// Returns true if the link is closed.
    fn is_closed(&self) -> bool {
        self.closed || self.read >= self.end_after_reading
    }

    /// Returns true if a read would not wait: there are bytes, or the link is closed or has failed.
    fn is_ready(&self) -> bool {
        !self.to_device.is_empty() || self.is_closed() || self.read >= self.fail_after_reading
    }

    /// Gives queued bytes to the device. Returns 0 if the link is closed.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, ErrorKind> {
        if self.read >= self.fail_after_reading {
            return Err(ErrorKind::ConnectionReset);
        }
        if self.is_closed() {
            return Ok(0);
        }
        let remaining = self.end_after_reading.min(self.fail_after_reading) - self.read;
        let n = out.len().min(self.read_at_once).min(self.to_device.len()).min(remaining);
        for (target, byte) in out.iter_mut().zip(self.to_device.drain(..n)) {
            *target = byte;
        }
        self.read += n;
        Ok(n)
    }

    /// Acts for the server when device and server wait: sends requests or the opening again, or closes the
    /// link if the server has an update.
    fn act_when_idle(&mut self) {
        self.idle += 1;
        assert!(self.idle < 5_000, "the device never finishes");
        if let Some(missing) = self.server.missing_chunks() {
            self.send(&ToDevice::Missing(missing), &[]);
        } else if !self.server.updates.is_empty() {
            self.closed = true;
        } else if self.idle.is_multiple_of(4) {
            for (message, body) in self.server.opening_messages() {
                self.send(&message, &body);
            }
        }
    }
}

impl embedded_io::ErrorType for LinkEnd {
    type Error = ErrorKind;
}

impl embedded_io::Read for LinkEnd {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, ErrorKind> {
        let mut peer = self.0.borrow_mut();
        assert!(peer.is_ready(), "this read would block forever");
        peer.read(out)
    }
}

impl embedded_io::ReadReady for LinkEnd {
    fn read_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(self.0.borrow().is_ready())
    }
}

impl embedded_io::WriteReady for LinkEnd {
    fn write_ready(&mut self) -> Result<bool, ErrorKind> {
        Ok(!self.0.borrow().is_full)
    }
}

impl embedded_io::Write for LinkEnd {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

impl embedded_io_async::Read for LinkEnd {
    async fn read(&mut self, out: &mut [u8]) -> Result<usize, ErrorKind> {
        poll_fn(|_| if self.0.borrow().is_ready() { Poll::Ready(()) } else { Poll::Pending }).await;
        self.0.borrow_mut().read(out)
    }
}

impl embedded_io_async::Write for LinkEnd {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        poll_fn(|_| if self.0.borrow().is_full { Poll::Pending } else { Poll::Ready(()) }).await;
        self.0.borrow_mut().write(bytes)
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// Polls a future until it is ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..10_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
    panic!("the future hangs");
}

/// Returns a session, its settings, a server with a round, and the expected update.
fn create_session(limit: u16) -> (Device<Sliced>, Config, Server, Vec<f32>) {
    let mut random = Random(3);
    let b = flat(&random.orthonormal(D, K));
    let samples = Sliced::regression(random.normals(20 * D), random.normals(20), D, 1);
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    let (_, expected) =
        fed_rep_round(&mut fedspan_client::Linear::new(Heap::new(D, K, 1)), task, &b, &mut samples.clone())
            .unwrap();
    let config = Config { frame_limit: limit, ..Config::new(5) };
    let session = Bench::new(config, Heap::new(D, K, 1), samples, Flash::default()).session;
    let server = Server::new(1, task, Encoding::F32, limit.into(), vec![(Role::Representation, D, K, b)]);
    (session, config, server, expected)
}

/// Drives a session over a link until the link goes down. The clock advances only when device and server
/// wait.
fn drive_session(
    session: &mut Device<Sliced>,
    config: Config,
    peer: &Rc<RefCell<Peer>>,
    asynchronous: bool,
) -> Closed<ErrorKind> {
    let clock = Cell::new(1_000u64);
    let mut receive = vec![0; config.frame_limit.into()];
    let mut transmit = vec![0; config.transmit_capacity()];
    let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
    let io = &mut LinkEnd(peer.clone());
    let idle = |until: Millis| {
        let until = until.as_u64();
        assert!(until >= clock.get(), "the wake-up is in the past");
        clock.set(until);
        peer.borrow_mut().act_when_idle();
    };
    let closed = if asynchronous {
        let sleep = |until| async move { idle(until) };
        block_on(run_async(session, io, buffers, || Millis::new(clock.get()), sleep))
    } else {
        run(session, io, buffers, || Millis::new(clock.get()), idle)
    };
    assert!(closed.retry_at > Millis::new(clock.get()));
    closed
}

#[test]
fn round_completes_with_reads_and_writes_of_any_length() {
    for asynchronous in [false, true] {
        for limit in [128, 256, 4096] {
            for at_once in [1, 3, 64, 10_000] {
                let (mut session, config, server, expected) = create_session(limit);
                let peer = Rc::new(RefCell::new(Peer::new(server, at_once)));
                let closed = drive_session(&mut session, config, &peer, asynchronous);
                let peer = peer.borrow();
                assert_eq!(closed.error, None);
                assert_eq!(peer.server.updates.len(), 1);
                assert_eq!(bits(&peer.server.update_values(0)), bits(&expected));
                assert_eq!(session.counters(), Counters { counted: 1, ..Counters::default() });
                assert_eq!(closed.frames.accepted as usize, peer.frames, "a frame was not accepted");
                assert!(peer.to_device.is_empty());
            }
        }
    }
}

/// Noise that ends with a zero has no effect. Other noise destroys the following frame, which is requested
/// again.
#[test]
fn driver_survives_noise_between_frames() {
    for asynchronous in [false, true] {
        for limit in [128, 4096] {
            for (terminated, seed) in [(true, 0), (false, 1), (false, 2), (false, 3), (false, 4)] {
                let (mut session, config, server, expected) = create_session(limit);
                let mut peer = Peer::new(server, 50);
                let mut random = Random(seed);
                peer.noise = Box::new(move |_| {
                    let n = if terminated { random.below(600) } else { random.below(24).saturating_sub(16) };
                    let mut noise: Vec<u8> = (0..n).map(|_| random.next() as u8).collect();
                    if terminated {
                        noise.push(0);
                    }
                    noise
                });
                let peer = Rc::new(RefCell::new(peer));
                let closed = drive_session(&mut session, config, &peer, asynchronous);
                let peer = peer.borrow();
                assert_eq!(bits(&peer.server.update_values(0)), bits(&expected), "seed {seed}");
                assert_eq!(session.counters().malformed, 0, "noise passed the checksum");
                if terminated {
                    assert_eq!(closed.frames.accepted as usize, peer.frames);
                    assert_eq!(session.counters().asked_again, 0);
                }
            }
        }
    }
}

/// The link ends or fails after any number of bytes. The driver returns the reason, and the session continues
/// on the next link.
#[test]
fn driver_reports_the_end_and_the_next_link_continues() {
    let total = {
        let (mut session, config, server, _) = create_session(128);
        let peer = Rc::new(RefCell::new(Peer::new(server, 64)));
        drive_session(&mut session, config, &peer, false);
        let peer = peer.borrow();
        (peer.read, peer.written)
    };
    for asynchronous in [false, true] {
        let mut random = Random(7);
        for case in 0..120 {
            let (mut session, config, server, expected) = create_session(128);
            let mut peer = Peer::new(server.clone(), 1 + random.below(100));
            let expected_error = match case % 3 {
                0 => {
                    peer.end_after_reading = if case == 0 { 0 } else { random.below(total.0) };
                    None
                }
                1 => {
                    peer.fail_after_reading = random.below(total.0);
                    Some(ErrorKind::ConnectionReset)
                }
                _ => {
                    peer.fail_after_writing = if case == 2 { 0 } else { random.below(total.1) };
                    Some(ErrorKind::BrokenPipe)
                }
            };
            let peer = Rc::new(RefCell::new(peer));
            let closed = drive_session(&mut session, config, &peer, asynchronous);
            let first_updates = peer.borrow().server.updates.clone();
            if first_updates.is_empty() {
                assert_eq!(closed.error, expected_error, "case {case}");
            }
            let second_peer = Rc::new(RefCell::new(Peer::new(server, 64)));
            if session.last_round() == 0 {
                drive_session(&mut session, config, &second_peer, asynchronous);
                assert_eq!(
                    bits(&second_peer.borrow().server.update_values(0)),
                    bits(&expected),
                    "case {case}"
                );
                assert!(
                    first_updates.is_empty() || first_updates[0] == second_peer.borrow().server.updates[0],
                    "the update has other bytes"
                );
            }
        }
    }
}

/// A driver must not write 0 bytes, which `embedded-io` forbids, and must not use `write_all`, which panics
/// if a link accepts none.
#[test]
fn link_that_accepts_no_bytes_is_closed() {
    for asynchronous in [false, true] {
        let (mut session, config, server, _) = create_session(256);
        let peer = Rc::new(RefCell::new(Peer::new(server, 64)));
        peer.borrow_mut().write_at_once = 0;
        let closed = drive_session(&mut session, config, &peer, asynchronous);
        assert_eq!(closed.error, None);
        assert!(peer.borrow().server.updates.is_empty());
    }
}

#[test]
fn retry_after_closes_the_link_and_sets_the_time() {
    for asynchronous in [false, true] {
        let (mut session, config, server, _) = create_session(256);
        let mut peer = Peer::new(server, 64);
        peer.send(&ToDevice::RetryAfter { milliseconds: 45_000 }, &[]);
        let peer = Rc::new(RefCell::new(peer));
        let closed = drive_session(&mut session, config, &peer, asynchronous);
        assert_eq!((closed.error, closed.retry_at), (None, Millis::new(46_000)));
    }
}

/// If a driver is dropped at an await (a cancelled task), the session only needs a LinkDown.
#[test]
fn dropped_future_is_harmless() {
    for polls in 1..60 {
        let (mut session, config, server, expected) = create_session(128);
        let peer = Rc::new(RefCell::new(Peer::new(server.clone(), 40)));
        let clock = Cell::new(1_000u64);
        {
            let mut receive = vec![0; 128];
            let mut transmit = vec![0; config.transmit_capacity()];
            let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
            let mut io = LinkEnd(peer.clone());
            let sleep_polls = Rc::new(Cell::new(0));
            // Each sleep takes two polls, so that the future is dropped at many places.
            let sleep = |until: Millis| {
                let until = until.as_u64();
                let (clock, sleep_polls) = (&clock, sleep_polls.clone());
                poll_fn(move |_| {
                    sleep_polls.set(sleep_polls.get() + 1);
                    clock.set(until);
                    if sleep_polls.get() % 2 == 0 { Poll::Ready(()) } else { Poll::Pending }
                })
            };
            let mut future =
                pin!(run_async(&mut session, &mut io, buffers, || Millis::new(clock.get()), sleep));
            for _ in 0..polls {
                if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
            }
        }
        let mut out = vec![0; config.transmit_capacity()];
        let progress = session.handle(Millis::new(clock.get()), Event::LinkDown, &mut out);
        assert!(progress.sent == 0 && progress.wake > Millis::new(clock.get()));
        if session.last_round() == 0 {
            let second_peer = Rc::new(RefCell::new(Peer::new(server.clone(), 64)));
            drive_session(&mut session, config, &second_peer, true);
            assert_eq!(bits(&second_peer.borrow().server.update_values(0)), bits(&expected));
        }
    }
}

/// Sensor with twenty samples. Every other poll returns no sample.
struct SampleSensor {
    samples: Sliced,
    next: usize,
    polls: usize,
}

impl Sensor for SampleSensor {
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)> {
        self.polls += 1;
        if self.polls.is_multiple_of(2) {
            return None;
        }
        self.next += 1;
        Some(self.samples.get(self.next - 1))
    }
}

impl AsyncSensor for SampleSensor {
    async fn next(&mut self) -> (&[f32], Targets<'_>) {
        self.next += 1;
        self.samples.get(self.next - 1)
    }
}

#[test]
fn driver_feeds_sensor_samples_to_a_streaming_session() {
    for asynchronous in [false, true] {
        let mut random = Random(3);
        let b = flat(&random.orthonormal(D, K));
        let samples = Sliced::regression(random.normals(20 * D), random.normals(20), D, 1);
        let task = fed_rep(EXACT, Upload::Gradient, 0.0);
        let sampling = Sampling::Stream { samples: 20 };
        let config = Config { frame_limit: 256, sampling, ..Config::new(5) };
        let heap = Heap::streaming(D, K, 1);
        let mut session = Bench::new(config, heap, samples.clone(), Flash::default()).session;
        let server = Server::new(1, task, Encoding::F32, 256, vec![(Role::Representation, D, K, b)]);
        let peer = Rc::new(RefCell::new(Peer::new(server, 64)));
        let mut sensor = SampleSensor { samples, next: 0, polls: 0 };
        let clock = Cell::new(1_000u64);
        let (mut receive, mut transmit) = (vec![0; 256], vec![0; config.transmit_capacity()]);
        let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
        let io = &mut LinkEnd(peer.clone());
        let idle = |until: Millis| {
            let until = until.as_u64();
            // The sensor interrupts the sleep before the wake-up time.
            clock.set((clock.get() + 10).min(until));
            if clock.get() == until || !peer.borrow().server.updates.is_empty() {
                peer.borrow_mut().act_when_idle();
            }
        };
        if asynchronous {
            let sleep = |until| async move { idle(until) };
            block_on(run_async_with_sensor(
                &mut session,
                io,
                buffers,
                || Millis::new(clock.get()),
                sleep,
                &mut sensor,
            ));
        } else {
            run_with_sensor(&mut session, io, buffers, || Millis::new(clock.get()), idle, &mut sensor);
        }
        assert_eq!(peer.borrow().server.updates.len(), 1);
        assert_eq!(sensor.next, 20, "the sensor was not polled 20 times, once per sample of the round");
        let counted = Counters { counted: 1, ..Counters::default() };
        assert_eq!(session.counters(), counted);
    }
}
