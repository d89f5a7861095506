//! The linker script with the chip's memory map comes with esp-hal.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Tlinkall.x");
}
