//! All figures: what is measured, which rivals do the same work, and how much of it a turn contains.

use super::figures::updates::{self, CLASSES, LARGE, MEDIUM, SMALL};
use super::figures::{clients, fedpower, networks, start, updates_nalgebra};
use super::side::{Setting, Side};

/// Function that prepares a side.
pub type Start = fn(&Setting) -> Result<Side, String>;

/// A benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Name on the command line and in the history.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Number of threads of our side.
    pub threads: usize,
    /// Preparation of our side.
    pub start: Start,
    /// Other implementations of the same work. Without any, runs per second are recorded.
    pub rivals: &'static [Rival],
    /// Number of repeats in a turn, which takes a tenth of a second or more.
    pub repeats: u32,
    /// Largest difference of two check values, as a part of the larger one; `None` if the rival computes another value.
    pub tolerance: Option<f64>,
}

/// Another implementation of the same work.
#[derive(Clone, Copy, Debug)]
pub struct Rival {
    /// Name in the history.
    pub name: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// Program of the rival.
    pub program: Program,
}

/// Program of a rival.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// Script in `tests/benchmarks` and the form of the computation that it is asked for.
    Python(&'static str, &'static str),
    /// Side in this program.
    Rust(Start),
}

const fn python(name: &'static str, script: &'static str, form: &'static str) -> Rival {
    Rival { name, threads: 1, program: Program::Python(script, form) }
}

const EINSUM: Rival = python("numpy einsum", "updates.py", "einsum");
const BATCHED: Rival = python("numpy batched", "updates.py", "batched");
const CLIENTS_LAST: Rival = python("numpy clients last", "updates.py", "clients-last");

const fn nalgebra(start: Start) -> Rival {
    Rival { name: "nalgebra", threads: 1, program: Program::Rust(start) }
}

const TORCH: Rival = python("torch", "network_torch.py", "contiguous");
const TORCH_CHANNELS_LAST: Rival = python("torch channels last", "network_torch.py", "channels last");
const FEDPOWER: &[Rival] =
    &[python("numpy blocks", "fedpower.py", "blocks"), python("numpy Gram matrix", "fedpower.py", "gram")];

/// Tolerance of losses after the same steps in f32, with sums in another order.
const LOSS: Option<f64> = Some(1e-3);

const fn updates(name: &'static str, start: Start, rivals: &'static [Rival], repeats: u32) -> Figure {
    let about = "FedRep's updates on a linear model, through the protocol: 100 rounds of 500 clients";
    Figure { name, about, threads: 1, start, rivals, repeats, tolerance: LOSS }
}

const fn network(name: &'static str, start: Start, rivals: &'static [Rival], repeats: u32) -> Figure {
    let about = "a client's update of a network with our kernels: an epoch of 80 images in batches of 10";
    Figure { name, about, threads: 1, start, rivals, repeats, tolerance: LOSS }
}

/// All figures, in the order of a run.
pub const FIGURES: &[Figure] = &[
    updates(
        "updates-20-2-20",
        |setting| updates::start(&SMALL, setting),
        &[EINSUM, CLIENTS_LAST, nalgebra(|setting| updates_nalgebra::start(&SMALL, setting))],
        8,
    ),
    updates(
        "updates-64-4-32",
        |setting| updates::start(&MEDIUM, setting),
        &[EINSUM, BATCHED, nalgebra(|setting| updates_nalgebra::start(&MEDIUM, setting))],
        4,
    ),
    updates(
        "updates-128-8-32",
        |setting| updates::start(&LARGE, setting),
        &[EINSUM, BATCHED, nalgebra(|setting| updates_nalgebra::start(&LARGE, setting))],
        2,
    ),
    updates(
        "updates-57-8-35",
        |setting| updates::start(&CLASSES, setting),
        &[EINSUM, BATCHED, nalgebra(|setting| updates_nalgebra::start(&CLASSES, setting))],
        2,
    ),
    Figure {
        name: "threads",
        about: "FedRep's updates on a linear model of 64 features, on two threads and on one",
        threads: 2,
        start: |setting| updates::start(&MEDIUM, setting),
        rivals: &[Rival {
            name: "one thread",
            threads: 1,
            program: Program::Rust(|setting| updates::start(&MEDIUM, setting)),
        }],
        repeats: 4,
        // Results do not depend on the number of threads.
        tolerance: Some(0.0),
    },
    Figure {
        name: "fedpower-plain",
        about: "FedPower without noise, through the protocol: ten iterations of 20 clients",
        threads: 1,
        start: fedpower::plain,
        rivals: FEDPOWER,
        repeats: 1,
        tolerance: Some(3e-2),
    },
    Figure {
        name: "fedpower-noise",
        about: "FedPower with noise in integers, through the protocol; the rival adds no noise",
        threads: 1,
        start: fedpower::with_noise,
        rivals: FEDPOWER,
        repeats: 1,
        tolerance: None,
    },
    network("network-mlp", networks::mlp, &[python("numpy", "network_numpy.py", "one buffer"), TORCH], 200),
    network("network-lenet5", networks::lenet5, &[TORCH, TORCH_CHANNELS_LAST], 2),
    network("network-lstm", networks::lstm, &[TORCH], 5),
    #[cfg(feature = "encoder")]
    Figure {
        name: "encoder",
        about: "a step of an encoder with adapters in the sizes of MiniLM, 8 sentences of 64 tokens",
        threads: 1,
        start: super::figures::encoder::start,
        rivals: &[python("torch", "encoder.py", "adapters")],
        repeats: 1,
        tolerance: LOSS,
    },
    Figure {
        name: "start",
        about: "a simulation of 100 clients, from the text of its scenario to the first aggregated round",
        threads: 1,
        start: start::start,
        rivals: &[],
        repeats: 20,
        tolerance: None,
    },
    Figure {
        name: "clients-million",
        about: "a simulation of a million clients of which 0.1 % take part in a round, with its peak memory",
        threads: 1,
        start: clients::start,
        rivals: &[],
        repeats: 1,
        tolerance: None,
    },
];

/// Returns the figure with this name.
///
/// # Errors
/// A sentence with the allowed names.
pub fn find(name: &str) -> Result<&'static Figure, String> {
    FIGURES.iter().find(|figure| figure.name == name).ok_or_else(|| {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        format!("found figure {name:?}, allowed: {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::{FIGURES, Program, find};

    #[test]
    fn names_are_unique_and_scripts_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks");
        for (index, figure) in FIGURES.iter().enumerate() {
            assert!(FIGURES[..index].iter().all(|other| other.name != figure.name), "{}", figure.name);
            assert!(figure.repeats > 0 && figure.threads > 0);
            for (index, rival) in figure.rivals.iter().enumerate() {
                assert!(
                    figure.rivals[..index].iter().all(|other| other.name != rival.name),
                    "{}",
                    rival.name
                );
                if let Program::Python(script, _) = rival.program {
                    assert!(folder.join(script).exists(), "{script}");
                }
            }
        }
        assert!(
            find("updates").unwrap_err().starts_with("found figure \"updates\", allowed: updates-20-2-20, ")
        );
    }
}
