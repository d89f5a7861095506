//! Functions of a client in the caller's memory.

use core::ptr;
use core::slice;

use ::fedspan_client::link::{Buffers, Driver, NoSensor, Step};
use ::fedspan_client::memory::SliceMemory;
use ::fedspan_client::{Linear, Millis, NotReady, Session, Task};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::Refusal;

use crate::config::{Cipher, fedspan_config, fedspan_status};
use crate::pause::{ModelMemory, Pauses};
use crate::platform::{PlatformLink, PlatformRandom, PlatformSource, PlatformStore, Shared};
use crate::size::{CLIENT_SIZE, FEDSPAN_CLIENT_SIZE, record_size};

/// A client, at the start of the memory that `fedspan_start` was given. Its declaration in the header has no content.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct fedspan_client {
    _private: [u8; 0],
}

/// Mark of memory that holds a client: "FFFF", because a core compares with four equal bytes in one instruction.
const STARTED: u32 = 0x4646_4646;

/// Content of the memory of a client.
pub struct Client {
    /// [`STARTED`].
    mark: u32,
    clock: Clock,
    link: PlatformLink,
    driver: Driver<'static>,
    session: Session<Linear<ModelMemory>, PlatformSource, PlatformStore, PlatformRandom, Cipher>,
}

/// Counter of 32 bits that wraps, made a clock of 64 bits that does not. It begins in the middle, so that it can be set back.
#[derive(Clone, Copy, Debug)]
struct Clock(u64);

impl Clock {
    const START: Self = Self(1 << 62);

    /// Returns the time when the counter shows `counter`, which are its low 32 bits. A counter that is less than half a turn ahead of the last
    /// one is later; another one was set back.
    fn advance(&mut self, counter: u32) -> Millis {
        #[allow(clippy::cast_possible_truncation, reason = "the last counter is the low half")]
        let elapsed = counter.wrapping_sub(self.0 as u32).cast_signed();
        self.0 = self.0.wrapping_add_signed(elapsed.into());
        Millis::new(self.0)
    }
}

/// Longest time that a step returns, in milliseconds: 12 days, a quarter of a turn of a counter of 32 bits, so that a step that follows later
/// than that is not taken for a clock that was set back.
const WAIT_MAX: u32 = 1 << 30;

/// Result of a step: the next action of the firmware.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub enum fedspan_state {
    /// Call `fedspan_step` again at once.
    FEDSPAN_AGAIN = 0,
    /// Call `fedspan_step` again after `*wait_ms`, or earlier when bytes have arrived or more can be written.
    FEDSPAN_WAIT = 1,
    /// The link has ended. Connect again after `*wait_ms`; the next step begins with the new link.
    FEDSPAN_CLOSED = 2,
    /// There is no client, because it was not started or has ended, or `wait_ms` is NULL.
    FEDSPAN_STOPPED = 3,
}

/// Numbers of events since the start. They stop at the largest number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct fedspan_counters {
    /// Rounds whose update was counted by the server.
    pub counted: u32,
    /// Rounds whose update arrived too late.
    pub late: u32,
    /// Rounds whose update was rejected.
    pub rejected: u32,
    /// Rounds that the device declined.
    pub declined: u32,
    /// Rounds that were closed before the device had answered.
    pub closed: u32,
    /// Links that the device left because no round opened in time.
    pub unasked: u32,
    /// Messages that could not be decoded.
    pub malformed: u32,
    /// Messages that were not expected.
    pub unexpected: u32,
    /// Requests for parts of a message that were lost.
    pub asked_again: u32,
    /// Sealed frames that were replayed, forged, or not expected.
    pub unopened: u32,
    /// Messages without a seal on a link that has a key. If the device never takes part and this grows, the server may have refused it
    /// for a reason that it cannot prove to the device: see `fedspan_refusal`.
    pub unsealed: u32,
    /// Times that the clock has gone back.
    pub clock_jumps: u32,
    /// Failures of the storage.
    pub storage: u32,
    /// Samples that `next` could not read or has described wrongly. The round is then declined.
    pub unread: u32,
    /// Calls of `random` that have failed. Each one ends a link.
    pub random: u32,
}

