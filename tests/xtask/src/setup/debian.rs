//! Installation of Debian's packages: a compiler that builds `core` from source, and QEMU.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use toml_edit::DocumentMut;

use super::{EMULATORS, FOLDER, sysroot};
use crate::process::{Context, Failure, find_on_path, is_executable, is_on_path, write_whole};

/// Debian's cargo.
pub const CARGO: &str = "/usr/bin/cargo";
/// Debian's compiler.
pub const RUSTC: &str = "/usr/bin/rustc";
/// Option of cargo that builds `core` from the sources that Debian ships.
pub const BUILD_STD: &str = "-Zbuild-std=core,alloc";
/// Folder, relative to the root of the repository, into which QEMU is unpacked if it cannot be installed.
pub const UNPACKED: &str = "target/boards/qemu";

/// Packages that contain the emulators.
const QEMU_PACKAGES: [&str; 2] = ["qemu-system-arm", "qemu-system-misc"];

/// Script that starts a program of QEMU from the folder into which its packages were unpacked. The folder of
/// libraries is named after the machine, below `lib` as well as `usr/lib`.
const STARTER: &str = r#"#!/bin/sh
root=$(cd "$(dirname "$0")/../root" && pwd)
path=
for folder in "$root"/usr/lib/*-linux-* "$root"/lib/*-linux-*; do
    path=$path:$folder
done
LD_LIBRARY_PATH=${path#:} exec "$root/usr/bin/$(basename "$0")" -L "$root/usr/share/qemu" "$@"
"#;

/// Finds Debian's compiler, if it is installed with the sources of `core` and can build this workspace.
/// Writes the file that names the linker, and returns its path.
pub fn find(context: &Context) -> Result<Option<PathBuf>, Failure> {
    if !is_executable(Path::new(RUSTC)) || !is_executable(Path::new(CARGO)) {
        return Ok(None);
    }
    let version = context
        .command(RUSTC)
        .arg("--version")
        .output()
        .map(|output| stdout_text(&output))
        .unwrap_or_default();
    let manifest = std::fs::read_to_string(context.root.join("Cargo.toml"))?;
    let is_recent = minor_version(&version) >= oldest_minor_version(&manifest);
    let sources =
        sysroot(context, Path::new(RUSTC)).map(|root| root.join("lib/rustlib/src/rust/library/Cargo.lock"));
    let Some(linker) =
        find_linker(context).filter(|_| is_recent && sources.is_some_and(|file| file.is_file()))
    else {
        return Ok(None);
    };
    // Cargo adds these flags to those of the boards' .cargo/config.toml, whereas RUSTFLAGS would replace
    // them.
    let config = context.root.join(FOLDER).join("cargo.toml");
    let linker = linker.display();
    write_whole(
        &config,
        &format!("[target.'cfg(target_os = \"none\")']\nrustflags = [\"-Clinker={linker}\"]\n"),
    )?;
    Ok(Some(config))
}

/// Installs Debian's compiler; returns whether this succeeded.
pub fn add_compiler(context: &Context) -> Result<bool, Failure> {
    let mut packages = vec!["rustc-web", "cargo-web", "rust-web-src"];
    if find_linker(context).is_none() {
        packages.push("lld");
    }
    install_packages(context, &packages)
}

/// Installs QEMU, or unpacks it into a folder below `target`.
pub fn add_qemu(context: &Context) -> Result<(), Failure> {
    if install_packages(context, &QEMU_PACKAGES)? {
        return Ok(());
    }
    let folder = context.root.join(UNPACKED);
    // An incomplete folder is removed, because the next run would use it.
    if !unpack_qemu(context, &folder)? && folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

/// Finds the linker of a Rust tool chain. Debian's compiler has none, and any lld is sufficient.
fn find_linker(context: &Context) -> Option<PathBuf> {
    for rustc in ["rustc", RUSTC] {
        let libraries = sysroot(context, Path::new(rustc)).map(|root| root.join("lib/rustlib"));
        for folder in
            libraries.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten()
        {
            let linker = folder.path().join("bin/rust-lld");
            if is_executable(&linker) {
                return Some(linker);
            }
        }
    }
    find_on_path("ld.lld")
}

/// Returns a command that runs a program as root, with sudo if necessary. `None` if neither is possible.
fn as_root(context: &Context, program: &str) -> Option<Command> {
    use std::io::IsTerminal;
    let id = context.command("id").arg("-u").output().ok()?;
    if stdout_text(&id).trim() == "0" {
        return Some(context.command(program));
    }
    let mut sudo = is_on_path("sudo").then(|| context.command("sudo"))?;
    if !std::io::stdin().is_terminal() {
        // Without a terminal no password can be entered.
        sudo.arg("-n");
    }
    sudo.arg(program);
    Some(sudo)
}

/// Installs packages with apt-get; returns whether this succeeded. No package is removed, although some
/// packages conflict with other versions of rustc, rustup or QEMU's tools: removing these is the user's
/// decision.
pub fn install_packages(context: &Context, packages: &[&str]) -> Result<bool, Failure> {
    if !is_on_path("apt-get") {
        return Ok(false);
    }
    eprintln!("setup: installing {} with apt-get", packages.join(" "));
    let (Some(mut update), Some(mut install)) = (as_root(context, "apt-get"), as_root(context, "env")) else {
        return Ok(false);
    };
    // Errors are ignored, because a broken third-party list must not prevent the use of the others.
    let _ = update.args(["-qq", "update"]).output();
    install.args([
        "LC_ALL=C",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-q",
        "-y",
        "--no-install-recommends",
    ]);
    install.args(["--no-remove", "-o", "DPkg::Lock::Timeout=60", "install"]).args(packages);
    let output = install.output()?;
    if output.status.success() {
        return Ok(true);
    }
    let output_text = format!("{}{}", stdout_text(&output), String::from_utf8_lossy(&output.stderr));
    for line in failure_lines(&output_text) {
        eprintln!("{line}");
    }
    Ok(false)
}

/// Returns the lines of apt-get's output that explain a failure: errors, and packages that would be removed.
fn failure_lines(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let is_reason =
        |line: &str| line.contains("REMOVED") || line.starts_with("E:") || line.starts_with("sudo:");
    let is_shown = |index: usize| is_reason(lines[index]) || index > 0 && is_reason(lines[index - 1]);
    (0..lines.len()).filter(|&index| is_shown(index)).map(|index| lines[index]).collect()
}

/// Unpacks QEMU's packages and their dependencies into a folder below `target`. This is for systems on which
/// another version of QEMU's tools is installed, which must not be removed.
fn unpack_qemu(context: &Context, folder: &Path) -> Result<bool, Failure> {
    if !is_on_path("apt-get") || !is_on_path("dpkg") {
        return Ok(false);
    }
    let mut plan = context.command("apt-get");
    plan.args(["-s", "install", "--no-install-recommends"]).args(QEMU_PACKAGES).env("LC_ALL", "C");
    let planned = planned_packages(&stdout_text(&plan.output()?));
    if planned.is_empty() {
        return Ok(false);
    }
    eprintln!("setup: unpacking {} into {UNPACKED}", QEMU_PACKAGES.join(" "));
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let packages = folder.join("packages");
    std::fs::create_dir_all(&packages)?;
    std::fs::create_dir_all(folder.join("bin"))?;
    let mut download = context.command("apt-get");
    download.current_dir(&packages).args(["-q", "download"]).args(&planned);
    if !download.output()?.status.success() {
        return Ok(false);
    }
    for package in std::fs::read_dir(&packages)? {
        let mut dpkg = context.command("dpkg");
        if !dpkg.arg("-x").arg(package?.path()).arg(folder.join("root")).output()?.status.success() {
            return Ok(false);
        }
    }
    std::fs::remove_dir_all(&packages)?;
    for name in EMULATORS {
        let starter = folder.join("bin").join(name);
        std::fs::write(&starter, STARTER)?;
        std::fs::set_permissions(&starter, std::fs::Permissions::from_mode(0o755))?;
        if !context.command(&starter).arg("--version").output()?.status.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the packages with versions that `apt-get -s install` would install: `Inst NAME [OLD] (VERSION
/// ...`.
fn planned_packages(output: &str) -> Vec<String> {
    let package = |line: &str| {
        let (name, versions) = line.strip_prefix("Inst ")?.split_once(' ')?;
        let (_, version) = versions.split_once('(')?;
        Some(format!("{name}={}", version.split_whitespace().next()?))
    };
    output.lines().filter_map(package).collect()
}

/// Returns the second number of `rustc 1.96.0 (...)`.
fn minor_version(version: &str) -> Option<u32> {
    version.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

/// Returns the second number of the workspace's `rust-version`.
fn oldest_minor_version(manifest: &str) -> Option<u32> {
    let document: DocumentMut = manifest.parse().ok()?;
    let version = document.get("workspace")?.get("package")?.get("rust-version")?.as_str()?;
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

fn stdout_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_packages_have_their_new_version() {
        let output = "Reading package lists...\nInst libfdt1 (1.6.1-4+b1 Debian:12.12/oldstable [amd64])\n\
                      Inst qemu-utils [1:6.0] (1:7.2+dfsg-7 Debian:12 [amd64]) []\nConf libfdt1 (1.6.1)\n";
        assert_eq!(planned_packages(output), ["libfdt1=1.6.1-4+b1", "qemu-utils=1:7.2+dfsg-7"]);
    }

    #[test]
    fn versions_are_compared_by_their_second_number() {
        assert_eq!(minor_version("rustc 1.96.0 (abc 2026-01-01)"), Some(96));
        assert_eq!(minor_version("rustc 2.0.0"), None);
        assert_eq!(oldest_minor_version("[workspace.package]\nrust-version = \"1.90\""), Some(90));
        // Without a version a compiler is not recent enough.
        assert!(minor_version("") < oldest_minor_version("[workspace.package]\nrust-version = \"1.90\""));
    }

    #[test]
    fn only_reasons_of_a_failed_installation_are_shown() {
        let output = "Reading\nThe following packages will be REMOVED:\n  qemu-utils\nMore\nE: Packages need to be removed";
        assert_eq!(
            failure_lines(output),
            ["The following packages will be REMOVED:", "  qemu-utils", "E: Packages need to be removed"]
        );
    }
}
