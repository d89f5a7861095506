//! Test of the device in C (`edge-client/capi/examples/tcp_device.c`) against a real server: it takes a new key over the link, uses it after a
//! restart, and seals its frames with either algorithm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fedspan_aggregator::server::Protection;
use fedspan_engine::DeviceId;
use fedspan_protocol::secure::Key;
use fedspan_tests::keys::keys;
use fedspan_tests::start_with;

/// Features of the library.
const FEATURES: &str = "encryption,key-rotation,aes-ccm";
/// Number of devices.
const DEVICES: u64 = 2;

/// Runs a command, and returns what it has printed.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Builds the library and the program.
fn build(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    run(Command::new(root.join("edge-client/capi/build")).args([&target, FEATURES]).arg(folder));
    let program = folder.join("tcp_device");
    let source = root.join("edge-client/capi/examples/tcp_device.c");
    let words = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I."];
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.current_dir(folder).args(words).arg(source).arg("libfedspan.a");
    run(compiler.args(["-lm", "-lpthread", "-ldl", "-o"]).arg(&program));
    program
}

/// Formats a key in hexadecimal digits.
fn digits(key: &Key) -> String {
    key.expose().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a campaign, which ends with this round, in which device 0 seals with ChaCha20-Poly1305 and device 1 with AES-128-CCM.
async fn campaign(program: &Path, folder: &Path, last: u32, protection: Protection, keys: &[String]) {
    let state = folder.join(format!("campaign-{last}"));
    fs::create_dir_all(&state).expect("a folder");
    let fleet = format!(
        "state = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\n[devices]\nexpected = {DEVICES}\n[data]\nd = 20\n[model]\nk = 2\n\
         [algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.5\n",
        state.display()
    );
    let server = start_with(&fleet, protection, Vec::new(), true).await.expect("a server");
    let port = server.address.port().to_string();
    let mut devices = tokio::task::JoinSet::new();
    for (device, key) in keys.iter().enumerate() {
        let mut command = Command::new(program);
        command.args([&port, &device.to_string(), key]).arg(folder).args((device == 1).then_some("aes"));
        devices.spawn_blocking(move || run(&mut command));
    }
    for printed in devices.join_all().await {
        assert!(printed.contains(&format!(": {last} rounds, status 0,")), "{printed}");
    }
    assert_eq!(server.end.await.expect("no panic").expect("served").phase, "finished");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_in_c_uses_a_new_key_and_either_cipher() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(folder.path());
    let open = || keys(folder.path(), DEVICES).expect("keys");
    let (protection, device_keys) = open();
    let device_keys: Vec<String> = device_keys.values().map(digits).collect();
    let Protection::Keys(mut store, entropy) = protection else { panic!("keys") };
    store.send(&[DeviceId(0), DeviceId(1)], 1).expect("new keys");
    let active = store.keys();
    let new_keys: Vec<String> = (0..DEVICES)
        .map(|device| digits(active.lookup(DeviceId(device), 1).expect("a new key").key()))
        .collect();
    // Three training rounds and the final head.
    campaign(&program, folder.path(), 4, Protection::Keys(store, entropy), &device_keys).await;
    for (device, new) in new_keys.iter().enumerate() {
        let stored = fs::read(folder.path().join(format!("{device}.key"))).expect("a stored key");
        let secret: String = stored[6..38].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((&stored[..2], &secret), (&[1, 0][..], new));
    }
    // Programs that start again have the old key in their settings, and use the one that they have stored: the server no longer has the old
    // one. Rounds are numbered from the last one that the devices have stored.
    let (protection, old) = open();
    assert!(old.is_empty(), "the server has dropped the old keys");
    campaign(&program, folder.path(), 8, protection, &device_keys).await;
}