// Without a branch for each comparison here and in `fedspan_predict`, the compiler does not take what follows for unlikely: it would
// call functions that it otherwise inlines.

/// Returns true if two arrays, each with an address and a length in bytes, have a byte in common.
fn overlap(first: usize, first_length: usize, second: usize, second_length: usize) -> bool {
    (second.wrapping_sub(first) < first_length) | (first.wrapping_sub(second) < second_length)
}

/// Returns the client in memory.
///
/// # Safety
/// `client` is NULL, or memory that `fedspan_start` has filled and nothing else uses.
unsafe fn started<'a>(client: *mut fedspan_client) -> Option<&'a mut Client> {
    let client = client.cast::<Client>();
    // SAFETY: the caller guarantees the memory, which holds a client if it has the mark.
    unsafe {
        let is_started = !client.is_null() && (&raw const (*client).mark).read() == STARTED;
        if is_started { client.as_mut() } else { None }
    }
}

/// Starts a client in `memory`, which must be aligned to 8 bytes, and belongs to the client until `fedspan_end`: settings and key must
/// not be in it. Reads the stored items, and connects to nothing yet. `*client` becomes the client, or NULL if an error is returned.
///
/// # Safety
/// `memory` has `size` bytes, `config` points to settings, and `client` to a pointer; or they are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_start(
    memory: *mut u8,
    size: usize,
    config: *const fedspan_config,
    client: *mut *mut fedspan_client,
) -> fedspan_status {
    if client.is_null() {
        return fedspan_status::FEDSPAN_NULL;
    }
    // SAFETY: the caller guarantees the pointers.
    let started = unsafe {
        *client = ptr::null_mut();
        start(memory, size, config)
    };
    match started {
        Ok(()) => {
            // SAFETY: as above.
            unsafe { *client = memory.cast() };
            fedspan_status::FEDSPAN_OK
        }
        Err(status) => status,
    }
}

/// Checks the arguments of `fedspan_start`, except that the memory is long enough.
///
/// # Errors
/// The status of the first wrong argument.
// One function, so that the compiler does not take the start itself for unlikely: see `overlap`.
#[inline(never)]
fn check(memory: *mut u8, size: usize, config: &fedspan_config) -> Result<(), fedspan_status> {
    if memory.is_null() || !memory.addr().is_multiple_of(8) || !config.platform.is_complete() {
        return Err(fedspan_status::FEDSPAN_NULL);
    }
    let is_inside = |address, length| overlap(memory.addr(), size, address, length);
    if is_inside(ptr::from_ref(config).addr(), size_of::<fedspan_config>()) | is_inside(config.key.addr(), 32)
    {
        return Err(fedspan_status::FEDSPAN_OVERLAP);
    }
    if !config.is_allowed() {
        return Err(fedspan_status::FEDSPAN_SIZE);
    }
    if !config.is_built() {
        return Err(fedspan_status::FEDSPAN_NOT_BUILT);
    }
    if !config.platform.has_random() {
        return Err(fedspan_status::FEDSPAN_RANDOM);
    }
    Ok(())
}

