//! Test helpers: a disk in memory with injected faults. At a power cut each unsynced write is lost, kept
//! or torn, depending on a seed.

use std::sync::{Arc, Mutex, MutexGuard};

use fedspan_aggregator::store::{RoundKeyStorage, Store, StoreError};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use redb::StorageBackend;
use zeroize::Zeroizing;

/// Number of bytes that the disk writes atomically.
const SECTOR: usize = 512;

/// Faults to inject.
#[derive(Clone, Copy, Debug, Default)]
pub enum Faults {
    /// No fault.
    #[default]
    None,
    /// Every write and sync fails after this number of successful ones.
    After(u32),
    /// Every sync fails after this number of successful ones. Written data are visible but do not reach the
    /// disk.
    Sync(u32),
    /// The power is cut after this number of writes, syncs and key changes.
    Cut(u32),
}

/// Write that has not been synced.
#[derive(Debug)]
enum Write {
    Bytes(u64, Vec<u8>),
    Length(u64),
}

/// State of a disk.
#[derive(Debug)]
struct DiskState {
    /// Data as the server reads them.
    visible: Vec<u8>,
    /// Data that survive a power cut.
    durable: Vec<u8>,
    /// Writes since the last sync.
    pending: Vec<Write>,
    /// Key of the open round. Changes are durable unless they fail.
    key: Option<Vec<u8>>,
    /// Whether the key is from a failed write, so that the next power cut may remove it.
    is_key_unsynced: bool,
    /// Every key that was ever stored.
    keys: Vec<Vec<u8>>,
    faults: Faults,
    random: ChaCha8Rng,
    /// Number of power cuts. Storage that was opened before a power cut can no longer write.
    power_cuts: u32,
    /// Number of power cuts with unsynced writes.
    torn: u32,
}

/// Handle to a disk, which shares the disk with its storage.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<DiskState>>);

/// Storage of a database on a disk, valid until the next power cut.
#[derive(Debug)]
pub struct Storage {
    disk: Disk,
    power_cuts: u32,
}

impl Disk {
    pub fn new(seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self(Arc::new(Mutex::new(DiskState {
            visible: Vec::new(),
            durable: Vec::new(),
            pending: Vec::new(),
            key: None,
            is_key_unsynced: false,
            keys: Vec::new(),
            faults: Faults::None,
            random,
            power_cuts: 0,
            torn: 0,
        })))
    }

    fn lock_state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }

    pub fn storage(&self) -> Storage {
        Storage { disk: self.clone(), power_cuts: self.lock_state().power_cuts }
    }

    /// Opens a store on the disk.
    pub fn store(&self) -> Store {
        self.try_store().unwrap()
    }

    /// Opens a store on the disk, or returns its error.
    pub fn try_store(&self) -> Result<Store, StoreError> {
        let entropy = ChaCha8Rng::seed_from_u64(self.lock_state().random.next_u64());
        let disk = self.clone();
        Store::over(move || disk.storage(), self.storage(), entropy)
    }

    /// Returns the key of the open round, and every key that was ever stored.
    pub fn keys(&self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let state = self.lock_state();
        (state.key.clone(), state.keys.clone())
    }

    /// Reserves memory, so that growth does not reallocate.
    pub fn reserve(&self, bytes: usize) {
        let mut state = self.lock_state();
        state.visible.reserve(bytes);
        state.durable.reserve(bytes);
    }

    /// Returns the memory of the disk in bytes.
    pub fn memory(&self) -> usize {
        let state = self.lock_state();
        state.visible.capacity() + state.durable.capacity()
    }

    /// Returns the content of the disk as a backup would contain it.
    pub fn image(&self) -> Vec<u8> {
        self.lock_state().visible.clone()
    }

    /// Sets the faults to inject.
    pub fn fail(&self, faults: Faults) {
        self.lock_state().faults = faults;
    }

    /// Cuts the power.
    pub fn cut(&self) {
        self.lock_state().cut();
    }

    /// Returns the number of power cuts.
    pub fn cuts(&self) -> u32 {
        self.lock_state().power_cuts
    }

    /// Returns the number of power cuts with unsynced writes.
    pub fn torn(&self) -> u32 {
        self.lock_state().torn
    }
}

