//! Averaging of clients' adapters: computes the mean block by block, with several threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::dtype::{differing, not_finite};
use super::exact_sum::{MeanBuffers, weighted_mean};
use super::extract::values_differ;
use super::output::OutputWriter;
use super::source::InputFile;
use super::{
    AdapterError, AdapterTensor, ClientWeight, Fault, Inputs, MergeRule, Output, ProgressFn, RoundKind,
};

/// Arguments of [`average`].
#[derive(Clone, Debug)]
pub struct AverageJob {
    /// Factors that the clients trained.
    pub kind: RoundKind,
    /// Path of the output.
    pub output: Output,
    /// Number of threads. The result does not depend on the number.
    pub threads: usize,
}

/// Result of [`average`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AverageReport {
    /// Clients in the order of the inputs, with their weights.
    pub clients: Vec<ClientWeight>,
    /// Number of tensors that were averaged.
    pub averaged: usize,
    /// Number of tensors that were copied: frozen factors, and integers and booleans that are equal in all
    /// clients.
    pub kept: usize,
    /// Names of integer tensors in which clients differ. The output has the largest value of each element.
    pub largest: Vec<String>,
    /// Length of the output file, in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes that were to be written to the output file, in hexadecimal digits.
    pub sha256: String,
    /// SHA-256 of the bytes that were to be written to the copy of the configuration, in hexadecimal digits; `None` if
    /// none was written.
    pub config_sha256: Option<String>,
}

/// Averages the factors that the round trained and the saved modules. Frozen factors must equal those of the
/// base. The header of the output equals that of the base, byte for byte. Every element of the mean lies
/// between the smallest and the largest value of the clients. Integers become the largest value; booleans and
/// other dtypes must be equal in all clients with a weight.
///
/// # Errors
/// [`AdapterError::File`] for an invalid value or a changed input: the first one in the order of the base's
/// tensors and then of the clients, for any number of threads. [`AdapterError::Interrupted`] if `progress`
/// returns false. [`AdapterError::Output`] if the output cannot be written. In these cases no output was
/// written. [`AdapterError::NotDurable`] if the output was written but could not be synced.
pub fn average(
    inputs: &Inputs,
    job: AverageJob,
    progress: &ProgressFn<'_>,
) -> Result<AverageReport, AdapterError> {
    let AverageJob { kind, output, threads } = job;
    let threads = threads.max(1);
    let writer = output.begin(inputs)?;
    let config_sha256 = writer.config_hash().map(finish_hex);
    writer.write(&inputs.header, 0)?;
    let average_work = Work::new(inputs, kind, &writer, inputs.block_len(threads), progress);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| average_work.run());
        }
        average_work.run();
    });
    let (differing, hash) = average_work.finish()?;
    inputs.ensure_unchanged()?;
    inputs.ensure_as_hashed()?;
    writer.commit()?;
    let tensors = &inputs.layout.tensors;
    let is_averaged =
        |entry: &&AdapterTensor| !kind.freezes(entry.role) && entry.tensor.dtype.rule() == MergeRule::Mean;
    let averaged = tensors.iter().filter(is_averaged).count();
    let largest: Vec<String> =
        differing.into_iter().map(|tensor_index| tensors[tensor_index].tensor.name.clone()).collect();
    Ok(AverageReport {
        clients: inputs.client_weights(),
        averaged,
        kept: tensors.len() - averaged - largest.len(),
        largest,
        bytes: inputs.header.len() as u64 + inputs.layout.bytes(),
        sha256: finish_hex(hash),
        config_sha256,
    })
}

/// Digest of a state of SHA-256, in hexadecimal digits.
fn finish_hex(hash: Sha256) -> String {
    let mut text = String::new();
    fedspan_files::hex::encode(&hash.finalize().into(), &mut text);
    text
}