/// Starts a client in `memory`.
///
/// # Errors
/// The status that `fedspan_start` returns.
///
/// # Safety
/// `memory` has `size` bytes, and `config` points to settings; or they are NULL.
unsafe fn start(memory: *mut u8, size: usize, config: *const fedspan_config) -> Result<(), fedspan_status> {
    // SAFETY: the caller guarantees settings.
    let Some(config) = (unsafe { config.as_ref() }) else { return Err(fedspan_status::FEDSPAN_NULL) };
    check(memory, size, config)?;
    let (shape, settings) = (config.shape(), config.session());
    // After the client and its functions the memory has the model, and at its end the buffers.
    let limit = usize::from(settings.frame_limit);
    let (capacity, record) = (wire_capacity(limit), record_size(shape));
    let model_size = size
        .checked_sub(FEDSPAN_CLIENT_SIZE + limit + capacity + record)
        .ok_or(fedspan_status::FEDSPAN_MEMORY)?;
    // SAFETY: the caller guarantees the bytes, which nothing else uses, and all are written before slices of them are made. The slices
    // do not overlap. The model is aligned, because the memory and the size of the client are, and any bytes are numbers.
    let (values, receive, transmit, record) = unsafe {
        memory.write_bytes(0, size);
        let values = memory.add(FEDSPAN_CLIENT_SIZE);
        let receive = values.add(model_size);
        let transmit = receive.add(limit);
        (
            slice::from_raw_parts_mut(values.cast(), model_size / size_of::<f32>()),
            slice::from_raw_parts_mut(receive, limit),
            slice::from_raw_parts_mut(transmit, capacity),
            slice::from_raw_parts_mut(transmit.add(capacity), record),
        )
    };
    let model_memory = SliceMemory::new(shape, values).map_err(|_| fedspan_status::FEDSPAN_MEMORY)?;
    let place = memory.cast::<Client>();
    // SAFETY: both places have the size and the alignment of their content, and are used only for it. What is shared is not a part of
    // the client, because the client is used exclusively while its parts call them. It is written before a session loads its record.
    // The caller guarantees the key.
    unsafe {
        let (platform, pauses) = Shared::write(memory.add(CLIENT_SIZE).cast(), &raw const config.platform);
        let model_memory = Pauses::add(pauses, platform, config.pause_quota, model_memory);
        (&raw mut (*place).clock).write(Clock::START);
        (&raw mut (*place).link).write(PlatformLink(platform));
        (&raw mut (*place).driver).write(Driver::new(Buffers { receive, transmit }));
        (&raw mut (*place).session).write(Session::with_aead(
            settings,
            config.protection(),
            config.cipher(),
            Linear::new(model_memory),
            PlatformSource::new(platform, shape),
            PlatformStore { platform, record },
            PlatformRandom(platform),
        ));
        (&raw mut (*place).mark).write(STARTED);
    }
    Ok(())
}

/// Ends a client and overwrites its keys. The memory then belongs to the caller.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`, and is not used by another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_end(client: *mut fedspan_client) {
    // SAFETY: the caller guarantees the client.
    if let Some(client) = unsafe { started(client) } {
        client.mark = 0;
        // SAFETY: the client was started, and its mark prevents a second end.
        unsafe { ptr::drop_in_place(client) };
    }
}

/// Does one step of a client over a link that is connected: handles at most one event, reads or writes some bytes, or computes one
/// round. `now_ms` is a counter of milliseconds of 32 bits, which wraps; of a longer one pass the low 32 bits. It may jump or go back.
/// Writes to `*wait_ms` the milliseconds from `now_ms` to the next step, at most 2^30, which are 12 days: a device that would wait longer does
/// a step then, or connects.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`, and is not used by another thread; `wait_ms` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_step(
    client: *mut fedspan_client,
    now_ms: u32,
    wait_ms: *mut u32,
) -> fedspan_state {
    // SAFETY: the caller guarantees the pointers.
    let Some(wait) = (unsafe { wait_ms.as_mut() }) else { return fedspan_state::FEDSPAN_STOPPED };
    *wait = 0;
    // SAFETY: as above.
    let Some(client) = (unsafe { started(client) }) else { return fedspan_state::FEDSPAN_STOPPED };
    let Client { clock, link, driver, session, .. } = client;
    let now = clock.advance(now_ms);
    let (state, time) = match driver.step_non_blocking(session, link, now, &mut NoSensor) {
        Step::Again => return fedspan_state::FEDSPAN_AGAIN,
        Step::Wait(time) => (fedspan_state::FEDSPAN_WAIT, time),
        Step::Closed(closed) => (fedspan_state::FEDSPAN_CLOSED, closed.retry_at),
    };
    *wait = (time - now).as_u64().min(WAIT_MAX.into()) as u32;
    state
}

