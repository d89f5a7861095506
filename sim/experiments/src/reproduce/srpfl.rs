//! SRPFL's figures of accuracy against simulated time (Tziotis et al. 2023, Figures 3 to 6).

use std::sync::atomic::AtomicBool;

use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::plot::Axis;
use fedspan_sim_core::report::table::Table;

use super::simulated::{Curve, Simulated};
use super::{Finding, Measured, Reproduced, Reproduction, Request};

/// Claim of all four figures.
const CLAIM: &str = "FedRep with doubling participation (FedRep-SRPFL) is ahead of all compared methods at every cost of communication; doubling makes \
                     FedRep and LG-FedAvg much faster; the gain shrinks as communication costs more; and FedRep-SRPFL is far ahead of FLANP with \
                     fine-tuning.";
/// Differences to the paper in all four figures.
const STAND_INS: &str = "1437 digits of 8 x 8 pixels for CIFAR, EMNIST and FEMNIST, a fully connected network (64, 32) for LeNet, 50 clients of about 28 images \
                         with 5 shards. FLANP is FedAvg with the same doubling, MAML is left out. Stages have ten rounds, which were chosen on another seed. \
                         Simulated time and costs C of communication (0, 10, 100) are the paper's: in mean computations.";

/// Settings in which the figures differ.
struct Fleet {
    /// Whether a fifth of the clients is asked in each round instead of all.
    asks_fifth: bool,
    /// Whether new speeds are drawn in each round.
    is_dynamic: bool,
}

/// Defines the constant of a figure.
macro_rules! figure {
    ($constant:ident, $number:literal, $subject:literal, $fifth:literal, $dynamic:literal, $duration:literal) => {
        #[doc = concat!("Figure ", $number, ": ", $subject, ".")]
        pub const $constant: Reproduction = Reproduction {
            name: concat!("srpfl-figure-", $number),
            title: concat!("Doubling participation, ", $subject, ": accuracy against simulated time"),
            paper: concat!(
                "Tziotis et al. 2023, Straggler-Resilient Personalized Federated Learning, Figure ",
                $number
            ),
            claim: CLAIM,
            stand_ins: STAND_INS,
            duration: $duration,
            seeds: 3,
            measure: |request, stop, progress| {
                measure(&Fleet { asks_fifth: $fifth, is_dynamic: $dynamic }, request, stop, progress)
            },
        };
    };
}

figure!(FIGURE_3, "3", "all clients, speeds drawn once", false, false, "25 s");
figure!(FIGURE_4, "4", "a fifth of the clients, speeds drawn once", true, false, "25 s");
figure!(FIGURE_5, "5", "all clients, speeds drawn in each round", false, true, "25 s");
figure!(FIGURE_6, "6", "a fifth of the clients, speeds drawn in each round", true, true, "25 s");

/// Methods without doubling, with their names in scenarios.
const METHODS: [(&str, &str); 4] = [
    ("FedRep", "fedrep+ft"),
    ("LG-FedAvg", "lg-fedavg"),
    ("FedAvg", "fedavg"),
    ("FedAvg, tuned", "fedavg+ft"),
];
/// Names of the methods with doubling.
const DOUBLED: [&str; 4] = ["FedRep-SRPFL", "LG-SRPFL", "FLANP", "FLANP, tuned"];
/// Costs of communication in a round.
const COSTS: [f64; 3] = [0.0, 10.0, 100.0];
/// Targets, as parts of the best final accuracy of all methods.
const TARGETS: [f64; 2] = [0.9, 0.95];

