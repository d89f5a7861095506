//! Command `cargo xtask setup`: finds the compiler targets and the emulators that bare-metal builds and
//! emulated boards need; `--install` fetches missing ones.
//!
//! The command writes the paths of compiler and emulators to `target/boards/toolchain.env`, which shells can
//! source and tests read.

mod debian;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::boards::Boards;
use crate::process::{Context, Failure, MISSING, find_on_path, is_ci, is_executable, is_on_path};

/// Arguments of `cargo xtask setup`.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(
    after_help = "exit: 0 everything was found · 2 wrong arguments · 3 something is missing (the message says what to run)"
)]
pub struct Setup {
    /// Fetch what is missing: with rustup first, then Debian's packages (CI=true implies it).
    #[arg(long)]
    pub install: bool,
    /// Do not require QEMU.
    #[arg(long)]
    pub targets_only: bool,
}

/// Output folder of this command, relative to the root of the repository.
pub const FOLDER: &str = "target/boards";
/// File with the variables, relative to the root of the repository.
pub const ENVIRONMENT: &str = "target/boards/toolchain.env";

/// Compiler of C for every core.
const C_COMPILER: &str = "clang";

const EMULATORS: [&str; 2] = ["qemu-system-arm", "qemu-system-riscv32"];

/// Compiler and emulators that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolchain {
    /// Compiler with bare-metal targets, if there is one.
    pub compiler: Option<Compiler>,
    /// Files of QEMU's programs; `None` for a program that was not found.
    pub emulators: [Option<PathBuf>; 2],
    /// Whether there is a compiler for the program in C, which runs on emulated boards.
    pub has_clang: bool,
    /// Targets that have no library in the sysroot of `rustc`.
    missing_targets: Vec<String>,
    all_targets: Vec<String>,
}

/// Compilers for bare-metal targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// The sysroot of `rustc` has the targets.
    Sysroot,
    /// Debian's compiler, which builds `core` from source.
    Debian {
        /// File for `cargo --config`, which names the linker.
        config: PathBuf,
    },
}

/// Finds compiler and emulators, fetches missing ones if the arguments or CI request it, and writes the
/// variables.
///
/// # Errors
/// The table of boards or `target/boards` cannot be read or written. A missing tool is not an error, see
/// [`Toolchain::missing`].
pub fn find(context: &Context, arguments: Setup) -> Result<Toolchain, Failure> {
    let all_targets = Boards::read(&context.root).map_err(Failure::new)?.targets();
    let install = arguments.install || is_ci();
    std::fs::create_dir_all(context.root.join(FOLDER))?;
    let mut compiler = find_compiler(context, &all_targets)?;
    if compiler.is_none() && install {
        compiler = add_compiler(context, &all_targets)?;
    }
    if install && !arguments.targets_only && find_emulators(context).contains(&None) {
        debian::add_qemu(context)?;
    }
    if install && !arguments.targets_only && !is_on_path(C_COMPILER) {
        debian::install_packages(context, &[C_COMPILER])?;
    }
    let missing_targets = missing_targets(context, &all_targets);
    let toolchain = Toolchain {
        compiler,
        emulators: find_emulators(context),
        has_clang: is_on_path(C_COMPILER),
        missing_targets,
        all_targets,
    };
    crate::process::write_whole(&context.root.join(ENVIRONMENT), &toolchain.environment())?;
    Ok(toolchain)
}

/// Runs the command.
///
/// # Errors
/// The same errors as [`find`]; exit code 3 if a tool is missing.
pub fn run(context: &Context, arguments: Setup) -> Result<Toolchain, Failure> {
    let toolchain = find(context, arguments)?;
    match toolchain.missing(arguments) {
        Some(message) => Err(Failure::with_code(MISSING, message)),
        None => Ok(toolchain),
    }
}

impl Toolchain {
    /// Returns a message that names the missing tools and how to get them; `None` if none is missing.
    #[must_use]
    pub fn missing(&self, arguments: Setup) -> Option<String> {
        let mut missing = Vec::new();
        let mut by_hand = Vec::new();
        if self.compiler.is_none() {
            missing.push(format!("the Rust targets {}", self.missing_targets.join(" ")));
            by_hand.push(format!("rustup target add {}", self.all_targets.join(" ")));
        }
        if !arguments.targets_only && self.emulators.contains(&None) {
            missing.push(format!("QEMU ({})", EMULATORS.join(", ")));
            by_hand.push("apt-get install qemu-system-arm qemu-system-misc".to_owned());
        }
        if !arguments.targets_only && !self.has_clang {
            missing.push("clang".to_owned());
            by_hand.push("apt-get install clang".to_owned());
        }
        if missing.is_empty() {
            return None;
        }
        let missing = missing.join(" and ");
        Some(if arguments.install || is_ci() {
            let by_hand = by_hand.join(" && ");
            format!("setup: could not install {missing}. By hand (or your system's equivalent): {by_hand}")
        } else {
            format!("setup: missing: {missing}. To fetch: tests/setup --install")
        })
    }

