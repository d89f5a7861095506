//! The rounds without sockets and files, against laws that hold whatever is asked in whatever order.

use std::collections::BTreeMap;

use fedspan_adapters::http::{
    AcceptedUpdates, Admission, ClientIndex, LoraMethod, Refusal, RoundRules, RoundState, UpdateSummary,
};
use fedspan_engine::participation::{FirstArrivals, Full};
use fedspan_engine::{Millis, Participation};
use proptest::prelude::*;

const CLIENTS: usize = 5;

fn update(which: u8) -> UpdateSummary {
    UpdateSummary { samples: u32::from(which) + 1, digest: [which; 32] }
}

/// Somebody sends something for some round, time goes on, the mean is ready or not.
#[derive(Clone, Debug)]
struct Step {
    client: ClientIndex,
    ahead: i64,
    which: u8,
    pause: Millis,
    commits: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (0..CLIENTS, prop_oneof![6 => Just(0_i64), 1 => -2..3_i64], 0..2_u8, 0..40_u64, any::<bool>())
        .prop_map(|(client, ahead, which, pause, commits)| Step { client, ahead, which, pause, commits })
}

fn policy(first: Option<usize>) -> Box<dyn Participation> {
    match first {
        Some(n) => Box::new(FirstArrivals { n, cohort: Some(4), seed: 7 }),
        None => Box::new(Full),
    }
}

proptest! {
    #[test]
    fn a_client_counts_once_and_rounds_go_on(
        steps in prop::collection::vec(step(), 1..120),
        first in prop::option::of(1..4_usize),
        deadline in prop::option::of(1..200_u64),
        minimum in 1..4_usize,
    ) {
        let rules = RoundRules { method: LoraMethod::RoLora, rounds: 6, deadline, minimum };
        let mut rounds = RoundState::new(rules, policy(first), CLIENTS, 0, AcceptedUpdates::new());
        let mut now = 0;
        rounds.open(now, AcceptedUpdates::new());
        let mut counted: BTreeMap<u32, BTreeMap<ClientIndex, UpdateSummary>> = BTreeMap::new();
        let mut closing: Option<u32> = None;
        for Step { client, ahead, which, pause, commits } in steps {
            now += pause;
            let open = rounds.committed() + 1;
            let round = u32::try_from(i64::from(open) + ahead).unwrap_or(0);
            let admission = rounds.admit(client, round, Some(&update(which)));
            let known = counted.get(&round).and_then(|round| round.get(&client)).copied();
            match admission {
                Admission::Accepted(trains) => {
                    prop_assert_eq!((round, known, closing), (open, None, None));
                    prop_assert_eq!(trains, LoraMethod::RoLora.round_kind(round));
                    prop_assert!(rounds.current().unwrap().cohort.contains(&client));
                    rounds.count(client, update(which));
                    counted.entry(round).or_default().insert(client, update(which));
                }
                Admission::Duplicate => prop_assert_eq!(known, Some(update(which))),
                Admission::Refused(Refusal::DifferentUpdate { .. }) => prop_assert!(known.is_some_and(|known| known != update(which))),
                Admission::Refused(Refusal::Closed { .. }) => {
                    let target = rounds.current().map_or(0, |open| open.target);
                    let full = counted.get(&round).is_some_and(|round| round.len() >= target);
                    prop_assert!(round < open || closing.is_some() || full);
                }
                Admission::Refused(Refusal::NotOpen { .. }) => prop_assert!(round == 0 || round > open || rounds.current().is_none()),
                Admission::Refused(Refusal::NotAsked { .. }) => prop_assert!(!rounds.current().unwrap().cohort.contains(&client)),
                Admission::NeedsDigest => prop_assert!(false, "there was something to compare"),
            }
            if closing.is_none() {
                let wake = rounds.next_deadline();
                let begun = rounds.current().map(|open| open.deadline);
                if let Some(closed) = rounds.close(now) {
                    let enough = closed.updates.len() >= closed.target;
                    let late = closed.deadline.is_some_and(|deadline| deadline <= now) && closed.updates.len() >= minimum;
                    prop_assert!(enough || late);
                    prop_assert_eq!(&closed.updates, &counted[&closed.number]);
                    prop_assert!(rounds.close(now + 1000).is_none(), "once");
                    closing = Some(closed.number);
                } else {
                    // It is told when to try again, and not for the past.
                    prop_assert!(wake.is_none_or(|wake| wake > now && begun == Some(Some(wake))));
                }
            }
            if commits && let Some(number) = closing.take() {
                rounds.commit(now);
                prop_assert_eq!(rounds.committed(), number);
                prop_assert_eq!(rounds.current().map(|open| open.number), (number < 6).then_some(number + 1));
            }
        }
        // What a restart finds is what was there.
        let kept = counted.remove(&(rounds.committed() + 1)).unwrap_or_default();
        let mut again = RoundState::new(rules, policy(first), CLIENTS, rounds.committed(), AcceptedUpdates::new());
        again.open(0, kept.clone());
        let asked = |rounds: &RoundState| rounds.current().map(|open| open.cohort.clone()).unwrap_or_default();
        prop_assert_eq!(asked(&again), asked(&rounds));
        for (client, known) in kept {
            prop_assert_eq!(again.admit(client, again.committed() + 1, Some(&known)), Admission::Duplicate);
        }
    }
}
