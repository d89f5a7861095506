//! The device's record: in flash where the settings name some, and otherwise nowhere. What it says on standard
//! output lets the host compare what was restored with what was written.

use core::fmt;

use fedspan_client::store::{FlashStore, Record, RecordHeader, Store, StoreError};
use fedspan_protocol::frame::crc32c_f32;
use semihosting::{eprintln, println};

use crate::fault;
use crate::flash::{self, FlashFile};
use crate::kept;
use crate::nor::{Nor, SIZE};
use crate::settings::Settings;

/// The storage of a head of at most `N` bytes with its frame.
pub struct Storage<const N: usize> {
    flash: Option<FlashStore<Nor<FlashFile>, N>>,
    device: u64,
    /// Each record that is written is told.
    tell: bool,
    /// What was in flash at the start.
    blank: bool,
    /// What happened to it.
    pub counters: StorageCounters,
}

/// What happened to the storage since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageCounters {
    /// The round of the record that was found at the start; 0 if there was none.
    pub restored: u32,
    /// 1 if something was there at the start, and no record.
    pub unusable: u32,
    /// Records written.
    pub saved: u32,
}

impl<const N: usize> Storage<N> {
    /// Opens what the settings name; exits if that cannot be used.
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
            FlashStore::new(nor, 0..SIZE as u32).unwrap_or_else(|problem| unusable(&problem))
        });
        let tell = settings.resets > 0 || settings.end_after.is_some();
        Self { flash, device, tell, blank, counters: StorageCounters::default() }
    }

    /// How often all of the flash was erased because it could not be used as it was.
    pub fn erased(&self) -> u32 {
        self.flash.as_ref().map_or(0, FlashStore::erased)
    }
}

impl<const N: usize> Store for Storage<N> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let Some(flash) = &mut self.flash else { return Ok(()) };
        flash.save(record)?;
        self.counters.saved = self.counters.saved.saturating_add(1);
        if self.tell {
            println!("{{\"device\":{},\"saved\":{}}}", self.device, Told(record));
        }
        Ok(())
    }

    fn save_handshakes(&mut self, numbered: u64) -> Result<(), StoreError> {
        self.flash.as_mut().map_or(Ok(()), |flash| flash.save_handshakes(numbered))
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
        let (device, resets) = (self.device, kept::resets());
        match loaded {
            Some(RecordHeader { campaign, round, representation }) => {
                self.counters.restored = round;
                let record = Record { campaign, round, representation, head };
                let told = Told(&record);
                println!("{{\"device\":{device},\"start\":{{\"resets\":{resets},\"restored\":{told}}}}}");
            }
            None => {
                println!("{{\"device\":{device},\"start\":{{\"resets\":{resets}}}}}");
                if !self.blank {
                    self.counters.unusable = 1;
                    eprintln!("device {device}: what is in the flash is no record; starting clean");
                }
            }
        }
        Ok(loaded)
    }
}

/// A record in JSON.
struct Told<'a>(&'a Record<'a>);

impl fmt::Display for Told<'_> {
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
