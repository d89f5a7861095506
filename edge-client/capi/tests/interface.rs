//! Tests of the functions: a client trains through them with the same bits as the Rust client, and every wrong argument is refused.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

use ::fedspan_client::session::{Config, Event, Protection};
use ::fedspan_client::store::NoStore;
use ::fedspan_client::{Linear, Millis, Recording, Session, Workspace};
use fedspan::*;
use fedspan_protocol::frame::{Decoder, FeedResult, crc32c, encode};
use fedspan_protocol::message::{
    Ack, AckOutcome, HeadSolve, RoundId, RoundOpen, Task as Wire, ToDevice, ToServer, Upload, Welcome, decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

const D: usize = 6;
const K: usize = 2;
const C: usize = 3;
const SAMPLES: usize = 11;

/// Firmware in memory.
#[derive(Default)]
pub struct Firmware {
    x: Vec<f32>,
    classes: Vec<u8>,
    /// Number of samples per call.
    at_once: usize,
    position: usize,
    pub arrived: Vec<u8>,
    pub sent: Vec<u8>,
    items: BTreeMap<i32, Vec<u8>>,
    pub is_lost: bool,
    fault: Fault,
    storage_fails: bool,
    pub random_fails: bool,
    /// True if the link accepts no byte.
    pub is_full: bool,
    /// Number of pauses.
    pub pauses: u32,
}

impl Firmware {
    pub fn new(at_once: usize) -> Self {
        let mut state = 1u32;
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        let x = (0..SAMPLES * D).map(|_| value()).collect();
        Self { x, classes: (0..SAMPLES).map(|n| (n % C) as u8).collect(), at_once, ..Self::default() }
    }
}

/// Returns the firmware behind a context.
///
/// # Safety
/// The context is that of [`platform`].
unsafe fn firmware<'a>(context: *mut c_void) -> &'a mut Firmware {
    // SAFETY: the caller guarantees the context.
    unsafe { &mut *context.cast() }
}

unsafe extern "C" fn rewind(context: *mut c_void, _round: u32) -> i32 {
    // SAFETY: the context of `platform`.
    unsafe { firmware(context) }.position = 0;
    0
}

unsafe extern "C" fn next(context: *mut c_void, samples: *mut fedspan_samples) -> i32 {
    // SAFETY: the context of `platform`, and samples to write.
    let (firmware, samples) = unsafe { (firmware(context), &mut *samples) };
    let first = firmware.position;
    match firmware.fault {
        Fault::Error if first > 0 => return -1,
        Fault::NoTargets if first > 0 => {
            (samples.x, samples.count) = (firmware.x.as_ptr(), 1);
            return 0;
        }
        Fault::Count if first > 0 => {
            (samples.x, samples.classes, samples.count) =
                (firmware.x.as_ptr(), firmware.classes.as_ptr(), u32::MAX);
            return if size_of::<usize>() == 4 { 0 } else { -1 };
        }
        _ => {}
    }
    let count = firmware.at_once.min(SAMPLES - first);
    firmware.position += count;
    samples.x = firmware.x[first * D..].as_ptr();
    samples.classes = firmware.classes[first..].as_ptr();
    samples.count = count as u32;
    0
}

/// Fault of the second batch of a pass.
#[derive(Clone, Copy, Debug, Default)]
enum Fault {
    #[default]
    None,
    Error,
    NoTargets,
    Count,
}

unsafe extern "C" fn random(context: *mut c_void, bytes: *mut u8, length: usize) -> i32 {
    // SAFETY: the context of `platform`, and `length` bytes.
    unsafe {
        bytes.write_bytes(7, length);
        if firmware(context).random_fails { -5 } else { 0 }
    }
}

pub unsafe extern "C" fn pause(context: *mut c_void) {
    // SAFETY: the context of `platform`.
    unsafe { firmware(context) }.pauses += 1;
}

unsafe extern "C" fn load(context: *mut c_void, item: fedspan_item, bytes: *mut u8, length: usize) -> i32 {
    // SAFETY: the context of `platform`.
    let firmware = unsafe { firmware(context) };
    let Some(stored) = firmware.items.get(&(item as i32)) else { return 0 };
    // SAFETY: `length` bytes.
    unsafe { bytes.copy_from_nonoverlapping(stored.as_ptr(), stored.len().min(length)) };
    stored.len() as i32
}

unsafe extern "C" fn save(context: *mut c_void, item: fedspan_item, bytes: *const u8, length: usize) -> i32 {
    // SAFETY: the context of `platform`, and `length` bytes.
    let (firmware, bytes) = unsafe { (firmware(context), std::slice::from_raw_parts(bytes, length)) };
    if firmware.storage_fails {
        return -1;
    }
    firmware.items.insert(item as i32, bytes.to_vec());
    0
}

unsafe extern "C" fn read(context: *mut c_void, bytes: *mut u8, length: usize) -> i32 {
    // SAFETY: the context of `platform`.
    let firmware = unsafe { firmware(context) };
    if firmware.is_lost {
        return -1;
    }
    let count = length.min(firmware.arrived.len());
    for (index, byte) in firmware.arrived.drain(..count).enumerate() {
        // SAFETY: `length` bytes.
        unsafe { bytes.add(index).write(byte) };
    }
    count as i32
}

unsafe extern "C" fn write(context: *mut c_void, bytes: *const u8, length: usize) -> i32 {
    // SAFETY: the context of `platform`, and `length` bytes.
    let (firmware, bytes) = unsafe { (firmware(context), std::slice::from_raw_parts(bytes, length)) };
    if firmware.is_full {
        return 0;
    }
    // A few bytes at once, as a serial line takes them.
    let count = length.min(5);
    firmware.sent.extend(&bytes[..count]);
    count as i32
}

/// Settings with these sizes and without functions.
pub fn settings(features: u16, width: u16, outputs: u16) -> fedspan_config {
    fedspan_config {
        device: 5,
        key: ptr::null(),
        key_epoch: 0,
        features,
        width,
        outputs,
        frame_limit: 512,
        leave_when_fitted: 1,
        cipher: 0,
        sleep_ms: 0,
        sleep_wait_ms: 0,
        timers: fedspan_timers {
            ask_again_ms: 0,
            resend_ms: 0,
            reconnect_ms: 0,
            reconnect_max_ms: 0,
            write_ms: 0,
        },
        pause_quota: 0,
        platform: fedspan_platform {
            context: ptr::null_mut(),
            rewind: Some(rewind),
            next: Some(next),
            random: Some(random),
            load: Some(load),
            save: Some(save),
            read: Some(read),
            write: Some(write),
            pause: None,
        },
    }
}

pub fn config(firmware: &mut Firmware) -> fedspan_config {
    let mut config = settings(D as u16, K as u16, C as u16);
    config.platform.context = ptr::from_mut(firmware).cast();
    config
}

/// Memory of a client.
pub struct Memory(Vec<u64>);

impl Memory {
    pub fn new(config: &fedspan_config) -> Self {
        // SAFETY: settings.
        Self(vec![0xAAAA_AAAA_AAAA_AAAA; unsafe { fedspan_memory_size(config) }.div_ceil(8)])
    }

    pub fn start(&mut self, config: &fedspan_config) -> (fedspan_status, *mut fedspan_client) {
        let mut client = ptr::dangling_mut();
        // SAFETY: memory, settings and a pointer.
        let status =
            unsafe { fedspan_start(self.0.as_mut_ptr().cast(), self.0.len() * 8, config, &raw mut client) };
        (status, client)
    }
}

/// Steps a client at a time until it waits or its link has ended, and returns for how long it waits then.
pub fn run_at(client: *mut fedspan_client, now: u32) -> (fedspan_state, u32) {
    let mut wait = u32::MAX;
    for _ in 0..10_000 {
        // SAFETY: a started client.
        let state = unsafe { fedspan_step(client, now, &raw mut wait) };
        if state != fedspan_state::FEDSPAN_AGAIN {
            return (state, wait);
        }
        assert_eq!(wait, 0);
    }
    panic!("never waits")
}

/// Steps a client until it waits or its link has ended.
fn run(client: *mut fedspan_client) -> fedspan_state {
    run_at(client, 1).0
}

/// Returns the counters of a client.
pub fn counters(client: *mut fedspan_client) -> fedspan_counters {
    let mut counters = fedspan_counters::default();
    // SAFETY: a started client and counters.
    let status = unsafe { fedspan_get_counters(client, &raw mut counters) };
    assert_eq!(status, fedspan_status::FEDSPAN_OK);
    counters
}

/// Returns the messages in what was sent, with their bodies.
pub fn sent(firmware: &mut Firmware) -> Vec<(ToServer, Vec<u8>)> {
    let bytes = std::mem::take(&mut firmware.sent);
    let (mut input, mut decoder, mut messages) = (&bytes[..], Decoder::new(vec![0; 4096]), Vec::new());
    while !input.is_empty() {
        if let FeedResult::Message(message) = decoder.feed(&mut input) {
            let (message, body) = decode(message).unwrap();
            messages.push((message, body.to_vec()));
        }
    }
    messages
}

pub fn frame(message: &ToDevice, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let length = encode(message, body.len(), |target| target.copy_from_slice(body), &mut out).unwrap();
    out.truncate(length);
    out
}

pub fn opening(round: u32, task: Wire) -> (ToDevice, Vec<u8>) {
    let tensors = [TensorDescriptor::inline(Role::Representation, Encoding::F32, D as u16, K as u16)];
    let open = RoundOpen { id: RoundId { round, stage: 0 }, task, tensors: tensors.into_iter().collect() };
    let mut b = [0.0f32; D * K];
    (b[0], b[K + 1]) = (1.0, 1.0);
    (ToDevice::RoundOpen(open), b.iter().flat_map(|value| value.to_le_bytes()).collect())
}

const HEAD: HeadSolve = HeadSolve::LeastSquares { ridge: 0.01 };

pub fn fed_rep() -> Wire {
    Wire::FedRep { step_size: 0.1, head: HEAD, upload: Upload::Gradient, encoding: Encoding::F32 }
}

pub fn welcome() -> ToDevice {
    ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: 60_000 })
}

