//! Fuzz target for the flash stores of a device, blocking and asynchronous (record, keys and privacy ledger), on flash with
//! arbitrary contents, power failures, erases that fail, and futures that are dropped. Every read and write must succeed or
//! fail within a bounded number of operations, and the spent privacy budget must never decrease.

use std::ops::Range;
use std::sync::OnceLock;

use fedspan_client::store::{
    ALL_SPENT, AsyncFlashStore, Commit, FlashStore, Record, RecordHeader, Store, StoreError, StoredKey,
    record_len,
};
use fedspan_protocol::secure::{KEY, Key};

use crate::Work;
use crate::async_chip::{block_on, poll};
use crate::chip::{Chip, PAGE, WORD};
use crate::reference;
use crate::script::Script;

/// Width of the head.
const K: usize = 4;
/// Length of a record (the state that a device saves) with a head of 4 x 1, rounded up to whole words.
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

/// Largest number of times that a load or save may visit each word: a few scans of all pages, and in a page at most this many
/// starts of records, each of which is read as a whole.
const PASSES: usize = 8 + PAGE / (8 + WORD);

/// The same for an asynchronous store, which reads every kind of item when it is opened.
const ASYNC_PASSES: usize = 2 * PASSES;

type Flash = FlashStore<Chip, BYTES>;
type AsyncFlash = AsyncFlashStore<Chip, BYTES, K>;

fn open_store(chip: &Chip) -> Flash {
    let capacity = chip.0.borrow().bytes.len() as u32;
    FlashStore::new(chip.clone(), 0..capacity).expect("whole pages")
}

fn test_record(round: u32) -> (RecordHeader, [f32; K]) {
    (RecordHeader { campaign: 3, round, representation: !round }, [round as f32, -1.0, 0.5, 0.0])
}

fn test_key(round: u32) -> StoredKey {
    StoredKey { key: Key::new(round as u16, [round as u8; KEY]), provisioned: !round }
}

/// Runs one input. Three bytes of settings select the number of pages, the initial image, whether the device is
/// private, when the power fails, and the kind of store. Pieces of an image follow: position, length and bytes.
pub fn flash_image(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    let power_limit = match script.byte() {
        0 => usize::MAX,
        words => usize::from(words) * 4,
    };
    let mode = Mode::from(script.byte(), settings / 24 % 2 == 1);
    let pages = 2 + usize::from(settings % 3);
    let images = &initial_images()[usize::from(mode.is_private) + 2 * usize::from(mode.has_keys)];
    let image = images[pages - 2][usize::from(settings / 3 % 4)].clone();
    let mut bench = Bench { chip: Chip::new(image), mode, work: Work { frames: 1, ..Work::default() } };
    let power = [usize::MAX, power_limit][usize::from(settings / 12 % 2)];
    let mut is_foreign = false;
    while let Some(low_byte) = script.next() {
        is_foreign = true;
        let position = usize::from(u16::from_le_bytes([low_byte, script.byte()]));
        let length = script.index();
        let mut chip = bench.chip.0.borrow_mut();
        let (first, size) = (position % chip.bytes.len(), chip.bytes.len());
        for (offset, byte) in script.take(length).iter().enumerate() {
            chip.bytes[(first + offset) % size] = *byte;
        }
    }
    // Spent budget that the image records, and the range in which the budget may be afterwards.
    let initial = ledger_copies(&bench.chip.0.borrow().bytes);
    let newest_copy = initial.iter().copied().max();
    let spent = newest_copy.unwrap_or_else(|| spent_without_copy(&bench.chip.0.borrow().bytes));
    let mut paid_range = spent..=spent;
    // Keys of which one is in use. Two keys may have the same number only in foreign content.
    let mut keys = newest_keys(&bench.chip.0.borrow().bytes);
    // If foreign bytes were written and the power also fails during the repair, the newest copy may be lost,
    // because an older copy cannot be distinguished from damage. With only one of the two events all checks
    // below hold. A dropped future with a reset after it is a power failure.
    let is_interrupted = power != usize::MAX || mode.is_async && mode.polls > 0;
    let may_lose = is_foreign && is_interrupted;
    bench.chip.0.borrow_mut().power = power;
    bench.chip.0.borrow_mut().is_worn = mode.is_worn;
    if mode.is_private {
        let result = bench.spent();
        assert!(
            result == Ok(spent) || !bench.chip.is_sound() && result == Err(StoreError),
            "{result:?} of {spent}"
        );
    }
    let result = bench.load();
    bench.work.refused = u64::from(matches!(result, Ok(None)));
    // With any image, a record whose save succeeded must be found after a reset.
    // An asynchronous store takes twice the time, because its twin is compared.
    let rounds = if mode.is_async { 2 } else { 4 };
    for round in 100..100 + rounds {
        if mode.has_keys {
            let saved = bench.save_key(round);
            let is_used_up = keys.iter().flatten().any(|(number, _)| *number == u16::MAX);
            let may_fail = is_used_up || mode.polls > 0 || !bench.chip.is_sound();
            assert!(saved.is_ok() || may_fail, "a key was not saved");
            bench.check_key(&mut keys, saved.is_ok().then_some(round), round, may_lose);
        }
        if mode.erases_ahead {
            let erased = bench.erase_ahead();
            assert!(erased.is_ok() || !bench.chip.is_sound());
        }
        let next = paid_range.end().saturating_add(3);
        if mode.is_private && next < ALL_SPENT {
            paid_range = if bench.pay(next).is_ok() { next..=next } else { *paid_range.start()..=next };
        }
        if bench.save(round).is_ok() {
            bench.chip.mend();
            assert_eq!(bench.load(), Ok(Some(test_record(round))));
        }
        if mode.is_private
            && let Ok(spent) = bench.spent()
        {
            assert!(
                paid_range.contains(&spent) || spent == ALL_SPENT || may_lose,
                "{spent} of {paid_range:?}"
            );
            paid_range = spent..=spent.max(*paid_range.end());
        }
    }
    // With the power restored, saving must succeed.
    bench.chip.mend();
    bench.mode.polls = 0;
    bench.save(200).expect("sound flash");
    assert_eq!(bench.load(), Ok(Some(test_record(200))));
    if mode.has_keys {
        bench.check_key(&mut keys, None, 99 + rounds, may_lose);
    }
    // A blocking store opens the pages of any store, and keeps the other items while its records fill each page.
    bench.mode.is_async = false;
    bench.save_all(200..200 + pages as u32 * PAGE as u32 / BYTES as u32).expect("sound flash");
    if mode.has_keys {
        bench.check_key(&mut keys, None, 99 + rounds, may_lose);
    }
    // The ledger is also checked if firmware without privacy has written to this
    // flash, which then is not blank: an existing ledger must survive, and no ledger may be created.
    let spent = bench.spent().expect("sound flash");
    let known = if mode.is_private { paid_range.contains(&spent) } else { newest_copy == Some(spent) };
    assert!(known || spent == ALL_SPENT || may_lose, "{spent} of {initial:?} and {paid_range:?}");
    bench.work
}

