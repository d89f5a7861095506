//! Tests of the command `keys`: on the key store file, and through the control socket of a running server.

use std::collections::BTreeMap;
use std::fs::{Metadata, Permissions};
use std::io::BufReader;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{ServerProcess, close_locked, decode_output, read_line_with, run_program, spawn_program};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::keys::{ActiveKeys, Argon2Cost, KeyStore, Unlock, parse_keys, read_keys};
use fedspan_aggregator::server::{Protection, Server, query};
use fedspan_engine::DeviceId;
use fedspan_protocol::secure::{Key, Provision};
use getrandom::SysRng;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CAMPAIGN: &str = "[data]\nd = 8\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.5\n\
    [listen]\ntcp = \"127.0.0.1:0\"\n[devices]\nexpected = 2\n";

/// Creates a fleet whose key store is opened with a key file.
fn create_fleet() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("state = \"state\"\n{CAMPAIGN}key_file = \"key\"\n");
    std::fs::write(directory.path().join("fleet.toml"), configuration).unwrap();
    std::fs::write(directory.path().join("key"), [0x5e; 32]).unwrap();
    std::fs::set_permissions(directory.path().join("key"), Permissions::from_mode(0o600)).unwrap();
    directory
}

fn keys_command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
    command.current_dir(directory).args(["keys", "--config", "fleet.toml"]).args(arguments);
    command.stdin(Stdio::null()).env_remove("FEDSPAN_PASSPHRASE_FILE");
    command
}

fn serve_command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
    command.current_dir(directory).args(["serve", "--config", "fleet.toml"]);
    command
}

/// Runs `keys` and returns exit code, standard output and standard error.
fn run_keys(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    decode_output(&keys_command(directory, arguments).output().unwrap())
}

/// Runs `keys`, which must succeed without a message, and returns standard output.
fn run_keys_ok(directory: &Path, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run_keys(directory, arguments);
    assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}: {stdout}");
    stdout
}

/// Runs `keys`, which must succeed, and parses the exported keys.
fn export_keys(directory: &Path, arguments: &[&str]) -> BTreeMap<DeviceId, Key> {
    parse_keys(&run_keys_ok(directory, arguments)).unwrap()
}

