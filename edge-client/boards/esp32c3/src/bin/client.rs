//! Program `client`: FedSpan client over the chip's USB serial port, with its record in flash.

#![no_std]
#![no_main]

use embassy_executor::Spawner;
use esp_hal::clock::CpuClock;
use esp_hal::timer::timg::TimerGroup;
use esp_hal::usb::usb_serial_jtag::UsbSerialJtag;
use esp_storage::FlashStorage;
use fedspan_esp32c3::{device, flash_layout, reset_reason, seed, watchdog};
use fedspan_firmware::client::{About, Client, firmware};
use fedspan_firmware::watchdog::{Guard, Limits};

#[esp_rtos::main]
async fn main(_spawner: Spawner) {
    let chip = esp_hal::init(esp_hal::Config::default().with_cpu_clock(CpuClock::max()));
    let timers = TimerGroup::new(chip.TIMG0);
    esp_rtos::start(timers.timer0, chip.FROM_CPU_INTR0);
    let about = About { firmware: firmware!(), reset: reset_reason() };
    let feed = watchdog(timers.wdt);
    let guard = Guard::new(&feed, Limits::BOARD);
    // No byte is lost while the core computes, because the host keeps its data until the board reads it.
    let mut serial = UsbSerialJtag::new(chip.USB_DEVICE).into_async();
    let Some(seed) = seed(chip.RNG, chip.ADC1) else { return };
    let flash = FlashStorage::new(chip.FLASH);
    let mut client = Client::new(flash, flash_layout(), device(), seed, about, &guard);
    loop {
        client.take_part(&mut serial).await;
    }
}
