//! Functions of the firmware that a client calls: samples, random bytes, storage and link.

use core::cell::Cell;
use core::convert::Infallible;
use core::ffi::c_void;
use core::ptr;
use core::slice;

use ::fedspan_client::link::NonBlockingLink;
#[cfg(feature = "key-rotation")]
use ::fedspan_client::secure::Key;
#[cfg(feature = "key-rotation")]
use ::fedspan_client::store::StoredKey;
use ::fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use ::fedspan_client::{RoundId, SampleSource, Samples, Shape, SourceError, Targets};
use fedspan_protocol::frame::crc32c;
use rand_core::TryRng;
#[cfg(feature = "key-rotation")]
use zeroize::Zeroizing;

use crate::pause::Pauses;

/// Samples that a call of `next` returns. All arrays must stay valid and unchanged until the next call of a function of the
/// platform.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct fedspan_samples {
    /// Features, `features` values for each sample.
    pub x: *const f32,
    /// Targets of a regression, `outputs` values for each sample; NULL for classes.
    pub targets: *const f32,
    /// Classes, one byte below `outputs` for each sample; NULL for a regression.
    pub classes: *const u8,
    /// Number of samples: multiples of four are fastest. 0 ends the pass.
    pub count: u32,
}

/// Item of the storage.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub enum fedspan_item {
    /// Head and number of the last round; written once in a round.
    FEDSPAN_RECORD = 0,
    /// Handshake numbers in use; written once in 128 connections. If it is lost, the device needs a new key.
    FEDSPAN_HANDSHAKES = 1,
    /// Key that the server has sent, 42 bytes; written when it sends one, in a library with the feature `key-rotation` only. If it is lost, the
    /// device uses the key of its settings, which the server no longer accepts.
    FEDSPAN_KEY = 2,
}

/// Functions of the firmware. They are called from within `fedspan_start`, `fedspan_step` and `fedspan_end` only, must return, and
/// must not call a function of this client. `context` is the first argument of each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct fedspan_platform {
    /// First argument of each function.
    pub context: *mut c_void,
    /// Starts a pass over the samples of a round; every pass of a round has the same samples in the same order. Returns 0, or
    /// another number if the samples cannot be read.
    pub rewind: Option<unsafe extern "C" fn(context: *mut c_void, round: u32) -> i32>,
    /// Writes the next samples of the pass to `*samples`, which has been cleared. Returns 0, or another number if the samples cannot be
    /// read: the round is then declined.
    pub next: Option<unsafe extern "C" fn(context: *mut c_void, samples: *mut fedspan_samples) -> i32>,
    /// Fills bytes from a cryptographic random number generator. Returns 0, or another number if there are no random bytes now: the
    /// client then sends nothing over the present link, which ends, and asks again for the next one. Must not wait for long.
    pub random: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *mut u8, length: usize) -> i32>,
    /// Reads an item, at most `length` bytes. Returns its length, 0 if it was never written, a negative number if reading fails.
    /// NULL, together with `save`, if nothing is stored: for tests, because a device with a key must store its handshakes.
    pub load: Option<
        unsafe extern "C" fn(context: *mut c_void, item: fedspan_item, bytes: *mut u8, length: usize) -> i32,
    >,
    /// Writes an item. Returns 0 once it is stored; power may then fail at any time. A write that is cut off leaves the old item. For an item
    /// that the firmware does not know, return another number: the client does without it.
    pub save: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            item: fedspan_item,
            bytes: *const u8,
            length: usize,
        ) -> i32,
    >,
    /// Reads bytes that have arrived. Returns their number, 0 if there are none yet, a negative number if the link is lost.
    pub read: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *mut u8, length: usize) -> i32>,
    /// Writes some of the bytes. Returns their number, 0 if none can be written yet, a negative number if the link is lost.
    pub write: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const u8, length: usize) -> i32>,
    /// Feeds a watchdog, or lets a radio work, during a computation: see `pause_quota`. Is also called from within `fedspan_predict` and
    /// `fedspan_set_representation`. NULL for no pauses.
    pub pause: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

impl fedspan_platform {
    /// Returns true if every function is there that must be.
    pub(crate) fn is_complete(&self) -> bool {
        // Without a branch for each function, which takes less flash.
        let has_samples = self.rewind.is_some() & self.next.is_some();
        let has_link = self.read.is_some() & self.write.is_some();
        let has_store = self.load.is_some() == self.save.is_some();
        has_samples & has_link & has_store & self.random.is_some()
    }

