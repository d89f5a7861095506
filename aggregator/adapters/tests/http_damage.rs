//! Tests of damaged state directories: one flipped bit is found, named, and never counted or served.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fedspan_adapters::files::RoundKind;
use fedspan_adapters::http::{ServerError, Settings, check_exchange};
use fedspan_engine::random::{Purpose, stream};
use sha2::{Digest, Sha256};

use crate::common::Adapter;
use crate::common::live::{CLIENTS, RunningServer, ServerDirectory, list_files, mean_file};

/// Number of bits that are flipped in a test run.
const FLIPS: u64 = 200;

/// Directory with a committed round and two updates of the next round. Also returns these updates.
fn stored_exchange() -> (ServerDirectory, Vec<(u32, Adapter)>, Adapter) {
    let directory = ServerDirectory::new();
    std::fs::create_dir(directory.file_path("base")).unwrap();
    directory.base.write(&directory.file_path("base/adapter_model.safetensors"));
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "out"]}"#;
    std::fs::write(directory.file_path("base/adapter_config.json"), config).unwrap();
    let server = start(&directory).unwrap();
    let send = |round: u32, client: usize, update: &Adapter| {
        server
            .put(CLIENTS[client], round, u32::try_from(client + 1).unwrap(), &update.bytes())
            .expect_status(201);
    };
    let first: Vec<(u32, Adapter)> =
        (0..3).map(|client| (client + 1, directory.base.trained(RoundKind::Up, client.into()))).collect();
    first.iter().enumerate().for_each(|(client, (_, update))| send(1, client, update));
    server.round_after(CLIENTS[0], 1);
    let after_first = crate::common::live::parse_adapter(&server.download_model());
    let second: Vec<(u32, Adapter)> = (0..3)
        .map(|client| (client + 1, after_first.trained(RoundKind::Down, 10 + u64::from(client))))
        .collect();
    second.iter().take(2).enumerate().for_each(|(client, (_, update))| send(2, client, update));
    drop(server);
    (directory, second, after_first)
}

fn start(directory: &ServerDirectory) -> Result<RunningServer, ServerError> {
    directory.try_start_server(&[&format!("base={:?}", directory.file_path("base"))])
}

/// Flips one bit of a file.
fn flip(path: &Path, bit: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).unwrap();
}

/// Copies a directory with its content.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => assert!(std::fs::copy(&path, &target).unwrap() < u64::MAX),
        }
    }
}

/// Flips random bits of random files, one at a time. The check names the file. The server refuses to start and names
/// the file, if it uses it, or sets an update aside, whose client can send it again; the mean is then as without damage.
fn assert_flips_are_found(flips: u64, seed: u64) {
    let (directory, second, after_first) = stored_exchange();
    let state = directory.file_path("state");
    let sound = directory.file_path("sound");
    copy(&state, &sound);
    let files: Vec<String> = list_files(&state).into_iter().filter(|file| file != "lock").collect();
    assert_eq!(files.len(), 9, "{files:?}");
    let expected = mean_file(&after_first, &second, RoundKind::Down);
    let random = &mut stream(seed, Purpose::Start, 7);
    let mut by_kind = [0; 3];
    for flipped in 0..flips {
        std::fs::remove_dir_all(&state).unwrap();
        copy(&sound, &state);
        let file = &files[random.below(files.len())];
        let path = state.join(file);
        let bit = random.below(std::fs::read(&path).unwrap().len() * 8);
        flip(&path, bit);
        let report = check_exchange(&state, None).unwrap();
        assert_eq!(report.faults.len(), 1, "{file}, bit {bit}: {report:?}");
        assert!(report.faults[0].contains(file), "{file}, bit {bit}: {report:?}");
        let is_used = !file.starts_with("round-0000/");
        match start(&directory) {
            Err(error) => {
                assert!(is_used && !file.starts_with("updates-"), "{file}, bit {bit}: {error}");
                let text = error.to_string();
                assert!(
                    text.contains(file.as_str()) && text.contains("restore"),
                    "{file}, bit {bit}: {text}"
                );
                by_kind[0] += 1;
            }
            Ok(server) if file.starts_with("updates-") => {
                assert_eq!(server.status_count("damaged"), 1, "{file}, bit {bit}");
                let damaged = CLIENTS.iter().position(|client| file.contains(client)).unwrap();
                let described = server.get(CLIENTS[damaged], "/round").expect_json(200);
                assert_eq!((&described["counted"], &described["updates"]), (&false.into(), &1.into()));
                // Every tenth round is completed; the others would take long.
                if by_kind[1] % 10 == 0 {
                    for client in [damaged, 2] {
                        let (samples, update) = &second[client];
                        server.put(CLIENTS[client], 2, *samples, &update.bytes()).expect_status(201);
                    }
                    server.round_after(CLIENTS[0], 2);
                    assert_eq!(server.download_model(), expected, "{file}, bit {bit}");
                }
                by_kind[1] += 1;
            }
            Ok(_) => {
                assert!(!is_used, "flip {flipped} of {file}, bit {bit}, was not found");
                by_kind[2] += 1;
            }
        }
    }
    assert!(by_kind.iter().all(|count| *count > 0), "{by_kind:?}");
}

