//! A base and clients that fit it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::agreement::ConfigSet;
use super::scaling::{ModuleScalings, shares};
use super::source::{InputFile, open_file_budget};
use super::{AdapterError, Fault, Layout, compare};

/// Most samples of one client: with more, products would not be exact.
pub const SAMPLES_MAX: u32 = (1 << 29) - 1;

/// Bytes that are read ahead of all clients together, unless they are very many.
const READ_AHEAD: usize = 1 << 22;

/// Bytes of one client at least: below, the system is asked too often.
const BLOCK_MIN: usize = 1 << 14;

/// Bytes of one client at most.
const BLOCK_MAX: usize = 1 << 18;

/// A client's part in a mean.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ClientWeight {
    /// The client's file.
    pub file: String,
    /// Samples that it was trained with, if they were given.
    pub samples: Option<u64>,
    /// Weight in the mean: all of them make 1.
    pub weight: f64,
}

/// What is averaged, or compared: opened, and found to fit.
#[derive(Debug)]
pub struct Inputs {
    pub(super) base: InputFile,
    pub(super) clients: Vec<InputFile>,
    pub(super) layout: Layout,
    /// The base's header, as it is in the file.
    pub(super) header: Vec<u8>,
    /// The base's configuration, as it is in the file.
    pub(super) config: Option<Vec<u8>>,
    /// Rank, experts and scale of every pair of the layout.
    pub(super) shares: ModuleScalings,
    /// Whether a configuration says them.
    pub(super) is_configured: bool,
    /// Why products of factors are not the update, if they are not.
    pub(super) other_product: Option<&'static str>,
    /// Differences that may be meant.
    warnings: Vec<String>,
    /// Samples of every client, if they were given.
    samples: Option<Vec<u64>>,
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
        let (weights, total) = weights(clients, samples)?;
        let (base, header) = InputFile::open(base, true)?;
        let layout = Layout::from_header(&header).map_err(in_file(&base.path))?;
        let mut configs = ConfigSet::default();
        let config = configs.check(&base.path, &layout)?;
        let mut seen = HashMap::from([(base.identity(), base.path.clone())]);
        let mut sources = Vec::with_capacity(clients.len());
        let keep = open_file_budget();
        for (index, path) in clients.iter().enumerate() {
            let (mut client, found) = InputFile::open(path, index < keep)?;
            if let Some(other) = seen.insert(client.identity(), client.path.clone()) {
                return Err(AdapterError::file(&client.path, Fault::DuplicateFile { other }));
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
        let shares = match configs.shares() {
            Some(shares) => shares,
            None => shares(None, &layout).map_err(in_file(&base.path))?,
        };
        Ok(Self {
            base,
            clients: sources,
            layout,
            header: header.bytes,
            config,
            shares,
            is_configured: configs.first().is_some(),
            other_product: configs.first().and_then(|config| config.other_product),
            warnings: configs.warnings(),
            samples: samples.map(<[u64]>::to_vec),
            weights,
            total,
        })
    }

    /// Differences between configurations that may be meant, and are worth a look: one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Every client's file, its samples if they were given, and its share of the mean.
    #[must_use]
    pub fn counted(&self) -> Vec<ClientWeight> {
        let of = |(index, (source, weight)): (usize, (&InputFile, &f64))| ClientWeight {
            file: source.path.display().to_string(),
            samples: self.samples.as_ref().and_then(|samples| samples.get(index).copied()),
            weight: weight / self.total,
        };
        self.clients.iter().zip(&self.weights).enumerate().map(of).collect()
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
    pub(super) fn ensure_unchanged(&self) -> Result<(), AdapterError> {
        self.base.ensure_unchanged()?;
        self.clients.iter().try_for_each(InputFile::ensure_unchanged)
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
fn weights(clients: &[PathBuf], samples: Option<&[u64]>) -> Result<(Vec<f64>, f64), AdapterError> {
    let samples = match samples {
        None => vec![1; clients.len()],
        Some(samples) if samples.len() != clients.len() => {
            return Err(AdapterError::Samples { given: samples.len(), clients: clients.len() });
        }
        Some(samples) => samples.to_vec(),
    };
    let over = |(_, count): &(&PathBuf, &u64)| **count > u64::from(SAMPLES_MAX);
    if let Some((file, found)) = clients.iter().zip(&samples).find(over) {
        return Err(AdapterError::TooManySamples { file: file.clone(), found: *found });
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
