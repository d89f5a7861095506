//! Tables that no command prints: from constants of the code, or from the result files of several runs.

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
const OWN: &[(&str, Print)] = &[
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

/// Makes the table of a name, in Markdown.
///
/// # Errors
/// A sentence: an unknown table, or a program that failed.
pub fn print(name: &str, programs: &mut Programs) -> Result<String, String> {
    let names: Vec<&str> = OWN.iter().map(|(name, _)| *name).collect();
    let found = OWN.iter().find(|(own, _)| *own == name);
    let (_, print) = found.ok_or_else(|| format!("found no table {name:?}, there are {names:?}"))?;
    print(programs)
}
