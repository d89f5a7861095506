//! The cores that can be emulated: which QEMU, which firmware, with what in its flash, on which link.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use fedspan_client::features::FEATURES;
use fedspan_client::memory::Shape;

use super::EmulateError;
use crate::data::watch::EXERCISES;

/// A core that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its word on the command line.
    pub word: &'static str,
    /// What that is.
    pub line: &'static str,
    /// QEMU's program and machine.
    qemu: &'static str,
    machine: &'static [&'static str],
    /// The board's folder, the target, and the feature that chooses the machine.
    folder: &'static str,
    target: &'static str,
    feature: Option<&'static str>,
    /// Where the partition with the samples begins.
    partition: u32,
    /// Bytes of it.
    pub(super) room: usize,
    /// What the firmware learns from.
    pub firmware: Firmware,
}

/// What a board's firmware is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// A wearer's recording.
    Watch,
    /// A table of samples: d = 20, k = 2, one output.
    Table,
}

impl Firmware {
    /// Its model.
    #[must_use]
    pub fn shape(self) -> Shape {
        match self {
            Self::Watch => Shape { features: FEATURES, width: 24, outputs: EXERCISES },
            Self::Table => Shape { features: 20, width: 2, outputs: 1 },
        }
    }
}

/// Two mebibytes: where a board has megabytes.
const ROOMY: usize = 2 << 20;

const ARM: &str = "qemu-system-arm";
const RISCV: &str = "qemu-system-riscv32";

/// Every core. All but the last have room for a wearer's recording.
pub const CORES: [Core; 6] = [
    Core {
        word: "m4",
        line: "Cortex-M4F, mps2-an386",
        qemu: ARM,
        machine: &["-M", "mps2-an386"],
        folder: "qemu-mps2",
        target: "thumbv7em-none-eabihf",
        feature: Some("m4"),
        partition: 0x0020_0000,
        room: ROOMY,
        firmware: Firmware::Watch,
    },
    Core {
        word: "m3",
        line: "Cortex-M3, mps2-an385",
        qemu: ARM,
        machine: &["-M", "mps2-an385"],
        folder: "qemu-mps2",
        target: "thumbv7m-none-eabi",
        feature: Some("m3"),
        partition: 0x0020_0000,
        room: ROOMY,
        firmware: Firmware::Watch,
    },
    Core {
        word: "m7",
        line: "Cortex-M7, mps2-an500",
        qemu: ARM,
        machine: &["-M", "mps2-an500"],
        folder: "qemu-mps2",
        target: "thumbv7em-none-eabihf",
        feature: Some("m7"),
        partition: 0x0020_0000,
        room: ROOMY,
        firmware: Firmware::Watch,
    },
    Core {
        word: "m33",
        line: "Cortex-M33, mps2-an505",
        qemu: ARM,
        machine: &["-M", "mps2-an505"],
        folder: "qemu-mps2",
        target: "thumbv8m.main-none-eabihf",
        feature: Some("m33"),
        partition: 0x1020_0000,
        room: ROOMY,
        firmware: Firmware::Watch,
    },
    Core {
        word: "rv32imc",
        line: "RISC-V, virt",
        qemu: RISCV,
        machine: &["-M", "virt", "-bios", "none"],
        folder: "qemu-riscv",
        target: "riscv32imc-unknown-none-elf",
        feature: None,
        partition: 0x8020_0000,
        room: ROOMY,
        firmware: Firmware::Watch,
    },
    Core {
        word: "m0",
        line: "Cortex-M0, microbit, 16 KiB of RAM",
        qemu: ARM,
        machine: &["-M", "microbit"],
        folder: "qemu-microbit",
        target: "thumbv6m-none-eabi",
        feature: None,
        partition: 0x0003_0000,
        room: 64 << 10,
        firmware: Firmware::Table,
    },
];

/// How a board reaches the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Its serial line is a TCP connection to this port of this machine.
    Uart(u16),
    /// Two named pipes: what it receives, and what it sends.
    Pipes(PathBuf, PathBuf),
}

