//! The measured update on the host: both problems take the way they are made for, in every shape, and what the
//! device with computed samples learns from can be learnt.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_client::memory::FixedWorkspace;
use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::{Linear, Memory, Task, Workspace};
use fedspan_emulated::made::{FEATURES, Made, Part};
use fedspan_emulated::problem::Problem;
use fedspan_emulated::update::{Counted, Outcome, ROUND, open, outcome};
use fedspan_protocol::message::{HeadSolve, RoundId};

fn update<const D: usize, const K: usize, const M: usize>(
    memory: impl Memory,
    problem: &Problem<D, M>,
) -> Outcome {
    let mut client = Linear::new(memory);
    open(&mut client).unwrap();
    let mut source = Counted::new(problem);
    client.run(ROUND, &mut source).unwrap();
    let outcome = outcome(&client, &source, &mut vec![0.0; D * K]);
    println!("\"d\":{D},\"k\":{K},\"m\":{M},{outcome}");
    outcome
}

fn both_ways<const D: usize, const K: usize, const M: usize>() {
    let float = || Workspace::<D, K>::new();
    assert_eq!(update::<D, K, M>(float(), &Problem::well_conditioned()).path, "normal");
    assert_eq!(update::<D, K, M>(float(), &Problem::ill_conditioned()).path, "triangular");
    let fixed = || FixedWorkspace::<D, K>::new();
    assert_eq!(update::<D, K, M>(fixed(), &Problem::well_conditioned()).path, "i16");
    assert_eq!(update::<D, K, M>(fixed(), &Problem::ill_conditioned()).path, "i16-ill");
}

#[test]
fn each_problem_takes_its_way_to_the_head() {
    both_ways::<20, 2, 20>();
    both_ways::<64, 4, 32>();
    both_ways::<128, 8, 32>();
}

#[test]
fn products_of_all_lengths_are_right() {
    assert_eq!(fedspan_emulated::lengths::check(), Ok(()));
}

#[test]
fn computed_samples_have_two_directions_in_common() {
    let mut directions = [0.0; 2 * FEATURES];
    for (index, row) in directions.chunks_exact_mut(2).enumerate() {
        row[index % 2] = if index % 4 < 2 { 1.0 } else { -1.0 } / 10f32.sqrt();
    }
    for device in [1, 2, 77, u64::MAX] {
        let mut model = Linear::new(Workspace::<FEATURES, 2>::new());
        model.set_representation(&directions).unwrap();
        let mut samples = Made::new(device, Part::Training);
        model.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut samples).unwrap();
        let mut test = Made::new(device, Part::Test);
        test.rewind(RoundId::default()).unwrap();
        let mut tested = 0;
        while let Some(sample) = test.next() {
            let Targets::Values(&[wanted]) = sample.targets else { panic!("one value") };
            let mut found = [0.0];
            model.predict(sample.x, &mut found).unwrap();
            assert!((found[0] - wanted).abs() < 1e-5);
            tested += 1;
        }
        assert_eq!(tested, 20);
    }
}
