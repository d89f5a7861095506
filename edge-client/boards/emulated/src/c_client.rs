//! Program `c_client`: a client in C (`edge-client/capi/examples/board`) that uses the interface to C. This module has the functions
//! of `board.h`, and reports the same results as the program `client`.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::slice;

use chacha20::ChaCha8Rng;
use embedded_io::{Read as _, ReadReady as _, Write as _};
use fedspan::{fedspan_item, fedspan_samples};
use fedspan_client::recording::table::{Rows, Split, Table};
use fedspan_client::session::Protection;
use fedspan_client::{Millis, RoundId, SampleSource as _, Targets};
use fedspan_protocol::frame::{crc32c, crc32c_f32};
use rand_core::{Rng as _, SeedableRng as _};
use semihosting::{println, process};

use crate::board::Board;
use crate::client::{SMALL_FEATURES, exit_without_data, read_settings};
use crate::fault;
use crate::flash::FlashFile;
use crate::identity::identify;
use crate::link::{Link, Traffic};
use crate::nor::SIZE;
use crate::pipes::Pipes;
use crate::serial::{Serial, Uart as _};
use crate::settings::{LinkSettings, Settings};
use crate::slots;
use crate::stack::Painted;

unsafe extern "C" {
    /// Main function of the program in C, which ends with `board_report`.
    fn c_main();
}

/// Services of a board for the program, for any board.
trait Services {
    fn now(&self) -> Millis;
    fn wait(&self, until: Millis);
    fn connect(&mut self);
    fn link(&mut self) -> Option<&mut dyn Bytes>;
    fn traffic(&self) -> Traffic;
    fn lost(&self) -> u32;
    fn names(&self) -> (&'static str, &'static str);
}

/// Bytes that have arrived and bytes to be sent.
trait Bytes {
    fn receive(&mut self, bytes: &mut [u8]) -> i32;
    fn send(&mut self, bytes: &[u8]) -> i32;
}

impl<S, P> Bytes for Link<S, P>
where
    Self: embedded_io::Read + embedded_io::ReadReady + embedded_io::Write,
{
    fn receive(&mut self, bytes: &mut [u8]) -> i32 {
        match self.read_ready() {
            Ok(true) => match self.read(bytes) {
                Ok(0) | Err(_) => -1,
                Ok(count) => i32::try_from(count).unwrap_or(-1),
            },
            Ok(false) => 0,
            Err(_) => -1,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> i32 {
        match self.write(bytes) {
            Ok(count) => i32::try_from(count).unwrap_or(-1),
            Err(_) => -1,
        }
    }
}

/// A board with the link to the server.
struct BoardServices<B: Board> {
    board: B,
    settings: Settings,
    link: Option<Link<Serial<B::Uart>, Pipes>>,
    traffic: Traffic,
}

impl<B: Board> Services for BoardServices<B> {
    fn now(&self) -> Millis {
        self.board.now()
    }

    fn wait(&self, until: Millis) {
        self.board.wait(until);
    }

    fn connect(&mut self) {
        if self.link.as_ref().is_some_and(Link::is_over) {
            process::exit(fault::POWER_GONE);
        }
        self.traffic = self.traffic();
        let last = self.settings.end_after;
        let opened = match &self.settings.link {
            LinkSettings::Uart => Ok(Link::serial(Serial::new(), self.traffic, last)),
            LinkSettings::Pipes { receive, transmit } => {
                Pipes::open(receive, transmit).map(|pipes| Link::pipes(pipes, self.traffic, last))
            }
        };
        match opened {
            Ok(link) => self.link = Some(link),
            Err(error) => fault::exit(fault::WRONG, &format_args!("cannot open the pipes: {error:?}")),
        }
    }

    fn link(&mut self) -> Option<&mut dyn Bytes> {
        self.link.as_mut().map(|link| link as &mut dyn Bytes)
    }

    fn traffic(&self) -> Traffic {
        self.link.as_ref().map_or(self.traffic, |link| link.traffic)
    }

    fn lost(&self) -> u32 {
        B::Uart::lost()
    }

    fn names(&self) -> (&'static str, &'static str) {
        (B::NAME, B::CORE)
    }
}

/// State of the program.
struct State {
    services: *mut dyn Services,
    device: u64,
    key: Option<[u8; 32]>,
    training: Rows<'static, SMALL_FEATURES>,
    trained: usize,
    test: Rows<'static, SMALL_FEATURES>,
    random: ChaCha8Rng,
    storage: Option<FlashFile>,
    /// True if the hash of each record is printed when it is written, so that a test can compare it with the one at the next start.
    print_records: bool,
    saved: u32,
    stack: Painted,
}

/// The state, which lives on the stack of [`run`] as long as the program.
struct StatePointer(UnsafeCell<*mut State>);

// SAFETY: the program has one thread, and interrupts do not use the state.
unsafe impl Sync for StatePointer {}

static STATE: StatePointer = StatePointer(UnsafeCell::new(ptr::null_mut()));

/// Returns the state.
fn state() -> &'static mut State {
    // SAFETY: `run` has set the pointer before it called the program, and no reference is kept between two calls.
    unsafe { &mut **STATE.0.get() }
}

/// Returns the board.
fn services() -> &'static mut dyn Services {
    // SAFETY: as for `state`.
    unsafe { &mut *state().services }
}

