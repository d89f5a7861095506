//! Table of the speed-up of doubling participation over full participation.

use crate::tables::markdown::{Table, tables};
use crate::tables::programs::Programs;
use crate::tables::recipe::Line;

/// Commands that print the complete table in `sim/STRAGGLERS.md`, verbatim.
const COMMANDS: [&str; 3] = [
    "fedspan-sim speedup --schedules fixed,theorem,adaptive --clients 16,32 --seeds 300",
    "fedspan-sim speedup --schedules fixed,theorem,adaptive --clients 64 --seeds 200",
    "fedspan-sim speedup --schedules fixed,theorem,adaptive --clients 128,256,512,1024 --seeds 100",
];
const CLIENTS: [&str; 4] = ["16", "64", "256", "1024"];
const COMMUNICATION: [&str; 4] = ["0", "1", "10", "100"];
const SPEEDS: [&str; 3] = ["fixed", "dynamic-mean", "dynamic-rate"];

/// Returns the table of the speed-up of the adaptive schedule; each cell has three ratios, one for each
/// distribution of speeds.
pub fn speed_up_table(programs: &mut Programs) -> Result<String, String> {
    let mut speed_ups = Table::default();
    for command in COMMANDS {
        let printed = programs.printed(&Line::parse(command)?.command)?;
        let table = tables(&printed).into_iter().next().ok_or("speedup printed no table")?;
        speed_ups.columns = table.columns;
        speed_ups.rows.extend(table.rows);
    }
    let column_index = |name: &str| {
        let column_index = speed_ups.columns.iter().position(|column| column == name);
        column_index.ok_or_else(|| format!("found no column {name:?}, there are {:?}", speed_ups.columns))
    };
    let columns = ["clients", "speeds", "communication", "adaptive"].map(column_index);
    let [clients, speeds, communication, adaptive] = columns;
    let (clients, speeds, communication, adaptive) = (clients?, speeds?, communication?, adaptive?);
    let ratio = |n: &str, c: &str, speed: &str| {
        let row = speed_ups
            .rows
            .iter()
            .find(|row| row[clients] == n && row[communication] == c && row[speeds] == speed);
        let cell = row.and_then(|row| row[adaptive].split(' ').next());
        cell.map(str::to_owned).ok_or_else(|| format!("found no row with {n} clients, {speed}, C = {c}"))
    };
    let mut text =
        "| clients | C = 0 | C = 1 | C = 10 | C = 100 |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for n in CLIENTS {
        text += &format!("| {n} |");
        for c in COMMUNICATION {
            let ratios = SPEEDS.into_iter().map(|speed| ratio(n, c, speed)).collect::<Result<Vec<_>, _>>()?;
            text += &format!(" {} |", ratios.join(" / "));
        }
        text.push('\n');
    }
    Ok(text)
}
