//! Firmware of a device that trains: it takes part in the campaign of a server over a serial line until its final model is fitted.
//!
//! `sensor.rs` is the file to replace first. This file has all that depends on the board: it starts in an emulator, and the lines
//! that differ on a real board are marked.

#![no_std]
#![no_main]

mod sensor;

use chacha20::ChaCha8Rng;
use fedspan_client::link::{Buffers, run_with_sensor};
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::pace::{Paced, Pacer};
use fedspan_client::session::{About, Config, ResetReason, Sampling};
use fedspan_client::source::NoRecording;
use fedspan_client::store::record_len;
use fedspan_client::{Linear, Session, firmware};
use fedspan_emulated::board::Board as _;
use fedspan_emulated::client::read_settings;
use fedspan_emulated::fault::{FAULT, WRONG, exit};
use fedspan_emulated::identity::identify;
use fedspan_emulated::serial::Serial;
use fedspan_emulated::storage::Storage;
use qemu_mps2::Board;
use rand_core::SeedableRng;
use semihosting::{println, process};

use sensor::{C, D, K, SAMPLES, Sensor};

/// Settings of the session; the device's number is filled in from its provisioning record, and facts for reports when it starts. A device in the field stays
/// connected: `leave_when_fitted: false`.
const CONFIG: Config = Config {
    sampling: Sampling::Stream { samples: SAMPLES },
    leave_when_fitted: true,
    ..Config::new(0)
};
/// Length of the stored record in bytes, in whole flash words.
const RECORD: usize = record_len(K, C).next_multiple_of(4);
/// Number of multiply-accumulates between two pauses: 22 ms on a Cortex-M0 at 16 MHz.
const QUOTA: u32 = 1_000;
/// Number of new samples on which the final model is tested.
const TESTED: u16 = 200;

#[cortex_m_rt::entry]
fn main() -> ! {
    // Board: clock and serial line.
    let Some(board) = Board::with_serial() else { exit(FAULT, &"started twice") };
    // Board: the provisioning record and the pages of the store are in flash (`fedspan_client::store::FlashStore`).
    let settings = read_settings();
    let (device, protection) = identify(&settings.identity);
    let store = Storage::<RECORD>::open(&settings, device);
    // Board: a seed from the chip's random number generator. An emulator has none; handshakes are numbered in flash, so keys do
    // not repeat all the same.
    let random = ChaCha8Rng::seed_from_u64(device);

    // Board: the reason from the chip's registers (FedSpan's `edge-client/boards/firmware/src/reset.rs` reads those of four chips). The
    // server shows it with the version in `Cargo.toml` and the build in the environment variable `FEDSPAN_BUILD`.
    let about = About { firmware: firmware!(), reset: ResetReason::PowerOn };
    // Board: feeds the watchdog, at every pause of a computation. An emulator has none.
    let feed = || ();
    let pacer = Pacer::new(QUOTA, &feed);

    let model = Linear::new(Paced::new(StreamingWorkspace::<D, K, C>::new(), &pacer));
    let config = Config { device, about: Some(about), ..CONFIG };
    let mut session = Session::new(config, protection, model, NoRecording, store, random);
    let mut sensor = Sensor::new(device);
    let (mut receive, mut transmit) = ([0; CONFIG.frame_limit as usize], [0; CONFIG.transmit_capacity()]);
    while !session.is_fitted() {
        let mut line = Serial::<<Board as fedspan_emulated::board::Board>::Uart>::new();
        let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
        let (clock, wait) = (|| board.now(), |until| board.wait(until));
        let closed = run_with_sensor(&mut session, &mut line, buffers, clock, wait, &mut sensor);
        if let Some(refusal) = session.refusal() {
            exit(WRONG, &format_args!("the server refused this device: {refusal}"));
        }
        while !session.is_fitted() && board.now() < closed.retry_at {
            board.wait(closed.retry_at);
        }
    }

    let (mut error, mut squares, mut prediction) = (0.0, 0.0, [0.0; C]);
    for _ in 0..TESTED {
        let (x, y) = sensor.measure();
        if let Err(problem) = session.task_mut().predict(x, &mut prediction) {
            exit(WRONG, &problem);
        }
        for (predicted, actual) in prediction.iter().zip(y) {
            error += (predicted - actual) * (predicted - actual);
            squares += actual * actual;
        }
    }
    let counters = session.counters();
    println!("device {device}: {} updates counted, {:.4} of the variance is left", counters.counted, error / squares);
    process::exit(0)
}