fn measure(fleet: &Fleet, request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let mut common = vec!["data.kind=digits", "model.hidden=[64,32]", "evaluate_every=2"];
    if fleet.is_dynamic {
        common.push("fleet.speed=exponential-dynamic");
    }
    if fleet.asks_fifth {
        common.push("algorithm.rounds=300");
    }
    let mut curves = Vec::new();
    for ((method, algorithm), doubled) in METHODS.into_iter().zip(DOUBLED) {
        let name = format!("algorithm.name={algorithm}");
        let waits = if fleet.asks_fifth {
            "participation={ policy = \"fraction\", r = 0.2 }"
        } else {
            "participation={ policy = \"full\" }"
        };
        let changes = |own: &[&'static str]| [&common[..], own].concat();
        let with = |own: &[&'static str]| -> Vec<String> {
            changes(own).into_iter().map(str::to_owned).chain([name.clone()]).collect()
        };
        let as_texts = |changes: &[String], label: &str| {
            let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
            Curve::new(label, "srpfl-network", &changes)
        };
        curves.push(as_texts(&with(&[waits]), method)?);
        let stages: &[&'static str] = if fleet.asks_fifth {
            &["participation.stage_rounds=10", "participation.cohort=10"]
        } else {
            &["participation.stage_rounds=10"]
        };
        curves.push(as_texts(&with(stages), doubled)?);
    }
    let Some(runs) = Simulated::run(curves, request, stop, progress)? else { return Ok(None) };
    let best = runs.labels().map(|label| runs.final_accuracy(label)).fold(0.0, f64::max);
    let target = |part: f64| part * best;
    let time = |label: &str, cost: f64| runs.time_to(label, target(TARGETS[0]), cost);
    let gain = |method: &str, doubled: &str, cost: f64| time(method, cost) / time(doubled, cost);
    let gains = |method: &str, doubled: &str| COSTS.map(|cost| gain(method, doubled, cost));
    let text = |gains: [f64; 3]| gains.map(|gain| format!("{gain:.2}")).join(", ");
    let (fedrep, lg) = (gains("FedRep", "FedRep-SRPFL"), gains("LG-FedAvg", "LG-SRPFL"));
    let falls = |[first, second, third]: [f64; 3]| first > second && second > third;
    let is_first = COSTS.map(|cost| {
        runs.labels().all(|label| label == "FedRep-SRPFL" || time(label, cost) > time("FedRep-SRPFL", cost))
    });
    let reached = format!("accuracy {:.3}", target(TARGETS[0]));
    let firsts = COSTS.iter().zip(is_first).filter(|(_, first)| *first).map(|(cost, _)| format!("{cost}"));
    let firsts: Vec<String> = firsts.collect();
    let flanp = time("FLANP, tuned", 0.0) / time("FedRep-SRPFL", 0.0);
    let findings = vec![
        Finding::new(
            "doubling makes FedRep and LG-FedAvg faster where communication is free",
            format!("{reached}: FedRep {:.1} times as fast, LG-FedAvg {:.1} times", fedrep[0], lg[0]),
            fedrep[0] > 1.2 && lg[0] > 1.2,
        ),
        Finding::new(
            "the gain shrinks as communication costs more",
            format!("gain at C = 0, 10, 100: FedRep {}; LG-FedAvg {}", text(fedrep), text(lg)),
            falls(fedrep) && falls(lg),
        ),
        Finding::new(
            "FedRep-SRPFL reaches the target before all others at every cost",
            match firsts.len() {
                0 => "at no cost".to_owned(),
                3 => "at C = 0, 10 and 100".to_owned(),
                _ => format!("only at C = {}", firsts.join(" and ")),
            },
            is_first == [true; 3],
        ),
        Finding::new(
            "FedRep-SRPFL is far ahead of FLANP with fine-tuning: twice as fast",
            format!("{flanp:.2} times as fast at C = 0"),
            flanp >= 2.0,
        ),
    ];
    let cell = |label: &str, cost: f64, part: f64| match runs.time_to(label, target(part), cost) {
        time if time.is_finite() => format!("{time:.1}"),
        _ => "-".to_owned(),
    };
    let rows = runs.labels().map(|label| {
        let times = COSTS.iter().flat_map(|cost| TARGETS.map(|part| cell(label, *cost, part)));
        [label.to_owned(), format!("{:.4}", runs.final_accuracy(label))].into_iter().chain(times).collect()
    });
    let columns =
        COSTS.iter().flat_map(|cost| TARGETS.map(|part| format!("C = {cost}, {:.4}", target(part))));
    let table = Table {
        title: format!("simulated time until an accuracy, {} seeds", request.seeds),
        columns: ["method".to_owned(), "final accuracy".to_owned()].into_iter().chain(columns).collect(),
        rows: rows.collect(),
        notes: vec!["when more than half of the seeds are there, by their last evaluated round".to_owned()],
    };
    let panels = COSTS.map(|cost| (format!("C = {cost}"), runs.shifted_series(cost, |_| true))).to_vec();
    let (summaries, scenarios) = runs.into_parts();
    let axes = vec![Axis::Time, Axis::Round];
    Ok(Some(Reproduced { panels, axes, tables: vec![table], findings, summaries, scenarios }))
}
