//! Complete client, on the minimal board, of a device that adds noise to every update, with FedPower and
//! FedRep. No panic is reachable, for any request of a server and any entropy.

#![no_std]
#![no_main]

use core::hint::spin_loop;
use core::mem::MaybeUninit;

use fedspan_client::Millis;
use fedspan_client::link::{Buffers, run};
use fedspan_client::memory::PowerWorkspace;
use fedspan_client::privacy::{
    Clip, Clipped, EntropySource, Gaussian, MinEntropy, NoiseMultiplier, PrivacySettings,
};
use fedspan_client::session::Config;
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Recording, Session};
use least::{D, Entropy, K, Lcg, Line, Once, clock, protection, report, samples};

const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

type Model = Linear<&'static mut PowerWorkspace<D, K>, Clipped<Gaussian<Entropy>>>;
type Client = Session<Model, Recording<'static>, NoStore, Lcg>;

/// All static memory of the client.
struct Statics {
    client: MaybeUninit<Client>,
    workspace: PowerWorkspace<D, K>,
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

static STATICS: Once<Statics> = Once::new(Statics {
    client: MaybeUninit::uninit(),
    workspace: PowerWorkspace::new(),
    receive: [0; RECEIVE],
    transmit: [0; TRANSMIT],
});

/// Returns an arbitrary number, read from the serial line.
fn read_number() -> u32 {
    let mut bytes = [0; 4];
    let Ok(()) = Entropy.read(&mut bytes);
    u32::from_le_bytes(bytes)
}

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let (x, y) = samples();
    let samples = Recording::regression(x, y, D, 1);
    // SAFETY: this is the only call, because `main` runs once.
    let Statics { client, workspace, receive, transmit } = unsafe { STATICS.take() };
    // The settings are arbitrary, so that the compiler cannot remove any check of them.
    let (settings, claim, clip) = loop {
        if let Ok(multiplier) = NoiseMultiplier::from_square(read_number().into())
            && let Ok(settings) = PrivacySettings::new(
                multiplier,
                read_number().into(),
                read_number(),
                Millis::from(read_number()),
            )
            && let Ok(claim) = MinEntropy::new(read_number().to_le_bytes()[0])
            && let Ok(clip) = Clip::new(f32::from_bits(read_number()))
        {
            let [a, b, ..] = read_number().to_le_bytes();
            break (settings.with_iterations(u16::from_le_bytes([a, b])), claim, clip);
        }
    };
    let mechanism = Clipped::new(Gaussian::new(settings, Entropy, claim), clip);
    let Ok(model) = Linear::private(workspace, mechanism) else {
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
            && client.task_mut().predict(sample, &mut out).is_ok()
        {
            report(out[0]);
        }
        while clock() < closed.retry_at {}
    }
}