#[test]
fn client_trains_with_the_bits_of_the_rust_client() {
    for at_once in [1, 3, 4, SAMPLES] {
        let mut firmware = Firmware::new(at_once);
        let settings = config(&mut firmware);
        let mut memory = Memory::new(&settings);
        let (status, client) = memory.start(&settings);
        assert_eq!(status, fedspan_status::FEDSPAN_OK);
        let mut out = [f32::NAN; C];
        let mut predict = |firmware: &Firmware, length: usize| {
            // SAFETY: a started client, and arrays of at least these lengths.
            unsafe { fedspan_predict(client, firmware.x.as_ptr(), length, out.as_mut_ptr(), C) }
        };
        assert_eq!(predict(&firmware, D), fedspan_status::FEDSPAN_NO_REPRESENTATION);
        assert_eq!(run(client), fedspan_state::FEDSPAN_WAIT);
        assert!(matches!(sent(&mut firmware)[..], [(ToServer::Hello(hello), _)] if hello.device == 5));
        let (open, body) = opening(3, fed_rep());
        firmware.arrived = [frame(&welcome(), &[]), frame(&open, &body)].concat();
        assert_eq!(run(client), fedspan_state::FEDSPAN_WAIT);
        let update = sent(&mut firmware);

        // The same round in Rust.
        let (x, classes) = (firmware.x.clone(), firmware.classes.clone());
        let mut rust = Session::new(
            Config { frame_limit: 512, ..Config::new(5) },
            Protection::Plaintext,
            Linear::new(Workspace::<D, K, C>::new()),
            Recording::classification(&x, &classes, D),
            NoStore,
            Sevens,
        );
        let (mut buffer, mut expected) = ([0; 700], Firmware::default());
        let events = [None, Some(frame(&welcome(), &[])), Some(frame(&open, &body))];
        for message in events {
            let mut decoder = Decoder::new(vec![0; 4096]);
            let message = message.map(|bytes| match decoder.feed(&mut &bytes[..]) {
                FeedResult::Message(message) => message.to_vec(),
                other => panic!("{other:?}"),
            });
            let event = message.as_ref().map_or(Event::LinkUp, |message| Event::Message(message));
            let mut progress = rust.handle(Millis::new(1), event, &mut buffer);
            loop {
                expected.sent.extend(&buffer[..progress.sent]);
                if !progress.again {
                    break;
                }
                progress = rust.handle(Millis::new(1), Event::Tick, &mut buffer);
            }
        }
        let expected = sent(&mut expected);
        assert_eq!(update[..], expected[1..], "{at_once} samples at once");

        // The final head, a prediction, and the end.
        let (open, body) = opening(4, Wire::FitHead { head: HEAD });
        let ack =
            |round| ToDevice::Ack(Ack { id: RoundId { round, stage: 0 }, outcome: AckOutcome::Counted });
        firmware.arrived = [frame(&ack(3), &[]), frame(&open, &body)].concat();
        assert_eq!(run(client), fedspan_state::FEDSPAN_WAIT);
        firmware.arrived = frame(&ack(4), &[]);
        assert_eq!(run(client), fedspan_state::FEDSPAN_CLOSED);
        assert_eq!(predict(&firmware, D), fedspan_status::FEDSPAN_OK);
        let mut in_rust = [0.0; C];
        rust.task_mut().predict(&x[..D], &mut in_rust).unwrap();
        assert_eq!(out.map(f32::to_bits), in_rust.map(f32::to_bits));
        let found = counters(client);
        // SAFETY: a started client.
        unsafe {
            assert!(fedspan_is_fitted(client));
            assert_eq!((fedspan_head_version(client), fedspan_last_round(client)), (2, 4));
            assert_eq!((found.counted, found.malformed, fedspan_refusal(client)), (2, 0, 0));
            fedspan_end(client);
            assert!(!fedspan_is_fitted(client));
            fedspan_end(client);
        }

        // A restart finds the head and the round, but without a representation there is no prediction.
        let (status, client) = memory.start(&settings);
        assert_eq!(status, fedspan_status::FEDSPAN_OK);
        // SAFETY: a started client.
        assert_eq!(unsafe { fedspan_last_round(client) }, 4);
    }
}

