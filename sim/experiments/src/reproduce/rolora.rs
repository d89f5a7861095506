//! RoLoRA's lemma for a linear model, and its comparison on a small network (Chen et al. 2025, sections 5.1 and 5.2).

use std::sync::atomic::AtomicBool;

use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::plot::Axis;
use fedspan_sim_core::report::table::{Table, figure};

use super::simulated::{Curve, Simulated};
use super::{Finding, Measured, Reproduced, Reproduction, Request};

/// Lemma 5.3 and Proposition 5.5: the angle to the true factor.
pub const LINEAR: Reproduction = Reproduction {
    name: "rolora-linear",
    title: "RoLoRA on a linear model of rank 1: angle to the true factor, beside a frozen factor",
    paper: "Chen et al. 2025, Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA, section 5.1",
    claim: "By alternating least squares and gradient steps RoLoRA learns the true down-projection at a linear rate. With a frozen \
            down-projection (FFA-LoRA) the angle, and with it a part of the loss, remains.",
    stand_ins: "The paper has the lemma and no figure. d = C = 20, five clients of 50 samples, first angle of sine 0.9, eta L^2 = 1/4: ours.",
    duration: "1 s",
    seeds: 20,
    measure: linear,
};

fn linear(request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let curves = vec![
        Curve::new("RoLoRA", "rolora", &[])?,
        Curve::new("FFA-LoRA", "rolora", &["algorithm.name=ffa-lora"])?,
    ];
    let Some(runs) = Simulated::run(curves, request, stop, progress)? else { return Ok(None) };
    let rounds = [0, 20, 40, 60, 80];
    let sine = |label: &str| rounds.map(|round| runs.after(label, round, |scores| scores.distance).mean);
    let (rolora, frozen) = (sine("RoLoRA"), sine("FFA-LoRA"));
    let text = |sines: [f64; 5]| sines.map(|sine| format!("{sine:.1e}")).join(", ");
    let ratios: Vec<f64> = rolora.iter().zip(rolora.iter().skip(1)).map(|(a, b)| b / a).collect();
    let loss = |label: &str| runs.last(label, "loss").mean;
    let findings = vec![
        Finding::new(
            "RoLoRA learns the factor at a linear rate",
            format!("mean sine after 0, 20, 40, 60 and 80 rounds: {}", text(rolora)),
            ratios.iter().all(|ratio| *ratio < 0.2) && rolora[4] < 1e-5,
        ),
        Finding::new(
            "with a frozen factor the angle remains",
            format!("FFA-LoRA: {}", text(frozen)),
            (frozen[4] - frozen[0]).abs() < 1e-6,
        ),
        Finding::new(
            "with a frozen factor a part of the loss remains",
            format!(
                "final loss {} beside {}",
                figure("loss", loss("FFA-LoRA")),
                figure("loss", loss("RoLoRA"))
            ),
            loss("FFA-LoRA") > 100.0 * loss("RoLoRA"),
        ),
    ];
    let tables = vec![runs.table("final figures, mean +- standard deviation", &["distance", "loss"])];
    let panels = vec![(String::new(), runs.series(|_| true))];
    let (summaries, scenarios) = runs.into_parts();
    let axes = vec![Axis::Round, Axis::Bytes];
    Ok(Some(Reproduced { panels, axes, tables, findings, summaries, scenarios }))
}

/// Figure 2: accuracy of a network with an adapter, 5 and 10 clients.
pub const TOY: Reproduction = Reproduction {
    name: "rolora-toy",
    title: "RoLoRA, LoRA and FFA-LoRA on a small network: accuracy with 5 and with 10 clients",
    paper: "Chen et al. 2025, Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA, Figure 2",
    claim: "FFA-LoRA stays at about 0.55 with 5 and with 10 clients; LoRA gets worse with more clients; RoLoRA is best in both.",
    stand_ins: "5000 digits of MNIST for 60 000. Five clients have two digits each, ten have one. Step sizes are those that were best for each method on a \
                validation part and another seed.",
    duration: "1 minute",
    seeds: 3,
    measure: toy,
};

/// Fleets: number of clients, classes of each, and the step sizes of RoLoRA, LoRA and FFA-LoRA.
const FLEETS: [(u32, u32, [f64; 3]); 2] = [(5, 2, [0.1, 1.0, 100.0]), (10, 1, [1.0, 0.3, 3.0])];

fn toy(request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let methods = [("RoLoRA", "rolora"), ("LoRA", "lora"), ("FFA-LoRA", "ffa-lora")];
    let label = |method: &str, clients: u32| format!("{method}, {clients} clients");
    let mut curves = Vec::new();
    for (clients, classes, steps) in FLEETS {
        for ((method, algorithm), step) in methods.into_iter().zip(steps) {
            let changes = [
                format!("algorithm.name={algorithm}"),
                format!("algorithm.step_size={step}"),
                format!("data.partition.clients={clients}"),
                format!("data.partition.classes={classes}"),
                "evaluate_every=5".to_owned(),
            ];
            let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
            curves.push(Curve::new(label(method, clients), "mnist-lora", &changes)?);
        }
    }
    let Some(runs) = Simulated::run(curves, request, stop, progress)? else { return Ok(None) };
    let accuracy = |method: &str| FLEETS.map(|(clients, ..)| runs.final_accuracy(&label(method, clients)));
    let [rolora, lora, frozen] = ["RoLoRA", "LoRA", "FFA-LoRA"].map(accuracy);
    let text = |[five, ten]: [f64; 2]| format!("{five:.3} with 5 clients, {ten:.3} with 10");
    let findings = vec![
        Finding::new(
            "FFA-LoRA stays at about 0.55 in both fleets (within 0.1)",
            text(frozen),
            frozen.iter().all(|accuracy| (accuracy - 0.55).abs() < 0.1),
        ),
        Finding::new("LoRA gets worse with more clients", text(lora), lora[1] < lora[0]),
        Finding::new(
            "RoLoRA is ahead of FFA-LoRA in both fleets",
            text(rolora),
            rolora.iter().zip(frozen).all(|(own, frozen)| *own > frozen),
        ),
        Finding::new(
            "RoLoRA is ahead of LoRA in both fleets",
            format!("RoLoRA {}; LoRA {}", text(rolora), text(lora)),
            rolora.iter().zip(lora).all(|(own, lora)| *own > lora),
        ),
    ];
    let rows = methods.map(|(method, _)| {
        let cells = accuracy(method).map(|accuracy| format!("{accuracy:.4}"));
        std::iter::once(method.to_owned()).chain(cells).collect()
    });
    let table = Table {
        title: format!("accuracy, mean over the last ten of 60 rounds and {} seeds", request.seeds),
        columns: ["method", "5 clients", "10 clients"].map(str::to_owned).to_vec(),
        rows: rows.to_vec(),
        notes: Vec::new(),
    };
    let panels = FLEETS.map(|(clients, classes, _)| {
        let classes = if classes == 1 { "one digit each".to_owned() } else { "two digits each".to_owned() };
        let belongs = |name: &str| methods.iter().any(|(method, _)| name == label(method, clients));
        (format!("{clients} clients, {classes}"), runs.series(belongs))
    });
    let panels = panels.to_vec();
    let (summaries, scenarios) = runs.into_parts();
    let axes = vec![Axis::Round, Axis::Bytes];
    Ok(Some(Reproduced { panels, axes, tables: vec![table], findings, summaries, scenarios }))
}
