//! Tests of the grouping of samples: a round has the same bits for any number of samples per call, with and without memory in
//! which single samples are collected, and with unusable samples anywhere.

#![cfg(feature = "gather")]

use crate::common::*;
use fedspan_client::memory::{Gathering, Memory};
use fedspan_client::pace::{Paced, Pacer};
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::{HeadSolve, Linear, SourceError, Task};
use fedspan_protocol::message::{RoundId, Upload};
use proptest::prelude::*;

/// Number of features of the tests, a constant because it is part of a type.
const D: usize = 12;

/// Source that returns a random number of samples per call, also different ones in each pass.
struct Irregular {
    samples: Sliced,
    random: Random,
    most: usize,
}

impl SampleSource for Irregular {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.samples.rewind(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        self.samples.at_once = 1 + self.random.below(self.most);
        self.samples.next()
    }
}

/// Runs a round and returns its usage and results as bits.
fn round<M: Memory>(memory: M, head: HeadSolve, b: &[f32], source: &mut dyn SampleSource) -> Vec<u32> {
    let mut model = Linear::new(memory);
    match fed_rep_round(&mut model, fed_rep(head, Upload::Gradient, 0.1), b, source) {
        Ok((usage, upload)) => {
            let mut all = vec![usage.samples, usage.skipped];
            all.extend(bits(&upload));
            all.extend(bits(model.head()));
            all
        }
        Err(reason) => {
            vec![u32::MAX, u32::from(reason == fedspan_protocol::message::DeclineReason::NoSamples)]
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    #[test]
    fn grouping_changes_no_bit(
        seed in any::<u64>(),
        (k, c, m) in (1usize..=9, 1usize..=9, 1usize..40),
        classes in any::<bool>(),
        head in 0..4usize,
        unusable in 0..4usize,
        collinear in any::<bool>(),
    ) {
        let mut random = Random(seed);
        let b = flat(&random.orthonormal(D, k));
        let mut samples = if classes {
            let classes = (0..m).map(|_| random.below(c) as u8).collect();
            Sliced::classification(random.normals(m * D), classes, D, c)
        } else {
            Sliced::regression(random.normals(m * D), random.normals(m * c), D, c)
        };
        if collinear {
            samples.x.chunks_exact_mut(D).for_each(|x| x.iter_mut().skip(2).for_each(|v| *v = 0.5));
        }
        for _ in 0..unusable {
            let bad = random.below(m);
            match (&mut samples.labels, random.below(2)) {
                (_, 0) => samples.x[bad * D + random.below(D)] = f32::NAN,
                (Labels::Values(y), _) => y[bad * c] = f32::INFINITY,
                (Labels::Classes(y), _) => y[bad] = c as u8,
            }
        }
        let head = [
            EXACT,
            HeadSolve::LeastSquares { ridge: 0.5 },
            HeadSolve::Gradient { steps: 3, step_size: 0.01 },
            #[cfg(feature = "ridge-choice")]
            HeadSolve::LeaveOneOut { fallback_ridge: 0.1 },
            #[cfg(not(feature = "ridge-choice"))]
            EXACT,
        ][head];
        let expected = round(Heap::new(D, k, c), head, &b, &mut samples.clone().at_once(1));
        for most in [1, 3, 9, usize::MAX] {
            let source = || Irregular { samples: samples.clone(), random: Random(seed ^ most as u64), most };
            prop_assert_eq!(&round(Heap::new(D, k, c), head, &b, &mut source()), &expected);
            let gathering = Gathering::<_, D>::new(Heap::new(D, k, c));
            prop_assert_eq!(&round(gathering.clone(), head, &b, &mut source()), &expected);
            let pacer = Pacer::new(50, &|| {});
            prop_assert_eq!(&round(Paced::new(gathering, &pacer), head, &b, &mut source()), &expected);
            // Memory for samples of another length is not used.
            let other = Gathering::<_, 2>::new(Heap::new(D, k, c));
            prop_assert_eq!(&round(other, head, &b, &mut source()), &expected);
        }
    }
}

/// A source that changes from values to classes within a group of four loses no sample.
#[test]
fn kinds_of_targets_may_alternate() {
    struct Mixed(usize);

    impl SampleSource for Mixed {
        fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
            self.0 = 0;
            Ok(())
        }

        fn next(&mut self) -> Option<Samples<'_>> {
            const X: [[f32; 2]; 3] = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]];
            self.0 += 1;
            let targets = match self.0 % 2 {
                0 => Targets::Values(&[0.0, 1.0]),
                _ => Targets::Classes(&[1]),
            };
            (self.0 <= 9).then(|| Samples { x: &X[self.0 % 3], targets })
        }
    }

    let b = identity(2);
    let expected = round(Heap::new(2, 2, 2), EXACT, &b, &mut Mixed(0));
    assert_eq!(expected[..2], [9, 0]);
    assert_eq!(round(Gathering::<_, 2>::new(Heap::new(2, 2, 2)), EXACT, &b, &mut Mixed(0)), expected);
}
