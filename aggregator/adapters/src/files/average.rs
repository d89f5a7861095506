//! The mean of clients' adapters, block by block.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::dtype::{differing, not_finite};
use super::exact_sum::{MeanBuffers, weighted_mean};
use super::extract::disagree;
use super::output::OutputWriter;
use super::source::InputFile;
use super::{
    AdapterError, AdapterTensor, ClientWeight, Fault, Inputs, MergeRule, Output, ProgressFn, RoundKind,
};

/// What to do.
#[derive(Clone, Debug)]
pub struct AverageJob {
    /// What was trained.
    pub round: RoundKind,
    /// Where the mean goes.
    pub output: Output,
    /// How many threads; the result is the same for any number.
    pub threads: usize,
}

/// The result of an average.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AverageReport {
    /// Clients in their order, and the weight of each.
    pub clients: Vec<ClientWeight>,
    /// Number of tensors that were averaged.
    pub averaged: usize,
    /// Number of tensors that stayed: frozen factors, and integers and booleans in which all agree.
    pub kept: usize,
    /// Names of tensors of integers that differed, and of which the largest were taken.
    pub largest: Vec<String>,
    /// Length of the file.
    pub bytes: u64,
}

/// Averages what the round has trained and saved modules; frozen factors must be the base's. The file has the base's header,
/// byte for byte: names, dtypes, order. Element by element the mean lies between the least and the greatest client's value, so
/// that none overflows. Of integers it is the largest; of booleans and other types the value in which all clients with a weight
/// agree.
///
/// # Errors
/// Of several, the first in the order of the base's file, then of clients, whatever the number of threads. Nothing is written
/// then.
pub fn average(
    inputs: &Inputs,
    job: AverageJob,
    watch: &ProgressFn<'_>,
) -> Result<AverageReport, AdapterError> {
    let AverageJob { round, output, threads } = job;
    let threads = threads.max(1);
    let writing = output.begin(inputs)?;
    writing.write(&inputs.header, 0)?;
    let work = Work::new(inputs, round, &writing, inputs.block(threads), watch);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| work.run());
        }
        work.run();
    });
    let differed = work.end()?;
    inputs.ensure_unchanged()?;
    writing.commit()?;
    let tensors = &inputs.layout.tensors;
    let averaged =
        |slot: &&AdapterTensor| !round.freezes(slot.role) && slot.tensor.dtype.rule() == MergeRule::Mean;
    let averaged = tensors.iter().filter(averaged).count();
    let largest: Vec<String> = differed.into_iter().map(|slot| tensors[slot].tensor.name.clone()).collect();
    Ok(AverageReport {
        clients: inputs.counted(),
        averaged,
        kept: tensors.len() - averaged - largest.len(),
        largest,
        bytes: inputs.header.len() as u64 + inputs.layout.bytes(),
    })
}

/// A block of a tensor: which tensor, first byte, number of bytes.
type Block = (usize, u64, usize);

/// What threads share. Each takes the next block; so when one fails, all blocks before it have been taken, and the first
/// failure of all is among those that are known in the end.
struct Work<'a> {
    inputs: &'a Inputs,
    round: RoundKind,
    writing: &'a OutputWriter,
    watch: &'a ProgressFn<'a>,
    block: usize,
    /// That will be read.
    bytes: u64,
    /// The number of the first block of each tensor, and after the last.
    first: Vec<usize>,
    next: AtomicUsize,
    read: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<(usize, AdapterError)>>,
    /// Tensors of integers in which clients differ.
    differed: Mutex<BTreeSet<usize>>,
}

/// Buffers of a thread.
struct Buffers {
    clients: Vec<Vec<u8>>,
    means: Vec<f64>,
    written: Vec<u8>,
    exact: MeanBuffers,
}

