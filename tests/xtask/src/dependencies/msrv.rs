//! Command `cargo xtask msrv`: checks that the oldest version of Rust that the manifests state is sufficient.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use semver::Version;

use super::{Manifest, Package, manifests, metadata, not_run, packages, report};
use crate::process::{Context, Failure, NOT_RUN, is_ci, is_on_path};

/// Arguments of `cargo xtask msrv`.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(
    after_help = "Checks that no dependency asks for a later Rust than the rust-version of the manifest that it belongs
to, then builds the workspace's crates with that version of Rust, if rustup has it or (in CI, or with
--install) can fetch it.

exit: 0 all well · 1 a dependency asks for more, or the build fails · 2 wrong arguments · 77 not built"
)]
pub struct Msrv {
    /// Fetch the version of Rust with rustup (CI=true implies it).
    #[arg(long)]
    install: bool,
}

/// Runs the command.
///
/// # Errors
/// Exit code 1 if a dependency needs a later version or the build fails, 77 if the tool chain or crates are
/// not available.
pub fn run(context: &Context, arguments: Msrv) -> Result<(), Failure> {
    let (mut failed, mut unavailable) = (false, 0);
    let mut workspace_version = None;
    for manifest in manifests(context)? {
        let Some(promised) = promised_version(context, &manifest)? else {
            report("msrv", &manifest, "states no rust-version");
            continue;
        };
        let packages = match packages(context, &manifest) {
            Ok(Some(packages)) => packages,
            Ok(None) => {
                report("msrv", &manifest, "not run: its crates are not here");
                unavailable += 1;
                continue;
            }
            Err(failure) => {
                report("msrv", &manifest, &format!("FAILED\n  {}", failure.message));
                failed = true;
                continue;
            }
        };
        let too_new: Vec<&Package> =
            packages.iter().filter(|package| asks_for_more(package, &promised)).collect();
        let result = if too_new.is_empty() { "ok" } else { "FAILED" };
        report("msrv", &manifest, &format!("Rust {promised}  {result}"));
        for package in &too_new {
            let required = package.rust_version.as_deref().unwrap_or_default();
            println!(
                "  {} {}: found rust-version {required}, allowed: {promised} or earlier",
                package.name, package.version
            );
        }
        failed |= !too_new.is_empty();
        workspace_version.get_or_insert(promised);
    }
    let version =
        workspace_version.ok_or_else(|| Failure::new("msrv: the workspace states no rust-version"))?;
    let Some(toolchain) = find_toolchain(context, &version, arguments.install || is_ci()) else {
        if failed {
            return Err(Failure::printed());
        }
        return Err(Failure::with_code(
            NOT_RUN,
            format!(
                "msrv: not built: Rust {version} is not here (rustup toolchain install {version} --profile minimal)"
            ),
        ));
    };
    let mut cargo = context.command("cargo");
    cargo.args([&format!("+{toolchain}"), "check", "--workspace", "--locked", "--target-dir", "target/msrv"]);
    failed |= !context.succeeds(&mut cargo);
    match (failed, unavailable) {
        (true, _) => Err(Failure::printed()),
        (false, 0) => Ok(()),
        (false, _) => Err(not_run("msrv", unavailable)),
    }
}

/// Returns the oldest version of Rust that the crates of a manifest state; `None` if no crate states one.
fn promised_version(context: &Context, manifest: &Manifest) -> Result<Option<String>, Failure> {
    let document = metadata(context, &manifest.folder, &["--no-deps"])?;
    let document = document.ok_or_else(|| Failure::new("msrv: cargo metadata failed"))?;
    let crates = document["packages"].as_array().into_iter().flatten();
    let versions: Vec<&str> = crates.filter_map(|package| package["rust_version"].as_str()).collect();
    Ok(versions.iter().min_by_key(|version| parse(version)).map(|version| (*version).to_owned()))
}

/// Returns whether a crate of a registry needs a later version of Rust.
fn asks_for_more(package: &Package, promised: &str) -> bool {
    package.source.is_some()
        && package.rust_version.as_deref().is_some_and(|version| parse(version) > parse(promised))
}

/// Parses a version. `1.90` and `1.90.0` are the same version. Texts that are no versions are `None`, which
/// is less than any version.
fn parse(version: &str) -> Option<Version> {
    let dots = version.matches('.').count();
    let missing = ".0".repeat(2usize.saturating_sub(dots));
    format!("{version}{missing}").parse().ok()
}

/// Returns the name of a rustup tool chain with this version.
fn find_toolchain(context: &Context, version: &str, install: bool) -> Option<String> {
    if !is_on_path("rustup") {
        return None;
    }
    let is_installed = |name: &String| {
        // The query must not make rustup download a tool chain.
        let mut cargo = context.command("cargo");
        cargo.args([&format!("+{name}"), "--version"]).env("RUSTUP_AUTO_INSTALL", "0");
        cargo.output().is_ok_and(|output| output.status.success())
    };
    let names = [version.to_owned(), format!("{version}.0")];
    if let Some(name) = names.iter().find(|name| is_installed(name)) {
        return Some(name.clone());
    }
    if install {
        let mut rustup = context.command("rustup");
        rustup.args(["toolchain", "install", version, "--profile", "minimal"]);
        let _ = context.run_into(&mut rustup, Path::new("/dev/null"), Duration::from_secs(180));
    }
    names.into_iter().find(is_installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks_for_more_than(version: Option<&str>, promised: &str) -> bool {
        let package = Package {
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
            licence: None,
            rust_version: version.map(str::to_owned),
            source: Some("registry+x".to_owned()),
            is_of_default_registry: true,
        };
        asks_for_more(&package, promised)
    }

    #[test]
    fn later_versions_of_rust_are_found() {
        assert!(asks_for_more_than(Some("1.91"), "1.90"));
        assert!(asks_for_more_than(Some("1.90.1"), "1.90"));
        assert!(!asks_for_more_than(Some("1.90.0"), "1.90"));
        assert!(!asks_for_more_than(Some("1.9"), "1.90"));
        assert!(!asks_for_more_than(None, "1.90"));
    }
}
