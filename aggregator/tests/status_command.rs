//! Tests of the commands `status`, `watch`, `check` and `export` for every condition of a state directory:
//! the result is an answer, or one line with the reason.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::stored_campaign::{configuration, create_state, run_campaign};
use crate::common::{
    Scratch, ServerProcess, close_locked, lock_exclusively, read_line_with, run_program, spawn_program,
};
use fedspan_aggregator::store::Store;
use getrandom::SysRng;

/// Configuration and path of a state directory.
struct CampaignDirectory {
    scratch: Scratch,
    state: PathBuf,
}

impl CampaignDirectory {
    /// Creates a configuration for a state directory that does not exist.
    fn new(state: &str) -> Self {
        let scratch = Scratch::new();
        let state = scratch.path().join(state);
        std::fs::write(scratch.path().join("fleet.toml"), configuration(&state)).unwrap();
        Self { scratch, state }
    }

    /// Creates a configuration with a state directory.
    fn with_state(state: &str) -> Self {
        let directory = Self::new(state);
        create_state(&directory.state);
        directory
    }

    fn run_command(&self, command: &[&str]) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
        run_program(program.args(command).arg("--config").arg(self.scratch.path().join("fleet.toml")))
    }

    /// Runs a command as an unprivileged user. If the test runs as root, the command switches the user.
    fn run_unprivileged(&self, command: &[&str]) -> Output {
        use std::os::unix::fs::MetadataExt;
        use std::os::unix::process::CommandExt;
        let program = self.scratch.path().join("program");
        copy_program(&program);
        let mut command_line = Command::new(program);
        if std::fs::metadata(self.scratch.path()).unwrap().uid() == 0 {
            command_line.uid(65534).gid(65534);
        }
        run_program(command_line.args(command).arg("--config").arg(self.scratch.path().join("fleet.toml")))
    }

    /// Starts a command and captures its output.
    fn spawn_command(&self, command: &str) -> Child {
        let mut program = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
        program.args([command, "--config"]).arg(self.scratch.path().join("fleet.toml"));
        spawn_program(program.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    fn start_server(&self) -> ServerProcess {
        ServerProcess::await_listening(self.spawn_command("serve"))
    }

    /// Runs `export` and asserts that it creates a directory only if it succeeds.
    fn run_export(&self) -> Output {
        let target = self.scratch.path().join("out");
        let output = self.run_command(&["export", "--out", &target.display().to_string()]);
        assert_eq!(target.exists(), output.status.success());
        let _ = std::fs::remove_dir_all(target);
        output
    }
}

/// Copies the program. The copy must be closed before it is run, because a file that is open for writing
/// cannot be executed.
fn copy_program(target: &Path) {
    let _lock = lock_exclusively();
    std::fs::copy(env!("CARGO_BIN_EXE_fedspan-aggregator"), target).unwrap();
}

/// Asserts that a command failed with one line that contains `expected`, aside from warnings about files that
/// other users could read.
fn assert_refused(output: &Output, expected: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr: Vec<&str> = stderr.lines().filter(|line| !line.contains("now only its owner can")).collect();
    let stderr = stderr.join("\n");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        output.stdout.is_empty() && stderr.contains(expected) && stderr.lines().count() == 1,
        "{expected}: {stderr}"
    );
    assert!(stderr.starts_with("fedspan-aggregator: ") && !stderr.contains("panicked"), "{stderr}");
}

