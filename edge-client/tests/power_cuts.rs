//! Tests of power cuts during every write and erase of a run, and during every operation of the recovery
//! after such a cut. No counter in flash decreases, the record is the old or the new one, and the device
//! continues. An interrupted operation may leave any content that flash can hold.
//!
//! `cargo test` tries a second cut with some of the contents that the interrupted operation can leave. The
//! test of all contents takes some minutes:
//! `cargo test --release -p fedspan-client --features flash --test all -- power_cuts:: --ignored --nocapture`.
#![cfg(feature = "flash")]

use std::collections::HashSet;

use crate::torn_flash::{Tear, Torn, WORD, torn_erasures, torn_writes};
use fedspan_client::store::{FlashStore, Record, Store, StoreError, record_len};

const K: usize = 2;
pub const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

/// Store of a device.
pub trait DeviceStore: Store {
    /// Returns the number of erases of unusable content.
    fn erased(&self) -> u32;

    /// Erases the next page, if the device has time.
    fn erase_ahead(&mut self) -> Result<(), StoreError>;
}

impl<const W: usize> DeviceStore for FlashStore<Torn<W>, BYTES> {
    fn erased(&self) -> u32 {
        FlashStore::erased(self)
    }

    fn erase_ahead(&mut self) -> Result<(), StoreError> {
        FlashStore::erase_ahead(self)
    }
}

/// Opens the store of a device over a flash.
pub type Open<const W: usize> = fn(Torn<W>) -> Box<dyn DeviceStore>;

/// Opens a store over a blocking driver.
fn open_blocking<const W: usize>(flash: Torn<W>) -> Box<dyn DeviceStore> {
    let end = u32::try_from(flash.image().len()).unwrap();
    Box::new(FlashStore::<_, BYTES>::new(flash, 0..end).unwrap())
}

/// A device with flash words of `W` bytes: its number of pages, and the counters that it stores besides the record.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind<const W: usize = WORD> {
    pages: usize,
    keyed: bool,
    private: bool,
    /// True if the device erases the next page after each round, if that is not erased.
    erases_ahead: bool,
    /// True if the device gets a new key in each round.
    #[cfg_attr(not(feature = "key-rotation"), allow(dead_code, reason = "no keys are stored"))]
    rotates: bool,
    open: Open<W>,
}

/// Bounds of a counter at the next start: the last value that was saved successfully, and the largest value
/// whose save was attempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct CounterBounds {
    saved_value: u64,
    attempted: u64,
}

/// Reason for the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EndReason {
    /// The power was cut.
    Cut,
    /// An invariant is violated; the text describes it.
    Violated(String),
}

impl From<StoreError> for EndReason {
    fn from(_: StoreError) -> Self {
        Self::Cut
    }
}

fn check_invariant(holds: bool, broken: impl FnOnce() -> String) -> Result<(), EndReason> {
    if holds { Ok(()) } else { Err(EndReason::Violated(broken())) }
}

impl CounterBounds {
    /// Checks a value that was read.
    fn check_read(&mut self, number: u64, counter_name: &str) -> Result<(), EndReason> {
        let Self { saved_value, attempted } = *self;
        check_invariant((saved_value..=attempted).contains(&number), || {
            format!("{counter_name}: {number} is not in {saved_value}..={attempted}")
        })?;
        // The device may have used the value after reading it, so later values must not be less.
        self.saved_value = number;
        Ok(())
    }

    /// Saves the value increased by `by`.
    fn save(&mut self, by: u64, save: impl FnOnce(u64) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.attempted = self.saved_value + by;
        save(self.attempted)?;
        self.saved_value = self.attempted;
        Ok(())
    }
}

/// Expected content of the flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Known {
    spent: CounterBounds,
    handshakes: CounterBounds,
    /// Round of the last record whose save succeeded; 0 for none.
    saved: u32,
    /// Round of the last record whose save was attempted.
    begun: u32,
    /// Epoch of the device's key.
    #[cfg(feature = "key-rotation")]
    epoch: CounterBounds,
}

impl<const W: usize> DeviceKind<W> {
    /// Returns the device that gets a new key in each round, if this build has the feature.
    pub fn with_new_keys(self) -> Self {
        Self { rotates: cfg!(feature = "key-rotation"), ..self }
    }