/// Kind of the store, and of its faults.
#[derive(Clone, Copy, Default)]
struct Mode {
    is_private: bool,
    is_async: bool,
    /// True if keys are stored.
    has_keys: bool,
    /// True if pages cannot be erased, so that the flash is full at some time.
    is_worn: bool,
    erases_ahead: bool,
    /// Number of polls after which the future of a commit is dropped; 0 to complete it. After an odd number the next commit of the same
    /// store follows, after an even one a reset.
    polls: usize,
}

impl Mode {
    fn from(byte: u8, is_private: bool) -> Self {
        let bit = |number: u8| byte >> number & 1 == 1;
        Self {
            is_private,
            is_async: bit(0),
            has_keys: bit(1),
            is_worn: bit(2),
            erases_ahead: bit(3),
            polls: usize::from(byte >> 4),
        }
    }
}

/// First bytes of a copy of the ledger.
const MAGIC: &[u8; 8] = b"FSPLPAID";

/// Returns the spent budgets of all valid copies of the ledger, found by a second implementation.
fn ledger_copies(bytes: &[u8]) -> Vec<u64> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let is_valid = |copy: &&[u8]| {
        copy.starts_with(MAGIC) && number(&copy[16..]) == u64::from(reference::crc32c(&copy[..16]))
    };
    bytes.windows(20).filter(is_valid).map(|copy| number(&copy[8..16])).collect()
}

/// Returns the spent budget that a device must assume for an image without a valid copy. It is zero if the
/// image is blank, where the first page may hold partly written first copies, one after the other (each power cut adds one);
/// otherwise it is the whole budget.
fn spent_without_copy(bytes: &[u8]) -> u64 {
    let first_copy = [&MAGIC[..], &[0; 8]].concat();
    let first_copy = [&first_copy[..], &reference::crc32c(&first_copy).to_le_bytes()].concat();
    let area = 0..PAGE / first_copy.len() * first_copy.len();
    let blank = bytes.iter().enumerate().all(|(index, byte)| {
        let written = if area.contains(&index) { first_copy[index % first_copy.len()] } else { 0xFF };
        byte & written == written
    });
    if blank { 0 } else { ALL_SPENT }
}