/// Asserts that all commands accept the state directory.
fn assert_sound(directory: &CampaignDirectory) {
    let output = directory.run_command(&["status", "--format", "json"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("\"answers\":2"), "{output:?}");
    assert!(stdout.contains("\"exchange\":3") && stdout.contains("not running"), "{stdout}");
    assert!(directory.run_export().status.success() && directory.run_command(&["check"]).status.success());
    assert_refused(&directory.run_command(&["watch"]), "no server is running on this state directory");
}

#[test]
fn missing_state_is_reported() {
    let directory = CampaignDirectory::new("state");
    for _ in 0..2 {
        assert_refused(
            &directory.run_command(&["status", "--format", "json"]),
            "no server is running and no round is committed",
        );
        assert_refused(&directory.run_command(&["watch"]), "no server is running on this state directory");
        assert_refused(&directory.run_command(&["check"]), "no campaign was begun here");
        assert_refused(&directory.run_export(), "no campaign was begun here");
        if !directory.state.exists() {
            std::fs::create_dir(&directory.state).unwrap();
        }
    }
    assert_eq!(std::fs::read_dir(&directory.state).unwrap().count(), 0, "a command created files");
}

#[test]
fn file_in_place_of_state_directory_is_reported() {
    let directory = CampaignDirectory::new("file/state");
    std::fs::write(directory.scratch.path().join("file"), b"text").unwrap();
    for command in ["status", "watch", "check", "serve"] {
        assert_refused(&directory.run_command(&[command]), "Not a directory");
    }
    assert_refused(&directory.run_export(), "Not a directory");
}

/// A control socket without a server, or a file in place of the socket, is ignored.
#[test]
fn abandoned_socket_is_ignored() {
    let directory = CampaignDirectory::with_state("state");
    let socket = directory.state.join("control.sock");
    close_locked(UnixListener::bind(&socket).unwrap());
    assert_sound(&directory);
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, b"no socket").unwrap();
    assert_sound(&directory);
}

/// A state directory whose path is too long for a socket works without the control socket.
#[test]
fn long_path_works_without_socket() {
    let directory = CampaignDirectory::with_state(&"a-long-name/".repeat(12));
    assert_sound(&directory);
    let store = Store::open(&directory.state, SysRng).unwrap();
    assert_refused(
        &directory.run_command(&["status", "--format", "json"]),
        "a server uses this state directory and has no control socket: it is starting or stopping",
    );
    assert_refused(&directory.run_command(&["check"]), "another server is running on this state directory");
    assert_refused(&directory.run_export(), "another server is running on this state directory");
    close_locked(store);
    assert_sound(&directory);
}

/// Answers one client of the control socket with this text.
fn serve_answer(state: &Path, answer: &'static str) -> std::thread::JoinHandle<()> {
    std::fs::create_dir_all(state).unwrap();
    let _ = std::fs::remove_file(state.join("control.sock"));
    let listener = UnixListener::bind(state.join("control.sock")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    })
}

#[test]
fn closed_or_refusing_server_is_reported() {
    let directory = CampaignDirectory::new("state");
    let cases = [
        ("status", "", "the server closed the control socket without an answer"),
        ("status", "{\"phase\":", "malformed answer of the server"),
        (
            "status",
            "{\"error\":\"this server answers user 7 only\"}\n",
            "the server reports: this server answers user 7 only",
        ),
        (
            "watch",
            "{\"error\":\"this server answers user 7 only\"}\n",
            "the server reports: this server answers user 7 only",
        ),
    ];
    for (command, answer, expected) in cases {
        let server = serve_answer(&directory.state, answer);
        assert_refused(&directory.run_command(&[command]), expected);
        server.join().unwrap();
    }
    let server = serve_answer(&directory.state, "");
    assert_refused(&directory.run_export(), "incomplete answer of the server");
    server.join().unwrap();
}

/// Stores of other formats are reported, intact or damaged.
#[test]
fn unreadable_store_is_reported() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store-3/campaign.redb");
    let directory = CampaignDirectory::new("state");
    std::fs::create_dir(&directory.state).unwrap();
    let file = directory.state.join("campaign.redb");
    std::fs::copy(golden, &file).unwrap();
    let expected = "format 3, this version reads format 5";
    for command in ["status", "check", "serve"] {
        assert_refused(&directory.run_command(&[command]), expected);
    }
    assert_refused(&directory.run_export(), expected);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    assert_refused(&directory.run_command(&["status", "--format", "json"]), "campaign.redb");
}