    /// Starts the device and runs the given number of rounds. Checks all invariants.
    fn run(self, flash: &Torn<W>, known: &mut Known, rounds: u32) -> Result<(), EndReason> {
        let mut store = (self.open)(flash.clone());
        let outcome = self
            .boot_store(&mut *store, known)
            .and_then(|()| (0..rounds).try_for_each(|_| self.run_round(&mut *store, known)));
        check_invariant(outcome != Err(EndReason::Cut) || flash.is_dead(), || {
            "the store fails although the flash works".into()
        })?;
        check_invariant(store.erased() == 0, || "the store erased everything".into())?;
        outcome
    }

    /// Reads the store as a session does at its start.
    fn boot_store(self, store: &mut dyn DeviceStore, known: &mut Known) -> Result<(), EndReason> {
        if self.private {
            known.spent.check_read(store.load_spent()?, "spent")?;
        }
        let mut head = [7.0; K];
        let loaded = store.load(&mut head)?;
        let round = loaded.map_or(0, |loaded| loaded.round);
        check_invariant([known.saved, known.begun].contains(&round), || {
            format!("round {round} of {known:?}")
        })?;
        (known.saved, known.begun) = (round, round);
        if let Some(loaded) = loaded {
            let is_unchanged =
                loaded.campaign == 1 && loaded.representation == round ^ 77 && head == [round as f32, -0.5];
            check_invariant(is_unchanged, || format!("{loaded:?}, {head:?}"))?;
        }
        #[cfg(feature = "key-rotation")]
        if self.rotates {
            let key = store.load_key()?;
            let epoch = key.as_ref().map_or(0, |stored| stored.key.epoch());
            known.epoch.check_read(epoch.into(), "epoch")?;
            check_invariant(key.is_none_or(|key| key == key_of(epoch)), || format!("key of {epoch}"))?;
        }
        if self.keyed {
            known.handshakes.check_read(store.load_handshakes()?, "handshakes")?;
            // The device needs a new range of handshake numbers every few rounds.
            if known.handshakes.saved_value / 128 <= u64::from(known.saved) / 3 {
                known.handshakes.save(128, |reserved| store.save_handshakes(reserved))?;
            }
        }
        Ok(())
    }

    /// Charges a round and saves its record.
    fn run_round(self, store: &mut dyn DeviceStore, known: &mut Known) -> Result<(), EndReason> {
        if self.private {
            known.spent.save(7, |spent| store.save_spent(spent))?;
        }
        #[cfg(feature = "key-rotation")]
        if self.rotates {
            known.epoch.save(1, |epoch| store.save_key(&key_of(epoch.try_into().unwrap())))?;
        }
        let round = known.saved + 1;
        known.begun = round;
        let head = [round as f32, -0.5];
        store.save(&Record { campaign: 1, round, representation: round ^ 77, head: &head })?;
        known.saved = round;
        if self.erases_ahead {
            store.erase_ahead()?;
        }
        Ok(())
    }

    /// Repeats a run with the power cut in each operation, with each content that the operation can leave if
    /// `selected(operation, index of the content)` is true. Calls `handle_result` with the result.
    fn repeat_with_cuts(
        self,
        image: &[u8],
        known: Known,
        rounds: u32,
        selected: impl Fn(usize, usize) -> bool,
        mut handle_result: impl FnMut(usize, Tear, Vec<u8>, Known, Result<(), EndReason>),
    ) {
        let uncut = Torn::<W>::with(image.to_vec());
        // The caller checks the run without a cut.
        let _ = self.run(&uncut, &mut known.clone(), rounds);
        for (operation, erases) in uncut.done().into_iter().enumerate() {
            let seed = (image.len() + operation) as u64;
            let tears = if erases { torn_erasures(seed) } else { torn_writes(seed) };
            for (_, tear) in
                tears.into_iter().enumerate().filter(|(tear_index, _)| selected(operation, *tear_index))
            {
                let (flash, mut known) = (Torn::<W>::cut(image, operation, tear), known);
                let ended = self.run(&flash, &mut known, rounds);
                handle_result(operation, tear, flash.image(), known, ended);
            }
        }
    }

    /// Starts and runs the device twice without a cut.
    fn run_twice(self, image: Vec<u8>, known: &mut Known, rounds: u32) -> Result<(), EndReason> {
        let flash = Torn::<W>::with(image);
        self.run(&flash, known, rounds)?;
        self.run(&flash, known, rounds)
    }
}

