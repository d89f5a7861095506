//! Complete client, on the minimal board, of a device that trains a 64-32-7 network with momentum. No panic
//! is reachable, for any request of a server.

#![no_std]
#![no_main]

use core::mem::MaybeUninit;

use fedspan_client::link::{Buffers, run};
use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_client::session::Config;
use fedspan_client::store::NoStore;
use fedspan_client::{Network, Recording, Session};
use least::{D, Lcg, Line, Once, classes, clock, protection, report, samples};

const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

/// Number of classes.
const C: usize = 7;
/// Samples per batch.
const N: usize = 10;

/// Sizes of the network.
struct Sizes;

impl NetworkSizes for Sizes {
    const SHAPE: NetworkShape = NetworkShape::new(D, &[32], C, N);
}

const P: usize = Sizes::SHAPE.parameters();
type Workspace = NetworkWorkspace<Sizes, P, { Sizes::SHAPE.scratch() }, N, P>;
type Client = Session<Network<&'static mut Workspace>, Recording<'static>, NoStore, Lcg>;

/// All static memory of the client.
struct Statics {
    client: MaybeUninit<Client>,
    workspace: Workspace,
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

static STATICS: Once<Statics> = Once::new(Statics {
    client: MaybeUninit::uninit(),
    workspace: Workspace::new(),
    receive: [0; RECEIVE],
    transmit: [0; TRANSMIT],
});

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let (x, _) = samples();
    let samples = Recording::classification(x, classes(), D);
    // SAFETY: this is the only call, because `main` runs once.
    let Statics { client, workspace, receive, transmit } = unsafe { STATICS.take() };
    let client = client.write(Session::new(
        CONFIG,
        protection(),
        Network::new(workspace, 1),
        samples,
        NoStore,
        Lcg(1),
    ));
    loop {
        let buffers = Buffers { receive, transmit };
        let closed = run(client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0; C];
        if let Some(sample) = x.get(..D)
            && client.task_mut().predict(sample, &mut out).is_ok()
        {
            out.into_iter().for_each(report);
        }
        while clock() < closed.retry_at {}
    }
}
