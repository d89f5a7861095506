//! Complete client (link, protocol, session, training, prediction) on the minimal board. The program is
//! linked to measure its size and to show that no panic is reachable.

#![no_std]
#![no_main]

#[cfg(any(feature = "flash", feature = "scale", feature = "top-k"))]
use core::hint::spin_loop;
use core::mem::MaybeUninit;

#[cfg(not(feature = "i16"))]
use fedspan_client::Workspace;
use fedspan_client::link::{Buffers, run};
#[cfg(feature = "i16")]
use fedspan_client::memory::FixedWorkspace as Workspace;
use fedspan_client::session::Config;
#[cfg(feature = "reports")]
use fedspan_client::session::{About, Firmware, ResetReason};
#[cfg(not(feature = "flash"))]
use fedspan_client::store::NoStore;
#[cfg(feature = "flash")]
use fedspan_client::store::{FlashStore, record_len};
#[cfg(feature = "top-k")]
use fedspan_client::task::ErrorFeedback;
#[cfg(feature = "scale")]
use fedspan_client::task::{Scaled, scaled_values};
use fedspan_client::{Linear, Recording, Session};
#[cfg(feature = "flash")]
use least::Flash;
use least::{D, K, Lcg, Line, Once, clock, protection, report, samples};

/// Session settings of device 1.
const CONFIG: Config = Config {
    #[cfg(feature = "beacons")]
    receives_beacons: true,
    #[cfg(feature = "reports")]
    about: Some(ABOUT),
    ..Config::new(1)
};
/// Facts that the device reports.
#[cfg(feature = "reports")]
const ABOUT: About =
    About { firmware: Firmware { version: [0, 1, 0], build: 0 }, reset: ResetReason::Unknown };
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

#[cfg(not(any(feature = "scale", feature = "top-k")))]
type Model = Linear<&'static mut Workspace<D, K>>;
#[cfg(feature = "top-k")]
type Model = ErrorFeedback<Linear<&'static mut Workspace<D, K>>, &'static mut [f32]>;
#[cfg(feature = "scale")]
type Model = Scaled<Linear<&'static mut Workspace<D, K>>, &'static mut [f32]>;
#[cfg(not(feature = "flash"))]
type Storage = NoStore;
#[cfg(feature = "flash")]
type Storage = FlashStore<Flash, { record_len(K, 1).next_multiple_of(4) }>;
type Client = Session<Model, Recording<'static>, Storage, Lcg>;

/// All static memory of the client.
struct Statics {
    client: MaybeUninit<Client>,
    workspace: Workspace<D, K>,
    #[cfg(feature = "scale")]
    scale: [f32; scaled_values(D)],
    #[cfg(feature = "top-k")]
    residual: [f32; D * K],
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

static STATICS: Once<Statics> = Once::new(Statics {
    client: MaybeUninit::uninit(),
    workspace: Workspace::new(),
    #[cfg(feature = "scale")]
    scale: [0.0; scaled_values(D)],
    #[cfg(feature = "top-k")]
    residual: [0.0; D * K],
    receive: [0; RECEIVE],
    transmit: [0; TRANSMIT],
});

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let (x, y) = samples();
    let samples = Recording::regression(x, y, D, 1);
    // SAFETY: this is the only call, because `main` runs once.
    let statics = unsafe { STATICS.take() };
    let Statics { client, workspace, receive, transmit, .. } = statics;
    let model = Linear::new(workspace);
    #[cfg(feature = "scale")]
    let Ok(model) = Scaled::new(model, &mut statics.scale[..]) else {
        loop {
            spin_loop();
        }
    };
    #[cfg(feature = "top-k")]
    let Ok(model) = ErrorFeedback::new(model, &mut statics.residual[..]) else {
        loop {
            spin_loop();
        }
    };
    #[cfg(not(feature = "flash"))]
    let store = NoStore;
    #[cfg(feature = "flash")]
    let Ok(store) = FlashStore::new(Flash, 0..Flash::SIZE) else {
        loop {
            spin_loop();
        }
    };
    let client = client.write(Session::new(CONFIG, protection(), model, samples, store, Lcg(1)));
    loop {
        let buffers = Buffers { receive, transmit };
        let closed = run(client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0];
        if let Some(sample) = x.get(..D)
            && model_of(client).predict(sample, &mut out).is_ok()
        {
            report(out[0]);
        }
        while clock() < closed.retry_at {}
    }
}

/// Returns the model that predicts.
#[cfg(not(feature = "top-k"))]
fn model_of(client: &mut Client) -> &mut Model {
    client.task_mut()
}

/// Returns the model that predicts.
#[cfg(feature = "top-k")]
fn model_of(client: &mut Client) -> &mut Linear<&'static mut Workspace<D, K>> {
    client.task_mut().task_mut()
}
