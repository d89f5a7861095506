//! Tests that the flash format does not change. `images/` has golden images of the pages of each kind of
//! device. This version writes them byte for byte, opens them with the values in their table, and continues
//! from them. The content of another version is refused: it is never treated as blank, and its ledger counts
//! as spent. `FEDSPAN_REGENERATE_VECTORS=1` rewrites the files.
#![cfg(feature = "flash")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::nor_flash::{Nor, PAGE, WORD};
#[cfg(feature = "key-rotation")]
use fedspan_client::secure::{KEY, Key};
#[cfg(feature = "key-rotation")]
use fedspan_client::store::StoredKey;
use fedspan_client::store::{ALL_SPENT, FlashStore, Record, RecordHeader, Store, StoreError, record_len};
use fedspan_protocol::frame::crc32c;

const K: usize = 2;
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);
const PAGES: usize = 2;

type Flash = FlashStore<Nor, BYTES>;

/// A golden image, and the properties of the device that writes it.
struct Golden {
    name: &'static str,
    meaning: &'static str,
    /// True if the device has a key.
    keyed: bool,
    /// True if the device has a privacy budget.
    private: bool,
    rounds: u32,
    /// True if the whole budget is spent.
    spent: bool,
    /// True if the server has sent a new key.
    rekeyed: bool,
}

impl Golden {
    /// Returns the written values: handshakes, spent budget, and round of the record.
    fn expected_values(&self) -> (u64, u64, Option<u32>) {
        let handshakes = if self.keyed { 128 * u64::from(self.rounds.div_ceil(4)) } else { 0 };
        let spent = if self.spent { ALL_SPENT } else { 21 * u64::from(self.rounds) };
        (handshakes, if self.private { spent } else { 0 }, (self.rounds > 0).then_some(self.rounds))
    }

    /// Returns the newest key that the server has sent.
    #[cfg(feature = "key-rotation")]
    fn expected_key(&self) -> Option<StoredKey> {
        self.rekeyed.then(|| key_of((self.rounds - 1) / 30 * 30 + 1))
    }

    /// Returns the image that this version writes.
    fn written_image(&self) -> Vec<u8> {
        let nor = Nor::new(PAGES);
        let mut store = open_store(&nor);
        for round in 1..=self.rounds {
            if self.private {
                assert!(store.load_spent().is_ok());
                store.save_spent(21 * u64::from(round)).unwrap();
            }
            if self.keyed && round % 4 == 1 {
                store.save_handshakes(128 * u64::from(round.div_ceil(4))).unwrap();
            }
            save_record(&mut store, round).unwrap();
            #[cfg(feature = "key-rotation")]
            if self.rekeyed && round % 30 == 1 {
                store.save_key(&key_of(round)).unwrap();
            }
        }
        if self.spent {
            store.save_spent(ALL_SPENT).unwrap();
        }
        assert_eq!(store.erased(), 0);
        nor.image()
    }

    fn read_file(&self) -> Vec<u8> {
        std::fs::read(images_folder().join(format!("{}.bin", self.name))).unwrap()
    }
}

/// Returns all golden images.
fn all_images() -> Vec<Golden> {
    let golden = |name, meaning, keyed, private, rounds, spent| Golden {
        name,
        meaning,
        keyed,
        private,
        rounds,
        spent,
        rekeyed: false,
    };
    let rekeyed =
        |name, meaning, rounds| Golden { rekeyed: true, ..golden(name, meaning, true, false, rounds, false) };
    vec![
        golden("blank", "a new device", false, false, 0, false),
        golden("open_one", "no key, no privacy, one round", false, false, 1, false),
        golden("open_full", "the same, no room for another record in the page", false, false, 14, false),
        golden("open_many", "the same after pages were erased", false, false, 100, false),
        golden("keyed_one", "with a key, one round", true, false, 1, false),
        golden("keyed_many", "with a key, after pages were erased", true, false, 100, false),
        golden("private_one", "with a key and a budget, one round", true, true, 1, false),
        golden("private_full", "the same, no room for another round in the page", true, true, 3, false),
        golden("private_many", "the same after pages were erased", true, true, 100, false),
        golden("private_spent", "the same, all of the budget spent", true, true, 5, true),
        golden("ledger_only", "a budget and no key", false, true, 7, false),
        rekeyed("rekeyed_one", "with a key that the server has sent, one round", 1),
        rekeyed("rekeyed_many", "with the second such key, after pages were erased", 50),
    ]
}

fn images_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

fn open_store(nor: &Nor) -> Flash {
    FlashStore::new(nor.clone(), 0..(PAGES * PAGE) as u32).unwrap()
}

