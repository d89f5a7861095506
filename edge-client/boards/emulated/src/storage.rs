//! Store of an emulated device: in flash if the settings name a file; otherwise nothing is stored. It prints
//! the records that it reads and writes as lines of JSON, so that a test on the host can compare them.

use core::fmt;

use fedspan_client::store::{FlashStore, Record, RecordHeader, Store, StoreError};
use fedspan_protocol::frame::crc32c_f32;
use semihosting::{eprintln, println};

use crate::fault;
use crate::flash::{self, FlashFile};
use crate::nor::{Nor, PAGE, flash_size};
use crate::reset_count;
use crate::settings::Settings;

/// Store of a device's head and counters, with records of at most `N` bytes in pages of `P` bytes.
pub struct Storage<const N: usize, const P: usize = PAGE> {
    flash: Option<FlashStore<Nor<FlashFile, P>, N>>,
    device: u64,
    /// True if each record is printed when it is written.
    print_records: bool,
    /// True if the flash was blank when it was opened.
    blank: bool,
    /// Counters since the start.
    pub counters: StorageCounters,
}

/// Counters of the store since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageCounters {
    /// Round of the record found at the start; 0 if the flash held no record.
    pub restored: u32,
    /// 1 if the flash was not blank at the start and held no record; otherwise 0.
    pub unusable: u32,
    /// Number of records written.
    pub saved: u32,
}

impl<const N: usize, const P: usize> Storage<N, P> {
    /// Opens the flash named in the settings, if any; exits if it is unusable.
    pub fn open(settings: &Settings, device: u64) -> Self {
        let mut blank = true;
        let flash = settings.flash.as_ref().map(|name| {
            let unusable = |problem: &dyn fmt::Display| -> ! {
                let name = name.as_c_str().to_str().unwrap_or("?");
                fault::exit(fault::WRONG, &format_args!("flash={name}: {problem}"))
            };
            let mut nor = flash::open(name).unwrap_or_else(|problem| unusable(&problem));
            blank = nor.is_blank().unwrap_or_else(|problem| unusable(&problem));
            #[allow(clippy::cast_possible_truncation, reason = "a constant")]
            FlashStore::new(nor, 0..flash_size(P) as u32).unwrap_or_else(|problem| unusable(&problem))
        });
        let print_records = settings.resets > 0 || settings.end_after.is_some();
        Self { flash, device, print_records, blank, counters: StorageCounters::default() }
    }

    /// Returns the number of times that unusable content was erased, which preserves only the counters.
    pub fn erased(&self) -> u32 {
        self.flash.as_ref().map_or(0, FlashStore::erased)
    }
}

impl<const N: usize, const P: usize> Store for Storage<N, P> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let Some(flash) = &mut self.flash else { return Ok(()) };
        flash.save(record)?;
        self.counters.saved = self.counters.saved.saturating_add(1);
        if self.print_records {
            println!("{{\"device\":{},\"saved\":{}}}", self.device, JsonRecord(record));
        }
        Ok(())
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.flash.as_mut().map_or(Ok(()), |flash| flash.save_handshakes(reserved))
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        self.flash.as_mut().map_or(Ok(0), FlashStore::load_handshakes)
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.flash.as_mut().map_or(Ok(()), |flash| flash.save_spent(spent))
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        self.flash.as_mut().map_or(Ok(0), FlashStore::load_spent)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        let Some(flash) = &mut self.flash else { return Ok(None) };
        let loaded = flash.load(head)?;
        let (device, resets) = (self.device, reset_count::resets());
        match loaded {
            Some(RecordHeader { campaign, round, representation }) => {
                self.counters.restored = round;
                let record = Record { campaign, round, representation, head };
                let json = JsonRecord(&record);
                println!("{{\"device\":{device},\"start\":{{\"resets\":{resets},\"restored\":{json}}}}}");
            }
            None => {
                println!("{{\"device\":{device},\"start\":{{\"resets\":{resets}}}}}");
                if !self.blank {
                    self.counters.unusable = 1;
                    eprintln!("device {device}: the flash holds no record; starting without one");
                }
            }
        }
        Ok(loaded)
    }
}

/// Formats a record as JSON, with a hash of the head.
struct JsonRecord<'a>(&'a Record<'a>);

impl fmt::Display for JsonRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { campaign, round, representation, head } = self.0;
        let head = crc32c_f32(head);
        write!(
            f,
            "{{\"campaign\":\"{campaign:016x}\",\"round\":{round},\
             \"representation\":\"{representation:08x}\",\"head\":\"{head:08x}\"}}"
        )
    }
}
