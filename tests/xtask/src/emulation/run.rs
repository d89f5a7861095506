//! Runner of programs in QEMU: returns output and exit code of a program, or estimates its cycles from the
//! log of what it executes.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::boards::Machine;
use crate::cycles::{Core, estimate};
use crate::process::{Context, Failure};
use crate::setup::FOLDER;

/// Longest time of one program.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest time of one program while everything that it executes is logged.
const LOGGED_LIMIT: Duration = Duration::from_secs(600);
/// Longest time of the tests on the host, including their build.
const HOST_LIMIT: Duration = Duration::from_secs(3600);
/// Bytes of a flash page that was never written.
const ERASED: [u8; 512] = [0xff; 512];

/// Runs programs with their files in a temporary folder, which is removed with the runner.
pub struct Runner<'a> {
    context: &'a Context,
    scratch: PathBuf,
    last: RefCell<String>,
}

impl<'a> Runner<'a> {
    /// Creates a runner with an empty folder below `target/boards`.
    pub fn new(context: &'a Context) -> Result<Self, Failure> {
        let scratch = context.root.join(FOLDER).join(format!("run.{}", std::process::id()));
        std::fs::create_dir_all(&scratch)?;
        Ok(Self { context, scratch, last: RefCell::default() })
    }

    /// Returns the output of the program that ran last.
    pub fn last_output(&self) -> String {
        self.last.borrow().clone()
    }

    /// Drops the output of the program that ran last.
    pub fn forget(&self) {
        self.last.borrow_mut().clear();
    }

    /// Returns the words of the command line for a flash whose page of keys was never written.
    pub fn erased_key(&self) -> Result<[String; 2], Failure> {
        let page = self.scratch.join("erased");
        std::fs::write(&page, ERASED)?;
        let flash = self.scratch.join("flash");
        Ok([format!("provision={}", page.display()), format!("flash={}", flash.display())])
    }

    /// Runs a program on the host; returns whether it succeeded, and its output.
    pub fn program(&self, command: &mut Command) -> Result<(bool, String), Failure> {
        let file = self.scratch.join("output");
        let status = self.context.run_into(command, &file, HOST_LIMIT)?;
        Ok((status.success(), read(&file)?))
    }

    /// Runs a program of a board with words of its command line; returns exit code and output.
    pub fn emulate(
        &self,
        emulator: &Path,
        machine: &Machine,
        program: &str,
        words: &[String],
    ) -> Result<(Option<i32>, String), Failure> {
        let file = self.scratch.join("output");
        let mut command = self.emulator_command(emulator, machine, program, words);
        command.args(["-icount", "shift=0"]);
        let code = match self.context.run_into(&mut command, &file, LIMIT) {
            Ok(status) => status.code(),
            Err(failure) => {
                eprintln!("boards: {program}: {}", failure.message);
                None
            }
        };
        let output = read(&file)?;
        self.last.replace(output.clone());
        Ok((code, output))
    }

    /// Estimates the cycles of a program that solves a problem `times` times.
    pub fn cycles(
        &self,
        emulator: &Path,
        machine: &Machine,
        core: Core,
        program: &str,
        problem: &str,
        times: u32,
    ) -> Result<u64, Failure> {
        // The log is read through a pipe, because it has gigabytes.
        let log = self.scratch.join("log");
        let _ = std::fs::remove_file(&log);
        if !self.context.command("mkfifo").arg(&log).status()?.success() {
            return Err(Failure::new("mkfifo failed"));
        }
        // Opening the pipe in both directions never blocks. The reader gets the end of the log once this
        // handle and the emulator's are closed.
        let pipe = OpenOptions::new().read(true).write(true).open(&log)?;
        let file = File::open(&log)?;
        let reader = thread::spawn(move || {
            let mut log = BufReader::with_capacity(1 << 16, file);
            let cycles = estimate(core, &mut log);
            // The emulator stops when the pipe is full, so the log is read to its end even after an error.
            let _ = io::copy(&mut log, &mut io::sink());
            cycles
        });
        let words = [format!("problem={problem}"), format!("times={times}")];
        let mut command = self.emulator_command(emulator, machine, program, &words);
        command.args(["-d", "in_asm,exec,nochain", "-D"]).arg(&log);
        let output = self.scratch.join("output");
        let result = self.context.run_into(&mut command, &output, LOGGED_LIMIT);
        drop(pipe);
        let cycles = reader.join().map_err(|_| Failure::new("the reader of the log has panicked"))?;
        let status = result?;
        if !status.success() {
            return Err(Failure::new(format!("{program}, {problem}: {status}\n{}", read(&output)?)));
        }
        cycles.map_err(|fault| Failure::new(format!("{program}, {problem}: {fault}")))
    }

    /// Returns the command that runs a program of a board in QEMU.
    fn emulator_command(
        &self,
        emulator: &Path,
        machine: &Machine,
        program: &str,
        words: &[String],
    ) -> Command {
        let file = self.context.root.join(FOLDER).join(&machine.target).join("release").join(program);
        let words: String = words.iter().map(|word| format!(",arg={word}")).collect();
        let mut command = self.context.command(emulator);
        command.args(&machine.arguments).args(["-display", "none", "-monitor", "none", "-serial", "null"]);
        command.args(["-semihosting-config", &format!("enable=on,target=native,arg=board{words}")]);
        command.arg("-kernel").arg(file);
        command
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}
