//! The record and the privacy ledger in flash that may hold anything, in pages that may stop working: they are read or not,
//! the next ones are kept or refused, in a bounded number of operations; and what is spent never falls.

use std::sync::OnceLock;

use fedspan_client::store::{ALL_SPENT, FlashStore, Record, RecordHeader, Store, StoreError, record_len};

use crate::Work;
use crate::chip::{Chip, PAGE, WORD};
use crate::reference;
use crate::script::Script;

const K: usize = 4;
/// A head of 4 x 1, in whole words.
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

/// How often every word may be looked at in one load or save. A page that is full of foreign records is emptied one record
/// at a time, and each is looked for in all pages: no more often than a page has records of eight bytes and a word.
const PASSES: usize = 8 + PAGE / (8 + WORD);

type Flash = FlashStore<Chip, BYTES>;

fn store(chip: &Chip) -> Flash {
    let end = chip.0.borrow().bytes.len() as u32;
    FlashStore::new(chip.clone(), 0..end).expect("whole pages")
}

fn record(round: u32) -> (RecordHeader, [f32; K]) {
    (RecordHeader { campaign: 3, round, representation: !round }, [round as f32, -1.0, 0.5, 0.0])
}

/// Two bytes of settings (pages and what is in them at first, whether the device is private, when the power goes), then
/// pieces of an image: where, how long, and the bytes.
pub fn flash_image(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    let power = match script.byte() {
        0 => usize::MAX,
        words => usize::from(words) * 4,
    };
    let pages = 2 + usize::from(settings % 3);
    let private = settings / 24 % 2 == 1;
    let image = images()[usize::from(private)][pages - 2][usize::from(settings / 3 % 4)].clone();
    let mut bench = Bench { chip: Chip::new(image), work: Work { frames: 1, ..Work::default() } };
    let full = [usize::MAX, power][usize::from(settings / 12 % 2)];
    let mut spoilt = false;
    while let Some(low) = script.next() {
        spoilt = true;
        let at = usize::from(u16::from_le_bytes([low, script.byte()]));
        let length = script.index();
        let mut chip = bench.chip.0.borrow_mut();
        let (first, size) = (at % chip.bytes.len(), chip.bytes.len());
        for (offset, byte) in script.take(length).iter().enumerate() {
            chip.bytes[(first + offset) % size] = *byte;
        }
    }
    // What is spent by the bytes that are there, and what it has been since.
    let were = copies(&bench.chip.0.borrow().bytes);
    let was = were.iter().copied().max();
    let spent = was.unwrap_or_else(|| begun(&bench.chip.0.borrow().bytes));
    let mut paid = spent..=spent;
    // Where somebody else has written, and the power goes while that is mended, the newest copy may go with it, and what is
    // older is damage that nothing can tell. Of one or the other alone everything below holds.
    let lost = spoilt && full != usize::MAX;
    bench.chip.0.borrow_mut().power = full;
    if private {
        let found = bench.spent();
        assert!(found == Ok(spent) || full != usize::MAX && found == Err(StoreError), "{found:?} of {spent}");
    }
    let found = bench.load();
    bench.work.refused = u64::from(matches!(found, Ok(None)));
    // Whatever was there: while the power lasts, what is saved is there after a reset.
    for round in 100..104 {
        let next = paid.end().saturating_add(3);
        if private && next < ALL_SPENT {
            paid = if bench.pay(next).is_ok() { next..=next } else { *paid.start()..=next };
        }
        if bench.save(round).is_ok() {
            bench.chip.0.borrow_mut().power = usize::MAX;
            assert_eq!(bench.load(), Ok(Some(record(round))));
        }
        if private && let Ok(spent) = bench.spent() {
            assert!(paid.contains(&spent) || spent == ALL_SPENT || lost, "{spent} of {paid:?}");
            paid = spent..=spent.max(*paid.end());
        }
    }
    // And once it is back.
    bench.chip.0.borrow_mut().power = usize::MAX;
    bench.save(200).expect("sound flash");
    assert_eq!(bench.load(), Ok(Some(record(200))));
    // Also where a firmware without privacy has been at it, which leaves no flash blank: a ledger that was there before it
    // is there still, and there is none to begin.
    let spent = bench.spent().expect("sound flash");
    let known = if private { paid.contains(&spent) } else { was == Some(spent) };
    assert!(known || spent == ALL_SPENT || lost, "{spent} of {were:?} and {paid:?}");
    bench.work
}

