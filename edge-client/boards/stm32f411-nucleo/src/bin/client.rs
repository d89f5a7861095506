//! A FedSpan client over the ST-Link's serial port, with its record in flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use embassy_stm32::flash::Flash;
use embassy_stm32::usart::BufferedUart;
use fedspan_firmware::client::{Client, FRAME};
use stm32f411_nucleo::{Interrupts, device, line, record, seed, start};

#[embassy_executor::main]
async fn main(_spawner: Spawner) {
    let chip = start();
    let (mut received, mut sending) = ([0; 2 * FRAME], [0; FRAME]);
    let serial =
        BufferedUart::new(chip.USART2, chip.PA3, chip.PA2, &mut sending, &mut received, Interrupts, line());
    // Only the sectors of 16 KiB: the driver of all of them would count in the largest.
    let flash = Flash::new_blocking(chip.FLASH).into_blocking_regions().bank1_region1;
    // Errors would be those of `line` and of memory.x: without line or record the device stays away.
    let (Ok(mut serial), Ok(mut client)) = (serial, Client::new(device(), seed(chip.ADC1), flash, record()))
    else {
        return;
    };
    loop {
        client.take_part(&mut serial).await;
    }
}