/// Returns the number and the secret bytes of a key's item at the start of these bytes, by a second implementation.
fn key_item(bytes: &[u8]) -> Option<(u16, StoredKey)> {
    let item = bytes.get(..56).filter(|item| item.starts_with(b"FSKY\x01") && item[52..] == [0xA5; 4])?;
    if reference::crc32c(&item[..48]).to_le_bytes() != item[48..52] {
        return None;
    }
    let plain: Vec<u8> = item[6..48].iter().map(|byte| byte ^ item[5]).collect();
    let number = |first: usize| u16::from_le_bytes([plain[first], plain[first + 1]]);
    let provisioned = u32::from(number(6)) | u32::from(number(8)) << 16;
    let secret = plain[10..].try_into().expect("32 bytes");
    Some((number(0), StoredKey { key: Key::new(number(2), secret), provisioned }))
}

/// Returns the keys with the largest number in an image, or `None` alone if there is no key.
fn newest_keys(bytes: &[u8]) -> Vec<Option<(u16, StoredKey)>> {
    let pages = bytes.chunks(PAGE).flat_map(|page| (0..PAGE).step_by(WORD).map(|first| &page[first..]));
    let items: Vec<(u16, StoredKey)> = pages.filter_map(key_item).collect();
    let Some(newest) = items.iter().map(|(number, _)| *number).max() else { return vec![None] };
    items.into_iter().filter(|(number, _)| *number == newest).map(Some).collect()
}

/// Returns initial images without and with a ledger, then the same with keys, for two, three and four pages: erased, all zero, a
/// few records of which the last holds a NaN, and records in all pages.
fn initial_images() -> &'static [[[Vec<u8>; 4]; 3]; 4] {
    static IMAGES: OnceLock<[[[Vec<u8>; 4]; 3]; 4]> = OnceLock::new();
    let with_items = |private: bool, has_keys: bool| {
        [2, 3, 4].map(|pages| {
            let saved = |rounds| {
                let chip = Chip::new(vec![0xFF; pages * PAGE]);
                let mode = Mode { is_private: private, has_keys, ..Mode::default() };
                let mut bench = Bench { chip, mode, work: Work::default() };
                for round in 0..rounds {
                    if has_keys && round % 8 == 1 {
                        bench.save_key(round).expect("sound flash");
                    }
                    if private {
                        assert_eq!(bench.spent(), Ok(3 * u64::from(round)));
                        bench.pay(3 * u64::from(round + 1)).expect("sound flash");
                    }
                    bench.save(round).expect("sound flash");
                }
                bench.chip.0.take().bytes
            };
            // A record with a NaN can be written but must not be loaded.
            let chip = Chip::new(saved(3));
            let record =
                Record { campaign: 3, round: 9, representation: 0, head: &[1.0, f32::NAN, 0.0, 0.0] };
            open_store(&chip).save(&record).expect("sound flash");
            [vec![0xFF; pages * PAGE], vec![0; pages * PAGE], chip.0.take().bytes, saved(40)]
        })
    };
    IMAGES.get_or_init(|| {
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|(private, keys)| with_items(private, keys))
    })
}

/// Chip under test, and the work done so far.
struct Bench {
    chip: Chip,
    mode: Mode,
    work: Work,
}

impl Bench {
    /// Loads the record in the state after a reset, with nothing kept in RAM.
    fn load(&mut self) -> Result<Option<(RecordHeader, [f32; K])>, StoreError> {
        self.count(|store| {
            let mut head = [7.0; K];
            let loaded = store.load(&mut head);
            match loaded {
                Ok(Some(_)) => assert!(head.iter().all(|value| value.is_finite())),
                _ => assert_eq!(head, [7.0; K], "a failed load changed the head"),
            }
            loaded.map(|loaded| loaded.map(|loaded| (loaded, head)))
        })
    }

    fn save(&mut self, round: u32) -> Result<(), StoreError> {
        self.save_all(round..round + 1)
    }

    /// Saves the records of these rounds without a reset in between.
    fn save_all(&mut self, rounds: Range<u32>) -> Result<(), StoreError> {
        self.count(|store| {
            rounds.clone().try_for_each(|round| {
                let (RecordHeader { campaign, round, representation }, head) = test_record(round);
                store.save(&Record { campaign, round, representation, head: &head })
            })
        })
    }

    fn spent(&mut self) -> Result<u64, StoreError> {
        self.count(|store| store.load_spent())
    }

    fn pay(&mut self, spent: u64) -> Result<(), StoreError> {
        self.count(|store| store.save_spent(spent))
    }

    fn save_key(&mut self, round: u32) -> Result<(), StoreError> {
        self.count(|store| store.save_key(&test_key(round)))
    }

