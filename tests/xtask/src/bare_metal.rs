//! Command `cargo xtask bare-metal`: proves that the device's crate, and the library for C, build without an operating system.

use std::time::Instant;

use crate::boards::Boards;
use crate::process::{Context, Failure};
use crate::setup::{self, FOLDER, Setup, Toolchain};

/// Runs the command for all cores of the table that have `bare_metal`.
///
/// # Errors
/// Exit code 3 if a tool is missing, 1 if a target does not build.
pub fn run(context: &Context) -> Result<(), Failure> {
    let toolchain = setup::run(context, Setup { targets_only: true, ..Setup::default() })?;
    build(context, &toolchain)
}

/// Crates and sets of their features that are built: the client with none, and with the log of firmware and all that logs or has errors; the
/// library for C with the features that its script leaves out.
const BUILDS: [(&str, &str); 3] = [
    ("fedspan-client", ""),
    ("fedspan-client", "defmt,encryption,flash,privacy,reports"),
    ("fedspan-capi", "aes-ccm,key-rotation"),
];

/// Builds the client crate in `target/boards` for each core of the table that has `bare_metal`.
///
/// # Errors
/// A target does not build.
pub fn build(context: &Context, toolchain: &Toolchain) -> Result<(), Failure> {
    let boards = Boards::read(&context.root).map_err(Failure::new)?;
    let mut failed = false;
    for core in boards.cores.iter().filter(|core| core.bare_metal) {
        let start = Instant::now();
        let builds = BUILDS.map(|(package, features)| {
            let mut cargo = toolchain.cargo(context)?;
            cargo.args(["build", "--quiet", "--release", "--locked", "-p", package]);
            cargo.args(["--no-default-features", "--features", features]);
            // A separate folder keeps the output of host builds, whichever compiler is used.
            cargo
                .args(toolchain.build_std())
                .args(["--target", &core.target])
                .env("CARGO_TARGET_DIR", context.root.join(FOLDER));
            Ok(context.succeeds(&mut cargo))
        });
        let builds = builds.into_iter().collect::<Result<Vec<bool>, Failure>>()?;
        let mut library = context.command("edge-client/capi/build");
        library.current_dir(&context.root).arg(&core.target).env("FEDSPAN_CARGO", toolchain.program());
        library
            .env("FEDSPAN_CARGO_OPTIONS", toolchain.firmware_options().join(" "))
            .envs(toolchain.compiler_variables());
        let succeeds = context.succeeds(&mut library) && builds.iter().all(|succeeds| *succeeds);
        failed |= !succeeds;
        let result = if succeeds { "ok" } else { "FAILED" };
        println!("bare-metal {:<28} {result:<6} {:4} s", core.target, start.elapsed().as_secs());
    }
    if failed { Err(Failure::printed()) } else { Ok(()) }
}
