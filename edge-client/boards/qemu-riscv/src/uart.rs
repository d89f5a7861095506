//! Driver of UART 0, a 16550, used by polling: its interrupt only ends a sleep. The emulator buffers bytes
//! that have not been read, so no byte is lost.

use fedspan_emulated::register::Register;
use fedspan_emulated::serial::Uart;

const BASE: usize = 0x1000_0000;
// SAFETY: the address is a register of UART 0, which does not affect memory.
const DATA: Register<u8> = unsafe { Register::at(BASE) };
// SAFETY: as above.
const ENABLE_INTERRUPT: Register<u8> = unsafe { Register::at(BASE + 1) };
// SAFETY: as above.
const FIFO: Register<u8> = unsafe { Register::at(BASE + 2) };
// SAFETY: as above.
const LINE_CONTROL: Register<u8> = unsafe { Register::at(BASE + 3) };
// SAFETY: as above.
const LINE_STATUS: Register<u8> = unsafe { Register::at(BASE + 5) };

const RECEIVED: u8 = 1;
const TRANSMIT_EMPTY: u8 = 1 << 5;
const EIGHT_BITS: u8 = 3;
const FIFO_ON: u8 = 1;
const WHEN_RECEIVED: u8 = 1;

/// Interrupt number of the UART at the interrupt controller.
const SOURCE: usize = 10;
const PLIC: usize = 0x0c00_0000;
// SAFETY: the address is a register of the interrupt controller for this core in machine mode, which does not
// affect memory.
const PRIORITY: Register<u32> = unsafe { Register::at(PLIC + 4 * SOURCE) };
// SAFETY: as above.
const ENABLE: Register<u32> = unsafe { Register::at(PLIC + 0x2000) };
// SAFETY: as above.
const THRESHOLD: Register<u32> = unsafe { Register::at(PLIC + 0x20_0000) };
// SAFETY: as above.
const CLAIM: Register<u32> = unsafe { Register::at(PLIC + 0x20_0004) };

/// Starts the UART and enables its interrupt.
pub fn start() {
    LINE_CONTROL.write(EIGHT_BITS);
    FIFO.write(FIFO_ON);
    ENABLE_INTERRUPT.write(WHEN_RECEIVED);
    PRIORITY.write(1);
    ENABLE.write(1 << SOURCE);
    THRESHOLD.write(0);
}

/// Acknowledges a pending interrupt at the interrupt controller.
pub fn acknowledge() {
    let source = CLAIM.read();
    if source != 0 {
        CLAIM.write(source);
    }
}

/// Driver of the UART.
#[derive(Clone, Copy, Debug)]
pub struct Ns16550;

impl Uart for Ns16550 {
    fn has_byte() -> bool {
        LINE_STATUS.read() & RECEIVED != 0
    }

    fn receive(buffer: &mut [u8]) -> usize {
        let mut received = 0;
        for target in buffer {
            if !Self::has_byte() {
                break;
            }
            *target = DATA.read();
            received += 1;
        }
        received
    }

    fn send(byte: u8) {
        while LINE_STATUS.read() & TRANSMIT_EMPTY == 0 {}
        DATA.write(byte);
    }

    fn lost() -> u32 {
        0
    }
}