impl<'a> Work<'a> {
    fn new(
        inputs: &'a Inputs,
        round: RoundKind,
        writing: &'a OutputWriter,
        block: usize,
        watch: &'a ProgressFn<'a>,
    ) -> Self {
        let (mut first, mut bytes) = (vec![0], 0_u64);
        for slot in &inputs.layout.tensors {
            let readers = inputs.clients() + usize::from(round.freezes(slot.role));
            bytes = bytes.saturating_add(slot.tensor.bytes().saturating_mul(readers as u64));
            let blocks = slot.tensor.bytes().div_ceil(block as u64);
            first
                .push(first.last().copied().unwrap_or(0) + usize::try_from(blocks).unwrap_or(usize::MAX / 4));
        }
        Self {
            inputs,
            round,
            writing,
            watch,
            block,
            bytes,
            first,
            next: AtomicUsize::new(0),
            read: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            differed: Mutex::default(),
        }
    }

    /// Block `number` of all.
    fn block(&self, number: usize) -> Option<Block> {
        let slot = self.first.partition_point(|first| *first <= number).checked_sub(1)?;
        let bytes = self.inputs.layout.tensors.get(slot)?.tensor.bytes();
        let begin = (number - self.first[slot]) as u64 * self.block as u64;
        let length = bytes.checked_sub(begin).filter(|rest| *rest > 0)?;
        Some((slot, begin, usize::try_from(length).map_or(self.block, |length| length.min(self.block))))
    }

