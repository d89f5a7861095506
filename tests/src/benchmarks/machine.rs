//! Limits of the machine that measures, and the name of its processor.

use std::collections::BTreeMap;

use super::bandwidth::bandwidth;
use super::peak::peak;
use super::side::Cost;

/// Measured limits of one core. Each is measured once, when it is first needed.
#[derive(Debug, Default)]
pub struct Machine {
    peaks: Option<(f64, f64)>,
    bandwidths: BTreeMap<u64, f64>,
}

/// Shortest possible duration of a repeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Duration in seconds.
    pub seconds: f64,
    /// Cause of the duration, with its measured rate.
    pub cause: String,
}

impl Machine {
    /// Returns the operations per second of one core, without and with fused multiply-add.
    pub fn peaks(&mut self) -> (f64, f64) {
        *self.peaks.get_or_insert_with(|| (peak(false), peak(true)))
    }

    /// Returns the bytes per second that one core reads from an array of so many bytes.
    fn bandwidth(&mut self, bytes: f64) -> f64 {
        *self.bandwidths.entry(bytes as u64).or_insert_with(|| bandwidth(bytes))
    }

    /// Returns the limit of work at this cost on so many cores: the longest one of its arithmetic at the peak with fused
    /// multiply-add, of its reads, and of its target. Cores are assumed not to slow each other down. `None` if the work has
    /// none of them.
    pub fn limit(&mut self, cost: &Cost, threads: usize) -> Option<Limit> {
        let cores = threads as f64;
        let arithmetic = (cost.operations > 0.0).then(|| {
            let (_, peak) = self.peaks();
            let cause = format!("arithmetic at {:.0} GFLOP/s", cores * peak / 1e9);
            Limit { seconds: cost.operations / (cores * peak), cause }
        });
        let memory = (cost.bytes > 0.0).then(|| {
            let rate = self.bandwidth(cost.resident);
            let cause = format!(
                "reading at {:.0} GB/s, as from an array of {:.1} MB",
                cores * rate / 1e9,
                cost.resident / 1e6
            );
            Limit { seconds: cost.bytes / (cores * rate), cause }
        });
        let target = (cost.target > 0.0).then(|| Limit {
            seconds: cost.target,
            cause: format!("the target of {:.0} ms, which is met from 100 % on", 1e3 * cost.target),
        });
        [arithmetic, memory, target].into_iter().flatten().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// Returns the model of the processor; `unknown` if the system has no `/proc/cpuinfo` that names it.
#[must_use]
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    processor_in(&text)
}

/// Finds the model in the text of `/proc/cpuinfo`. Virtual machines shorten its name, so the numbers of family and
/// model are added.
fn processor_in(text: &str) -> String {
    let value = |key: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    match (value("model name"), value("cpu family"), value("model")) {
        (Some(name), Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        (Some(name), ..) => name.to_owned(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Limit, Machine, processor_in};
    use crate::benchmarks::side::Cost;

    #[test]
    fn processor_is_named_or_unknown() {
        let text =
            "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n";
        assert_eq!(processor_in(text), "AMD EPYC (family 26, model 2)");
        assert_eq!(processor_in("model name : A53\n"), "A53");
        assert_eq!(processor_in("CPU part : 0xd08\n"), "unknown");
    }

    #[test]
    fn slower_part_is_the_limit() {
        let mut machine = Machine { peaks: Some((1e9, 2e9)), bandwidths: [(100, 1e9)].into() };
        let cost = |operations, bytes| Cost { operations, bytes, resident: 100.0, ..Cost::default() };
        let mut seconds = |operations, bytes, threads| {
            machine.limit(&cost(operations, bytes), threads).map(|limit: Limit| limit.seconds)
        };
        assert_eq!(seconds(4e9, 1e9, 1), Some(2.0));
        assert_eq!(seconds(4e9, 3e9, 1), Some(3.0));
        assert_eq!(seconds(4e9, 3e9, 2), Some(1.5));
        assert_eq!(seconds(0.0, 3e9, 1), Some(3.0));
        assert_eq!(seconds(0.0, 0.0, 1), None);
    }
}
