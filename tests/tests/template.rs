//! Tests of the template for `cargo generate` (`edge-client/template`): a rendered project builds, and its firmware trains in QEMU
//! against a real server.
//!
//! The test renders the template itself, since `cargo generate` takes minutes to build: it replaces placeholders, which is all that
//! the template uses of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use fedspan_protocol::secure::{PROVISION, Provision};
use fedspan_sim_core::emulate::{CORES, firmware_cargo};
use fedspan_tests::keys::keys;
use fedspan_tests::start_with;
use toml_edit::DocumentMut;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// Settings of the template, and the default value of each placeholder.
fn placeholders() -> (DocumentMut, BTreeMap<String, String>) {
    let text = std::fs::read_to_string(root().join("edge-client/template/cargo-generate.toml")).unwrap();
    let settings: DocumentMut = text.parse().unwrap();
    let table = settings["placeholders"].as_table().unwrap();
    let default = |(name, entry): (&str, &toml_edit::Item)| {
        (name.to_owned(), entry["default"].as_str().unwrap().to_owned())
    };
    let defaults = table.iter().map(default).collect();
    (settings, defaults)
}

/// Replaces placeholders such as `{{width}}`, and notes which ones occur.
fn rendered(text: &str, values: &BTreeMap<String, String>, used: &mut BTreeSet<String>) -> String {
    assert!(!text.contains("{%"), "the test renders no control flow");
    let mut parts = text.split("{{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").expect("an end of the placeholder");
        let name = name.trim();
        used.insert(name.to_owned());
        out += values.get(name).unwrap_or_else(|| panic!("{name} is no placeholder"));
        out += rest;
    }
    out
}

/// Renders a folder of the template into another folder.
fn render(from: &Path, to: &Path, values: &BTreeMap<String, String>, used: &mut BTreeSet<String>) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let target = to.join(name.trim_end_matches(".liquid"));
        if path.is_dir() {
            render(&path, &target, values, used);
        } else if name != "cargo-generate.toml" {
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(target, rendered(&text, values, used)).unwrap();
        }
    }
}

/// Renders the template with these changes of the defaults. All placeholders must be used.
fn generate(project: &Path, changes: &[(&str, &str)]) {
    let (_, mut values) = placeholders();
    for (name, value) in changes {
        values.insert((*name).to_owned(), (*value).to_owned());
    }
    let mut used = BTreeSet::new();
    render(&root().join("edge-client/template"), project, &values, &mut used);
    assert_eq!(used, values.into_keys().collect(), "placeholders that are used, and those that exist");
    // The versions that the emulated boards are tested with; the lock file has all packages of the project, so that nothing is
    // downloaded.
    let lock = root().join("edge-client/boards/qemu-mps2/Cargo.lock");
    std::fs::copy(lock, project.join("Cargo.lock")).unwrap();
}

#[test]
fn targets_of_the_template_are_those_of_emulated_boards() {
    let (settings, defaults) = placeholders();
    let choices = settings["placeholders"]["target"]["choices"].as_array().unwrap();
    let choices: Vec<&str> = choices.iter().map(|choice| choice.as_str().unwrap()).collect();
    assert!(choices.contains(&defaults["target"].as_str()), "{choices:?}");
    let manifest = std::fs::read_to_string(root().join("edge-client/template/Cargo.toml.liquid")).unwrap();
    for choice in choices {
        assert!(manifest.contains(&format!("[target.{choice}.dependencies]")), "{choice}");
    }
}

/// The commands of the project's README with the server in this process: `cargo run --release` trains and tests the model.
#[tokio::test]
async fn generated_firmware_trains_in_the_emulator() {
    let emulator = CORES[0].emulator(root()).expect("QEMU");
    let folders = [emulator.parent().unwrap().to_owned()].into_iter();
    let path = std::env::join_paths(
        folders.chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let path = path.unwrap();
    for (target, [features, width, outputs]) in
        [("thumbv7em-none-eabihf", ["20", "2", "1"]), ("thumbv6m-none-eabi", ["12", "3", "2"])]
    {
        let scratch = tempfile::tempdir().unwrap();
        let project = scratch.path().join("pump");
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let changes = [
            ("project-name", "pump"),
            ("fedspan", root().to_str().unwrap()),
            ("features", features),
            ("width", width),
            ("outputs", outputs),
            ("target", target),
            ("port", &port),
        ];
        generate(&project, &changes);

        let state = project.join("fedspan-state");
        std::fs::create_dir(&state).unwrap();
        let (protection, device_keys) = keys(&state, 2).unwrap();
        let mut record = [0; PROVISION];
        Provision { device: 1, key: device_keys[&1].clone(), noise: None }.write(&mut record).unwrap();
        std::fs::write(project.join("device-1.bin"), record).unwrap();
        let fleet = std::fs::read_to_string(project.join("fleet.toml")).unwrap();
        let fleet = fleet.replace("\"fedspan-state\"", &format!("{:?}", state.to_str().unwrap()));
        let server = start_with(&fleet, protection, Vec::new(), true).await.unwrap();

        let mut cargo = firmware_cargo("run", root(), &project);
        cargo.arg("--offline").env("PATH", &path).stdin(Stdio::null());
        let output = cargo.output().await.unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {printed}{errors}", output.status);
        let status = server.end.await.unwrap().unwrap();
        assert_eq!((status.phase.as_str(), status.round), ("finished", 30), "{status:?}");
        let line = printed.lines().last().unwrap_or_default();
        let left = line.strip_prefix("device 1: 31 updates counted, ").and_then(|rest| rest.split_once(' '));
        let left: f64 = left.unwrap_or_else(|| panic!("{printed}")).0.parse().unwrap();
        assert!(left < 0.01, "{printed}");
    }
}