#[test]
fn keys_are_added_rotated_revoked_and_renewed() {
    let directory = create_fleet();
    let path = directory.path();
    assert_eq!(
        run_keys_ok(path, &["add", "1..3", "7"]),
        "added 4 devices: 1..3, 7 (export writes their keys)\n"
    );
    let first_export = export_keys(path, &["export", "--all", "-o", "-"]);
    assert_eq!(first_export.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 7].map(DeviceId));
    assert!(
        run_keys_ok(path, &["rotate", "2"])
            .starts_with("rotated 1 device: 2 (the old keys are accepted until")
    );
    assert!(run_keys_ok(path, &["revoke", "7", "3"]).starts_with("revoked 2 devices: 3, 7 ("));
    assert!(run_keys_ok(path, &["add", "--again", "7", "8"]).starts_with("added 2 devices: 7..8 ("));
    let second_export = export_keys(path, &["export", "--all", "-o", "-"]);
    assert_eq!(
        second_export.iter().map(|(d, k)| (d.0, k.epoch())).collect::<Vec<_>>(),
        [(1, 0), (2, 1), (7, 1), (8, 0)]
    );
    assert_eq!(first_export[&DeviceId(1)], second_export[&DeviceId(1)]);
    assert_ne!(first_export[&DeviceId(7)].expose(), second_export[&DeviceId(7)].expose());

    let json = run_keys_ok(path, &["list", "--format", "json"]);
    assert_eq!(json.lines().count(), 1);
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    let states: Vec<_> =
        list["keys"].as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["active", "rotating", "revoked", "active", "active"]);
    let list_text = run_keys_ok(path, &["list"]);
    assert_eq!(list_text.lines().count(), 6);
    for (_, key) in first_export.iter().chain(&second_export) {
        let hex: String = key.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!list_text.contains(&hex[..8]) && !json.contains(&hex[..8]), "a list shows a key");
    }
    assert_eq!(std::fs::metadata(path.join("state/keys")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(std::fs::metadata(path.join("state")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn exports_are_private_and_never_overwrite() {
    let directory = create_fleet();
    let path = directory.path();
    run_keys_ok(path, &["add", "5..7"]);
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_fedspan-aggregator");
    let line = format!(
        "umask 0; {program} keys --config fleet.toml export 5..7 -o fleet.keys && \
         {program} keys --config fleet.toml export 5 6 --flash records"
    );
    let (code, stdout, stderr) =
        decode_output(&shell.current_dir(path).args(["-c", &line]).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout, "fleet.keys: 3 keys, devices 5..7\nrecords: 2 records of 54 bytes, devices 5..6\n");
    let exported = read_keys(&path.join("fleet.keys")).unwrap();
    run_keys_ok(path, &["export", "7", "-o", "device-7.bin"]);
    for (device, file) in [(5, "records/device-5.bin"), (6, "records/device-6.bin"), (7, "device-7.bin")] {
        let record = Provision::read(&std::fs::read(path.join(file)).unwrap()).unwrap();
        assert_eq!((record.device, &record.key), (device, &exported[&DeviceId(device)]));
    }
    for file in ["fleet.keys", "records/device-5.bin", "device-7.bin"] {
        assert_eq!(std::fs::metadata(path.join(file)).unwrap().mode() & 0o7777, 0o600, "{file}");
    }
    for arguments in [
        &["export", "5", "-o", "fleet.keys"][..],
        &["export", "5", "-o", "fleet.toml"],
        &["export", "5", "-o", "/dev/null"],
        &["export", "5", "7", "--flash", "records"],
    ] {
        let (code, stdout, stderr) = run_keys(path, arguments);
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}");
        assert!(stderr.ends_with("already exists; move it away or choose another name\n"), "{stderr}");
    }
    assert!(!path.join("records/device-7.bin").exists());
    let (code, _, stderr) = run_keys(path, &["export", "5..7", "-o", "three.bin"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("found 3 devices, allowed for a record: one"), "{stderr}");
    assert!(!path.join("three.bin").exists());
}

#[test]
fn mistakes_have_exit_codes_and_messages() {
    let directory = create_fleet();
    let path = directory.path();
    let assert_fails = |code: i32, arguments: &[&str], message: &str| {
        let (exit_code, stdout, stderr) = run_keys(path, arguments);
        assert_eq!((exit_code, stdout.as_str()), (code, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
    };
    assert_fails(1, &["list"], "state/keys: no key store; create one with `keys add`");
    assert_fails(1, &["add", "1", "1"], "device 1 is named twice");
    assert!(!path.join("state").exists(), "a failed command left files");
    run_keys_ok(path, &["add", "1..2"]);
    assert_fails(1, &["add", "2..3"], "device 2 already has a key, epoch 0; use rotate to replace it");
    assert_fails(1, &["revoke", "1", "3"], "device 3 has no key");
    assert_fails(1, &["rotate", "1", "1..2"], "device 1 is named twice");
    run_keys_ok(path, &["revoke", "1"]);
    assert_fails(1, &["revoke", "1"], "device 1 was revoked, its last key was epoch 0");
    assert_fails(1, &["add", "1"], "use add --again to give it a new key");
    assert_fails(1, &["export", "1", "-o", "-"], "device 1 was revoked");
    assert_fails(2, &["add", "5..3"], "ends before it begins");
    assert_fails(2, &["add", "0..18446744073709551615"], "more than 1048576 devices");
    assert_fails(2, &["add", "seven"], "neither a device number nor a range");
    assert_fails(2, &["add"], "DEVICE");
    assert_fails(2, &["export", "2"], "--output");
    assert_fails(2, &["export", "--all", "2", "-o", "-"], "cannot be used with");
    assert_fails(2, &[], "Usage");
    let no_config =
        Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator")).args(["keys", "list"]).output().unwrap();
    assert_eq!(decode_output(&no_config).0, 2);
    std::fs::write(path.join("key"), [1; 32]).unwrap();
    assert_fails(1, &["list"], "wrong key file, or the file was tampered with");
    std::fs::set_permissions(path.join("key"), Permissions::from_mode(0o640)).unwrap();
    assert_fails(2, &["list"], "chmod 600 key");
    std::fs::set_permissions(path.join("state/keys"), Permissions::from_mode(0o644)).unwrap();
    assert_fails(1, &["list"], "chmod 600 state/keys");
}

#[test]
fn passphrase_is_read_from_file_or_terminal() {
    let directory = create_fleet();
    let path = directory.path();
    std::fs::write(path.join("fleet.toml"), format!("state = \"state\"\n{CAMPAIGN}")).unwrap();
    let write = |name: &str, words: &str| {
        std::fs::write(path.join(name), words).unwrap();
        std::fs::set_permissions(path.join(name), Permissions::from_mode(0o600)).unwrap();
    };
    write("words", "correct horse battery\n");
    write("other", "correct house battery\n");
    let (code, _, stderr) = run_keys(path, &["add", "1"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("no passphrase: give --passphrase-file FILE, set FEDSPAN_PASSPHRASE_FILE"),
        "{stderr}"
    );
    assert!(run_keys_ok(path, &["add", "1", "--passphrase-file", "words"]).starts_with("added 1 device: 1"));
    let output = keys_command(path, &["list"]).env("FEDSPAN_PASSPHRASE_FILE", "words").output().unwrap();
    assert_eq!(decode_output(&output).0, 0);
    let (code, _, stderr) = run_keys(path, &["list", "--passphrase-file", "other"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("wrong passphrase, or"), "{stderr}");
    std::fs::write(path.join("fleet.toml"), format!("state = \"state\"\n{CAMPAIGN}key_file = \"key\"\n"))
        .unwrap();
    let (code, _, stderr) = run_keys(path, &["list"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("opens with a passphrase, but [devices] sets key_file"), "{stderr}");
}

/// Privacy options of the operator determine the noise in the provisioning records.
#[test]
fn records_carry_noise_parameters() {
    let directory = create_fleet();
    let path = directory.path();
    run_keys_ok(path, &["add", "1..2"]);
    let noise_options = ["--epsilon", "2", "--delta", "1e-5", "--releases", "100", "--slot", "500"];
    let (code, stdout, stderr) =
        run_keys(path, &[&["export", "--all", "--flash", "noisy"], &noise_options[..]].concat());
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (0, "noisy: 2 records of 86 bytes, devices 1..2; noise multiplier 19.94\n", "")
    );
    let options = ["export", "1", "-o", "one.bin", "--rows", "500", "--iterations", "4", "--clip", "0.5"];
    run_keys_ok(path, &[&options, &noise_options[..]].concat());
    let read_noise =
        |file: &str| Provision::read(&std::fs::read(path.join(file)).unwrap()).unwrap().noise.unwrap();
    let (default_noise, chosen_noise) = (read_noise("noisy/device-2.bin"), read_noise("one.bin"));
    assert_eq!(
        (default_noise.rows_max, default_noise.iterations_max, default_noise.clip, default_noise.slot),
        (32_768, 1, 0.0, 500)
    );
    assert_eq!(
        (chosen_noise.rows_max, chosen_noise.iterations_max, chosen_noise.clip, chosen_noise.slot),
        (500, 4, 0.5, 500)
    );
    assert_eq!(
        (default_noise.multiplier_square, default_noise.budget),
        (chosen_noise.multiplier_square, chosen_noise.budget)
    );
    // In the table of PRIVACY.md, T = 100 and z = 20 have an epsilon of 1.9931.
    assert!(((default_noise.multiplier_square as f64 / 65_536.0).sqrt() - 19.94).abs() < 0.005);
    for (arguments, message) in [
        (&["--epsilon", "2"][..], "--delta"),
        (&["--releases", "3"], "--epsilon"),
        (&["--epsilon", "0", "--delta", "1e-5", "--releases", "3", "--slot", "1"], "epsilon is 0"),
        (&["--epsilon", "1", "--delta", "1", "--releases", "3", "--slot", "1"], "delta is 1"),
        (&["--epsilon", "1", "--delta", "0.1", "--releases", "0", "--slot", "1"], "there are 0 releases"),
        (&["--epsilon", "1e-9", "--delta", "1e-12", "--releases", "3", "--slot", "1"], "no finite noise"),
        (&[&noise_options[..], &["--rows", "0"]].concat(), "--rows 0: 1 to"),
        (&[&noise_options[..], &["--clip", "nan"]].concat(), "--clip NaN: finite"),
        (&[&noise_options[..], &["--iterations", "0"]].concat(), "--iterations 0: 1 to the 100"),
        (&[&noise_options[..], &["--iterations", "101"]].concat(), "--iterations 101: 1 to the 100"),
        (&["--epsilon", "1", "--delta", "0.1", "--releases", "3", "--slot", "0"], "--slot 0: at least 1"),
        (
            &["--epsilon", "1", "--delta", "0.1", "--releases", "3", "--slot", "60000"],
            "[rounds] deadline is 60 s",
        ),
        (&[&noise_options[..], &["--without-noise"]].concat(), "cannot be used with"),
    ] {
        let (code, _, stderr) = run_keys(path, &[&["export", "1", "--flash", "never"], arguments].concat());
        assert!(code == 2 && stderr.contains(message), "{arguments:?}: {stderr}");
    }
    let (code, _, stderr) = run_keys(path, &[&["export", "1", "-o", "lines"], &noise_options[..]].concat());
    assert!(code == 2 && stderr.contains("--epsilon is for provisioning records"), "{stderr}");
    // If the server requires noise, a record without noise or with too little is refused.
    let configuration = std::fs::read_to_string(path.join("fleet.toml")).unwrap();
    std::fs::write(path.join("fleet.toml"), configuration + "[privacy]\nepsilon = 1.5\ndelta = 1e-5\n")
        .unwrap();
    let (code, _, stderr) = run_keys(path, &["export", "1", "--flash", "never"]);
    assert!(code == 2 && stderr.contains("[privacy] asks devices for noise"), "{stderr}");
    let (code, _, stderr) =
        run_keys(path, &[&["export", "1", "--flash", "never"], &noise_options[..]].concat());
    assert!(code == 2 && stderr.contains("[privacy] asks for 1.5 at most"), "{stderr}");
    run_keys_ok(path, &["export", "1", "--flash", "own", "--without-noise"]);
    assert!(Provision::read(&std::fs::read(path.join("own/device-1.bin")).unwrap()).unwrap().noise.is_none());
    assert!(!path.join("never").exists() && !path.join("lines").exists());
}

/// Concurrent commands that change the file must not undo each other. The first commands compete to create
/// the store.
#[test]
fn concurrent_commands_lose_no_changes() {
    let directory = create_fleet();
    let path = directory.path();
    let start_add = |device: u64| {
        let mut command = keys_command(path, &["add", &device.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = (1..=12).map(start_add).collect();
    for command in running {
        let (code, _, stderr) = decode_output(&command.wait_with_output().unwrap());
        assert_eq!(code, 0, "{stderr}");
    }
    let keys = export_keys(path, &["export", "--all", "-o", "-"]);
    assert_eq!(keys.keys().copied().collect::<Vec<_>>(), (1..=12).map(DeviceId).collect::<Vec<_>>());
}

/// Runs `test` while a server with a key store serves the fleet.
async fn while_serving<T>(directory: &Path, test: impl AsyncFnOnce(ActiveKeys) -> T) -> T {
    let configuration = format!("state = {:?}\n{CAMPAIGN}", directory.join("state").display().to_string());
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let unlock = Unlock::from_key_file(&directory.join("key")).unwrap();
    let (path, entropy) = (directory.join("state/keys"), ChaCha20Rng::seed_from_u64(1));
    let store = match path.exists() {
        true => KeyStore::open(&path, &unlock, entropy).unwrap(),
        false => KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy).unwrap(),
    };
    let keys = store.keys();
    let protection = Protection::Keys(store, Box::new(ChaCha20Rng::seed_from_u64(2)));
    let server = Server::bind(fleet, 1, SysRng, protection).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async move { _ = stopped.await }, false));
    // The permissions of the socket are set only after it is bound.
    let is_private = |data: Metadata| data.permissions().mode() & 0o777 == 0o600;
    while !std::fs::metadata(directory.join("state/control.sock")).is_ok_and(is_private) {
        tokio::task::yield_now().await;
    }
    let result = test(keys).await;
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    result
}

/// Runs `keys` while a server in this process answers.
async fn run_through_server(path: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = keys_command(path, arguments);
    decode_output(&tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_through_server_take_effect_at_once() {
    let directory = create_fleet();
    let path = directory.path();
    while_serving(path, async |server_keys| {
        // The server has already read the key file, so the file can be moved away.
        std::fs::rename(path.join("key"), path.join("key.away")).unwrap();
        let (code, stdout, stderr) = run_through_server(path, &["add", "1..3"]).await;
        assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
        let (first_key, second_key) =
            (server_keys.lookup(DeviceId(1), 0).unwrap(), server_keys.lookup(DeviceId(2), 0).unwrap());
        assert_eq!(run_through_server(path, &["revoke", "1"]).await.0, 0);
        assert!(!first_key.is_accepted() && second_key.is_accepted());
        assert_eq!(run_through_server(path, &["rotate", "2"]).await.0, 0);
        assert!(second_key.is_accepted() && server_keys.lookup(DeviceId(2), 1).is_some());
        let (code, _, stderr) = run_through_server(path, &["revoke", "1"]).await;
        assert_eq!((code, stderr.contains("device 1 was revoked")), (1, true), "{stderr}");
        let (_, stdout, _) = run_through_server(path, &["export", "--all", "-o", "-"]).await;
        let exported = parse_keys(&stdout).unwrap();
        assert_eq!(exported[&DeviceId(2)], *server_keys.lookup(DeviceId(2), 1).unwrap().key());
        let (_, stdout, _) = run_through_server(path, &["list", "--format", "json"]).await;
        assert!(stdout.contains("\"state\":\"rotating\""), "{stdout}");
        // Sends eight concurrent requests, which the server performs one by one.
        let adds: Vec<_> = (10..18u64)
            .map(|device| {
                let mut command = keys_command(path, &["add", &device.to_string()]);
                tokio::task::spawn_blocking(move || command.output().unwrap())
            })
            .collect();
        for add in adds {
            assert_eq!(decode_output(&add.await.unwrap()).0, 0);
        }
        assert!((10..18).all(|device| server_keys.lookup(DeviceId(device), 0).is_some()));
        std::fs::rename(path.join("key.away"), path.join("key")).unwrap();
    })
    .await;
    // The changes are in the file too.
    let list = run_keys_ok(path, &["list"]);
    assert!(list.lines().count() == 12 && list.contains("rotating") && list.contains("revoked"), "{list}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_get_an_error() {
    let directory = create_fleet();
    let path = directory.path();
    while_serving(path, async |server_keys| {
        let state = path.join("state");
        let send_request = async |request: &[u8]| {
            let mut stream = tokio::net::UnixStream::connect(state.join("control.sock")).await.unwrap();
            // The server may close the connection before it has read the whole request.
            let _ = stream.write_all(request).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).unwrap()
        };
        for (request, message) in [
            ("keys \n".to_owned(), "malformed request"),
            ("keys {}\n".to_owned(), "malformed request"),
            ("keys {\"add\":{\"devices\":[[1,2]]}}\n".to_owned(), "missing field `again`"),
            ("keys {\"add\":{\"devices\":[[1,2]],\"again\":false,\"x\":1}}\n".to_owned(), "unknown field"),
            ("keys {\"revoke\":[[1,-2]]}\n".to_owned(), "malformed request"),
            ("keys {\"revoke\":[[0,18446744073709551615]]}\n".to_owned(), "allowed: at most 1048576"),
            ("keys {\"revoke\":[]}\n".to_owned(), "no device"),
            ("key\n".to_owned(), "unknown request"),
            // The request is valid except for the missing newline.
            (
                "keys {\"add\":{\"devices\":[[1,2]],\"again\":false}}".to_owned(),
                "one line of at most 65536 bytes",
            ),
            (format!("keys {{\"revoke\":[{}[1,1]]}}\n", "[1,1],".repeat(11_000)), "one line of at most"),
        ] {
            let answer = send_request(request.as_bytes()).await;
            let line: serde_json::Value = serde_json::from_str(&answer).expect(&answer);
            assert!(line["error"].as_str().unwrap().contains(message), "{answer}");
        }
        assert!(server_keys.read(|keys| keys.is_empty()));
        // The server still answers.
        let mut lines = Vec::new();
        let keep = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        query(&state, "keys {\"add\":{\"devices\":[[1,1]],\"again\":false}}", keep).await.unwrap().unwrap();
        assert!(
            lines[0].contains("\"changed\"") && server_keys.lookup(DeviceId(1), 0).is_some(),
            "{lines:?}"
        );
    })
    .await;
}

/// The server checks the user of the client, in addition to the permissions of the socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_user_gets_no_answer() {
    let directory = create_fleet();
    let path = directory.path();
    while_serving(path, async |server_keys| {
        for (path, mode) in
            [(path.to_owned(), 0o755), (path.join("state"), 0o755), (path.join("state/control.sock"), 0o666)]
        {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let mut command = keys_command(path, &["add", "1"]);
        std::os::unix::process::CommandExt::uid(&mut command, 65_534);
        // Only root can run a command as another user.
        let Ok(output) = tokio::task::spawn_blocking(move || command.output()).await.unwrap() else { return };
        let (code, stdout, stderr) = decode_output(&output);
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains("this server answers user 0 only"), "{stderr}");
        assert!(server_keys.read(|keys| keys.is_empty()));
        assert_eq!(run_through_server(path, &["add", "1"]).await.0, 0);
    })
    .await;
}

/// A server in plaintext mode has no keys, so the command changes the file.
#[test]
fn plaintext_server_leaves_keys_to_the_file() {
    let directory = create_fleet();
    let path = directory.path();
    let configuration =
        format!("state = \"state\"\n{}", CAMPAIGN.replace("[listen]", "[listen]\nplaintext = true"));
    std::fs::write(path.join("fleet.toml"), configuration).unwrap();
    std::fs::write(path.join("words"), "correct horse battery").unwrap();
    std::fs::set_permissions(path.join("words"), Permissions::from_mode(0o600)).unwrap();
    let server = ServerProcess::start(serve_command(path).stderr(Stdio::null()));
    let added = run_keys(path, &["add", "1", "--passphrase-file", "words"]);
    // The output must not suggest that the server now rejects the device.
    let revoked = run_keys(path, &["revoke", "1", "--passphrase-file", "words"]);
    drop(server);
    for (code, _, stderr) in [&added, &revoked] {
        assert_eq!(*code, 0, "{stderr}");
        assert!(
            stderr.contains("the running server has no keys and does not verify device identities"),
            "{stderr}"
        );
    }
    assert!(path.join("state/keys").exists());
}

/// A server waits for a command that holds the key store, but not for another server. The message and the
/// exit code do not depend on the order in which the locks are taken.
#[test]
fn second_server_reports_the_first() {
    let directory = create_fleet();
    let path = directory.path();
    run_keys_ok(path, &["add", "1..3"]);
    // Holds the key store open, like a slow command.
    let unlock = Unlock::from_key_file(&path.join("key")).unwrap();
    let store_in_use = KeyStore::open(&path.join("state/keys"), &unlock, SysRng).unwrap();
    let mut server = spawn_program(serve_command(path).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut log = BufReader::new(server.stderr.take().unwrap());
    read_line_with(&mut log, "waiting for a command that uses the key store");
    close_locked(store_in_use);
    let _server = ServerProcess::await_listening(server);
    let (code, stdout, stderr) = decode_output(&run_program(&mut serve_command(path)));
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("another server is running on this state directory"), "{stderr}");
    // A waiting server would write a second line.
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