/// Generator of sevens, as the firmware has it.
struct Sevens;

impl rand_core::TryRng for Sevens {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(0x0707_0707)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(0x0707_0707_0707_0707)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        bytes.fill(7);
        Ok(())
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let mut firmware = Firmware::new(1);
    let good = config(&mut firmware);
    let refused = |change: &dyn Fn(&mut fedspan_config)| {
        let mut config = good;
        change(&mut config);
        let mut memory = Memory::new(&good);
        let (status, client) = memory.start(&config);
        assert!(client.is_null() == (status != fedspan_status::FEDSPAN_OK));
        status
    };
    use fedspan_status::{
        FEDSPAN_LENGTH, FEDSPAN_NOT_STARTED, FEDSPAN_NULL, FEDSPAN_OK, FEDSPAN_OVERLAP, FEDSPAN_SIZE,
    };
    assert_eq!(refused(&|_| {}), FEDSPAN_OK);
    assert_eq!(refused(&|config| config.features = 0), FEDSPAN_SIZE);
    assert_eq!(refused(&|config| config.width = D as u16 + 1), FEDSPAN_SIZE);
    assert_eq!(refused(&|config| config.outputs = 257), FEDSPAN_SIZE);
    assert_eq!(refused(&|config| config.frame_limit = 127), FEDSPAN_SIZE);
    assert_eq!(refused(&|config| config.frame_limit = 16_385), FEDSPAN_SIZE);
    assert_eq!(refused(&|config| config.frame_limit = 1024), fedspan_status::FEDSPAN_MEMORY);
    assert_eq!(refused(&|config| config.platform.next = None), FEDSPAN_NULL);
    assert_eq!(refused(&|config| config.platform.random = None), FEDSPAN_NULL);
    assert_eq!(refused(&|config| config.platform.load = None), FEDSPAN_NULL);
    assert_eq!(refused(&|config| (config.platform.load, config.platform.save) = (None, None)), FEDSPAN_OK);
    let mut memory = Memory::new(&good);
    let (bytes, start) = (memory.0.len() * 8, memory.0.as_mut_ptr().cast::<u8>());
    let mut client = ptr::null_mut();
    // SAFETY: memory, settings and pointers, or NULL.
    unsafe {
        assert_eq!(fedspan_start(start.add(4), bytes - 4, &raw const good, &raw mut client), FEDSPAN_NULL);
        assert_eq!(fedspan_start(start, bytes, ptr::null(), &raw mut client), FEDSPAN_NULL);
        assert_eq!(fedspan_start(ptr::null_mut(), bytes, &raw const good, &raw mut client), FEDSPAN_NULL);
        assert_eq!(fedspan_start(start, bytes, &raw const good, ptr::null_mut()), FEDSPAN_NULL);
        assert_eq!(
            fedspan_start(start, 100, &raw const good, &raw mut client),
            fedspan_status::FEDSPAN_MEMORY
        );
        assert_eq!(fedspan_memory_size(ptr::null()), 0);
        // Settings or a key in the memory of the client.
        let inside = start.add(bytes - bytes % 8 - size_of::<fedspan_config>());
        inside.cast::<fedspan_config>().write(good);
        assert_eq!(fedspan_start(start, bytes, inside.cast(), &raw mut client), FEDSPAN_OVERLAP);
        for offset in [0, bytes - 1] {
            let settings = fedspan_config { key: start.add(offset), ..good };
            assert_eq!(fedspan_start(start, bytes, &raw const settings, &raw mut client), FEDSPAN_OVERLAP);
        }
        // No client at all.
        let (mut wait, mut out, x) = (0, [0.0f32; C], [0.0f32; D]);
        let none = ptr::null_mut();
        assert_eq!(fedspan_step(none, 0, &raw mut wait), fedspan_state::FEDSPAN_STOPPED);
        assert_eq!(fedspan_predict(none, x.as_ptr(), D, out.as_mut_ptr(), C), FEDSPAN_NOT_STARTED);
        assert_eq!(fedspan_get_counters(none, ptr::null_mut()), FEDSPAN_NOT_STARTED);
        assert!(!fedspan_is_fitted(none));
        fedspan_end(none);
        // Wrong samples of predictions.
        assert_eq!(fedspan_start(start, bytes, &raw const good, &raw mut client), FEDSPAN_OK);
        assert_eq!(fedspan_predict(client, x.as_ptr(), D - 1, out.as_mut_ptr(), C), FEDSPAN_LENGTH);
        assert_eq!(fedspan_predict(client, x.as_ptr(), D, out.as_mut_ptr(), C + 1), FEDSPAN_LENGTH);
        assert_eq!(fedspan_predict(client, ptr::null(), D, out.as_mut_ptr(), C), FEDSPAN_NULL);
        fedspan_end(client);
    }
}

