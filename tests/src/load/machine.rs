//! Memory and processor time of processes, from Linux's `/proc`, and the speed of the disk.

use std::fs::File;
use std::io::{Error, Result, Write};
use std::path::Path;
use std::time::Instant;

use super::quantiles::Quantiles;

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident set size.
    pub resident: u64,
    /// Peak resident set size.
    pub peak: u64,
}

/// Reads the memory of a process.
///
/// # Errors
/// If `/proc` cannot be read or does not contain the values.
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

/// Number of 4 KiB pages to write. Each page is synced before the next one is written.
const PAGES: usize = 300;

/// Measures how long the disk of a directory takes to write and sync a page.
///
/// # Errors
/// The operating system's error.
pub fn fsync(directory: &Path) -> Result<Quantiles> {
    let path = directory.join("fsync");
    let mut file = File::create(&path)?;
    let mut times = Vec::new();
    for number in 0..PAGES {
        let page = [u8::try_from(number % 256).unwrap_or(0); 4096];
        let start = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(Quantiles::new(times))
}

/// Processor time in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Time used by the given processes.
    pub own: f64,
    /// Time used by all processes of the machine.
    pub all: f64,
    /// Total time of all processors, used or idle.
    pub total: f64,
    /// Time for which the threads of the given processes were ready to run but had no processor.
    pub waited: f64,
}

/// Returns the processor time of a process in user mode and in the kernel, in seconds.
///
/// # Errors
/// If `/proc` cannot be read or has another format.
pub fn processor_seconds(process: u32) -> Result<[f64; 2]> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the process, in parentheses, may contain spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let mut ticks = fields.skip(11).filter_map(|field| field.parse::<f64>().ok());
    match (ticks.next(), ticks.next()) {
        (Some(user), Some(system)) => Ok([user / TICKS, system / TICKS]),
        _ => Err(Error::other("/proc has an unknown format")),
    }
}

/// Unit of the times in `/proc`: ticks per second.
const TICKS: f64 = 100.0;

impl CpuTime {
    /// Reads the processor times up to the present.
    ///
    /// # Errors
    /// If `/proc` cannot be read or has another format.
    pub fn now(processes: &[u32]) -> Result<Self> {
        let unknown_format = || Error::other("/proc has an unknown format");
        let (mut used_seconds, mut waited_seconds) = (0.0, 0.0);
        for process in processes {
            for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
                // The fields are nanoseconds on a processor, then nanoseconds ready to run. A thread may have
                // ended meanwhile.
                let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
                let ready = text.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok());
                waited_seconds += ready.unwrap_or(0.0) / 1e9;
            }
            used_seconds += processor_seconds(*process)?.iter().sum::<f64>();
        }
        let text = std::fs::read_to_string("/proc/stat")?;
        let line =
            text.lines().next().and_then(|line| line.strip_prefix("cpu ")).ok_or_else(unknown_format)?;
        let times: Vec<f64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let idle: f64 = times.iter().skip(3).take(2).sum();
        let total: f64 = times.iter().take(8).sum();
        Ok(Self {
            own: used_seconds,
            all: (total - idle) / TICKS,
            total: total / TICKS,
            waited: waited_seconds,
        })
    }

    /// Returns the differences since `earlier`: the share of the machine that the processes used, the share
    /// that others used, and the seconds for which the threads of the processes waited for a processor.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> (f64, f64, f64) {
        let total = (self.total - earlier.total).max(1.0 / TICKS);
        let own = self.own - earlier.own;
        (own / total, (self.all - earlier.all - own).max(0.0) / total, self.waited - earlier.waited)
    }
}
