//! Runner of other programs: their environment, their time limits, and their end when this program
//! is interrupted.

use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Exit code of a check that could not be run on this machine.
pub const NOT_RUN: u8 = 77;
/// Exit code of a command for which a tool is missing.
pub const MISSING: u8 = 3;
/// Time in which a program must end by itself after an interruption.
const END_TIME: Duration = Duration::from_secs(10);

/// Failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Line for standard error; empty if the reason has been printed already.
    pub message: String,
    /// Exit code of `cargo xtask`.
    pub code: u8,
}

impl Failure {
    /// Creates a failure with exit code 1.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::with_code(1, message)
    }

    /// Creates a failure with another exit code.
    #[must_use]
    pub fn with_code(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), code }
    }

    /// Creates a failure whose reasons have been printed already.
    #[must_use]
    pub fn printed() -> Self {
        Self::new("")
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Repository and state of one run of `cargo xtask`.
#[derive(Clone, Debug)]
pub struct Context {
    /// Root of the repository.
    pub root: PathBuf,
    interrupted: Arc<AtomicBool>,
    /// Names of failed tests in the output of programs; `None` if they are not recorded.
    failed_tests: Option<Arc<Mutex<FailedTests>>>,
    /// Time at which programs are killed, with the programs that they have started; `None` without a limit.
    deadline: Option<Instant>,
}

/// Failed tests in the output of test programs, each with the place and the message of its panic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedTests {
    lines: Vec<String>,
    /// Whether the last line was the head of a panic, whose message is in the next line.
    message_follows: bool,
}

impl FailedTests {
    /// Reads a line of the output of a program.
    pub fn read(&mut self, line: &str) {
        let is_test = line.starts_with("test ") && line.ends_with(" ... FAILED");
        let is_panic = line.starts_with("thread '") && line.contains(" panicked at ");
        if (is_test || is_panic || self.message_follows) && self.lines.len() < Self::MAX_LINES {
            self.lines.push(line.to_owned());
        }
        self.message_follows = is_panic;
    }

    /// Lines about failed tests, in the order of the output.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Largest number of lines that are kept.
    const MAX_LINES: usize = 100;
}