    /// Returns true if `random` can fill a byte.
    pub(crate) fn has_random(&self) -> bool {
        let mut byte = 0;
        // SAFETY: a function of the firmware, as the header describes it.
        self.random.is_some_and(|random| unsafe { random(self.context, &raw mut byte, 1) } == 0)
    }
}

/// Functions of the firmware and what the parts of a client share.
#[derive(Debug)]
pub struct Shared {
    functions: fedspan_platform,
    /// Result of the last call of `random`: 0 if it has filled its bytes.
    random: Cell<i32>,
    /// Number of calls of `random` that have failed.
    random_failures: Cell<u32>,
    /// State of the pauses.
    pauses: Pauses,
}

impl Shared {
    /// Writes the functions at their place, and returns the handle and the place of the pauses.
    ///
    /// # Safety
    /// `place` has the size and the alignment of the content, is zero, lives as long as the handle and its copies, and is used for nothing
    /// else. `functions` points to a complete platform elsewhere.
    pub(crate) unsafe fn write(
        place: *mut Self,
        functions: *const fedspan_platform,
    ) -> (Platform, *mut Pauses) {
        // SAFETY: the caller guarantees the pointers; numbers of zero are valid.
        unsafe {
            (&raw mut (*place).functions).copy_from_nonoverlapping(functions, 1);
            (Platform(place), &raw mut (*place).pauses)
        }
    }
}

/// Platform in the memory of a client, shared by its parts.
#[derive(Clone, Copy, Debug)]
pub struct Platform(*const Shared);

impl Platform {
    fn shared(&self) -> &Shared {
        // SAFETY: `Shared::write` has the content for as long as the handle.
        unsafe { &*self.0 }
    }

    fn get(&self) -> &fedspan_platform {
        &self.shared().functions
    }

    /// Returns the context, and a function that every complete platform has.
    fn function<F>(&self, function: impl Fn(&fedspan_platform) -> Option<F>) -> (*mut c_void, F) {
        let platform = self.get();
        // SAFETY: the platform is complete, as `Shared::write` demands.
        (platform.context, unsafe { function(platform).unwrap_unchecked() })
    }

    /// Returns the number of calls of `random` that have failed.
    pub(crate) fn random_failures(&self) -> u32 {
        self.shared().random_failures.get()
    }

    /// Returns true if the firmware has a function `pause`.
    #[cfg(feature = "pauses")]
    pub(crate) fn has_pause(&self) -> bool {
        self.get().pause.is_some()
    }

    /// Calls the function `pause` of the firmware, if there is one.
    #[cfg(feature = "pauses")]
    pub(crate) fn pause(&self) {
        let fedspan_platform { context, pause, .. } = self.get();
        if let Some(pause) = pause {
            // SAFETY: a function of the firmware, as the header describes it.
            unsafe { pause(*context) };
        }
    }
}

/// Samples of the firmware.
#[derive(Debug)]
pub struct PlatformSource {
    pub(crate) platform: Platform,
    pub(crate) shape: Shape,
    /// Round of the present pass.
    pub(crate) round: RoundId,
    /// True if samples of the round could not be read. Its other passes fail, so that no update of fewer samples is sent.
    pub(crate) has_failed: bool,
    /// Number of batches that could not be read.
    pub(crate) failures: u32,
}

impl PlatformSource {
    /// Creates a source for samples of this shape.
    pub(crate) const fn new(platform: Platform, shape: Shape) -> Self {
        Self { platform, shape, round: RoundId { round: 0, stage: 0 }, has_failed: false, failures: 0 }
    }

    /// Returns the next samples, `Ok(None)` at the end of the pass.
    ///
    /// # Errors
    /// The firmware cannot read them, or describes them wrongly.
    fn read<'a>(platform: Platform, shape: Shape) -> Result<Option<Samples<'a>>, SourceError> {
        let (context, next) = platform.function(|platform| platform.next);
        let mut found =
            fedspan_samples { x: ptr::null(), targets: ptr::null(), classes: ptr::null(), count: 0 };
        // SAFETY: a function of the firmware, as the header describes it.
        if unsafe { next(context, &raw mut found) } != 0 {
            return Err(SourceError::Device);
        }
        let Shape { features, outputs, .. } = shape;
        let count = usize::try_from(found.count).map_err(|_| SourceError::Device)?;
        if count == 0 {
            return Ok(None);
        }
        // No array is longer than the address space has room for.
        let longest = count.checked_mul(features.max(outputs));
        if longest.is_none_or(|length| length > isize::MAX as usize / size_of::<f32>())
            || found.x.is_null()
            || found.targets.is_null() == found.classes.is_null()
        {
            return Err(SourceError::Device);
        }
        // SAFETY: the firmware guarantees arrays of these lengths until its next call.
        let (x, targets) = unsafe {
            let targets = if found.classes.is_null() {
                Targets::Values(slice::from_raw_parts(found.targets, count * outputs))
            } else {
                Targets::Classes(slice::from_raw_parts(found.classes, count))
            };
            (slice::from_raw_parts(found.x, count * features), targets)
        };
        Ok(Some(Samples { x, targets }))
    }
}

