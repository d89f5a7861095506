//! Build script of the boards, each of which has `build = "../build.rs"`: passes the `memory.x` of the
//! board's folder to the linker, and selects the linker script of the start-up crate, which includes
//! `memory.x`.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    link("memory.x");
}

/// Instructs Cargo to link with the memory map in this file of the board's folder, and to rebuild if the file
/// changes.
pub fn link(memory_map: &str) {
    println!("cargo::rerun-if-changed={memory_map}");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if let Err(error) = fs::copy(memory_map, out.join("memory.x")) {
        println!("cargo::error=cannot copy {memory_map}: {error}");
    }
    println!("cargo::rustc-link-search={}", out.display());
    println!("cargo::rustc-link-arg-bins=-Tlink.x");
    println!("cargo::rustc-link-arg-bins=--nmagic");
}