    /// Returns whether boards can be built and emulated.
    #[must_use]
    pub fn can_emulate(&self) -> bool {
        self.compiler.is_some() && !self.emulators.contains(&None) && self.has_clang
    }

    /// Returns the program of cargo for bare-metal builds.
    #[must_use]
    pub fn program(&self) -> &'static str {
        if matches!(self.compiler, Some(Compiler::Debian { .. })) { debian::CARGO } else { "cargo" }
    }

    /// Returns the variables that name the compiler to cargo.
    #[must_use]
    pub fn compiler_variables(&self) -> Vec<(&'static str, &'static str)> {
        match self.compiler {
            Some(Compiler::Debian { .. }) => vec![("RUSTC", debian::RUSTC), ("RUSTC_BOOTSTRAP", "1")],
            _ => Vec::new(),
        }
    }

    /// Returns the command of cargo for bare-metal builds, without arguments.
    ///
    /// # Errors
    /// There is no compiler.
    pub fn cargo(&self, context: &Context) -> Result<Command, Failure> {
        match self.compiler {
            None => Err(Failure::with_code(
                MISSING,
                "no compiler for bare-metal targets; run tests/setup for what is missing",
            )),
            Some(_) => {
                let mut cargo = context.command(self.program());
                cargo.envs(self.compiler_variables());
                Ok(cargo)
            }
        }
    }

    /// Returns the option of cargo that builds `core` from source, if the compiler has no prebuilt one.
    #[must_use]
    pub fn build_std(&self) -> Option<&'static str> {
        matches!(self.compiler, Some(Compiler::Debian { .. })).then_some(debian::BUILD_STD)
    }

    /// Returns the options of cargo for building firmware: `core` from source, and the linker.
    #[must_use]
    pub fn firmware_options(&self) -> Vec<String> {
        match &self.compiler {
            Some(Compiler::Debian { config }) => {
                vec![debian::BUILD_STD.to_owned(), "--config".to_owned(), config.display().to_string()]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the file of an emulator's program.
    ///
    /// # Errors
    /// The emulator was not found (exit code 3).
    pub fn emulator(&self, program: &str) -> Result<&Path, Failure> {
        let index = EMULATORS.iter().position(|name| *name == program);
        let file = index.and_then(|index| self.emulators[index].as_deref());
        file.ok_or_else(|| {
            Failure::with_code(MISSING, format!("{program} is missing; run tests/setup for what it needs"))
        })
    }

    /// Returns the variables for shells and tests. The names are used only by this project, so that sourcing
    /// the file never changes the compiler of a host build.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let config = match &self.compiler {
            Some(Compiler::Debian { config }) => config.display().to_string(),
            _ => String::new(),
        };
        let (toolchain, cargo, rustc, bootstrap, build_std) = match self.compiler {
            None => ("", "", "", "", ""),
            Some(Compiler::Sysroot) => ("sysroot", "cargo", "", "", ""),
            Some(Compiler::Debian { .. }) => ("debian", debian::CARGO, debian::RUSTC, "1", debian::BUILD_STD),
        };
        let [arm, riscv] = &self.emulators;
        let file = |emulator: &Option<PathBuf>| {
            emulator.as_deref().map_or(String::new(), |file| file.display().to_string())
        };
        vec![
            ("FEDSPAN_TOOLCHAIN", toolchain.to_owned()),
            ("FEDSPAN_CARGO", cargo.to_owned()),
            ("FEDSPAN_RUSTC", rustc.to_owned()),
            ("FEDSPAN_RUSTC_BOOTSTRAP", bootstrap.to_owned()),
            ("FEDSPAN_BUILD_STD", build_std.to_owned()),
            ("FEDSPAN_CARGO_CONFIG", config),
            ("FEDSPAN_QEMU_ARM", file(arm)),
            ("FEDSPAN_QEMU_RISCV32", file(riscv)),
        ]
    }

    /// Returns the text of the file of variables.
    fn environment(&self) -> String {
        let mut text = String::from(
            "# Written by tests/setup. TOOLCHAIN: sysroot (targets installed) or debian (core built from source); empty: none.\n\
             # CARGO_CONFIG: a file for `cargo --config`, where builds of firmware need one.\n",
        );
        for (name, value) in self.variables() {
            let _ = writeln!(text, "{name}='{value}'");
        }
        text
    }
}