/// Tests that a lost link and storage that fails end in counters and clear states.
#[test]
fn failures_of_the_platform_are_counted() {
    let mut firmware = Firmware::new(1);
    let settings = config(&mut firmware);
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    assert_eq!(run(client), fedspan_state::FEDSPAN_WAIT);
    firmware.storage_fails = true;
    let (open, body) = opening(1, fed_rep());
    firmware.arrived = [frame(&welcome(), &[]), frame(&open, &body)].concat();
    assert_eq!(run(client), fedspan_state::FEDSPAN_WAIT);
    let messages = sent(&mut firmware);
    assert!(matches!(messages.last(), Some((ToServer::Decline(_), _))), "{messages:?}");
    let found = counters(client);
    assert_eq!((found.storage, found.declined), (1, 1));
    firmware.is_lost = true;
    assert_eq!(run(client), fedspan_state::FEDSPAN_CLOSED);
}

/// Tests that a damaged record counts as missing, and that without its handshakes a device with a key stays silent.
#[cfg(feature = "encryption")]
#[test]
fn damaged_items_are_counted() {
    let mut firmware = Firmware::new(1);
    let key = [9u8; 32];
    let mut settings = config(&mut firmware);
    settings.key = key.as_ptr();
    let mut memory = Memory::new(&settings);
    for damaged in [vec![1, 2, 3], vec![0xFF; 12], vec![0; 12], vec![0; 400]] {
        firmware.items = BTreeMap::from([(0, damaged.clone()), (1, damaged.clone())]);
        let (status, client) = memory.start(&settings);
        assert_eq!(status, fedspan_status::FEDSPAN_OK);
        assert_eq!(run(client), fedspan_state::FEDSPAN_CLOSED, "{damaged:?}");
        assert!(firmware.sent.is_empty());
        assert!(counters(client).storage > 0);
        // SAFETY: a started client.
        unsafe { fedspan_end(client) };
    }
    firmware.items.clear();
    let (_, client) = memory.start(&settings);
    assert_eq!(run(client), fedspan_state::FEDSPAN_WAIT);
    assert!(!firmware.sent.is_empty() && firmware.items.contains_key(&1));
    // SAFETY: a started client.
    unsafe { fedspan_end(client) };
}

