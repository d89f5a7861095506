//! Program `client`: FedSpan client over USB, with its record in flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use embassy_futures::join::join;
use fedspan_firmware::client::{About, Client, FlashLayout, firmware};
use fedspan_firmware::watchdog::{Guard, Limits};
use rp2040_pico::{BoardFlash, Buffers, device, open, reset_reason, seed, watchdog};

#[embassy_executor::main]
async fn main(_spawner: Spawner) {
    let chip = embassy_rp::init(Default::default());
    let about = About { firmware: firmware!(), reset: reset_reason() };
    let feed = watchdog(chip.WATCHDOG);
    let guard = Guard::new(&feed, Limits::BOARD);
    let mut flash = BoardFlash::new_blocking(chip.FLASH);
    // Reading the number cannot fail on this chip, so the program may end here.
    let Ok(device) = device(&mut flash) else { return };
    let mut buffers = Buffers::new(device);
    let (mut controller, mut serial) = open(chip.USB, &mut buffers);
    let mut client = Client::new(flash, FlashLayout::of_memory_map(), device, seed(), about, &guard);
    let work = async {
        loop {
            guard.watch_unlinked(serial.opened()).await;
            client.take_part(&mut serial).await;
        }
    };
    join::<_, _>(controller.run(), work).await;
}
