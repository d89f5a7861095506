//! Processor cores that QEMU can emulate: machine options, firmware, flash partition and link of a board with
//! each core.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use fedspan_client::features::FEATURES;
use fedspan_client::memory::Shape;

use super::EmulateError;
use crate::data::watch::EXERCISES;
use crate::scenario::Scenario;

/// Processor core that QEMU can emulate, and the board with this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Name of the core on the command line.
    pub name: &'static str,
    /// Description of the core in help texts.
    pub description: &'static str,
    /// Name of QEMU's program, followed by its machine options.
    qemu: &'static str,
    machine: &'static [&'static str],
    /// Folder of the board, compilation target, and cargo feature that selects the machine.
    folder: &'static str,
    target: &'static str,
    feature: Option<&'static str>,
    /// Address of the flash partition for samples.
    partition: u32,
    /// Size of the partition for samples, in bytes.
    pub(super) partition_size: usize,
    /// Kind of model and samples that the firmware trains on.
    pub firmware: Firmware,
    /// RAM for a network in the firmware for networks, in bytes; 0 if the board has too little RAM for that
    /// firmware.
    pub network_memory: usize,
    /// Program of the firmware.
    program: Program,
}

/// Program of a firmware that is a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Rust,
    /// In Rust, with heads that have a prior which the fleet learns.
    Prior,
    C,
}

/// Kind of model and samples that the firmware of a board trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// Linear model on the recordings of a smartwatch wearer.
    Watch,
    /// Linear model of width 2 on a table of samples with 20 features and one output.
    Table,
    /// Network of any kind on a table of samples with classes.
    Network,
}

impl Firmware {
    /// Sizes of the firmware's model; `None` if the model is a network, whose sizes are in the board's flash.
    #[must_use]
    pub fn shape(self) -> Option<Shape> {
        match self {
            Self::Watch => Some(Shape { features: FEATURES, width: 24, outputs: EXERCISES }),
            Self::Table => Some(Shape { features: 20, width: 2, outputs: 1 }),
            Self::Network => None,
        }
    }
}

/// Returns a call of cargo (`build` or `run`) for firmware in this folder, in release mode and into `target/boards`. The environment
/// variables of `target/boards/toolchain.env`, which `tests/setup` writes, select the tool chain.
#[must_use]
pub fn firmware_cargo(command: &str, root: &Path, folder: &Path) -> Command {
    let setting = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut cargo = Command::new(setting("FEDSPAN_CARGO").as_deref().unwrap_or("cargo"));
    if let Some(compiler) = setting("FEDSPAN_RUSTC") {
        cargo.env("RUSTC", compiler);
        cargo.env("RUSTC_BOOTSTRAP", setting("FEDSPAN_RUSTC_BOOTSTRAP").unwrap_or_default());
    }
    cargo
        .current_dir(folder)
        .args([command, "--quiet", "--release"])
        .args(setting("FEDSPAN_BUILD_STD"))
        .env("CARGO_TARGET_DIR", root.join("target/boards"))
        .kill_on_drop(true);
    if let Some(config) = setting("FEDSPAN_CARGO_CONFIG") {
        cargo.args(["--config", &config]);
    }
    cargo
}

/// RAM for a network on boards with megabytes of memory, in bytes: `ARENA` of the firmware.
const NETWORK_MEMORY: usize = 15 << 18;

/// Partition size of boards with megabytes of memory: 16 MiB.
const MEGABYTES: usize = 16 << 20;

const ARM: &str = "qemu-system-arm";
const RISCV: &str = "qemu-system-riscv32";

