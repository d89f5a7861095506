//! Fuzz target for the flash store of a device (record and privacy ledger) on flash with arbitrary contents
//! and power failures. Every read and write must succeed or fail within a bounded number of operations, and
//! the spent privacy budget must never decrease.

use std::sync::OnceLock;

use fedspan_client::store::{ALL_SPENT, FlashStore, Record, RecordHeader, Store, StoreError, record_len};

use crate::Work;
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

type Flash = FlashStore<Chip, BYTES>;

fn open_store(chip: &Chip) -> Flash {
    let capacity = chip.0.borrow().bytes.len() as u32;
    FlashStore::new(chip.clone(), 0..capacity).expect("whole pages")
}

fn test_record(round: u32) -> (RecordHeader, [f32; K]) {
    (RecordHeader { campaign: 3, round, representation: !round }, [round as f32, -1.0, 0.5, 0.0])
}

/// Runs one input. Two bytes of settings select the number of pages, the initial image, whether the device is
/// private, and when the power fails. Pieces of an image follow: position, length and bytes.
pub fn flash_image(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    let power_limit = match script.byte() {
        0 => usize::MAX,
        words => usize::from(words) * 4,
    };
    let pages = 2 + usize::from(settings % 3);
    let is_private = settings / 24 % 2 == 1;
    let image = initial_images()[usize::from(is_private)][pages - 2][usize::from(settings / 3 % 4)].clone();
    let mut bench = Bench { chip: Chip::new(image), work: Work { frames: 1, ..Work::default() } };
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
    // If foreign bytes were written and the power also fails during the repair, the newest copy may be lost,
    // because an older copy cannot be distinguished from damage. With only one of the two events all checks
    // below hold.
    let may_lose = is_foreign && power != usize::MAX;
    bench.chip.0.borrow_mut().power = power;
    if is_private {
        let result = bench.spent();
        assert!(
            result == Ok(spent) || power != usize::MAX && result == Err(StoreError),
            "{result:?} of {spent}"
        );
    }
    let result = bench.load();
    bench.work.refused = u64::from(matches!(result, Ok(None)));
    // With any image, a record whose save succeeded must be found after a reset.
    for round in 100..104 {
        let next = paid_range.end().saturating_add(3);
        if is_private && next < ALL_SPENT {
            paid_range = if bench.pay(next).is_ok() { next..=next } else { *paid_range.start()..=next };
        }
        if bench.save(round).is_ok() {
            bench.chip.0.borrow_mut().power = usize::MAX;
            assert_eq!(bench.load(), Ok(Some(test_record(round))));
        }
        if is_private && let Ok(spent) = bench.spent() {
            assert!(
                paid_range.contains(&spent) || spent == ALL_SPENT || may_lose,
                "{spent} of {paid_range:?}"
            );
            paid_range = spent..=spent.max(*paid_range.end());
        }
    }
    // With the power restored, saving must succeed.
    bench.chip.0.borrow_mut().power = usize::MAX;
    bench.save(200).expect("sound flash");
    assert_eq!(bench.load(), Ok(Some(test_record(200))));
    // The ledger is also checked if firmware without privacy has written to this flash, which then is not
    // blank: an existing ledger must survive, and no ledger may be created.
    let spent = bench.spent().expect("sound flash");
    let known = if is_private { paid_range.contains(&spent) } else { newest_copy == Some(spent) };
    assert!(known || spent == ALL_SPENT || may_lose, "{spent} of {initial:?} and {paid_range:?}");
    bench.work
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

/// Returns initial images without and with a ledger, for two, three and four pages: erased, all zero, a few
/// records of which the last holds a NaN, and records in all pages.
fn initial_images() -> &'static [[[Vec<u8>; 4]; 3]; 2] {
    static IMAGES: OnceLock<[[[Vec<u8>; 4]; 3]; 2]> = OnceLock::new();
    let with_ledger = |private: bool| {
        [2, 3, 4].map(|pages| {
            let saved = |rounds| {
                let chip = Chip::new(vec![0xFF; pages * PAGE]);
                let mut bench = Bench { chip, work: Work::default() };
                for round in 0..rounds {
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
    IMAGES.get_or_init(|| [with_ledger(false), with_ledger(true)])
}

/// Chip under test, and the work done so far.
struct Bench {
    chip: Chip,
    work: Work,
}

impl Bench {
    /// Loads the record in the state after a reset, with nothing kept in RAM.
    fn load(&mut self) -> Result<Option<(RecordHeader, [f32; K])>, StoreError> {
        let mut head = [7.0; K];
        let loaded = self.count(|store| store.load(&mut head));
        match loaded {
            Ok(Some(_)) => assert!(head.iter().all(|value| value.is_finite())),
            _ => assert_eq!(head, [7.0; K], "a failed load changed the head"),
        }
        loaded.map(|loaded| loaded.map(|loaded| (loaded, head)))
    }

    fn save(&mut self, round: u32) -> Result<(), StoreError> {
        let (RecordHeader { campaign, round, representation }, head) = test_record(round);
        self.count(|store| store.save(&Record { campaign, round, representation, head: &head }))
    }

    fn spent(&mut self) -> Result<u64, StoreError> {
        self.count(Store::load_spent)
    }

    fn pay(&mut self, spent: u64) -> Result<(), StoreError> {
        self.count(|store| store.save_spent(spent))
    }

    /// Runs an operation on a newly opened store and checks its number of flash operations.
    fn count<T>(&mut self, work: impl FnOnce(&mut Flash) -> T) -> T {
        let before = self.chip.operations();
        let result = work(&mut open_store(&self.chip));
        let operations = self.chip.operations() - before;
        let words = self.chip.0.borrow().bytes.len() / WORD;
        assert!(operations <= (PASSES * words) as u64, "{operations} operations on {words} words");
        self.work.steps += operations;
        result
    }
}

/// Returns scripts for all initial images, with noise in the page headers and in a record.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for settings in 0..48u8 {
        for (power, position) in [(0, 0u16), (0, 4), (3, 30), (20, 512), (200, 508)] {
            let [low, high] = position.to_le_bytes();
            seeds.push(vec![settings, power, low, high, 6, 1, 0x80, 0xFF, 0, 0x7F, 0xFE]);
        }
    }
    seeds
}