/// Tests that a record is used after a reset, and one of another version, of another length, or with a value that is not finite is not, even
/// if its checksum is right.
#[test]
fn record_that_cannot_be_used_counts_as_missing() {
    let mut firmware = Firmware::new(4);
    let settings = config(&mut firmware);
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    run(client);
    let (open, body) = opening(7, fed_rep());
    firmware.arrived = [frame(&welcome(), &[]), frame(&open, &body)].concat();
    run(client);
    let saved = firmware.items[&0].clone();
    let head = 1 + 8 + 4 + 4;
    assert_eq!(saved.len(), head + 4 * K * C + 4);
    let mut last_round = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut content = saved[..saved.len() - 4].to_vec();
        change(&mut content);
        let check = crc32c(&content).to_le_bytes();
        firmware.items.insert(0, [&content[..], &check].concat());
        let (_, client) = memory.start(&settings);
        // SAFETY: a started client.
        unsafe { (fedspan_last_round(client), model(client).unwrap().1.to_vec()) }
    };
    let (round, values) = last_round(&|_| {});
    assert_eq!(round, 7);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(bytes, saved[head..head + 4 * K * C]);
    let missing = (0, vec![0.0; K * C]);
    assert_eq!(last_round(&|content| content[0] = 2), missing);
    assert_eq!(last_round(&|content| content.truncate(head)), missing);
    for value in [f32::NAN, f32::INFINITY] {
        let last = head + 4 * (K * C - 1);
        assert_eq!(last_round(&|content| content[last..].copy_from_slice(&value.to_le_bytes())), missing);
    }
}