impl SampleSource for PlatformSource {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.has_failed &= id == self.round;
        self.round = id;
        if self.has_failed {
            return Err(SourceError::Device);
        }
        let (context, rewind) = self.platform.function(|platform| platform.rewind);
        // SAFETY: a function of the firmware, as the header describes it.
        match unsafe { rewind(context, id.round) } {
            0 => Ok(()),
            _ => Err(SourceError::Device),
        }
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        if self.has_failed {
            return None;
        }
        Self::read(self.platform, self.shape).unwrap_or_else(|_| {
            (self.has_failed, self.failures) = (true, self.failures.saturating_add(1));
            None
        })
    }
}

/// Random numbers of the firmware.
#[derive(Debug)]
pub struct PlatformRandom(pub(crate) Platform);

impl TryRng for PlatformRandom {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        let (context, random) = self.0.function(|platform| platform.random);
        // SAFETY: a function of the firmware, as the header describes it.
        let status = unsafe { random(context, bytes.as_mut_ptr(), bytes.len()) };
        let Shared { random, random_failures, .. } = self.0.shared();
        random.set(status);
        random_failures.set(random_failures.get().saturating_add((status != 0).into()));
        Ok(())
    }
}

/// Link of the firmware.
#[derive(Debug)]
pub struct PlatformLink(pub(crate) Platform);

/// Error of a link that is lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost;

/// Returns the number of bytes that a function of the link has returned.
fn moved(number: i32, length: usize) -> Result<Option<usize>, Lost> {
    match usize::try_from(number) {
        Ok(0) => Ok(None),
        Ok(number) => Ok(Some(number.min(length))),
        Err(_) => Err(Lost),
    }
}

impl NonBlockingLink for PlatformLink {
    type Error = Lost;

    fn read(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, Lost> {
        let (context, read) = self.0.function(|platform| platform.read);
        // SAFETY: a function of the firmware, as the header describes it.
        moved(unsafe { read(context, bytes.as_mut_ptr(), bytes.len()) }, bytes.len())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, Lost> {
        // A hello whose nonce is not random must not be sent.
        if self.0.shared().random.get() != 0 {
            return Err(Lost);
        }
        let (context, write) = self.0.function(|platform| platform.write);
        // SAFETY: a function of the firmware, as the header describes it.
        moved(unsafe { write(context, bytes.as_ptr(), bytes.len()) }, bytes.len())
    }
}

/// Version of the record: its first byte.
const RECORD_VERSION: u8 = 1;
/// Bytes of the campaign, the round and the hash of the representation, which follow the version.
const HEADER: usize = 8 + 4 + 4;
/// Bytes of a record besides the head: version, header, checksum.
pub(crate) const RECORD_FIELDS: usize = 1 + HEADER + 4;
/// Bytes of the stored handshake number: the number and its checksum.
const HANDSHAKES: usize = 8 + 4;

/// Bytes of a stored key: epoch, check value of the key of the settings, secret, checksum.
#[cfg(feature = "key-rotation")]
const STORED_KEY: usize = 2 + 4 + 32 + 4;

/// Storage of the firmware.
#[derive(Debug)]
pub struct PlatformStore {
    pub(crate) platform: Platform,
    /// Memory for one record.
    pub(crate) record: &'static mut [u8],
}

/// Parts of the bytes of a record: version, header, head and checksum.
type RecordParts<'a> = (&'a mut u8, &'a mut [u8; HEADER], &'a mut [[u8; 4]]);

/// Returns the parts of a record before its checksum.
fn record_parts(record: &mut [u8]) -> Result<RecordParts<'_>, StoreError> {
    let (version, rest) = record.split_first_mut().ok_or(StoreError)?;
    let (header, rest) = rest.split_first_chunk_mut().ok_or(StoreError)?;
    Ok((version, header, rest.as_chunks_mut().0))
}

impl PlatformStore {
    /// Writes bytes, of which the last four become the checksum of the others. Does nothing if there is no storage.
    #[inline(never)]
    fn write(platform: Platform, item: fedspan_item, bytes: &mut [u8]) -> Result<(), StoreError> {
        let platform = platform.get();
        let Some(save) = platform.save else { return Ok(()) };
        let (content, check) = bytes.split_last_chunk_mut().ok_or(StoreError)?;
        *check = crc32c(content).to_le_bytes();
        // SAFETY: a function of the firmware, as the header describes it.
        match unsafe { save(platform.context, item, bytes.as_ptr(), bytes.len()) } {
            0 => Ok(()),
            _ => Err(StoreError),
        }
    }

