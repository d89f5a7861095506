//! Tests of claims of the FedRep paper about linear regression, with the complete simulator: the client's
//! session, the encoded protocol, the engine. All results are medians over seeds.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn simulate_linear(changes: &[&str], seed: u64) -> Outcome {
    let text = Scenario::built_in("linear").expect("built in");
    let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
    let scenario = Scenario::parse("linear", text, &changes).expect("scenario");
    run(&scenario, seed, &mut NoProgress).expect("runs")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn median_distance(changes: &[&str], seeds: std::ops::Range<u64>) -> f64 {
    median(seeds.map(|seed| simulate_linear(changes, seed).scores.distance.expect("a truth")).collect())
}

/// Tests figure 3: d = 10, k = 2, m = 5, r = 0.1, fixed noisy samples, 200 rounds.
#[test]
fn more_clients_learn_a_better_representation() {
    let sizes = [10, 50, 100, 500, 1000];
    let distances = sizes.map(|n| {
        let clients = format!("data.clients={n}");
        median_distance(&[&clients, "evaluate_every=200"], 1..21)
    });
    println!("median distance after 200 rounds for n = {sizes:?}: {distances:.5?}");
    assert!(distances.windows(2).all(|pair| pair[1] < pair[0]), "{distances:?}");
    assert!(distances[4] < 0.3 * distances[1], "{distances:?}");
}

/// Tests the second claim of figure 3. The two step sizes of GD-GD are tuned on the seeds 101..111, and both
/// algorithms are compared on the seeds 1..21.
#[test]
fn exact_head_beats_one_gradient_step() {
    for n in [50, 100, 500, 1000] {
        let clients = format!("data.clients={n}");
        let common_changes = [clients.as_str(), "algorithm.rounds=50", "evaluate_every=50"];
        let gd_gd_distance = |step: f64, head_step: f64, seeds| {
            let (step, head) =
                (format!("algorithm.step_size={step}"), format!("algorithm.head_step_size={head_step}"));
            let mut changes = common_changes.to_vec();
            changes.extend(["algorithm.name=gd-gd", &step, &head]);
            median_distance(&changes, seeds)
        };
        let grid = [0.25, 0.5, 1.0].into_iter().flat_map(|s| [0.1, 0.25, 0.5, 1.0].map(|h| (s, h)));
        let (tuned_distance, (step, head)) = grid
            .map(|(s, h)| (gd_gd_distance(s, h, 101..111), (s, h)))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("a grid");
        let (fedrep, gd_gd) = (median_distance(&common_changes, 1..21), gd_gd_distance(step, head, 1..21));
        println!(
            "n = {n}: FedRep {fedrep:.4}, GD-GD {gd_gd:.4} (steps {step}, {head}; {tuned_distance:.4} when tuned)"
        );
        assert!(fedrep < gd_gd, "n = {n}: {fedrep} against {gd_gd}");
    }
}

/// Tests that with fresh noiseless batches and all clients the distance contracts per round by about `1 - eta
/// sigma_min^2`. Here `sigma_min` is the least singular value of W* / sqrt(n), which is slightly below 1 for
/// 200 random rows of norm sqrt(k).
#[test]
fn distance_contracts_at_the_expected_rate() {
    let changes = [
        "data.clients=200",
        "data.samples=50",
        "data.fresh=true",
        "data.noise_std=0.0",
        "model.init=truth-sine:0.1",
        "participation.r=1.0",
        "algorithm.rounds=20",
    ];
    for eta in [0.1, 0.25] {
        let step = format!("algorithm.step_size={eta}");
        let rates: Vec<f64> = (1..11)
            .map(|seed| {
                let all_changes = [&changes[..], &[step.as_str()]].concat();
                let outcome = simulate_linear(&all_changes, seed);
                let distance_after =
                    |round: usize| outcome.rounds[round].scores.expect("evaluated").distance.expect("truth");
                (distance_after(20) / distance_after(0)).powf(1.0 / 20.0)
            })
            .collect();
        let rate = median(rates);
        println!("eta = {eta}: contraction {rate:.4}, expected about {:.4}", 1.0 - eta);
        assert!((rate - (1.0 - eta)).abs() < 0.15 * eta, "eta {eta}: {rate}");
    }
}

/// Tests figure 4: 200 new clients with m samples each, d = 20, k = 2, 100 training clients.
#[test]
fn new_clients_need_k_samples_not_d() {
    let text = Scenario::built_in("new-clients").expect("built in");
    let newcomer_error = |name: &str, m: usize, further_changes: &[&str]| {
        let mut changes = vec![
            format!("algorithm.name={name}"),
            format!("data.new_samples={m}"),
            "evaluate_every=1000".to_owned(),
        ];
        changes.extend(further_changes.iter().map(|&change| change.to_owned()));
        let scenario = Scenario::parse("new-clients", text, &changes).expect("scenario");
        let error_of_seed = |seed| {
            let outcome = run(&scenario, seed, &mut NoProgress).expect("runs");
            fedspan_sim_core::evaluate::average(&outcome.newcomers).test_mse.expect("tested")
        };
        median((1..6).map(error_of_seed).collect())
    };
    for m in [2, 5, 10, 20] {
        let fedrep = newcomer_error("fedrep", m, &[]);
        let single = newcomer_error("fedavg", m, &["algorithm.step_size=0.1", "model.init=random"]);
        let local = newcomer_error("local-only", m, &[]);
        println!(
            "m_new = {m}: FedRep {fedrep:.5}, single model with own head {single:.5}, local-only {local:.5}"
        );
        if m > 2 {
            assert!(fedrep < 0.1 * local && fedrep < 0.1 * single, "m = {m}: {fedrep} {single} {local}");
        }
    }
}
