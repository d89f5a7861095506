//! Tests that the fuzz targets hold their invariants on the stable tool chain: on the seeds, on the corpus
//! that the fuzzer has found, and on seeded mutations of both. `FEDSPAN_HOSTILE_SEED` selects other
//! mutations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fedspan_hostile::bulk::{Plan, run, shortest};
use fedspan_hostile::{Random, TARGETS, Target, Work, mutate, reference};

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// Returns the corpus of a target, sorted by name.
fn read_corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = fuzz_folder().join("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    inputs.sort();
    inputs
}

/// Runs one input; on failure, panics with the shortest input that fails.
fn run_target(target: &'static Target, input_name: &str, input: &[u8]) -> Work {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).unwrap_or_else(|_| {
        let input = shortest(target, input.to_vec());
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{}, {input_name}: an invariant is broken by {hex}", target.name)
    })
}

#[test]
fn targets_hold_for_seeds_and_corpus() {
    for target in &TARGETS {
        let (seeds, corpus) = ((target.seeds)(), read_corpus(target));
        assert!(seeds.len() >= 20, "{}: {} seeds", target.name, seeds.len());
        assert!(!corpus.is_empty(), "{}", target.name);
        let mut sum = Work::default();
        let inputs =
            seeds.iter().map(|seed| ("seed", seed)).chain(corpus.iter().map(|(n, i)| (n.as_str(), i)));
        for (name, input) in inputs {
            let work = run_target(target, name, input);
            sum.frames += work.frames;
            sum.refused += work.refused;
        }
        // If all seeds were refused, they would reach little code.
        assert!(sum.refused < sum.frames, "{}: {sum:?}", target.name);
        println!("{}: {} seeds, {} of the corpus, {sum:?}", target.name, seeds.len(), corpus.len());
    }
}

/// Tests that the corpus keeps the repository small, and that every target has a file for the fuzzer.
#[test]
fn corpus_is_small_and_every_target_has_a_file() {
    let mut bytes = 0;
    for target in &TARGETS {
        let corpus = read_corpus(target);
        assert!(corpus.len() <= 100, "{}: {}", target.name, corpus.len());
        bytes += corpus.iter().map(|(_, input)| input.len()).sum::<usize>();
    }
    assert!(bytes < 300_000, "{bytes}");
    for target in &TARGETS {
        assert!(fuzz_folder().join(format!("fuzz_targets/{}.rs", target.name)).is_file(), "{}", target.name);
    }
}

#[test]
fn targets_hold_for_a_million_refused_frames() {
    let seed = std::env::var("FEDSPAN_HOSTILE_SEED").map_or(7, |text| text.parse().expect("a number"));
    let plan = Plan { refused: 1_000_000, threads: 2, seed };
    match run(plan, None) {
        Ok(results) => {
            assert_eq!(results.len(), TARGETS.len());
            for totals in results {
                // If all mutations were refused, they would reach little code.
                assert!(totals.work.refused < totals.work.frames, "{}: {:?}", totals.target, totals.work);
                println!("{}: {} inputs, {:?}", totals.target, totals.inputs, totals.work);
            }
        }
        Err(broken) => panic!("{broken:02x?} with FEDSPAN_HOSTILE_SEED={seed}"),
    }
}

/// Tests the targets on mutations of the corpus, which reach code that the seeds do not.
#[test]
fn targets_hold_for_mutated_corpus() {
    for target in &TARGETS {
        let corpus: Vec<Vec<u8>> = read_corpus(target).into_iter().map(|(_, input)| input).collect();
        let (mut random, mut input) = (Random(3), Vec::new());
        for _ in 0..5_000 {
            mutate::next(&mut random, &corpus, &mut input);
            run_target(target, "damaged corpus", &input);
        }
    }
}

/// Tests the reference implementation against known values.
#[test]
fn reference_agrees_with_the_specification() {
    assert_eq!(reference::crc32c(b"123456789"), 0xE306_9283);
    // Examples of the COBS paper (Cheshire and Baker 1999), and blocks of 254 and 255 bytes.
    let stuffed = |plain: &[u8]| reference::stuff(plain);
    assert_eq!(stuffed(&[]), [1, 0]);
    assert_eq!(stuffed(&[0]), [1, 1, 0]);
    assert_eq!(stuffed(&[0, 0]), [1, 1, 1, 0]);
    assert_eq!(stuffed(&[0x11, 0x22, 0, 0x33]), [3, 0x11, 0x22, 2, 0x33, 0]);
    assert_eq!(stuffed(&[7; 254]).len(), 256);
    assert_eq!(stuffed(&[7; 255]).len(), 258);
    assert_eq!(stuffed(&[&[7; 254][..], &[0]].concat())[255..], [1, 1, 0]);
    let mut random = Random(1);
    for length in 0..600 {
        let plain: Vec<u8> =
            (0..length).map(|_| if random.below(40) == 0 { 0 } else { random.byte() }).collect();
        let wire = reference::stuff(&plain);
        assert_eq!(wire.iter().filter(|byte| **byte == 0).count(), 1);
        assert_eq!(reference::unstuff(&wire[..wire.len() - 1]), Some(plain.clone()));
        let frame = reference::encode_plain(&plain);
        assert_eq!(reference::open(&frame[..frame.len() - 1], length + 5), Some(plain));
        assert_eq!(reference::open(&frame[..frame.len() - 1], length + 4), None);
    }
    assert_eq!(reference::unstuff(&[3, 1]), None, "a block that ends early");
    let stream = [0, 1, 0, 0, 2, 2, 0, 9];
    assert_eq!(reference::sequences(&stream).collect::<Vec<_>>(), [&[1][..], &[2, 2]]);
}

/// Tests that a shortened input still fails, and that no byte can be removed from it.
#[test]
fn failing_input_is_shortened() {
    let fails = |input: &[u8]| input.contains(&3) && input.contains(&9);
    let mut random = Random(2);
    let input: Vec<u8> = (0..500).map(|_| random.byte()).chain([3, 9]).collect();
    let mut short = mutate::shrink(input, fails);
    short.sort_unstable();
    assert_eq!(short, [3, 9]);
}