/// All cores. The partition of every core except the last is large enough for a wearer's recordings.
pub const CORES: [Core; 6] = [
    Core {
        name: "m4",
        description: "Cortex-M4F, mps2-an386",
        qemu: ARM,
        machine: &["-M", "mps2-an386"],
        folder: "qemu-mps2",
        target: "thumbv7em-none-eabihf",
        feature: Some("m4"),
        partition: 0x2100_0000,
        partition_size: MEGABYTES,
        firmware: Firmware::Watch,
        network_memory: NETWORK_MEMORY,
        program: Program::Rust,
    },
    Core {
        name: "m3",
        description: "Cortex-M3, mps2-an385",
        qemu: ARM,
        machine: &["-M", "mps2-an385"],
        folder: "qemu-mps2",
        target: "thumbv7m-none-eabi",
        feature: Some("m3"),
        partition: 0x2100_0000,
        partition_size: MEGABYTES,
        firmware: Firmware::Watch,
        network_memory: NETWORK_MEMORY,
        program: Program::Rust,
    },
    Core {
        name: "m7",
        description: "Cortex-M7, mps2-an500",
        qemu: ARM,
        machine: &["-M", "mps2-an500"],
        folder: "qemu-mps2",
        target: "thumbv7em-none-eabihf",
        feature: Some("m7"),
        partition: 0x6000_0000,
        partition_size: MEGABYTES,
        firmware: Firmware::Watch,
        network_memory: NETWORK_MEMORY,
        program: Program::Rust,
    },
    Core {
        name: "m33",
        description: "Cortex-M33, mps2-an505",
        qemu: ARM,
        machine: &["-M", "mps2-an505"],
        folder: "qemu-mps2",
        target: "thumbv8m.main-none-eabihf",
        feature: Some("m33"),
        partition: 0x8000_0000,
        partition_size: MEGABYTES,
        firmware: Firmware::Watch,
        network_memory: NETWORK_MEMORY,
        program: Program::Rust,
    },
    Core {
        name: "rv32imc",
        description: "RISC-V, virt",
        qemu: RISCV,
        machine: &["-M", "virt", "-bios", "none"],
        folder: "qemu-riscv",
        target: "riscv32imc-unknown-none-elf",
        feature: None,
        partition: 0x8100_0000,
        partition_size: MEGABYTES,
        firmware: Firmware::Watch,
        network_memory: NETWORK_MEMORY,
        program: Program::Rust,
    },
    Core {
        name: "m0",
        description: "Cortex-M0, microbit, 16 KiB of RAM",
        qemu: ARM,
        machine: &["-M", "microbit"],
        folder: "qemu-microbit",
        target: "thumbv6m-none-eabi",
        feature: None,
        partition: 0x0003_0000,
        partition_size: 64 << 10,
        firmware: Firmware::Table,
        network_memory: 0,
        program: Program::Rust,
    },
];

/// Link between a board and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardLink {
    /// Serial line, which QEMU connects by TCP to this port on the host.
    Uart(u16),
    /// Two named pipes: the input of the board, and the output of the board.
    Pipes(PathBuf, PathBuf),
}

/// Arguments of one start of a board.
#[derive(Clone, Copy, Debug)]
pub struct BoardArgs<'a> {
    /// Path of QEMU's program.
    pub emulator: &'a Path,
    /// Path of the firmware.
    pub firmware: &'a Path,
    /// File with the content of the sample partition.
    pub image: &'a Path,
    /// File that emulates the flash.
    pub flash: &'a Path,
    /// File with the provisioning record; `None` for plaintext frames.
    pub provision: Option<&'a Path>,
    /// Device number.
    pub device: u64,
    /// Link to the server.
    pub link: &'a BoardLink,
    /// Number of times that the board resets itself.
    pub resets: u32,
    /// Number of messages after which a power cut is simulated; `None` for no power cut.
    pub end_after: Option<u32>,
}

impl Core {
    /// Returns this core with the client in C, which trains on tables. Building it needs clang.
    #[must_use]
    pub fn in_c(self) -> Self {
        Self { firmware: Firmware::Table, program: Program::C, ..self }
    }

    /// Returns this core with the firmware for the model of a scenario: for networks if it is a network, or for heads with a
    /// prior that the fleet learns.
    #[must_use]
    pub fn for_model(self, scenario: &Scenario) -> Self {
        let has_prior = scenario.algorithm.learned_prior().is_some() && self.program == Program::Rust;
        Self {
            firmware: if scenario.model.network.is_some() { Firmware::Network } else { self.firmware },
            program: if has_prior { Program::Prior } else { self.program },
            ..self
        }
    }

    /// Returns true if the firmware is the client in C.
    pub(super) fn is_in_c(&self) -> bool {
        self.program == Program::C
    }

    /// Returns the name of the program, and the cargo features that the program needs.
    fn program(&self) -> (&'static str, Option<&'static str>) {
        match (self.firmware, self.program) {
            (_, Program::C) => ("c_client", Some("c")),
            (Firmware::Network, Program::Prior) => ("network_client", Some("every-network,learned-prior")),
            (Firmware::Network, Program::Rust) => ("network_client", Some("every-network")),
            (_, Program::Prior) => ("prior_client", Some("learned-prior")),
            (_, Program::Rust) => ("client", None),
        }
    }

    /// Returns a name of the firmware for this core.
    #[must_use]
    pub fn firmware_name(&self) -> String {
        let prior = if self.program().1 == Some("every-network,learned-prior") { "-prior" } else { "" };
        format!("{}{prior}-{}", self.program().0.replace('_', "-"), self.name)
    }