/// Returns the record of a round, whose content depends only on the number of the round.
fn record_of(round: u32) -> (RecordHeader, [f32; K]) {
    let loaded = RecordHeader {
        campaign: 0x0123_4567_89AB_CDEF,
        round,
        representation: round.wrapping_mul(0x9E37_79B9),
    };
    (loaded, [0.5 * round as f32, -1.25])
}

/// Returns the key that the server has sent in a round, whose content depends only on the number of the round.
#[cfg(feature = "key-rotation")]
fn key_of(round: u32) -> StoredKey {
    let mut secret = [round as u8; KEY];
    // Bytes that look like the start of a counter, which a server can choose.
    secret[..4].copy_from_slice(b"FSPH");
    StoredKey { key: Key::new(round as u16, secret), provisioned: 0x89AB_CDEF }
}

fn save_record(store: &mut Flash, round: u32) -> Result<(), StoreError> {
    let (RecordHeader { campaign, round, representation }, head) = record_of(round);
    store.save(&Record { campaign, round, representation, head: &head })
}

/// Values read from flash: handshakes, spent budget, and round of the record.
type Values = (Result<u64, StoreError>, u64, Option<u32>);

/// Opens the store as a device with all features does, and returns its values. The record must be complete.
fn open_device(nor: &Nor, private: bool) -> (Flash, Values) {
    let mut store = open_store(nor);
    let spent = if private { store.load_spent().unwrap() } else { 0 };
    let mut head = [7.0; K];
    let loaded = store.load(&mut head).unwrap();
    match loaded {
        Some(loaded) => assert_eq!((loaded, head), record_of(loaded.round)),
        None => assert_eq!(head, [7.0; K]),
    }
    let handshakes = store.load_handshakes();
    assert_eq!(store.erased(), 0);
    (store, (handshakes, spent, loaded.map(|loaded| loaded.round)))
}

/// Returns the text of the README in the folder of the images.
fn format_readme() -> String {
    let mut text = String::from(
        "# Golden flash images\n\n\
         What version 3 of `FlashStore` has in flash: two pages of 512 bytes, words of 4, a head of 2 x 1. `edge-client/tests/flash_images.rs`\n\
         fails when this version writes other bytes, or reads other values. Of a record of round `r`, the campaign is\n\
         0x0123456789abcdef, the representation's hash `r * 0x9e3779b9` (modulo 2^32), the head `[r / 2, -1.25]`. A key of round `r` has\n\
         the epoch `r` and 32 bytes `r`, of which the first four are `FSPH`; it was sent in round 1, or 31.\n\n\
         A change of the format keeps these files as they are, in a folder of their own, and a test that opens or refuses\n\
         each. `version-2` has the files of that version, with the same values; this version reads the counters and not the record.\n\
         Written anew by\n\n\
         ```sh\nFEDSPAN_REGENERATE_VECTORS=1 cargo test -p fedspan-client --features flash,key-rotation --test all -- flash_images::\n```\n\n\
         | file | meaning | handshakes | spent | round of the record |\n| --- | --- | ---: | ---: | ---: |\n",
    );
    for golden in all_images() {
        let (handshakes, spent, round) = golden.expected_values();
        let round = round.map_or_else(|| "none".to_owned(), |round| round.to_string());
        let Golden { name, meaning, .. } = golden;
        writeln!(text, "| `{name}.bin` | {meaning} | {handshakes} | {spent} | {round} |").unwrap();
    }
    text
}

#[test]
fn images_are_written_byte_for_byte() {
    let mut files: Vec<(String, Vec<u8>)> =
        all_images().iter().map(|golden| (format!("{}.bin", golden.name), golden.written_image())).collect();
    files.push(("README.md".into(), format_readme().into_bytes()));
    // Firmware without stored keys cannot write the images that have one.
    let can_write = |name: &str| cfg!(feature = "key-rotation") || !name.starts_with("rekeyed");
    for (name, bytes) in files.into_iter().filter(|(name, _)| can_write(name)) {
        let path = images_folder().join(&name);
        if std::env::var_os("FEDSPAN_REGENERATE_VECTORS").is_some_and(|value| value == "1") {
            std::fs::write(path, bytes).unwrap();
        } else {
            assert!(std::fs::read(path).ok() == Some(bytes), "{name} differs: has the format changed?");
        }
    }
}

