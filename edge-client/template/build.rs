//! Build script: selects the linker script of the start-up crate. It includes `memory.x`, which comes with the emulated board; a real
//! board needs its own in a folder that is passed to the linker.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Tlink.x");
    println!("cargo::rustc-link-arg-bins=--nmagic");
}
