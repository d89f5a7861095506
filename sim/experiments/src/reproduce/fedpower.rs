//! FedPower's first model (Guo et al. 2024, section 5, Figure 3).

use std::sync::atomic::AtomicBool;

use fedspan_engine::privacy::fedpower::Calibration;
use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::plot::{Axis, Loss, Point, Series};
use fedspan_sim_core::report::table::{Table, figure};
use fedspan_sim_core::scenario::Scenario;

use super::{Finding, Measured, Reproduced, Reproduction, Request};
use crate::power::{self, Case, Grams, PowerError, PrivacyTarget, Row, Settings};

/// Figure 3: distance against exchanges under Model I.
pub const MODEL_1: Reproduction = Reproduction {
    name: "fedpower-model-1",
    title: "FedPower on the spiked covariance model: distance to the principal directions after each exchange",
    paper: "Guo et al. 2024, FedPower: Privacy-Preserving Distributed Eigenspace Estimation, Figure 3",
    claim: "More local iterations (p = 2, 4) give smaller distances for the same number of exchanges than p = 1; a larger epsilon \
            gives smaller distances; and the part of the machines that takes part has no significant influence.",
    stand_ins: "All settings are the paper's: 2 000 000 rows of 100 features on 20 machines, r = 5, T = 10, delta = 1e-4, p with decay, noise by the paper's \
                theorem. Devices are replaced by their Gram matrices, which give the same distances.",
    duration: "10 s",
    seeds: 20,
    measure,
};

const LOCAL_STEPS: [u16; 3] = [1, 2, 4];
const EPSILONS: [f64; 3] = [0.5, 1.0, 10.0];
const PARTICIPATION: [f64; 3] = [1.0, 0.6, 0.4];

fn measure(request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let text = Scenario::built_in(power::SCENARIO).unwrap_or_default();
    let scenario = Scenario::parse(power::SCENARIO, text, &["data.samples=100000".to_owned()])?;
    let fleet = Grams::from_scenario(&scenario).map_err(PowerError::from)?;
    let privacy = Some(PrivacyTarget { epsilon: 0.5, delta: 1e-4, calibration: Calibration::Paper });
    let base = Case {
        rank: scenario.model.k,
        iterations: 10,
        local_steps: 2,
        decay: true,
        procrustes: true,
        participation: 1.0,
        privacy,
        one_shot: false,
    };
    let settings = Settings {
        base,
        local_steps: LOCAL_STEPS.to_vec(),
        epsilons: EPSILONS.to_vec(),
        participation: PARTICIPATION.to_vec(),
        calibrations: vec![Some(Calibration::Paper)],
        seed: request.seed,
        seeds: request.seeds,
        threads: request.threads,
    };
    let Some(rows) = power::measure(&fleet, &settings, stop, progress)? else { return Ok(None) };
    let find = |case: Case| rows.iter().find(|row| row.case == case);
    let after = |case: Case, exchanges: usize| find(case).map_or(f64::NAN, |row| row.after(exchanges).median);
    let last = |case: Case| find(case).map_or(f64::NAN, |row| row.last().median);
    let with_steps = LOCAL_STEPS.map(|local_steps| Case { local_steps, ..base });
    let with_epsilon = EPSILONS
        .map(|epsilon| Case { privacy: privacy.map(|target| PrivacyTarget { epsilon, ..target }), ..base });
    let with_participation = PARTICIPATION.map(|participation| Case { participation, ..base });
    let list =
        |values: &[f64]| values.iter().map(|value| figure("distance", *value)).collect::<Vec<_>>().join(", ");
    // After three exchanges p = 4 has done all its iterations but one, p = 1 three of ten.
    let early = with_steps.map(|case| after(case, 3));
    let by_epsilon = with_epsilon.map(last);
    let by_participation = with_participation.map(last);
    let findings = vec![
        Finding::new(
            "more local iterations give smaller distances for the same number of exchanges",
            format!("after 3 exchanges with p = 1, 2, 4: {}", list(&early)),
            early[1] < early[0] && early[2] < early[0],
        ),
        Finding::new(
            "a larger epsilon gives smaller distances",
            format!("at the end with epsilon = 0.5, 1, 10: {}", list(&by_epsilon)),
            by_epsilon[0] > by_epsilon[1] && by_epsilon[1] > by_epsilon[2],
        ),
        Finding::new(
            "the part of the machines has no significant influence: less than a quarter of the distance",
            format!("at the end with all, 0.6 and 0.4 of them: {}", list(&by_participation)),
            by_participation.iter().all(|distance| (distance / by_participation[0] - 1.0).abs() < 0.25),
        ),
    ];
    let series = |label: String, case: Case| find(case).map(|row| series(label, row));
    let panels = vec![
        (
            "local iterations p, epsilon = 0.5".to_owned(),
            LOCAL_STEPS
                .iter()
                .zip(with_steps)
                .filter_map(|(p, case)| series(format!("p = {p}"), case))
                .collect(),
        ),
        (
            "epsilon, p = 2".to_owned(),
            EPSILONS
                .iter()
                .zip(with_epsilon)
                .filter_map(|(e, case)| series(format!("epsilon = {e}"), case))
                .collect(),
        ),
        (
            "part of the machines K/m, p = 2, epsilon = 0.5".to_owned(),
            PARTICIPATION
                .iter()
                .zip(with_participation)
                .filter_map(|(part, case)| series(format!("K/m = {part}"), case))
                .collect(),
        ),
    ];
    let cells = |row: &Row| {
        let quartiles = row.last();
        let numbers = [quartiles.median, quartiles.q25, quartiles.q75].map(|value| figure("distance", value));
        [row.name.replace("paper, ", ""), row.at.len().to_string()].into_iter().chain(numbers).collect()
    };
    let shown = |row: &&Row| {
        with_steps.iter().chain(&with_epsilon).chain(&with_participation).any(|case| *case == row.case)
    };
    let table = Table {
        title: format!("distance after the last exchange, {} seeds of the noise", request.seeds),
        columns: ["setting", "exchanges", "median", "q25", "q75"].map(str::to_owned).to_vec(),
        rows: rows.iter().filter(shown).map(cells).collect(),
        notes: Vec::new(),
    };
    Ok(Some(Reproduced {
        panels,
        axes: vec![Axis::Exchange],
        tables: vec![table],
        findings,
        summaries: Vec::new(),
        scenarios: vec![("Scenario".to_owned(), scenario.text)],
    }))
}

/// Curve of a setting against the number of exchanges.
fn series(label: String, row: &Row) -> Series {
    let runs = row.distances.iter().map(|run| {
        let point = |(exchange, distance): (u32, &f64)| {
            let scores = Scores { distance: Some(*distance), ..Scores::default() };
            Point { round: exchange.into(), time: 0.0, bytes: 0.0, scores }
        };
        (0..).zip(run).map(point).collect()
    });
    Series { family: label.clone(), label, loss: Loss::default(), every: 1, runs: runs.collect() }
}