    /// Finds QEMU's program on the `PATH`, or in the folder where `tests/setup` installs QEMU.
    ///
    /// # Errors
    /// [`EmulateError::NoQemu`] if the program is in neither place.
    pub fn emulator(&self, root: &Path) -> Result<PathBuf, EmulateError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let unpacked = root.join("target/boards/qemu/bin");
        let programs = std::env::split_paths(&path).chain([unpacked]).map(|folder| folder.join(self.qemu));
        let mut programs = programs.filter(|file| file.is_file());
        programs.next().ok_or(EmulateError::NoQemu { program: self.qemu })
    }

    /// Builds the client firmware for this core with [`firmware_cargo`] and returns its path.
    ///
    /// # Errors
    /// [`EmulateError::Build`] if cargo cannot be started or fails.
    pub async fn build(&self, root: &Path) -> Result<PathBuf, EmulateError> {
        let folder = root.join("edge-client/boards").join(self.folder);
        let target = root.join("target/boards");
        let (program, feature) = self.program();
        let mut cargo = firmware_cargo("build", root, &folder);
        cargo.args(["--locked", "--bin", program, "--target", self.target]);
        if let Some(feature) = self.feature {
            cargo.args(["--no-default-features", "--features", feature]);
        }
        if let Some(feature) = feature {
            cargo.args(["--features", feature]);
        }
        let build_error = |reason: String| EmulateError::Build { folder: folder.clone(), reason };
        let status = cargo.status().await.map_err(|error| build_error(error.to_string()))?;
        if !status.success() {
            return Err(build_error(format!(
                "cargo ended with {status}; `tests/setup --install` installs missing targets and clang"
            )));
        }
        Ok(target.join(self.target).join("release").join(program))
    }

    /// Starts QEMU for a board. The process is killed when the returned child is dropped.
    ///
    /// # Errors
    /// The system's error if QEMU cannot be started.
    pub fn start(&self, start: &BoardArgs<'_>) -> std::io::Result<Child> {
        let BoardArgs { emulator, firmware, image, flash, provision, device, link, resets, end_after } =
            start;
        let mut arguments = format!("arg=board,arg=flash={}", flash.display());
        arguments.push_str(&match provision {
            Some(record) => format!(",arg=provision={}", record.display()),
            None => format!(",arg=protection=plaintext,arg=device={device}"),
        });
        let serial = match link {
            BoardLink::Uart(port) => vec![
                "-chardev".to_owned(),
                format!("socket,id=server,host=127.0.0.1,port={port},nodelay=on"),
                "-serial".to_owned(),
                "chardev:server".to_owned(),
            ],
            BoardLink::Pipes(receive, transmit) => {
                let (receive, transmit) = (receive.display(), transmit.display());
                arguments.push_str(&format!(",arg=link=pipes,arg=receive={receive},arg=transmit={transmit}"));
                vec!["-serial".to_owned(), "null".to_owned()]
            }
        };
        if *resets > 0 {
            arguments.push_str(&format!(",arg=resets={resets}"));
        }
        if let Some(messages) = end_after {
            arguments.push_str(&format!(",arg=end-after={messages}"));
        }
        Command::new(emulator)
            .args(self.machine)
            .args(["-display", "none", "-monitor", "none"])
            .arg("-device")
            .arg(format!("loader,file={},addr={:#x},force-raw=on", image.display(), self.partition))
            .args(serial)
            .arg("-semihosting-config")
            .arg(format!("enable=on,target=native,{arguments}"))
            .arg("-kernel")
            .arg(firmware)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fedspan_xtask::boards::Boards;

    use super::*;

    #[test]
    fn cores_match_board_table() {
        let boards = Boards::read(Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()).unwrap();
        assert_eq!(boards.emulated.len(), CORES.len());
        for core in CORES {
            let board = boards.emulated(core.name).unwrap();
            let machine = &board.machine;
            assert_eq!(
                (machine.emulator.as_str(), machine.folder.as_str()),
                (core.qemu, core.folder),
                "{}",
                core.name
            );
            assert_eq!(machine.arguments, core.machine, "{}", core.name);
            assert_eq!(
                (machine.target.as_str(), machine.feature.as_deref()),
                (core.target, core.feature),
                "{}",
                core.name
            );
            assert_eq!((board.partition, board.room), (core.partition, core.partition_size), "{}", core.name);
        }
    }
}
