//! Memory that this process may still take, so that a run that cannot fit is refused before it begins.
//!
//! Linux says so in small text files, which are read here: the crates for this read the whole state of a system.

use std::fs::read_to_string;
use std::path::Path;

/// Returns the bytes that this process can still allocate: the least of the machine's available memory with its free swap,
/// the rest of the limits of its control group (version 2) and of the groups around it, and the rest of its limit on addresses.
/// `None` if the system does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let of_machine = read("/proc/meminfo").and_then(|text| of_machine(&text));
    let of_group = read("/proc/self/cgroup").and_then(|text| of_groups(Path::new("/sys/fs/cgroup"), &text));
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

/// Least rest of the limits of a control group, in the text of `/proc/self/cgroup`, and of the groups around it up to `root`;
/// `None` without a limit.
fn of_groups(root: &Path, text: &str) -> Option<u64> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let own = root.join(path);
    own.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(of_group).min()
}

/// Rest of the limit of a control group; `None` without a limit. Cached files count as used, but make room when memory is needed.
fn of_group(folder: &Path) -> Option<u64> {
    let read = |file: &str| read_to_string(folder.join(file)).ok();
    let parsed = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let (limit, used) = (parsed("memory.max")?, parsed("memory.current")?);
    let statistics = read("memory.stat").unwrap_or_default();
    let cached = ["active_file ", "inactive_file "].iter().filter_map(|name| number(&statistics, name));
    Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
}

/// Rest of the limit on addresses in the texts of `/proc/self/limits` and `/proc/self/status`; `None` without a limit.
fn of_process_of(limits: &str, status: &str) -> Option<u64> {
    Some(number(limits, "Max address space")?.saturating_sub(1024 * number(status, "VmSize:")?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{of_groups, of_machine, of_process_of, shown};

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

    /// Tests a group within groups, of which one other has no limit, and cached files.
    #[test]
    fn tightest_control_group_counts() {
        let root = std::env::temp_dir().join(format!("fedspan-groups-{}", std::process::id()));
        let write = |group: &str, file: &str, text: &str| {
            let folder = root.join(group);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(file), text).unwrap();
        };
        let of = |text: &str| of_groups(&root, text);
        assert_eq!(of("0::/a/b\n"), None);
        for (group, limit, used) in [("a/b", "max", "5"), ("a", "1000", "900"), ("", "5000", "4700")] {
            write(group, "memory.max", &format!("{limit}\n"));
            write(group, "memory.current", &format!("{used}\n"));
        }
        assert_eq!(of("3:cpu:/x\n0::/a/b\n"), Some(100));
        assert_eq!(of("0::/\n"), Some(300));
        assert_eq!(of("3:cpu:/a\n"), None);
        write("a", "memory.stat", "anon 50\nfile 800\ninactive_file 500\nactive_file 250\n");
        assert_eq!(of("0::/a/b\n"), Some(300));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn bytes_are_shown_with_units() {
        assert_eq!([999, 12_345_678, 34_000_000_001].map(shown), ["0 kB", "12 MB", "34 GB"]);
    }
}
