//! Writer of `energy.csv`: the energy of each training device of a run.

use crate::run::Outcome;

/// Text of `energy.csv`: one line for each training device, by its number in the data; `None` if the scenario does not ask
/// for energy.
#[must_use]
pub fn energy(outcome: &Outcome) -> Option<String> {
    if outcome.energy.is_empty() {
        return None;
    }
    let mut text = String::from(
        "client,rounds,uncounted,cycles,sending_s,receiving_s,seconds,computation_mj,sending_mj,receiving_mj,sleep_mj,total_mj,battery_months\n",
    );
    for (client, device) in outcome.energy.iter().enumerate() {
        let (usage, energy) = (device.usage, device.energy);
        let figures = [
            usage.cycles,
            usage.sending,
            usage.receiving,
            device.seconds,
            1e3 * energy.computation,
            1e3 * energy.sending,
            1e3 * energy.receiving,
            1e3 * energy.sleep,
            device.millijoules(),
        ];
        let months = Some(device.months).filter(|months| months.is_finite());
        let cells = figures.map(Some).into_iter().chain([months]);
        let cells: Vec<String> =
            cells.map(|cell| cell.map_or(String::new(), |cell| cell.to_string())).collect();
        text.push_str(&format!("{client},{},{},{}\n", usage.rounds, usage.uncounted, cells.join(",")));
    }
    Some(text)
}
