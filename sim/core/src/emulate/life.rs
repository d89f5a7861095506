//! One board from its first start to its report, with what befalls it on the way.

use std::path::PathBuf;

use super::{Core, EmulateError, Start, Wire};

/// What befalls one board beside the campaign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Which board, from 1.
    pub board: usize,
    /// It loses its power so many times: after the first message since its start, then after two, and so on.
    /// Its emulator ends, and another one is started.
    pub power_cuts: u32,
    /// It resets itself so many times in the same manner, after the last power cut.
    pub resets: u32,
    /// What its flash holds before its first start; erased if this is not said.
    pub flash: Option<Vec<u8>>,
}

/// What a board said.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardReport {
    /// Its number.
    pub device: u64,
    /// The client whose samples it has, from 1.
    pub client: usize,
    /// Its line of JSON at the end.
    pub line: serde_json::Value,
    /// Its lines of JSON before, about its record: of all its starts, in order.
    pub told: Vec<serde_json::Value>,
    /// What it said on standard error.
    pub said: String,
}

/// Exit code of a board whose power has gone, as it was told.
const POWER_GONE: i32 = 3;

/// A board.
#[derive(Debug)]
pub(super) struct Life {
    pub core: Core,
    pub emulator: PathBuf,
    pub firmware: PathBuf,
    pub image: PathBuf,
    pub flash: PathBuf,
    pub provision: Option<PathBuf>,
    pub device: u64,
    pub client: usize,
    pub wire: Wire,
    pub fate: Fate,
}

impl Life {
    /// Starts it, as often as its fate wants, and waits for its report.
    pub async fn live(self) -> Result<BoardReport, EmulateError> {
        let (mut told, mut said) = (Vec::new(), String::new());
        let mut cut = 0;
        loop {
            cut += 1;
            let end_after = (cut <= self.fate.power_cuts).then_some(cut);
            let child = self.core.start(&Start {
                emulator: &self.emulator,
                firmware: &self.firmware,
                image: &self.image,
                flash: &self.flash,
                provision: self.provision.as_deref(),
                device: self.device,
                wire: &self.wire,
                resets: if end_after.is_some() { 0 } else { self.fate.resets },
                end_after,
            });
            let system = |error| EmulateError::System { what: format!("board {}", self.device), error };
            let output = child.map_err(system)?.wait_with_output().await.map_err(system)?;
            let text = String::from_utf8_lossy(&output.stdout);
            said.push_str(&String::from_utf8_lossy(&output.stderr));
            told.extend(text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()));
            if end_after.is_some() && output.status.code() == Some(POWER_GONE) {
                continue;
            }
            if output.status.success()
                && let Some(line) = told.pop_if(|line| line.get("core").is_some())
            {
                return Ok(BoardReport { device: self.device, client: self.client, line, told, said });
            }
            let said = said.lines().next_back().or(text.lines().next_back()).unwrap_or("nothing").to_owned();
            return Err(EmulateError::Board { device: self.device, code: output.status.to_string(), said });
        }
    }
}
