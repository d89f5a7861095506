//! Inputs of an average or a comparison: a base and the clients' files, validated against the base.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::Sha256;

use super::agreement::ConfigSet;
use super::limits::SAMPLES_MAX;
use super::scaling::{ModuleScalings, module_scalings};
use super::source::{InputFile, open_file_budget};
use super::{AdapterError, AdapterTensor, Fault, Layout, LocatedFault, MergeRule, RoundKind, compare};

/// Memory for one block of every client together, in bytes; more if [`BLOCK_MIN`] times the number of clients
/// is larger.
const READ_AHEAD: usize = 1 << 22;

/// Shortest block of one client, in bytes. Shorter blocks would cost too many system calls.
const BLOCK_MIN: usize = 1 << 14;

/// Longest block of one client, in bytes.
const BLOCK_MAX: usize = 1 << 18;

/// Weight of a client in the mean.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ClientWeight {
    /// Path of the client's file.
    pub file: String,
    /// Number of samples; `None` if not given.
    pub samples: Option<u64>,
    /// Share of the mean, between 0 and 1. All shares add up to 1.
    pub weight: f64,
}

/// Base and clients, opened and checked against each other.
#[derive(Debug)]
pub struct Inputs {
    /// Adapter from which the clients started.
    pub(super) base: InputFile,
    /// Adapters that the clients trained.
    pub(super) clients: Vec<InputFile>,
    /// Tensors and factor pairs of the base.
    pub(super) layout: Layout,
    /// Header of the base, byte for byte.
    pub(super) header: Vec<u8>,
    /// Configuration of the base, byte for byte.
    pub(super) config: Option<Vec<u8>>,
    /// Rank, experts and scale of every factor pair of the layout.
    pub(super) scalings: ModuleScalings,
    /// True if the scalings come from a configuration.
    pub(super) is_configured: bool,
    /// Reason why the update of a module is not the product of its factors; `None` if the update is that
    /// product.
    pub(super) other_product: Option<&'static str>,
    /// Differences between configurations that may be intended.
    warnings: Vec<String>,
    /// Number of samples of every client; `None` if not given.
    samples: Option<Vec<u64>>,
    /// Weights of the clients: integers without a common divisor.
    pub(super) weights: Vec<f64>,
    /// Sum of the weights.
    pub(super) total: f64,
}

impl Inputs {
    /// Opens a base and clients: safetensors files, or directories in PEFT's layout. `samples` are the
    /// weights of the clients; without them all weights are equal.
    ///
    /// # Errors
    /// [`AdapterError::NoClients`], [`AdapterError::Samples`], [`AdapterError::NoSamples`] or
    /// [`AdapterError::TooManySamples`] for the arguments; [`AdapterError::File`] for the first file that is
    /// invalid or does not fit the base.
    pub fn open(base: &Path, clients: &[PathBuf], samples: Option<&[u64]>) -> Result<Self, AdapterError> {
        Self::open_within(base, clients, samples, open_file_budget())
    }

