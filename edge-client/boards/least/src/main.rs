//! The whole client (link, protocol, session, training, prediction) around a serial line that is four
//! registers and a clock that is one counter. Two things come out of linking it: how much flash and RAM the
//! client takes, and that it cannot panic: the panic handler calls what does not exist, so that the program
//! links only if no panic can be reached.

#![no_std]
#![no_main]

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::mem::MaybeUninit;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use cortex_m_rt::{entry, exception};
use embedded_io::{ErrorType, Read, ReadReady, Write};
#[cfg(not(feature = "i16"))]
use fedspan_client::Workspace;
use fedspan_client::link::{Buffers, run};
#[cfg(feature = "i16")]
use fedspan_client::memory::FixedWorkspace as Workspace;
use fedspan_client::session::Config;
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Recording, Session};
use rand_core::TryRng;

/// Features and width.
const SHAPE: (usize, usize) = if cfg!(feature = "shape-20-2") {
    (20, 2)
} else if cfg!(feature = "shape-128-8") {
    (128, 8)
} else {
    (64, 4)
};
const D: usize = SHAPE.0;
const K: usize = SHAPE.1;
/// Samples.
const M: usize = 32;

const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

/// Where samples and targets are, one after the other.
const SAMPLES: usize = 0x0008_0000;
/// A serial line: data, state, and where predictions go.
const LINE: usize = 0x4000_4000;

type Client = Session<Linear<Workspace<D, K>>, Recording<'static>, NoStore, Steps>;

/// Everything that the client needs, in static memory.
struct Everything {
    client: Client,
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

struct Place(UnsafeCell<MaybeUninit<Everything>>);

// SAFETY: only `main` touches it, once.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static MILLISECONDS: AtomicU32 = AtomicU32::new(0);

/// Numbers for reconnect delays.
struct Steps(u32);

impl TryRng for Steps {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.0 = self.0.wrapping_mul(747_796_405).wrapping_add(1);
        Ok(self.0)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from(self.try_next_u32()?) << 32 | u64::from(self.try_next_u32()?))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for byte in bytes {
            *byte = self.try_next_u32()?.to_le_bytes()[3];
        }
        Ok(())
    }
}

/// A register of the line.
fn read(offset: usize) -> u32 {
    // SAFETY: a register of the serial line.
    unsafe { core::ptr::with_exposed_provenance::<u32>(LINE + offset).read_volatile() }
}

fn write(offset: usize, value: u32) {
    // SAFETY: as above.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(LINE + offset).write_volatile(value) }
}

struct Line;

impl ErrorType for Line {
    type Error = Infallible;
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for place in buffer {
            if read(4) & 2 == 0 && n > 0 {
                break;
            }
            *place = read(0).to_le_bytes()[0];
            n += 1;
        }
        Ok(n)
    }
}

impl ReadReady for Line {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(read(4) & 2 != 0)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        for &byte in bytes {
            while read(4) & 1 != 0 {}
            write(0, byte.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

#[exception]
fn SysTick() {
    MILLISECONDS.store(MILLISECONDS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[entry]
fn main() -> ! {
    let start = core::ptr::with_exposed_provenance::<f32>(SAMPLES);
    // SAFETY: flash that is set aside for this.
    let (x, y) = unsafe {
        (core::slice::from_raw_parts(start, M * D), core::slice::from_raw_parts(start.add(M * D), M))
    };
    let samples = Recording::regression(x, y, D, 1);
    let model = Linear::new(Workspace::new());
    // SAFETY: nobody else has this place.
    let place = unsafe { &mut *PLACE.0.get() };
    let all = place.write(Everything {
        client: Session::new(CONFIG, model, samples, NoStore, Steps(1)),
        receive: [0; RECEIVE],
        transmit: [0; TRANSMIT],
    });
    let clock = || u64::from(MILLISECONDS.load(Ordering::Relaxed));
    loop {
        let buffers = Buffers { receive: &mut all.receive, transmit: &mut all.transmit };
        let closed = run(&mut all.client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0];
        if let (Some(sample), Ok(())) =
            (x.get(..D), all.client.task_mut().predict(x.get(..D).unwrap_or_default(), &mut out))
            && !sample.is_empty()
        {
            write(8, out[0].to_bits());
        }
        while clock() < closed.retry_at {}
    }
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    unsafe extern "C" {
        fn a_panic_can_be_reached() -> !;
    }
    // SAFETY: it does not exist, so a program that could call it does not link.
    unsafe { a_panic_can_be_reached() }
}
