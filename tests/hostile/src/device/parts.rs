//! Parts of a device that its session owns: sample source, storage that fails, and entropy that repeats.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use fedspan_client::SourceError;
use fedspan_client::privacy::EntropySource;
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::store::{Record, RecordHeader, Store, StoreError, StoredKey};
use fedspan_protocol::message::RoundId;
use rand_chacha::ChaCha8Rng;
use rand_core::{SeedableRng, TryRng};

use crate::Random;

/// Number of samples of the device, unless it has none.
const M: usize = 5;
/// Largest number of passes over the samples in one script; the sample source fails after that. A server may
/// request 65535 passes in a round, which is slow but not a fault.
const PASSES: u32 = 300;
/// The same limit for single samples of networks.
const READS: u32 = 600;

/// Samples of a device: `M` rows of features, with targets for a linear model or a network.
pub struct Content {
    pub x: Vec<f32>,
    pub values: Vec<f32>,
    pub classes: Vec<u8>,
    pub features: usize,
    pub outputs: usize,
    /// True if the targets are classes.
    pub is_network: bool,
}

impl Content {
    /// Creates samples of a kind: any, some of them NaN or infinite, all equal, or none.
    pub fn new(kind: u8, (features, outputs): (usize, usize), is_network: bool) -> Self {
        let mut random = Random(7);
        let count = if kind == 3 { 0 } else { M };
        let mut x: Vec<f32> = (0..count * features).map(|_| random.unit()).collect();
        let mut values: Vec<f32> = (0..count * outputs).map(|_| random.unit()).collect();
        let mut classes: Vec<u8> = (0..count).map(|sample| (sample % outputs) as u8).collect();
        match kind {
            1 => {
                (x[0], x[2 * features], values[outputs]) = (f32::NAN, f32::INFINITY, f32::NAN);
                classes[1] = outputs as u8;
            }
            2 => {
                x.fill(0.75);
                values.fill(-0.5);
                classes.fill(0);
            }
            _ => {}
        }
        Self { x, values, classes, features, outputs, is_network }
    }

    fn rows(&self, first: usize, count: usize) -> Samples<'_> {
        let (d, c) = (self.features, self.outputs);
        let rows = first..first + count;
        let targets = if self.is_network {
            Targets::Classes(&self.classes[rows])
        } else {
            Targets::Values(&self.values[first * c..(first + count) * c])
        };
        Samples { x: &self.x[first * d..(first + count) * d], targets }
    }
}

/// Sample source of the device; fails after a number of passes.
#[derive(Clone)]
pub struct Source {
    content: Rc<Content>,
    /// Number of samples that one call returns.
    group: usize,
    /// Number of samples that this pass has returned.
    returned: usize,
    /// Remaining passes, and reads of single samples.
    left: Rc<RefCell<(u32, u32)>>,
}

impl Source {
    pub fn new(content: Content, group: usize) -> Self {
        let source = Self { content: Rc::new(content), group, returned: usize::MAX, left: Rc::default() };
        source.restore();
        source
    }

    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Allows all passes and reads again.
    pub fn restore(&self) {
        *self.left.borrow_mut() = (PASSES, READS);
    }
}

impl SampleSource for Source {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        let passes = &mut self.left.borrow_mut().0;
        *passes = passes.checked_sub(1).ok_or(SourceError::Device)?;
        self.returned = 0;
        Ok(())
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let reads = &mut self.left.borrow_mut().1;
        *reads = reads.checked_sub(1)?;
        (index < self.content.classes.len()).then(|| self.content.rows(index, 1))
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let first = self.returned;
        let count = self.content.classes.len().saturating_sub(first).min(self.group);
        self.returned = first.saturating_add(count);
        (count > 0).then(|| self.content.rows(first, count))
    }
}

/// Store that survives a reset.
#[derive(Clone, Default)]
pub struct SharedStore(pub Rc<RefCell<Cell>>);

/// Contents of the store.
#[derive(Default)]
pub struct Cell {
    pub record: Option<(RecordHeader, Vec<f32>)>,
    pub handshakes: u64,
    pub key: Option<StoredKey>,
    /// Spent privacy budget.
    pub spent: u64,
    /// Number of writes before the store fails.
    pub saves: u32,
    /// Number of reads that fail.
    pub failing_reads: u32,
}

impl SharedStore {
    fn write(&self, change: impl FnOnce(&mut Cell)) -> Result<(), StoreError> {
        let mut cell = self.0.borrow_mut();
        cell.saves = cell.saves.checked_sub(1).ok_or(StoreError)?;
        change(&mut cell);
        Ok(())
    }

    fn read<T>(&self, read: impl FnOnce(&Cell) -> T) -> Result<T, StoreError> {
        let mut cell = self.0.borrow_mut();
        if cell.failing_reads > 0 {
            cell.failing_reads -= 1;
            return Err(StoreError);
        }
        Ok(read(&cell))
    }
}

impl Store for SharedStore {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let Record { campaign, round, representation, head } = *record;
        assert!(head.iter().all(|value| value.is_finite()), "the head {head:?} is stored");
        self.write(|cell| {
            cell.record = Some((RecordHeader { campaign, round, representation }, head.to_vec()));
        })
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        self.read(|cell| {
            cell.record.as_ref().map(|(loaded, stored)| {
                head.copy_from_slice(stored);
                *loaded
            })
        })
    }

    fn save_handshakes(&mut self, numbered: u64) -> Result<(), StoreError> {
        self.write(|cell| {
            assert!(numbered > cell.handshakes, "{numbered} after {}", cell.handshakes);
            cell.handshakes = numbered;
        })
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        self.read(|cell| cell.handshakes)
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.write(|cell| {
            assert!(spent >= cell.spent, "{spent} spent after {}", cell.spent);
            cell.spent = spent;
        })
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        self.read(|cell| cell.spent)
    }

    fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        self.write(|cell| cell.key = Some(key.clone()))
    }

    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        self.read(|cell| cell.key.clone())
    }
}

/// Entropy of the device: a generator that starts again at each reset, or a broken source whose bits are all ones.
pub struct Entropy {
    random: ChaCha8Rng,
    is_stuck: bool,
}

impl Entropy {
    pub fn new(is_stuck: bool) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(1), is_stuck }
    }
}

impl TryRng for Entropy {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        if self.is_stuck { Ok(u32::MAX) } else { self.random.try_next_u32() }
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        if self.is_stuck { Ok(u64::MAX) } else { self.random.try_next_u64() }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        if self.is_stuck {
            bytes.fill(u8::MAX);
            return Ok(());
        }
        self.random.try_fill_bytes(bytes)
    }
}

/// Source of the seeds of noise. A broken one does not pass the health tests, so that nothing is released.
impl EntropySource for Entropy {
    type Error = Infallible;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        self.try_fill_bytes(samples)
    }
}