/// Computes the prediction of the personal model for one sample: `outputs` values, of which for classes the largest is that of the
/// predicted class. May be called between any two steps. The arrays must not overlap.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`, and is not used by another thread; `x` has `features` values and `out` has
/// `outputs`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_predict(
    client: *mut fedspan_client,
    x: *const f32,
    features: usize,
    out: *mut f32,
    outputs: usize,
) -> fedspan_status {
    // SAFETY: the caller guarantees the client.
    let Some(client) = (unsafe { started(client) }) else { return fedspan_status::FEDSPAN_NOT_STARTED };
    if x.is_null() | out.is_null() {
        return fedspan_status::FEDSPAN_NULL;
    }
    let model = client.session.task_mut();
    // Lengths are checked before slices are made of them.
    if (features != model.shape().features) | (outputs != model.shape().outputs) {
        return fedspan_status::FEDSPAN_LENGTH;
    }
    if overlap(x.addr(), size_of::<f32>() * features, out.addr(), size_of::<f32>() * outputs) {
        return fedspan_status::FEDSPAN_OVERLAP;
    }
    // SAFETY: the caller guarantees arrays of these lengths, and they do not overlap.
    let (x, out) = unsafe {
        out.write_bytes(0, outputs);
        (slice::from_raw_parts(x, features), slice::from_raw_parts_mut(out, outputs))
    };
    match model.predict(x, out) {
        Ok(()) => fedspan_status::FEDSPAN_OK,
        Err(NotReady::NoRepresentation) => fedspan_status::FEDSPAN_NO_REPRESENTATION,
        Err(NotReady::NonFinite { .. }) => fedspan_status::FEDSPAN_NOT_FINITE,
        Err(NotReady::Length { .. }) => fedspan_status::FEDSPAN_LENGTH,
        Err(NotReady::Overflow { .. }) => fedspan_status::FEDSPAN_OVERFLOW,
        Err(_) => fedspan_status::FEDSPAN_NO_HEAD,
    }
}

/// Copies the representation, `features * width` values by rows, to `out`, so that the firmware can keep it over a reset. It changes
/// with each round.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`, and is not used by another thread; `out` has `length` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_get_representation(
    client: *mut fedspan_client,
    out: *mut f32,
    length: usize,
) -> fedspan_status {
    // SAFETY: the caller guarantees the client.
    let Some(client) = (unsafe { started(client) }) else { return fedspan_status::FEDSPAN_NOT_STARTED };
    let Some(values) = client.session.task().representation() else {
        return fedspan_status::FEDSPAN_NO_REPRESENTATION;
    };
    if out.is_null() {
        return fedspan_status::FEDSPAN_NULL;
    }
    if length != values.len() {
        return fedspan_status::FEDSPAN_LENGTH;
    }
    // SAFETY: the caller guarantees an array of this length, which is not the client's memory.
    unsafe { out.copy_from_nonoverlapping(values.as_ptr(), length) };
    fedspan_status::FEDSPAN_OK
}

/// Sets the representation to values from `fedspan_get_representation`. If they are those for which the stored head was fitted, the
/// device can predict without a server.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`, and is not used by another thread; `values` has `length` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_set_representation(
    client: *mut fedspan_client,
    values: *const f32,
    length: usize,
) -> fedspan_status {
    // SAFETY: the caller guarantees the client.
    let Some(client) = (unsafe { started(client) }) else { return fedspan_status::FEDSPAN_NOT_STARTED };
    if values.is_null() {
        return fedspan_status::FEDSPAN_NULL;
    }
    let model = client.session.task_mut();
    if length != model.shape().features * model.shape().width {
        return fedspan_status::FEDSPAN_LENGTH;
    }
    // SAFETY: the caller guarantees an array of this length.
    let values = unsafe { slice::from_raw_parts(values, length) };
    match model.set_representation(values) {
        Ok(()) => fedspan_status::FEDSPAN_OK,
        Err(_) => fedspan_status::FEDSPAN_NOT_FINITE,
    }
}