/// Returns the targets that have no library in the sysroot. Reading the sysroot is faster than running
/// rustup, and also correct for compilers that rustup does not manage.
fn missing_targets(context: &Context, targets: &[String]) -> Vec<String> {
    let sysroot = sysroot(context, Path::new("rustc"));
    let is_missing = |target: &&String| {
        let library = |sysroot: &PathBuf| sysroot.join("lib/rustlib").join(target).join("lib").is_dir();
        !sysroot.as_ref().is_some_and(library)
    };
    targets.iter().filter(is_missing).cloned().collect()
}

/// Returns the sysroot of a compiler.
fn sysroot(context: &Context, rustc: &Path) -> Option<PathBuf> {
    let output = context.command(rustc).args(["--print", "sysroot"]).output().ok()?;
    output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn find_compiler(context: &Context, targets: &[String]) -> Result<Option<Compiler>, Failure> {
    if missing_targets(context, targets).is_empty() {
        return Ok(Some(Compiler::Sysroot));
    }
    Ok(debian::find(context)?.map(|config| Compiler::Debian { config }))
}

/// Installs a browser for the pictures of reports where none is, from Debian's packages. Pictures are not taken where that
/// fails.
///
/// # Errors
/// An output file of the package manager cannot be written.
pub fn add_browser(context: &Context) -> Result<(), Failure> {
    if ["chromium", "chromium-browser", "google-chrome"].into_iter().any(is_on_path) {
        return Ok(());
    }
    debian::install_packages(context, &["chromium"]).map(|_| ())
}

/// Adds the targets with rustup, or installs Debian's compiler.
fn add_compiler(context: &Context, targets: &[String]) -> Result<Option<Compiler>, Failure> {
    if is_on_path("rustup") {
        eprintln!("setup: adding the bare-metal targets with rustup");
        let mut rustup = context.command("rustup");
        rustup.args(["target", "add"]).args(targets);
        let log = context.root.join(FOLDER).join("rustup.log");
        // The sysroot shows the result, so the exit code of rustup is ignored.
        let _ = context.run_into(&mut rustup, &log, Duration::from_secs(120));
        let compiler = find_compiler(context, targets)?;
        if compiler.is_some() {
            return Ok(compiler);
        }
        eprintln!("setup: rustup could not add the targets");
    }
    if debian::add_compiler(context)? { find_compiler(context, targets) } else { Ok(None) }
}

fn find_emulators(context: &Context) -> [Option<PathBuf>; 2] {
    let unpacked = context.root.join(debian::UNPACKED).join("bin");
    EMULATORS.map(|name| {
        find_on_path(name).or_else(|| Some(unpacked.join(name)).filter(|file| is_executable(file)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(compiler: Option<Compiler>) -> Toolchain {
        Toolchain {
            compiler,
            emulators: [Some(PathBuf::from("/usr/bin/qemu-system-arm")), None],
            has_clang: true,
            missing_targets: vec!["b".to_owned()],
            all_targets: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    #[test]
    fn missing_parts_are_named_with_the_command_that_fetches_them() {
        let message = |compiler, arguments| toolchain(compiler).missing(arguments).unwrap_or_default();
        let install = Setup { install: true, ..Setup::default() };
        let text = message(None, install);
        assert!(text.contains("the Rust targets b and QEMU"), "{text}");
        assert!(text.contains("rustup target add a b && apt-get install qemu"), "{text}");
        let targets_only = Setup { targets_only: true, ..Setup::default() };
        assert_eq!(toolchain(Some(Compiler::Sysroot)).missing(targets_only), None);
    }

    #[test]
    fn environment_has_every_variable_quoted() {
        let compiler = Compiler::Debian { config: PathBuf::from("/x/cargo.toml") };
        let text = toolchain(Some(compiler)).environment();
        for line in [
            "FEDSPAN_TOOLCHAIN='debian'",
            "FEDSPAN_RUSTC='/usr/bin/rustc'",
            "FEDSPAN_CARGO_CONFIG='/x/cargo.toml'",
            "FEDSPAN_QEMU_ARM='/usr/bin/qemu-system-arm'",
            "FEDSPAN_QEMU_RISCV32=''",
        ] {
            assert!(text.lines().any(|written_line| written_line == line), "{text}");
        }
    }
}
