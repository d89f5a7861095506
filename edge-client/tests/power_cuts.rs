//! The power goes in every write and every erasure, once, and again in every one of what follows: nothing that lies in flash
//! goes back, the record is the old one or the new one, and the device carries on. What an operation leaves that was
//! not finished is anything that flash can hold then.
//!
//! `cargo test` tries each second cut with one of the things that it can leave; all of them, some minutes long:
//! `cargo test --release -p fedspan-client --features flash --test all -- power_cuts:: --ignored --nocapture`.
#![cfg(feature = "flash")]

use std::collections::HashSet;

use crate::torn_flash::{Tear, Torn, WORD, torn_erasures, torn_writes};
use fedspan_client::store::{FlashStore, Record, Store, StoreError, record_len};

const K: usize = 2;
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

/// A device: how many pages it has, and what it keeps there beside the record.
#[derive(Clone, Copy, Debug)]
struct World {
    pages: usize,
    keyed: bool,
    private: bool,
}

/// What a device must find, at its next start, of a number that only grows: at least what was promised, at most what was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Number {
    promised: u64,
    tried: u64,
}

/// Why a life ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    Cut,
    /// A law is broken.
    Violated(String),
}

impl From<StoreError> for Ended {
    fn from(_: StoreError) -> Self {
        Self::Cut
    }
}

fn law(holds: bool, broken: impl FnOnce() -> String) -> Result<(), Ended> {
    if holds { Ok(()) } else { Err(Ended::Violated(broken())) }
}

impl Number {
    fn found(&mut self, number: u64, what: &str) -> Result<(), Ended> {
        let Self { promised, tried } = *self;
        law((promised..=tried).contains(&number), || {
            format!("{what}: {number} is not in {promised}..={tried}")
        })?;
        // What was read once was perhaps acted upon.
        self.promised = number;
        Ok(())
    }

    fn save(&mut self, by: u64, save: impl FnOnce(u64) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.tried = self.promised + by;
        save(self.tried)?;
        self.promised = self.tried;
        Ok(())
    }
}

/// What is in flash, as far as somebody outside can know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Known {
    spent: Number,
    handshakes: Number,
    /// The round of the record that was saved last, 0 for none, and of one that was begun.
    saved: u32,
    begun: u32,
}

impl World {
    /// One start, and so many rounds.
    fn live(self, flash: &Torn, known: &mut Known, rounds: u32) -> Result<(), Ended> {
        let end = u32::try_from(flash.image().len()).unwrap();
        let mut store = FlashStore::<_, BYTES>::new(flash.clone(), 0..end).unwrap();
        let lived = self
            .boot(&mut store, known)
            .and_then(|()| (0..rounds).try_for_each(|_| self.round(&mut store, known)));
        law(lived != Err(Ended::Cut) || flash.is_dead(), || {
            "the flash works, and the store does not".into()
        })?;
        law(store.erased() == 0, || "all was given up".into())?;
        lived
    }

    /// As a session begins.
    fn boot(self, store: &mut FlashStore<Torn, BYTES>, known: &mut Known) -> Result<(), Ended> {
        if self.private {
            known.spent.found(store.load_spent()?, "spent")?;
        }
        let mut head = [7.0; K];
        let loaded = store.load(&mut head)?;
        let round = loaded.map_or(0, |loaded| loaded.round);
        law([known.saved, known.begun].contains(&round), || format!("round {round} of {known:?}"))?;
        (known.saved, known.begun) = (round, round);
        if let Some(loaded) = loaded {
            let same =
                loaded.campaign == 1 && loaded.representation == round ^ 77 && head == [round as f32, -0.5];
            law(same, || format!("{loaded:?}, {head:?}"))?;
        }
        if self.keyed {
            known.handshakes.found(store.load_handshakes()?, "handshakes")?;
            // Every few rounds there are no numbers left.
            if known.handshakes.promised / 128 <= u64::from(known.saved) / 3 {
                known.handshakes.save(128, |numbered| store.save_handshakes(numbered))?;
            }
        }
        Ok(())
    }

    fn round(self, store: &mut FlashStore<Torn, BYTES>, known: &mut Known) -> Result<(), Ended> {
        if self.private {
            known.spent.save(7, |spent| store.save_spent(spent))?;
        }
        let round = known.saved + 1;
        known.begun = round;
        let head = [round as f32, -0.5];
        store.save(&Record { campaign: 1, round, representation: round ^ 77, head: &head })?;
        known.saved = round;
        Ok(())
    }