/// Commands of a user without permissions report the error.
#[test]
fn permission_errors_are_reported() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let directory = CampaignDirectory::with_state("state");
    // Permissions do not restrict root, so a test that runs as root switches the user.
    let is_root = std::fs::metadata(&directory.state).unwrap().uid() == 0;
    let program = directory.scratch.path().join("program");
    copy_program(&program);
    let run_as_user = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        if is_root {
            command.uid(65534).gid(65534);
        }
        run_program(command.args(arguments).arg("--config").arg(directory.scratch.path().join("fleet.toml")))
    };
    let set_permissions = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let target = directory.scratch.path().join("out").display().to_string();
    for (name, original_mode) in [("campaign.redb", 0o644), ("round.key", 0o600), ("", 0o755)] {
        let path = directory.state.join(name);
        set_permissions(&path, 0);
        for command in [&["status"][..], &["check"], &["export", "--out", &target], &["serve"]] {
            // The server checks first to whom the directory belongs.
            let is_foreign = is_root && command == ["serve"];
            assert_refused(
                &run_as_user(command),
                if is_foreign { "owned by user 0" } else { "ermission denied" },
            );
        }
        set_permissions(&path, original_mode);
    }
    // Such a user cannot use the control socket either.
    let listener = UnixListener::bind(directory.state.join("control.sock")).unwrap();
    set_permissions(&directory.state.join("control.sock"), 0);
    for command in [&["status"][..], &["watch"], &["export", "--out", &target]] {
        assert_refused(&run_as_user(command), "ermission denied");
    }
    drop(listener);
    assert_sound(&directory);
}

fn read_mode(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory that cannot be searched may contain keys, so the message must not suggest plaintext or name a
/// file that never existed.
#[test]
fn unsearchable_directory_is_reported() {
    let directory = CampaignDirectory::with_state("state");
    let config = directory.scratch.path().join("fleet.toml");
    let configuration = std::fs::read_to_string(&config).unwrap();
    set_mode(&directory.state, 0);
    for command in ["status", "check", "serve"] {
        let output = directory.run_unprivileged(&[command]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        // The server checks first to whom the directory belongs: to root, if root runs the test.
        let is_foreign = command == "serve" && stderr.contains("owned by user 0");
        assert_refused(&output, if is_foreign { "owned by user 0" } else { "ermission denied" });
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("campaign.bin") && stderr.contains("state"), "{stderr}");
    }
    std::fs::write(&config, configuration.replace("plaintext = true\n", "")).unwrap();
    let output = directory.run_unprivileged(&["serve"]);
    assert_refused(&output, "state/keys: Permission denied");
    set_mode(&directory.state, 0o700);
    std::fs::remove_dir_all(&directory.state).unwrap();
    std::fs::write(&directory.state, b"a file").unwrap();
    assert_refused(&directory.run_command(&["serve"]), "state/keys: Not a directory");
    // If the path does not exist, the message names the remedy.
    std::fs::remove_file(&directory.state).unwrap();
    let output = directory.run_command(&["serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no key store, so that no device could join"));
}

/// Gives a directory and its files to the user of unprivileged commands, if the test runs as root.
fn give_to_unprivileged(directory: &Path) {
    use std::os::unix::fs::{MetadataExt, chown};
    if std::fs::metadata(directory).unwrap().uid() == 0 {
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        for path in files.chain([directory.to_owned()]) {
            chown(&path, Some(65534), Some(65534)).unwrap();
        }
    }
}

/// A state directory that other users can write is refused, and files that they can read are tightened with a
/// warning.
#[test]
fn state_directory_that_others_can_write_is_refused() {
    let directory = CampaignDirectory::with_state("state");
    set_mode(&directory.state, 0o775);
    assert_refused(
        &directory.run_command(&["serve"]),
        "state: mode 0775 lets other users replace files; run chmod go-w",
    );
    set_mode(&directory.state, 0o755);
    let file = directory.state.join("campaign.redb");
    set_mode(&file, 0o644);
    directory.start_server().stop_with("-INT");
    assert_eq!(read_mode(&file), 0o600);
}

/// A server that cannot create files reports the error before it listens.
#[test]
fn unwritable_directory_is_reported_at_startup() {
    let directory = CampaignDirectory::with_state("state");
    let sibling_names = || std::fs::read_dir(&directory.state).unwrap().count();
    for entry in std::fs::read_dir(&directory.state).unwrap() {
        set_mode(&entry.unwrap().path(), 0o666);
    }
    give_to_unprivileged(&directory.state);
    set_mode(&directory.state, 0o555);
    let names_before = sibling_names();
    let output = directory.run_unprivileged(&["serve"]);
    assert_refused(&output, "cannot create files here");
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("state: cannot create files here: Permission denied")
    );
    set_mode(&directory.state, 0o777);
    assert_eq!(sibling_names(), names_before);
    assert_sound(&directory);
}

