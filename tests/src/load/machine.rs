//! What Linux says of a process and of the machine.

use std::fs::File;
use std::io::{Error, Result, Write};
use std::path::Path;
use std::time::Instant;

use super::quantiles::Quantiles;

/// A process's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Bytes that are resident.
    pub resident: u64,
    /// The most that were.
    pub peak: u64,
}

/// Memory of a process.
///
/// # Errors
/// Where `/proc` does not say.
pub fn memory_of(process: u32) -> Result<Memory> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    match (bytes("VmRSS:"), bytes("VmHWM:")) {
        (Some(resident), Some(peak)) => Ok(Memory { resident, peak }),
        _ => Err(Error::other("no VmRSS in /proc")),
    }
}

/// Writes of a page of 4 KiB, each synced before the next.
const PAGES: usize = 300;

/// How long the disk of a directory takes to keep a page.
///
/// # Errors
/// What the system says.
pub fn fsync(directory: &Path) -> Result<Quantiles> {
    let path = directory.join("fsync");
    let mut file = File::create(&path)?;
    let mut times = Vec::new();
    for number in 0..PAGES {
        let page = [u8::try_from(number % 256).unwrap_or(0); 4096];
        let began = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(Quantiles::new(times))
}

/// Processor time in seconds: a process's, and that of everybody on the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// The processes' that were asked about.
    pub own: f64,
    /// Everybody's.
    pub all: f64,
    /// What there was, busy or idle.
    pub total: f64,
    /// How long the processes' threads were ready to run, and others ran.
    pub waited: f64,
}

/// Ticks in a second, as `/proc` counts them.
const TICKS: f64 = 100.0;

impl CpuTime {
    /// Until now.
    ///
    /// # Errors
    /// Where `/proc` does not say.
    pub fn now(processes: &[u32]) -> Result<Self> {
        let strange = || Error::other("/proc has another format");
        let (mut own, mut waited) = (0.0, 0.0);
        for process in processes {
            for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
                // Nanoseconds on a processor, nanoseconds ready; a thread may have ended meanwhile.
                let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
                let ready = text.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok());
                waited += ready.unwrap_or(0.0) / 1e9;
            }
            let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
            // The name, in parentheses, may last_delay spaces.
            let (_, fields) = text.rsplit_once(')').ok_or_else(strange)?;
            own +=
                fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>();
        }
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().and_then(|line| line.strip_prefix("cpu ")).ok_or_else(strange)?;
        let times: Vec<f64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let idle: f64 = times.iter().skip(3).take(2).sum();
        let total: f64 = times.iter().take(8).sum();
        Ok(Self { own: own / TICKS, all: (total - idle) / TICKS, total: total / TICKS, waited })
    }

    /// Shares of the machine since `earlier`: of the processes, and of others; and the seconds that the processes'
    /// threads have waited for a processor.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> (f64, f64, f64) {
        let total = (self.total - earlier.total).max(1.0 / TICKS);
        let own = self.own - earlier.own;
        (own / total, (self.all - earlier.all - own).max(0.0) / total, self.waited - earlier.waited)
    }
}
