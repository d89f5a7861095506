//! A FedSpan client over the ST-Link's serial port, with its record in flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use embassy_stm32::flash::Flash;
use embassy_stm32::usart::BufferedUart;
use fedspan_firmware::client::{Client, FRAME};
use stm32f411_nucleo::{Interrupts, device, line, places, seed, start};

#[embassy_executor::main]
async fn main(_spawner: Spawner) {
    let chip = start();
    let (mut received, mut sending) = ([0; 2 * FRAME], [0; FRAME]);
    let serial =
        BufferedUart::new(chip.USART2, chip.PA3, chip.PA2, &mut sending, &mut received, Interrupts, line());
    // Only the sectors of 16 KiB: the driver of all of them would count in the largest.
    let flash = Flash::new_blocking(chip.FLASH).into_blocking_regions().bank1_region1;
    // An error would be one of `line`: without a line there is nobody to talk to.
    let Ok(mut serial) = serial else { return };
    let mut client = Client::new(flash, places(), device(), seed(chip.ADC1));
    loop {
        client.take_part(&mut serial).await;
    }
}