    /// Reads the record and writes its head to `head`, if the record can be used.
    fn usable(&mut self, head: &mut [f32]) -> Option<RecordHeader> {
        let is_read = Self::read(self.platform, fedspan_item::FEDSPAN_RECORD, self.record) == Ok(true);
        let (version, header, values) = record_parts(self.record).ok().filter(|_| is_read)?;
        let values = values.get(..head.len()).filter(|_| *version == RECORD_VERSION)?;
        let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes));
        if !values.clone().all(f32::is_finite) {
            return None;
        }
        head.iter_mut().zip(values).for_each(|(target, value)| *target = value);
        let fields = u128::from_le_bytes(*header);
        Some(RecordHeader {
            campaign: fields as u64,
            round: (fields >> 64) as u32,
            representation: (fields >> 96) as u32,
        })
    }

    /// Reads an item, of which the last four bytes are the checksum. Returns false if it was never written.
    ///
    /// # Errors
    /// Reading fails, or the length or the checksum is wrong.
    #[inline(never)]
    fn read(platform: Platform, item: fedspan_item, bytes: &mut [u8]) -> Result<bool, StoreError> {
        let platform = platform.get();
        let Some(load) = platform.load else { return Ok(false) };
        // SAFETY: a function of the firmware, as the header describes it.
        let length = unsafe { load(platform.context, item, bytes.as_mut_ptr(), bytes.len()) };
        if length == 0 {
            return Ok(false);
        }
        let (content, check) = bytes.split_last_chunk().ok_or(StoreError)?;
        if usize::try_from(length) == Ok(bytes.len()) && crc32c(content).to_le_bytes() == *check {
            Ok(true)
        } else {
            Err(StoreError)
        }
    }
}

impl Store for PlatformStore {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let (version, header, values) = record_parts(self.record)?;
        *version = RECORD_VERSION;
        let fields = u128::from(record.campaign)
            | u128::from(record.round) << 64
            | u128::from(record.representation) << 96;
        *header = fields.to_le_bytes();
        values.iter_mut().zip(record.head).for_each(|(target, value)| *target = value.to_le_bytes());
        Self::write(self.platform, fedspan_item::FEDSPAN_RECORD, self.record)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        // A record that cannot be used counts as missing: the device fits its head again.
        Ok(self.usable(head))
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        let mut bytes = [0; HANDSHAKES];
        if let Some(number) = bytes.first_chunk_mut() {
            *number = reserved.to_le_bytes();
        }
        Self::write(self.platform, fedspan_item::FEDSPAN_HANDSHAKES, &mut bytes)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let mut bytes = [0; HANDSHAKES];
        let is_stored = Self::read(self.platform, fedspan_item::FEDSPAN_HANDSHAKES, &mut bytes)?;
        Ok(bytes.first_chunk().filter(|_| is_stored).map_or(0, |number| u64::from_le_bytes(*number)))
    }

    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, stored: &StoredKey) -> Result<(), StoreError> {
        let mut bytes = Zeroizing::new([0; STORED_KEY]);
        let (epoch, rest) = bytes.split_first_chunk_mut().ok_or(StoreError)?;
        let (provisioned, rest) = rest.split_first_chunk_mut().ok_or(StoreError)?;
        *epoch = stored.key.epoch().to_le_bytes();
        *provisioned = stored.provisioned.to_le_bytes();
        *rest.first_chunk_mut().ok_or(StoreError)? = *stored.key.expose();
        Self::write(self.platform, fedspan_item::FEDSPAN_KEY, &mut *bytes)
    }

    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        let mut bytes = Zeroizing::new([0; STORED_KEY]);
        if !Self::read(self.platform, fedspan_item::FEDSPAN_KEY, &mut *bytes)? {
            return Ok(None);
        }
        let (epoch, rest) = bytes.split_first_chunk().ok_or(StoreError)?;
        let (provisioned, rest) = rest.split_first_chunk().ok_or(StoreError)?;
        let secret = rest.first_chunk().ok_or(StoreError)?;
        let key = Key::new(u16::from_le_bytes(*epoch), *secret);
        Ok(Some(StoredKey { key, provisioned: u32::from_le_bytes(*provisioned) }))
    }

    // Updates of this interface have no noise, so there is no ledger.
    fn save_spent(&mut self, _spent: u64) -> Result<(), StoreError> {
        Err(StoreError)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Err(StoreError)
    }
}
