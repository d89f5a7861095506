//! A FedSpan client over the interface chip's serial port, with its record in flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use embassy_nrf::buffered_uarte::BufferedUarte;
use embassy_nrf::nvmc::Nvmc;
use embassy_nrf::rng::Rng;
use fedspan_firmware::client::{Client, FRAME};
use nrf52840_dk::{Interrupts, device, line, record, seed, start};

#[embassy_executor::main]
async fn main(_spawner: Spawner) {
    let chip = start();
    // DMA writes into one half while the other is read.
    let (mut received, mut sending) = ([0; 2 * FRAME], [0; FRAME]);
    let mut serial = BufferedUarte::new(
        chip.UARTE0,
        chip.TIMER1,
        chip.PPI_CH0,
        chip.PPI_CH1,
        chip.PPI_GROUP0,
        chip.P0_08,
        chip.P0_06,
        Interrupts,
        line(),
        &mut received,
        &mut sending,
    );
    let seed = seed(Rng::new_blocking(chip.RNG));
    // An error would be one of memory.x: without pages for the record the device stays away.
    let Ok(mut client) = Client::new(device(), seed, Nvmc::new(chip.NVMC), record()) else { return };
    loop {
        client.take_part(&mut serial).await;
    }
}
