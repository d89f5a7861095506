//! The bodies on stable, in every test run: the seeds, the corpus that the fuzzer has found, and seeded damage to
//! both. `FEDSPAN_HOSTILE_SEED` draws other damage.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fedspan_hostile::bulk::{Plan, run, shortest};
use fedspan_hostile::{Random, TARGETS, Target, Work, mutate, reference};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// The corpus of a target, in the order of its names.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = folder().join("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}

/// Runs one input; a failure shows the shortest input that fails.
fn holds(target: &'static Target, what: &str, input: &[u8]) -> Work {
    catch_unwind(AssertUnwindSafe(|| (target.body)(input))).unwrap_or_else(|_| {
        let input = shortest(target, input.to_vec());
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{}, {what}: a law is broken by {hex}", target.name)
    })
}

#[test]
fn seeds_and_corpus() {
    for target in &TARGETS {
        let (seeds, corpus) = ((target.seeds)(), corpus(target));
        assert!(seeds.len() >= 20, "{}: {} seeds", target.name, seeds.len());
        assert!(!corpus.is_empty(), "{}", target.name);
        let mut sum = Work::default();
        let inputs =
            seeds.iter().map(|seed| ("seed", seed)).chain(corpus.iter().map(|(n, i)| (n.as_str(), i)));
        for (name, input) in inputs {
            let work = holds(target, name, input);
            sum.frames += work.frames;
            sum.refused += work.refused;
        }
        // Seeds that nobody accepts would reach nothing.
        assert!(sum.refused < sum.frames, "{}: {sum:?}", target.name);
        println!("{}: {} seeds, {} of the corpus, {sum:?}", target.name, seeds.len(), corpus.len());
    }
}

/// Small and short, so that a checkout stays one.
#[test]
fn the_corpus_is_small() {
    let mut bytes = 0;
    for target in &TARGETS {
        let corpus = corpus(target);
        assert!(corpus.len() <= 100, "{}: {}", target.name, corpus.len());
        bytes += corpus.iter().map(|(_, input)| input.len()).sum::<usize>();
    }
    assert!(bytes < 300_000, "{bytes}");
    // And each target has its file.
    for target in &TARGETS {
        assert!(folder().join(format!("fuzz_targets/{}.rs", target.name)).is_file(), "{}", target.name);
    }
}

#[test]
fn damage_by_the_million() {
    let seed = std::env::var("FEDSPAN_HOSTILE_SEED").map_or(7, |text| text.parse().expect("a number"));
    let plan = Plan { refused: 1_000_000, threads: 2, seed };
    match run(plan, None) {
        Ok(tallies) => {
            assert_eq!(tallies.len(), TARGETS.len());
            for tally in tallies {
                // Damage that is always refused would not reach far.
                assert!(tally.work.refused < tally.work.frames, "{}: {:?}", tally.target, tally.work);
                println!("{}: {} inputs, {:?}", tally.target, tally.inputs, tally.work);
            }
        }
        Err(broken) => panic!("{broken:02x?} with FEDSPAN_HOSTILE_SEED={seed}"),
    }
}

/// The corpus with damage: what the fuzzer has found reaches where seeds do not.
#[test]
fn damage_to_the_corpus() {
    for target in &TARGETS {
        let corpus: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, input)| input).collect();
        let (mut random, mut input) = (Random(3), Vec::new());
        for _ in 0..5_000 {
            mutate::next(&mut random, &corpus, &mut input);
            holds(target, "damaged corpus", &input);
        }
    }
}

/// What the bodies compare with is itself compared with what is known.
#[test]
fn the_reference_frames_as_the_specification_says() {
    assert_eq!(reference::crc32c(b"123456789"), 0xE306_9283);
    // The examples of the COBS paper (Cheshire and Baker 1999) and the edges of a block.
    let of = |plain: &[u8]| reference::stuff(plain);
    assert_eq!(of(&[]), [1, 0]);
    assert_eq!(of(&[0]), [1, 1, 0]);
    assert_eq!(of(&[0, 0]), [1, 1, 1, 0]);
    assert_eq!(of(&[0x11, 0x22, 0, 0x33]), [3, 0x11, 0x22, 2, 0x33, 0]);
    assert_eq!(of(&[7; 254]).len(), 256);
    assert_eq!(of(&[7; 255]).len(), 258);
    assert_eq!(of(&[&[7; 254][..], &[0]].concat())[255..], [1, 1, 0]);
    let mut random = Random(1);
    for length in 0..600 {
        let plain: Vec<u8> =
            (0..length).map(|_| if random.below(40) == 0 { 0 } else { random.byte() }).collect();
        let wire = reference::stuff(&plain);
        assert_eq!(wire.iter().filter(|byte| **byte == 0).count(), 1);
        assert_eq!(reference::unstuff(&wire[..wire.len() - 1]), Some(plain.clone()));
        let sealed = reference::seal(&plain);
        assert_eq!(reference::open(&sealed[..sealed.len() - 1], length + 5), Some(plain));
        assert_eq!(reference::open(&sealed[..sealed.len() - 1], length + 4), None);
    }
    assert_eq!(reference::unstuff(&[3, 1]), None, "a block that ends early");
    let stream = [0, 1, 0, 0, 2, 2, 0, 9];
    assert_eq!(reference::sequences(&stream).collect::<Vec<_>>(), [&[1][..], &[2, 2]]);
}

/// A shortened input still fails, and nothing in it can be left out.
#[test]
fn failing_inputs_are_shortened() {
    let fails = |input: &[u8]| input.contains(&3) && input.contains(&9);
    let mut random = Random(2);
    let input: Vec<u8> = (0..500).map(|_| random.byte()).chain([3, 9]).collect();
    let mut short = mutate::shrink(input, fails);
    short.sort_unstable();
    assert_eq!(short, [3, 9]);
}
