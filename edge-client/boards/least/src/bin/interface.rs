//! The client of the program `client` through the interface to C, to measure what the interface adds, and to show that no panic is
//! reachable through it.

#![no_std]
#![no_main]

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr;
use core::slice;

use embedded_io::{Read, ReadReady, Write};
use fedspan::{
    FEDSPAN_CLIENT_SIZE, fedspan_config, fedspan_item, fedspan_platform, fedspan_predict, fedspan_samples,
    fedspan_start, fedspan_state, fedspan_step, fedspan_timers,
};
use least::{D, K, Lcg, Line, milliseconds, report, samples};
use rand_core::Rng;

/// Frame limit in bytes.
const LIMIT: usize = 256;
/// Memory of the client, as the macro of the header computes it for one output.
const SIZE: usize =
    FEDSPAN_CLIENT_SIZE + 4 * (3 * K + D * (K + 1) + K * (K + 1) + 1) + 2 * LIMIT + LIMIT / 254 + 32;

#[repr(align(8))]
struct Memory(UnsafeCell<[u8; SIZE]>);

// SAFETY: only `main` uses the memory, through the client.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; SIZE]));

/// Context of the platform.
struct Context {
    has_begun: bool,
    random: Lcg,
}

/// Returns the context.
///
/// # Safety
/// The pointer is that of the settings in `main`.
unsafe fn context<'a>(context: *mut c_void) -> &'a mut Context {
    // SAFETY: the caller guarantees the pointer.
    unsafe { &mut *context.cast() }
}

unsafe extern "C" fn rewind(pointer: *mut c_void, _round: u32) -> i32 {
    // SAFETY: the context of the settings.
    unsafe { context(pointer) }.has_begun = false;
    0
}

unsafe extern "C" fn next(pointer: *mut c_void, found: *mut fedspan_samples) -> i32 {
    let (x, y) = samples();
    // SAFETY: the context of the settings, and samples to write.
    let (context, found) = unsafe { (context(pointer), &mut *found) };
    (found.x, found.targets) = (x.as_ptr(), y.as_ptr());
    found.count = if context.has_begun { 0 } else { y.len() as u32 };
    context.has_begun = true;
    0
}

unsafe extern "C" fn random(pointer: *mut c_void, bytes: *mut u8, length: usize) -> i32 {
    // SAFETY: the context of the settings, and a buffer of this length.
    unsafe { context(pointer).random.fill_bytes(slice::from_raw_parts_mut(bytes, length)) };
    0
}

/// A device without storage, as in the program `client`.
unsafe extern "C" fn load(_: *mut c_void, _: fedspan_item, _: *mut u8, _: usize) -> i32 {
    0
}

unsafe extern "C" fn save(_: *mut c_void, _: fedspan_item, _: *const u8, _: usize) -> i32 {
    0
}

unsafe extern "C" fn read(_: *mut c_void, bytes: *mut u8, length: usize) -> i32 {
    let Ok(ready) = Line.read_ready();
    if !ready {
        return 0;
    }
    // SAFETY: a buffer of this length.
    let Ok(count) = Line.read(unsafe { slice::from_raw_parts_mut(bytes, length) });
    count as i32
}

unsafe extern "C" fn write(_: *mut c_void, bytes: *const u8, length: usize) -> i32 {
    // SAFETY: a buffer of this length.
    let Ok(count) = Line.write(unsafe { slice::from_raw_parts(bytes, length) });
    count as i32
}

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let mut context = Context { has_begun: false, random: Lcg(1) };
    #[cfg(feature = "encryption")]
    let key = least::key_bytes();
    let config = fedspan_config {
        device: 1,
        #[cfg(feature = "encryption")]
        key: key.as_ptr(),
        #[cfg(not(feature = "encryption"))]
        key: ptr::null(),
        key_epoch: 0,
        features: D as u16,
        width: K as u16,
        outputs: 1,
        frame_limit: LIMIT as u16,
        leave_when_fitted: 0,
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
            context: (&raw mut context).cast(),
            rewind: Some(rewind),
            next: Some(next),
            random: Some(random),
            load: Some(load),
            save: Some(save),
            read: Some(read),
            write: Some(write),
            pause: None,
        },
    };
    let (mut client, mut wait) = (ptr::null_mut(), 0);
    // SAFETY: `main` runs once, and the memory is used only here.
    unsafe { fedspan_start(MEMORY.0.get().cast(), SIZE, &raw const config, &raw mut client) };
    let (x, _) = samples();
    loop {
        let now = milliseconds();
        // SAFETY: the client that was started, or NULL.
        if unsafe { fedspan_step(client, now, &raw mut wait) } == fedspan_state::FEDSPAN_CLOSED {
            let mut out = 0.0;
            // SAFETY: as above; the sample has D values.
            unsafe { fedspan_predict(client, x.as_ptr(), D, &raw mut out, 1) };
            report(out);
            while milliseconds().wrapping_sub(now) < wait {}
        }
    }
}
