//! The whole client (link, protocol, session, training, prediction), and no more of a board than it needs.

#![no_std]
#![no_main]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

#[cfg(not(feature = "i16"))]
use fedspan_client::Workspace;
use fedspan_client::link::{Buffers, run};
#[cfg(feature = "i16")]
use fedspan_client::memory::FixedWorkspace as Workspace;
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Recording, Session};
use least::{D, K, Line, Steps, clock, key, samples, tell};

const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

type Client = Session<Linear<&'static mut Workspace<D, K>>, Recording<'static>, NoStore, Steps>;

/// Everything that the client needs, in static memory.
struct Everything {
    client: MaybeUninit<Client>,
    workspace: Workspace<D, K>,
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

struct Place(UnsafeCell<Everything>);

// SAFETY: only `main` touches it, once.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(Everything {
    client: MaybeUninit::uninit(),
    workspace: Workspace::new(),
    receive: [0; RECEIVE],
    transmit: [0; TRANSMIT],
}));

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let (x, y) = samples();
    let samples = Recording::regression(x, y, D, 1);
    // SAFETY: nobody else has this place.
    let Everything { client, workspace, receive, transmit } = unsafe { &mut *PLACE.0.get() };
    let client = client.write(Session::new(
        CONFIG,
        Protection::Key(key()),
        Linear::new(workspace),
        samples,
        NoStore,
        Steps(1),
    ));
    loop {
        let buffers = Buffers { receive, transmit };
        let closed = run(client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0];
        if let Some(sample) = x.get(..D)
            && client.task_mut().predict(sample, &mut out).is_ok()
        {
            tell(out[0]);
        }
        while clock() < closed.retry_at {}
    }
}
