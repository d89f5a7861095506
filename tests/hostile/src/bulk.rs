//! Bulk runner: feeds many inputs to the fuzz targets on several threads, and reports how many frames were
//! refused, the slowest input, and the memory in use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::{Random, TARGETS, Target, Work, mutate};

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of frames to refuse, summed over all targets and threads.
    pub refused: u64,
    /// Number of threads.
    pub threads: u64,
    /// Seed of the inputs.
    pub seed: u64,
}

/// Totals of one target.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Name of the target.
    pub target: &'static str,
    /// Number of inputs.
    pub inputs: u64,
    /// Sum of the work of all inputs.
    pub work: Work,
    /// Time of the slowest input: the best of several runs of this input.
    pub slowest: Duration,
    /// The slowest input.
    pub slowest_input: Vec<u8>,
    /// Largest number of steps of one input.
    pub most_steps: u64,
    /// Time spent, summed over all threads.
    pub spent: Duration,
}

/// An input that breaks an invariant.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Name of the target.
    pub target: &'static str,
    /// The input, shortened as far as possible.
    pub input: Vec<u8>,
}

/// Returns the share of the refused frames that a target gets, in thousandths. Flash images and files are not
/// frames; zero gives them a few inputs.
fn share_of(target: &str) -> u64 {
    match target {
        "frame" => 390,
        "packets" | "datagram_sessions" => 5,
        "accumulator" => 220,
        "to_server" | "to_device" => 150,
        "device_session" => 50,
        // Two ciphers run for each sealed frame.
        "sealed" => 20,
        "host_connection" => 10,
        _ => 0,
    }
}

/// Runs the plan on all targets, or only on the named one; returns the totals of each target.
///
/// # Errors
/// [`Broken`] with the first input that breaks an invariant.
pub fn run(plan: Plan, only: Option<&str>) -> Result<Vec<Totals>, Broken> {
    let targets = TARGETS.iter().filter(|target| only.is_none_or(|name| name == target.name));
    let mut totals = Vec::new();
    for target in targets {
        let wanted_refusals = match (only, share_of(target.name)) {
            (Some(_), _) => plan.refused,
            (None, 0) => plan.refused / 2_000,
            (None, share) => (plan.refused * share).div_ceil(1000),
        };
        let per_thread = wanted_refusals.div_ceil(plan.threads.max(1));
        let results: Vec<Result<Totals, Broken>> = std::thread::scope(|scope| {
            let start = |thread| {
                scope.spawn(move || run_until_refused(target, per_thread, plan.seed ^ (thread << 32)))
            };
            let threads: Vec<_> = (0..plan.threads.max(1)).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
        });
        let mut merged: Option<Totals> = None;
        for result in results {
            let sum = result?;
            merged = Some(match merged {
                Some(earlier) => earlier.merged_with(sum),
                None => sum,
            });
        }
        totals.extend(merged);
    }
    Ok(totals)
}

impl Totals {
    /// Adds the totals of another thread.
    fn merged_with(mut self, other: Self) -> Self {
        self.inputs += other.inputs;
        self.work.frames += other.work.frames;
        self.work.refused += other.work.refused;
        self.work.steps += other.work.steps;
        self.most_steps = self.most_steps.max(other.most_steps);
        self.spent += other.spent;
        if other.slowest > self.slowest {
            (self.slowest, self.slowest_input) = (other.slowest, other.slowest_input);
        }
        self
    }
}

/// Runs inputs until `refused` frames have been refused.
fn run_until_refused(target: &'static Target, refused: u64, seed: u64) -> Result<Totals, Broken> {
    let mut random = Random(seed);
    let seeds = (target.seeds)();
    let mut input = Vec::new();
    let mut sum = Totals {
        target: target.name,
        inputs: 0,
        work: Work::default(),
        slowest: Duration::ZERO,
        slowest_input: Vec::new(),
        most_steps: 0,
        spent: Duration::ZERO,
    };
    let started = Instant::now();
    while sum.work.refused < refused {
        mutate::next(&mut random, &seeds, &mut input);
        let start = Instant::now();
        let Ok(work) = catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) else {
            return Err(Broken { target: target.name, input: shortest(target, input) });
        };
        let took = start.elapsed();
        sum.inputs += 1;
        sum.work.frames += work.frames;
        sum.work.refused += work.refused;
        sum.work.steps += work.steps;
        sum.most_steps = sum.most_steps.max(work.steps);
        if took > sum.slowest {
            // The machine may have been busy, so an input counts as slow only if it is slow again.
            let repeated = (0..4).map(|_| measure_run(target, &input)).min();
            let took = repeated.map_or(took, |repeated| repeated.min(took));
            if took > sum.slowest {
                sum.slowest = took;
                sum.slowest_input.clone_from(&input);
            }
        }
    }
    sum.spent = started.elapsed();
    Ok(sum)
}

fn measure_run(target: &Target, input: &[u8]) -> Duration {
    let start = Instant::now();
    (target.run)(input);
    start.elapsed()
}

/// Shortens an input by removing pieces, as long as the input still breaks an invariant.
#[must_use]
pub fn shortest(target: &Target, input: Vec<u8>) -> Vec<u8> {
    mutate::shrink(input, |input| catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err())
}

/// Resident memory of this process in KiB; `None` if the system does not report it.
#[must_use]
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
