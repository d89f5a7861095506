//! Memory that this process may still take, so that a run that cannot fit is refused before it begins.
//!
//! Linux says so in three small text files, which are read here: the crates for this read the whole state of a system.

use std::fs::read_to_string;
use std::path::Path;

/// Returns the bytes that this process can still allocate: the least of the machine's available memory with its free swap,
/// the rest of its control group's limit, and the rest of its limit on addresses. `None` if the system does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let of_machine = read("/proc/meminfo").and_then(|text| of_machine(&text));
    let of_group = of_group(Path::new("/sys/fs/cgroup"));
    let of_process = read("/proc/self/limits").zip(read("/proc/self/status"));
    let of_process = of_process.and_then(|(limits, status)| of_process_of(&limits, &status));
    [of_machine, of_group, of_process].into_iter().flatten().min()
}

/// Checks that something of at least `least` bytes fits into memory.
///
/// # Errors
/// A one-line message that begins with `what` if less is available.
pub fn check_memory(what: &str, least: u64) -> Result<(), String> {
    match available_memory() {
        Some(available) if available < least => {
            Err(format!("{what} need at least {} of memory, available: {}", shown(least), shown(available)))
        }
        _ => Ok(()),
    }
}

/// Formats bytes with a decimal unit.
fn shown(bytes: u64) -> String {
    match bytes {
        0..10_000_000 => format!("{} kB", bytes / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

fn read(path: &str) -> Option<String> {
    read_to_string(path).ok()
}

/// Returns the number in the line that begins with `name`.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Available memory and free swap in the text of `/proc/meminfo`, which has units of 1024 bytes.
fn of_machine(text: &str) -> Option<u64> {
    let available = number(text, "MemAvailable:")?;
    Some(available.saturating_add(number(text, "SwapFree:").unwrap_or(0)).saturating_mul(1024))
}

/// Rest of the limit of a control group (version 2); `None` without a limit.
fn of_group(folder: &Path) -> Option<u64> {
    let number = |file: &str| read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

/// Rest of the limit on addresses in the texts of `/proc/self/limits` and `/proc/self/status`; `None` without a limit.
fn of_process_of(limits: &str, status: &str) -> Option<u64> {
    Some(number(limits, "Max address space")?.saturating_sub(1024 * number(status, "VmSize:")?))
}

#[cfg(test)]
mod tests {
    use super::{of_machine, of_process_of, shown};

    #[test]
    fn available_memory_is_read_from_the_systems_files() {
        let machine = "MemTotal: 16 kB\nMemFree: 1 kB\nMemAvailable:    12 kB\nSwapFree: 4 kB\n";
        assert_eq!(of_machine(machine), Some(16 * 1024));
        assert_eq!(of_machine("MemTotal: 16 kB"), None);
        let status = "Name:\tsim\nVmSize:\t     100 kB\n";
        let limits =
            |limit| format!("Limit Soft Limit Hard Limit Units\nMax address space {limit} {limit} bytes\n");
        assert_eq!(of_process_of(&limits("204800"), status), Some(102_400));
        assert_eq!(of_process_of(&limits("1024"), status), Some(0));
        assert_eq!(of_process_of(&limits("unlimited"), status), None);
    }

    #[test]
    fn bytes_are_shown_with_units() {
        assert_eq!([999, 12_345_678, 34_000_000_001].map(shown), ["0 kB", "12 MB", "34 GB"]);
    }
}