#[test]
fn images_open_with_their_values_and_continue() {
    for golden in all_images() {
        let nor = Nor::with(golden.read_file());
        let (handshakes, spent, round) = golden.expected_values();
        for _ in 0..2 {
            assert_eq!(
                open_device(&nor, golden.private).1,
                (Ok(handshakes), spent, round),
                "{}",
                golden.name
            );
        }
        #[cfg(feature = "key-rotation")]
        assert_eq!(open_store(&nor).load_key(), Ok(golden.expected_key()), "{}", golden.name);
        for n in 1..60 {
            let (mut store, _) = open_device(&nor, golden.private);
            let round = golden.rounds + n;
            let (handshakes, later_spent) = (handshakes + 128 * u64::from(n), spent.saturating_add(n.into()));
            if golden.private {
                store.save_spent(later_spent).unwrap();
            }
            store.save_handshakes(handshakes).unwrap();
            save_record(&mut store, round).unwrap();
            let spent = if golden.private { later_spent } else { 0 };
            assert_eq!(
                open_device(&nor, golden.private).1,
                (Ok(handshakes), spent, Some(round)),
                "{}",
                golden.name
            );
            #[cfg(feature = "key-rotation")]
            assert_eq!(open_store(&nor).load_key(), Ok(golden.expected_key()), "{}", golden.name);
        }
    }
}

/// Returns the image as another version might write it: whole items with another record version and other magics of the counters.
fn as_other_version(image: &[u8]) -> Vec<u8> {
    let mut altered = image.to_vec();
    for start in (0..image.len()).step_by(WORD) {
        let item = &image[start..];
        let (length, changed, by) = match item.first_chunk() {
            Some(b"FSPR") => (12 + usize::from(u16::from_le_bytes([item[4], item[5]])), 8, 1),
            Some(b"FSPL") => (20, 3, 7),
            Some(b"FSPH" | b"FSGN") => (16, 3, 7),
            _ => continue,
        };
        let (checked, check) = item[..length].split_last_chunk().unwrap();
        assert_eq!(crc32c(checked).to_le_bytes(), *check, "unexpected layout at {start}");
        let item = &mut altered[start..start + length];
        item[changed] += by;
        let (checked, check) = item.split_last_chunk_mut().unwrap();
        *check = crc32c(checked).to_le_bytes();
    }
    altered
}

/// Pages that version 2 has written keep their counters and their ledger. Their record counts as missing, so that the device fits
/// its head again.
#[test]
fn pages_of_version_2_keep_their_counters() {
    // Version 2 stored no keys.
    for golden in all_images().iter().filter(|golden| !golden.rekeyed) {
        let path = images_folder().join("version-2").join(format!("{}.bin", golden.name));
        let nor = Nor::with(std::fs::read(path).unwrap());
        let (handshakes, spent, round) = golden.expected_values();
        // Without a round there is no ledger, but the pages are not blank unless the device is new.
        let spent = if golden.private || round.is_none() { spent } else { ALL_SPENT };
        for private in [false, true] {
            for _ in 0..2 {
                let (_, values) = open_device(&nor, private);
                assert_eq!(
                    values,
                    (Ok(handshakes), if private { spent } else { 0 }, None),
                    "{}",
                    golden.name
                );
            }
        }
        for n in 1..60 {
            let (mut store, _) = open_device(&nor, true);
            store.save_handshakes(handshakes + 128 * u64::from(n)).unwrap();
            store.save_spent(spent.saturating_add(n.into())).unwrap();
            save_record(&mut store, n).unwrap();
            let mut head = [0.0; K];
            let mut store = open_store(&nor);
            assert_eq!(store.load_spent(), Ok(spent.saturating_add(n.into())));
            assert_eq!(store.load_handshakes(), Ok(handshakes + 128 * u64::from(n)));
            assert_eq!(store.load(&mut head).unwrap().map(|loaded| loaded.round), Some(n), "{}", golden.name);
        }
    }
}

#[test]
fn another_version_is_refused_and_never_taken_for_blank() {
    let (mut unreadable_counters, mut spent_ledgers) = (0, 0);
    for golden in all_images().iter().filter(|golden| golden.rounds > 0) {
        let image = as_other_version(&golden.read_file());
        let nor = Nor::with(image);
        for _ in 0..2 {
            // The first reads are without privacy, which write nothing.
            let (_, (handshakes, _, round)) = open_device(&nor, false);
            assert_eq!((handshakes.is_err(), round), (golden.keyed, None), "{}", golden.name);
            unreadable_counters += usize::from(golden.keyed);
        }
        for _ in 0..2 {
            let (_, (handshakes, reported_spent, round)) = open_device(&nor, true);
            assert_eq!(
                (handshakes.is_err(), reported_spent, round),
                (golden.keyed, ALL_SPENT, None),
                "{}",
                golden.name
            );
            spent_ledgers += 1;
        }
        // A record can be saved again.
        save_record(&mut open_store(&nor), 9).unwrap();
        assert_eq!(open_device(&nor, true).1.1, ALL_SPENT);
        assert_eq!(open_device(&nor, true).1.2, Some(9));
    }
    assert!(unreadable_counters > 0 && spent_ledgers > 0);
}