/// What a ledger's copy begins with.
const MAGIC: &[u8; 8] = b"FSPLPAID";

/// What these bytes say by a second reading: all whole copies.
fn copies(bytes: &[u8]) -> Vec<u64> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let whole = |copy: &&[u8]| {
        copy.starts_with(MAGIC) && number(&copy[16..]) == u64::from(reference::crc32c(&copy[..16]))
    };
    bytes.windows(20).filter(whole).map(|copy| number(&copy[8..16])).collect()
}

/// What they say where there is no copy: nothing if they are blank, or but for the places where a device begins its ledger, the next
/// one each time that the power went in the one before; and else everything.
fn begun(bytes: &[u8]) -> u64 {
    let place = bytes.len() - PAGE / 2 + 20;
    let first = [&MAGIC[..], &[0; 8]].concat();
    let first = [&first[..], &reference::crc32c(&first).to_le_bytes()].concat();
    let places = place..bytes.len() - WORD;
    let blank = bytes.iter().enumerate().all(|(at, byte)| {
        let written = if places.contains(&at) { first[(at - place) % first.len()] } else { 0xFF };
        byte & written == written
    });
    if blank { 0 } else { ALL_SPENT }
}

/// Without a ledger and with one, for two, three and four pages: erased, all zero, a few records of this firmware of which
/// the last is no number, and records in all pages.
fn images() -> &'static [[[Vec<u8>; 4]; 3]; 2] {
    static IMAGES: OnceLock<[[[Vec<u8>; 4]; 3]; 2]> = OnceLock::new();
    let of = |private: bool| {
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
            // A record of something that is no number can be written, and must not come back.
            let chip = Chip::new(saved(3));
            let record =
                Record { campaign: 3, round: 9, representation: 0, head: &[1.0, f32::NAN, 0.0, 0.0] };
            store(&chip).save(&record).expect("sound flash");
            [vec![0xFF; pages * PAGE], vec![0; pages * PAGE], chip.0.take().bytes, saved(40)]
        })
    };
    IMAGES.get_or_init(|| [of(false), of(true)])
}

struct Bench {
    chip: Chip,
    work: Work,
}

impl Bench {
    /// After a reset each time, since nothing is kept in RAM.
    fn load(&mut self) -> Result<Option<(RecordHeader, [f32; K])>, StoreError> {
        let mut head = [7.0; K];
        let loaded = self.count(|store| store.load(&mut head));
        match loaded {
            Ok(Some(_)) => assert!(head.iter().all(|value| value.is_finite())),
            _ => assert_eq!(head, [7.0; K], "nothing is there, so nothing is written"),
        }
        loaded.map(|loaded| loaded.map(|loaded| (loaded, head)))
    }

    fn save(&mut self, round: u32) -> Result<(), StoreError> {
        let (RecordHeader { campaign, round, representation }, head) = record(round);
        self.count(|store| store.save(&Record { campaign, round, representation, head: &head }))
    }

    fn spent(&mut self) -> Result<u64, StoreError> {
        self.count(Store::load_spent)
    }

    fn pay(&mut self, spent: u64) -> Result<(), StoreError> {
        self.count(|store| store.save_spent(spent))
    }

    fn count<T>(&mut self, work: impl FnOnce(&mut Flash) -> T) -> T {
        let before = self.chip.operations();
        let result = work(&mut store(&self.chip));
        let operations = self.chip.operations() - before;
        let words = self.chip.0.borrow().bytes.len() / WORD;
        assert!(operations <= (PASSES * words) as u64, "{operations} operations on {words} words");
        self.work.steps += operations;
        result
    }
}

/// Images of every kind, with noise in the pages' headers and in a record.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for settings in 0..48u8 {
        for (power, at) in [(0, 0u16), (0, 4), (3, 30), (20, 512), (200, 508)] {
            let [low, high] = at.to_le_bytes();
            seeds.push(vec![settings, power, low, high, 6, 1, 0x80, 0xFF, 0, 0x7F, 0xFE]);
        }
    }
    seeds
}