    /// Opens files as [`Self::open`] does, of which those of at most `open_files` clients stay open. [`Self::open`] takes
    /// half of the descriptors that the process may have, which a server also needs for its connections.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub fn open_within(
        base: &Path,
        clients: &[PathBuf],
        samples: Option<&[u64]>,
        open_files: usize,
    ) -> Result<Self, AdapterError> {
        if clients.is_empty() {
            return Err(AdapterError::NoClients);
        }
        let (weights, total) = compute_weights(clients, samples)?;
        let (base, header) = InputFile::open(base, true)?;
        let layout = Layout::from_header(&header).map_err(fault_in_file(&base.path))?;
        let mut configs = ConfigSet::default();
        let config = configs.check(&base.path, &layout)?;
        let mut seen = HashMap::from([(base.identity(), base.path.clone())]);
        let mut sources = Vec::with_capacity(clients.len());
        for (index, path) in clients.iter().enumerate() {
            let (mut client, client_header) = InputFile::open(path, index < open_files)?;
            if let Some(earlier) = seen.insert(client.identity(), client.path.clone()) {
                return Err(AdapterError::file(&client.path, Fault::DuplicateFile { other: earlier }));
            }
            let offsets =
                compare::offsets(&layout, &client_header, &base.path).map_err(fault_in_file(&client.path))?;
            // Most clients' files have the same offsets as the base, and then share one list.
            client.offsets = match offsets == *base.offsets {
                true => Arc::clone(&base.offsets),
                false => offsets.into(),
            };
            configs.check(&client.path, &layout)?;
            sources.push(client);
        }
        let scalings = match configs.scalings() {
            Some(scalings) => scalings,
            None => module_scalings(None, &layout).map_err(fault_in_file(&base.path))?,
        };
        Ok(Self {
            base,
            clients: sources,
            layout,
            header: header.bytes,
            config,
            scalings,
            is_configured: configs.first_config().is_some(),
            other_product: configs.first_config().and_then(|config| config.other_product),
            warnings: configs.warnings(),
            samples: samples.map(<[u64]>::to_vec),
            weights,
            total,
        })
    }

    /// Differences between configurations that may be intended, one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// File, samples and share of the mean of every client.
    #[must_use]
    pub fn client_weights(&self) -> Vec<ClientWeight> {
        let weight_of = |(index, (source, weight)): (usize, (&InputFile, &f64))| ClientWeight {
            file: source.path.display().to_string(),
            samples: self.samples.as_ref().and_then(|samples| samples.get(index).copied()),
            weight: weight / self.total,
        };
        self.clients.iter().zip(&self.weights).enumerate().map(weight_of).collect()
    }

    /// Number of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Tensors of the base.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Length of a block of one client in bytes, for this number of threads. A multiple of 8, so that numbers
    /// are not split.
    pub(super) fn block_len(&self, threads: usize) -> usize {
        let share = READ_AHEAD / (self.clients.len() * threads).max(1);
        let longest = usize::try_from(self.layout.longest_tensor()).unwrap_or(usize::MAX).max(8);
        share.clamp(BLOCK_MIN, BLOCK_MAX).min(longest).next_multiple_of(8)
    }

    /// Bytes of the tensors of the base and all clients.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes().saturating_mul(self.clients.len() as u64 + 1)
    }

    /// Reads every file once, and returns the state of SHA-256 after the base and after each client. The next
    /// average of this kind with this number of threads fails unless it reads the bytes that were hashed.
    ///
    /// # Errors
    /// [`AdapterError::File`] if a file cannot be read or has changed.
    pub fn hash(&mut self, kind: RoundKind, threads: usize) -> Result<(Sha256, Vec<Sha256>), AdapterError> {
        let block_len = self.block_len(threads);
        let Self { base, clients, layout, weights, .. } = self;
        let of_base = hash_file(base, layout, block_len, |entry| kind.freezes(entry.role))?;
        let of_clients = clients.iter_mut().zip(&*weights).map(|(client, weight)| {
            // Clients without a weight are not read for dtypes that have no mean: see `average`.
            hash_file(client, layout, block_len, |entry| {
                kind.freezes(entry.role) || entry.tensor.dtype.rule() == MergeRule::Mean || *weight > 0.0
            })
        });
        Ok((of_base, of_clients.collect::<Result<_, _>>()?))
    }

    /// Checks that the average has read the bytes that [`Self::hash`] has hashed, if it was called.
    pub(super) fn ensure_as_hashed(&self) -> Result<(), AdapterError> {
        self.base.ensure_as_hashed()?;
        self.clients.iter().try_for_each(InputFile::ensure_as_hashed)
    }

    /// Checks that no input has changed since it was opened.
    pub(super) fn ensure_unchanged(&self) -> Result<(), AdapterError> {
        self.base.ensure_unchanged()?;
        self.clients.iter().try_for_each(InputFile::ensure_unchanged)
    }

    /// True if a file, given by device and inode, is one of the inputs.
    pub(super) fn contains(&self, identity: (u64, u64)) -> bool {
        self.base.identity() == identity || self.clients.iter().any(|client| client.identity() == identity)
    }
}

/// Offset in a tensor and length of every block of a tensor.
pub(super) fn tensor_blocks(bytes: u64, block_len: usize) -> impl Iterator<Item = (u64, usize)> {
    let length = move |begin| usize::try_from(bytes - begin).map_or(block_len, |left| left.min(block_len));
    (0..bytes).step_by(block_len.max(1)).map(move |begin| (begin, length(begin)))
}

/// Hashes a file in the order of its bytes, in the blocks of an average.
fn hash_file(
    file: &mut InputFile,
    layout: &Layout,
    block_len: usize,
    is_read_again: impl Fn(&AdapterTensor) -> bool,
) -> Result<Sha256, AdapterError> {
    let offsets = Arc::clone(&file.offsets);
    let mut order: Vec<(u64, &AdapterTensor)> = offsets.iter().copied().zip(&layout.tensors).collect();
    order.sort_by_key(|(offset, entry)| (*offset, entry.tensor.bytes()));
    file.hash(order.into_iter().flat_map(|(offset, entry)| {
        let is_read_again = is_read_again(entry);
        tensor_blocks(entry.tensor.bytes(), block_len)
            .map(move |(begin, length)| (offset + begin, length, is_read_again))
    }))
}

/// Returns a function that adds the path to a fault.
fn fault_in_file(path: &Path) -> impl Fn(LocatedFault) -> AdapterError {
    move |fault| AdapterError::located(path, fault)
}

/// Weights of the clients and their sum. Weights are integers in f64, divided by their greatest common
/// divisor, so that equal weights are all 1.
fn compute_weights(clients: &[PathBuf], samples: Option<&[u64]>) -> Result<(Vec<f64>, f64), AdapterError> {
    let samples = match samples {
        None => vec![1; clients.len()],
        Some(samples) if samples.len() != clients.len() => {
            return Err(AdapterError::Samples { given: samples.len(), clients: clients.len() });
        }
        Some(samples) => samples.to_vec(),
    };
    let too_many = |(_, count): &(&PathBuf, &u64)| **count > u64::from(SAMPLES_MAX);
    if let Some((file, count)) = clients.iter().zip(&samples).find(too_many) {
        return Err(AdapterError::TooManySamples { file: file.clone(), found: *count });
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

/// Greatest common divisor.
fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
