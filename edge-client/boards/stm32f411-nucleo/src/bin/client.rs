//! Program `client`: FedSpan client over the ST-Link's serial port, with its record in flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use embassy_stm32::flash::Flash;
use embassy_stm32::usart::BufferedUart;
use fedspan_firmware::client::{About, Client, FRAME, FlashLayout, firmware};
use fedspan_firmware::watchdog::{Guard, Limits};
use stm32f411_nucleo::{Interrupts, device, reset_reason, seed, serial_config, start, watchdog};

#[embassy_executor::main]
async fn main(_spawner: Spawner) {
    let chip = start();
    let about = About { firmware: firmware!(), reset: reset_reason() };
    let feed = watchdog(chip.IWDG);
    let guard = Guard::new(&feed, Limits::BOARD);
    let (mut received, mut sending) = ([0; 2 * FRAME], [0; FRAME]);
    let serial = BufferedUart::new(
        chip.USART2,
        chip.PA3,
        chip.PA2,
        &mut sending,
        &mut received,
        Interrupts,
        serial_config(),
    );
    // The flash driver covers only the region of 16 KiB sectors; a driver of the whole flash would use the
    // largest sector size.
    let flash = Flash::new_blocking(chip.FLASH).into_blocking_regions().bank1_region1;
    // The driver fails only for unusable serial settings. Without a serial line the program has nothing to
    // do.
    let Ok(mut serial) = serial else { return };
    let mut client =
        Client::new(flash, FlashLayout::of_memory_map(), device(), seed(chip.ADC1), about, &guard);
    loop {
        client.take_part(&mut serial).await;
    }
}
