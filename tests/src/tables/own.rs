//! Tables that no command prints. They are made from constants of the code, or from the result files of
//! several runs.

mod account;
mod doubling;
mod lora;
mod newcomers;
mod power;
mod rounds;
mod sizes;
mod stationary;

use super::programs::Programs;

type Print = fn(&mut Programs) -> Result<String, String>;

/// Names of the tables, and the functions that make them.
const TABLES: &[(&str, Print)] = &[
    ("account", |_| account::releases()),
    ("adaptive", doubling::adaptive),
    ("fedpower-fastest", power::fastest),
    ("fedpower-soon", power::soon),
    ("lora-5", |programs| lora::table(lora::PLAIN_FIVE, programs)),
    ("lora-5-momentum", |programs| lora::table(lora::MOMENTUM_FIVE, programs)),
    ("lora-10", |programs| lora::table(lora::PLAIN_TEN, programs)),
    ("lora-10-momentum", |programs| lora::table(lora::MOMENTUM_TEN, programs)),
    ("newcomers", newcomers::table),
    ("noise", |_| account::noise()),
    ("sizes", |_| Ok(sizes::table())),
    ("stationary", |_| Ok(stationary::table())),
];

/// Makes the table with the given name, in Markdown.
///
/// # Errors
/// A sentence if the table is unknown or a program failed.
pub fn print(name: &str, programs: &mut Programs) -> Result<String, String> {
    let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    let found = TABLES.iter().find(|(known, _)| *known == name);
    let (_, print) = found.ok_or_else(|| format!("found no table {name:?}, there are {names:?}"))?;
    print(programs)
}
