//! Tables that no command prints. They are computed from constants of the code, or from the result files of
//! several runs.

mod account;
mod doubling;
mod energy;
mod lora;
mod newcomers;
mod power;
mod rounds;
mod sizes;
mod stationary;

use super::programs::Programs;
use crate::benchmarks;

type Print = fn(&mut Programs) -> Result<String, String>;

/// Names of the tables, and the functions that create them.
const TABLES: &[(&str, Print)] = &[
    ("account", |_| account::releases_table()),
    ("adaptive", doubling::speed_up_table),
    (benchmarks::page::TABLE, |_| {
        benchmarks::history::read(&benchmarks::history::path()).map(|rows| benchmarks::page::table(&rows))
    }),
    ("cycles", |_| energy::cycles_table()),
    ("energy", |_| energy::energy_table()),
    ("fedpower-fastest", power::time_table),
    ("fedpower-soon", power::cost_table),
    ("lora-5", |programs| lora::accuracy_table(lora::PLAIN_FIVE, programs)),
    ("lora-5-momentum", |programs| lora::accuracy_table(lora::MOMENTUM_FIVE, programs)),
    ("lora-10", |programs| lora::accuracy_table(lora::PLAIN_TEN, programs)),
    ("lora-10-momentum", |programs| lora::accuracy_table(lora::MOMENTUM_TEN, programs)),
    ("newcomers", newcomers::accuracy_table),
    ("noise", |_| account::noise_table()),
    ("sizes", |_| Ok(sizes::memory_table())),
    ("stationary", |_| Ok(stationary::distance_table())),
];

/// Returns the table with the given name, in Markdown.
///
/// # Errors
/// A sentence if the table is unknown or a program failed.
pub fn print(name: &str, programs: &mut Programs) -> Result<String, String> {
    let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    let entry = TABLES.iter().find(|(table_name, _)| *table_name == name);
    let (_, create) = entry.ok_or_else(|| format!("found no table {name:?}, there are {names:?}"))?;
    create(programs)
}
