//! Program `client`: FedSpan client over the serial port of the board's interface chip, with its record in
//! flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use embassy_nrf::buffered_uarte::BufferedUarte;
use embassy_nrf::nvmc::Nvmc;
use embassy_nrf::rng::Rng;
use fedspan_firmware::client::{About, Client, FRAME, FlashLayout, firmware};
use fedspan_firmware::watchdog::{Guard, Limits};
use nrf52840_dk::{Interrupts, device, reset_reason, seed, serial_config, start, watchdog};

#[embassy_executor::main]
async fn main(_spawner: Spawner) {
    let chip = start();
    let about = About { firmware: firmware!(), reset: reset_reason() };
    // A watchdog with other settings resets the board, and then begins with these.
    let Some(feed) = watchdog(chip.WDT) else { return };
    let guard = Guard::new(&feed, Limits::BOARD);
    // The receive buffer has two halves: DMA writes to one half while the other is read.
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
        serial_config(),
        &mut received,
        &mut sending,
    );
    let seed = seed(Rng::new_blocking(chip.RNG));
    let mut client =
        Client::new(Nvmc::new(chip.NVMC), FlashLayout::of_memory_map(), device(), seed, about, &guard);
    loop {
        client.take_part(&mut serial).await;
    }
}
