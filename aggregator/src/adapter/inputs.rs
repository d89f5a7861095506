//! A base and clients that fit it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::{self, Config};
use super::source::{Source, kept_open};
use super::{AdapterError, Fault, Layout, compare};

/// Most samples of one client: with more, products would not be exact.
pub const SAMPLES_MAX: u32 = (1 << 29) - 1;

/// Bytes that are read ahead of all clients together, unless they are very many.
const READ_AHEAD: usize = 1 << 22;

/// Bytes of one client at least: below, the system is asked too often.
const BLOCK_MIN: usize = 1 << 14;

/// Bytes of one client at most.
const BLOCK_MAX: usize = 1 << 18;

/// What is averaged, or compared: opened, and found to fit.
#[derive(Debug)]
pub struct Inputs {
    pub(super) base: Source,
    pub(super) clients: Vec<Source>,
    pub(super) layout: Layout,
    /// The base's header, as it is in the file.
    pub(super) header: Vec<u8>,
    /// The base's configuration, as it is in the file.
    pub(super) config: Option<Vec<u8>>,
    /// Integers without a common divisor.
    pub(super) weights: Vec<f64>,
    /// Their sum.
    pub(super) total: f64,
}

impl Inputs {
    /// Opens the files of a base and of clients: files, or directories in the layout of PEFT. `samples` are what each client
    /// counts for; without it all count the same.
    ///
    /// # Errors
    /// The first that is wrong or does not fit the base.
    pub fn open(base: &Path, clients: &[PathBuf], samples: Option<&[u64]>) -> Result<Self, AdapterError> {
        if clients.is_empty() {
            return Err(AdapterError::NoClients);
        }
        let (weights, total) = weights(clients.len(), samples)?;
        let (base, header) = Source::open(base, true)?;
        let layout = Layout::of(&header).map_err(in_file(&base.path))?;
        let mut configs = Configs::default();
        let config = configs.check(&base.path, &layout)?;
        let mut seen = HashMap::from([(base.identity(), base.path.clone())]);
        let mut sources = Vec::with_capacity(clients.len());
        let keep = kept_open();
        for (index, path) in clients.iter().enumerate() {
            let (mut client, found) = Source::open(path, index < keep)?;
            if let Some(other) = seen.insert(client.identity(), client.path.clone()) {
                return Err(AdapterError::file(&client.path, Fault::SameFile { other }));
            }
            let places = compare::places(&layout, &found, &base.path).map_err(in_file(&client.path))?;
            // Nearly always they are where the base has them.
            client.places = match places == *base.places {
                true => Arc::clone(&base.places),
                false => places.into(),
            };
            configs.check(&client.path, &layout)?;
            sources.push(client);
        }
        Ok(Self { base, clients: sources, layout, header: header.bytes, config, weights, total })
    }

    /// How many clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// What they are made of.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of a tensor that are read of every client at a time, on each of some threads; whole numbers.
    pub(super) fn block(&self, threads: usize) -> usize {
        let share = READ_AHEAD / (self.clients.len() * threads).max(1);
        let longest = usize::try_from(self.layout.longest()).unwrap_or(usize::MAX).max(8);
        share.clamp(BLOCK_MIN, BLOCK_MAX).min(longest).next_multiple_of(8)
    }

    /// Bytes of the base and all clients.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes().saturating_mul(self.clients.len() as u64 + 1)
    }

    /// Whether all inputs are still what they were.
    pub(super) fn unchanged(&self) -> Result<(), AdapterError> {
        self.base.unchanged()?;
        self.clients.iter().try_for_each(Source::unchanged)
    }

    /// Whether a file is one of the inputs.
    pub(super) fn include(&self, identity: (u64, u64)) -> bool {
        self.base.identity() == identity || self.clients.iter().any(|client| client.identity() == identity)
    }
}

fn in_file(path: &Path) -> impl Fn((Option<String>, Fault)) -> AdapterError {
    move |found| AdapterError::found(path, found)
}

/// Integers as f64, divided by their greatest common divisor: equal weights are all 1.
fn weights(clients: usize, samples: Option<&[u64]>) -> Result<(Vec<f64>, f64), AdapterError> {
    let samples = match samples {
        None => vec![1; clients],
        Some(samples) if samples.len() != clients => {
            return Err(AdapterError::Samples { given: samples.len(), clients });
        }
        Some(samples) => samples.to_vec(),
    };
    if let Some(&found) = samples.iter().find(|count| **count > u64::from(SAMPLES_MAX)) {
        return Err(AdapterError::TooManySamples { found });
    }
    let divisor = samples.iter().fold(0, |divisor, count| gcd(divisor, *count));
    if divisor == 0 {
        return Err(AdapterError::NoSamples);
    }
    let weights: Vec<f64> =
        samples.iter().map(|count| u32::try_from(count / divisor).map_or(f64::INFINITY, f64::from)).collect();
    let total = weights.iter().sum();
    Ok((weights, total))
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The configurations that were seen: the first is that of all.
#[derive(Default)]
pub(super) struct Configs {
    first: Option<(PathBuf, Config)>,
}

impl Configs {
    /// Looks at the configuration beside a file, if there is one, and returns its bytes.
    pub(super) fn check(&mut self, file: &Path, layout: &Layout) -> Result<Option<Vec<u8>>, AdapterError> {
        let Some((path, bytes, config)) = config::beside(file)? else { return Ok(None) };
        match &self.first {
            Some((first, other)) => {
                if let Some((field, found, expected)) = config.difference(other) {
                    let fault = Fault::OtherConfig { field, found, expected, first: first.clone() };
                    return Err(AdapterError::file(&path, fault));
                }
            }
            None => {
                let other = layout.pairs.iter().find(|pair| pair.rank != config.r);
                if let Some(pair) = other.filter(|_| config.has_one_rank()) {
                    let tensor = &layout.slots[pair.down].tensor.name;
                    let fault = Fault::RankOfConfig { found: pair.rank, expected: config.r };
                    return Err(AdapterError::tensor(file, tensor, fault));
                }
                self.first = Some((path, config));
            }
        }
        Ok(Some(bytes))
    }
}