#[test]
fn flipped_bits_are_found() {
    assert_flips_are_found(FLIPS, 1);
}

#[test]
#[ignore = "takes minutes; part of the nightly checks"]
fn thousand_flipped_bits_are_found() {
    assert_flips_are_found(1000, 2);
}

/// A bit that flips while the server runs is found before the mean: the update is set aside, the round stays open, and
/// the client sends its update again.
#[test]
fn update_that_is_damaged_while_the_server_runs_is_not_counted() {
    for weightless in [false, true] {
        let directory = ServerDirectory::new();
        let server = directory.start_server(&[]);
        let samples = if weightless { [0, 0, 0] } else { [1, 2, 3] };
        let updates: Vec<(u32, Adapter)> = samples
            .into_iter()
            .zip(0..)
            .map(|(samples, seed)| (samples, directory.base.trained(RoundKind::Up, seed)))
            .collect();
        let send =
            |client: usize| server.put(CLIENTS[client], 1, samples[client], &updates[client].1.bytes());
        send(0).expect_status(201);
        send(1).expect_status(201);
        let damaged = update_of(&directory, CLIENTS[1]);
        let length = std::fs::read(&damaged).unwrap().len();
        flip(&damaged, length * 8 - 2);
        send(2).expect_status(201);
        server.wait_for_count("damaged", 1);
        let described = server.get(CLIENTS[1], "/round").expect_json(200);
        assert_eq!((&described["round"], &described["counted"]), (&1.into(), &false.into()));
        assert!(list_files(&directory.file_path("state/damaged"))[0].starts_with("0001.beate."));
        send(1).expect_status(201);
        server.round_after(CLIENTS[0], 1);
        let expected = match weightless {
            true => directory.base.bytes(),
            false => mean_file(&directory.base, &updates, RoundKind::Up),
        };
        assert_eq!(server.download_model(), expected);
    }
}

/// Path of the accepted update of a client in round 1.
fn update_of(directory: &ServerDirectory, client: &str) -> PathBuf {
    let updates = directory.file_path("state/updates-0001");
    let names = list_files(&updates);
    updates.join(names.iter().find(|name| name.starts_with(client)).unwrap())
}

#[test]
fn update_whose_name_or_presence_has_changed_is_not_counted() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let update = directory.base.trained(RoundKind::Up, 1);
    for client in [0, 1] {
        server.put(CLIENTS[client], 1, 5, &update.bytes()).expect_status(201);
    }
    drop(server);
    let path = update_of(&directory, CLIENTS[0]);
    let more = path.to_string_lossy().replace("anton.5.", "anton.500.");
    std::fs::rename(&path, more).unwrap();
    let server = directory.start_server(&[]);
    assert_eq!(
        (server.status_count("damaged"), server.get("anton", "/round").expect_json(200)["updates"].clone()),
        (1, 1.into())
    );
    std::fs::remove_file(update_of(&directory, CLIENTS[1])).unwrap();
    for client in [0, 2] {
        server.put(CLIENTS[client], 1, 5, &update.bytes()).expect_status(201);
    }
    server.wait_for_count("damaged", 2);
    server.put(CLIENTS[1], 1, 5, &update.bytes()).expect_status(201);
    assert_eq!(server.round_after(CLIENTS[1], 1)["round"], 2);
}

/// A file whose name is no name of an update any more is set aside, at the start and before the mean.
#[test]
fn update_without_a_valid_name_is_set_aside() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let update = directory.base.trained(RoundKind::Up, 1);
    let send = |server: &RunningServer, client: usize| {
        server.put(CLIENTS[client], 1, 5, &update.bytes()).expect_status(201);
    };
    let spoil = |client: usize| {
        let path = update_of(&directory, CLIENTS[client]);
        std::fs::rename(&path, path.with_extension("safetensorr")).unwrap();
    };
    send(&server, 0);
    drop(server);
    spoil(0);
    let server = directory.start_server(&[]);
    assert_eq!(server.status_count("damaged"), 1);
    assert_eq!(list_files(&directory.file_path("state/damaged")).len(), 1);
    (0..2).for_each(|client| send(&server, client));
    spoil(1);
    send(&server, 2);
    server.wait_for_count("damaged", 2);
    assert_eq!(list_files(&directory.file_path("state/damaged")).len(), 2);
    send(&server, 1);
    assert_eq!(server.round_after(CLIENTS[1], 1)["round"], 2);
}

