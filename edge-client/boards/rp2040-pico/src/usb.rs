//! Serial port over USB (CDC-ACM), which is connected while the host has the port open.
//!
//! No byte is lost while the core computes, because the host keeps its data until the board reads it.

use embassy_futures::select::{Either, select};
use embassy_rp::Peri;
use embassy_rp::peripherals::USB;
use embassy_rp::usb::Driver;
use embassy_usb::class::cdc_acm::{
    BufferedReceiver, CdcAcmClass, CdcAcmError, ControlChanged, Sender, State,
};
use embassy_usb::{Builder, Config, UsbDevice};
use embedded_io_async::{ErrorType, Read, Write};

use crate::Interrupts;

/// Vendor number for tests, of pid.codes. A product needs its own vendor and product numbers.
const VENDOR: u16 = 0x1209;
/// Product number for tests, of pid.codes.
const PRODUCT: u16 = 0x0001;
/// Length of a USB packet in bytes.
const PACKET: usize = 64;

/// Buffers of the port, which must outlive the port.
pub struct Buffers<'d> {
    configuration: [u8; 256],
    control: [u8; PACKET],
    received: [u8; PACKET],
    serial_number: [u8; 16],
    state: State<'d>,
}

impl Buffers<'_> {
    /// Creates the buffers for the port of `device`.
    #[must_use]
    pub fn new(device: u64) -> Self {
        let mut serial_number = [0; 16];
        for (index, digit) in (0u32..).zip(serial_number.iter_mut().rev()) {
            *digit = b"0123456789abcdef".get((device >> (4 * index) & 0xf) as usize).copied().unwrap_or(b'0');
        }
        Self {
            configuration: [0; 256],
            control: [0; PACKET],
            received: [0; PACKET],
            serial_number,
            state: State::new(),
        }
    }
}

/// Returns the USB controller, which must run concurrently with the client, and the serial port. The port's
/// serial number is the device number, by which the host distinguishes several boards.
pub fn open<'d>(
    controller: Peri<'d, USB>,
    buffers: &'d mut Buffers<'d>,
) -> (UsbDevice<'d, Driver<'d, USB>>, Serial<'d>) {
    let mut config = Config::new(VENDOR, PRODUCT);
    config.manufacturer = Some("FedSpan");
    config.product = Some("FedSpan client");
    config.serial_number = core::str::from_utf8(&buffers.serial_number).ok();
    let mut builder = Builder::new(
        Driver::new(controller, Interrupts),
        config,
        &mut buffers.configuration,
        &mut [],
        &mut [],
        &mut buffers.control,
    );
    #[allow(clippy::cast_possible_truncation, reason = "a constant of 64")]
    let class = CdcAcmClass::new(&mut builder, &mut buffers.state, PACKET as u16);
    let (sender, receiver, control) = class.split_with_control();
    let receiver = receiver.into_buffered(&mut buffers.received);
    (builder.build(), Serial { sender, receiver, control, full: false })
}

/// Serial port over USB.
pub struct Serial<'d> {
    sender: Sender<'d, Driver<'d, USB>>,
    receiver: BufferedReceiver<'d, Driver<'d, USB>>,
    control: ControlChanged<'d>,
    /// True if the last packet was full, in which case the host waits for another packet before it delivers
    /// the data.
    full: bool,
}

impl Serial<'_> {
    /// Waits until the host has opened the port.
    pub async fn opened(&mut self) {
        self.sender.wait_connection().await;
        while !self.control.dtr() {
            self.control.control_changed().await;
        }
    }
}

/// Runs `work` until the host closes the port, because a write to a closed port might never complete.
async fn while_open<T>(
    control: &ControlChanged<'_>,
    work: impl Future<Output = Result<T, CdcAcmError>>,
) -> Result<T, CdcAcmError> {
    let closed = async {
        while control.dtr() {
            control.control_changed().await;
        }
    };
    match select(work, closed).await {
        Either::First(result) => result,
        Either::Second(()) => Err(CdcAcmError::NotConnected),
    }
}

impl ErrorType for Serial<'_> {
    type Error = CdcAcmError;
}

impl Read for Serial<'_> {
    /// Reads bytes. Cancel-safe, as the driver's `read` is.
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CdcAcmError> {
        while_open(&self.control, self.receiver.read(buffer)).await
    }
}

impl Write for Serial<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, CdcAcmError> {
        let n = while_open(&self.control, self.sender.write(bytes)).await?;
        self.full = n == PACKET;
        Ok(n)
    }

    /// Ends a transfer with an empty packet if its last packet was full, because the host delivers the data
    /// only after a packet that is not full.
    async fn flush(&mut self) -> Result<(), CdcAcmError> {
        if core::mem::take(&mut self.full) {
            while_open(&self.control, self.sender.write(&[])).await?;
        }
        Ok(())
    }
}