/// Numbers of cuts and of violations.
#[derive(Debug, Default)]
struct CutCounts {
    single_cuts: usize,
    double_cuts: usize,
    violations: usize,
}

impl CutCounts {
    /// Counts and prints a violation, if any. Returns true if there is none.
    fn count_violation(
        &mut self,
        ended: Result<(), EndReason>,
        describe_cut: impl FnOnce() -> String,
    ) -> bool {
        let Err(EndReason::Violated(reason)) = ended else { return true };
        self.violations += 1;
        if self.violations <= 12 {
            println!("{}: {reason}", describe_cut());
        }
        false
    }
}

/// Cuts runs of three rounds until every page has been erased three times. After each cut, also cuts the recovery and one
/// round. After the second cut, two runs must succeed. Unless `all_tears` is set, each second cut is tried with
/// only some of the contents that it can leave, in turn.
fn cut_everywhere<const W: usize>(device: DeviceKind<W>, all_tears: bool) -> CutCounts {
    const ROUNDS: u32 = 3;
    let (mut counts, mut seen) = (CutCounts::default(), HashSet::new());
    let (flash, mut known) = (Torn::<W>::new(device.pages), Known::default());
    // The runs continue until every page has been reused a few times.
    while flash.erased() < 3 * device.pages {
        device.repeat_with_cuts(
            &flash.image(),
            known,
            ROUNDS,
            |_, _| true,
            |operation, tear, image, known, ended| {
                counts.single_cuts += 1;
                // Different cuts can leave the same content, which is examined once.
                if !counts.count_violation(ended, || format!("{device:?}, {operation}, {tear:?}"))
                    || !seen.insert((image.clone(), known))
                {
                    return;
                }
                let outcome = device.run_twice(image.clone(), &mut known.clone(), 2);
                if !counts.count_violation(outcome, || format!("{device:?}, after {operation}, {tear:?}")) {
                    return;
                }
                let images = seen.len();
                let selected = |second, tear_index| all_tears || tear_index % 7 == (images + second) % 7;
                device.repeat_with_cuts(
                    &image,
                    known,
                    1,
                    selected,
                    |second, second_tear, image, mut known, ended| {
                        counts.double_cuts += 1;
                        let outcome = if ended == Err(EndReason::Cut) {
                            device.run_twice(image, &mut known, 1)
                        } else {
                            ended
                        };
                        counts.count_violation(outcome, || {
                            format!("{device:?}, after {operation}, {tear:?}, {second}, {second_tear:?}")
                        });
                    },
                );
            },
        );
        device.run(&flash, &mut known, ROUNDS).unwrap();
    }
    counts
}

/// Returns the kinds of devices. The quick test uses the first three.
pub fn device_kinds<const W: usize>(open: Open<W>, erases_ahead: bool) -> Vec<DeviceKind<W>> {
    let device =
        |pages, keyed, private| DeviceKind { pages, keyed, private, erases_ahead, rotates: false, open };
    vec![
        device(2, true, true),
        device(2, false, false),
        device(3, true, false),
        device(2, true, false),
        device(3, true, true),
        device(4, false, true),
    ]
}

/// Cuts the runs of several kinds of devices, and checks that no invariant is violated.
pub fn cut_device_kinds<const W: usize>(devices: &[DeviceKind<W>], all_tears: bool) {
    let mut sum = CutCounts::default();
    for &device in devices {
        let counts = cut_everywhere(device, all_tears);
        println!(
            "{device:?}: {} cuts, {} pairs of cuts, {} violations",
            counts.single_cuts, counts.double_cuts, counts.violations
        );
        sum.single_cuts += counts.single_cuts;
        sum.double_cuts += counts.double_cuts;
        sum.violations += counts.violations;
    }
    println!("{} cuts, {} pairs of cuts, {} violations", sum.single_cuts, sum.double_cuts, sum.violations);
    assert_eq!(sum.violations, 0);
    assert!(sum.single_cuts > 1_000 && sum.double_cuts > 10_000);
}

#[test]
fn one_or_two_power_cuts_lose_nothing() {
    cut_device_kinds::<WORD>(&device_kinds(open_blocking, false)[..3], false);
}