/// A base that is damaged while a round is open is neither copied into updates nor held against clients: uploads fail
/// with 500, and the accepted updates stay.
#[test]
fn damaged_base_costs_no_update() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let updates: Vec<(u32, Adapter)> =
        (1..4).map(|samples| (samples, directory.base.trained(RoundKind::Up, samples.into()))).collect();
    let send = |client: usize| {
        let (samples, update) = &updates[client];
        server.put(CLIENTS[client], 1, *samples, &update.bytes())
    };
    for client in 0..2 {
        send(client).expect_status(201);
    }
    let base = directory.file_path("state/round-0000/adapter_model.safetensors");
    let sound = std::fs::read(&base).unwrap();
    for bit in [8 * 20, 8 * sound.len() - 2] {
        flip(&base, bit);
        assert_eq!(send(2).status, 500, "bit {bit}");
        assert_eq!(list_files(&directory.file_path("state/updates-0001")).len(), 2);
        std::fs::write(&base, &sound).unwrap();
    }
    send(2).expect_status(201);
    server.round_after(CLIENTS[0], 1);
    assert_eq!(server.download_model(), mean_file(&directory.base, &updates, RoundKind::Up));
    assert_eq!(server.status_count("damaged"), 0);
}

/// The record of the newest round is verified before a mean, like the adapter and the configuration. The server ends, and
/// names what to do.
#[test]
fn damaged_record_ends_the_server_before_the_mean() {
    let (directory, second, _) = stored_exchange();
    let record = directory.file_path("state/round-0001/round.json");
    let sound = std::fs::read(&record).unwrap();
    let replaced = std::fs::read(directory.file_path("state/round-0000/round.json")).unwrap();
    let mut flipped = sound.clone();
    flipped[sound.len() / 2] ^= 1;
    for content in [Some(flipped), Some(replaced), None] {
        let server = start(&directory).unwrap();
        match content {
            Some(content) => std::fs::write(&record, content).unwrap(),
            None => std::fs::remove_file(&record).unwrap(),
        }
        let (samples, update) = &second[2];
        server.put(CLIENTS[2], 2, *samples, &update.bytes()).expect_status(201);
        let error = server.join().unwrap_err();
        assert!(matches!(error, ServerError::Damaged { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("round-0001/round.json") && text.contains("restore the file"), "{text}");
        assert!(!directory.file_path("state/round-0002").exists());
        std::fs::write(&record, &sound).unwrap();
        let sent = directory.file_path("state/updates-0002");
        let last = list_files(&sent).into_iter().find(|file| file.starts_with(CLIENTS[2])).unwrap();
        std::fs::remove_file(sent.join(last)).unwrap();
    }
}

/// A file that is damaged while the server runs is not served: its last block is withheld.
#[test]
fn damaged_adapter_is_not_served() {
    let (directory, _, _) = stored_exchange();
    let server = start(&directory).unwrap();
    for (file, path) in [
        ("adapter_model.safetensors", "/adapter/adapter_model.safetensors"),
        ("changed.safetensors", "/adapter/adapter_model.safetensors?since=0"),
        ("adapter_config.json", "/adapter/adapter_config.json"),
    ] {
        server.get(CLIENTS[0], path).expect_status(200);
        let stored = directory.file_path("state/round-0001").join(file);
        let sound = std::fs::read(&stored).unwrap();
        flip(&stored, 100);
        let token = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anton\r\n\r\n");
        let response = crate::common::http::send_raw(server.address, &[token.as_bytes()]);
        assert!(response.is_none(), "{path}");
        std::fs::write(&stored, b"").unwrap();
        assert_eq!(server.get(CLIENTS[0], path).status, 500, "{path}");
        std::fs::remove_file(&stored).unwrap();
        assert_eq!(server.get(CLIENTS[0], path).expect_error(500).0, "failed", "{path}");
        std::fs::create_dir(&stored).unwrap();
        assert_eq!(server.get(CLIENTS[0], path).status, 500, "{path}");
        std::fs::remove_dir(&stored).unwrap();
        std::fs::write(&stored, sound).unwrap();
        server.get(CLIENTS[0], path).expect_status(200);
    }
    assert_eq!(server.status_count("damaged"), 12);
}

/// An exchange of an earlier version, which recorded no digests, opens and continues, and gets digests from then on.
#[test]
fn exchange_of_an_earlier_version_opens() {
    let (directory, second, after_first) = stored_exchange();
    let state = directory.file_path("state");
    for round in ["round-0000", "round-0001"] {
        let path = state.join(round).join("round.json");
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let map = record.as_object_mut().unwrap();
        assert!(["digest", "files"].iter().all(|key| map.remove(*key).is_some()));
        map.remove("samples_max");
        std::fs::write(&path, record.to_string() + "\n").unwrap();
    }
    let updates = state.join("updates-0002");
    for name in list_files(&updates) {
        let parts: Vec<&str> = name.split('.').collect();
        let earlier = format!("{}.{}.{}.safetensors", parts[0], parts[1], parts[2]);
        std::fs::rename(updates.join(&name), updates.join(earlier)).unwrap();
    }
    let report = check_exchange(&state, None).unwrap();
    assert!(report.faults.is_empty(), "{report:?}");
    assert_eq!(
        report.facts.iter().filter(|fact| fact.contains("not verified: committed by")).count(),
        2,
        "{report:?}"
    );
    let server = start(&directory).unwrap();
    let (samples, update) = &second[2];
    server.put(CLIENTS[2], 2, *samples, &update.bytes()).expect_status(201);
    server.round_after(CLIENTS[0], 2);
    assert_eq!(server.download_model(), mean_file(&after_first, &second, RoundKind::Down));
    drop(server);
    assert!(
        check_exchange(&state, None).unwrap().facts.iter().any(|fact| fact.contains("round-0002: sound"))
    );
}

#[test]
fn directory_is_locked_even_if_the_lock_file_is_removed() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    std::fs::remove_file(directory.file_path("state/lock")).unwrap();
    let state = directory.file_path("state");
    assert!(matches!(directory.try_start_server(&[]), Err(ServerError::Locked { .. })));
    assert!(matches!(check_exchange(&state, None), Err(ServerError::Locked { .. })));
    drop(server);
    assert!(check_exchange(&state, None).unwrap().faults.is_empty());
    let empty = directory.file_path("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(matches!(check_exchange(&empty, None), Err(ServerError::NoExchange { .. })));
}

#[test]
fn directory_that_others_can_write_or_with_links_is_refused() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    server.put(CLIENTS[0], 1, 1, &directory.base.trained(RoundKind::Up, 1).bytes()).expect_status(201);
    drop(server);
    let state = directory.file_path("state");
    for file in list_files(&state) {
        let mode = std::fs::metadata(state.join(&file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
    for (changed, expected) in [(state.clone(), "chmod go-w"), (state.join("updates-0001"), "chmod go-w")] {
        std::fs::set_permissions(&changed, PermissionsExt::from_mode(0o777)).unwrap();
        let error = directory.try_start_server(&[]).err().unwrap();
        assert!(
            matches!(error, ServerError::NotPrivate(_)) && error.to_string().contains(expected),
            "{error}"
        );
        std::fs::set_permissions(&changed, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let victim = directory.file_path("victim");
    std::fs::write(&victim, "x").unwrap();
    let link = state.join("updates-0001/link");
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let error = directory.try_start_server(&[]).err().unwrap();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    std::fs::remove_file(link).unwrap();
    drop(directory.start_server(&[]));
}

/// Rounds that were removed leave updates that belong to no open round. They are not counted in another round.
#[test]
fn updates_of_a_later_round_are_refused() {
    let (directory, _, _) = stored_exchange();
    std::fs::rename(directory.file_path("state/round-0001"), directory.file_path("moved")).unwrap();
    let error = start(&directory).err().unwrap();
    assert!(matches!(error, ServerError::ClosedUpdates { open: 1, .. }), "{error}");
    std::fs::rename(directory.file_path("state/updates-0002"), directory.file_path("moved-updates")).unwrap();
    assert_eq!(start(&directory).unwrap().get(CLIENTS[0], "/round").expect_json(200)["round"], 1);
}

/// Directory of the updates of the open round in [`stored_exchange`].
const UPDATES: &str = "updates-0002";

/// Stores an update of a client under a name of an earlier version, which needs no seal.
fn store_update(state: &Path, updates: &str, client: &str) {
    let (path, body) = (state.join(updates), b"x");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(path.join(format!("{client}.5.{digest}.safetensors")), body).unwrap();
}

/// Gives all users the right to write.
fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
}

/// Change of a state directory that the server refuses, and what changes it.
type Refused = (&'static str, fn(&Path));

/// States that the server refuses at its start.
const REFUSED: [Refused; 13] = [
    ("updates of a later round", |state| store_update(state, "updates-0004", "anton")),
    ("two updates of a client", |state| store_update(state, UPDATES, "anton")),
    ("state that others can write", open_to_all),
    ("round that others can write", |state| open_to_all(&state.join("round-0000"))),
    ("updates that others can write", |state| open_to_all(&state.join(UPDATES))),
    ("link in the state", |state| std::os::unix::fs::symlink("/", state.join("link")).unwrap()),
    ("link in a round", |state| std::os::unix::fs::symlink("/", state.join("round-0001/link")).unwrap()),
    ("link in updates", |state| std::os::unix::fs::symlink("/", state.join(UPDATES).join("link")).unwrap()),
    ("round without record", |state| std::fs::create_dir(state.join("round-0005")).unwrap()),
    ("file in the place of a round", |state| std::fs::write(state.join("round-0005"), "").unwrap()),
    ("file in the place of updates", |state| std::fs::write(state.join("updates-0005"), "").unwrap()),
    ("no adapter", |state| std::fs::remove_file(state.join("round-0001/adapter_model.safetensors")).unwrap()),
    ("no adapter, and an earlier version", |state| {
        let path = state.join("round-0001");
        let mut record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path.join("round.json")).unwrap()).unwrap();
        ["digest", "files", "samples_max"]
            .iter()
            .for_each(|key| drop(record.as_object_mut().unwrap().remove(*key)));
        std::fs::write(path.join("round.json"), record.to_string() + "\n").unwrap();
        std::fs::write(path.join("adapter_model.safetensors"), "x").unwrap();
    }),
];

/// Every state that the server refuses at its start is a fault in the report of the check, with the text of the server.
#[test]
fn every_state_that_the_server_refuses_is_a_fault() {
    let (directory, _, _) = stored_exchange();
    let state = directory.file_path("state");
    let sound = directory.file_path("sound");
    copy(&state, &sound);
    let restore = || {
        std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::remove_dir_all(&state).unwrap();
        copy(&sound, &state);
    };
    let base = format!("base={:?}", directory.file_path("base"));
    let settings = |changes: &[&str]| {
        let changes: Vec<String> =
            [&[base.as_str()], changes].concat().into_iter().map(str::to_owned).collect();
        Settings::parse("exchange.toml", &directory.config_text(), &changes).unwrap()
    };
    let expect = |name: &str, changes: &[&str], needs_settings: bool| {
        let report = check_exchange(&state, Some(&settings(changes))).unwrap();
        let alone = check_exchange(&state, None).unwrap();
        let error = directory.try_start_server(&[&[base.as_str()], changes].concat()).err();
        let text = error.unwrap_or_else(|| panic!("{name}: started")).to_string();
        assert!(report.faults.contains(&text), "{name}: {text}\n{report:?}");
        assert_eq!(alone.faults.contains(&text), !needs_settings, "{name}: {text}\n{alone:?}");
    };
    for (name, change) in REFUSED {
        restore();
        change(&state);
        expect(name, &[], false);
    }
    restore();
    store_update(&state, UPDATES, "zoe");
    expect("update of an unknown client", &[], true);
    restore();
    expect("another method", &["method=\"lora\""], true);
    let other = directory.file_path("other.safetensors");
    directory.base.trained(RoundKind::Plain, 5).write(&other);
    expect("another base", &[&format!("base={other:?}")], true);
    assert!(check_exchange(&state, Some(&settings(&[]))).unwrap().faults.is_empty());
}

/// Rounds of two exchanges, and updates that no mean has, are faults too, although the server does not use them.
#[test]
fn rounds_of_two_exchanges_and_stray_updates_are_faults() {
    let (directory, _, _) = stored_exchange();
    let state = directory.file_path("state");
    let other = ServerDirectory::with_base(directory.base.trained(RoundKind::Plain, 5));
    drop(other.start_server(&[]));
    std::fs::rename(state.join("round-0000"), directory.file_path("away")).unwrap();
    assert!(check_exchange(&state, None).unwrap().faults.is_empty(), "old rounds may be removed");
    copy(&other.file_path("state/round-0000"), &state.join("round-0000"));
    let report = check_exchange(&state, None).unwrap();
    assert!(
        report.faults.len() == 1
            && report.faults[0].contains("round-0000")
            && report.faults[0].contains("base"),
        "{report:?}"
    );
    std::fs::remove_dir_all(state.join("round-0000")).unwrap();
    store_update(&state, "updates-0001", "anton");
    let report = check_exchange(&state, None).unwrap();
    assert!(report.faults.len() == 1 && report.faults[0].contains("updates-0001/anton.5."), "{report:?}");
}
