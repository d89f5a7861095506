//! Functions of the firmware that a client calls: samples, random bytes, storage and link.

use core::convert::Infallible;
use core::ffi::c_void;
use core::ptr;
use core::slice;

use ::fedspan_client::link::NonBlockingLink;
use ::fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use ::fedspan_client::{RoundId, SampleSource, Samples, Shape, SourceError, Targets};
use fedspan_protocol::frame::crc32c;
use rand_core::TryRng;

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
    /// Fills bytes from a cryptographic random number generator.
    pub random: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *mut u8, length: usize)>,
    /// Reads an item, at most `length` bytes. Returns its length, 0 if it was never written, a negative number if reading fails.
    /// NULL, together with `save`, if nothing is stored: for tests, because a device with a key must store its handshakes.
    pub load: Option<
        unsafe extern "C" fn(context: *mut c_void, item: fedspan_item, bytes: *mut u8, length: usize) -> i32,
    >,
    /// Writes an item. Returns 0 once it is stored; power may then fail at any time. A write that is cut off leaves the old item.
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
}

impl fedspan_platform {
    /// Returns true if every function is there that must be.
    pub(crate) fn is_complete(&self) -> bool {
        let has_store = self.load.is_some() == self.save.is_some();
        let has_link = self.read.is_some() && self.write.is_some();
        self.rewind.is_some() && self.next.is_some() && self.random.is_some() && has_store && has_link
    }
}

/// Platform in the memory of a client, shared by its parts.
#[derive(Clone, Copy, Debug)]
pub struct Platform(*const fedspan_platform);

impl Platform {
    /// Creates the handle.
    ///
    /// # Safety
    /// `platform` points to a complete platform for as long as the handle and its copies are used.
    pub(crate) const unsafe fn new(platform: *const fedspan_platform) -> Self {
        Self(platform)
    }

    fn get(&self) -> &fedspan_platform {
        // SAFETY: `new` has the platform for as long as the handle.
        unsafe { &*self.0 }
    }
}

/// Samples of the firmware.
#[derive(Debug)]
pub struct PlatformSource {
    pub(crate) platform: Platform,
    pub(crate) shape: Shape,
    /// Round in which samples could not be read. Its other passes fail, so that no update of fewer samples is sent.
    pub(crate) failed: Option<RoundId>,
    /// Round of the present pass.
    pub(crate) round: RoundId,
    /// Number of batches that could not be read.
    pub(crate) failures: u32,
}

impl PlatformSource {
    /// Creates a source for samples of this shape.
    pub(crate) const fn new(platform: Platform, shape: Shape) -> Self {
        Self { platform, shape, failed: None, round: RoundId { round: 0, stage: 0 }, failures: 0 }
    }

    /// Returns the next samples, `Ok(None)` at the end of the pass.
    ///
    /// # Errors
    /// The firmware cannot read them, or describes them wrongly.
    fn read<'a>(platform: Platform, shape: Shape) -> Result<Option<Samples<'a>>, SourceError> {
        let platform = platform.get();
        let next = platform.next.ok_or(SourceError::Device)?;
        let mut found =
            fedspan_samples { x: ptr::null(), targets: ptr::null(), classes: ptr::null(), count: 0 };
        // SAFETY: a function of the firmware, as the header describes it.
        let is_read = unsafe { next(platform.context, &raw mut found) } == 0;
        let Shape { features, outputs, .. } = shape;
        // No array is longer than the address space has room for.
        let length = |each: usize| {
            let count = usize::try_from(found.count).ok()?;
            count.checked_mul(each).filter(|length| *length <= isize::MAX as usize / size_of::<f32>())
        };
        let (Some(values), Some(targets), Some(count)) = (length(features), length(outputs), length(1))
        else {
            return Err(SourceError::Device);
        };
        if !is_read {
            return Err(SourceError::Device);
        }
        if count == 0 {
            return Ok(None);
        }
        if found.x.is_null() || found.targets.is_null() == found.classes.is_null() {
            return Err(SourceError::Device);
        }
        // SAFETY: the firmware guarantees arrays of these lengths until its next call.
        let (x, targets) = unsafe {
            let targets = if found.classes.is_null() {
                Targets::Values(slice::from_raw_parts(found.targets, targets))
            } else {
                Targets::Classes(slice::from_raw_parts(found.classes, count))
            };
            (slice::from_raw_parts(found.x, values), targets)
        };
        Ok(Some(Samples { x, targets }))
    }
}