/// How a board is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// QEMU's program.
    pub emulator: &'a Path,
    /// The firmware.
    pub firmware: &'a Path,
    /// What is in the partition with the samples.
    pub image: &'a Path,
    /// The file that plays the flash.
    pub flash: &'a Path,
    /// The file with its provisioning record; without it frames are in the clear.
    pub provision: Option<&'a Path>,
    /// The device's identity.
    pub device: u64,
    /// Its link.
    pub wire: &'a Wire,
    /// How often it resets itself.
    pub resets: u32,
    /// Messages after which its power goes.
    pub end_after: Option<u32>,
}

impl Core {
    /// QEMU's program: on the `PATH`, or where `tests/setup` has put it.
    ///
    /// # Errors
    /// [`EmulateError::NoQemu`].
    pub fn emulator(&self, root: &Path) -> Result<PathBuf, EmulateError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let unpacked = root.join("target/boards/qemu/bin");
        let found = std::env::split_paths(&path).chain([unpacked]).map(|folder| folder.join(self.qemu));
        let mut found = found.filter(|file| file.is_file());
        found.next().ok_or(EmulateError::NoQemu { program: self.qemu })
    }

    /// Builds the client for this core with cargo and says where it is. The tool chain is the one that
    /// `tests/setup` has found, where its variables (`target/boards/toolchain.env`) are in the environment.
    ///
    /// # Errors
    /// [`EmulateError::Build`].
    pub async fn build(&self, root: &Path) -> Result<PathBuf, EmulateError> {
        let folder = root.join("edge-client/boards").join(self.folder);
        let target = root.join("target/boards");
        let setting = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut cargo = Command::new(setting("FEDSPAN_CARGO").as_deref().unwrap_or("cargo"));
        if let Some(compiler) = setting("FEDSPAN_RUSTC") {
            cargo.env("RUSTC", compiler);
            cargo.env("RUSTC_BOOTSTRAP", setting("FEDSPAN_RUSTC_BOOTSTRAP").unwrap_or_default());
        }
        cargo
            .current_dir(&folder)
            .args(["build", "--quiet", "--release", "--locked", "--bin", "client", "--target", self.target])
            .env("CARGO_TARGET_DIR", &target)
            .kill_on_drop(true);
        cargo.args(setting("FEDSPAN_BUILD_STD"));
        if let Some(config) = setting("FEDSPAN_CARGO_CONFIG") {
            cargo.args(["--config", &config]);
        }
        if let Some(feature) = self.feature {
            cargo.args(["--no-default-features", "--features", feature]);
        }
        let failed = |reason: String| EmulateError::Build { folder: folder.clone(), reason };
        let status = cargo.status().await.map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!(
                "cargo ended with {status}; `tests/setup --install` fetches targets"
            )));
        }
        Ok(target.join(self.target).join("release/client"))
    }

    /// Starts a board. It ends with the program that started it, as far as that is given the time.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(&self, start: &Start<'_>) -> std::io::Result<Child> {
        let Start { emulator, firmware, image, flash, provision, device, wire, resets, end_after } = start;
        let mut words = format!("arg=board,arg=flash={}", flash.display());
        words.push_str(&match provision {
            Some(record) => format!(",arg=provision={}", record.display()),
            None => format!(",arg=protection=plaintext,arg=device={device}"),
        });
        let serial = match wire {
            Wire::Uart(port) => vec![
                "-chardev".to_owned(),
                format!("socket,id=server,host=127.0.0.1,port={port},nodelay=on"),
                "-serial".to_owned(),
                "chardev:server".to_owned(),
            ],
            Wire::Pipes(receive, transmit) => {
                let (receive, transmit) = (receive.display(), transmit.display());
                words.push_str(&format!(",arg=link=pipes,arg=receive={receive},arg=transmit={transmit}"));
                vec!["-serial".to_owned(), "null".to_owned()]
            }
        };
        if *resets > 0 {
            words.push_str(&format!(",arg=resets={resets}"));
        }
        if let Some(messages) = end_after {
            words.push_str(&format!(",arg=end-after={messages}"));
        }
        Command::new(emulator)
            .args(self.machine)
            .args(["-display", "none", "-monitor", "none"])
            .arg("-device")
            .arg(format!("loader,file={},addr={:#x},force-raw=on", image.display(), self.partition))
            .args(serial)
            .arg("-semihosting-config")
            .arg(format!("enable=on,target=native,{words}"))
            .arg("-kernel")
            .arg(firmware)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }
}
