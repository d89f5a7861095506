//! Tables of FedPower's rounds, bytes and time until it reaches a distance.

use super::rounds::{Rounds, median};
use crate::tables::programs::Programs;

/// Returns the table of rounds, megabytes and time until the distance is small enough, for several numbers p
/// of local steps. Every device has all digit classes.
pub fn cost_table(programs: &mut Programs) -> Result<String, String> {
    let mut runs = Vec::new();
    for p in [1, 2, 4, 8] {
        let (steps, out) = (format!("algorithm.local_steps={p}"), format!("soon-{p}"));
        let words = [
            "run",
            "fedpower-mnist",
            "--set",
            &steps,
            "--set",
            "fleet.communication=10",
            "--set",
            "evaluate_every=1",
        ];
        programs.simulate(&words, &out)?;
        runs.push(Rounds::read(programs, &out)?);
    }
    let mut text = "| | p = 1 | p = 2 | p = 4 | p = 8 |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for distance in [0.3, 0.15, 0.1, 0.05] {
        let cell = |run: &Rounds| match run.first_round_within(distance) {
            Some(round) => {
                let bytes = run.sum("bytes_up", round) + run.sum("bytes_down", round);
                let time = run.value_at(round, "time").unwrap_or(f64::NAN);
                format!(" {round}, {:.0} MB, {time:.0} |", bytes / 1e6)
            }
            None => " |".to_owned(),
        };
        text += &format!("| {distance} |{}\n", runs.iter().map(cell).collect::<String>());
    }
    Ok(text)
}

/// Returns the table of the simulated time until the distance is small enough, for several participation
/// policies: medians of five seeds.
pub fn time_table(programs: &mut Programs) -> Result<String, String> {
    const SEEDS: u32 = 5;
    let mut text =
        "| | 0.5 | 0.3 | distance at the end | after |\n| --- | --- | --- | --- | --- |\n".to_owned();
    let policies = [
        ("all devices", "participation={ policy = \"full\" }"),
        ("doubling, from 2", "participation={ policy = \"doubling\", n0 = 2 }"),
        ("doubling, from 5", "participation={ policy = \"doubling\", n0 = 5 }"),
    ];
    for (index, (name, policy)) in policies.into_iter().enumerate() {
        let out = format!("fastest-{index}");
        let changes = [
            "privacy={epsilon=10.0,delta=1e-4}",
            "data.clients=100",
            "data.samples=1000",
            "algorithm.local_steps=1",
            "algorithm.iterations=20",
            "fleet.speed=exponential",
            "evaluate_every=1",
            policy,
        ];
        let mut words = vec!["run", "fedpower", "--seeds", "5"];
        words.extend(changes.iter().flat_map(|change| ["--set", *change]));
        programs.simulate(&words, &out)?;
        let runs = Rounds::of_seeds(programs, &out, SEEDS)?;
        let median_time = |distance: f64| {
            let times: Vec<f64> = runs
                .iter()
                .filter_map(|run| run.value_at(run.first_round_within(distance)?, "time"))
                .collect();
            let finished = times.len();
            match median(times) {
                Some(time) if finished == runs.len() => format!("{time:.1}"),
                Some(time) => format!("{time:.1}, {finished} of {SEEDS} seeds"),
                None => "never".to_owned(),
            }
        };
        let range = |name: &str, decimals: usize| {
            let last_values: Vec<f64> =
                runs.iter().filter_map(|run| run.value_at(run.last(), name)).collect();
            let min = last_values.iter().copied().fold(f64::INFINITY, f64::min);
            let max = last_values.iter().copied().fold(0.0, f64::max);
            format!("{min:.decimals$} to {max:.decimals$}")
        };
        let (time_to_half, time_to_three_tenths) = (median_time(0.5), median_time(0.3));
        text += &format!(
            "| {name} | {time_to_half} | {time_to_three_tenths} | {} | {} |\n",
            range("distance", 2),
            range("time", 0)
        );
    }
    Ok(text)
}
