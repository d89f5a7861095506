//! Checks of the crates that this repository depends on: licences, sources, advisories, versions of Rust.
//!
//! The rules are in `deny.toml`, in the format of cargo-deny, so that `cargo deny check` applies the same
//! rules. These commands need neither cargo-deny nor, once the crates are downloaded, a network.

pub mod advisories;
pub mod licences;
pub mod msrv;
pub mod package;
mod spdx;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::boards::Boards;
use crate::process::{Context, Failure};

/// File with the rules, relative to the root of the repository.
const RULES: &str = "deny.toml";

/// A manifest that has its own lock file, and the targets for which it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Manifest {
    /// Folder of the manifest, relative to the root of the repository.
    folder: PathBuf,
    targets: Vec<String>,
}

/// A crate of a dependency graph.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    /// Expression of licences; `None` if the crate states none.
    licence: Option<String>,
    /// Oldest version of Rust that the crate states.
    rust_version: Option<String>,
    /// Registry or repository of the crate; `None` for crates of this repository.
    source: Option<String>,
    /// Whether the crate is from the registry that is used by dependencies without a named registry.
    is_of_default_registry: bool,
}

/// Returns every manifest of the repository: of the workspace, of the boards, of the fuzz targets, and of the
/// model checks of threads.
fn manifests(context: &Context) -> Result<Vec<Manifest>, Failure> {
    let boards = Boards::read(&context.root).map_err(Failure::new)?;
    let host = host(context)?;
    let mut manifests = vec![Manifest { folder: PathBuf::new(), targets: vec![host.clone()] }];
    let mut add = |folder: String, target: &str| {
        let folder = Path::new("edge-client/boards").join(folder);
        match manifests.iter_mut().find(|manifest| manifest.folder == folder) {
            Some(manifest) if manifest.targets.iter().any(|known| known == target) => {}
            Some(manifest) => manifest.targets.push(target.to_owned()),
            None => manifests.push(Manifest { folder, targets: vec![target.to_owned()] }),
        }
    };
    for board in &boards.emulated {
        for machine in [&board.machine, &board.network_machine] {
            add(machine.folder.clone(), &machine.target);
        }
    }
    for board in &boards.hardware {
        add(board.name.clone(), &board.target);
    }
    for core in &boards.cores {
        add("least".to_owned(), &core.target);
    }
    // These folders are libraries that boards share.
    for folder in ["emulated", "firmware", "memory-map"] {
        add(folder.to_owned(), &host);
    }
    for folder in ["tests/fuzz", "tests/threads"] {
        manifests.push(Manifest { folder: PathBuf::from(folder), targets: vec![host.clone()] });
    }
    Ok(manifests)
}

/// Returns the target of the machine that runs the build.
pub(crate) fn host(context: &Context) -> Result<String, Failure> {
    let output = context.command("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::new("rustc -vV names no host"))
}

/// Returns the crates from which the targets of a manifest are built, including those of the repository.
/// `None` if crates are not on this machine and cannot be downloaded.
fn packages(context: &Context, manifest: &Manifest) -> Result<Option<Vec<Package>>, Failure> {
    let mut packages = Vec::new();
    for target in &manifest.targets {
        match metadata(context, &manifest.folder, &["--filter-platform", target])? {
            Some(document) => {
                let registry = default_registry(&document);
                packages.extend(
                    elements(&document["packages"]).filter_map(|value| read_package(value, registry)),
                );
            }
            None => return Ok(None),
        }
    }
    packages.sort();
    packages.dedup();
    Ok(Some(packages))
}

/// Returns the output of `cargo metadata`. It is tried without the network first, then with it. `None` if
/// crates are missing.
fn metadata(context: &Context, folder: &Path, options: &[&str]) -> Result<Option<Value>, Failure> {
    let file = context.root.join(folder).join("Cargo.toml");
    let mut message = String::new();
    for network in [&["--offline"][..], &[]] {
        let mut cargo = context.cargo(&["metadata", "--format-version", "1", "--locked"]);
        cargo.args(network).args(options).arg("--manifest-path").arg(&file);
        let output = cargo.output()?;
        if output.status.success() {
            let document = serde_json::from_slice(&output.stdout);
            return document.map(Some).map_err(|error| Failure::new(format!("cargo metadata: {error}")));
        }
        message = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    if is_stale(&message) {
        let file = file.display();
        return Err(Failure::new(format!(
            "{file}: its lock file is out of date; `cargo metadata --manifest-path {file}` updates it"
        )));
    }
    Ok(None)
}

/// Returns whether cargo's message states that a lock file does not fit its manifest.
fn is_stale(message: &str) -> bool {
    message.contains("--locked was passed")
}

/// Returns the source of the dependencies that name no registry.
fn default_registry(document: &Value) -> Option<&str> {
    let mut dependencies =
        elements(&document["packages"]).flat_map(|package| elements(&package["dependencies"]));
    dependencies.find_map(|dependency| {
        let source = dependency["source"].as_str()?;
        (dependency["registry"].is_null() && source.starts_with("registry+")).then_some(source)
    })
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Reads a package of the output of `cargo metadata`.
fn read_package(value: &Value, default_registry: Option<&str>) -> Option<Package> {
    let word = |key: &str| value[key].as_str().map(str::to_owned);
    Some(Package {
        name: word("name")?,
        version: word("version")?,
        licence: word("license"),
        rust_version: word("rust_version"),
        source: word("source"),
        is_of_default_registry: default_registry.is_some_and(|registry| value["source"] == registry),
    })
}

/// Returns the name of a manifest for messages.
fn manifest_name(manifest: &Manifest) -> String {
    if manifest.folder.as_os_str().is_empty() {
        "workspace".to_owned()
    } else {
        manifest.folder.display().to_string()
    }
}

/// Prints the result for a manifest on one line.
fn report(command: &str, manifest: &Manifest, result: &str) {
    println!("{command} {:<38} {result}", manifest_name(manifest));
}

/// Returns the failure of a command that was not run for some manifests because their crates are missing.
fn not_run(command: &str, missing: usize) -> Failure {
    Failure::with_code(
        crate::process::NOT_RUN,
        format!(
            "{command}: not run for {missing} manifests, whose crates are neither here nor can be downloaded"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn default_registry_is_that_of_dependencies_without_one() {
        let document = json!({ "packages": [
            { "name": "own", "version": "0.1.0", "source": null, "dependencies": [
                { "source": null, "registry": null },
                { "source": "git+https://z", "registry": null },
                { "source": "registry+https://y", "registry": "https://y" },
                { "source": "registry+https://x", "registry": null },
            ] },
            { "name": "a", "version": "1.0.0", "source": "registry+https://x", "dependencies": [] },
            { "name": "b", "version": "1.0.0", "source": "registry+https://y", "dependencies": [] },
        ] });
        let registry = default_registry(&document);
        assert_eq!(registry, Some("registry+https://x"));
        let packages = elements(&document["packages"]).filter_map(|value| read_package(value, registry));
        let is_of_default: Vec<bool> = packages.map(|package| package.is_of_default_registry).collect();
        assert_eq!(is_of_default, [false, true, false]);
        assert_eq!(default_registry(&json!({ "packages": [] })), None);
    }
}