/// Tests that samples that cannot be read, or are described wrongly, decline the round and are counted, and that the next round is
/// answered.
#[test]
fn unreadable_samples_decline_the_round() {
    for fault in [Fault::Error, Fault::NoTargets, Fault::Count] {
        let mut firmware = Firmware::new(4);
        firmware.fault = fault;
        let settings = config(&mut firmware);
        let mut memory = Memory::new(&settings);
        let (_, client) = memory.start(&settings);
        run(client);
        sent(&mut firmware);
        let (open, body) = opening(3, fed_rep());
        firmware.arrived = [frame(&welcome(), &[]), frame(&open, &body)].concat();
        run(client);
        let answer = sent(&mut firmware);
        assert!(matches!(answer[..], [(ToServer::Decline(_), _)]), "{fault:?}: {answer:?}");
        let found = counters(client);
        assert_eq!((found.unread, found.declined), (1, 1), "{fault:?}");
        firmware.fault = Fault::None;
        let (open, body) = opening(4, fed_rep());
        firmware.arrived = frame(&open, &body);
        run(client);
        assert!(matches!(sent(&mut firmware)[0], (ToServer::Update(_), _)), "{fault:?}");
    }
}

/// Tests that arrays that overlap are refused, and that arrays side by side are not.
#[test]
fn overlapping_arrays_are_refused() {
    let mut firmware = Firmware::new(4);
    let settings = config(&mut firmware);
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    let mut values = [0.5f32; D + C];
    let pointer = values.as_mut_ptr();
    for start in 0..=C {
        // SAFETY: a started client; the arrays are within `values`.
        let status = unsafe { fedspan_predict(client, pointer.add(start), D, pointer, C) };
        let expected = if start == C {
            fedspan_status::FEDSPAN_NO_REPRESENTATION
        } else {
            fedspan_status::FEDSPAN_OVERLAP
        };
        assert_eq!(status, expected, "{start}");
    }
}

