//! Build script: passes the memory map of the selected machine to the linker, and checks that the target fits
//! the machine.

use std::env;

#[path = "../build.rs"]
#[allow(dead_code, reason = "`main` is for boards with one memory map")]
mod shared;

/// Machines, each with its Cargo feature, target and memory map.
const MACHINES: [(&str, &str, &str); 5] = [
    ("m0", "thumbv6m-none-eabi", "an38x.x"),
    ("m3", "thumbv7m-none-eabi", "an38x.x"),
    ("m4", "thumbv7em-none-eabihf", "an38x.x"),
    ("m7", "thumbv7em-none-eabihf", "an500.x"),
    ("m33", "thumbv8m.main-none-eabihf", "an505.x"),
];

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let chosen = |(feature, ..): &&(&str, &str, &str)| {
        env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some()
    };
    let mut machines = MACHINES.iter().filter(chosen);
    let (Some((feature, target, map)), None) = (machines.next(), machines.next()) else {
        println!(
            "cargo::error=choose one of the features m0, m3, m4, m7, m33 (m4 is the default: --no-default-features)"
        );
        return;
    };
    if variable("TARGET") != *target {
        println!("cargo::error=feature {feature} is for --target {target}, not for {}", variable("TARGET"));
        return;
    }
    shared::link(&format!("memory/{map}"));
}
