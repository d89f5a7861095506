//! Complete client, on the minimal board, of a device whose heads have a prior that the fleet learns, with room for the fleet's second
//! moments. No panic is reachable, for any request of a server.

#![no_std]
#![no_main]

use core::hint::spin_loop;
use core::mem::MaybeUninit;

use fedspan_client::link::{Buffers, run};
use fedspan_client::memory::Shape;
use fedspan_client::session::Config;
use fedspan_client::store::NoStore;
use fedspan_client::task::{LearnedPrior, learned_prior_values};
use fedspan_client::{Recording, Session};
use least::{D, K, Lcg, Line, Once, clock, protection, report, samples};

const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();
/// Sizes of the model.
const SHAPE: Shape = Shape { features: D, width: K, outputs: 1 };
/// Number of values of the model.
const VALUES: usize = learned_prior_values(SHAPE, true);

type Client = Session<LearnedPrior<&'static mut [f32]>, Recording<'static>, NoStore, Lcg>;

/// All static memory of the client.
struct Statics {
    client: MaybeUninit<Client>,
    values: [f32; VALUES],
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

static STATICS: Once<Statics> = Once::new(Statics {
    client: MaybeUninit::uninit(),
    values: [0.0; VALUES],
    receive: [0; RECEIVE],
    transmit: [0; TRANSMIT],
});

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let (x, y) = samples();
    let samples = Recording::regression(x, y, D, 1);
    // SAFETY: this is the only call, because `main` runs once.
    let Statics { client, values, receive, transmit } = unsafe { STATICS.take() };
    let Ok(model) = LearnedPrior::new(SHAPE, &mut values[..]) else {
        loop {
            spin_loop();
        }
    };
    let client = client.write(Session::new(CONFIG, protection(), model, samples, NoStore, Lcg(1)));
    loop {
        let buffers = Buffers { receive, transmit };
        let closed = run(client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0];
        if let Some(sample) = x.get(..D)
            && let Ok(variance) = client.task_mut().predict_with_variance(sample, &mut out)
        {
            report(out[0]);
            report(variance);
        }
        while clock() < closed.retry_at {}
    }
}
