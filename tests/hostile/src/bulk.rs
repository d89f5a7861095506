//! Many inputs in a row, on several threads, with figures: how many frames were refused, the slowest input,
//! how much memory was held before and after.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::{Random, TARGETS, Target, Work, mutate};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Refused frames, over all targets and threads.
    pub refused: u64,
    /// Threads.
    pub threads: u64,
    /// Other inputs for another number.
    pub seed: u64,
}

/// What one target has done.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Of which target.
    pub target: &'static str,
    /// Inputs run.
    pub inputs: u64,
    /// The sum of their work.
    pub work: Work,
    /// The time that the slowest input took, the best of several runs of it.
    pub slowest: Duration,
    /// That input.
    pub slowest_input: Vec<u8>,
    /// Most steps of an input.
    pub most_steps: u64,
    /// Time that was spent on it, over all threads.
    pub spent: Duration,
}

/// A law was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    /// By which target.
    pub target: &'static str,
    /// The input, made as short as it goes.
    pub input: Vec<u8>,
}

/// Shares of the targets in a thousand refused frames; images and files are no frames, and few will do.
fn share(target: &str) -> u64 {
    match target {
        "frame" => 400,
        "accumulator" => 220,
        "to_server" | "to_device" => 150,
        "device_session" => 50,
        // Here each takes two ciphers.
        "sealed" => 20,
        "host_connection" => 10,
        _ => 0,
    }
}

/// Runs the plan. The figures of each target, or the first input that breaks a law.
///
/// # Errors
/// [`Broken`], with the input.
pub fn run(plan: Plan, only: Option<&str>) -> Result<Vec<Tally>, Broken> {
    let targets = TARGETS.iter().filter(|target| only.is_none_or(|name| name == target.name));
    let mut tallies = Vec::new();
    for target in targets {
        let wanted = match (only, share(target.name)) {
            (Some(_), _) => plan.refused,
            (None, 0) => plan.refused / 2_000,
            (None, share) => (plan.refused * share).div_ceil(1000),
        };
        let part = wanted.div_ceil(plan.threads.max(1));
        let results: Vec<Result<Tally, Broken>> = std::thread::scope(|scope| {
            let start = |thread| scope.spawn(move || refuse(target, part, plan.seed ^ (thread << 32)));
            let threads: Vec<_> = (0..plan.threads.max(1)).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
        });
        let mut all: Option<Tally> = None;
        for result in results {
            let tally = result?;
            all = Some(match all {
                Some(sum) => sum.and(tally),
                None => tally,
            });
        }
        tallies.extend(all);
    }
    Ok(tallies)
}

impl Tally {
    fn and(mut self, other: Self) -> Self {
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

/// Runs inputs until so many frames were refused.
fn refuse(target: &'static Target, refused: u64, seed: u64) -> Result<Tally, Broken> {
    let (mut random, seeds, mut input) = (Random(seed), (target.seeds)(), Vec::new());
    let mut tally = Tally {
        target: target.name,
        inputs: 0,
        work: Work::default(),
        slowest: Duration::ZERO,
        slowest_input: Vec::new(),
        most_steps: 0,
        spent: Duration::ZERO,
    };
    let started = Instant::now();
    while tally.work.refused < refused {
        mutate::next(&mut random, &seeds, &mut input);
        let start = Instant::now();
        let Ok(work) = catch_unwind(AssertUnwindSafe(|| (target.body)(&input))) else {
            return Err(Broken { target: target.name, input: shortest(target, input) });
        };
        let took = start.elapsed();
        tally.inputs += 1;
        tally.work.frames += work.frames;
        tally.work.refused += work.refused;
        tally.work.steps += work.steps;
        tally.most_steps = tally.most_steps.max(work.steps);
        if took > tally.slowest {
            // The machine may have been busy with something else: what is slow is slow again.
            let again = (0..4).map(|_| time(target, &input)).min();
            let took = again.map_or(took, |again| again.min(took));
            if took > tally.slowest {
                tally.slowest = took;
                tally.slowest_input.clone_from(&input);
            }
        }
    }
    tally.spent = started.elapsed();
    Ok(tally)
}

fn time(target: &Target, input: &[u8]) -> Duration {
    let start = Instant::now();
    (target.body)(input);
    start.elapsed()
}

/// The shortest input that still breaks a law, as far as leaving out goes.
#[must_use]
pub fn shortest(target: &Target, input: Vec<u8>) -> Vec<u8> {
    mutate::shrink(input, |input| catch_unwind(AssertUnwindSafe(|| (target.body)(input))).is_err())
}

/// Kilobytes of memory that this process holds; `None` where the system does not say.
#[must_use]
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