/// Runs the program on a board.
pub fn run<B: Board>(board: B, stack: Painted) -> ! {
    let settings = read_settings();
    let (device, protection) = identify(&settings.identity);
    let key = match protection {
        Protection::Plaintext => None,
        Protection::Key(key) => Some(*key.expose()),
    };
    let table = match Table::parse(fedspan_memory_map::recording()) {
        Ok(table) => table,
        Err(problem) => exit_without_data("table of samples", problem),
    };
    let rows = |part| match Rows::new(&table, part) {
        Some(rows) => rows,
        None => fault::exit(fault::WRONG, &"the table has another number of features"),
    };
    let storage = settings.flash.as_ref().map(|name| match FlashFile::open(name, SIZE) {
        Ok(file) => file,
        Err(problem) => fault::exit(fault::WRONG, &problem),
    });
    let print_records = settings.end_after.is_some();
    let mut services = BoardServices { board, settings, link: None, traffic: Traffic::default() };
    let services: &mut dyn Services = &mut services;
    // SAFETY: only the lifetime is erased: this function never returns, so that the services live as long as the program.
    let services: *mut (dyn Services + 'static) = unsafe { core::mem::transmute(ptr::from_mut(services)) };
    let mut state = State {
        services,
        device,
        key,
        training: rows(Split::Training),
        trained: table.rows(Split::Training),
        test: rows(Split::Test),
        random: ChaCha8Rng::seed_from_u64(device),
        storage,
        print_records,
        saved: 0,
        stack,
    };
    // SAFETY: nothing else uses the pointer yet; the state lives as long as the program.
    unsafe {
        *STATE.0.get() = &raw mut state;
        c_main();
    }
    fault::exit(fault::FAULT, &"the program has returned")
}

#[unsafe(no_mangle)]
extern "C" fn board_device() -> u64 {
    state().device
}

#[unsafe(no_mangle)]
extern "C" fn board_key() -> *const u8 {
    state().key.as_ref().map_or(ptr::null(), |key| key.as_ptr())
}

#[unsafe(no_mangle)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "a counter of 32 bits that wraps, as the interface takes it"
)]
extern "C" fn board_now() -> u32 {
    services().now().as_u64() as u32
}

#[unsafe(no_mangle)]
extern "C" fn board_wait(milliseconds: u32) {
    let services = services();
    services.wait(services.now() + Millis::from(milliseconds));
}

#[unsafe(no_mangle)]
extern "C" fn board_connect() {
    services().connect();
}