/// Returns the key of an epoch, whose bytes contain the starts of other items.
#[cfg(feature = "key-rotation")]
fn key_of(epoch: u16) -> fedspan_client::store::StoredKey {
    let text = b"FSPHFSPLPAIDFSGNFSPRFSKYFSPHFSP";
    let mut bytes = [epoch as u8; 32];
    bytes.iter_mut().zip(text).for_each(|(target, byte)| *target = *byte);
    let key = fedspan_client::secure::Key::new(epoch, bytes);
    fedspan_client::store::StoredKey { key, provisioned: u32::from_le_bytes(*b"FSPL") }
}

#[test]
#[cfg(feature = "key-rotation")]
fn one_or_two_power_cuts_while_keys_are_replaced_lose_no_key() {
    cut_device_kinds::<WORD>(&[device_kinds(open_blocking, false)[0].with_new_keys()], false);
    cut_device_kinds::<1>(&[device_kinds(open_blocking, false)[0].with_new_keys()], false);
}

/// Words of one byte are the hardest: a copy of a counter may end with a byte that looks erased.
#[test]
fn one_or_two_power_cuts_with_words_of_one_byte_lose_nothing() {
    cut_device_kinds::<1>(&device_kinds(open_blocking, false)[..1], false);
}

#[test]
fn one_or_two_power_cuts_of_devices_that_erase_ahead_lose_nothing() {
    cut_device_kinds::<WORD>(&device_kinds(open_blocking, true)[..1], false);
}

#[test]
#[ignore = "minutes"]
fn one_or_two_power_cuts_with_any_remains_lose_nothing() {
    cut_device_kinds::<WORD>(&device_kinds(open_blocking, false), true);
    cut_device_kinds::<1>(&device_kinds(open_blocking, false), true);
    cut_device_kinds::<WORD>(&device_kinds(open_blocking, true), true);
}

/// The power fails in every operation of the first start on pages of version 2, and again in every operation of the second one. The
/// counters are never below their values.
#[test]
fn power_cuts_while_version_2_is_replaced_lose_no_counter() {
    /// Reads the counters, and saves a record and larger counters.
    fn start(flash: &Torn) -> Result<(u64, u64), StoreError> {
        let mut store = FlashStore::<_, BYTES>::new(flash.clone(), 0..2 * 512).unwrap();
        let read = (store.load_spent()?, store.load_handshakes()?);
        store.save(&Record { campaign: 1, round: 1, representation: 1, head: &[0.5; K] })?;
        store.save_spent(read.0.saturating_add(1))?;
        store.save_handshakes(read.1 + 128)?;
        Ok(read)
    }

    let (mut cuts, mut erasures) = (0, 0);
    for (name, spent, handshakes) in [
        ("private_one", 21, 128),
        ("private_full", 63, 128),
        ("private_many", 2100, 3200),
        ("ledger_only", 147, 0),
    ] {
        let path = format!("{}/tests/images/version-2/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        let image = std::fs::read(path).unwrap();
        let check = |read: Result<(u64, u64), StoreError>| {
            if let Ok((read_spent, read_handshakes)) = read {
                let is_possible = (spent..spent + 3).contains(&read_spent)
                    && [0, 128, 256].contains(&(read_handshakes.wrapping_sub(handshakes)));
                assert!(is_possible, "{name}: {read_spent}, {read_handshakes}");
            }
        };
        let uncut = Torn::with(image.clone());
        check(start(&uncut));
        erasures += uncut.erased();
        for (operation, erases) in uncut.done().into_iter().enumerate() {
            let tears = if erases { torn_erasures(operation as u64) } else { torn_writes(operation as u64) };
            for (number, tear) in tears.into_iter().enumerate() {
                let first = Torn::cut(&image, operation, tear);
                check(start(&first));
                let second = Torn::with(first.image());
                check(start(&second));
                for (operation, erases) in second.done().into_iter().enumerate() {
                    let tears = if erases { torn_erasures(7) } else { torn_writes(7) };
                    let tear = tears[(operation + number) % tears.len()];
                    let cut = Torn::cut(&first.image(), operation, tear);
                    check(start(&cut));
                    let last = Torn::with(cut.image());
                    check(Ok(start(&last).unwrap()));
                    cuts += 1;
                }
            }
        }
    }
    println!("{cuts} pairs of cuts, {erasures} erased pages without a cut");
    assert!(cuts > 1_000);
}
