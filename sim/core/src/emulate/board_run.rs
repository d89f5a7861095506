//! Run of an emulated board from the first start to its report, with injected power cuts and resets.

use std::path::PathBuf;

use super::{BoardArgs, BoardLink, Core, EmulateError};

/// Faults to inject into a board.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardFaults {
    /// Number of the board, from 1.
    pub board: usize,
    /// Number of power cuts. The first power cut is one message after the start, the second is two messages
    /// after the second start, and so on. Each power cut ends the emulator, which is then started again.
    pub power_cuts: u32,
    /// Number of resets after the last power cut, each after one message more than the reset before.
    pub resets: u32,
    /// True if the board is not started again after its last power cut.
    pub stays_off: bool,
    /// Content of the flash before the first start; `None` for erased flash.
    pub flash: Option<Vec<u8>>,
}

/// Board that ended without a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadBoard {
    /// Device number.
    pub device: u64,
    /// Exit status of the emulator.
    pub code: String,
    /// Last line that the board printed.
    pub last_line: String,
}

/// Output of a board.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardReport {
    /// Device number.
    pub device: u64,
    /// Number of the client whose samples are on the board, from 1.
    pub client: usize,
    /// Report of the board: the final JSON line of its output.
    pub line: serde_json::Value,
    /// JSON lines about the flash record before the report, from all starts in order.
    pub record_lines: Vec<serde_json::Value>,
    /// Concatenated standard error of all starts.
    pub stderr: String,
}

/// Exit code of the emulator after a configured power cut.
const POWER_CUT_EXIT: i32 = 3;

/// Board with everything that is needed to start its emulator.
#[derive(Debug)]
pub(super) struct BoardRun {
    pub core: Core,
    pub emulator: PathBuf,
    pub firmware: PathBuf,
    pub image: PathBuf,
    pub flash: PathBuf,
    pub provision: Option<PathBuf>,
    pub device: u64,
    pub client: usize,
    pub link: BoardLink,
    pub faults: BoardFaults,
}

impl BoardRun {
    /// Starts the board once, and again after each injected power cut. Returns the report of the board.
    pub async fn run(self) -> Result<BoardReport, EmulateError> {
        let (mut record_lines, mut stderr) = (Vec::new(), String::new());
        let mut cut_count = 0;
        loop {
            cut_count += 1;
            let end_after = (cut_count <= self.faults.power_cuts).then_some(cut_count);
            let child = self.core.start(&BoardArgs {
                emulator: &self.emulator,
                firmware: &self.firmware,
                image: &self.image,
                flash: &self.flash,
                provision: self.provision.as_deref(),
                device: self.device,
                link: &self.link,
                resets: if end_after.is_some() { 0 } else { self.faults.resets },
                end_after,
            });
            let system = |error| EmulateError::System { what: format!("board {}", self.device), error };
            let output = child.map_err(system)?.wait_with_output().await.map_err(system)?;
            let text = String::from_utf8_lossy(&output.stdout);
            stderr.push_str(&String::from_utf8_lossy(&output.stderr));
            record_lines
                .extend(text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()));
            let stays_off = self.faults.stays_off && cut_count == self.faults.power_cuts;
            if end_after.is_some() && output.status.code() == Some(POWER_CUT_EXIT) && !stays_off {
                continue;
            }
            if output.status.success()
                && let Some(line) = record_lines.pop_if(|line| line.get("core").is_some())
            {
                return Ok(BoardReport {
                    device: self.device,
                    client: self.client,
                    line,
                    record_lines,
                    stderr,
                });
            }
            let last_line =
                stderr.lines().next_back().or(text.lines().next_back()).unwrap_or("nothing").to_owned();
            return Err(EmulateError::Board {
                device: self.device,
                code: output.status.to_string(),
                last_line,
            });
        }
    }
}