/// Hash of the output in the order of the file, although threads compute its blocks in another order: a thread waits
/// for its turn, with one block in memory.
struct OrderedHash {
    /// Number of the next block, and the state of SHA-256 before it.
    next: Mutex<(usize, Sha256)>,
    turn: Condvar,
}

impl OrderedHash {
    fn new(header: &[u8]) -> Self {
        Self { next: Mutex::new((0, Sha256::new_with_prefix(header))), turn: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Sha256)> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a block after all blocks before it; does nothing once `stop` is true.
    fn add(&self, number: usize, bytes: &[u8], stop: &AtomicBool) {
        let mut next = self.lock();
        while next.0 != number {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            next = self.turn.wait(next).unwrap_or_else(PoisonError::into_inner);
        }
        next.1.update(bytes);
        next.0 += 1;
        drop(next);
        self.turn.notify_all();
    }

    /// Wakes the threads that wait, after `stop` has become true.
    fn stop(&self) {
        // A thread that has seen `stop` as false waits, once this lock is free.
        drop(self.lock());
        self.turn.notify_all();
    }
}

/// Block of a tensor: index of the tensor, offset in the tensor, length in bytes.
type Block = (usize, u64, usize);

/// State shared by the threads. Each thread processes the next unprocessed block. When a thread fails, other
/// threads have already begun all earlier blocks and will finish them, so the failure with the smallest block
/// number is recorded.
struct Work<'a> {
    inputs: &'a Inputs,
    kind: RoundKind,
    writer: &'a OutputWriter,
    progress: &'a ProgressFn<'a>,
    /// Length of a block of one client, in bytes.
    block_len: usize,
    /// Total number of bytes to read.
    bytes: u64,
    /// Number of the first block of each tensor, followed by the total number of blocks.
    first_blocks: Vec<usize>,
    next_block: AtomicUsize,
    bytes_read: AtomicU64,
    stop: AtomicBool,
    /// Failure with the smallest block number so far.
    failure: Mutex<Option<(usize, AdapterError)>>,
    /// Indices of integer tensors in which clients differ.
    differing_integers: Mutex<BTreeSet<usize>>,
    hash: OrderedHash,
}

/// Ends the work when it is dropped by a panic.
struct StopOnPanic<'a>(&'a Work<'a>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// Buffers of one thread.
struct Buffers {
    clients: Vec<Vec<u8>>,
    means: Vec<f64>,
    /// Block that was written.
    output: Vec<u8>,
    exact: MeanBuffers,
}

impl<'a> Work<'a> {
    fn new(
        inputs: &'a Inputs,
        kind: RoundKind,
        writer: &'a OutputWriter,
        block_len: usize,
        progress: &'a ProgressFn<'a>,
    ) -> Self {
        let mut first_blocks = vec![0];
        let mut bytes = 0_u64;
        for entry in &inputs.layout.tensors {
            let readers = inputs.clients() + usize::from(kind.freezes(entry.role));
            bytes = bytes.saturating_add(entry.tensor.bytes().saturating_mul(readers as u64));
            let blocks = entry.tensor.bytes().div_ceil(block_len as u64);
            first_blocks.push(
                first_blocks.last().copied().unwrap_or(0) + usize::try_from(blocks).unwrap_or(usize::MAX / 4),
            );
        }
        Self {
            inputs,
            kind,
            writer,
            progress,
            block_len,
            bytes,
            first_blocks,
            next_block: AtomicUsize::new(0),
            bytes_read: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            differing_integers: Mutex::default(),
            hash: OrderedHash::new(&inputs.header),
        }
    }

    /// Block with this number; `None` after the last block.
    fn block_at(&self, number: usize) -> Option<Block> {
        let tensor_index = self.first_blocks.partition_point(|first| *first <= number).checked_sub(1)?;
        let bytes = self.inputs.layout.tensors.get(tensor_index)?.tensor.bytes();
        let begin = (number - self.first_blocks[tensor_index]) as u64 * self.block_len as u64;
        let length = bytes.checked_sub(begin).filter(|length| *length > 0)?;
        Some((
            tensor_index,
            begin,
            usize::try_from(length).map_or(self.block_len, |length| length.min(self.block_len)),
        ))
    }