impl Context {
    /// Creates a context for a repository. From then on Ctrl-C and termination signals are recorded
    /// ([`Self::is_interrupted`]) instead of ending the program.
    ///
    /// # Errors
    /// The system rejects a signal handler.
    pub fn new(root: PathBuf) -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // A second signal ends the program at once.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&interrupted))?;
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Self { root, interrupted, failed_tests: None, deadline: None })
    }

    /// Returns a context whose programs' failed tests are recorded.
    #[must_use]
    pub fn recording_failed_tests(&self) -> Self {
        Self { failed_tests: Some(Arc::default()), ..self.clone() }
    }

    /// Returns a context whose programs run for at most `limit` from now on, all together. Then the one that runs is killed, with the
    /// programs that it has started, and the others fail at once.
    #[must_use]
    pub fn ending_after(&self, limit: Duration) -> Self {
        Self { deadline: Some(Instant::now() + limit), ..self.clone() }
    }

    /// Returns whether the time of [`Self::ending_after`] is over.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns the free disk space at the root in megabytes; `None` if `df` fails.
    #[must_use]
    pub fn free_megabytes(&self) -> Option<u64> {
        let output = Command::new("df").args(["-Pm"]).arg(&self.root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
    }

    /// Sends a signal to a program and to those that it has started.
    fn signal_group(&self, child: &Child, signal: &str) {
        if self.deadline.is_some() {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-s", signal, "--", &group]).stderr(Stdio::null()).status();
        }
    }

    /// Lines about the failed tests so far, if they are recorded.
    #[must_use]
    pub fn failed_tests(&self) -> Vec<String> {
        let tests = self.failed_tests.as_ref();
        tests
            .map(|tests| tests.lock().unwrap_or_else(PoisonError::into_inner).lines.clone())
            .unwrap_or_default()
    }

    /// Returns whether the user has interrupted the program.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Returns a command that runs at the root, without the variables that cargo has set for this program.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(&self.root);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_of_cargo_run) {
                command.env_remove(name);
            }
        }
        if let Some(libraries) = std::env::var_os("LD_LIBRARY_PATH") {
            let other_folders: Vec<_> =
                std::env::split_paths(&libraries).filter(|folder| !self.is_of_build(folder)).collect();
            match std::env::join_paths(&other_folders) {
                Ok(path) if !other_folders.is_empty() => command.env("LD_LIBRARY_PATH", path),
                _ => command.env_remove("LD_LIBRARY_PATH"),
            };
        }
        command
    }

    /// Returns a command that runs cargo at the root.
    #[must_use]
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(arguments);
        command
    }

    /// Returns a command from a program and its arguments, separated by spaces. A program with a slash is a
    /// script of the repository.
    #[must_use]
    pub fn words(&self, words: &str) -> Command {
        let mut words = words.split_whitespace();
        let program = words.next().unwrap_or_default();
        let program = if program.contains('/') { self.root.join(program) } else { PathBuf::from(program) };
        let mut command = self.command(program);
        command.args(words);
        command
    }

    /// Waits until no other process holds the programs in `target`, and holds them until the result is dropped.
    ///
    /// Builds with different features write the same file of a program, such as `target/release/fedspan-sim`.
    /// A build in one process must therefore wait while another tests a program that needs a feature.
    ///
    /// # Errors
    /// The lock file `target/ci/programs.lock` cannot be created or locked; exit code 130 after an interruption.
    pub fn lock_programs(&self) -> Result<File, Failure> {
        self.lock("programs.lock")
    }

    /// Waits until no other process holds the firmware in `target/boards`, and holds it until the result is dropped.
    ///
    /// Builds for different boards write the same file of a program, so only one process may build and emulate boards.
    ///
    /// # Errors
    /// As in [`Self::lock_programs`], of the lock file `target/ci/firmware.lock`.
    pub fn lock_firmware(&self) -> Result<File, Failure> {
        self.lock("firmware.lock")
    }

    /// Waits for the lock of a file in `target/ci`.
    fn lock(&self, file: &str) -> Result<File, Failure> {
        let folder = self.root.join("target/ci");
        std::fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join(file))?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::Error(error)) => return Err(error.into()),
                Err(TryLockError::WouldBlock) if self.is_interrupted() => {
                    return Err(Failure::with_code(130, "interrupted"));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Returns whether `cargo run` has added this folder to the library path, for build output or its own
    /// tool chain.
    fn is_of_build(&self, folder: &Path) -> bool {
        let toolchain = std::env::var_os("CARGO").map(PathBuf::from);
        let toolchain = toolchain.as_deref().and_then(Path::parent).and_then(Path::parent);
        // `/usr` is not the folder of a tool chain alone.
        let toolchain = toolchain.filter(|folder| folder.components().count() > 2);
        folder.starts_with(self.root.join("target"))
            || toolchain.is_some_and(|toolchain| folder.starts_with(toolchain))
    }

    /// Runs a program to its end, with the same outputs as this program. After an interruption the program
    /// has ten seconds to end by itself, since the terminal interrupts it as well.
    ///
    /// # Errors
    /// The program cannot be started or waited for, or was killed.
    pub fn status(&self, command: &mut Command) -> Result<ExitStatus, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        if self.failed_tests.is_some() {
            command.stdout(Stdio::piped());
        }
        if self.deadline.is_some() {
            // A group of its own, which can be killed as a whole. Such a group cannot read from a terminal.
            command.process_group(0).stdin(Stdio::null());
        }
        if self.is_late() {
            return Err(Failure::new(format!("{name}: not started, since the time is over")));
        }
        let mut child = command.spawn().map_err(|error| Failure::new(format!("{name}: {error}")))?;
        let output = child.stdout.take().zip(self.failed_tests.clone());
        let reader = output.map(|(output, tests)| std::thread::spawn(move || copy_output(output, &tests)));
        let mut interrupted_at: Option<Instant> = None;
        loop {
            if let Some(status) = child.try_wait()? {
                // A program that the child has left behind may keep the output open.
                let ended = Instant::now();
                while reader.as_ref().is_some_and(|reader| !reader.is_finished())
                    && ended.elapsed() < END_TIME
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Ok(status);
            }
            if self.is_interrupted() && interrupted_at.is_none() {
                interrupted_at = Some(Instant::now());
                self.signal_group(&child, "TERM");
            }
            let is_late = self.is_late();
            if is_late || interrupted_at.is_some_and(|at| at.elapsed() > END_TIME) {
                self.signal_group(&child, "KILL");
                let _ = child.kill();
                let _ = child.wait();
                let reason = if is_late { "when the time was over" } else { "after an interruption" };
                return Err(Failure::new(format!("{name}: killed {reason}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a program to its end; returns whether it succeeded. If it cannot be started, the reason is
    /// printed.
    pub fn succeeds(&self, command: &mut Command) -> bool {
        match self.status(command) {
            Ok(status) => status.success(),
            Err(failure) => {
                eprintln!("{}", failure.message);
                false
            }
        }
    }

    /// Waits for a program. Kills it when it takes longer than `limit`, or when this program is interrupted.
    ///
    /// # Errors
    /// A message if the program was killed, or the system's error if it cannot be waited for.
    pub fn wait(&self, child: &mut Child, limit: Duration) -> Result<ExitStatus, Failure> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let reason = if self.is_interrupted() {
                Some("interrupted".to_owned())
            } else if start.elapsed() > limit {
                Some(format!("killed after {} s", limit.as_secs()))
            } else {
                None
            };
            if let Some(reason) = reason {
                if self.is_interrupted() {
                    // A program that has started others ends them first.
                    let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
                    let interrupted = Instant::now();
                    while interrupted.elapsed() < END_TIME && child.try_wait()?.is_none() {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
                let _ = child.kill();
                let _ = child.wait();
                return Err(Failure::new(reason));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Runs a program for at most `limit`, with standard output and standard error in a file.
    ///
    /// # Errors
    /// The same errors as [`Self::wait`]; the file cannot be created, or the program cannot be started.
    pub fn run_into(
        &self,
        command: &mut Command,
        output: &Path,
        limit: Duration,
    ) -> Result<ExitStatus, Failure> {
        let file = File::create(output)?;
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().map_err(|error| Failure::new(format!("{name}: {error}")))?;
        self.wait(&mut child, limit)
    }
}

/// Copies the output of a program to standard output, and records its failed tests.
fn copy_output(output: impl io::Read, tests: &Mutex<FailedTests>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        tests.lock().unwrap_or_else(PoisonError::into_inner).read(text.trim_end());
        line.clear();
    }
}

/// Returns whether a variable is one of those that `cargo run` sets for the program that it starts; other
/// programs must not inherit them.
fn is_of_cargo_run(name: &str) -> bool {
    let exact = ["CARGO", "CARGO_BIN_NAME", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"];
    exact.contains(&name) || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Returns whether a program is on the `PATH`.
#[must_use]
pub fn is_on_path(program: &str) -> bool {
    find_on_path(program).is_some()
}

/// Returns the file of a program that is on the `PATH`.
#[must_use]
pub fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// Returns whether a file can be executed.
#[must_use]
pub fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Returns whether this program runs in CI (`CI=true`).
#[must_use]
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Returns the value of a variable that is set and not empty.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the Cargo profile of the tests: `FEDSPAN_TEST_PROFILE`, by default `release`.
#[must_use]
pub fn test_profile() -> String {
    variable("FEDSPAN_TEST_PROFILE").unwrap_or_else(|| "release".to_owned())
}

/// Prints lines to standard output. A reader that has closed the pipe, like `head`, is not an error.
pub fn print_lines(text: &str) {
    use std::io::Write;
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

/// Writes a file atomically, so that no other process reads an incomplete file.
///
/// # Errors
/// The file cannot be written or moved into place; the message contains its path.
pub fn write_whole(file: &Path, text: &str) -> Result<(), Failure> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = file.with_file_name(name);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
    written.map_err(|error| Failure::new(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn context() -> Context {
        Context::new(PathBuf::from("/")).unwrap()
    }

    #[test]
    fn programs_and_firmware_are_locked_until_the_lock_is_dropped() {
        let root = std::env::temp_dir().join(format!("fedspan-xtask-lock-{}", std::process::id()));
        let context = Context::new(root.clone()).unwrap();
        let (programs, _firmware) = (context.lock_programs().unwrap(), context.lock_firmware().unwrap());
        // A second lock would wait, and ends only because of the interruption.
        context.interrupted.store(true, Ordering::Relaxed);
        assert_eq!(context.lock_programs().unwrap_err().code, 130);
        assert_eq!(context.lock_firmware().unwrap_err().code, 130);
        drop(programs);
        context.lock_programs().unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn variables_of_cargo_run_are_removed_and_others_stay() {
        for name in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"] {
            assert!(is_of_cargo_run(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_PROFILE_DEV_DEBUG", "RUSTFLAGS", "PATH"] {
            assert!(!is_of_cargo_run(name), "{name}");
        }
    }

    #[test]
    fn program_that_takes_too_long_is_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let failure = context().wait(&mut child, Duration::ZERO).unwrap_err();
        assert_eq!(failure.message, "killed after 0 s");
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn late_programs_are_killed_with_those_that_they_have_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let context = context().ending_after(Duration::from_millis(500));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $! > \"$0\"; wait"]).arg(&file);
        assert_eq!(context.status(&mut command).unwrap_err().message, "sh: killed when the time was over");
        let pid = std::fs::read_to_string(&file).unwrap();
        // A killed process may take a moment to end.
        let is_alive = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            !state.is_empty() && !state.contains(") Z ")
        };
        while is_alive() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = context.status(&mut Command::new("true")).unwrap_err();
        assert_eq!(refused.message, "true: not started, since the time is over");
        assert!(context.free_megabytes().is_some_and(|free| free > 0));
    }

    #[test]
    fn output_of_both_kinds_goes_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("output");
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; exit 4"]);
        let status = context().run_into(&mut command, &file, Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), Some(4));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a\nb\n");
    }

    /// The output of a program with a failed test, as libtest prints it.
    #[test]
    fn failed_tests_are_recorded() {
        let output = "test a::b ... ok\ntest a::c ... FAILED\n\nthread 'a::c' (7) panicked at src/a.rs:1:2:\n5 is not \
                      4\nnote: more\ntest result: FAILED. 1 passed; 1 failed";
        let context = context().recording_failed_tests();
        assert!(context.status(Command::new("printf").arg(output)).unwrap().success());
        let expected = ["test a::c ... FAILED", "thread 'a::c' (7) panicked at src/a.rs:1:2:", "5 is not 4"];
        assert_eq!(context.failed_tests(), expected);
    }
}