    fn run(&self) {
        let count = self.inputs.clients();
        let mut room = Buffers {
            clients: vec![Vec::new(); count],
            means: Vec::new(),
            written: Vec::new(),
            exact: MeanBuffers::default(),
        };
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(block) = self.block(number) else { break };
            let frozen = self.round.freezes(self.inputs.layout.tensors[block.0].role);
            let done = match self.inputs.layout.tensors[block.0].tensor.dtype.rule() {
                _ if frozen => self.keep(block, &mut room),
                MergeRule::Mean => self.average(block, &mut room),
                MergeRule::Largest => self.largest(block, &mut room),
                MergeRule::Equal => self.agreed(block, &mut room),
            };
            let read = block.2 as u64 * (count + usize::from(frozen)) as u64;
            let read = self.read.fetch_add(read, Ordering::Relaxed) + read;
            let done = done.and_then(|()| match (self.watch)(read, self.bytes) {
                true => Ok(()),
                false => Err(AdapterError::Interrupted),
            });
            if let Err(error) = done {
                self.stop.store(true, Ordering::Relaxed);
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                if failure.as_ref().is_none_or(|(other, _)| number < *other) {
                    *failure = Some((number, error));
                }
            }
        }
    }

    /// The first failure; or which tensors of integers differed.
    fn end(self) -> Result<BTreeSet<usize>, AdapterError> {
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        let differed = self.differed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(differed), |(_, error)| Err(error))
    }

    /// Copies a block of the base's, which every client's must be.
    fn keep(&self, (slot, begin, length): Block, room: &mut Buffers) -> Result<(), AdapterError> {
        let Inputs { base, clients, layout, .. } = self.inputs;
        let AdapterTensor { tensor, role } = &layout.tensors[slot];
        let Buffers { clients: buffers, written: original, means, .. } = room;
        let at = |source: &InputFile| source.places[slot] + begin;
        let size = tensor.dtype.size();
        original.resize(length, 0);
        base.read(original, at(base))?;
        // It is none of the clients' numbers that are not finite, then.
        if let Some((index, value)) = not_finite(tensor.dtype, original) {
            let fault = Fault::NotFinite { index: begin / size as u64 + index as u64, value };
            return Err(AdapterError::tensor(&base.path, &tensor.name, fault));
        }
        let buffer = &mut buffers[0];
        buffer.resize(length, 0);
        for client in clients {
            client.read(buffer, at(client))?;
            if let Some(index) = differing(tensor.dtype, buffer, original) {
                let index = begin / size as u64 + index as u64;
                let fault = Fault::FrozenFactorChanged { role: *role, index, base: base.path.clone() };
                return Err(AdapterError::tensor(&client.path, &tensor.name, fault));
            }
        }
        means.clear();
        self.writing.write(original, at(base))
    }

    fn average(&self, (slot, begin, length): Block, room: &mut Buffers) -> Result<(), AdapterError> {
        let Inputs { base, clients, layout, weights, total, .. } = self.inputs;
        let AdapterTensor { tensor, .. } = &layout.tensors[slot];
        let Buffers { clients: buffers, means, written, exact } = room;
        let dtype = tensor.dtype;
        for (client, buffer) in clients.iter().zip(buffers.iter_mut()) {
            buffer.resize(length, 0);
            client.read(buffer, client.places[slot] + begin)?;
        }
        let blocks: Vec<(f64, &[u8])> =
            weights.iter().copied().zip(buffers.iter().map(Vec::as_slice)).collect();
        means.resize(length / dtype.size(), 0.0);
        weighted_mean(&blocks, dtype, *total, means, exact).map_err(|(client, element)| {
            let value = dtype.number(&buffers[client][element * dtype.size()..]);
            let index = begin / dtype.size() as u64 + element as u64;
            AdapterError::tensor(&clients[client].path, &tensor.name, Fault::NotFinite { index, value })
        })?;
        written.clear();
        dtype.encode(means, written);
        self.writing.write(written, base.places[slot] + begin)
    }

    /// Clients that count, and their places.
    fn counted(&self) -> impl Iterator<Item = &'a InputFile> {
        let Inputs { clients, weights, .. } = self.inputs;
        clients.iter().zip(weights).filter(|(_, weight)| **weight > 0.0).map(|(client, _)| client)
    }

    /// Writes the largest integers of a block.
    fn largest(&self, (slot, begin, length): Block, room: &mut Buffers) -> Result<(), AdapterError> {
        let AdapterTensor { tensor, .. } = &self.inputs.layout.tensors[slot];
        let Buffers { clients: buffers, written, .. } = room;
        let (dtype, buffer) = (tensor.dtype, &mut buffers[0]);
        let mut differs = false;
        for (number, client) in self.counted().enumerate() {
            buffer.resize(length, 0);
            client.read(buffer, client.places[slot] + begin)?;
            if number == 0 {
                written.clone_from(buffer);
                continue;
            }
            differs |= buffer != written;
            let pairs = written.chunks_mut(dtype.size()).zip(buffer.chunks(dtype.size()));
            for (largest, value) in
                pairs.filter(|(largest, value)| dtype.integer(value) > dtype.integer(largest))
            {
                largest.copy_from_slice(value);
            }
        }
        if differs {
            self.differed.lock().unwrap_or_else(PoisonError::into_inner).insert(slot);
        }
        self.writing.write(written, self.inputs.base.places[slot] + begin)
    }

    /// Writes the block that all clients have.
    fn agreed(&self, (slot, begin, length): Block, room: &mut Buffers) -> Result<(), AdapterError> {
        let AdapterTensor { tensor, .. } = &self.inputs.layout.tensors[slot];
        let Buffers { clients: buffers, written, .. } = room;
        let (dtype, buffer) = (tensor.dtype, &mut buffers[0]);
        let mut first: Option<&InputFile> = None;
        for client in self.counted() {
            buffer.resize(length, 0);
            client.read(buffer, client.places[slot] + begin)?;
            let Some(first) = first else {
                first = Some(client);
                written.clone_from(buffer);
                continue;
            };
            if let Some(place) = differing(dtype, buffer, written) {
                let index = begin / dtype.size() as u64 + place as u64;
                let fault = disagree(dtype, index, place, buffer, written, &first.path);
                return Err(AdapterError::tensor(&client.path, &tensor.name, fault));
            }
        }
        self.writing.write(written, self.inputs.base.places[slot] + begin)
    }
}