    fn erase_ahead(&mut self) -> Result<(), StoreError> {
        if self.mode.is_async {
            let mut store = self.open_async();
            return block_on(store.erase_ahead());
        }
        open_store(&self.chip).erase_ahead()
    }

    /// Checks that the loaded key is one of `keys`, or the key of a round that may have been saved, or that was saved.
    fn check_key(
        &mut self,
        keys: &mut Vec<Option<(u16, StoredKey)>>,
        saved: Option<u32>,
        attempted: u32,
        may_lose: bool,
    ) {
        // A store that could not read its ledger may not have read its keys either.
        let Ok(loaded) = self.count(|store| store.load_key()) else {
            assert!(!self.chip.is_sound());
            return;
        };
        let (old, new) = (keys.iter().map(|key| key.as_ref().map(|(_, key)| key)), test_key(attempted));
        let is_new = loaded.as_ref() == Some(&new);
        let is_old = saved.is_none() && old.into_iter().any(|known| known == loaded.as_ref());
        assert!(is_new || is_old || may_lose && saved.is_none(), "another key than those that were saved");
        let found = newest_keys(&self.chip.0.borrow().bytes);
        let found = found.into_iter().find(|key| key.as_ref().map(|(_, key)| key) == loaded.as_ref());
        *keys = vec![found.expect("a second implementation reads the same key")];
    }

    /// Runs an operation on a newly opened store, makes its items durable, and checks its number of flash operations.
    fn count<T: PartialEq + std::fmt::Debug>(
        &mut self,
        mut work: impl FnMut(&mut dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let before = self.chip.operations();
        let twin = self.chip.copy();
        let (result, passes) = if self.mode.is_async {
            (self.run_async(&mut work), ASYNC_PASSES)
        } else {
            (work(&mut open_store(&self.chip)), PASSES)
        };
        let operations = self.chip.operations() - before;
        let words = self.chip.0.borrow().bytes.len() / WORD;
        assert!(operations <= (passes * words) as u64, "{operations} operations on {words} words");
        self.work.steps += operations;
        if self.mode.is_async && self.chip.is_sound() && self.mode.polls == 0 {
            let mut store = open_store(&twin);
            if self.mode.is_private {
                store.load_spent().expect("sound flash");
            }
            assert_eq!(work(&mut store), result, "blocking and asynchronous stores differ");
            assert!(twin.0.borrow().bytes == self.chip.0.borrow().bytes, "the pages differ");
        }
        result
    }

    /// Opens an asynchronous store. If futures are dropped, the first one that opens the store is, too.
    fn open_async(&self) -> AsyncFlash {
        let capacity = self.chip.0.borrow().bytes.len() as u32;
        let open = || AsyncFlash::open(self.chip.clone(), 0..capacity, self.mode.is_private);
        let first = if self.mode.polls > 0 { poll(open(), self.mode.polls) } else { None };
        first.unwrap_or_else(|| block_on(open())).expect("whole pages")
    }

    /// Runs an operation on an asynchronous store, and commits.
    fn run_async<T>(
        &self,
        work: &mut impl FnMut(&mut dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut store = self.open_async();
        let result = work(&mut store)?;
        if !store.is_dirty() {
            return Ok(result);
        }
        if self.mode.polls > 0 {
            if let Some(written) = poll(store.commit(), self.mode.polls) {
                return written.map(|()| result);
            }
            assert!(store.is_dirty(), "an item counts as written although its commit was dropped");
            if self.mode.polls.is_multiple_of(2) {
                return Err(StoreError);
            }
        }
        let committed = block_on(store.commit());
        assert_eq!(committed.is_err(), store.is_dirty(), "{committed:?}");
        committed.map(|()| result)
    }
}

/// Returns scripts for all initial images, with noise in the page headers and in a record.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for settings in 0..48u8 {
        for (power, position) in [(0, 0u16), (0, 4), (3, 30), (20, 512), (200, 508)] {
            let [low, high] = position.to_le_bytes();
            seeds.push(vec![settings, power, 0, low, high, 6, 1, 0x80, 0xFF, 0, 0x7F, 0xFE]);
        }
        // Keys and asynchronous stores, with futures that are dropped early and late, on worn flash, with erases ahead.
        for (index, mode) in
            [1u8, 2, 3, 7, 10, 11, 6, 0x13, 0x23, 0x33, 0x43, 0x9B, 0xEB, 0xF7].into_iter().enumerate()
        {
            let power = [0, 1, 5, 20, 60][(index + usize::from(settings)) % 5];
            seeds.push(vec![settings, power, mode]);
            seeds.push(vec![settings, power, mode, 40, index as u8, 2, 0x0F, 0]);
        }
    }
    seeds
}
