//! Tests of the round state machine: properties that hold for every order of uploads, pauses and commits.

use std::collections::BTreeMap;

use fedspan_adapters::http::{
    AcceptedUpdates, Admission, ClientIndex, LoraMethod, Refusal, RoundRules, RoundState, UpdateSummary,
};
use fedspan_engine::participation::{FirstArrivals, Full};
use fedspan_engine::{Millis, Participation};
use proptest::prelude::*;

const CLIENTS: usize = 5;

fn summary_of(id: u8) -> UpdateSummary {
    UpdateSummary { samples: u32::from(id) + 1, digest: [id; 32] }
}

/// Step of the test: after a pause, a client sends update `id` for a round whose number is `ahead` above that
/// of the open round. If `commits` is true, a closed round is then committed.
#[derive(Clone, Debug)]
struct Step {
    client: ClientIndex,
    ahead: i64,
    id: u8,
    pause: Millis,
    commits: bool,
}

fn random_step() -> impl Strategy<Value = Step> {
    (
        0..CLIENTS,
        prop_oneof![6 => Just(0_i64), 1 => -2..3_i64],
        0..2_u8,
        (0..40u64).prop_map(Millis::new),
        any::<bool>(),
    )
        .prop_map(|(client, ahead, id, pause, commits)| Step {
            client: ClientIndex(client),
            ahead,
            id,
            pause,
            commits,
        })
}

/// First arrivals of this number of updates, or full participation.
fn create_policy(first_arrivals: Option<usize>) -> Box<dyn Participation> {
    match first_arrivals {
        Some(n) => Box::new(FirstArrivals { n, cohort: Some(4), seed: 7 }),
        None => Box::new(Full),
    }
}

proptest! {
    #[test]
    fn client_counts_once_and_rounds_advance(
        steps in prop::collection::vec(random_step(), 1..120),
        first_arrivals in prop::option::of(1..4_usize),
        deadline in prop::option::of((1..200u64).prop_map(Millis::new)),
        minimum in 1..4_usize,
    ) {
        let rules = RoundRules { method: LoraMethod::RoLora, rounds: 6, deadline, minimum };
        let mut rounds =
            RoundState::new(rules, create_policy(first_arrivals), CLIENTS, 0, AcceptedUpdates::new());
        let mut now = Millis::ZERO;
        rounds.open(now, AcceptedUpdates::new());
        let mut accepted: BTreeMap<u32, BTreeMap<ClientIndex, UpdateSummary>> = BTreeMap::new();
        let mut closing: Option<u32> = None;
        for Step { client, ahead, id, pause, commits } in steps {
            now += pause;
            let open_number = rounds.committed() + 1;
            let round = u32::try_from(i64::from(open_number) + ahead).unwrap_or(0);
            let admission = rounds.admit(client, round, Some(&summary_of(id)));
            let known = accepted.get(&round).and_then(|round| round.get(&client)).copied();
            match admission {
                Admission::Accepted(trains) => {
                    prop_assert_eq!((round, known, closing), (open_number, None, None));
                    prop_assert_eq!(trains, LoraMethod::RoLora.round_kind(round));
                    prop_assert!(rounds.current().unwrap().cohort.contains(&client));
                    rounds.accept(client, summary_of(id));
                    accepted.entry(round).or_default().insert(client, summary_of(id));
                }
                Admission::Duplicate => prop_assert_eq!(known, Some(summary_of(id))),
                Admission::Refused(Refusal::DifferentUpdate { .. }) => prop_assert!(known.is_some_and(|known| known != summary_of(id))),
                Admission::Refused(Refusal::Closed { .. }) => {
                    let target = rounds.current().map_or(0, |round| round.target);
                    let target_reached = accepted.get(&round).is_some_and(|round| round.len() >= target);
                    prop_assert!(round < open_number || closing.is_some() || target_reached);
                }
                Admission::Refused(Refusal::NotOpen { .. }) => prop_assert!(round == 0 || round > open_number || rounds.current().is_none()),
                Admission::Refused(Refusal::NotAsked { .. }) => prop_assert!(!rounds.current().unwrap().cohort.contains(&client)),
                Admission::NeedsDigest => prop_assert!(false, "NeedsDigest although the digest was given"),
            }
            if closing.is_none() {
                let next_deadline = rounds.next_deadline();
                let deadline = rounds.current().map(|round| round.deadline);
                if let Some(closed) = rounds.close(now) {
                    let enough = closed.updates.len() >= closed.target;
                    let deadline_passed = closed.deadline.is_some_and(|deadline| deadline <= now)
                        && closed.updates.len() >= minimum;
                    prop_assert!(enough || deadline_passed);
                    prop_assert_eq!(&closed.updates, &accepted[&closed.number]);
                    prop_assert!(
                        rounds.close(Millis::new((now + Millis::new(1000)).as_u64())).is_none(),
                        "closed twice"
                    );
                    closing = Some(closed.number);
                } else {
                    // The next deadline lies in the future.
                    prop_assert!(next_deadline.is_none_or(|time| time > now && deadline == Some(Some(time))));
                }
            }
            if commits && let Some(number) = closing.take() {
                rounds.commit(now);
                prop_assert_eq!(rounds.committed(), number);
                prop_assert_eq!(
                    rounds.current().map(|round| round.number),
                    (number < 6).then_some(number + 1)
                );
            }
        }
        // A restart with the accepted updates restores the cohort and the updates.
        let pending = accepted.remove(&(rounds.committed() + 1)).unwrap_or_default();
        let mut restarted = RoundState::new(
            rules,
            create_policy(first_arrivals),
            CLIENTS,
            rounds.committed(),
            AcceptedUpdates::new(),
        );
        restarted.open(Millis::ZERO, pending.clone());
        let cohort_of =
            |rounds: &RoundState| rounds.current().map(|round| round.cohort.clone()).unwrap_or_default();
        prop_assert_eq!(cohort_of(&restarted), cohort_of(&rounds));
        for (client, known) in pending {
            prop_assert_eq!(
                restarted.admit(client, restarted.committed() + 1, Some(&known)),
                Admission::Duplicate
            );
        }
    }
}

/// A round whose updates were damaged opens again without them, with a new deadline, and accepts them again.
#[test]
fn reopened_round_accepts_the_removed_updates_again() {
    let deadline = Some(Millis::new(100));
    let rules = RoundRules { method: LoraMethod::Lora, rounds: 1, deadline, minimum: 1 };
    let mut rounds = RoundState::new(rules, Box::new(Full), 2, 0, AcceptedUpdates::new());
    rounds.open(Millis::ZERO, AcceptedUpdates::new());
    let [first, second] = [ClientIndex(0), ClientIndex(1)];
    for client in [first, second] {
        rounds.accept(client, summary_of(3));
    }
    assert_eq!(rounds.close(Millis::ZERO).unwrap().updates.len(), 2);
    rounds.reopen(Millis::new(150), &[first]);
    assert!(!rounds.is_due(Millis::new(249)) && rounds.is_due(Millis::new(250)));
    assert_eq!(rounds.admit(second, 1, None), Admission::NeedsDigest);
    assert!(matches!(rounds.admit(first, 1, None), Admission::Accepted(_)));
    rounds.accept(first, summary_of(4));
    assert_eq!(rounds.close(Millis::new(150)).unwrap().updates[&first], summary_of(4));
}