/// Tests that a device that has kept its representation predicts the same after a reset.
#[test]
fn kept_representation_predicts_after_a_reset() {
    let mut firmware = Firmware::new(4);
    let settings = config(&mut firmware);
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    let mut kept = [0.0f32; D * K];
    // SAFETY: a started client, and arrays of these lengths; the same below.
    let absent = unsafe { fedspan_get_representation(client, kept.as_mut_ptr(), kept.len()) };
    assert_eq!(absent, fedspan_status::FEDSPAN_NO_REPRESENTATION);
    run(client);
    let (open, body) = opening(3, fed_rep());
    firmware.arrived = [frame(&welcome(), &[]), frame(&open, &body)].concat();
    run(client);
    let predict = |client, firmware: &Firmware| {
        let mut out = [0.0f32; C];
        // SAFETY: see above.
        let status = unsafe { fedspan_predict(client, firmware.x.as_ptr(), D, out.as_mut_ptr(), C) };
        (status, out.map(f32::to_bits))
    };
    let before = predict(client, &firmware);
    assert_eq!(before.0, fedspan_status::FEDSPAN_OK);
    // SAFETY: see above.
    unsafe {
        assert_eq!(fedspan_get_representation(client, kept.as_mut_ptr(), 3), fedspan_status::FEDSPAN_LENGTH);
        assert_eq!(fedspan_get_representation(client, kept.as_mut_ptr(), D * K), fedspan_status::FEDSPAN_OK);
        fedspan_end(client);
    }
    let (_, client) = memory.start(&settings);
    assert_eq!(predict(client, &firmware).0, fedspan_status::FEDSPAN_NO_REPRESENTATION);
    // SAFETY: see above.
    unsafe {
        assert_eq!(fedspan_set_representation(client, kept.as_ptr(), 3), fedspan_status::FEDSPAN_LENGTH);
        assert_eq!(
            fedspan_set_representation(client, [f32::NAN; D * K].as_ptr(), D * K),
            fedspan_status::FEDSPAN_NOT_FINITE
        );
        assert_eq!(fedspan_set_representation(client, kept.as_ptr(), D * K), fedspan_status::FEDSPAN_OK);
    }
    assert_eq!(predict(client, &firmware), before);
}

/// Tests that a step without a client returns another state than the end of a link, and a time.
#[test]
fn step_without_a_client_says_so() {
    let mut wait = 7;
    // SAFETY: NULL is allowed.
    unsafe {
        assert_eq!(fedspan_step(ptr::null_mut(), 7, &raw mut wait), fedspan_state::FEDSPAN_STOPPED);
        assert_eq!(fedspan_step(ptr::null_mut(), 7, ptr::null_mut()), fedspan_state::FEDSPAN_STOPPED);
    }
    assert_eq!(wait, 0);
}

/// Tests that a device without random bytes does not start, sends nothing if they fail later, and goes on when there are some.
#[cfg(feature = "encryption")]
#[test]
fn device_without_random_bytes_sends_nothing() {
    let mut firmware = Firmware::new(4);
    let key = [9u8; 32];
    let mut settings = config(&mut firmware);
    settings.key = key.as_ptr();
    let mut memory = Memory::new(&settings);
    firmware.random_fails = true;
    let (status, client) = memory.start(&settings);
    assert!(status == fedspan_status::FEDSPAN_RANDOM && client.is_null());
    firmware.random_fails = false;
    let (_, client) = memory.start(&settings);
    firmware.random_fails = true;
    let (mut now, mut total) = (0, 0);
    for attempt in 1..=5 {
        let (state, wait) = run_at(client, now);
        assert!(state == fedspan_state::FEDSPAN_CLOSED && wait > 0, "{attempt}");
        assert!(firmware.sent.is_empty() && counters(client).random > total);
        (now, total) = (now + wait, counters(client).random);
    }
    firmware.random_fails = false;
    assert_eq!(run_at(client, now), (fedspan_state::FEDSPAN_WAIT, 2_000));
    assert!(!firmware.sent.is_empty());
    assert_eq!(counters(client).random, total);
}
