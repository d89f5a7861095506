//! Tests of `evaluate = "distance"`: the same training as with all figures, and no heads.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn parse(name: &str, changes: &[&str]) -> Result<Scenario, String> {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).map_err(|problem| problem.to_string())
}

fn outcome(changes: &[&str]) -> Outcome {
    run(&parse("linear", changes).unwrap(), 3, &mut NoProgress).unwrap()
}

#[test]
fn training_is_the_same_without_heads() {
    for change in
        ["fleet.dropout=0.3", "participation={ policy = \"fraction\", r = 0.3 }", "data.new_clients=4"]
    {
        let rounds = ["algorithm.rounds=12", change];
        let all = outcome(&rounds);
        let few = outcome(&[&rounds[..], &["evaluate=distance"]].concat());
        assert_eq!((few.clients.len(), few.newcomers.len(), few.fit_bytes), (0, 0, (0, 0)));
        assert!(!all.clients.is_empty() && all.fit_bytes.0 > 0);
        assert_eq!(
            (&all.representation, all.bytes, all.updates),
            (&few.representation, few.bytes, few.updates)
        );
        let distances = |outcome: &Outcome| -> Vec<Option<f64>> {
            outcome.rounds.iter().map(|row| row.scores.and_then(|scores| scores.distance)).collect()
        };
        assert_eq!(distances(&all), distances(&few));
        assert_eq!(few.scores.accuracy.or(few.scores.loss), None);
    }
}

#[test]
fn data_without_a_truth_are_refused() {
    let scenario = parse("digits", &["evaluate=distance"]).unwrap();
    let problem = run(&scenario, 3, &mut NoProgress).unwrap_err().to_string();
    assert!(problem.contains("no true representation"), "{problem}");
}

#[test]
fn figures_of_heads_are_refused() {
    for (name, changes, part) in [
        ("linear", vec!["evaluate=distance", "stop.loss=0.1"], "stop.loss"),
        ("digits", vec!["evaluate=distance", "stop.accuracy=0.1"], "stop.accuracy"),
        ("digits-network", vec!["evaluate=distance"], "evaluate"),
        ("linear", vec!["evaluate=distance", "algorithm.name=local-only"], "evaluate"),
        ("linear", vec!["evaluate=none"], "\"all\", \"distance\""),
    ] {
        let problem = parse(name, &changes).unwrap_err();
        assert!(problem.contains(part), "{problem}");
    }
}
