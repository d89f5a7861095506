//! Build script: links with esp-hal's linker script, which has the chip's memory map.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Tlinkall.x");
}