impl SampleSource for PlatformSource {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        if self.failed == Some(id) {
            return Err(SourceError::Device);
        }
        self.round = id;
        let platform = self.platform.get();
        let rewind = platform.rewind.ok_or(SourceError::Device)?;
        // SAFETY: a function of the firmware, as the header describes it.
        match unsafe { rewind(platform.context, id.round) } {
            0 => Ok(()),
            _ => Err(SourceError::Device),
        }
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        if self.failed == Some(self.round) {
            return None;
        }
        Self::read(self.platform, self.shape).unwrap_or_else(|_| {
            (self.failed, self.failures) = (Some(self.round), self.failures.saturating_add(1));
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
        let platform = self.0.get();
        if let Some(random) = platform.random {
            // SAFETY: a function of the firmware, as the header describes it.
            unsafe { random(platform.context, bytes.as_mut_ptr(), bytes.len()) };
        }
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
        let platform = self.0.get();
        let read = platform.read.ok_or(Lost)?;
        // SAFETY: a function of the firmware, as the header describes it.
        moved(unsafe { read(platform.context, bytes.as_mut_ptr(), bytes.len()) }, bytes.len())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, Lost> {
        let platform = self.0.get();
        let write = platform.write.ok_or(Lost)?;
        // SAFETY: a function of the firmware, as the header describes it.
        moved(unsafe { write(platform.context, bytes.as_ptr(), bytes.len()) }, bytes.len())
    }
}

/// Version of the record: its first byte.
const RECORD_VERSION: u8 = 1;
/// Bytes of a record besides the head: version, campaign, round, hash of the representation, checksum.
pub(crate) const RECORD_FIELDS: usize = 1 + 8 + 4 + 4 + 4;
/// Bytes of the stored handshake number: the number and its checksum.
const HANDSHAKES: usize = 8 + 4;

/// Storage of the firmware.
#[derive(Debug)]
pub struct PlatformStore {
    pub(crate) platform: Platform,
    /// Memory for one record.
    pub(crate) record: &'static mut [u8],
}

impl PlatformStore {
    /// Writes bytes, of which the last four become the checksum of the others. Does nothing if there is no storage.
    fn write(platform: &fedspan_platform, item: fedspan_item, bytes: &mut [u8]) -> Result<(), StoreError> {
        let Some(save) = platform.save else { return Ok(()) };
        let (content, check) = bytes.split_last_chunk_mut().ok_or(StoreError)?;
        *check = crc32c(content).to_le_bytes();
        // SAFETY: a function of the firmware, as the header describes it.
        match unsafe { save(platform.context, item, bytes.as_ptr(), bytes.len()) } {
            0 => Ok(()),
            _ => Err(StoreError),
        }
    }

    /// Reads an item. Returns its bytes before the checksum, and `None` if it was never written.
    ///
    /// # Errors
    /// Reading fails, or the length or the checksum is wrong.
    fn read<'a>(
        platform: &fedspan_platform,
        item: fedspan_item,
        bytes: &'a mut [u8],
    ) -> Result<Option<&'a [u8]>, StoreError> {
        let Some(load) = platform.load else { return Ok(None) };
        // SAFETY: a function of the firmware, as the header describes it.
        let length = unsafe { load(platform.context, item, bytes.as_mut_ptr(), bytes.len()) };
        let length = usize::try_from(length).map_err(|_| StoreError)?;
        let (content, check) = bytes.split_last_chunk().ok_or(StoreError)?;
        match length {
            0 => Ok(None),
            _ if length == bytes.len() && crc32c(content).to_le_bytes() == *check => Ok(Some(content)),
            _ => Err(StoreError),
        }
    }
}

impl Store for PlatformStore {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let fields = [RECORD_VERSION]
            .into_iter()
            .chain(record.campaign.to_le_bytes())
            .chain(record.round.to_le_bytes())
            .chain(record.representation.to_le_bytes());
        let mut targets = self.record.iter_mut();
        let head = record.head.iter().flat_map(|value| value.to_le_bytes());
        for byte in fields.chain(head) {
            *targets.next().ok_or(StoreError)? = byte;
        }
        Self::write(self.platform.get(), fedspan_item::FEDSPAN_RECORD, self.record)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        // A record that cannot be used counts as missing: the device fits its head again.
        let Ok(Some(content)) = Self::read(self.platform.get(), fedspan_item::FEDSPAN_RECORD, self.record)
        else {
            return Ok(None);
        };
        let mut parse = || {
            let (version, content) = content.split_first()?;
            let (campaign, content) = content.split_first_chunk()?;
            let (round, content) = content.split_first_chunk()?;
            let (representation, values) = content.split_first_chunk()?;
            let values = values.as_chunks::<4>().0;
            let is_usable = *version == RECORD_VERSION
                && values.len() == head.len()
                && values.iter().all(|bytes| f32::from_le_bytes(*bytes).is_finite());
            is_usable.then(|| {
                head.iter_mut().zip(values).for_each(|(target, bytes)| *target = f32::from_le_bytes(*bytes));
                RecordHeader {
                    campaign: u64::from_le_bytes(*campaign),
                    round: u32::from_le_bytes(*round),
                    representation: u32::from_le_bytes(*representation),
                }
            })
        };
        Ok(parse())
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        let mut bytes = [0; HANDSHAKES];
        bytes.iter_mut().zip(reserved.to_le_bytes()).for_each(|(target, byte)| *target = byte);
        Self::write(self.platform.get(), fedspan_item::FEDSPAN_HANDSHAKES, &mut bytes)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let mut bytes = [0; HANDSHAKES];
        let content = Self::read(self.platform.get(), fedspan_item::FEDSPAN_HANDSHAKES, &mut bytes)?;
        Ok(content.and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    // Updates of this interface have no noise, so there is no ledger.
    fn save_spent(&mut self, _spent: u64) -> Result<(), StoreError> {
        Err(StoreError)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Err(StoreError)
    }
}