impl DiskState {
    /// Keeps, drops or tears each write since the last sync, at random.
    fn cut(&mut self) {
        self.power_cuts += 1;
        self.torn += u32::from(!self.pending.is_empty());
        if std::mem::take(&mut self.is_key_unsynced) && self.random.next_u32().is_multiple_of(2) {
            self.key = None;
        }
        let Self { visible, durable, pending, random, .. } = self;
        for write in pending.drain(..) {
            match (write, random.next_u32() % 3) {
                (_, 0) => {}
                (Write::Length(length), _) => durable.resize(length as usize, 0),
                (Write::Bytes(offset, bytes), kind) => {
                    for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                        if kind == 1 || random.next_u32() % 2 == 0 {
                            let from = offset as usize + sector * SECTOR;
                            if durable.len() < from + bytes.len() {
                                durable.resize(from + bytes.len(), 0);
                            }
                            durable[from..from + bytes.len()].copy_from_slice(bytes);
                        }
                    }
                }
            }
        }
        visible.clone_from(durable);
    }
}

impl Storage {
    /// Locks the disk; an error after a power cut.
    fn lock_state(&self) -> std::io::Result<MutexGuard<'_, DiskState>> {
        let state = self.disk.lock_state();
        if state.power_cuts == self.power_cuts { Ok(state) } else { Err(switched_off_error()) }
    }

    /// Locks the disk for a change, which fails if a fault is due.
    fn lock_for_change(&self) -> std::io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.lock_state()?;
        match &mut state.faults {
            Faults::None | Faults::Sync(_) => {}
            Faults::After(0) => return Err(std::io::ErrorKind::StorageFull.into()),
            Faults::Cut(0) => {
                state.faults = Faults::None;
                state.cut();
                return Err(switched_off_error());
            }
            Faults::After(left) | Faults::Cut(left) => *left -= 1,
        }
        Ok(state)
    }
}

/// Returns the error of storage after a power cut.
fn switched_off_error() -> std::io::Error {
    std::io::Error::other("switched off")
}

impl StorageBackend for Storage {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.lock_state()?.visible.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let state = self.lock_state()?;
        let bytes = state.visible.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(bytes.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        let mut state = self.lock_for_change()?;
        state.visible.resize(len as usize, 0);
        state.pending.push(Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> std::io::Result<()> {
        let mut state = self.lock_for_change()?;
        match &mut state.faults {
            Faults::Sync(0) => {
                state.pending.clear();
                return Err(std::io::Error::other("the disk did not take it"));
            }
            Faults::Sync(left) => *left -= 1,
            _ => {}
        }
        let DiskState { durable, pending, .. } = &mut *state;
        for write in pending.drain(..) {
            match write {
                Write::Length(length) => durable.resize(length as usize, 0),
                Write::Bytes(offset, bytes) => {
                    let end = offset as usize + bytes.len();
                    if durable.len() < end {
                        durable.resize(end, 0);
                    }
                    durable[offset as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut state = self.lock_for_change()?;
        let end = offset as usize + data.len();
        if state.visible.len() < end {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        state.visible[offset as usize..end].copy_from_slice(data);
        state.pending.push(Write::Bytes(offset, data.to_vec()));
        Ok(())
    }
}

/// Key storage with faults. A failing operation is done completely, partly or not at all: a key that is being
/// erased may be only overwritten, and a key that is being written may exist or not.
impl RoundKeyStorage for Storage {
    fn read(&self) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
        Ok(self.lock_state()?.key.clone().map(Zeroizing::new))
    }

    fn write(&self, key: &[u8]) -> std::io::Result<()> {
        drop(self.lock_state()?);
        let failed = self.lock_for_change().err();
        // The key may be stored even if the power is cut at this moment.
        let mut state = self.disk.lock_state();
        assert_eq!(state.key, None, "a key was written over another key");
        if failed.is_none() || state.random.next_u32().is_multiple_of(2) {
            state.key = Some(key.to_vec());
            state.keys.push(key.to_vec());
            state.is_key_unsynced = failed.is_some();
        }
        failed.map_or(Ok(()), Err)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.lock_for_change()?.is_key_unsynced = false;
        Ok(())
    }

    fn erase(&self) -> std::io::Result<()> {
        if self.lock_state()?.key.is_none() {
            return Ok(());
        }
        let failed = self.lock_for_change().err();
        let mut state = self.disk.lock_state();
        match state.random.next_u32() % 3 {
            _ if failed.is_none() => state.key = None,
            0 => state.key = None,
            1 => state.key = Some(vec![0; state.key.as_ref().map_or(0, Vec::len)]),
            _ => {}
        }
        failed.map_or(Ok(()), Err)
    }
}
