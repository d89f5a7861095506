//! The whole client of a device that trains a network, 64-32-7 with momentum: whatever a server asks for, no panic can be
//! reached.

#![no_std]
#![no_main]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

use fedspan_client::link::{Buffers, run};
use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::{Network, Recording, Session};
use least::{D, Line, Steps, classes, clock, key, samples, tell};

const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

/// Classes.
const C: usize = 7;
/// Samples of a batch.
const N: usize = 10;

/// The model.
struct Mine;

impl NetworkSizes for Mine {
    const SHAPE: NetworkShape = NetworkShape::new(D, &[32], C, N);
}

const P: usize = Mine::SHAPE.parameters();
type Workspace = NetworkWorkspace<Mine, P, { Mine::SHAPE.scratch() }, N, P>;
type Client = Session<Network<&'static mut Workspace>, Recording<'static>, NoStore, Steps>;

/// Everything that the client needs, in static memory.
struct Everything {
    client: MaybeUninit<Client>,
    workspace: Workspace,
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
    let (x, _) = samples();
    let samples = Recording::classification(x, classes(), D);
    // SAFETY: nobody else has this place.
    let Everything { client, workspace, receive, transmit } = unsafe { &mut *PLACE.0.get() };
    let client = client.write(Session::new(
        CONFIG,
        Protection::Key(key()),
        Network::new(workspace, 1),
        samples,
        NoStore,
        Steps(1),
    ));
    loop {
        let buffers = Buffers { receive, transmit };
        let closed = run(client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0; C];
        if let Some(sample) = x.get(..D)
            && client.task_mut().predict(sample, &mut out).is_ok()
        {
            out.into_iter().for_each(tell);
        }
        while clock() < closed.retry_at {}
    }
}