/// Returns the representation, if it is valid, and the head of a client, for tests.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`, and is not used as long as the result.
#[doc(hidden)]
pub unsafe fn model<'a>(client: *mut fedspan_client) -> Option<(&'a [f32], &'a [f32])> {
    // SAFETY: the caller guarantees the client.
    let client = unsafe { started(client) }?;
    let task = client.session.task();
    Some((task.representation().unwrap_or_default(), task.head()))
}

/// Returns true once the final head is fitted and the server has acknowledged it.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_is_fitted(client: *mut fedspan_client) -> bool {
    // SAFETY: the caller guarantees the client.
    unsafe { started(client) }.is_some_and(|client| client.session.is_fitted())
}

/// Returns a number that changes whenever a round has given the model a new head.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_head_version(client: *mut fedspan_client) -> u32 {
    // SAFETY: the caller guarantees the client.
    unsafe { started(client) }.map_or(0, |client| client.session.head_version())
}

/// Returns the number of the last round that the device has finished.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_last_round(client: *mut fedspan_client) -> u32 {
    // SAFETY: the caller guarantees the client.
    unsafe { started(client) }.map_or(0, |client| client.session.last_round())
}

/// Returns why the server has refused the device, which connecting again does not change: 0 if it has not, 1 another version of the
/// protocol, 2 another build of it, 3 another model, 4 a missing capability, 5 an unknown device or key, 6 the frame limit, 7 a
/// missing key, 8 a server without keys. A device with a key accepts only reasons that the server has sealed, and with a version or build of
/// its own it cannot seal: the results are 3, 4 and 6. For the other reasons the result stays 0, the device tries again, and
/// `counters.unsealed` grows. The client in Rust can know 1 and 2 by the feature `reports`.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_refusal(client: *mut fedspan_client) -> u32 {
    // SAFETY: the caller guarantees the client.
    match unsafe { started(client) }.and_then(|client| client.session.refusal()) {
        None => 0,
        Some(Refusal::WireVersion { .. }) => 1,
        Some(Refusal::Schema { .. }) => 2,
        Some(Refusal::Model { .. }) => 3,
        Some(Refusal::Capability(_)) => 4,
        Some(Refusal::UnknownDevice) => 5,
        Some(Refusal::FrameLimit { .. }) => 6,
        Some(Refusal::KeyNeeded) => 7,
        Some(_) => 8,
    }
}

/// Writes the counters to `*counters`.
///
/// # Safety
/// `client` is NULL or came from `fedspan_start`; `counters` is NULL or points to counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_get_counters(
    client: *mut fedspan_client,
    counters: *mut fedspan_counters,
) -> fedspan_status {
    // SAFETY: the caller guarantees the pointers.
    let (client, counters) = unsafe { (started(client), counters.as_mut()) };
    let Some(client) = client else { return fedspan_status::FEDSPAN_NOT_STARTED };
    let Some(counters) = counters else { return fedspan_status::FEDSPAN_NULL };
    let found = client.session.counters();
    *counters = fedspan_counters {
        counted: found.counted,
        late: found.late,
        rejected: found.rejected,
        declined: found.declined,
        closed: found.closed,
        unasked: found.unasked,
        malformed: found.malformed,
        unexpected: found.unexpected,
        asked_again: found.asked_again,
        unopened: found.unopened,
        unsealed: found.unsealed,
        clock_jumps: found.clock_jumps,
        storage: found.storage,
        unread: client.session.source_mut().failures,
        random: client.link.0.random_failures(),
    };
    fedspan_status::FEDSPAN_OK
}