    /// The cuts of a life that begins like this, of which those are wanted (which operation, which of the things that it can
    /// leave): what is there afterwards.
    fn cuts(
        self,
        image: &[u8],
        known: Known,
        rounds: u32,
        wanted: impl Fn(usize, usize) -> bool,
        mut each: impl FnMut(usize, Tear, Vec<u8>, Known, Result<(), Ended>),
    ) {
        let whole = Torn::with(image.to_vec());
        // Whoever asks for cuts has seen that it lives without.
        let _ = self.live(&whole, &mut known.clone(), rounds);
        for (at, erases) in whole.done().into_iter().enumerate() {
            let seed = (image.len() + at) as u64;
            let tears = if erases { torn_erasures(seed) } else { torn_writes(seed) };
            for (_, tear) in tears.into_iter().enumerate().filter(|(turn, _)| wanted(at, *turn)) {
                let (flash, mut known) = (Torn::cut(image, at, tear), known);
                let ended = self.live(&flash, &mut known, rounds);
                each(at, tear, flash.image(), known, ended);
            }
        }
    }

    /// Two lives without a cut.
    fn carries_on(self, image: Vec<u8>, known: &mut Known, rounds: u32) -> Result<(), Ended> {
        let flash = Torn::with(image);
        self.live(&flash, known, rounds)?;
        self.live(&flash, known, rounds)
    }
}

/// What was tried, and what went wrong.
#[derive(Debug, Default)]
struct Tried {
    once: usize,
    twice: usize,
    violations: usize,
}

impl Tried {
    fn check(&mut self, ended: Result<(), Ended>, where_: impl FnOnce() -> String) -> bool {
        let Err(Ended::Violated(law)) = ended else { return true };
        self.violations += 1;
        if self.violations <= 12 {
            println!("{}: {law}", where_());
        }
        false
    }
}

/// Cuts in lives of three rounds until every page was erased, and in a recovery of one round; after the second one two lives must be good.
/// Where `all` is not set, second cuts take turns at what they leave.
fn cut_everywhere(world: World, all: bool) -> Tried {
    const ROUNDS: u32 = 3;
    let (mut tried, mut seen) = (Tried::default(), HashSet::new());
    let (flash, mut known) = (Torn::new(world.pages), Known::default());
    // Until pages are used for the second time and every one was erased.
    while flash.erased() < world.pages {
        world.cuts(
            &flash.image(),
            known,
            ROUNDS,
            |_, _| true,
            |at, tear, image, known, ended| {
                tried.once += 1;
                // Different cuts can leave the same.
                if !tried.check(ended, || format!("{world:?}, {at}, {tear:?}"))
                    || !seen.insert((image.clone(), known))
                {
                    return;
                }
                let lived = world.carries_on(image.clone(), &mut known.clone(), 2);
                if !tried.check(lived, || format!("{world:?}, after {at}, {tear:?}")) {
                    return;
                }
                let first = seen.len();
                let wanted = |second, turn| all || turn % 9 == (first + second) % 9;
                world.cuts(&image, known, 1, wanted, |second, again, image, mut known, ended| {
                    tried.twice += 1;
                    let lived =
                        if ended == Err(Ended::Cut) { world.carries_on(image, &mut known, 1) } else { ended };
                    tried.check(lived, || format!("{world:?}, after {at}, {tear:?}, {second}, {again:?}"));
                });
            },
        );
        world.live(&flash, &mut known, ROUNDS).unwrap();
    }
    tried
}

fn worlds() -> Vec<World> {
    let world = |pages, keyed, private| World { pages, keyed, private };
    vec![
        world(2, true, true),
        world(2, false, false),
        world(3, true, false),
        world(2, true, false),
        world(3, true, true),
        world(4, false, true),
    ]
}

fn cut_all(all: bool) {
    let mut sum = Tried::default();
    for world in worlds().into_iter().take(if all { usize::MAX } else { 3 }) {
        let tried = cut_everywhere(world, all);
        println!(
            "{world:?}: {} cuts, {} pairs of cuts, {} violations",
            tried.once, tried.twice, tried.violations
        );
        sum.once += tried.once;
        sum.twice += tried.twice;
        sum.violations += tried.violations;
    }
    println!("{} cuts, {} pairs of cuts, {} violations", sum.once, sum.twice, sum.violations);
    assert_eq!(sum.violations, 0);
    assert!(sum.once > 1_000 && sum.twice > 10_000);
}

#[test]
fn power_that_goes_once_or_twice_takes_nothing_back() {
    cut_all(false);
}

#[test]
#[ignore = "minutes"]
fn power_that_goes_once_or_twice_takes_nothing_back_whatever_it_leaves() {
    cut_all(true);
}