    /// Ends the work of all threads.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.hash.stop();
    }

    /// Processes blocks until all are processed or a thread fails.
    fn run(&self) {
        // Other threads wait for the block of this one, and would wait for ever after a panic of `progress`.
        let _guard = StopOnPanic(self);
        let count = self.inputs.clients();
        let mut buffers = Buffers {
            clients: vec![Vec::new(); count],
            means: Vec::new(),
            output: Vec::new(),
            exact: MeanBuffers::default(),
        };
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next_block.fetch_add(1, Ordering::Relaxed);
            let Some(block) = self.block_at(number) else { break };
            let is_frozen = self.kind.freezes(self.inputs.layout.tensors[block.0].role);
            let result = match self.inputs.layout.tensors[block.0].tensor.dtype.rule() {
                _ if is_frozen => self.copy_frozen(block, &mut buffers),
                MergeRule::Mean => self.write_mean(block, &mut buffers),
                MergeRule::Largest => self.write_largest(block, &mut buffers),
                MergeRule::Equal => self.write_common(block, &mut buffers),
            };
            let length = block.2 as u64 * (count + usize::from(is_frozen)) as u64;
            let read = self.bytes_read.fetch_add(length, Ordering::Relaxed) + length;
            let result = result.and_then(|()| match (self.progress)(read, self.bytes) {
                true => Ok(()),
                false => Err(AdapterError::Interrupted),
            });
            match result {
                Ok(()) => self.hash.add(number, &buffers.output, &self.stop),
                Err(error) => {
                    self.stop();
                    let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    if failure.as_ref().is_none_or(|(earlier, _)| number < *earlier) {
                        *failure = Some((number, error));
                    }
                }
            }
        }
    }

    /// Indices of integer tensors in which clients differ, and the state of SHA-256 after the output.
    ///
    /// # Errors
    /// The failure with the smallest block number.
    fn finish(self) -> Result<(BTreeSet<usize>, Sha256), AdapterError> {
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        let differing = self.differing_integers.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (_, hash) = self.hash.next.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok((differing, hash)), |(_, error)| Err(error))
    }

    /// Writes a block of a frozen factor, which must be equal in the base and all clients.
    fn copy_frozen(
        &self,
        (tensor_index, begin, length): Block,
        buffers: &mut Buffers,
    ) -> Result<(), AdapterError> {
        let Inputs { base, clients, layout, .. } = self.inputs;
        let AdapterTensor { tensor, role } = &layout.tensors[tensor_index];
        let Buffers { clients: client_buffers, output: original, means, .. } = buffers;
        let offset = |file: &InputFile| file.offsets[tensor_index] + begin;
        let size = tensor.dtype.size();
        original.resize(length, 0);
        base.read(original, offset(base))?;
        // The base is checked first, so that a value that is not finite is reported for the base and not for
        // a client with the same factor.
        if let Some((index, value)) = not_finite(tensor.dtype, original) {
            let fault = Fault::NotFinite { index: begin / size as u64 + index as u64, value };
            return Err(AdapterError::tensor(&base.path, &tensor.name, fault));
        }
        let buffer = &mut client_buffers[0];
        buffer.resize(length, 0);
        for client in clients {
            client.read(buffer, offset(client))?;
            if let Some(index) = differing(tensor.dtype, buffer, original) {
                let index = begin / size as u64 + index as u64;
                let fault = Fault::FrozenFactorChanged { role: *role, index, base: base.path.clone() };
                return Err(AdapterError::tensor(&client.path, &tensor.name, fault));
            }
        }
        means.clear();
        self.writer.write(original, offset(base))
    }

    /// Writes the weighted mean of a block.
    fn write_mean(
        &self,
        (tensor_index, begin, length): Block,
        buffers: &mut Buffers,
    ) -> Result<(), AdapterError> {
        let Inputs { base, clients, layout, weights, total, .. } = self.inputs;
        let AdapterTensor { tensor, .. } = &layout.tensors[tensor_index];
        let Buffers { clients: client_buffers, means, output, exact } = buffers;
        let dtype = tensor.dtype;
        for (client, buffer) in clients.iter().zip(client_buffers.iter_mut()) {
            buffer.resize(length, 0);
            client.read(buffer, client.offsets[tensor_index] + begin)?;
        }
        let blocks: Vec<(f64, &[u8])> =
            weights.iter().copied().zip(client_buffers.iter().map(Vec::as_slice)).collect();
        means.resize(length / dtype.size(), 0.0);
        weighted_mean(&blocks, dtype, *total, means, exact).map_err(|(client, element)| {
            let value = dtype.number(&client_buffers[client][element * dtype.size()..]);
            let index = begin / dtype.size() as u64 + element as u64;
            AdapterError::tensor(&clients[client].path, &tensor.name, Fault::NotFinite { index, value })
        })?;
        output.clear();
        dtype.encode(means, output);
        self.writer.write(output, base.offsets[tensor_index] + begin)
    }

    /// Clients whose weight is not 0.
    fn weighted_clients(&self) -> impl Iterator<Item = &'a InputFile> {
        let Inputs { clients, weights, .. } = self.inputs;
        clients.iter().zip(weights).filter(|(_, weight)| **weight > 0.0).map(|(client, _)| client)
    }

    /// Writes the largest value of every element of an integer block.
    fn write_largest(
        &self,
        (tensor_index, begin, length): Block,
        buffers: &mut Buffers,
    ) -> Result<(), AdapterError> {
        let AdapterTensor { tensor, .. } = &self.inputs.layout.tensors[tensor_index];
        let Buffers { clients: client_buffers, output, .. } = buffers;
        let (dtype, buffer) = (tensor.dtype, &mut client_buffers[0]);
        let mut differs = false;
        for (number, client) in self.weighted_clients().enumerate() {
            buffer.resize(length, 0);
            client.read(buffer, client.offsets[tensor_index] + begin)?;
            if number == 0 {
                output.clone_from(buffer);
                continue;
            }
            differs |= buffer != output;
            let pairs = output.chunks_mut(dtype.size()).zip(buffer.chunks(dtype.size()));
            for (largest, value) in
                pairs.filter(|(largest, value)| dtype.integer(value) > dtype.integer(largest))
            {
                largest.copy_from_slice(value);
            }
        }
        if differs {
            self.differing_integers.lock().unwrap_or_else(PoisonError::into_inner).insert(tensor_index);
        }
        self.writer.write(output, self.inputs.base.offsets[tensor_index] + begin)
    }

    /// Writes a block that must be equal in all clients whose weight is not 0.
    fn write_common(
        &self,
        (tensor_index, begin, length): Block,
        buffers: &mut Buffers,
    ) -> Result<(), AdapterError> {
        let AdapterTensor { tensor, .. } = &self.inputs.layout.tensors[tensor_index];
        let Buffers { clients: client_buffers, output, .. } = buffers;
        let (dtype, buffer) = (tensor.dtype, &mut client_buffers[0]);
        let mut first: Option<&InputFile> = None;
        for client in self.weighted_clients() {
            buffer.resize(length, 0);
            client.read(buffer, client.offsets[tensor_index] + begin)?;
            let Some(first) = first else {
                first = Some(client);
                output.clone_from(buffer);
                continue;
            };
            if let Some(in_block) = differing(dtype, buffer, output) {
                let index = begin / dtype.size() as u64 + in_block as u64;
                let fault = values_differ(dtype, index, in_block, buffer, output, &first.path);
                return Err(AdapterError::tensor(&client.path, &tensor.name, fault));
            }
        }
        self.writer.write(output, self.inputs.base.offsets[tensor_index] + begin)
    }
}