/// Other users cannot list the state directory.
#[test]
fn state_directory_is_private() {
    let directory = CampaignDirectory::new("new/state");
    let server = directory.start_server();
    assert!(server.line.starts_with("listening on 127.0.0.1:"), "{}", server.line);
    assert!(server.line.ends_with(", waiting for 5 devices\n"), "{}", server.line);
    assert_eq!(read_mode(&directory.state), 0o700);
    assert!(!directory.state.join("probe").exists());
    server.stop_with("-INT");
    // The mode of an existing directory is kept.
    set_mode(&directory.state, 0o750);
    directory.start_server().stop_with("-INT");
    assert_eq!(read_mode(&directory.state), 0o750);
}

/// The line about listening is printed after the campaign is resumed, and names the round from which the
/// campaign continues.
#[test]
fn listening_is_printed_after_resume() {
    let directory = CampaignDirectory::with_state("state");
    let server = directory.start_server();
    assert!(server.line.starts_with("listening on 127.0.0.1:"), "{}", server.line);
    assert!(server.line.ends_with(", resuming with round 3 of 4\n"), "{}", server.line);
    server.stop_with("-INT");
    // After the last training round only the heads are fitted.
    run_campaign(&directory.state, true, &[5, 5]);
    let server = directory.start_server();
    assert!(server.line.ends_with(", resuming after round 4 of 4: heads are fitted\n"), "{}", server.line);
    server.stop_with("-INT");
    let directory = CampaignDirectory::with_state("state");
    // A server that refuses to start prints no line about listening.
    let key = directory.state.join("round.key");
    let key_bytes = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    assert_refused(&directory.run_command(&["serve"]), "round.key");
    std::fs::write(&key, key_bytes).unwrap();
    let config = directory.scratch.path().join("fleet.toml");
    let configuration = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, configuration.replace("seed = 3", "seed = 4")).unwrap();
    let output = directory.run_command(&["serve"]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
}

/// A suspended server, or a server that waits for its disk, accepts connections but does not answer. The
/// commands report that.
#[test]
fn silent_server_is_reported() {
    let directory = CampaignDirectory::with_state("state");
    let _unanswering_socket = UnixListener::bind(directory.state.join("control.sock")).unwrap();
    let target = directory.scratch.path().join("out").display().to_string();
    let export = ["export", "--out", &target];
    std::thread::scope(|scope| {
        for command in [&["status"][..], &["watch"], &export, &["keys", "list"]] {
            let directory = &directory;
            scope.spawn(move || {
                assert_refused(
                    &directory.run_command(command),
                    "the running server has not answered within 10 s",
                );
            });
        }
    });
    assert!(!Path::new(&target).exists());
}

/// `watch` reports whether the server was shut down cleanly.
#[test]
fn watch_distinguishes_shutdown_from_crash() {
    for (signal, code, expected) in [("-KILL", 1, "the server has stopped without"), ("-INT", 0, "")] {
        let directory = CampaignDirectory::with_state("state");
        let mut server = directory.start_server();
        let mut log = BufReader::new(server.child.stderr.take().unwrap());
        let watch = directory.spawn_command("watch");
        read_line_with(&mut log, "watch client connected");
        server.stop_with(signal);
        let output = watch.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{signal}: {stderr}");
        assert!(stderr.contains(expected) && stderr.is_empty() == expected.is_empty(), "{signal}: {stderr}");
    }
}

/// `watch` waits while the server is starting: it answers nothing but its status then.
#[test]
fn watch_waits_for_a_server_that_is_starting() {
    let directory = CampaignDirectory::new("state");
    std::fs::create_dir_all(&directory.state).unwrap();
    let listener = UnixListener::bind(directory.state.join("control.sock")).unwrap();
    let server = std::thread::spawn(move || {
        let mut requests = Vec::new();
        let starting = "{\"phase\":\"starting\"}\n";
        let end = "{\"phase\":\"finished\",\"counted\":0}\n";
        for answer in [starting, starting, "{\"phase\":\"training\"}\n", end] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            requests.push(request.trim().to_owned());
        }
        (requests, listener)
    });
    let output = directory.run_command(&["watch"]);
    let (requests, _listener) = server.join().unwrap();
    assert_eq!(requests, ["status", "status", "status", "watch"], "{output:?}");
    assert!(output.status.success(), "{output:?}");
}
