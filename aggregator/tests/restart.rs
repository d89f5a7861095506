//! Restarts: a campaign goes on after any commit as if nothing had happened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::BTreeSet;

use common::campaign::{D, K, Kept, Setup, live, result, setup};
use fedspan_aggregator::aggregate::Rule;
use fedspan_aggregator::engine::{Event, Phase};
use fedspan_protocol::message::RoundId;
use proptest::prelude::*;

/// A round that had updates when the server went down is asked again, and no rule has kept any of them.
fn rules() -> impl Strategy<Value = Rule> {
    prop::sample::select(vec![Rule::Mean, Rule::GeometricMedian, Rule::TrimmedMean { trim: 0.2 }])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_restart_after_any_commit_leads_to_the_same_result(setup in setup(), after in 0usize..6, again in any::<bool>(), rule in rules()) {
        let setup = Setup { deadline: None, rule, ..setup };
        let devices = setup.fleet_size as u64;
        let whole = live(setup.engine(), devices, usize::MAX);
        prop_assert_eq!(whole.engine.phase(), Phase::Finished);

        // What is durable: what a server begins with, the commit, and then what it is resumed as.
        let (id, phase, state) = setup.engine().snapshot();
        let mut first = live(setup.engine(), devices, after.min(whole.kept.len()).max(1));
        if after == 0 {
            // Down before the first commit: the first exchange was open.
            let record = first.kept[0].record.clone();
            first.kept = vec![Kept { id, phase, state, record }];
            first.opened = BTreeSet::from([1]);
        }
        let last = first.kept.last().unwrap().clone();
        let committed = if after == 0 { 0 } else { first.kept.len() };
        let mut seen = first.opened;
        let mut engine = setup.engine();
        prop_assert!(engine.resume(last.id, last.phase, &last.state), "after {:?}", last.phase);
        let (id, phase, state) = engine.snapshot();
        if again {
            // It opens a round, devices answer, and it goes down before it commits.
            let mut actions = Vec::new();
            for device in 0..devices {
                engine.handle(0, Event::Joined(device), &mut actions);
            }
            let number = engine.open_round().unwrap().opening.id.round;
            prop_assert!(seen.insert(number), "a number that no device has seen");
            engine = setup.engine();
            prop_assert!(engine.resume(id, phase, &state));
        }
        let rest = live(engine, devices, usize::MAX);
        prop_assert_eq!(rest.engine.phase(), Phase::Finished);
        prop_assert_eq!(committed + rest.kept.len(), whole.kept.len());
        prop_assert!(seen.iter().next_back() < rest.opened.iter().next(), "{:?} {:?}", seen, rest.opened);
        prop_assert_eq!(result(&rest.engine), result(&whole.engine));
    }

    /// A state of another size is refused, and the campaign is as if it had never been offered.
    #[test]
    fn a_state_of_another_size_changes_nothing(setup in setup(), len in 0usize..30, number in 1u32..4) {
        let mut engine = setup.engine();
        let before = engine.snapshot();
        let phase = Phase::Train(number);
        let fits = if setup.fedavg { D * K + K } else { D * K } + if setup.doubling.is_some() { 5 } else { 0 };
        prop_assume!(len != fits);
        let id = RoundId { round: 9, stage: 0 };
        let fits = engine.resume(id, phase, &vec![0.5; len]);
        prop_assert!(!fits);
        prop_assert_eq!(engine.snapshot(), before);
        prop_assert_eq!(setup.power, setup.engine().resume(id, Phase::Start(1), &[0.5; D * K]));
    }
}
