//! Tests of the convergence of FedRep on small problems, and of the conditions that end a run.

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::run::{Job, NoProgress, Outcome, Watcher, run};
use fedspan_sim_core::scenario::Scenario;

fn scenario(changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse("linear", Scenario::built_in("linear").unwrap(), &changes).unwrap()
}

fn outcome(changes: &[&str], seed: u64) -> Outcome {
    run(&scenario(changes), seed, &mut NoProgress).unwrap()
}

/// Median of the final distance over nine seeds.
fn distance(changes: &[&str]) -> f64 {
    let all_changes = [changes, &["evaluate_every=1000000"]].concat();
    let mut sorted: Vec<f64> =
        (1..=9).map(|seed| outcome(&all_changes, seed).scores.distance.unwrap()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted[4]
}

#[test]
fn more_clients_reduce_the_distance() {
    let few_clients = distance(&["data.clients=10"]);
    let more_clients = distance(&["data.clients=60"]);
    let most_clients = distance(&["data.clients=360"]);
    assert!(
        most_clients < more_clients && more_clients < few_clients,
        "{few_clients} {more_clients} {most_clients}"
    );
}

#[test]
fn exact_heads_converge_faster_than_gradient_heads() {
    let forty_rounds = ["algorithm.rounds=40"];
    let fedrep = distance(&forty_rounds);
    let gradient = distance(&[forty_rounds[0], "algorithm.name=gd-gd"]);
    assert!(fedrep < gradient / 2.0, "{fedrep} {gradient}");
}

#[test]
fn perfect_start_without_noise_stays_perfect() {
    let ended = outcome(&["model.init=truth-sine:0", "data.noise_std=0", "algorithm.rounds=30"], 1);
    assert!(ended.rounds.iter().all(|row| row.scores.unwrap().distance.unwrap() < 1e-5));
}

#[test]
fn start_has_the_requested_distance() {
    let first = outcome(&["model.init=truth-sine:0.9", "algorithm.rounds=1"], 1).rounds[0].scores.unwrap();
    assert!((first.distance.unwrap() - 0.9).abs() < 1e-6);
}

/// Watcher that stops a run after the given number of rounds.
struct Until(u32);

impl Watcher for Until {
    fn round(&mut self, completed_rounds: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        completed_rounds < self.0
    }
}

#[test]
fn interrupted_run_keeps_finished_rounds() {
    for start in ["random", "power", "moments"] {
        let init = format!("model.init={start}");
        let scenario = scenario(&[&init, "algorithm.rounds=6", "evaluate_every=4"]);
        let job = Job::prepare(&scenario, 1).unwrap();
        let complete = job.run(&mut NoProgress).unwrap();
        for stop in 0..=6 {
            let ended = job.run(&mut Until(stop)).unwrap();
            assert_eq!(ended.rounds.len(), stop as usize + 1, "{start}, stopped after {stop}");
            assert_eq!(
                ended.interrupted,
                stop < 6,
                "the run was interrupted after the last round, or not at all"
            );
            let is_same_row = |(a, b): (&fedspan_sim_core::run::RoundRow, _)| {
                let b: &fedspan_sim_core::run::RoundRow = b;
                (a.time, a.bytes_up, &a.participants) == (b.time, b.bytes_up, &b.participants)
            };
            assert!(
                ended.rounds.iter().zip(&complete.rounds).all(is_same_row),
                "the rounds differ from a run without a stop"
            );
            assert!(ended.rounds.last().unwrap().scores.is_some(), "the last row has no metrics");
            assert_eq!(ended.clients.len(), 100, "not every client has a final head");
        }
    }
}

/// If `stop.change` ends a run, the result equals that of a run which is configured with the same number of
/// rounds.
#[test]
fn run_ends_when_the_representation_stops_moving() {
    let mut lengths = Vec::new();
    for change in ["0.05", "0.01", "1e-12"] {
        let stop = format!("stop.change={change}");
        let ended = outcome(&["algorithm.rounds=60", "evaluate_every=7", &stop], 1);
        let rounds = ended.rounds.len() - 1;
        let plain = outcome(&[&format!("algorithm.rounds={rounds}"), "evaluate_every=7"], 1);
        assert_eq!(ended.representation, plain.representation);
        assert_eq!((ended.bytes, ended.scores), (plain.bytes, plain.scores));
        assert!(ended.rounds.last().unwrap().scores.is_some() && !ended.interrupted);
        lengths.push(rounds);
    }
    assert!(0 < lengths[0] && lengths[0] < lengths[1] && lengths[1] < 60, "{lengths:?}");
    assert_eq!(lengths[2], 60);
}

#[test]
fn targets_end_a_run_in_any_round() {
    let complete = outcome(&["algorithm.rounds=30"], 1);
    let reached = complete.rounds[30].scores.unwrap().loss.unwrap();
    // The first target is reached only in the last rounds, the second already in the first round.
    let target = format!("stop.loss={reached:e}");
    let ended = outcome(&["algorithm.rounds=30", &target], 1);
    assert!(ended.scores.loss.unwrap() <= reached && !ended.interrupted);
    assert_eq!(outcome(&["algorithm.rounds=30", "stop.loss=1e9"], 1).rounds.len(), 2);
    let timed = outcome(&["algorithm.rounds=30", "stop.simulated_time=12.5", "evaluate_every=7"], 1);
    assert!(timed.rounds.last().unwrap().time >= 12.5);
    assert!(timed.rounds[timed.rounds.len() - 2].time < 12.5);
}