#[unsafe(no_mangle)]
extern "C" fn board_rewind(_context: *mut c_void, round: u32) -> i32 {
    match state().training.rewind(RoundId { round, stage: 0 }) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

#[unsafe(no_mangle)]
extern "C" fn board_next(_context: *mut c_void, samples: *mut fedspan_samples) -> i32 {
    let next = state().training.next();
    // SAFETY: the client passes samples to write.
    let samples = unsafe { &mut *samples };
    samples.count = 0;
    if let Some(next) = next
        && let Targets::Values(targets) = next.targets
    {
        (samples.x, samples.targets, samples.count) = (next.x.as_ptr(), targets.as_ptr(), 1);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn board_random(_context: *mut c_void, bytes: *mut u8, length: usize) -> i32 {
    // SAFETY: the client passes a buffer of this length.
    state().random.fill_bytes(unsafe { slice::from_raw_parts_mut(bytes, length) });
    0
}

#[unsafe(no_mangle)]
extern "C" fn board_load(_context: *mut c_void, item: fedspan_item, bytes: *mut u8, length: usize) -> i32 {
    let State { device, storage: Some(storage), .. } = state() else { return 0 };
    // SAFETY: the client passes a buffer of this length.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, length) };
    let Ok(loaded) = slots::load(storage, item as usize, bytes) else { return -1 };
    let loaded = loaded.and_then(|length| bytes.get(..length)).unwrap_or_default();
    match loaded {
        _ if item != fedspan_item::FEDSPAN_RECORD => {}
        [] => println!("{{\"device\":{device},\"start\":{{}}}}"),
        record => {
            println!("{{\"device\":{device},\"start\":{{\"restored\":\"{:08x}\"}}}}", crc32c(record));
        }
    }
    i32::try_from(loaded.len()).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn board_save(_context: *mut c_void, item: fedspan_item, bytes: *const u8, length: usize) -> i32 {
    let State { device, storage: Some(storage), print_records, saved, .. } = state() else { return 0 };
    // SAFETY: the client passes a buffer of this length.
    let bytes = unsafe { slice::from_raw_parts(bytes, length) };
    if slots::save(storage, item as usize, bytes).is_err() {
        return -1;
    }
    if item == fedspan_item::FEDSPAN_RECORD {
        *saved += 1;
        if *print_records {
            println!("{{\"device\":{device},\"saved\":\"{:08x}\"}}", crc32c(bytes));
        }
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn board_read(_context: *mut c_void, bytes: *mut u8, length: usize) -> i32 {
    // SAFETY: the client passes a buffer of this length.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, length) };
    services().link().map_or(-1, |link| link.receive(bytes))
}

#[unsafe(no_mangle)]
extern "C" fn board_write(_context: *mut c_void, bytes: *const u8, length: usize) -> i32 {
    // SAFETY: the client passes a buffer of this length.
    let bytes = unsafe { slice::from_raw_parts(bytes, length) };
    services().link().map_or(-1, |link| link.send(bytes))
}

#[unsafe(no_mangle)]
extern "C" fn board_test(target: *mut f32) -> *const f32 {
    let Some(sample) = state().test.next() else { return ptr::null() };
    if let Targets::Values(&[value]) = sample.targets {
        // SAFETY: the program passes a number to write.
        unsafe { *target = value };
    }
    sample.x.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn board_fail(what: *const c_char, status: i32) -> ! {
    // SAFETY: the program passes a string.
    let what = unsafe { CStr::from_ptr(what) }.to_str().unwrap_or("?");
    fault::exit(fault::WRONG, &format_args!("{what}: {status}"))
}

#[unsafe(no_mangle)]
extern "C" fn board_report(client: *mut fedspan::fedspan_client, squares: f32, tested: u32) -> ! {
    let (state, traffic) = (state(), services().traffic());
    let mut counters = fedspan::fedspan_counters::default();
    // SAFETY: the program passes its client.
    let (model, round) = unsafe {
        fedspan::fedspan_get_counters(client, &raw mut counters);
        (fedspan::model(client), fedspan::fedspan_last_round(client))
    };
    let (representation, head) = model.unwrap_or_default();
    let (name, core) = services().names();
    let ram = fedspan_memory_map::ram();
    let (statics, stack) =
        (fedspan_memory_map::stack_limit().saturating_sub(ram.start), state.stack.depth(ram.end));
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small error, to be printed"
    )]
    let millionths = (squares / tested.max(1) as f32 * 1e6 + 0.5) as u32;
    println!(
        "{{\"device\":{},\"board\":\"{name}\",\"core\":\"{core}\",\"squared_error\":{}.{:06},\"trained\":{},\"tested\":{tested},\
         \"round\":{round},\"counted\":{},\"late\":{},\"rejected\":{},\"declined\":{},\"asked_again\":{},\"storage\":{},\
         \"sealed\":{},\"unopened\":{},\"unsealed\":{},\"resets\":0,\"restored\":0,\"unusable\":0,\"erased\":0,\"saved\":{},\
         \"lost\":{},\"up\":{},\"down\":{},\"milliseconds\":{},\"static\":{statics},\"stack\":{stack},\
         \"representation\":\"{:08x}\",\"head\":\"{:08x}\"}}",
        state.device,
        millionths / 1_000_000,
        millionths % 1_000_000,
        state.trained,
        counters.counted,
        counters.late,
        counters.rejected,
        counters.declined,
        counters.asked_again,
        counters.storage,
        state.key.is_some(),
        counters.unopened,
        counters.unsealed,
        state.saved,
        services().lost(),
        traffic.up,
        traffic.down,
        services().now(),
        crc32c_f32(representation),
        crc32c_f32(head),
    );
    process::exit(0)
}
